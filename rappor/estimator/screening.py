"""Score every candidate by the rows that it sets, without adding it to the fit.

`rappor.estimator.selection` screens a list before each refinement, because a fit of all candidates
would be too slow. A `CandidatePool` contains the candidates: `Design` in memory, `StreamedDesign`
for a stream. The pool sums two values over the rows of each candidate, and a `ScreeningTask` turns
the sums into an estimate. With e the residual of a row, w its weight, W the sum of all weights, n
the number of rows and s the number of selected candidates,

    score       = sum over the candidate's rows of w e
    row weight  = sum over the candidate's rows of w
    information = row weight (1 - row weight / W) (1 - s / n)
    estimate    = score / information / kappa / rho

The second factor of the information is the part of the candidate's column that the background does
not explain: the projection on a constant removes (row weight)^2 / W. The last factor is the mean
share of a candidate that the selected candidates do not explain.

*Example.* In 16 cohorts of 32 bits with h = 1 and equal weights w = 1, a candidate has the row
weight 16, and W is 512. With 64 selected candidates, the information is 16 (1 - 16/512) (1 -
64/512) = 13.6.

The exact information of a candidate (`Fit.compute_scores`) would need its products
with all selected columns.

The sums are exact. All values are rounded to a grid that is coarse enough for every addition to be
exact. The result therefore does not depend on the order of the rows, and arrays and compiled loops
compute the same sums.
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
from rappor.estimator.presence_tests import build_absent_test
from rappor.estimator.rank_weights import RatioCounts

Tail = Callable[[Floats], Floats]
"""A `Tail` maps z scores, (c,), to one-sided p-values, (c,)."""

_LEAST_REMAINING_SHARE: Final = 0.05
"""Lower bound on the share of a candidate's information that selected candidates do not explain.
The bound applies only if the selected candidates fill nearly all rows. Without the bound the share
would be 0, and estimates would be infinite."""

_LEAST_INFORMATION: Final = 1e-6
"""Information, relative to the usual information, below which a candidate counts as a combination
of selected columns. Such a combination would have the information 0, but the ridge of the fit and
rounding leave a little."""


class ScreeningTask:
    """The computation of one pass over all candidates: a one-step estimate for each candidate.

    Attributes
    ----------
    scores : (n,) float64. w e of each row, rounded by `round_for_sums`.
    weights : (n,) float64. w of each row, rounded by `round_for_sums`.
    """

    def __init__(self, target: Target, fit: Fit, n_terms: int) -> None:
        """Compute the values of each row.

        Parameters
        ----------
        target : n rows.
        fit : the current fit.
        n_terms : largest number of rows that a candidate sets.
        """
        self._target, self._fit = target, fit
        self.scores = round_for_sums(fit.weight * fit.residual, n_terms)
        self.weights = round_for_sums(fit.weight, n_terms)
        # The usual information is that of a random string. The mean over random strings does not
        # depend on the list of candidates, so a longer list changes no estimate.
        self._usual = float(target.density @ fit.weight) * _compute_remaining_share(fit)

    def estimate_candidates(self, score: Floats, weight_sum: Floats) -> tuple[Floats, Floats]:
        """Compute one-step estimates and standard errors of candidates, (b,) each.

        The mean leverage replaces the leverage of each candidate.

        Parameters
        ----------
        score, weight_sum : (b,) float64. Sums of `scores` and of `weights` over the rows of each
            candidate.
        """
        return estimate_one_step(
            score, approximate_information(weight_sum, self._fit), self._fit, self._usual
        )

    def build_tail(self) -> Tail:
        """Build the function from z scores to p-values of candidates outside the fit."""
        return build_absent_test(self._target, self._fit)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """Estimates of the candidates in memory, and a histogram of the p-values of all others.

    Attributes
    ----------
    estimate, std_error : (c,) float64, as shares. Standard errors include noise and collisions. A
        candidate without information has the estimate 0 and an infinite standard error.
    other_counts : (b,) int64. Histogram of the p-values of candidates that are not in memory, or
        None.
    least_other : lower bound on the p-values in the histogram.
    other_ratios : p-values divided by weights of the candidates that are not in memory. None unless
        the candidates are a ranked stream.
    """

    estimate: Floats
    std_error: Floats
    other_counts: Integers | None = None
    least_other: float = 1.0
    other_ratios: RatioCounts | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Screening(Scores):
    """One-step estimates of candidates, as if each candidate were the next to enter the fit.

    Attributes
    ----------
    index : (c,) int64, increasing. Numbers of the candidates in memory: all candidates of a list,
        or the best candidates of a stream.
    """

    index: Integers


class CandidatePool(Protocol):
    """The candidates of a decode, in memory or read from a stream."""

    @property
    def n_candidates(self) -> int:
        """Number of candidates. It is valid after the first screening."""

    @property
    def n_terms(self) -> int:
        """Largest number of rows that a candidate sets."""

    def screen(self, task: ScreeningTask, always: Integers, progress: Progress) -> Screening:
        """Estimate all candidates.

        Parameters
        ----------
        task : the computation for each candidate.
        always : (a,) int64. Numbers of candidates in memory that must stay in memory.
        progress : function that reports the progress.
        """

    def columns(self, chosen: Integers) -> sparse.csc_array:
        """Return the columns of candidates in memory by their numbers, (n, len(chosen)) sparse."""


def _compute_remaining_share(fit: Fit) -> float:
    """Compute the mean share of a candidate's information that selected candidates do not explain.

    Every selected candidate uses one of the n rows, so the share is 1 - s / n.
    """
    return max(1 - fit.n_selected / len(fit.residual), _LEAST_REMAINING_SHARE)


def approximate_information(weight_sum: Floats, fit: Fit) -> Floats:
    """Compute the approximate information of candidates outside the fit.

    Parameters
    ----------
    weight_sum : (c,) float64. Row weight: sum of the weights of each candidate's rows.
    fit : the current fit.

    Returns
    -------
    (c,) float64.
    """
    # The projection on the background removes weight_sum^2 / sum of all weights.
    return np.asarray(
        weight_sum * (1 - weight_sum / fit.weight.sum()) * _compute_remaining_share(fit)
    )


def estimate_one_step(
    score: Floats, information: Floats, fit: Fit, usual: float
) -> tuple[Floats, Floats]:
    """Compute one-step estimates [ZZ14, equation 5] and standard errors.

    A candidate whose information is negligible compared with the usual information is a combination
    of selected candidates. Its estimate is 0 and its standard error infinite.

    Parameters
    ----------
    score, information : (c,) float64. z' W e and z' W x of each candidate (`rappor.estimator.fit`).
    fit : the fit, for its corrections kappa and rho (`rappor.estimator.fit`).
    usual : information of a candidate that is no combination of selected candidates.

    Returns
    -------
    estimate, std_error : (c,) float64 each, as shares.
    """
    # Without the limit a combination of selected columns would get a huge score from rounding
    # errors.
    is_identified = information > _LEAST_INFORMATION * usual
    safe_information = np.where(is_identified, information, 1.0)
    rho = fit.search_factor
    estimate = np.where(is_identified, score / safe_information / (fit.kappa * rho), 0.0)
    error = 1 / np.sqrt(safe_information * rho) / fit.kappa
    std_error = np.where(is_identified, error, np.inf)
    return estimate, std_error


def round_for_sums(values: Floats, n_terms: int) -> Floats:
    """Round values so that floating-point sums of up to n_terms values are exact.

    Rounded values are multiples of one power of two. Every sum is at most 2^53 of these multiples,
    so a float64 represents it exactly. The rounding error is at most n_terms 2^-52 of the largest
    value.

    Parameters
    ----------
    values : (n,) float64.
    n_terms : largest number of values in a sum.

    Examples
    --------
    >>> values = round_for_sums(np.array([0.1, 0.2, 0.3]), 3)
    >>> float(values[0] + values[1] + values[2]) == float(values[2] + values[1] + values[0])
    True
    """
    # `frexp` returns the exponent e with largest < 2^e. So a sum is below 2^e, which is 2^52 steps
    # of 2^(e - 52). The other bit of the 2^53 leaves room for the rounding of the values.
    largest = float(np.max(np.abs(values), initial=0.0)) * n_terms
    step = np.ldexp(1.0, int(np.frexp(largest)[1]) - 52)
    return np.asarray(np.rint(values / step) * step)
