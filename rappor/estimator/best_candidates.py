"""The best of many candidates, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rappor.candidates.texts import Texts
from rappor.counts.arrays import Floats, Integers

_PILED: Final = 2
"""Candidates that pile up, for each one that stays, before the worst are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """Some candidates, each once, in their order.

    Attributes
    ----------
    index : (r,) int64, increasing. Their numbers among all.
    words : (r, 4) uint32, from `rappor.candidates.sha256.digest_texts`.
    strings : (r,) of bytes.
    copies : (r,) int64. How often each of them was seen.
    z : (r,) float64. Their z scores.
    """

    index: Integers
    words: NDArray[np.uint32]
    strings: NDArray[np.object_]
    copies: Integers
    z: Floats

    @classmethod
    def of(cls, start: int, texts: Texts, words: NDArray[np.uint32], z: Floats) -> Held:
        """Hold all strings of a block, of which the first one has the number `start`."""
        strings = np.empty(len(texts), dtype=object)
        strings[:] = texts.raw()
        return cls(
            index=np.arange(start, start + len(texts)),
            words=words,
            strings=strings,
            copies=np.ones(len(texts), dtype=np.int64),
            z=z,
        )

    @classmethod
    def none(cls) -> Held:
        """Hold nothing."""
        return cls.of(0, Texts.of([]), np.zeros((0, 4), dtype=np.uint32), np.array([]))

    def __len__(self) -> int:
        return len(self.index)

    def take(self, places: Integers) -> Held:
        """Return those at these places."""
        return self._each(lambda name: getattr(self, name)[places])

    def and_then(self, others: Held) -> Held:
        """Return these and others; a string of both comes twice."""
        return self._each(lambda name: np.concatenate([getattr(self, name), getattr(others, name)]))

    @staticmethod
    def _each(column: Callable[[str], NDArray[Any]]) -> Held:
        return Held(**{each.name: np.ascontiguousarray(column(each.name)) for each in fields(Held)})

    def each_once(self) -> Held:
        """Return equal strings as one, the first, in their order."""
        ordered = self.take(np.argsort(self.index, kind="stable"))
        # Among 2^16 strings two others share 64 bits of their hashes with probability 1e-10.
        names = ordered.words.view(np.uint64)[:, 0]
        _, first, place = np.unique(names, return_index=True, return_inverse=True)
        copies = np.zeros(len(ordered), dtype=np.int64)
        np.add.at(copies, first[place], ordered.copies)
        ordered.copies[:] = copies
        return ordered.take(np.sort(first))


class Best:
    """Holds the `most` candidates with the largest z; of equal ones the first.

    `least` is what a z score must exceed to be held.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = Held.none()
        self.least = -np.inf

    def offer(self, start: int, texts: Texts, words: NDArray[np.uint32], z: Floats) -> None:
        """Take the good ones of a block, of which the first one has the number `start`."""
        good = np.flatnonzero(z > self.least)
        if len(good):
            block = Held.of(0, texts.take(good), words[good], z[good])
            block.index[:] = start + good
            self._held = self._held.and_then(block)
        if len(self._held) > _PILED * self._most:
            self._drop()

    def close(self) -> Held:
        """Return the best ones."""
        self._drop()
        return self._held

    def _drop(self) -> None:
        """Drop repeated ones, then the worst."""
        held = self._held.each_once()
        best = np.argsort(-held.z, kind="stable")[: self._most]
        if len(best) == self._most:
            self.least = float(held.z[best[-1]])
        self._held = held.take(np.sort(best))
