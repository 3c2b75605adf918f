"""The design matrix, never held whole: which rows each candidate sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from rappor.candidates import Candidates
from rappor.compiled import compiled
from rappor.params import Params

BLOCK = 1 << 15
"""Candidates hashed at a time: 16 MB of cells at 128 hashes each."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much is done and how much there is."""


class Design:
    """The (n, c) matrix of zeros and ones over c candidates, read in blocks of columns."""

    def __init__(self, candidates: Candidates, collections: Sequence[Params]) -> None:
        """Remember the candidates and the parameters of each stacked collection."""
        self._candidates = candidates
        self._params = tuple(collections)
        sizes = [params.m * params.k for params in self._params]
        self._starts = np.concatenate([[0], np.cumsum(sizes)])
        self.n_rows = int(self._starts[-1])
        self.n_candidates = len(candidates)

    def cells(self, start: int, stop: int) -> NDArray[np.int32]:
        """Return the rows that candidates start..stop set, (b, sum of m h) int32, -1 for none."""
        parts = []
        for params, first in zip(self._params, self._starts, strict=False):
            cells = self._candidates.cells(params, start, stop)
            parts.append(cells if first == 0 else np.where(cells < 0, cells, cells + first))
        return parts[0] if len(parts) == 1 else np.hstack(parts).astype(np.int32)

    def blocks(self) -> Iterator[tuple[int, NDArray[np.int32]]]:
        """Yield the first index and the cells of every block of candidates."""
        for start in range(0, self.n_candidates, BLOCK):
            yield start, self.cells(start, min(start + BLOCK, self.n_candidates))

    def columns(self, chosen: NDArray[np.int64]) -> sparse.csc_array:
        """Return the columns of the chosen candidates as a sparse (n, len(chosen)) matrix."""
        parts = [self.cells(int(index), int(index) + 1) for index in chosen]
        width = sum(params.m * params.h for params in self._params)
        cells = np.vstack(parts) if parts else np.empty((0, width), dtype=np.int32)
        set_here = cells >= 0
        ends = np.concatenate([[0], np.cumsum(set_here.sum(axis=1))])
        rows = cells[set_here]
        return sparse.csc_array((np.ones(len(rows)), rows, ends), shape=(self.n_rows, len(chosen)))


@compiled
def sum_cells(
    cells: NDArray[np.int32],
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    sums: NDArray[np.float64],
) -> None:
    """Add up two row vectors over the rows that each candidate sets, into (b, 2) `sums`."""
    for s in range(cells.shape[0]):
        one = 0.0
        other = 0.0
        for t in range(cells.shape[1]):
            row = cells[s, t]
            if row >= 0:
                one += first[row]
                other += second[row]
        sums[s, 0] = one
        sums[s, 1] = other
