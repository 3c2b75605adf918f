"""Ties: candidates with the same bits in every cohort that has reports are indistinguishable."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rappor.candidates.candidates import Candidates
from rappor.decoding.design import Design, sum_rows
from rappor.ground.progress import Progress


def find_ties(design: Design, live: NDArray[np.bool_], progress: Progress) -> list[list[int]]:
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


def drop_ties(candidates: Candidates, ties: list[list[int]]) -> Candidates:
    """Keep the first member of each group."""
    later = {member for group in ties for member in group[1:]}
    return candidates.subset([i for i in range(len(candidates)) if i not in later])


def spread_ties(
    n_candidates: int, ties: Sequence[Sequence[int]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for every candidate its place among those that `drop_ties` kept, (c,) int64.

    And the number of its group, from 1 on; 0 for those that are in none.
    """
    groups = np.zeros(n_candidates, dtype=np.int64)
    kept = np.ones(n_candidates, dtype=bool)
    for number, group in enumerate(ties, start=1):
        groups[list(group)] = number
        kept[list(group[1:])] = False
    place = np.cumsum(kept) - 1
    for group in ties:
        place[list(group)] = place[group[0]]
    return place, groups
