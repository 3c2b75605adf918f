"""P-values of all candidates: the probability that an absent candidate has at least their score.

Hypothesis of each test: no device has the candidate (it is *absent*). The decoder calls
`compute_p_values`. The input is the final fit and the z score of every candidate (estimate divided
by standard error). The output is one p-value for each candidate.

Theory of operation
-------------------
| symbol | meaning | shape |
|---|---|---|
| n, c, s | numbers of rows, of candidates, and of candidates in the fit (selected) | |
| r | number of rows that one candidate sets | |
| w | weights of the rows in the fit | (n,) |
| v, tau^2 | variance of the randomized responses of a row, and of collisions | (n,), number |
| z | estimate divided by its standard error | (c,) |
| psi | tapered residual: the residual, bounded or set to 0 far above the fit (`fit`) | |

A *row* is one bit of one cohort. A candidate sets some rows, which are its own rows. Its *score* is
the weighted sum of the residuals of its own rows. An absent candidate sets random rows. So the
score of a candidate outside the fit is compared with a sum of residuals that are drawn at random
from each cohort (`score_tests`).

This is wrong for a candidate inside the fit, because the fit has explained its own rows: their
residuals are small. The test of such a candidate therefore uses *lifted* residuals. It adds the
share of the candidate to the residuals of its own rows, as if the candidate were not in the fit.

*Example.* A candidate with the share .05 is in the fit, and its own rows have the residuals .001
and -.002. The lifted residuals are .051 and .048. Its score is the weighted sum of the lifted
residuals, and an absent candidate draws from the residuals of all rows, with these two lifted.

| candidate | p-value |
|---|---|
| outside the fit | by the residuals of the fit |
| in the fit, with many own rows of nearly the same noise without it | by the residuals of the fit |
| in the fit, and an absent candidate draws at most two residuals | all outcomes are counted |
| in the fit, with more draws | saddlepoint formula, with lifted residuals |
| any candidate, if a row has no false ones or no false zeros | by the residuals of the fit |

The lifts change two things:

- The weights of these rows. The fit gives outliers a smaller weight (the taper), and sets rows
  aside that are far above the fit. If the share lifts a row by less than two standard deviations,
  the weight is that of the taper. For a larger share the weight is Huber's, which never falls to 0.
  With the taper a frequent string would set its own rows aside.
- The residuals to draw from. They include the lifted rows of the candidate. With few cohorts these
  rows limit the p-value: in one cohort of k bits with one hash function, an absent string sets the
  same bit with probability 1/k.

A p-value from lifted residuals is never below the probability that an absent candidate draws,
in every cohort, a residual that is at least as high as the residual of the candidate's own row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from scipy import sparse, special

from rappor.counts.arrays import Floats, Integers
from rappor.estimator.debias import Target
from rappor.estimator.fit import (
    LEAST_NOISE,
    Fit,
    compute_huber_weights,
    compute_redescending_weights,
)
from rappor.estimator.p_values import compute_least_p_value
from rappor.estimator.score_tests import ResidualDraws, compute_null_tail

PsiFunction = Callable[[Floats], tuple[Floats, Floats]]
"""A psi function of a robust regression (M-estimation) limits the influence of outliers. The
functions of `rappor.estimator.fit` map the residuals of rows, in standard deviations, to weights in
[0, 1] and to the slopes of psi. A weight is psi of the residual, divided by the residual."""

_MANY_ROWS: Final = 50.0
"""Effective number of own rows from which the residuals of a candidate in the fit are not lifted. A
share of 4 standard errors would lift each of 50 rows by 4 / sqrt(50) = .6 standard deviations, too
little to change the distribution of the residuals."""

_MAX_NOISE_RATIO: Final = 1.05
"""Variance of the own rows with the share of a candidate, divided by their variance without it,
from which its residuals are lifted although it has many rows. The standard error contains the noise
of the candidate's own reports. If no device had the candidate, these reports would not exist, so z
is divided by an error that is too large. The ratio is largest for sets: few reports name a certain
bucket by chance. Example: 1e5 devices with sets of at most 8 items, in 128 cohorts. At the limit of
detection the ratio is 1.25, and without lifts a seventh of the detected items is lost."""

_STEP: Final = 1e-3
"""Distance of the proportions from which the quadratic function of the variance is computed. The
function is exact, so any distance gives the same result up to rounding."""

_MAX_TAPERED_LIFT: Final = 2.0
"""Largest lift of the rows by the candidate's share, in standard deviations, for which the
redescending psi (the taper of the fit) weighs them. For a larger lift Huber's psi is used, which
gives no row the weight 0."""

_MOST_DRAWS_COUNTED: Final = 2
"""Largest number of draws (bits that a candidate sets in all cohorts) for which the test counts all
outcomes. For more draws it uses the saddlepoint formula, which is inaccurate for one or two draws.
d draws from k bits have k^d outcomes: 16,384 for two draws from 128 bits, and 128 times as many for
three."""

_ROUNDING: Final = 1e-9
"""Difference of two values, in standard deviations of a score, up to which they count as equal. Two
rows with equally many ones have equal values, but the value of a lifted row is computed in other
steps, and rounding makes it slightly larger or smaller. Without the tolerance, a row that equals
the candidate's own row may count as lower, and the p-value is too small."""


def build_absent_test(target: Target, fit: Fit) -> Callable[[Floats], Floats]:
    """Build the function from z scores to p-values of candidates outside the fit."""
    # Two computations of the same tail: the complete distribution, which is exact for few cohorts,
    # and the saddlepoint formula, which assumes that the residuals have the scale of the model. The
    # larger p-value is used, so the test remains valid if one of them is too small.
    complete, smooth = compute_null_tail(target, fit), compute_null_tail(target, fit, most_values=0)
    # With p* = 0 (no false ones) or q* = 1 (no false zeros) a row may have no noise, so there are
    # no residuals to draw from. An absent string may still have all bits of a present string. The
    # probability of this event is a lower bound on the p-value.
    floor = compute_least_p_value(target) if target.has_one_sided_noise.any() else 0.0

    def p_values(z: Floats) -> Floats:
        """Compute the p-values of z scores, (c,)."""
        larger = np.maximum(complete.p_values(z), smooth.p_values(z))
        return np.maximum(larger, floor)

    return p_values


def compute_p_values(target: Target, fit: Fit, z: Floats, chosen: Integers) -> Floats:
    """Compute one-sided p-values of all candidates, (c,).

    Parameters
    ----------
    target : n rows.
    fit : the fit with the selected candidates as columns.
    z : (c,) float64. Estimates in standard errors, 0 if the counts contain no information.
    chosen : (s,) int64. The selected candidates, in the order of the fit's columns.
    """
    p_values = build_absent_test(target, fit)(z)
    if target.has_one_sided_noise.any():
        return p_values
    columns = fit.basis[:, len(target.counts) :].tocsc()
    # Effective number of rows of each selected candidate: (sum of w)^2 / sum of w^2.
    squares = columns.T @ fit.weight**2
    n_rows = (columns.T @ fit.weight) ** 2 / np.maximum(squares, np.finfo(float).tiny)
    is_lifted = (n_rows < _MANY_ROWS) | (
        _compute_noise_ratios(target, fit, columns) > _MAX_NOISE_RATIO
    )
    if is_lifted.any():
        # `untapered_weight` is 1 / variance of each row by the model, before a psi function reduces
        # it. The draws are the weighted residuals of all rows before any row is lifted, by psi.
        untapered_weight = 1 / np.maximum(fit.coin_variance + fit.tau2, LEAST_NOISE)
        huber_weight = (
            compute_huber_weights(fit.residual * np.sqrt(untapered_weight))[0] * untapered_weight
        )
        draws_by_psi: dict[PsiFunction, ResidualDraws] = {
            compute_redescending_weights: ResidualDraws(target, fit.weight * fit.residual),
            compute_huber_weights: ResidualDraws(target, huber_weight * fit.residual),
        }
        for index in np.flatnonzero(is_lifted).tolist():
            ends = slice(*columns.indptr[index : index + 2])
            rows = columns.indices[ends].astype(np.int64)
            # The first columns of the basis are the backgrounds, one for each collection.
            basis_index = len(target.counts) + index
            p_values[chosen[index]] = _test_selected_candidate(
                target, fit, draws_by_psi, untapered_weight, rows, basis_index
            )
    return p_values


def _compute_noise_ratios(target: Target, fit: Fit, columns: sparse.csc_array) -> Floats:
    """Compute how much the share of each selected candidate increases the noise of its rows.

    The variance of a row is a quadratic function of its proportion, so three values determine it.

    Parameters
    ----------
    target : n rows.
    fit : the fit.
    columns : (n, s) sparse. Columns of the selected candidates.

    Returns
    -------
    (s,) float64. Sum of the weights of the own rows without the share, divided by the sum with it.
    """
    # The fit may give impossible proportions. The variance is quadratic between the possible ones,
    # so rows near the largest one, 1, take their two other values below.
    fitted = np.clip(fit.fitted, target.least_proportion, 1.0)
    step = np.where(fitted > 1 - 2 * _STEP, -_STEP, _STEP)
    variances = [target.compute_noise_variance(fitted + i * step) for i in (0, 1, 2)]
    # A cohort without reports has an infinite variance with and without the share.
    at_fit, one_step, two_steps = (np.where(target.reports > 0, v, 0.0) for v in variances)
    curvature = (two_steps - 2 * one_step + at_fit) / step**2
    slope = (one_step - at_fit) / step - curvature * step / 2
    # One element for each own row of each candidate.
    rows = columns.indices
    share = np.repeat(fit.coefficients[len(target.counts) :], np.diff(columns.indptr))
    # No proportion is below the least one, which is negative for sets.
    least = np.broadcast_to(target.least_proportion, fitted.shape)[rows]
    change = np.maximum(fit.fitted[rows] - share, least) - fitted[rows]
    present = variances[0][rows]
    absent = present + slope[rows] * change + curvature[rows] * change**2 / 2
    without_share, with_share = (
        columns.__class__((1 / np.maximum(variance + fit.tau2, LEAST_NOISE), rows, columns.indptr),
                          shape=columns.shape).sum(axis=0)
        for variance in (absent, present)
    )  # fmt: skip
    ratios = np.ones(columns.shape[1])
    np.divide(without_share, with_share, out=ratios, where=with_share > 0)
    return ratios


def _test_selected_candidate(
    target: Target,
    fit: Fit,
    draws_by_psi: Mapping[PsiFunction, ResidualDraws],
    untapered_weight: Floats,
    rows: Integers,
    basis_index: int,
) -> float:
    """Compute the p-value of a selected candidate with lifted residuals.

    The test statistic is z, the standardised score of the candidate if it were not in the fit. The
    null distribution is the sum of residuals drawn from all rows, with the candidate's rows lifted.

    Parameters
    ----------
    target : n rows.
    fit : the fit.
    draws_by_psi : the residuals from which an absent candidate draws, under each psi.
    untapered_weight : (n,) float64. 1 / (v + tau^2): weights of rows that are not tapered.
    rows : (r,) int64. Rows of the candidate.
    basis_index : index of the candidate's coefficient in the basis.
    """
    share, row_weight = fit.coefficients[basis_index], fit.weight[rows].sum()
    # A weight is 1 / variance, so share sqrt(mean weight) is the lift of a row in standard
    # deviations. A frequent string would set its own rows aside under the redescending psi. Huber's
    # psi keeps them.
    is_small_lift = share * np.sqrt(row_weight / len(rows)) < _MAX_TAPERED_LIFT
    psi = compute_redescending_weights if is_small_lift else compute_huber_weights
    draws = draws_by_psi[psi]
    absent_weight = _compute_absent_weight(target, fit, rows, share)
    # The weighted residuals of the own rows without the candidate in the fit, and in the fit. The
    # difference is in the units of `draws.values`.
    lifted = _weigh_residuals(fit.residual[rows] + share, absent_weight, psi)
    not_lifted = _weigh_residuals(fit.residual[rows], untapered_weight[rows], psi)
    lifts = (lifted - not_lifted) / draws.scale
    # z = share sqrt(information). Here the share is the sum of the lifted residuals divided by
    # `tapered_weight`, and the information is `remaining` times `tapered_weight`. So z is the sum
    # times sqrt(`remaining` / `tapered_weight`). `remaining`, at most 1, is the part of the
    # candidate's column that other selected columns do not explain: the reciprocal of its variance
    # inflation factor. `tapered_weight` is the sum of the untapered weights of the own rows, times
    # the mean factor by which the taper reduces the weights of all rows.
    remaining = 1 / max(fit.inverse[basis_index, basis_index] * row_weight, 1.0)
    tapered_weight = absent_weight.sum() * fit.weight.sum() / untapered_weight.sum()
    scale_ratio = np.sqrt(remaining / tapered_weight)
    # z is in standard deviations of a score under the redescending psi. `draws` are in standard
    # deviations under the psi of this candidate. Huber's psi keeps outliers, so its scores have
    # another standard deviation, and z is divided by the ratio of both. It is 1 for equal psis.
    z = lifted.sum() * scale_ratio * draws_by_psi[compute_redescending_weights].scale
    z /= draws.scale
    values = draws.values.copy()
    values[rows] += lifts
    lower_bound = _compute_p_value_floor(draws, values, rows)
    if draws.n_draws.sum() <= _MOST_DRAWS_COUNTED:
        # An absent candidate that draws exactly the own rows must reach the tested score, so their
        # sum and z must agree. Other selected columns may explain a part of the column, so that z
        # is smaller than the sum. The values of the own rows are then reduced in the same ratio.
        if (score := values[rows].sum()) > z > 0:
            values[rows] *= z / score
        counted = _count_outcomes(draws, values, min(score, z))
        # With one or two draws, the residuals show only a few outcomes. The normal tail of z is a
        # second lower bound, so the larger p-value is returned.
        return max(counted, float(special.ndtr(-z)), lower_bound)
    tail = draws.compute_tail_with_lifts(rows, lifts)
    return max(float(tail.p_values(np.array([z]))[0]), lower_bound)


def _compute_absent_weight(target: Target, fit: Fit, rows: Integers, share: float) -> Floats:
    """Compute the weights 1 / (v + tau^2) of a candidate's rows if no device had the candidate.

    The fitted values of the rows are then smaller by the share. v is computed at these values.

    Parameters
    ----------
    target : n rows.
    fit : the fit.
    rows : (r,) int64. Rows of the candidate.
    share : the fitted share of the candidate.

    Returns
    -------
    (r,) float64.
    """
    fitted_without = fit.fitted.copy()
    fitted_without[rows] -= share
    variance = target.compute_noise_variance(fitted_without)[rows] + fit.tau2
    return np.asarray(1 / np.maximum(variance, LEAST_NOISE))


def _weigh_residuals(residual: Floats, weight: Floats, psi: PsiFunction) -> Floats:
    """Compute weighted residuals after the taper, (r,).

    Parameters
    ----------
    residual : (r,) float64.
    weight : (r,) float64. Weights of rows that are not tapered, 1 / variance.
    psi : the psi function, which gives outliers a smaller weight.
    """
    taper_weight, _ = psi(residual * np.sqrt(weight))
    return taper_weight * weight * residual


def _count_outcomes(draws: ResidualDraws, values: Floats, score: float) -> float:
    """Compute the probability that one draw, or the sum of two draws, reaches the score.

    The function counts all outcomes, which are the rows, or pairs of rows, that an absent candidate
    may set.

    Parameters
    ----------
    draws : which rows belong to which cohort.
    values : (n,) float64. Residuals to draw from.
    score : the sum that is tested.
    """
    # The residuals of the cohort from which each draw comes.
    pools = [
        values[draws.cohort == j] for j in np.repeat(np.arange(len(draws.n_draws)), draws.n_draws)
    ]
    least_sum = score - _ROUNDING
    if len(pools) == 1:
        return float((pools[0] >= least_sum).mean())
    # For each residual of the first draw, the number of residuals of the second draw with which the
    # sum is below the score. Two draws from one cohort may hit the same row, as two hash functions
    # may choose the same bit.
    below = np.searchsorted(np.sort(pools[1]), least_sum - pools[0])
    return float(1 - below.mean() / len(pools[1]))


def _compute_p_value_floor(draws: ResidualDraws, values: Floats, rows: Integers) -> float:
    """Compute the probability that every draw is as high as the candidate's row of the same cohort.

    No p-value may be smaller, because an absent string may set the same rows as a present string.
    For example, with two cohorts of 32 bits, one hash function, and own rows that are the highest
    of their cohorts, the bound is (1/32)^2 = .001.

    Parameters
    ----------
    draws : which rows belong to which cohort.
    values : (n,) float64. Residuals to draw from.
    rows : (r,) int64. Rows of the candidate.
    """
    # All rows of the cohort of each of `rows`, one cohort after another.
    cohort = draws.cohort[rows]
    n_bits = draws.n_bits[cohort]
    ends = np.cumsum(n_bits)
    first_rows = (np.cumsum(draws.n_bits) - draws.n_bits)[cohort]
    cohort_rows = np.arange(ends[-1]) + np.repeat(first_rows - (ends - n_bits), n_bits)
    is_as_high = values[cohort_rows] >= np.repeat(values[rows] - _ROUNDING, n_bits)
    n_as_high = np.add.reduceat(is_as_high, ends - n_bits, dtype=np.int64)
    return float(np.prod(n_as_high / n_bits))
