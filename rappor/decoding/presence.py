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

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from rappor.decoding.debias import Target
from rappor.decoding.diagnostics import least_p_value
from rappor.decoding.fit import LEAST_NOISE, Fit, huber, redescend
from rappor.decoding.significance import TILTS, NullTail, lugannani_rice, null_tail

Psi = Callable[[NDArray[np.float64]], tuple[NDArray[np.float64], NDArray[np.float64]]]

_MANY_ROWS: Final = 50.0
"""Rows of a candidate, counted by their weights, from which on one row decides nothing and the
candidate's own share is small beside the noise of each: a z score of 4 lifts a row by .6 standard
deviations."""

_LIFTED: Final = 2.0
"""Standard deviations by which a share lifts its rows from which on Huber's weights are taken."""

_SPREAD: Final = 2.0
"""Standard deviations of the null distribution with the lifted rows, in those without them, from
which on the tilts no longer fit it and its moments are added up anew."""

_COUNTED: Final = 2
"""Draws of which all ways are counted: the tail's formula is for sums of more."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draws:
    """The residuals that an absent candidate draws from, and their moments at every tilt.

    Attributes
    ----------
    values : (n,) float64. Weighted residuals, centred in each cohort and scaled so that an
        absent candidate's whole score has variance one.
    cohort : (n,) int64. Cohort of each row, counted over all collections.
    n_bits, n_draws : (j,) int64. Bits of a cohort, and how many of them a candidate draws.
    mass, first, second : (j, t) float64. Sums of e^(t x), x e^(t x) and x^2 e^(t x).
    scale : what `values` were divided by.
    """

    values: NDArray[np.float64]
    cohort: NDArray[np.int64]
    n_bits: NDArray[np.int64]
    n_draws: NDArray[np.int64]
    mass: NDArray[np.float64]
    first: NDArray[np.float64]
    second: NDArray[np.float64]
    scale: float

    @classmethod
    def of(cls, target: Target, weighted: NDArray[np.float64]) -> Draws:
        """Read the weighted residuals of a fit, (n,)."""
        m = [counts.params.m for counts in target.counts]
        n_bits = np.repeat([counts.params.k for counts in target.counts], m)
        n_draws = np.repeat([counts.params.h for counts in target.counts], m)
        cohort = np.repeat(np.arange(len(n_bits)), n_bits)
        values = weighted - (np.bincount(cohort, weighted) / n_bits)[cohort]
        variance = float((n_draws * np.bincount(cohort, values**2) / n_bits).sum())
        scale = np.sqrt(variance) if variance > 0 else 1.0
        values = values / scale
        mass, first, second = _moments(values, n_bits)
        return cls(
            values=values,
            cohort=cohort,
            n_bits=n_bits,
            n_draws=n_draws,
            mass=mass,
            first=first,
            second=second,
            scale=scale,
        )

    def tail_with(self, rows: NDArray[np.int64], lifts: NDArray[np.float64]) -> NullTail:
        """Return the tail if the values of these rows, (r,), were higher by `lifts`, (r,)."""
        cohort = self.cohort[rows]
        spread = math.sqrt(1 + float((self.n_draws / self.n_bits)[cohort] @ lifts**2))
        if spread > _SPREAD:
            return self._lifted(rows, lifts, spread)
        moments = np.zeros((3, *self.mass.shape))
        for values, sign in ((self.values[rows], -1), (self.values[rows] + lifts, 1)):
            powers = sign * np.exp(np.outer(values, TILTS))
            for order in range(3):
                np.add.at(moments[order], cohort, powers)
                powers = powers * values[:, None]
        mean = np.bincount(cohort, lifts, minlength=len(self.n_bits)) / self.n_bits
        drawn = float(self.n_draws @ mean)
        return self._tail(np.stack([self.mass, self.first, self.second]) + moments, drawn)

    def _lifted(
        self, rows: NDArray[np.int64], lifts: NDArray[np.float64], spread: float
    ) -> NullTail:
        """Return the same where the lifts make most of the variance: in units of this spread."""
        values = self.values.copy()
        values[rows] += lifts
        values -= (np.bincount(self.cohort, values) / self.n_bits)[self.cohort]
        tail = self._tail(_moments(values / spread, self.n_bits), 0.0)
        return NullTail(scores=tail.scores * spread, log_tails=tail.log_tails, steepness=1 / spread)

    def _tail(self, moments: NDArray[np.float64], drawn: float) -> NullTail:
        """Return the tail from the moments, (3, j, t), less what is drawn in the mean."""
        mass, first, second = moments
        # Cohorts are independent, so their cumulant generating functions and derivatives add.
        means = first / mass
        spread = np.maximum(second / mass - means**2, 0.0)
        cumulants = self.n_draws @ np.log(mass / self.n_bits[:, None]) - drawn * TILTS
        scores = self.n_draws @ means - drawn
        return lugannani_rice(scores, self.n_draws @ spread, cumulants)


def _moments(values: NDArray[np.float64], n_bits: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the sums over each cohort of e^(t x), x e^(t x) and x^2 e^(t x), (3, j, t)."""
    starts = np.concatenate([[0], np.cumsum(n_bits)[:-1]])
    moments = np.empty((3, len(n_bits), len(TILTS)))
    for t, tilt in enumerate(TILTS):
        powers = np.exp(tilt * values)
        for order in range(3):
            moments[order, :, t] = np.add.reduceat(powers, starts)
            powers = powers * values
    return moments


def absent_tail(target: Target, fit: Fit) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """Return the function that turns z scores into p-values of candidates outside the fit."""
    # The whole distribution has steps, the formula has the fit's leverage: the larger one holds.
    whole, smooth = null_tail(target, fit), null_tail(target, fit, most_values=0)
    # A row without false ones has no noise to draw from: what is set there is there.
    floor = least_p_value(target) if target.certain.any() else 0.0

    def p_values(z: NDArray[np.float64]) -> NDArray[np.float64]:
        either = np.maximum(whole.p_values(z), smooth.p_values(z))
        return np.maximum(either, floor)

    return p_values


def p_values_of(
    target: Target, fit: Fit, z: NDArray[np.float64], chosen: NDArray[np.int64]
) -> NDArray[np.float64]:
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
            redescend: Draws.of(target, fit.weight * fit.residual),
            huber: Draws.of(target, clipped),
        }
        for column in few.tolist():
            ends = slice(*columns.indptr[column : column + 2])
            rows = columns.indices[ends].astype(np.int64)
            place = len(target.counts) + column
            p_values[chosen[column]] = _without(target, fit, tests, full, rows, place)
    return p_values


def _without(
    target: Target,
    fit: Fit,
    tests: Mapping[Psi, Draws],
    full: NDArray[np.float64],
    rows: NDArray[np.int64],
    place: int,
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


def _count(draws: Draws, values: NDArray[np.float64], score: float) -> float:
    """Return the probability that one draw, or the sum of two, reaches the score: all ways."""
    pools = [
        values[draws.cohort == j] for j in np.repeat(np.arange(len(draws.n_draws)), draws.n_draws)
    ]
    if len(pools) == 1:
        return float((pools[0] >= score).mean())
    below = np.searchsorted(np.sort(pools[1]), score - pools[0])
    return float(1 - below.mean() / len(pools[1]))


def _floor(draws: Draws, values: NDArray[np.float64], rows: NDArray[np.int64]) -> float:
    """Return the probability that every draw is as high as the candidate's own row there."""
    as_high = [
        float((values[draws.cohort == draws.cohort[row]] >= values[row]).mean()) for row in rows
    ]
    return float(np.prod(as_high))
