"""P-values of all candidates: how often an absent one has such a score.

Theory of operation
-------------------
A candidate outside the fit has its score compared with the sum of residuals drawn at random from
each cohort (`significance`). One inside the fit has explained its own rows: their residuals are
small because it is there, and rows that another string lifts have regained their weight. To ask
whether it is absent, its share is put back on its rows:

- their weights are those that the lifted rows would have. Where the share lifts a row by less than
  two standard deviations that is the fit's own taper; beyond, a weight that never falls to nothing
  (Huber's), or a frequent string would take itself out;
- the residuals to draw from include its own rows, lifted. With few cohorts this is what limits the
  p-value: in one cohort of k bits with one hash an absent string hits the same bit once in k times.

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
from rappor.estimator.fit import LEAST_NOISE, Fit, huber, redescend
from rappor.estimator.p_values import least_p_value
from rappor.estimator.score_tests import Draws, null_tail

Psi = Callable[[Floats], tuple[Floats, Floats]]

_MANY_ROWS: Final = 50.0
"""Rows of a candidate, counted by their weights, from which on one row decides nothing and the
candidate's own share is small beside the noise of each: a z score of 4 lifts a row by .6 standard
deviations."""

_LIFTED: Final = 2.0
"""Standard deviations by which a share lifts its rows from which on Huber's weights are taken."""

_COUNTED: Final = 2
"""Draws of which all ways are counted: the tail's formula is for sums of more."""


def absent_tail(target: Target, fit: Fit) -> Callable[[Floats], Floats]:
    """Return the function that turns z scores into p-values of candidates outside the fit."""
    # The whole distribution has steps, the formula has the fit's leverage: the larger one holds.
    whole, smooth = null_tail(target, fit), null_tail(target, fit, most_values=0)
    # A row without false ones has no noise to draw from: what is set there is there.
    floor = least_p_value(target) if target.certain.any() else 0.0

    def p_values(z: Floats) -> Floats:
        either = np.maximum(whole.p_values(z), smooth.p_values(z))
        return np.maximum(either, floor)

    return p_values


def p_values_of(target: Target, fit: Fit, z: Floats, chosen: Integers) -> Floats:
    """Return one-sided p-values, (c,).

    Parameters
    ----------
    z : (c,) float64. Estimates in standard errors; 0 where the counts say nothing.
    chosen : (s,) int64. The selected candidates, in the order of the fit's columns.
    """
    p_values = absent_tail(target, fit)(z)
    if target.certain.any():
        return p_values
    columns = fit.basis[:, len(target.counts) :].tocsc()
    squares = columns.T @ fit.weight**2
    n_rows = (columns.T @ fit.weight) ** 2 / np.maximum(squares, np.finfo(float).tiny)
    few = np.flatnonzero(n_rows < _MANY_ROWS)
    if len(few):
        full = 1 / np.maximum(fit.noise + fit.tau2, LEAST_NOISE)
        clipped = huber(fit.residual * np.sqrt(full))[0] * full * fit.residual
        tests: dict[Psi, Draws] = {
            redescend: Draws(target, fit.weight * fit.residual),
            huber: Draws(target, clipped),
        }
        for column in few.tolist():
            ends = slice(*columns.indptr[column : column + 2])
            rows = columns.indices[ends].astype(np.int64)
            place = len(target.counts) + column
            p_values[chosen[column]] = _without(target, fit, tests, full, rows, place)
    return p_values


def _without(
    target: Target, fit: Fit, tests: Mapping[Psi, Draws], full: Floats, rows: Integers, place: int
) -> float:
    """Return the p-value of a selected candidate, its share put back on its rows, (r,).

    `tests` has the residuals to draw from under each psi, `full` is (n,), the weights of rows that
    nothing lifts, `place` that of the candidate among the fit's coefficients.
    """
    share, own = fit.coefficients[place], fit.weight[rows].sum()
    psi = redescend if share * np.sqrt(own / len(rows)) < _LIFTED else huber
    draws = tests[psi]
    lifted = fit.residual[rows] + share
    absent = fit.fitted.copy()
    absent[rows] -= share
    alone = 1 / np.maximum(target.noise(absent)[rows] + fit.tau2, LEAST_NOISE)
    weighted = psi(lifted * np.sqrt(alone))[0] * alone * lifted
    before = psi(fit.residual[rows] * np.sqrt(full[rows]))[0] * full[rows] * fit.residual[rows]
    lifts = (weighted - before) / draws.scale
    # What the other selected columns leave of this one's information, and of a row's weight.
    left = min(1 / max(fit.inverse[place, place] * own, 1.0), 1.0)
    usual = alone.sum() * fit.weight.sum() / full.sum()
    z = weighted.sum() * np.sqrt(left / usual) * tests[redescend].scale / draws.scale
    values = draws.values.copy()
    values[rows] += lifts
    floor = _floor(draws, values, rows)
    if draws.n_draws.sum() <= _COUNTED:
        # The residuals to draw from lack what all columns took of them; so must the score.
        if (score := values[rows].sum()) > z > 0:
            values[rows] *= z / score
        return max(_count(draws, values, min(score, z)), float(special.ndtr(-z)), floor)
    return max(float(draws.tail_with(rows, lifts).p_values(np.array([z]))[0]), floor)


def _count(draws: Draws, values: Floats, score: float) -> float:
    """Return the probability that one draw, or the sum of two, reaches the score: all ways."""
    pools = [
        values[draws.cohort == j] for j in np.repeat(np.arange(len(draws.n_draws)), draws.n_draws)
    ]
    if len(pools) == 1:
        return float((pools[0] >= score).mean())
    below = np.searchsorted(np.sort(pools[1]), score - pools[0])
    return float(1 - below.mean() / len(pools[1]))


def _floor(draws: Draws, values: Floats, rows: Integers) -> float:
    """Return the probability that every draw is as high as the candidate's own row there."""
    as_high = [
        float((values[draws.cohort == draws.cohort[row]] >= values[row]).mean()) for row in rows
    ]
    return float(np.prod(as_high))
