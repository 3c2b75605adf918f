"""Identifiability groups: candidates with the same bits in every cohort that has reports.

Counts cannot distinguish the members of a group. Two equal columns would make the regression
singular, so the design matrix has one column for each *entry*: for each group, and for each
candidate that is in no group. Every member of a group shows the estimate of the whole group. Groups
are common with few cohorts: with k = 16 bits, h = 1 and one cohort there are only 16 different
columns, so a list of 17 candidates has at least one group.

*Example.* Of the candidates a, b, c and d, only b and d have the same bits. The group is [1, 3],
and there are three entries:

| attribute of `DistinctCandidates` | value |
|---|---|
| `entry` | 0, 1, 2, 1: d has the entry of b |
| `group` | 0, 1, 0, 1: group 1 contains b and d |
| `first` | 0, 1, 2: b represents the second entry |
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rappor.base.progress import Progress, no_progress
from rappor.candidates.candidates import Candidates
from rappor.counts.arrays import Booleans
from rappor.estimator.debias import Target
from rappor.estimator.design_matrix import Design, sum_rows


class DistinctCandidates:
    """c candidates and their e entries: candidates, or groups of candidates with the same bits.

    Attributes
    ----------
    candidates : the c candidates.
    groups : groups of two or more candidates that set the same rows, as lists of indices. The first
        candidate of each group represents the group.
    design : the design matrix. It has e columns, one for each entry.
    entry : (c,) int64. Entry, and therefore column, of each candidate.
    group : (c,) int64. Number of the candidate's group, starting at 1. It is 0 outside any group.
    first : (e,) int64. Index of the candidate that represents each entry.
    """

    def __init__(
        self,
        candidates: Candidates,
        target: Target,
        progress: Progress = no_progress,
        *,
        is_last_choice: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Find the identifiability groups.

        Parameters
        ----------
        candidates : c candidates.
        target : the de-biased counts. It states the parameters of the candidates' bits and the
            number of reports of each cohort. A cohort without reports distinguishes no candidates.
        progress : function that reports the progress.
        is_last_choice : function from the index of a candidate to a bool. A candidate for which it
            is True represents its group only if it is True for all members of the group. A stream
            passes it so that a candidate that must stay in memory represents its group.
        """
        self.candidates = candidates
        params = [counts.params for counts in target.counts]
        self.design = Design(candidates, params)
        groups = find_identifiability_groups(self.design, target.reports > 0, progress)
        # False sorts before True. The sort is stable, so the first candidate of the list comes
        # first among equals.
        self.groups = [sorted(group, key=is_last_choice) for group in groups]
        self.group = np.zeros(len(candidates), dtype=np.int64)
        is_representative = np.ones(len(candidates), dtype=bool)
        for number, group in enumerate(self.groups, start=1):
            self.group[group] = number
            is_representative[group[1:]] = False
        self.first = np.flatnonzero(is_representative)
        self.entry = np.cumsum(is_representative) - 1
        # The other members have the entry of their representative.
        for group in self.groups:
            self.entry[group] = self.entry[group[0]]
        if self.groups:
            self.design = Design(candidates.select(self.first.tolist()), params)


def find_identifiability_groups(
    design: Design, has_reports: Booleans, progress: Progress
) -> list[list[int]]:
    """Find the groups of two or more candidates that set the same rows in cohorts with reports.

    Every row gets a random 64-bit number, and candidates with equal sums over their rows count as
    equal. A million candidates form 5e11 pairs, and two candidates with different rows share a sum
    with probability 2^-64. So two different candidates are confused with probability 3e-8.

    Parameters
    ----------
    design : the design matrix of all candidates.
    has_reports : (n,) bool. True for rows of cohorts that have reports.
    progress : function that reports the progress.

    Returns
    -------
    Groups in the order of their first members. The indices of each group increase.
    """
    # Rows of empty cohorts get the number 0, so that they distinguish no candidates.
    row_numbers = np.arange(1, len(has_reports) + 1, dtype=np.uint64)
    row_hashes = np.where(has_reports, _mix_bits(row_numbers), np.uint64(0))
    hashes = np.empty(design.n_candidates, dtype=np.uint64)
    # A cell is the number of a row that a candidate sets. Blocks of candidates bound the memory.
    for start, cells in design.blocks():
        hashes[start : start + len(cells)] = sum_rows(cells, row_hashes)
        progress("comparing candidates", start + len(cells), design.n_candidates)
    # Equal hashes are neighbours after sorting. A stable order keeps the first candidate in front.
    order = np.argsort(hashes, kind="stable")
    breaks = np.flatnonzero(np.diff(hashes[order])) + 1
    starts = np.concatenate([[0], breaks])
    sizes = np.diff(starts, append=len(order))
    groups = [
        order[start : start + size].tolist()
        for start, size in zip(starts[sizes > 1], sizes[sizes > 1], strict=True)
    ]
    return sorted(groups)


def _mix_bits(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread numbers over 64 bits by multiplying and shifting, like a hash function."""
    x = x * np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio
    x ^= x >> np.uint64(32)
    x *= np.uint64(0xD6E8FEB86659FD93)  # an odd number whose ones are spread over all bits
    x ^= x >> np.uint64(32)
    return x
