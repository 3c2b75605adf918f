"""Tests and intervals for proportions of ones, with few reports and with repeated reports.

Encodings with a bit for each category (one-hot, boolean, buckets) need no regression. If every
device reports once under one parameter set, their tests are exact with any number of reports. In
all other cases the tests are approximate. `closed_form` builds a `Proportions` from the counts.
The decoder calls `Proportions.p_values` for tests, and `Proportions.interval` for intervals.

*Example.* With p* = .25, 8 of 20 reports have a 1 at the bit of a category. The p-value is
P(Binomial(20, .25) >= 8) = .10, so the category may be absent.

Theory of operation
-------------------
| symbol | meaning |
|---|---|
| c, N | number of reports with a 1 at the bit of a category, number of reports |
| theta | true share of the category |
| mu | p* + (q* - p*) theta, probability that a report has a 1 |
| R | reports per device, averaged over reports |
| phi | variance of c relative to independent reports |

If every report comes from a different device, c is Binomial(N, mu). The p-value of theta = 0 is the
upper tail at p*. The two-sided interval contains every theta for which both tails are at least half
of the allowed error (Clopper and Pearson, Biometrika 1934). Both are valid for every N and theta,
and converge to the normal results as N grows.

Devices that report several times repeat their permanent ones. The tails are then sums over the
number of permanent ones (`rappor.estimator.tail_probabilities`), for every number of devices N / R.
Each term is approximate: a p-value near .0005 is within 2 % of the exact probability (measured in
rappor/decoding/VALIDATION.md).

If several parameter sets report the same categories, the numbers of ones are added with weights.
The most powerful test has the weights

    (q* - p*) / (phi mu (1 - mu)),    phi = 1 + (R - 1) (mu - p) (q - mu) / (mu (1 - mu))

The numerator is the change of mu by theta, and the denominator the variance of a report: a
parameter set counts more if its proportions change more with the share, and less if they are noisy.
`rappor.estimator.debias` derives the variance with phi.

The permanent ones of the sum, and its coins conditional on them, are approximated by binomial
counts with the same moments (`match_moments`).

An end of an interval may be a share outside [0, 1]. The mean of the sum is then computed at this
share. If devices report several times, the variance is computed at the nearest share inside,
because the probability of a permanent 1 must be in [0, 1].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import special

from rappor.counts.arrays import Floats, Integers
from rappor.estimator.tail_probabilities import LEAST, build_coin_sum, match_moments

_SEARCH_STEPS: Final = 60
"""Largest number of steps in the search for the end of an interval. About ten steps are usual."""

_SEARCH_TOLERANCE: Final = 1e-10
"""Distance between shares, or between normal scores, at which the search ends."""

LARGEST_TAIL_SCORE: Final = 8.0
"""Largest normal score of a tail in the search. A tail beyond counts as a tail at this score, so
that the search never meets an infinite number."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Proportions:
    """The numbers of ones at k bits under g parameter sets.

    Attributes
    ----------
    ones : (g, k) float64. Number of reports with a 1 at each bit.
    reports : (g, 1) or (g, k) float64. Number of reports of each parameter set.
    reports_per_device : (g, 1) or (g, k) float64. R of each parameter set.
    p_star, q_star, p, q : (g, 1) or (g, k) float64. Probabilities of each parameter set.
    """

    ones: Floats
    reports: Floats
    reports_per_device: Floats
    p_star: Floats
    q_star: Floats
    p: Floats
    q: Floats

    @classmethod
    def join(cls, parts: Sequence[Proportions]) -> Proportions:
        """Join proportions of equally many parameter sets, so that one call computes all tails.

        Parameters
        ----------
        parts : proportions of g parameter sets each. The parameter sets of two parts may differ.

        Returns
        -------
        The bits of all parts, in their order.
        """

        def join_columns(name: str) -> Floats:
            columns = (np.broadcast_to(getattr(part, name), part.ones.shape) for part in parts)
            return np.concatenate(list(columns), axis=1)

        return cls(**{field.name: join_columns(field.name) for field in dataclasses.fields(cls)})

    def select_bits(self, bits: Integers, report_factor: Floats) -> Proportions:
        """Select some bits, and multiply their numbers of reports.

        A factor above 1 adds reports without a 1 (`rappor.decoding.forgery_breakdown`).

        Parameters
        ----------
        bits : (b,) int64.
        report_factor : (b,) float64. Factor of the number of reports of each bit.
        """
        return dataclasses.replace(
            self, ones=self.ones[:, bits], reports=self.reports * report_factor
        )

    def p_values(self) -> Floats:
        """Compute one-sided p-values: P(at least this number of ones) without the category.

        Returns
        -------
        (k,) float64.
        """
        return self._compute_tail(np.zeros(self.ones.shape[1]), upper=True)

    def interval(self, error: float | Floats) -> tuple[Floats, Floats]:
        """Compute the ends, (k,) each, of two-sided confidence intervals.

        The ends are shares and are not clipped to [0, 1].

        Parameters
        ----------
        error : probability that the interval misses the true share, a number or (k,) float64.
        """
        return self._end(error, upper=True), self._end(error, upper=False)

    def _end(self, error: float | Floats, *, upper: bool) -> Floats:
        """Compute the shares at which a tail is half of the error, by the Illinois method.

        The method is false position, on the normal scores of the tails. The share with an excess of
        0 lies between the shares `old` and `new`. Each step computes the share at which the line
        through both points crosses 0. If this share lies on the same side as `new`, the excess at
        `old` is halved, so that `old` is replaced soon.

        Parameters
        ----------
        error : as in `interval`.
        upper : True for the tail of at least this number of ones, which gives the lower end.

        Returns
        -------
        (k,) float64.
        """
        gap, k = self.q_star - self.p_star, self.ones.shape[1]
        # Range of the search: the shares at which mu is in [0, 1] for all parameter sets.
        low, high = float((-self.p_star / gap).max()), float(((1 - self.p_star) / gap).min())
        target_score = special.ndtri(np.asarray(error) / 2)

        def compute_excess(share: Floats) -> Floats:
            """Compute a number that rises with each share, (k,), and is 0 at the end."""
            score = np.clip(
                special.ndtri(self._compute_tail(share, upper=upper)),
                -LARGEST_TAIL_SCORE,
                LARGEST_TAIL_SCORE,
            )
            excess = score - target_score if upper else target_score - score
            # With no ones at all, or ones in all reports, a tail may never reach its target. The
            # clipped excess then ends the search at the end of the range.
            return np.clip(
                excess, np.where(share < high, -np.inf, 0.0), np.where(share > low, np.inf, 0.0)
            )

        old, new = np.full(k, low), np.full(k, high)
        excess_old, excess_new = compute_excess(old), compute_excess(new)
        for _ in range(_SEARCH_STEPS):
            share = new - excess_new * (new - old) / np.where(
                excess_new == excess_old, 1.0, excess_new - excess_old
            )
            excess_share = compute_excess(share)
            crossed = excess_share * excess_new < 0
            old, excess_old = (
                np.where(crossed, new, old),
                np.where(crossed, excess_new, excess_old / 2),
            )
            new, excess_new = share, excess_share
            if np.all(
                (np.abs(excess_new) < _SEARCH_TOLERANCE) | (np.abs(new - old) < _SEARCH_TOLERANCE)
            ):
                break
        return new

    def _compute_tail(self, share: Floats, *, upper: bool) -> Floats:
        """Compute P(at least this number of ones), or P(at most this number), at true shares.

        Several parameter sets are combined by the weights of the module docstring.

        Parameters
        ----------
        share : (k,) float64. True shares, possibly outside [0, 1].
        upper : True for at least, False for at most.

        Returns
        -------
        (k,) float64.
        """
        gap, is_repeated = self.q_star - self.p_star, self.reports_per_device > 1
        # mu at the share.
        mean = np.clip(self.p_star + gap * share, LEAST, 1.0)
        # Without repeated reports, phi is 1 and there are no permanent ones. The formulas below
        # would return the same numbers in several times the time, and an interval computes dozens
        # of tails.
        if not is_repeated.any():
            weight = gap / np.maximum(mean * (1 - mean), LEAST)
            weight /= weight.max(axis=0)
            moments = (self.reports * _compute_moments(weight, mean)).sum(axis=1)
            moments[0] = (weight * self.reports * mean).sum(axis=0)
            mixture = build_coin_sum(moments)
            return mixture.compute_tail((weight * self.ones).sum(axis=0), upper=upper)
        # mu at the nearest share inside [0, 1].
        inside = np.clip(self.p_star + gap * np.clip(share, 0, 1), LEAST, 1 - 1e-16)
        between = (inside - self.p) * (self.q - inside)
        phi = 1 + (self.reports_per_device - 1) * between / (inside * (1 - inside))
        weight = gap / (phi * np.maximum(mean * (1 - mean), LEAST))
        weight /= weight.max(axis=0)
        # The probability pi of a permanent 1, from mu = p + (q - p) pi.
        level = np.where(is_repeated, (inside - self.p) / (self.q - self.p), 0.0)
        # `zeros` contains the moments of one report of a device with a permanent 0, and `added` the
        # difference for a permanent 1. Without repeated reports, a report is a coin with the
        # probability mu, and there are no permanent ones.
        zeros = _compute_moments(weight, np.where(is_repeated, self.p, mean))
        added = np.where(is_repeated, _compute_moments(weight, self.q) - zeros, 0.0)
        moments = (self.reports * (zeros + level * added)).sum(axis=1)
        # With repeated reports, the moments above are those at the nearest share inside [0, 1]. The
        # mean of the sum is computed at the share itself.
        moments[0] = (weight * self.reports * mean).sum(axis=0)
        mixture = match_moments(
            moments, self.reports_per_device * added, self.reports / self.reports_per_device, level
        )
        return mixture.compute_tail((weight * self.ones).sum(axis=0), upper=upper)


def _compute_moments(weight: Floats, coin: Floats) -> Floats:
    """Compute w p, w^2 v, w^3 v and w^3 v p of a coin of weight w, with v = p (1 - p).

    The sums over all coins are the moments of `rappor.estimator.tail_probabilities`.

    Parameters
    ----------
    weight, coin : (g, k) float64. Weight and probability of the coin.

    Returns
    -------
    (4, g, k) float64.
    """
    variance = coin * (1 - coin)
    return np.stack(
        [weight * coin, weight**2 * variance, weight**3 * variance, weight**3 * variance * coin]
    )
