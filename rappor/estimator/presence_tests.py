"""P-values of all candidates: the probability that an absent candidate has such a score.

Hypothesis of each test: no device has the candidate (it is *absent*). The input is the final fit
and the z score of every candidate. The output is one p-value for each candidate.

Theory of operation
-------------------
A candidate outside the fit has a score. The score is compared with a sum of residuals that are
drawn at random from each cohort (`score_tests`). A candidate inside the fit has explained its own
rows: the residuals of its rows are small because of its column, and rows that another string lifts
have regained their weight. The test of such a candidate therefore computes the rows as if the
candidate were absent: it adds the candidate's share to the residuals of its rows.

- The weights are the weights of the lifted rows. If the share lifts a row by less than two standard
  deviations, the weight is that of the fit's own taper. Beyond, the weight is Huber's, which never
  falls to 0. With the taper a frequent string would set its own rows aside.
- The residuals to draw from include the lifted rows of the candidate. With few cohorts these rows
  limit the p-value: in one cohort of k bits with one hash, an absent string sets the same bit with
  probability 1/k.

A p-value is never below the probability that each draw of an absent candidate is as high as the
candidate's own row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from scipy import special

from rappor.counts.arrays import Floats, Integers
from rappor.estimator.debias import Target
from rappor.estimator.fit import (
    LEAST_NOISE,
    Fit,
    compute_huber_weights,
    compute_redescending_weights,
)
from rappor.estimator.p_values import least_p_value
from rappor.estimator.score_tests import ResidualDraws, compute_null_tail

Psi = Callable[[Floats], tuple[Floats, Floats]]
"""Function from excesses of rows above the fit, in standard deviations, to weights and slopes of a
psi function (`rappor.estimator.fit`)."""

_MANY_ROWS: Final = 50.0
"""Effective number of rows of a candidate above which its own rows need no correction. A z score of
4 then lifts each row by .6 standard deviations, and no single row decides."""

_LIFTED: Final = 2.0
"""Lift of the rows by the candidate's share, in standard deviations, above which Huber's weights
are used."""

_COUNTED: Final = 2
"""Largest number of draws (bits that a candidate sets) for which all outcomes are counted. The
saddlepoint formula is for sums of more draws."""


def build_absent_test(target: Target, fit: Fit) -> Callable[[Floats], Floats]:
    """Build the function from z scores to p-values of candidates outside the fit."""
    # Two approximations of the same tail: the complete distribution is exact for few cohorts, and
    # the saddlepoint formula uses the scale of the residuals. The larger p-value is valid in both
    # cases.
    complete, smooth = compute_null_tail(target, fit), compute_null_tail(target, fit, most_values=0)
    # With p* = 0 or q* = 1 a row without false bits has no residuals to draw from. The number of
    # patterns of bits bounds the p-value instead.
    floor = least_p_value(target) if target.has_one_sided_noise.any() else 0.0

    def p_values(z: Floats) -> Floats:
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
    has_few_rows = np.flatnonzero(n_rows < _MANY_ROWS)
    if len(has_few_rows):
        unlifted_weight = 1 / np.maximum(fit.coin_variance + fit.tau2, LEAST_NOISE)
        clipped = (
            compute_huber_weights(fit.residual * np.sqrt(unlifted_weight))[0]
            * unlifted_weight
            * fit.residual
        )
        draws_by_psi: dict[Psi, ResidualDraws] = {
            compute_redescending_weights: ResidualDraws(target, fit.weight * fit.residual),
            compute_huber_weights: ResidualDraws(target, clipped),
        }
        for index in has_few_rows.tolist():
            ends = slice(*columns.indptr[index : index + 2])
            rows = columns.indices[ends].astype(np.int64)
            position = len(target.counts) + index
            p_values[chosen[index]] = _test_selected_candidate(
                target, fit, draws_by_psi, unlifted_weight, rows, position
            )
    return p_values


def _test_selected_candidate(
    target: Target,
    fit: Fit,
    draws_by_psi: Mapping[Psi, ResidualDraws],
    unlifted_weight: Floats,
    rows: Integers,
    basis_index: int,
) -> float:
    """Compute the p-value of a selected candidate as if the candidate were absent.

    Its share is added to the residuals of its rows.

    Parameters
    ----------
    target : n rows.
    fit : the fit.
    draws_by_psi : the residuals from which an absent candidate draws, under each psi.
    unlifted_weight : (n,) float64. 1 / (v + tau^2): weights of rows that are not tapered.
    rows : (r,) int64. Rows of the candidate.
    basis_index : index of the candidate's coefficient in the basis.
    """
    share, row_weight = fit.coefficients[basis_index], fit.weight[rows].sum()
    # A frequent string would set its own rows aside under the redescending psi. Huber's psi keeps
    # them.
    is_small_lift = share * np.sqrt(row_weight / len(rows)) < _LIFTED
    psi = compute_redescending_weights if is_small_lift else compute_huber_weights
    draws = draws_by_psi[psi]
    # Residuals, weights and scores of the rows if the candidate's share were not in the fit.
    lifted = fit.residual[rows] + share
    absent = fit.fitted.copy()
    absent[rows] -= share
    absent_variance = target.compute_noise_variance(absent)[rows] + fit.tau2
    absent_weight = 1 / np.maximum(absent_variance, LEAST_NOISE)
    weighted = psi(lifted * np.sqrt(absent_weight))[0] * absent_weight * lifted
    fitted_residual, fitted_weight = fit.residual[rows], unlifted_weight[rows]
    unlifted = psi(fitted_residual * np.sqrt(fitted_weight))[0] * fitted_weight * fitted_residual
    lifts = (weighted - unlifted) / draws.scale
    # The other selected columns reduce the information of this column, and the weight of each of
    # its rows.
    remaining = min(1 / max(fit.inverse[basis_index, basis_index] * row_weight, 1.0), 1.0)
    usual_weight = absent_weight.sum() * fit.weight.sum() / unlifted_weight.sum()
    scale_ratio = np.sqrt(remaining / usual_weight)
    z = weighted.sum() * scale_ratio * draws_by_psi[compute_redescending_weights].scale
    z /= draws.scale
    values = draws.values.copy()
    values[rows] += lifts
    lower_bound = _bound_p_value(draws, values, rows)
    if draws.n_draws.sum() <= _COUNTED:
        # The columns of the fit reduced the residuals to draw from. The score is reduced in the
        # same ratio, or two draws could never reach it.
        if (score := values[rows].sum()) > z > 0:
            values[rows] *= z / score
        counted = _count_outcomes(draws, values, min(score, z))
        return max(counted, float(special.ndtr(-z)), lower_bound)
    tail = draws.compute_tail_with_lifts(rows, lifts)
    return max(float(tail.p_values(np.array([z]))[0]), lower_bound)


def _count_outcomes(draws: ResidualDraws, values: Floats, score: float) -> float:
    """Compute the probability that one draw, or the sum of two draws, reaches the score.

    The function counts all outcomes: pairs of rows that an absent candidate may set.

    Parameters
    ----------
    draws : which rows belong to which cohort.
    values : (n,) float64. Residuals to draw from.
    score : the sum that is tested.
    """
    pools = [
        values[draws.cohort == j] for j in np.repeat(np.arange(len(draws.n_draws)), draws.n_draws)
    ]
    if len(pools) == 1:
        return float((pools[0] >= score).mean())
    below = np.searchsorted(np.sort(pools[1]), score - pools[0])
    return float(1 - below.mean() / len(pools[1]))


def _bound_p_value(draws: ResidualDraws, values: Floats, rows: Integers) -> float:
    """Compute the probability that every draw is as high as the candidate's row of the same cohort.

    No p-value may be smaller, because an absent string may share all rows with a present one.

    Parameters
    ----------
    draws : which rows belong to which cohort.
    values : (n,) float64. Residuals to draw from.
    rows : (r,) int64. Rows of the candidate.
    """
    as_high = [
        float((values[draws.cohort == draws.cohort[row]] >= values[row]).mean()) for row in rows
    ]
    return float(np.prod(as_high))
