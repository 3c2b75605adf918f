"""Tail probabilities of a number of ones, also for devices that report again.

`proportion_tests.py` computes exact tests and intervals of categories from these tails.

Theory of operation
-------------------
| symbol | meaning |
|---|---|
| n | number of devices |
| pi | probability that a device has a permanent 1 at the bit |
| K | number of devices with a permanent 1, K ~ Binomial(n, pi) |
| s, u, n', p' | shift, unit, number and probability of the approximating binomial count |
| a | standard deviation of K |
| b | number of permanent ones that change the sum by one standard deviation of the coins |
| c | a b / sqrt(a^2 + b^2), the scale of K at which the terms change |

Of n devices, K have a permanent 1. A device starts every report from its permanent response. If few
permanent ones or few permanent zeros are expected, one more adds all ones of a device, and no
binomial count has such a tail. Conditional on K, the ones come from the coins of the instantaneous
responses only. Their number is approximated by a shifted binomial count, s + u Binomial(n', p'), of
the same mean, variance and third moment. The approximation is exact if all coins are equal. The
tail is averaged over K.

The terms are smooth functions of K at the scale c. A step of c / 1.5 leaves an error below 1e-6 of
the tail (measured), and the number of terms does not depend on n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import special

from rappor.counts.arrays import Floats

LEAST: Final = 1e-30
"""Smallest positive variance, probability or number of ones. It replaces 0 as a divisor."""

_REACH: Final = 8
"""Standard deviations of K on both sides of its mean over which the sum extends. A normal
distribution has a probability of 1e-15 beyond."""

_MORE: Final = 20
"""Number of further permanent ones in the sum, for small expected numbers. More have probability
1e-20."""

_SURE: Final = 300.0
"""Squared distance from the mean, in variances or in ones, beyond which a tail counts as 0 or 1. At
17 standard deviations the tail is below 1e-60."""

_LEFT_OUT: Final = 1e-15
"""Probability that a sum may omit. A tail that is a sum is therefore at least this number."""

_CERTAIN: Final = 1e-12
"""Smallest distance of a coin's probability from 0 and 1, so that no division by zero occurs."""

_STEP: Final = 1.5
"""Number of terms within the scale c. More terms cost time and change no tail by 1e-6 of itself."""


def upper_tail(ones: Floats, n: Floats, mean: Floats) -> Floats:
    """Compute P(X >= ones) of Binomial(n, mean), elementwise.

    `ones` and `n` need not be integers: the incomplete beta function interpolates.

    Parameters
    ----------
    ones, n, mean : float64 of equal shape. Number of ones, number of trials, probability of a one.

    Examples
    --------
    >>> float(upper_tail(np.array(2.0), np.array(2.0), np.array(0.5)))
    0.25
    """
    rest = np.maximum(n - ones + 1, LEAST)
    tail = special.betainc(np.maximum(ones, LEAST), rest, mean)
    return np.asarray(np.where(ones > 0, tail, 1.0))


def lower_tail(ones: Floats, n: Floats, mean: Floats) -> Floats:
    """Compute P(X <= ones) of Binomial(n, mean), elementwise, as `upper_tail` does.

    Examples
    --------
    >>> float(lower_tail(np.array(0.0), np.array(2.0), np.array(0.5)))
    0.25
    """
    more = np.maximum(ones + 1, LEAST)
    tail = special.betaincc(more, np.maximum(n - ones, LEAST), mean)
    return np.asarray(np.where(ones < n, tail, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mixture:
    """Distribution of the weighted number of ones at each of k bits, as a mixture over K.

    Attributes
    ----------
    devices : (k,) float64. n, a whole number of devices.
    level : (k,) float64. pi, the probability of a permanent 1.
    moments : (4, k) float64. Moments of the sum if K equals its mean: the mean, the variance, and
        the sums over coins of w^3 v and w^3 v p, with w the weight, v the variance and p the
        probability of a coin.
    changes : (4, k) float64. Change of each moment for one more permanent one.
    """

    devices: Floats
    level: Floats
    moments: Floats
    changes: Floats

    def tail(self, ones: Floats, *, upper: bool) -> Floats:
        """Compute the probability of at least this sum, or of at most this sum.

        Parameters
        ----------
        ones : (k,) float64. The weighted numbers of ones.
        upper : True for at least, False for at most.

        Returns
        -------
        (k,) float64.
        """
        permanent = self._grid()
        n, level = self.devices[:, None], self.level[:, None]
        zeros = np.maximum(n - permanent, 0)
        log = special.xlogy(permanent, level) + special.xlog1py(zeros, -level)
        log -= special.gammaln(permanent + 1) + special.gammaln(zeros + 1)
        weight = np.where(permanent <= n, np.exp(log - log.max(axis=1, keepdims=True)), 0.0)
        deviation = permanent - n * level
        conditional = self.moments[..., None] + self.changes[..., None] * deviation
        variance, cubes = np.maximum(conditional[1:3], LEAST)
        unit, p = cubes / variance, np.clip(conditional[3] / cubes, _CERTAIN, 1 - _CERTAIN)
        trials = variance / (unit**2 * p * (1 - p))
        over = (ones[:, None] - conditional[0]) / unit
        tails = np.where(over < 0, 1.0, 0.0) if upper else np.where(over > 0, 1.0, 0.0)
        # Far from the mean the tail is 0 or 1, and the incomplete beta function would only cost
        # time.
        is_uncertain = (permanent.shape[1] == 1) | (
            over**2 < np.maximum(_SURE, _SURE * variance / unit**2)
        )
        arguments = (over + trials * p)[is_uncertain], trials[is_uncertain], p[is_uncertain]
        tails[is_uncertain] = (upper_tail if upper else lower_tail)(*arguments)
        tail = (weight * tails).sum(axis=1) / weight.sum(axis=1)
        return np.asarray(tail if permanent.shape[1] == 1 else np.maximum(tail, _LEFT_OUT))

    def _grid(self) -> Floats:
        """Return the numbers K of permanent ones over which the tail is averaged, (k, terms)."""
        mean = self.devices * self.level
        deviation = np.sqrt(mean * (1 - self.level))
        coins = np.sqrt(self.moments[1]) / np.maximum(self.changes[0], LEAST)
        scale = deviation * coins / np.maximum(np.hypot(deviation, coins), LEAST)
        step = np.maximum(1.0, np.floor(scale / _STEP))
        low = np.maximum(0.0, np.floor(mean - _REACH * deviation))
        added = np.where(deviation > 0, _MORE, 0)
        high = np.minimum(self.devices, np.ceil(mean + _REACH * deviation) + added)
        steps = np.arange(int(((high - low) / step).max()) + 1)
        return np.asarray(low[:, None] + step[:, None] * steps)


def match_moments(moments: Floats, changes: Floats, devices: Floats, level: Floats) -> Mixture:
    """Compute the mixture of the sum over g collections.

    The exact sum has a binomial number of permanent ones in each collection. The mixture has one
    binomial number with the mean and the variance of their weighted sum.

    Parameters
    ----------
    moments : (4, k) float64. Moments of the complete sum, as in `Mixture`.
    changes : (4, g, k) float64. Change of the moments of each collection for one more permanent
        one.
    devices, level : (g, 1) and (g, k) float64. n and pi of each collection.
    """
    spread = changes[0] * devices * level * (1 - level)
    variance, total = (changes[0] * spread).sum(axis=0), (changes[0] * devices).sum(axis=0)
    # If every device reports once, no permanent one is repeated, and the mixture is a plain
    # binomial count.
    is_random = variance > 0
    mean = np.where(
        is_random, (changes[0] * devices * level).sum(axis=0) / np.where(is_random, total, 1), 0
    )
    bernoulli_variance = mean * (1 - mean)
    n = np.maximum(
        1.0, np.round(total**2 * bernoulli_variance / np.where(is_random, variance, 1.0))
    )
    size = np.sqrt(variance / np.where(is_random, n * bernoulli_variance, 1.0))
    shares = size * spread / np.where(is_random, variance, 1.0)
    return Mixture(devices=n, level=mean, moments=moments, changes=(changes * shares).sum(axis=1))
