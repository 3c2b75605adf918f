"""Tail probabilities of a number of ones, also for devices that report again.

`proportion_tests.py` computes exact tests and intervals of categories from these tails. If every
device reports once, it needs the tail of a binomial count only (`upper_tail`, `lower_tail`). If
devices report again, it builds a `Mixture` with `match_moments`, and calls `Mixture.compute_tail`.

Theory of operation
-------------------
The quantity is the *sum*: the number of ones at a bit, or a weighted sum of such numbers over
several collections. A *coin* is one random 0 or 1 of an instantaneous response, counted with a
weight.

| symbol | meaning |
|---|---|
| n | number of devices |
| pi | probability that a device has a permanent 1 at the bit |
| K | number of devices with a permanent 1, K ~ Binomial(n, pi) |
| w, p, v | weight of a coin, its probability of a 1, its variance p (1 - p) |
| s, u, n', p' | shift, unit, number and probability of the approximating binomial count |
| a | standard deviation of K |
| b | change of K that changes the mean of the sum by one standard deviation of the coins |
| c | a b / sqrt(a^2 + b^2), the scale of K at which the terms change |

Of n devices, K have a permanent 1. All reports of a device start from its permanent response. One
more device with a permanent 1 therefore adds ones in most of its reports, and the sum is no
binomial count.

*Conditional on K*, the ones come from the coins only. The sum is approximated by a shifted binomial
count, s + u Binomial(n', p'), with the same mean, variance and third moment. With sums over all
coins, these are

    u = sum of w^3 v / sum of w^2 v
    p' = sum of w^3 v p / sum of w^3 v
    n' = sum of w^2 v / (u^2 p' (1 - p'))
    s = mean - u n' p'

Proof: the shifted binomial count has the variance u^2 n' p' (1 - p'), which is the sum of w^2 v by
the third line. Its third central moment is the variance times u (1 - 2 p'), which is the sum of w^3
v (1 - 2 p) by the first two lines. A coin contributes exactly w^2 v and w^3 v (1 - 2 p). s corrects
the mean. The approximation is exact if all coins are equal.

*The tail* is the mean of the conditional tails over K, weighted by the probabilities of K. The
terms are smooth functions of K. A term is a product: the probability of K changes at the scale a,
its standard deviation, and the conditional tail changes at the scale b. Their product changes at
the scale c, which is the width of the product of two normal curves of the widths a and b. So the
sum does not need every K. A step of c / 1.5 leaves an error below 1e-6 of the tail (measured), and
the number of terms does not depend on n.

*Example.* 10 devices send 5 reports each, with p = 0, q = 1 and pi = .1: a device repeats its
permanent bit. The number of ones is 5 K. The probability of at least 10 ones is P(K >= 2) = .26. A
binomial count of 50 reports would have P(Binomial(50, .1) >= 10) = .025.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import special

from rappor.counts.arrays import Floats

LEAST: Final = 1e-30
"""Number that replaces 0 where 0 is not allowed: as a divisor, and as a parameter of the incomplete
beta function. It is so small that it changes no result."""

_MOST_DEVIATIONS: Final = 8
"""Standard deviations of K on both sides of its mean over which the mean of the tails extends. A
normal distribution has a probability of 1e-15 beyond."""

_FURTHER_ONES: Final = 20
"""Number of further values of K above these standard deviations. They matter if the expected number
of permanent ones is small, and K is not normal. Still larger values have a probability of 1e-20."""

_CERTAIN_DISTANCE: Final = 300.0
"""Squared distance of the tested sum from the conditional mean, beyond which a conditional tail
counts as 0 or 1. The distance is measured in conditional standard deviations. If the unit u of the
binomial count is larger than the standard deviation, the distance is measured in u. At 17 standard
deviations the tail is below 1e-60. A smaller limit would change tails, a larger one takes time."""

_OMITTED_PROBABILITY: Final = 1e-15
"""Probability of the omitted values of K. A tail that is a mean over several K is therefore at
least this number."""

_LEAST_PROBABILITY: Final = 1e-12
"""Smallest distance of a coin's probability from 0 and 1, so that no division by zero occurs."""

_TERMS_PER_SCALE: Final = 1.5
"""Number of terms within the scale c. A larger number of terms takes more time, and does not change
any tail by more than 1e-6 of itself."""


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
    second_shape = np.maximum(n - ones + 1, LEAST)
    tail = special.betainc(np.maximum(ones, LEAST), second_shape, mean)
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
    """Distribution of the sum at each of k bits, as a mixture over K.

    Attributes
    ----------
    devices : (k,) float64. n, a whole number of devices.
    level : (k,) float64. pi, the probability of a permanent 1.
    moments : (4, k) float64. Four sums over all coins if K equals its mean: w p (the mean of the
        sum), w^2 v (its variance), w^3 v, and w^3 v p.
    changes : (4, k) float64. Change of each moment for one more permanent one.
    """

    devices: Floats
    level: Floats
    moments: Floats
    changes: Floats

    def compute_tail(self, ones: Floats, *, upper: bool) -> Floats:
        """Compute the probability of at least this sum, or of at most this sum.

        Parameters
        ----------
        ones : (k,) float64. The weighted numbers of ones.
        upper : True for at least, False for at most.

        Returns
        -------
        (k,) float64.
        """
        # Without repeated reports, there are no permanent ones: K is 0 with certainty. Most
        # intervals are of this case, and each computes dozens of tails.
        if not self.level.any():
            return self._compute_conditional_tails(
                np.zeros((len(self.level), 1)), ones, upper=upper
            )[:, 0]
        # K of each term, (k, terms).
        permanent_ones = self._build_grid()
        n, level = self.devices[:, None], self.level[:, None]
        # Weights: the probabilities of K, divided by the largest of them.
        permanent_zeros = np.maximum(n - permanent_ones, 0)
        log = special.xlogy(permanent_ones, level) + special.xlog1py(permanent_zeros, -level)
        log -= special.gammaln(permanent_ones + 1) + special.gammaln(permanent_zeros + 1)
        weight = np.where(permanent_ones <= n, np.exp(log - log.max(axis=1, keepdims=True)), 0.0)
        tails = self._compute_conditional_tails(permanent_ones, ones, upper=upper)
        tail = (weight * tails).sum(axis=1) / weight.sum(axis=1)
        is_single = permanent_ones.shape[1] == 1
        return np.asarray(tail if is_single else np.maximum(tail, _OMITTED_PROBABILITY))

    def _compute_conditional_tails(
        self, permanent_ones: Floats, ones: Floats, *, upper: bool
    ) -> Floats:
        """Compute the tails conditional on the number K of permanent ones.

        Parameters
        ----------
        permanent_ones : (k, terms) float64. K. All arrays below have this shape.
        ones, upper : as in `compute_tail`.

        Returns
        -------
        (k, terms) float64.
        """
        # The moments conditional on K, and from them u, p' and n' of the module docstring.
        deviation = permanent_ones - (self.devices * self.level)[:, None]
        conditional = self.moments[..., None] + self.changes[..., None] * deviation
        variance, cubes = np.maximum(conditional[1:3], LEAST)
        unit = cubes / variance
        p = np.clip(conditional[3] / cubes, _LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY)
        trials = variance / (unit**2 * p * (1 - p))
        # Distance of the tested sum from the conditional mean, in units u.
        excess = (ones[:, None] - conditional[0]) / unit
        tails = np.where(excess < 0, 1.0, 0.0) if upper else np.where(excess > 0, 1.0, 0.0)
        # Far from the mean the tail is 0 or 1, and the incomplete beta function would only cost
        # time. A single term is always computed, because its tail may be a small p-value.
        is_single = permanent_ones.shape[1] == 1
        is_uncertain = is_single | (
            excess**2 < np.maximum(_CERTAIN_DISTANCE, _CERTAIN_DISTANCE * variance / unit**2)
        )
        # (sum - s) / u = excess + n' p'.
        arguments = (excess + trials * p)[is_uncertain], trials[is_uncertain], p[is_uncertain]
        tails[is_uncertain] = (upper_tail if upper else lower_tail)(*arguments)
        return tails

    def _build_grid(self) -> Floats:
        """Compute the numbers K of permanent ones over which the tail is averaged, (k, terms).

        Numbers above n have the weight 0.
        """
        mean = self.devices * self.level
        # `deviation`, `coin_scale` and `scale` are a, b and c of the module docstring.
        deviation = np.sqrt(mean * (1 - self.level))
        coin_scale = np.sqrt(self.moments[1]) / np.maximum(self.changes[0], LEAST)
        scale = deviation * coin_scale / np.maximum(np.hypot(deviation, coin_scale), LEAST)
        step = np.maximum(1.0, np.floor(scale / _TERMS_PER_SCALE))
        low = np.maximum(0.0, np.floor(mean - _MOST_DEVIATIONS * deviation))
        # If every device reports once, `match_moments` sets `level` to 0. Then K is 0 with
        # certainty, `low` and `high` are 0, and there is a single term.
        added = np.where(deviation > 0, _FURTHER_ONES, 0)
        high = np.minimum(self.devices, np.ceil(mean + _MOST_DEVIATIONS * deviation) + added)
        steps = np.arange(int(((high - low) / step).max()) + 1)
        return np.asarray(low[:, None] + step[:, None] * steps)


def build_coin_sum(moments: Floats) -> Mixture:
    """Build the distribution of a sum of coins without permanent ones, from its moments, (4, k)."""
    zeros = np.zeros(moments.shape[1])
    return Mixture(
        devices=np.ones_like(zeros), level=zeros, moments=moments, changes=np.zeros_like(moments)
    )


def match_moments(moments: Floats, changes: Floats, devices: Floats, level: Floats) -> Mixture:
    """Compute the mixture of the sum over g collections.

    The exact sum has a binomial number K_g of permanent ones in each collection, which adds
    C = sum over g of x_g K_g to the sum, with x_g = `changes[0]` of the collection. The mixture has
    one binomial number K of permanent ones, each of which adds the same number x. n, pi and x are
    chosen so that x K and C have the same mean, variance and largest value:

        n pi x = E[C],    n pi (1 - pi) x^2 = Var C,    n x = max C

    The solution of the three equations is

        pi = E[C] / max C
        n = (max C)^2 pi (1 - pi) / Var C
        x = sqrt(Var C / (n pi (1 - pi)))

    n is rounded to a whole number first, so n x differs a little from max C.

    One more permanent one of the mixture means that C is larger by x. It does not say in which
    collection. The regression of K_g on C gives its expected growth: E[K_g | C + x] - E[K_g | C] =
    x Cov(K_g, C) / Var C. Each moment therefore grows by the sum over g of this number times
    `changes`.

    Parameters
    ----------
    moments : (4, k) float64. Moments of the complete sum, as in `Mixture`.
    changes : (4, g, k) float64. Change of the moments of each collection for one more permanent
        one.
    devices : (g, 1) or (g, k) float64. n of each collection.
    level : (g, k) float64. pi of each collection.
    """
    # Cov(K_g, C), then Var C and max C.
    covariance = changes[0] * devices * level * (1 - level)
    variance, total = (changes[0] * covariance).sum(axis=0), (changes[0] * devices).sum(axis=0)
    # If every device reports once, no permanent one is repeated: `changes` and Var C are 0. Then pi
    # is 0 and n is 1, so K is always 0, and the mixture is a plain binomial count.
    is_random = variance > 0
    mean = np.where(
        is_random, (changes[0] * devices * level).sum(axis=0) / np.where(is_random, total, 1), 0
    )
    bernoulli_variance = mean * (1 - mean)
    n = np.maximum(
        1.0, np.round(total**2 * bernoulli_variance / np.where(is_random, variance, 1.0))
    )
    # x, the number that one more permanent one of the mixture adds to the sum.
    added_sum = np.sqrt(variance / np.where(is_random, n * bernoulli_variance, 1.0))
    # The expected growth of each K_g.
    added_ones = added_sum * covariance / np.where(is_random, variance, 1.0)
    return Mixture(
        devices=n, level=mean, moments=moments, changes=(changes * added_ones).sum(axis=1)
    )
