"""Tails of a number of ones: binomial, and over the permanent ones of devices that report again.

Theory of operation
-------------------
Of n devices K have a permanent 1, Binomial(n, pi), and every report of theirs begins with it. Where
few are expected, or few permanent zeros, one more of them adds a device's ones, and no binomial
count has such a tail. Given K, the ones come from fresh coins only. Their number is taken for a
moved binomial one, s + u Binomial(n', p'), of the same mean, variance and third moment: it is one
where all coins are alike. Its tail is averaged over K.

Terms are smooth in K at the scale c = a b / sqrt(a^2 + b^2), a being the standard deviation of K
and b the number of permanent ones that the coins' standard deviation is worth. A step of c / 1.5
leaves an error below 1e-6 of the tail, and as many terms for every n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import special

from rappor.counts.arrays import Floats

LEAST: Final = 1e-30
"""Distance from a certain outcome at which a count is taken for random."""

_REACH: Final = 8
"""Standard deviations of K on both sides of its mean that are summed."""

_MORE: Final = 20
"""Permanent ones that are summed beyond, where few are expected: more have probability 1e-20."""

_SURE: Final = 300.0
"""Squared distance from the mean, in variances or ones, beyond which a tail is 0 or 1."""

_LEFT_OUT: Final = 1e-15
"""Probability that a sum may leave out: no tail that is a sum is called smaller."""

_CERTAIN: Final = 1e-12
"""Distance from 0 and 1 of a coin that falls one way only."""

_STEP: Final = 1.5
"""Terms within the scale of a term."""


def upper_tail(ones: Floats, n: Floats, mean: Floats) -> Floats:
    """Return P(X >= ones) of Binomial(n, mean), elementwise; neither number need be whole."""
    rest = np.maximum(n - ones + 1, LEAST)
    tail = special.betainc(np.maximum(ones, LEAST), rest, mean)
    return np.asarray(np.where(ones > 0, tail, 1.0))


def lower_tail(ones: Floats, n: Floats, mean: Floats) -> Floats:
    """Return P(X <= ones) of Binomial(n, mean), elementwise; neither number need be whole."""
    more = np.maximum(ones + 1, LEAST)
    tail = special.betaincc(more, np.maximum(n - ones, LEAST), mean)
    return np.asarray(np.where(ones < n, tail, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mixture:
    """The sum of weighted ones at k bits, given how many permanent bits are one.

    Attributes
    ----------
    devices, level : (k,) float64. n, a whole number, and pi.
    moments : (4, k) float64. Mean and variance of the sum given that K is its mean, and the sums
        over coins of w^3 v and w^3 v p: w is the weight, v the variance, p the probability.
    changes : (4, k) float64. What one permanent one more adds to each.
    """

    devices: Floats
    level: Floats
    moments: Floats
    changes: Floats

    def tail(self, ones: Floats, *, upper: bool) -> Floats:
        """Return the probability, (k,), of this sum or more, or of this sum or less."""
        permanent = self._grid()
        n, level = self.devices[:, None], self.level[:, None]
        rest = np.maximum(n - permanent, 0)
        log = special.xlogy(permanent, level) + special.xlog1py(rest, -level)
        log -= special.gammaln(permanent + 1) + special.gammaln(rest + 1)
        weight = np.where(permanent <= n, np.exp(log - log.max(axis=1, keepdims=True)), 0.0)
        off = permanent - n * level
        given = self.moments[..., None] + self.changes[..., None] * off
        variance, cubes = np.maximum(given[1:3], LEAST)
        unit, p = cubes / variance, np.clip(given[3] / cubes, _CERTAIN, 1 - _CERTAIN)
        trials = variance / (unit**2 * p * (1 - p))
        over = (ones[:, None] - given[0]) / unit
        tails = np.where(over < 0, 1.0, 0.0) if upper else np.where(over > 0, 1.0, 0.0)
        near = (permanent.shape[1] == 1) | (over**2 < np.maximum(_SURE, _SURE * variance / unit**2))
        some = (over + trials * p)[near], trials[near], p[near]
        tails[near] = (upper_tail if upper else lower_tail)(*some)
        tail = (weight * tails).sum(axis=1) / weight.sum(axis=1)
        return np.asarray(tail if permanent.shape[1] == 1 else np.maximum(tail, _LEFT_OUT))

    def _grid(self) -> Floats:
        """Return the numbers K of permanent ones that are summed, (k, t)."""
        mean = self.devices * self.level
        deviation = np.sqrt(mean * (1 - self.level))
        coins = np.sqrt(self.moments[1]) / np.maximum(self.changes[0], LEAST)
        scale = deviation * coins / np.maximum(np.hypot(deviation, coins), LEAST)
        step = np.maximum(1.0, np.floor(scale / _STEP))
        low = np.maximum(0.0, np.floor(mean - _REACH * deviation))
        more = np.where(deviation > 0, _MORE, 0)
        high = np.minimum(self.devices, np.ceil(mean + _REACH * deviation) + more)
        steps = np.arange(int(((high - low) / step).max()) + 1)
        return np.asarray(low[:, None] + step[:, None] * steps)


def mixed(moments: Floats, changes: Floats, devices: Floats, level: Floats) -> Mixture:
    """Return the mixture of g collections: their sum is taken for one of the same moments.

    Parameters
    ----------
    moments : (4, k) float64. Of the whole sum, as in `Mixture`.
    changes : (4, g, k) float64. What one permanent one more adds to each collection's.
    devices, level : (g, 1) and (g, k) float64. n and pi of each.
    """
    spread = changes[0] * devices * level * (1 - level)
    variance, every = (changes[0] * spread).sum(axis=0), (changes[0] * devices).sum(axis=0)
    some = variance > 0
    mean = np.where(some, (changes[0] * devices * level).sum(axis=0) / np.where(some, every, 1), 0)
    one = mean * (1 - mean)
    n = np.maximum(1.0, np.round(every**2 * one / np.where(some, variance, 1.0)))
    size = np.sqrt(variance / np.where(some, n * one, 1.0))
    shares = size * spread / np.where(some, variance, 1.0)
    return Mixture(devices=n, level=mean, moments=moments, changes=(changes * shares).sum(axis=1))
