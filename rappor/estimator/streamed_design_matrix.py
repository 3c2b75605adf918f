"""The design matrix of a stream of candidates, for lists that do not fit into memory.

`StreamedDesign` is the `CandidatePool` of a stream, as `Design` is the `CandidatePool` of a list.
`select_candidates` calls `screen` for each pass over the candidates, and `columns` for the columns
of candidates in memory. Every pass reads all candidates, scores each of them, keeps the best
candidates in memory and counts the p-values of all others in a histogram. A string has the same
score as in a list, to the last bit.

The *digest* of a string is 16 bytes (four mixed words) of its SHA-256, from which the bits of all
cohorts are computed. The *position* of a candidate is its number in the stream, from 0.

*Example.* A stream has 20,000,000 candidates, and 26,000 are kept. The first pass scores all of
them on a fit without candidates. The selection adds 40 strings to the fit. The second pass scores
all candidates on the new fit and keeps the best 26,000. The 40 selected strings stay in memory in
any case. The histogram contains 19,974,000 p-values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from rappor.base.errors import DecodeError
from rappor.base.progress import Progress
from rappor.candidates.candidates import Candidates
from rappor.candidates.compiled_hashing import add_row_values
from rappor.candidates.texts import Texts
from rappor.candidates.uncompiled_hashing import hash_texts
from rappor.counts.arrays import Floats, Integers
from rappor.estimator.best_candidates import BestCandidates, CandidateRows
from rappor.estimator.debias import Target
from rappor.estimator.identifiability_groups import DistinctCandidates
from rappor.estimator.p_values import EDGES, count_p_values, least_p_value
from rappor.estimator.rank_weights import (
    RatioCounts,
    compute_ratios,
    compute_weight_scale,
    count_ratios,
    invert_ranks,
)
from rappor.estimator.screening import Screening, ScreeningTask, Tail
from rappor.protocol.encodings.bloom import DEFAULT_LAYOUT

_FEW_PATTERNS: Final = 1e-3
"""Largest number of candidates for each pattern of bits that a string can have. A longer stream is
refused: identifiability groups would become large, and all members of a group must be in memory."""

_MAX_STORED_DIGESTS: Final = 10_000_000
"""Largest number of digests that are stored between passes. They take 160 MB and save four seconds
a pass (measured)."""


def can_stream(target: Target, n_candidates: int) -> bool:
    """Return whether the best of these candidates can represent all of them."""
    is_supported = all(counts.params.layout == DEFAULT_LAYOUT for counts in target.counts)
    return is_supported and n_candidates <= _FEW_PATTERNS * _count_patterns(target)


def _count_patterns(target: Target) -> float:
    """Compute the number of patterns of bits that a string can have."""
    return 1 / max(least_p_value(target), np.finfo(float).tiny)


class StreamedDesign:
    """The (n, c) matrix of zeros and ones of a stream.

    Only the columns of the best candidates are in memory.

    Attributes
    ----------
    strings : the candidates in memory after the last pass, in the order of the stream.
    n_streamed : number of strings that a pass reads.
    n_candidates : number of distinct candidates. Duplicates in memory, and all but one member of
        each identifiability group, are not counted.
    """

    def __init__(
        self,
        candidates: Candidates,
        target: Target,
        keep: int,
        *,
        n_first: int = 0,
        ranked_level: float | None = None,
    ) -> None:
        """Store the candidates.

        Parameters
        ----------
        candidates : the stream. Every pass must yield the same strings.
        target : the rows of the regression.
        keep : number of candidates in memory.
        n_first : number of candidates at the start of the stream that are always in memory, however
            small their estimates are.
        ranked_level : error rate of the detections of a ranked stream, in which the position of a
            candidate determines its weight. None for an unranked stream.

        Raises
        ------
        DecodeError
            The hash layout of a parameter set is not supported.
        """
        self._candidates = candidates
        self._target = target
        self._keep = keep
        self._ranked_level = ranked_level
        self._params = [counts.params for counts in target.counts]
        # Only this layout computes the bits of all parameter sets from one digest.
        if any(params.layout != DEFAULT_LAYOUT for params in self._params):
            raise DecodeError(
                f"a stream of candidates must use the hash layout {DEFAULT_LAYOUT}: pass a list "
                "instead"
            )
        self.n_terms = sum(params.m * params.h for params in self._params)
        self.n_streamed = self.n_candidates = 0
        self._words: list[NDArray[np.uint32]] = []
        self._first = np.arange(n_first)
        self._store(self._read_first(n_first), np.array([], dtype=np.int64))

    def screen(self, task: ScreeningTask, always: Integers, progress: Progress) -> Screening:
        """Estimate every candidate, and keep the best and the required candidates.

        Parameters
        ----------
        task : the computation for each candidate.
        always : (a,) int64. Candidates in memory that must stay in memory.
        progress : function that reports the progress.
        """
        values = np.column_stack([task.scores, task.weights])
        # The fit before the first pass contains no candidate, so p-values under it would be
        # useless. Later fits give the p-values of the candidates that are not kept.
        tail = task.tail() if len(always) else None
        is_ranked = self._ranked_level is not None
        best = BestCandidates(self._keep, is_ranked=is_ranked)
        counts = np.zeros(len(EDGES) - 1, dtype=np.int64)
        number = 0
        for texts, words in self._read_digests():
            estimate, std_error = self._estimate(words, values, task)
            ratio = np.full(len(texts), np.inf)
            if tail is not None:
                p_values = _compute_p_values(tail, estimate, std_error)
                counts += count_p_values(p_values)
                ratio = self._compute_ratios(p_values, np.arange(number, number + len(texts)))
            best.offer(number, texts, words, estimate / std_error, ratio)
            number += len(texts)
            progress("screening candidates", number, self.n_streamed or None)
        self._check_length(number)
        best_rows = best.close()
        required = np.union1d(always, self._first)
        # The next fit needs the columns of `always`, also if their one-step score is small.
        required_rows = self._rows.take(np.flatnonzero(np.isin(self._rows.index, required)))
        missing = required_rows.take(np.flatnonzero(~np.isin(required_rows.index, best_rows.index)))
        self._store(best_rows.append(missing).merge_duplicates(), always)
        self.n_candidates = number - int(self._rows.copies.sum()) + self.strings.design.n_candidates
        estimate, std_error = self._estimate(self._rows.words, values, task)
        other_ratios = None
        # The histogram counted every string of the stream. Subtract the strings in memory, as often
        # as they were read.
        if tail is not None:
            p_values = _compute_p_values(tail, estimate, std_error)
            bins = np.searchsorted(EDGES[1:-1], p_values)
            np.subtract.at(counts, bins, self._rows.copies)
            if is_ranked:
                is_missing = np.isin(self._rows.index, missing.index)
                ratio = self._compute_ratios(p_values[is_missing], self._rows.index[is_missing])
                other_ratios = self._count_other_ratios(best, ratio)
        # One candidate of each identifiability group.
        rows = self.strings.first
        return Screening(
            index=self._rows.index[rows],
            estimate=estimate[rows],
            std_error=std_error[rows],
            other_counts=None if tail is None else counts,
            least_other=0.0 if tail is None else float(tail(np.array([best.least_z]))[0]),
            other_ratios=other_ratios,
        )

    @property
    def ranks(self) -> Integers:
        """(c,) int64. Rank of each candidate in memory: its position in the stream, from 1."""
        return self._rows.index + 1

    @property
    def repeated_weight(self) -> float:
        """Sum of the weights before scaling of the repetitions of candidates in memory."""
        return self._rows.repeated_weight

    def _compute_ratios(self, p_values: Floats, positions: Integers) -> Floats:
        """Compute p / w of candidates at some positions. Infinite for an unranked stream."""
        if self._ranked_level is None:
            return np.full(len(p_values), np.inf)
        weights = compute_weight_scale(self.n_streamed) * invert_ranks(positions + 1)
        return compute_ratios(p_values, weights, self._ranked_level)

    def _count_other_ratios(self, best: BestCandidates, missing_ratio: Floats) -> RatioCounts:
        """Count the ratios of the candidates that are not in memory.

        Parameters
        ----------
        best : the candidates of the pass, after the last block.
        missing_ratio : ratios of the candidates that are in memory although they are not among the
            best, because the fit or the metric's list needs them. `best` has counted them.
        """
        return RatioCounts(
            counts=best.dropped_ratios - count_ratios(missing_ratio), least=best.largest_ratio
        )

    def _read_first(self, n: int) -> CandidateRows:
        """Read the first n candidates of the stream."""
        rows, number = CandidateRows.empty(), 0
        if n == 0:
            return rows
        for texts, words in self._read_digests():
            positions = np.arange(number, number + len(texts))
            no_ratio = np.full(len(texts), np.inf)
            block = CandidateRows.of(positions, texts, words, np.zeros(len(texts)), no_ratio)
            rows = rows.append(block.take(np.arange(min(len(texts), n - number))))
            number += len(texts)
            if number >= n:
                break
        return rows

    def columns(self, chosen: Integers) -> sparse.csc_array:
        """Return the columns of candidates in memory. `chosen` contains positions in the stream."""
        return self.strings.design.columns(
            np.searchsorted(self._rows.index[self.strings.first], chosen)
        )

    def _read_digests(self) -> Iterator[tuple[Texts, NDArray[np.uint32]]]:
        """Read all candidates with their digests.

        The digests of the first candidates are stored for later passes.
        """
        for number, (texts, words) in enumerate(self._candidates.read_blocks_with_hashes()):
            if words is None and number < len(self._words):
                words = self._words[number]  # noqa: PLW2901
            if words is None or len(words) != len(texts):
                words = hash_texts(texts)  # noqa: PLW2901
                if number == len(self._words) and sum(map(len, self._words)) < _MAX_STORED_DIGESTS:
                    self._words.append(words)
            yield texts, words

    def _estimate(
        self, words: NDArray[np.uint32], values: Floats, task: ScreeningTask
    ) -> tuple[Floats, Floats]:
        """Compute one-step estimates and standard errors of b strings.

        Parameters
        ----------
        words : (b, 4) uint32. Digests of the strings.
        values : (n, 2) float64. Scores and weights of the rows, as in `ScreeningTask`.
        task : the computation for each candidate.
        """
        sums = np.zeros((len(words), 2))
        start = 0
        for params in self._params:
            stop = start + params.m * params.k
            add_row_values(words, params, values[start:stop], sums)
            start = stop
        return task.estimate_candidates(sums[:, 0], sums[:, 1])

    def _store(self, rows: CandidateRows, always: Integers) -> None:
        """Keep these candidates in memory.

        A member of `always` represents its identifiability group.
        """
        self._rows = rows
        candidates = Candidates(
            Texts.from_bytes(rows.strings.tolist()),
            normalize=self._candidates.normalize,
            field_names=self._candidates.field_names,
            hash_words=rows.words,
        )
        self.strings = DistinctCandidates(
            candidates,
            self._target,
            is_last_choice=lambda position: rows.index[position] not in always,
        )

    def _check_length(self, number: int) -> None:
        """Raise DecodeError if the stream changed or has too many strings to distinguish."""
        # A file that changes between passes would mix up candidates and estimates, which are
        # matched by position.
        if self.n_streamed not in (0, number):
            raise DecodeError(
                f"candidates must be the same in every pass, got {self.n_streamed:,} and then "
                f"{number:,} from {self._candidates.name}"
            )
        self.n_streamed = number
        if not can_stream(self._target, number):
            n_patterns = f"{_count_patterns(self._target):,.0f}"
            raise DecodeError(
                f"{number:,} candidates share {n_patterns} patterns of bits in these cohorts, so "
                "many candidates cannot be distinguished: use fewer "
                "candidates, or collect with more cohorts"
            )


def _compute_p_values(tail: Tail, estimate: Floats, std_error: Floats) -> Floats:
    """Compute p-values, (b,). A candidate with an infinite standard error gets the p-value 1."""
    return np.where(np.isfinite(std_error), tail(estimate / std_error), 1.0)
