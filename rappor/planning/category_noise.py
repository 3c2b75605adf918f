"""Noise and standard errors of categories, buckets and yes-or-no questions.

A device sets the bit of its category, adds noise to all bits and reports them. A privacy budget
limits the loss of the reports, so a minimum of noise is necessary. Many choices of p* and q* use up
the same budget, but the estimated shares have different standard errors under them. This module
finds the choice with the smallest standard errors.

*Example.* A yes-or-no question with a loss of ln 3 = 1.1 nats in each report: p* = 1/4 of the false
answers and q* = 3/4 of the true answers are sent as 1. For 10,000 devices with one report each and
a true share of 1/2, mu is 1/2, and the standard error is sqrt(.25 / 10,000) / .5 = .01.

A planner works in this order:

1. `choose_category_noise` returns the parameters with the best noise within the budget.
2. `CategoryNoise` computes the standard errors of the shares under these parameters.
3. `compute_best_variance` returns the smallest known variance, with which a plan is compared.

Theory of operation
-------------------
Two categories share no bit. So there are no collisions, and no regression is needed.

| symbol | meaning |
|---|---|
| p*, q* | probability that a true 0, and a true 1, is sent as 1 |
| p, q | probability that a 0, and a 1, of the permanent response is sent as 1 |
| b | true share of the devices with the category |
| mu | expected proportion of ones at the bit of the category: p* + (q* - p*) b |
| R, N | number of reports of a device, and of all devices |

The estimate of b has the standard error

    error^2 = (mu (1 - mu) + (R - 1) (mu - p) (q - mu)) / (N (q* - p*)^2)

A reported bit has the variance mu (1 - mu). Two reports of one device have the covariance
(mu - p) (q - mu), because both come from the same permanent response, and each report shares its
device with R - 1 other reports. The sum of both terms, divided by N, is the variance of the
proportion of ones (`rappor.estimator.debias` has the derivation). The estimate divides the
proportion by q* - p*. The second term is 0 if R = 1, and further reports of the same devices do not
lower it. Exact tests of few reports are slightly more conservative than the formula.

The best noise depends on the bits in which two values differ:

- Categories and buckets: two values differ in two bits. From the first value to the second, one bit
  rises from 0 to 1 and one bit falls from 1 to 0. Two strings with one hash function differ in the
  same way. The best noise is therefore the noise of strings (`rappor.planning.noise`), for a
  category of the mean share 1/k.
- A yes-or-no question: the two values differ in one bit, which may rise or fall. The best noise is
  symmetric for every share, p* = 1 - q* = 1 / (1 + e^epsilon). The reason: every other noise within
  the budget is this symmetric noise followed by more noise, which only removes information. The
  same holds for the permanent response.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rappor.base.errors import ParamsError
from rappor.counts.arrays import Floats
from rappor.planning.detection_limit import compute_rare_variance
from rappor.planning.noise import (
    Budget,
    compute_optimal_variance,
    find_best_high,
    round_to_thresholds,
)
from rappor.planning.set_design import design_sets
from rappor.protocol.encodings import get_encoding, get_encoding_class
from rappor.protocol.params import Params
from rappor.protocol.responses.rappor_response import Noise

_MAX_LOG_ODDS_RATIO: Final = 40.0
"""Largest logarithm of the odds ratio q* (1 - p*) / (p* (1 - q*)) of a bit, in nats. It is the loss
of a rising bit plus the loss of a falling bit. Coins have 32 bits, so the odds of a bit change by
at most a factor of (2^32 - 1)^2, which is 44 nats. 40 nats leave room for rounding."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CategoryNoise:
    """Error model of categories: standard errors of their shares.

    Attributes
    ----------
    params : the parameters of the reports.
    n_reports : number of reports of all devices, N.
    repeated : mean number of reports per device, R.
    """

    params: Params
    n_reports: int
    repeated: float

    def errors(self, shares: Floats) -> Floats:
        """Compute the standard errors of categories with these shares.

        `shares` and the result are (number of shares,) float64, proportions of devices.
        """
        return np.asarray(np.sqrt(self._report_variance(shares) / self.n_reports) / self._gap)

    def parts(self, share: Floats) -> dict[str, float]:
        """Split the variance of a category by cause: noise of the coins, and sampling of devices.

        N / R devices have the sampling variance b (1 - b) R / N.

        Parameters
        ----------
        share : (1,) float64. b.

        Returns
        -------
        Two proportions of the variance, with sum 1.
        """
        sampled = self.repeated * self._gap**2 * share * (1 - share) / self._report_variance(share)
        return {"noise": 1 - float(sampled[0]), "sampling": float(sampled[0])}

    @property
    def _gap(self) -> float:
        """The difference q* - p* of the probabilities of a 1."""
        return self.params.q_star - self.params.p_star

    def _report_variance(self, shares: Floats) -> Floats:
        """Compute the numerator of error^2 in the module docstring, (number of shares,) float64.

        The numerator is N times the variance of the proportion of ones.
        """
        params = self.params
        mean = params.p_star + self._gap * shares
        device_variance = (mean - params.p) * (params.q - mean)
        return np.asarray(mean * (1 - mean) + (self.repeated - 1) * device_variance)


def choose_category_noise(
    budget: Budget, encoding: str, categories: Sequence[str], *, symmetric: bool = False
) -> Params:
    """Choose the noise with the smallest variance within a budget, and return the parameters.

    Parameters
    ----------
    budget : limits of the privacy losses, in nats.
    encoding : name of the encoding, such as "onehot".
    categories : the categories or bucket edges.
    symmetric : whether the noise must be symmetric: q = 1 - p.

    Raises
    ------
    ParamsError
        The encoding is unknown or hashes its values, or the categories do not fit the encoding.
    """
    k = get_encoding_class(encoding).count_bits(categories)
    if k is None:
        raise ParamsError(f"encoding must have one bit for each category, got {encoding}")

    def build_params(noise: Noise) -> Params:
        return Params(encoding=encoding, k=k, categories=tuple(categories), **noise)

    # The differing bits depend on the encoding only, so the noise of the parameters is arbitrary.
    differs_both_ways, n_differing = _count_differing_bits(
        build_params({"f": 0.5, "g": 0.5, "p": 0.25, "q": 0.75})
    )
    # Half of the differing bits rise and half of them fall. A yes-or-no question has one bit, which
    # counts as half a bit in each direction.
    bits_per_direction = n_differing / 2
    # `level` is the share for which the noise is best: the mean share 1/k. The best noise for the
    # share 0.5 is symmetric.
    level = 1 / k if differs_both_ways and not symmetric else 0.5
    # A loss is the sum over the differing bits, so each pair of a rising and a falling bit has the
    # loss epsilon / bits_per_direction. It is the logarithm of the odds ratio of a bit.
    log_odds_ratios = (
        min(epsilon / bits_per_direction, _MAX_LOG_ODDS_RATIO)
        for epsilon in (budget.epsilon_1, budget.epsilon_inf)
    )
    # The probability of a 1 at a true 1, in a report and in the permanent response.
    q_star, permanent_high = (find_best_high(ratio, level) for ratio in log_odds_ratios)
    return round_to_thresholds(
        build_params, budget, (q_star, permanent_high), bits=bits_per_direction
    )


def compute_best_variance(params: Params, epsilon_1: float) -> float:
    """Return the smallest known variance of a rare category, times the number of reports.

    - Strings, categories and buckets: the variance of optimised unary encoding for large domains
      [WBLJ17].
    - A yes-or-no question: the variance of randomized response, a quarter of that variance.
    - Generalized randomized response, whose reports name one bucket: its own variance, if it is
      smaller than the variance of optimised unary encoding. This is the case for few categories.
    - Sets: the variance of generalized randomized response with the best number of buckets
      (`design_sets`). Its report names one of k buckets, to which items are hashed. A report of
      several items of a list, as in PrivSet, has a smaller variance, but needs the list on the
      devices.
    """
    if get_encoding(params).supports_items:
        return compute_rare_variance(design_sets(params.items, epsilon_1, m=params.m))
    differs_both_ways, _ = _count_differing_bits(params)
    optimum = compute_optimal_variance(epsilon_1)
    if params.response.is_exclusive:
        optimum = min(optimum, compute_rare_variance(params))
    return optimum if differs_both_ways else optimum / 4


def _count_differing_bits(params: Params) -> tuple[bool, float]:
    """Compute the number of bits in which two values can differ, and whether in both directions.

    Returns
    -------
    differs_both_ways : bool
        Whether one bit may rise while another bit falls.
    bits : float
        Largest number of bits in which two values differ.
    """
    # If a rising bit and a falling bit each have a loss of 1 nat, the largest loss is the number of
    # bits that differ. If falling bits have no loss, it is the number of bits that rise. The first
    # number is larger if some of the differing bits fall.
    compute_loss = get_encoding(params).compute_largest_loss
    n_differing, n_rising = compute_loss(1.0, 1.0), compute_loss(1.0, 0.0)
    return n_differing > n_rising, n_differing
