"""Screening: what each candidate would add to a fit, summed over the rows that it sets.

The sums are exact: values are rounded to a grid so coarse that no addition rounds. So they do not
depend on the order of the rows, nor on whether arrays or compiled loops add them up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from rappor.ground.progress import Progress

Judge = Callable[
    [NDArray[np.float64], NDArray[np.float64]], tuple[NDArray[np.float64], NDArray[np.float64]]
]
"""Turns sums of scores and of weights, (b,) each, into estimates and standard errors."""

Tail = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Turns z scores into p-values."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """What a pass over all candidates computes.

    Attributes
    ----------
    scores, weights : (n,) float64 on the grid of `round_for_sums`. Values of each row.
    judge : makes estimates of their sums.
    tail : makes the function that makes p-values of z scores; called where they are counted.
    """

    scores: NDArray[np.float64]
    weights: NDArray[np.float64]
    judge: Judge
    tail: Callable[[], Tail]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Screening:
    """Estimates of candidates as if none of them were in the fit.

    Attributes
    ----------
    index : (r,) int64, increasing. The candidates that are held: all, or the best ones.
    estimate, std_error : (r,) float64.
    others : (b,) int64. Histogram of the p-values of those that are not held, or None.
    least : no p-value of theirs is below it.
    """

    index: NDArray[np.int64]
    estimate: NDArray[np.float64]
    std_error: NDArray[np.float64]
    others: NDArray[np.int64] | None = None
    least: float = 1.0


class Pool(Protocol):
    """The candidates of a decode, held or streamed."""

    @property
    def n_candidates(self) -> int:
        """How many there are; known once they are screened."""

    @property
    def n_terms(self) -> int:
        """The most rows that a candidate sets."""

    def screen(self, task: Task, always: NDArray[np.int64], progress: Progress) -> Screening:
        """Go through all candidates; those in `always`, which were held before, stay held."""

    def columns(self, chosen: NDArray[np.int64]) -> sparse.csc_array:
        """Return the columns of candidates that are held, (n, len(chosen))."""


def round_for_sums(values: NDArray[np.float64], n_terms: int) -> NDArray[np.float64]:
    """Round values so that floating-point sums of up to n_terms of them are exact.

    They become multiples of a power of two, of which every such sum has at most 2^53. Relative to
    the largest value the rounding is n_terms 2^-53.

    Examples
    --------
    >>> values = round_for_sums(np.array([0.1, 0.2, 0.3]), 3)
    >>> float(values[0] + values[1] + values[2]) == float(values[2] + values[1] + values[0])
    True
    """
    largest = float(np.max(np.abs(values), initial=0.0)) * n_terms
    step = np.ldexp(1.0, int(np.frexp(largest)[1]) - 52)
    return np.asarray(np.rint(values / step) * step)
