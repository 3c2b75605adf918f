"""The best of many candidates, in bounded memory.

`StreamedDesign` offers every block of a stream to `BestCandidates`, which keeps the candidates with
the largest z scores. Of a ranked stream, whose candidates have weights, it also keeps the
candidates with the smallest p-value divided by the weight: they may be detected although their z
scores are not among the largest. Between two blocks, at most twice as many candidates are in memory
as are kept at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rappor.candidates.texts import Texts
from rappor.counts.arrays import Floats, Integers
from rappor.estimator.rank_weights import count_ratios, invert_ranks

_MEMORY_FACTOR: Final = 2
"""Number of candidates in memory, as a multiple of the number that is kept, above which the worst
candidates are removed. A larger number needs more memory. With a smaller number the candidates are
sorted more often."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CandidateRows:
    """Some candidates of a stream, in the order of the stream.

    Attributes
    ----------
    index : (r,) int64, increasing. Position of each candidate in the stream.
    words : (r, 4) uint32. Digest of each string, from
        `rappor.candidates.uncompiled_hashing.hash_texts`.
    strings : (r,) objects of type bytes, in UTF-8.
    copies : (r,) int64. Number of copies of each string that were merged into the row.
    weight : (r,) float64. Sum of the weights before scaling (`invert_ranks`) of these copies.
    z : (r,) float64. Z score of each candidate: its one-step estimate divided by the standard error
        (`rappor.estimator.screening`).
    ratio : (r,) float64. P-value divided by the weight of the first copy (`compute_ratios`).
        Infinite unless the stream is ranked.
    """

    index: Integers
    words: NDArray[np.uint32]
    strings: NDArray[np.object_]
    copies: Integers
    weight: Floats
    z: Floats
    ratio: Floats

    @classmethod
    def of(
        cls,
        index: Integers,
        texts: Texts,
        words: NDArray[np.uint32],
        z: Floats,
        ratio: Floats,
    ) -> CandidateRows:
        """Create a row for each string of a block. The arguments are columns of the table."""
        strings = np.empty(len(texts), dtype=object)
        strings[:] = texts.to_bytes()
        return cls(
            index=index,
            words=words,
            strings=strings,
            copies=np.ones(len(texts), dtype=np.int64),
            weight=invert_ranks(index + 1),
            z=z,
            ratio=ratio,
        )

    @classmethod
    def empty(cls) -> CandidateRows:
        """Create an empty table."""
        words = np.zeros((0, 4), dtype=np.uint32)
        return cls.of(
            np.zeros(0, dtype=np.int64), Texts.from_bytes([]), words, np.array([]), np.array([])
        )

    def __len__(self) -> int:
        return len(self.index)

    def take(self, rows: Integers) -> CandidateRows:
        """Return the rows at some positions of the table."""
        return self._map_columns(lambda name: getattr(self, name)[rows])

    def append(self, rows: CandidateRows) -> CandidateRows:
        """Return the rows of both tables. A string of both tables has two rows."""
        return self._map_columns(
            lambda name: np.concatenate([getattr(self, name), getattr(rows, name)])
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
        """Merge the rows of equal strings into the first row. Add up their copies and weights."""
        ordered = self.take(np.argsort(self.index, kind="stable"))
        # Compare 64 bits of the digests. For example, a table of 2^16 different strings has 2^31
        # pairs, and a pair agrees with probability 2^-64. So two of the strings are confused with
        # probability 1e-10.
        digests = ordered.words.view(np.uint64)[:, 0]
        _, first, position = np.unique(digests, return_index=True, return_inverse=True)
        for column in (ordered.copies, ordered.weight):
            total = np.zeros_like(column)
            np.add.at(total, first[position], column)
            column[:] = total
        return ordered.take(np.sort(first))

    @property
    def repeated_weight(self) -> float:
        """Sum of the weights before scaling of all copies except the first copy of each string."""
        return float((self.weight - invert_ranks(self.index + 1)).sum())


class BestCandidates:
    """The candidates of a stream with the largest z scores, collected block by block.

    Of a ranked stream, the candidates with the smallest ratios of p-value and weight are collected,
    too. Of equal scores or ratios, the first is kept.

    A copy of a string in memory is merged with it only if the copy exceeds a limit below
    (`least_z`, `largest_ratio`). Case: the string is the last that is kept for its score, or it is
    kept for its ratio and its copy has a larger ratio. Such a copy counts as another candidate that
    is not kept. The error control then has one test more than necessary, and its error rate holds.

    Attributes
    ----------
    least_z : z score that a candidate must exceed to be kept for its score. It grows from minus
        infinity while candidates are offered.
    largest_ratio : ratio below which a candidate must be to be kept for its ratio. It falls from
        infinity.
    dropped_ratios : (b,) int64. Histogram of the ratios of all candidates that are not kept
        (`count_ratios`). A string that was merged with its copies counts once, by its first copy.
    """

    def __init__(self, most: int, *, is_ranked: bool = False) -> None:
        """Start without candidates.

        Parameters
        ----------
        most : number of candidates that are kept for their scores, and number of candidates of a
            ranked stream that are kept for their ratios.
        is_ranked : True if the candidates have ratios.
        """
        self._most = most
        # A ranked stream keeps up to `most` candidates by score and as many by ratio.
        self._most_in_memory = _MEMORY_FACTOR * most * (1 + is_ranked)
        self._rows = CandidateRows.empty()
        self.least_z = -np.inf
        self.largest_ratio = np.inf
        self.dropped_ratios = count_ratios(np.array([]))

    def offer(
        self, start: int, texts: Texts, words: NDArray[np.uint32], z: Floats, ratio: Floats
    ) -> None:
        """Add the candidates of a block.

        Parameters
        ----------
        start : position of the first string in the stream.
        texts, words, z, ratio : columns of `CandidateRows` for all strings of the block.
        """
        is_good = (z > self.least_z) | (ratio < self.largest_ratio)
        self.dropped_ratios += count_ratios(ratio[~is_good])
        good = np.flatnonzero(is_good)
        if len(good):
            block = CandidateRows.of(
                start + good, texts.select(good), words[good], z[good], ratio[good]
            )
            self._rows = self._rows.append(block)
        # Sort only when enough candidates have accumulated: sorting after every block would take
        # most of the time.
        if len(self._rows) > self._most_in_memory:
            self._drop()

    def close(self) -> CandidateRows:
        """Return the best candidates."""
        self._drop()
        return self._rows

    def _drop(self) -> None:
        """Merge equal strings, then remove the candidates that are not among the best."""
        distinct = self._rows.merge_duplicates()
        best = np.argsort(-distinct.z, kind="stable")[: self._most]
        if len(best) == self._most:
            self.least_z = float(distinct.z[best[-1]])
        by_ratio = np.argsort(distinct.ratio, kind="stable")[: self._most]
        # An infinite ratio belongs to an unranked stream, or to a p-value above the error rate,
        # which no weight can detect.
        by_ratio = by_ratio[np.isfinite(distinct.ratio[by_ratio])]
        if len(by_ratio) == self._most:
            self.largest_ratio = float(distinct.ratio[by_ratio[-1]])
        is_kept = np.zeros(len(distinct), dtype=bool)
        is_kept[best] = is_kept[by_ratio] = True
        self.dropped_ratios += count_ratios(distinct.ratio[~is_kept])
        self._rows = distinct.take(np.flatnonzero(is_kept))
