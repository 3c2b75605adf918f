"""Exact tests and intervals for proportions of ones, also of few reports and of repeated ones.

Theory of operation
-------------------
If every report is another device's, the ones c at a bit that stands for one answer are
Binomial(N, mu), mu = p* + (q* - p*) theta. The p-value of theta = 0 is the upper tail at p*, and
the two-sided interval holds every theta of which neither tail is smaller than half the allowed
error (Clopper and Pearson, Biometrika 1934): both keep their promise for every N and theta, and
become the normal ones as N grows.

Where devices report again, their permanent ones come again, and the tails are sums over how many
there are (`rappor.estimator.tail_probabilities`), for every number of devices N / R.

Where several parameter sets ask for the same answers, the sum with weights
(q* - p*) / (phi mu (1 - mu)) is the most powerful one, phi = 1 + (R - 1) (mu - p) (q - mu) /
(mu (1 - mu)). Its permanent ones, and its coins given them, are each taken for a binomial count
of the same moments. A share outside [0, 1] moves the counts of the nearest share inside.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import special

from rappor.counts.arrays import Floats, Integers
from rappor.estimator.tail_probabilities import LEAST, mixed

_STEPS: Final = 60
"""Steps in which the end of an interval is sought; most need some ten."""

_NEAR: Final = 1e-10
"""Distance between shares, or normal scores, at which an end is found."""

_FAR: Final = 8.0
"""Normal score of a tail that is as good as 0 or 1."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Proportions:
    """The ones at k bits under g parameter sets.

    Attributes
    ----------
    ones : (g, k) float64.
    reports : (g, 1) or (g, k) float64. Reports of each parameter set.
    repeated : (g, 1) float64. R of each.
    p_star, q_star, p, q : (g, 1) float64.
    """

    ones: Floats
    reports: Floats
    repeated: Floats
    p_star: Floats
    q_star: Floats
    p: Floats
    q: Floats

    def among(self, bits: Integers, stretch: Floats) -> Proportions:
        """Return the ones of these bits among more reports, (len(bits),) times as many each."""
        return dataclasses.replace(self, ones=self.ones[:, bits], reports=self.reports * stretch)

    def p_values(self) -> Floats:
        """Return the probability, (k,), of as many ones or more if nobody gives the answer."""
        return self._tail(np.zeros(self.ones.shape[1]), upper=True)

    def interval(self, error: float | Floats) -> tuple[Floats, Floats]:
        """Return the ends, (k,) each, of the two-sided interval that misses with this probability.

        They are shares, and not clipped to [0, 1]. Each answer may have a probability of its own.
        """
        return self._end(error, upper=True), self._end(error, upper=False)

    def _end(self, error: float | Floats, *, upper: bool) -> Floats:
        """Return the shares, (k,), at which the tail is half of the error, by the Illinois rule."""
        gap, k = self.q_star - self.p_star, self.ones.shape[1]
        low, high = float((-self.p_star / gap).max()), float(((1 - self.p_star) / gap).min())
        wanted = special.ndtri(np.asarray(error) / 2)

        def above(share: Floats) -> Floats:
            score = np.clip(special.ndtri(self._tail(share, upper=upper)), -_FAR, _FAR)
            excess = score - wanted if upper else wanted - score
            return np.clip(
                excess, np.where(share < high, -np.inf, 0.0), np.where(share > low, np.inf, 0.0)
            )

        old, new = np.full(k, low), np.full(k, high)
        at_old, at_new = above(old), above(new)
        for _ in range(_STEPS):
            share = new - at_new * (new - old) / np.where(at_new == at_old, 1.0, at_new - at_old)
            at_share = above(share)
            crossed = at_share * at_new < 0
            old, at_old = np.where(crossed, new, old), np.where(crossed, at_new, at_old / 2)
            new, at_new = share, at_share
            if np.all((np.abs(at_new) < _NEAR) | (np.abs(new - old) < _NEAR)):
                break
        return new

    def _tail(self, share: Floats, *, upper: bool) -> Floats:
        """Return P(as many ones or more), or as many or fewer, at these shares, (k,)."""
        gap, again = self.q_star - self.p_star, self.repeated > 1
        mean = np.clip(self.p_star + gap * share, LEAST, 1.0)
        inside = np.clip(self.p_star + gap * np.clip(share, 0, 1), LEAST, 1 - 1e-16)
        between = (inside - self.p) * (self.q - inside)
        phi = 1 + (self.repeated - 1) * between / (inside * (1 - inside))
        weight = gap / (phi * np.maximum(mean * (1 - mean), LEAST))
        weight /= weight.max(axis=0)
        level = np.where(again, (inside - self.p) / (self.q - self.p), 0.0)
        zeros = _moments(weight, np.where(again, self.p, mean))
        more = np.where(again, _moments(weight, self.q) - zeros, 0.0)
        moments = (self.reports * (zeros + level * more)).sum(axis=1)
        moments[0] = (weight * self.reports * mean).sum(axis=0)
        mixture = mixed(moments, self.repeated * more, self.reports / self.repeated, level)
        return mixture.tail((weight * self.ones).sum(axis=0), upper=upper)


def _moments(weight: Floats, coin: Floats) -> Floats:
    """Return the moments, (4, g, k), of a one of this probability and weight (`Mixture`)."""
    variance = coin * (1 - coin)
    return np.stack(
        [weight * coin, weight**2 * variance, weight**3 * variance, weight**3 * variance * coin]
    )
