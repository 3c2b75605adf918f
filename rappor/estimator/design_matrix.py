"""The design matrix: one row for each bit of each cohort, one column for each candidate.

An entry is 1 if the candidate sets the bit in the cohort, and 0 otherwise. A *cell* is the index of
a row: bit i of cohort j is cell j k + i of its parameter set. The cells of a further parameter set
follow the cells of the parameter sets before it. The cells of a candidate are the rows in which its
column is 1. Only h of the k entries of a candidate in a cohort are 1, so the matrix is stored as
the cells of each candidate. It is computed in blocks of candidates, so that memory is bounded.

*Example.* With k = 4 bits, h = 1 and m = 2 cohorts, a candidate with bit 1 in cohort 0 and bit 2 in
cohort 1 has the cells 1 and 6. Its column is 0, 1, 0, 0, 0, 0, 1, 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from rappor.base.progress import Progress
from rappor.candidates.candidates import Candidates
from rappor.counts.arrays import Floats, Integers
from rappor.estimator.screening import Screening, ScreeningTask
from rappor.protocol.params import Params

BLOCK: Final = 1 << 22
"""Number of cells that are hashed at a time: 16 MB of int32. A million candidates need no more
memory than ten thousand. A larger block costs memory."""

_GATHERED: Final = 1 << 15
"""Number of cells whose values are summed at a time: 512 KB of complex values, which fit the
second-level cache of a core. More cells would be read from memory."""


class Columns(Protocol):
    """A design matrix whose columns can be read.

    The columns of `Design` contain zeros and ones. The refit of sets (`set_refit`) has a matrix
    of its own: its columns contain the derivatives of the expected proportions by the share of
    an item.
    """

    @property
    def n_candidates(self) -> int:
        """Number of candidates."""

    def columns(self, chosen: Integers) -> sparse.csc_array:
        """Return the columns of some candidates, (n, len(chosen))."""


class Design:
    """The (n, c) matrix of zeros and ones of c candidates, read in blocks of columns.

    Attributes
    ----------
    n_rows, n_candidates : n and c.
    n_terms : largest number of ones in a column: the sum of m h over parameter sets.
    """

    def __init__(self, candidates: Candidates, collections: Sequence[Params]) -> None:
        """Store the candidates and the parameter sets.

        The parameter sets must have the order of the collections of the `Target` (the de-biased
        counts), because both number the rows in this order.
        """
        self._candidates = candidates
        self._params = tuple(collections)
        sizes = [params.m * params.k for params in self._params]
        self._starts = np.concatenate([[0], np.cumsum(sizes)])
        self.n_rows = int(self._starts[-1])
        self.n_candidates = len(candidates)
        self.n_terms = sum(params.m * params.h for params in self._params)
        self._block = max(BLOCK // self.n_terms, 1)
        self._all_cells: NDArray[np.int32] | None = None

    def blocks(self) -> Iterator[tuple[int, NDArray[np.int32]]]:
        """Yield the index of the first candidate and the cells of every block of candidates.

        Cells are (b, n_terms) int32 for b candidates. The value -1 marks an unused cell, where two
        hash functions chose the same bit. If one block contains all candidates, its cells are
        stored for the next call.
        """
        if self._all_cells is not None:
            yield 0, self._all_cells
            return
        for start in range(0, self.n_candidates, self._block):
            cells = self._hash_cells(self._candidates, start, start + self._block)
            if len(cells) == self.n_candidates:
                self._all_cells = cells
            yield start, cells

    def screen(
        self,
        task: ScreeningTask,
        always: Integers,  # noqa: ARG002 - required by the protocol `CandidatePool`
        progress: Progress,
    ) -> Screening:
        """Compute the one-step estimate of every candidate, as `CandidatePool.screen` requires.

        `always` are candidates that must stay in memory. They matter to a streamed design matrix
        (`streamed_design_matrix`), which has only some of its candidates in memory. A `Design` has
        all candidates in memory, so `always` has no effect.
        """
        score, weight_sum = np.empty(self.n_candidates), np.empty(self.n_candidates)
        for start, cells in self.blocks():
            block = slice(start, start + len(cells))
            score[block], weight_sum[block] = sum_row_pairs(cells, task.scores, task.weights)
            progress("screening candidates", start + len(cells), self.n_candidates)
        estimate, std_error = task.estimate_candidates(score, weight_sum)
        return Screening(index=np.arange(self.n_candidates), estimate=estimate, std_error=std_error)

    def columns(self, chosen: Integers) -> sparse.csc_array:
        """Return the columns of some candidates as a sparse (n, len(chosen)) matrix of ones.

        `chosen` contains indices of candidates, (s,) int64.
        """
        if self._all_cells is not None:
            # Reuse stored cells: hashing the candidates again takes longer than copying.
            cells = self._all_cells[chosen]
        else:
            cells = self._hash_cells(self._candidates.select(chosen.tolist()), 0, len(chosen))
        is_set = cells >= 0
        ends = np.concatenate([[0], np.cumsum(is_set.sum(axis=1))])
        rows = cells[is_set]
        return sparse.csc_array((np.ones(len(rows)), rows, ends), shape=(self.n_rows, len(chosen)))

    def _hash_cells(self, candidates: Candidates, start: int, stop: int) -> NDArray[np.int32]:
        """Hash candidates `start` to `stop` - 1, and return their cells, (b, n_terms) int32."""
        stop = min(stop, len(candidates))
        parts = []
        # `_starts` has one number more than `_params`: its last number is the number of all rows.
        for params, first in zip(self._params, self._starts, strict=False):
            cells = candidates.compute_cells(params, start, stop)
            # Cells of a later parameter set follow those of the earlier ones. Unused cells stay -1.
            parts.append(cells if first == 0 else np.where(cells < 0, cells, cells + first))
        return parts[0] if len(parts) == 1 else np.hstack(parts).astype(np.int32)


def sum_rows(cells: NDArray[np.int32], values: NDArray[Any]) -> NDArray[Any]:
    """Multiply the transposed design matrix by a vector, for a block of candidates.

    The result of a candidate is the sum of `values` over its cells.

    Parameters
    ----------
    cells : (b, n_terms) int32. Cells of the candidates, -1 for unused cells.
    values : (n,) of any dtype. A value for each row of the design matrix.

    Returns
    -------
    (b,) of the same dtype.
    """
    # An unused cell is -1. As an index, -1 refers to the last element, so a 0 is appended.
    padded = np.append(values, values.dtype.type(0))
    sums = np.empty(len(cells), dtype=values.dtype)
    step = max(_GATHERED // cells.shape[1], 1)
    for start in range(0, len(cells), step):
        sums[start : start + step] = padded[cells[start : start + step]].sum(axis=1)
    return sums


def sum_row_pairs(cells: NDArray[np.int32], first: Floats, second: Floats) -> tuple[Floats, Floats]:
    """Multiply the transposed design matrix by two vectors, (n,) each, for a block of candidates.

    The results of a candidate are the sums of `first` and of `second` over its cells. Looking up
    the rows takes most of the time. The function therefore sums both values together, as real and
    imaginary part of one number. This takes two thirds of the time of two sums, and a ninth of the
    time of an (n, 2) table, whose rows numpy adds one by one.
    """
    sums = sum_rows(cells, first + 1j * second)
    return sums.real, sums.imag
