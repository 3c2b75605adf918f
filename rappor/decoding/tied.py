"""Candidates that cannot be told apart: the same bits in every cohort that has reports."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rappor.candidates import Candidates
from rappor.compiled import compiled
from rappor.decoding.design import Design


def find_ties(design: Design, live: NDArray[np.bool_]) -> list[list[int]]:
    """Return the groups of two or more candidates that set the same live rows.

    Parameters
    ----------
    live : (n,) bool. Rows of cohorts that have reports.

    Returns
    -------
    Groups in order of their first members, each increasing.
    """
    hashes = np.empty(design.n_candidates, dtype=np.uint64)
    for start, cells in design.blocks():
        _hash_rows(cells, live, hashes[start : start + len(cells)])
    order = np.argsort(hashes, kind="stable")
    breaks = np.flatnonzero(np.diff(hashes[order])) + 1
    groups = [group for group in np.split(order, breaks) if len(group) > 1]
    return sorted(sorted(map(int, group)) for group in groups)


def drop_ties(candidates: Candidates, ties: list[list[int]]) -> Candidates:
    """Keep the first member of each group."""
    later = {member for group in ties for member in group[1:]}
    return candidates.subset([i for i in range(len(candidates)) if i not in later])


def spread_ties(n_candidates: int, ties: list[list[int]]) -> NDArray[np.int64]:
    """Return for every candidate its place among those that `drop_ties` kept, (c,) int64."""
    kept = np.ones(n_candidates, dtype=bool)
    for group in ties:
        kept[group[1:]] = False
    place = np.cumsum(kept) - 1
    for group in ties:
        place[group] = place[group[0]]
    return place


@compiled
def _hash_rows(
    cells: NDArray[np.int32], live: NDArray[np.bool_], hashes: NDArray[np.uint64]
) -> None:
    """Condense the set of live rows of each candidate into 64 bits, whatever their order."""
    for s in range(cells.shape[0]):
        total = np.uint64(0)
        for t in range(cells.shape[1]):
            row = cells[s, t]
            if row >= 0 and live[row]:
                x = (np.uint64(row) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
                x ^= x >> np.uint64(32)
                x *= np.uint64(0xD6E8FEB86659FD93)
                x ^= x >> np.uint64(32)
                total += x
        hashes[s] = total
