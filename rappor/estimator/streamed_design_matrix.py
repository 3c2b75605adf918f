"""The design matrix of a stream of candidates, for lists that do not fit into memory.

The decoder estimates the shares of strings by a regression. Its design matrix has a row for each
bit of each cohort, and a column for each candidate: 1 where the candidate sets the bit. The matrix
of a hundred million candidates does not fit into memory.

The idea
--------
The regression needs the columns of a few strings only: of the strings that devices have. To find
them, the decoder needs one number of every candidate, its score, and then forgets the candidate. So
`StreamedDesign` keeps the columns of the best candidates in memory, and reads all candidates again
whenever new scores are needed. Reading all candidates once is a *pass*. The list is called a
*stream*, because it is read from its start to its end in blocks of strings.

*Example.* A stream has 20,000,000 candidates, and 26,000 of them are kept. The first pass scores
all candidates against a fit without candidates. The selection adds 40 strings to the fit. The
second pass scores all candidates against the new fit, and keeps the best 26,000. The 40 strings of
the fit stay in memory in any case. The other 19,974,000 candidates leave their p-values in a
histogram.

`select_candidates` (`rappor.estimator.selection`) chooses the strings of the fit. Its argument is a
`CandidatePool` (`rappor.estimator.screening`), which is either a `Design` (a list in memory) or a
`StreamedDesign`. It calls `screen` for each pass over the candidates, and `columns` for the columns
of candidates in memory.

A pass
------
`screen` takes these steps:

1. For each block of strings: compute the digest and the z score of each string. From the second
   pass on, compute the p-value, too, and count it in the histogram.
2. Keep the strings with the largest z scores (`BestCandidates`).
3. After the last block, add two kinds of strings to them: the strings of the fit, because the next
   fit needs their columns, and the values that the metric's entry lists, because the result has a
   row for each of them.
4. Merge equal strings. A stream may contain a string several times, and the histogram has counted
   it each time. So the merged string has the number of its copies.
5. Subtract the p-values of the strings in memory from the histogram, each once for every merged
   copy. The histogram then contains all other strings. The error control needs their p-values,
   because each of them is a test as well.

Copies of a string that is not in memory are not recognised, and neither are some copies of the last
strings that are kept (`BestCandidates`). Each such copy counts as a test of its own.

The first pass computes no p-values, because its fit contains no candidate. The frequent strings are
still in the residuals, so a p-value would compare a string with the wrong noise.

Theory of operation
-------------------
*Digest.* The bits of a string in all cohorts are computed from its digest: 16 bytes of its SHA-256,
as four integers of 32 bits (`hash_texts` of `rappor.candidates.uncompiled_hashing`). The code calls
these four integers `words`. Hashing 10,000,000 strings takes four seconds. So the first pass stores
the digests of so many strings, and later passes read them. Candidates that are in memory as a list
bring their own digests, and none is stored.

*Position and rank.* The position of a candidate is its number in the stream, from 0. Its rank is
its position plus 1.

*Score.* A pass computes, for every string, the estimate and the standard error that it would have
as the next string in the fit (its one-step estimate). Only two sums over the rows of the string are
necessary: of the weighted residuals of the present fit, and of the weights. So no further fit is
computed. The z score is the estimate divided by its standard error. A string that the fit already
contains has a z score near 0, because the fit has explained its rows. `ScreeningTask` rounds the
values of the rows so that their sums have no rounding errors, whatever their order is. So a string
has exactly the same score as in a list in memory.

*Ranked streams.* An analyst may declare that the most likely candidates come first. The test of a
string then has a weight w that falls with its rank, and the error control compares the ratio p / w
with a threshold, in place of the p-value p. So a string with a small z score may be detected if its
rank is small. `BestCandidates` keeps the strings with the smallest ratios as well, and counts the
ratios of the others. In an unranked stream, and in the first pass, which has no p-values, all
ratios are infinite, and no string is kept for its ratio.
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
from rappor.estimator.p_values import EDGES, compute_least_p_value, count_p_values
from rappor.estimator.rank_weights import (
    RatioCounts,
    compute_ratios,
    compute_weight_scale,
    count_ratios,
    invert_ranks,
)
from rappor.estimator.screening import Screening, ScreeningTask, Tail
from rappor.protocol.encodings.bloom import DEFAULT_LAYOUT

_MAX_CANDIDATES_PER_PATTERN: Final = 1e-3
"""Limit on the number of candidates, as a multiple of the number of patterns of bits that a string
can have in all cohorts. A longer stream is refused: candidates with equal patterns form
identifiability groups, and all members of a group must be in memory. With a larger limit the groups
would outgrow the memory."""

_MAX_STORED_DIGESTS: Final = 10_000_000
"""Number of digests that are stored between passes. When the blocks so far have this number, no
further block is stored. The digests take 160 MB and save four seconds a pass (measured). A larger
number takes more memory, and saves the time of more digests."""


def can_stream(target: Target, n_candidates: int) -> bool:
    """Return whether the best of these candidates can represent all of them.

    They can if all bits follow from one digest, and if few candidates share a pattern of bits.
    """
    is_supported = all(counts.params.layout == DEFAULT_LAYOUT for counts in target.counts)
    return is_supported and n_candidates <= _MAX_CANDIDATES_PER_PATTERN * _count_patterns(target)


def _count_patterns(target: Target) -> float:
    """Compute the number of patterns of bits that a string can have in cohorts with reports.

    A random string has a certain pattern with probability 1 / (number of patterns). This
    probability is also the smallest p-value that the counts can support: an absent string may have
    the pattern of a frequent string by chance. With many cohorts the probability is 0 in float64.
    """
    return 1 / max(compute_least_p_value(target), np.finfo(float).tiny)


class StreamedDesign:
    """The (n, c) matrix of zeros and ones of a stream.

    Only the columns of the best candidates are in memory. c is their number, and n the number of
    rows: one for each bit of each cohort.

    Attributes
    ----------
    n_terms : largest number of rows that a candidate sets, m h for each parameter set. A score is a
        sum over at most so many rows. `ScreeningTask` rounds the values of the rows so that a sum
        of `n_terms` values has no rounding error.
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
            small their estimates are. The decoder puts the listed values of the metric there, so
            that the result has a row for each of them.
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
        # The stored digests, by block.
        self._words: list[NDArray[np.uint32]] = []
        # Positions of the listed values, which stay in memory after every pass.
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
        # The fit before the first pass contains no candidate, so `always` is empty. The frequent
        # strings are still in the residuals of this fit. The tests would take them for noise, so no
        # p-values are computed.
        tail = task.build_tail() if len(always) else None
        is_ranked = self._ranked_level is not None
        best = BestCandidates(self._keep, is_ranked=is_ranked)
        counts = np.zeros(len(EDGES) - 1, dtype=np.int64)
        n_read = 0
        for texts, words in self._read_digests():
            estimate, std_error = self._estimate(words, values, task)
            ratio = np.full(len(texts), np.inf)
            if tail is not None:
                p_values = _compute_p_values(tail, estimate, std_error)
                counts += count_p_values(p_values)
                ratio = self._compute_ratios(p_values, np.arange(n_read, n_read + len(texts)))
            best.offer(n_read, texts, words, estimate / std_error, ratio)
            n_read += len(texts)
            progress("screening candidates", n_read, self.n_streamed or None)
        self._check_length(n_read)
        best_rows = best.close()
        required = np.union1d(always, self._first)
        # `always` are strings of the fit. The next fit needs their columns, although their one-step
        # score is near 0. They were in memory before this pass, so their rows are taken from there,
        # with the copies that were counted before.
        required_rows = self._rows.take(np.flatnonzero(np.isin(self._rows.index, required)))
        missing = required_rows.take(np.flatnonzero(~np.isin(required_rows.index, best_rows.index)))
        self._store(best_rows.append(missing).merge_duplicates(), always)
        # Strings that are not in memory, and distinct candidates in memory. A string in memory
        # stands for all its merged copies. A group of equal columns is one candidate.
        n_others = n_read - int(self._rows.copies.sum())
        self.n_candidates = n_others + self.strings.design.n_candidates
        estimate, std_error = self._estimate(self._rows.words, values, task)
        other_ratios = None
        # The histogram counted every string of the stream. Subtract the strings in memory, once for
        # each merged copy. Their scores are computed again, from their digests in memory.
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
        # In the first pass there is no histogram, and 0 is a lower bound on any p-value.
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
        """Sum of the unscaled weights of repeated strings in memory, without their first copies.

        The unscaled weight of a rank is `invert_ranks`. Repeated strings are not tested, so the
        error control subtracts their weights from the total.
        """
        return self._rows.repeated_weight

    def _compute_ratios(self, p_values: Floats, positions: Integers) -> Floats:
        """Compute p / w of candidates: p-value divided by the weight of the rank.

        It is infinite for an unranked stream.
        """
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
            best, because the fit needs them or they are listed values of the metric (`n_first`).
            `best` has counted them among the dropped candidates, so they are subtracted.
        """
        # `best` keeps the candidates with the smallest ratios. So no other candidate has a ratio
        # below the largest ratio that was kept for its size.
        return RatioCounts(
            counts=best.dropped_ratios - count_ratios(missing_ratio), least=best.largest_ratio
        )

    def _read_first(self, n: int) -> CandidateRows:
        """Read the first n candidates of the stream."""
        rows, n_read = CandidateRows.empty(), 0
        if n == 0:
            return rows
        for texts, words in self._read_digests():
            positions = np.arange(n_read, n_read + len(texts))
            no_ratio = np.full(len(texts), np.inf)
            block = CandidateRows.of(positions, texts, words, np.zeros(len(texts)), no_ratio)
            rows = rows.append(block.take(np.arange(min(len(texts), n - n_read))))
            n_read += len(texts)
            if n_read >= n:
                break
        return rows

    def columns(self, chosen: Integers) -> sparse.csc_array:
        """Return the columns of candidates in memory. `chosen` contains positions in the stream."""
        return self.strings.design.columns(
            np.searchsorted(self._rows.index[self.strings.first], chosen)
        )

    def _read_digests(self) -> Iterator[tuple[Texts, NDArray[np.uint32]]]:
        """Read all candidates with their digests, block by block.

        There are three cases. Candidates in memory bring their digests (`words`). Digests of a
        streamed block are stored by the first pass, and read by later passes. Digests of all
        further blocks are computed in every pass.
        """
        for block_number, (texts, words) in enumerate(self._candidates.read_blocks_with_hashes()):
            if words is None and block_number < len(self._words):
                words = self._words[block_number]  # noqa: PLW2901
            # A block of another length than in the first pass: the source of the stream has
            # changed. `_check_length` raises after the pass if the total has changed as well.
            if words is None or len(words) != len(texts):
                words = hash_texts(texts)  # noqa: PLW2901
                n_stored = sum(map(len, self._words))
                if block_number == len(self._words) and n_stored < _MAX_STORED_DIGESTS:
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

        The member of an identifiability group that is in `always` represents the group. The fit
        refers to this member by its position in the stream, so another representative would change
        a column of the fit.
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
            # A candidate that is not in `always` represents its group only if no member is.
            is_last_choice=lambda position: rows.index[position] not in always,
        )

    def _check_length(self, n_read: int) -> None:
        """Raise DecodeError if the stream changed or has too many strings to distinguish."""
        # A file that changes between passes would mix up candidates and estimates, which are
        # matched by position.
        if self.n_streamed not in (0, n_read):
            raise DecodeError(
                f"candidates must be the same in every pass, got {self.n_streamed:,} and then "
                f"{n_read:,} from {self._candidates.name}"
            )
        self.n_streamed = n_read
        if not can_stream(self._target, n_read):
            n_patterns = f"{_count_patterns(self._target):,.0f}"
            raise DecodeError(
                f"{n_read:,} candidates share {n_patterns} patterns of bits in these cohorts, so "
                "many candidates cannot be distinguished: use fewer "
                "candidates, or collect with more cohorts"
            )


def _compute_p_values(tail: Tail, estimate: Floats, std_error: Floats) -> Floats:
    """Compute p-values, (b,). A candidate with an infinite standard error gets the p-value 1."""
    return np.where(np.isfinite(std_error), tail(estimate / std_error), 1.0)
