"""Screening: what each candidate would add to a fit, summed over the rows that it sets.

The sums are exact: values are rounded to a grid so coarse that no addition rounds. So they do not
depend on the order of the rows, nor on whether arrays or compiled loops add them up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from scipy import sparse

from rappor.base.progress import Progress
from rappor.counts.arrays import Floats, Integers
from rappor.estimator.debias import Target
from rappor.estimator.fit import Fit
from rappor.estimator.presence_tests import absent_tail

Tail = Callable[[Floats], Floats]
"""Turns z scores into p-values."""

_LEAST_LEFT: Final = 0.05
"""Bound on the part of the information that the selection leaves; it is only reached where selected
strings fill nearly all rows."""

_DEPENDENT: Final = 1e-6
"""Information, relative to the usual, below which a candidate has none of its own: all that
the ridge of the fit and rounding leave of a combination of selected columns is less."""


class Task:
    """What a pass over all candidates computes: what each of them would add to a fit.

    Attributes
    ----------
    scores, weights : (n,) float64 on the grid of `round_for_sums`. Values of each row.
    """

    def __init__(self, target: Target, fit: Fit, n_terms: int) -> None:
        """Take a fit, and the most rows that a candidate sets."""
        self._target, self._fit = target, fit
        self.scores = round_for_sums(fit.weight * fit.residual, n_terms)
        self.weights = round_for_sums(fit.weight, n_terms)
        # A candidate's rows in the mean over all strings: which ones are asked about does not
        # matter.
        self._usual = float(target.density @ fit.weight) * _share_left(fit)

    def judge(self, score: Floats, own: Floats) -> tuple[Floats, Floats]:
        """De-bias candidates outside the fit by their sums, (b,) each, with the mean leverage."""
        return debiased(score, usual_information(own, self._fit), self._fit, self._usual)

    def tail(self) -> Tail:
        """Return what makes p-values of z scores."""
        return absent_tail(self._target, self._fit)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """De-biased estimates of the candidates that are held, and the p-values of all others.

    Attributes
    ----------
    estimate, std_error : (r,) float64. Noise and collisions are in the error.
    others : (b,) int64. Histogram of the p-values of those that are not held, or None.
    least : no p-value of theirs is below it.
    """

    estimate: Floats
    std_error: Floats
    others: Integers | None = None
    least: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Screening(Scores):
    """Estimates of candidates as if none of them were in the fit.

    Attributes
    ----------
    index : (r,) int64, increasing. The candidates that are held: all, or the best ones.
    """

    index: Integers


class Pool(Protocol):
    """The candidates of a decode, held or streamed."""

    @property
    def n_candidates(self) -> int:
        """How many there are; known once they are screened."""

    @property
    def n_terms(self) -> int:
        """The most rows that a candidate sets."""

    def screen(self, task: Task, always: Integers, progress: Progress) -> Screening:
        """Go through all candidates; those in `always`, which were held before, stay held."""

    def columns(self, chosen: Integers) -> sparse.csc_array:
        """Return the columns of candidates that are held, (n, len(chosen))."""


def _share_left(fit: Fit) -> float:
    """Return the part of a candidate's information that the selected ones leave: each has a row."""
    return max(1 - fit.n_selected / len(fit.residual), _LEAST_LEFT)


def usual_information(own: Floats, fit: Fit) -> Floats:
    """Return the information of candidates, (c,), whose rows weigh this, with the mean leverage."""
    # The background takes own^2 / sum of weights.
    return np.asarray(own * (1 - own / fit.weight.sum()) * _share_left(fit))


def debiased(score: Floats, information: Floats, fit: Fit, usual: float) -> tuple[Floats, Floats]:
    """Turn scores into one-step estimates [ZZ14, equation 5] and standard errors.

    A candidate that is a combination of selected ones has no information of its own, next to
    what is usual: its estimate is 0 and its standard error infinite.
    """
    known = information > _DEPENDENT * usual
    safe = np.where(known, information, 1.0)
    estimate = np.where(known, score / safe / fit.kappa, 0.0)
    return estimate, np.where(known, 1 / np.sqrt(safe) / fit.kappa, np.inf)


def round_for_sums(values: Floats, n_terms: int) -> Floats:
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
