"""Exact tests and intervals for proportions of ones, also of few reports and of repeated ones.

Theory of operation
-------------------
If every report is another device's, the ones c at a bit that stands for one answer are
Binomial(N, mu), mu = p* + (q* - p*) theta. The p-value of theta = 0 is the upper tail at p*, and
the two-sided interval holds every theta of which neither tail is smaller than half the allowed
error (Clopper and Pearson, Biometrika 1934): both keep their promise for every N and theta, and
become the normal ones as N grows.

Where devices report again the variance is phi times the binomial one,

    phi = 1 + (R - 1) (mu - p) (q - mu) / (mu (1 - mu)),

(`rappor.decoding.debias`), and c / phi ones of N / phi reports have the mean and the variance of a
binomial count. Its tails are taken at these numbers, which need not be whole, by the incomplete
beta function. That is exact for R = 1 and a normal approximation's better relative otherwise.

Where several parameter sets ask for the same answers, the sum with weights
(q* - p*) / (phi mu (1 - mu)) is the most powerful one, and is taken for a binomial count of the
same mean and variance.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

_CERTAIN: Final = 1e-30
"""Distance of a mean from 0 and 1 at which it is taken for random: no collection has as many
reports that a difference showed."""

_HALVINGS: Final = 42
"""Halvings of the range of shares: to 1e-12 of a number between -1 and 1."""


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

    ones: NDArray[np.float64]
    reports: NDArray[np.float64]
    repeated: NDArray[np.float64]
    p_star: NDArray[np.float64]
    q_star: NDArray[np.float64]
    p: NDArray[np.float64]
    q: NDArray[np.float64]

    def among(self, bits: NDArray[np.int64], stretch: NDArray[np.float64]) -> Proportions:
        """Return the ones of these bits among more reports, (len(bits),) times as many each."""
        return dataclasses.replace(self, ones=self.ones[:, bits], reports=self.reports * stretch)

    def p_values(self) -> NDArray[np.float64]:
        """Return the probability, (k,), of as many ones or more if nobody gives the answer."""
        return self._tails(np.zeros(self.ones.shape[1]))[0]

    def interval(
        self, error: float | NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the ends, (k,) each, of the two-sided interval that misses with this probability.

        They are shares, and not clipped to [0, 1]. Each answer may have a probability of its own.
        """
        k = self.ones.shape[1]
        twice = dataclasses.replace(self, ones=np.hstack([self.ones, self.ones]))
        gap = self.q_star - self.p_star
        ends = float((-self.p_star / gap).max()), float(((1 - self.p_star) / gap).min())
        low, high = (np.full(2 * k, end) for end in ends)
        for _ in range(_HALVINGS):
            share = (low + high) / 2
            above, below = twice._tails(share)
            too_low = np.concatenate([above[:k] < error / 2, below[k:] > error / 2])
            low, high = np.where(too_low, share, low), np.where(too_low, high, share)
        return high[:k], low[k:]

    def _tails(self, share: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return P(as many ones or more), P(as many or fewer) at these shares, (k,) each."""
        gap = self.q_star - self.p_star
        mean = np.clip(self.p_star + gap * share, _CERTAIN, 1.0)
        inside = np.clip(self.p_star + gap * np.clip(share, 0, 1), _CERTAIN, 1 - 1e-16)
        between = (inside - self.p) * (self.q - inside)
        phi = 1 + (self.repeated - 1) * between / (inside * (1 - inside))
        one = phi * np.maximum(mean * (1 - mean), _CERTAIN)
        weight = gap / one
        reports = (weight * self.reports).sum(axis=0)
        level = (weight * self.reports * mean).sum(axis=0) / reports
        variance = (weight**2 * self.reports * one).sum(axis=0)
        scale = variance / (reports * np.maximum(level * (1 - level), _CERTAIN))
        ones = (weight * self.ones).sum(axis=0) / scale
        return binomial_tails(ones, np.maximum(reports / scale, ones), level)


def binomial_tails(
    ones: NDArray[np.float64], n: NDArray[np.float64], mean: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return P(X >= ones) and P(X <= ones) of Binomial(n, mean), (k,) each; n may be no integer."""
    rest = n - ones
    above = np.where(ones > 0, special.betainc(np.maximum(ones, _CERTAIN), rest + 1, mean), 1.0)
    below = np.where(rest > 0, special.betaincc(ones + 1, np.maximum(rest, _CERTAIN), mean), 1.0)
    return above, below
