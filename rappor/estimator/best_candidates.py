"""The best of many candidates, in bounded memory.

`StreamedDesign` offers every block of a stream to `Best`, which keeps the candidates with the
largest z scores. At most twice as many candidates are in memory as are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rappor.candidates.texts import Texts
from rappor.counts.arrays import Floats, Integers

_PILED: Final = 2
"""Number of candidates in memory, as a multiple of the kept candidates, at which the worst are
removed. A larger number costs memory; a smaller number sorts more often."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CandidateRows:
    """Some candidates of a stream, in the order of the stream.

    Attributes
    ----------
    index : (r,) int64, increasing. Position of each candidate in the stream.
    words : (r, 4) uint32. Digest of each string, from
        `rappor.candidates.uncompiled_hashing.hash_texts`.
    strings : (r,) objects of type bytes, in UTF-8.
    copies : (r,) int64. Number of times that each string was read.
    z : (r,) float64. Z score of each candidate.
    """

    index: Integers
    words: NDArray[np.uint32]
    strings: NDArray[np.object_]
    copies: Integers
    z: Floats

    @classmethod
    def of(cls, start: int, texts: Texts, words: NDArray[np.uint32], z: Floats) -> CandidateRows:
        """Create rows for all strings of a block. `start` is the position of the first string."""
        strings = np.empty(len(texts), dtype=object)
        strings[:] = texts.to_bytes()
        return cls(
            index=np.arange(start, start + len(texts)),
            words=words,
            strings=strings,
            copies=np.ones(len(texts), dtype=np.int64),
            z=z,
        )

    @classmethod
    def empty(cls) -> CandidateRows:
        """Create an empty table."""
        return cls.of(0, Texts.from_bytes([]), np.zeros((0, 4), dtype=np.uint32), np.array([]))

    def __len__(self) -> int:
        return len(self.index)

    def take(self, rows: Integers) -> CandidateRows:
        """Return the rows at these positions."""
        return self._map_columns(lambda name: getattr(self, name)[rows])

    def append(self, others: CandidateRows) -> CandidateRows:
        """Return the rows of both tables. A string of both tables has two rows."""
        return self._map_columns(
            lambda name: np.concatenate([getattr(self, name), getattr(others, name)])
        )

    @staticmethod
    def _map_columns(column: Callable[[str], NDArray[Any]]) -> CandidateRows:
        """Create a table from a function that returns each column."""
        return CandidateRows(
            **{
                field.name: np.ascontiguousarray(column(field.name))
                for field in fields(CandidateRows)
            }
        )

    def merge_duplicates(self) -> CandidateRows:
        """Merge the rows of equal strings into the first row, and add up their copies."""
        ordered = self.take(np.argsort(self.index, kind="stable"))
        # Compare 64 bits of the digests. Among 2^16 different strings two agree with probability
        # 1e-10.
        names = ordered.words.view(np.uint64)[:, 0]
        _, first, position = np.unique(names, return_index=True, return_inverse=True)
        copies = np.zeros(len(ordered), dtype=np.int64)
        np.add.at(copies, first[position], ordered.copies)
        ordered.copies[:] = copies
        return ordered.take(np.sort(first))


class Best:
    """Collects the `most` candidates with the largest z score.

    Of equal scores, the first is kept.

    `least` is the z score that a candidate must exceed to be kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._rows = CandidateRows.empty()
        self.least = -np.inf

    def offer(self, start: int, texts: Texts, words: NDArray[np.uint32], z: Floats) -> None:
        """Add the candidates of a block.

        `start` is the position of the first string in the stream.
        """
        good = np.flatnonzero(z > self.least)
        if len(good):
            block = CandidateRows.of(0, texts.select(good), words[good], z[good])
            block.index[:] = start + good
            self._rows = self._rows.append(block)
        # Sort only when enough candidates have accumulated: sorting after every block would take
        # most of the time.
        if len(self._rows) > _PILED * self._most:
            self._drop()

    def close(self) -> CandidateRows:
        """Return the best candidates."""
        self._drop()
        return self._rows

    def _drop(self) -> None:
        """Merge equal strings, then remove the candidates with the smallest z scores."""
        distinct = self._rows.merge_duplicates()
        best = np.argsort(-distinct.z, kind="stable")[: self._most]
        if len(best) == self._most:
            self.least = float(distinct.z[best[-1]])
        self._rows = distinct.take(np.sort(best))
