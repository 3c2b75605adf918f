"""Ties: candidates with the same bits in every cohort that has reports are indistinguishable."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rappor.base.progress import Progress, no_progress
from rappor.candidates.candidates import Candidates
from rappor.counts.arrays import Booleans
from rappor.estimator.debias import Target
from rappor.estimator.design_matrix import Design, sum_rows


class Strings:
    """Candidates, of which indistinguishable ones are one entry of the design.

    Attributes
    ----------
    ties : groups of two or more that set the same rows; the first of each stands for all.
    design : of the e entries: the candidates without the later ones of each group.
    entry : (c,) int64. The entry of each candidate.
    group : (c,) int64. The number of its group, from 1 on; 0 for those that are in none.
    first : (e,) int64. The candidate that each entry is.
    """

    def __init__(
        self,
        candidates: Candidates,
        target: Target,
        progress: Progress = no_progress,
        *,
        stands_back: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Compare candidates; of a group one that does not stand back stands for it."""
        self.candidates = candidates
        params = [counts.params for counts in target.counts]
        self.design = Design(candidates, params)
        found = find_ties(self.design, target.reports > 0, progress)
        self.ties = [sorted(group, key=stands_back) for group in found]
        self.group = np.zeros(len(candidates), dtype=np.int64)
        kept = np.ones(len(candidates), dtype=bool)
        for number, group in enumerate(self.ties, start=1):
            self.group[group] = number
            kept[group[1:]] = False
        self.first, self.entry = np.flatnonzero(kept), np.cumsum(kept) - 1
        for group in self.ties:
            self.entry[group] = self.entry[group[0]]
        if self.ties:
            self.design = Design(candidates.subset(self.first.tolist()), params)


def find_ties(design: Design, live: Booleans, progress: Progress) -> list[list[int]]:
    """Return the groups of two or more candidates that set the same live rows.

    Every row gets a random 64-bit number, and candidates with equal sums are taken for equal:
    among a million candidates two others share a sum with probability 3e-8.

    Parameters
    ----------
    live : (n,) bool. Rows of cohorts that have reports.

    Returns
    -------
    Groups in order of their first members, each increasing.
    """
    mixed = np.where(live, _mix(np.arange(1, len(live) + 1, dtype=np.uint64)), np.uint64(0))
    hashes = np.empty(design.n_candidates, dtype=np.uint64)
    for start, cells in design.blocks():
        hashes[start : start + len(cells)] = sum_rows(cells, mixed)
        progress("comparing candidates", start + len(cells), design.n_candidates)
    order = np.argsort(hashes, kind="stable")
    breaks = np.flatnonzero(np.diff(hashes[order])) + 1
    starts = np.concatenate([[0], breaks])
    sizes = np.diff(starts, append=len(order))
    groups = [
        order[start : start + size].tolist()
        for start, size in zip(starts[sizes > 1], sizes[sizes > 1], strict=True)
    ]
    return sorted(groups)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread numbers over 64 bits by multiplying and shifting, as the ends of hashes do."""
    x = x * np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio
    x ^= x >> np.uint64(32)
    x *= np.uint64(0xD6E8FEB86659FD93)  # an odd number with bits all over
    x ^= x >> np.uint64(32)
    return x
