"""P-values of scores.

An absent candidate sets random bits: its score is a sum of residuals drawn at random from
each cohort. The residuals are at hand, so the distribution of that sum is known, whatever made
them: noise, rare strings, or heavy strings that are no candidates. Its tail is computed from
the exact cumulant generating function by the saddlepoint formula of Lugannani and Rice
(Advances in Applied Probability 1980), so that skewed residuals do not pass for strings.

With few cohorts, or few reports, the sum takes few values, which no smooth formula follows: with
one cohort of k bits no honest p-value is below 1/k. There the distribution is computed whole, by
adding up the cohorts on a fine grid, and a p-value includes all that lies within the grid's error
below the score. Where the residuals are larger than the model's noise, so is its scale.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from scipy import special

from rappor.counts.arrays import Floats, Integers
from rappor.estimator.debias import Target
from rappor.estimator.fit import Fit
from rappor.protocol.params import Params

TILTS: Final = np.concatenate([np.linspace(-4.0, -0.1, 14), np.linspace(0.1, 8.0, 41)])
"""Tilts at which the tail is computed; between their scores its logarithm is interpolated.
Three times as many find as much. There is none near 0, where the formula divides
zero by zero."""

MOST_VALUES: Final = 1024
"""Distinct residuals, added over the draws, up to which the distribution is computed whole: 8
cohorts of 128 bits, or all cohorts where reports are few. It takes 10 ms."""

_GRID: Final = 8192
"""Points of the grid: some 200 a standard deviation."""

_FAR: Final = 38.0
"""Normal score at which the tail is interpolated last: its probability is near the least number."""

_SPREAD: Final = 2.0
"""Standard deviations of the null distribution with lifted rows, in those without them, from which
on the tilts no longer fit it and its moments are added up anew."""

_DECIMALS: Final = 9
"""Residuals, in standard deviations of the sum, that agree to here are one value."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NullTail:
    """The upper tail of an absent candidate's standardised score.

    Attributes
    ----------
    scores : (t,) float64, increasing. Standardised scores at the tilts.
    log_tails : (t,) float64. Natural logarithm of P(score >= scores).
    exact : whether it is a step function of all values; otherwise it is interpolated.
    steepness : by how much the logarithm falls beyond the last score, in units of the last tilt.
    """

    scores: Floats
    log_tails: Floats
    exact: bool = False
    steepness: float = 1.0

    def quantile(self, p_value: float) -> float:
        """Return the score that has this p-value."""
        log_p = np.log(p_value)
        if self.exact:
            place = np.searchsorted(-self.log_tails, -log_p)
            return float(self.scores[min(place, len(self.scores) - 1)])
        beyond = max(self.log_tails[-1] - log_p, 0.0) / (TILTS[-1] * self.steepness)
        return float(np.interp(-log_p, -self.log_tails, self.scores) + beyond)

    def p_values(self, scores: Floats) -> Floats:
        """Return one-sided p-values, (c,); beyond the last tilt its exponential bound holds."""
        if self.exact:
            place = np.searchsorted(self.scores, scores, side="left")
            return np.exp(self.log_tails[np.minimum(place, len(self.scores) - 1)])
        log_p = np.interp(scores, self.scores, self.log_tails, left=0.0)
        beyond = scores > self.scores[-1]
        falling = TILTS[-1] * self.steepness
        log_p[beyond] = self.log_tails[-1] - falling * (scores[beyond] - self.scores[-1])
        return np.exp(log_p)


def normal_tail() -> NullTail:
    """Return the tail of a normal score."""
    scores = np.linspace(-_FAR, _FAR, 16 * int(_FAR) + 1)
    steepness = _FAR / TILTS[-1]
    return NullTail(scores=scores, log_tails=special.log_ndtr(-scores), steepness=steepness)


class Draws:
    """The residuals that an absent candidate draws from.

    Attributes
    ----------
    values : (n,) float64. Weighted residuals, centred in each cohort and scaled so that an
        absent candidate's whole score has variance one.
    cohort : (n,) int64. Cohort of each row, counted over all collections.
    n_bits, n_draws : (j,) int64. Bits of a cohort, and how many of them a candidate draws.
    scale : what `values` were divided by.
    """

    def __init__(self, target: Target, weighted: Floats) -> None:
        """Read the weighted residuals of a fit, (n,)."""
        m = [counts.params.m for counts in target.counts]
        self.n_bits = np.repeat([counts.params.k for counts in target.counts], m)
        self.n_draws = np.repeat([counts.params.h for counts in target.counts], m)
        self.cohort = np.repeat(np.arange(len(self.n_bits)), self.n_bits)
        values = self._centred(weighted)
        squares = np.bincount(self.cohort, values**2) / self.n_bits
        variance = float((self.n_draws * squares).sum())
        self.scale = np.sqrt(variance) if variance > 0 else 1.0
        self.values = values / self.scale

    @cached_property
    def moments(self) -> Floats:
        """Sums over each cohort of e^(t x), x e^(t x) and x^2 e^(t x) at every tilt, (3, j, t)."""
        return self._moments(self.values)

    def tail(self) -> NullTail:
        """Return the tail of the sum of all draws."""
        return self._tail(self.moments, 0.0)

    def tail_with(self, rows: Integers, lifts: Floats) -> NullTail:
        """Return the tail if the values of these rows, (r,), were higher by `lifts`, (r,)."""
        cohort = self.cohort[rows]
        spread = float(np.sqrt(1 + (self.n_draws / self.n_bits)[cohort] @ lifts**2))
        if spread > _SPREAD:
            values = self.values.copy()
            values[rows] += lifts
            tail = self._tail(self._moments(self._centred(values) / spread), 0.0)
            return replace(tail, scores=tail.scores * spread, steepness=1 / spread)
        moments = self.moments.copy()
        for values, sign in ((self.values[rows], -1), (self.values[rows] + lifts, 1)):
            powers = sign * np.exp(np.outer(values, TILTS))
            for order in range(3):
                np.add.at(moments[order], cohort, powers)
                powers = powers * values[:, None]
        mean = np.bincount(cohort, lifts, minlength=len(self.n_bits)) / self.n_bits
        return self._tail(moments, float(self.n_draws @ mean))

    def _centred(self, values: Floats) -> Floats:
        return np.asarray(values - (np.bincount(self.cohort, values) / self.n_bits)[self.cohort])

    def _moments(self, values: Floats) -> Floats:
        starts = np.concatenate([[0], np.cumsum(self.n_bits)[:-1]])
        moments = np.empty((3, len(starts), len(TILTS)))
        for t, tilt in enumerate(TILTS):
            powers = np.exp(tilt * values)
            for order in range(3):
                moments[order, :, t] = np.add.reduceat(powers, starts)
                powers *= values
        return moments

    def _tail(self, moments: Floats, drawn: float) -> NullTail:
        """Return the tail from the moments, (3, j, t), less what is drawn in the mean."""
        mass, first, second = moments
        # Cohorts are independent, so their cumulant generating functions and derivatives add.
        means = first / mass
        spread = np.maximum(second / mass - means**2, 0.0)
        cumulants = self.n_draws @ np.log(mass / self.n_bits[:, None]) - drawn * TILTS
        return lugannani_rice(self.n_draws @ means - drawn, self.n_draws @ spread, cumulants)


def null_tail(target: Target, fit: Fit, *, most_values: int = MOST_VALUES) -> NullTail:
    """Compute the tail from the residuals of a fit, cohort by cohort.

    Up to `most_values` distinct residuals the distribution is computed whole.
    """
    draws = Draws(target, fit.weight * fit.residual)
    if most_values:
        pools = map(_distinct, np.split(draws.values, np.cumsum(draws.n_bits)[:-1]))
        every = [pool for pool, n in zip(pools, draws.n_draws, strict=True) for _ in range(n)]
        several = [pool for pool in every if len(pool[0]) > 1]
        if sum(len(values) for values, _ in several) <= most_values:
            # Residuals that a fit has nearly used up are no smaller noise than the model's.
            return _whole_tail(several, max(draws.scale / _information(target, fit) ** 0.5, 1.0))
    return draws.tail()


def lugannani_rice(scores: Floats, variances: Floats, cumulants: Floats) -> NullTail:
    """Return the tail of a sum from its cumulant generating function at the tilts.

    Parameters
    ----------
    scores, variances, cumulants : (t,) float64. Its first and second derivative, and itself.
    """
    signed = np.sign(TILTS) * np.sqrt(np.maximum(2 * (TILTS * scores - cumulants), 0.0))
    steep = TILTS * np.sqrt(variances)
    # Without any residual spread nothing in the formula is finite.
    with np.errstate(divide="ignore", invalid="ignore"):
        density = np.exp(-(signed**2) / 2) / np.sqrt(2 * np.pi)
        tails = special.ndtr(-signed) + density * (1 / steep - 1 / signed)
    usable = np.isfinite(tails) & (tails > 0)
    scores, log_tails = scores[usable], np.log(np.minimum(tails[usable], 1.0))
    # Near the largest sum that the residuals can have, the formula may rise: keep it falling.
    log_tails = np.minimum.accumulate(log_tails)
    scores = np.maximum.accumulate(scores)
    if len(scores) < 2:  # no residual spread at all: every p-value is 1
        return NullTail(scores=np.array([0.0, 1.0]), log_tails=np.zeros(2))
    return NullTail(scores=scores, log_tails=log_tails)


def _information(target: Target, fit: Fit) -> float:
    """Return the information of an absent candidate, its own less what the background takes."""
    own = sum(
        counts.params.h / counts.params.k * float(fit.weight[target.group == group].sum())
        for group, counts in enumerate(target.counts)
    )
    left = own * (1 - own / max(float(fit.weight.sum()), np.finfo(float).tiny))
    return max(left, np.finfo(float).tiny)


def _distinct(residuals: Floats) -> tuple[Floats, Floats]:
    """Return the distinct residuals of one cohort and their probabilities."""
    values, counts = np.unique(np.round(residuals, _DECIMALS), return_counts=True)
    return values, counts / len(residuals)


def _whole_tail(draws: list[tuple[Floats, Floats]], scale: float) -> NullTail:
    """Add up draws, each of values and probabilities, on a grid; `scale` makes scores of sums."""
    width = sum(float(v[-1] - v[0]) for v, _ in draws)
    if not width > 0:  # no residual spread at all: every p-value is 1
        return NullTail(scores=np.array([0.0]), log_tails=np.zeros(1), exact=True)
    step = width / (_GRID - len(draws) - 1)
    mass = np.array([1.0])
    for v, p in draws:
        places = np.rint((v - v[0]) / step).astype(np.int64)
        added = np.zeros(len(mass) + int(places[-1]))
        for place, probability in zip(places.tolist(), p.tolist(), strict=True):
            added[place : place + len(mass)] += probability * mass
        mass = added
    lowest = sum(float(v[0]) for v, _ in draws)
    # Rounding to the grid moves a sum by at most half a step a draw, and rarely by more than four
    # standard deviations of that.
    margin = step / 2 * min(len(draws), 4 * len(draws) ** 0.5) + 10.0**-_DECIMALS * len(draws)
    tails = np.minimum(np.cumsum(mass[::-1])[::-1], 1.0)
    there = mass > 0
    scores = (lowest + step * np.flatnonzero(there) + margin) * scale
    return NullTail(scores=scores, log_tails=np.log(tails[there]), exact=True)


def ones_variance(params: Params, devices: float) -> float:
    """Return the variance of the ones on one bit of each cohort, of devices that do not set it."""
    return devices * params.p_star * (1 - params.p_star)
