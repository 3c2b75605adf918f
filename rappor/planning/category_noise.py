"""Noise and errors of encodings with one bit for each category, bucket or yes-or-no question.

`choose_category_noise` returns the noise with the smallest variance within a privacy budget, for a
list of categories. `CategoryNoise` computes the standard errors of their shares.

Theory of operation
-------------------
Each bit is one category, so strings need not be distinguished and do not collide.

| symbol | meaning |
|---|---|
| p*, q* | probability that a true 0, and a true 1, is sent as 1 |
| p, q | probability that a 0, and a 1, of the permanent response is sent as 1 |
| b | share of the devices with the category |
| mu | expected proportion of ones at the bit of the category: p* + (q* - p*) b |
| R, N | number of reports of a device, and of all devices |

The estimate of b has the standard error

    error^2 = (mu (1 - mu) + (R - 1) (mu - p) (q - mu)) / (N (q* - p*)^2)

(`rappor.estimator.proportion_tests`). The second term is 0 if R = 1: it is the variance between
devices, which more reports of the same devices do not lower. Exact tests of few reports are
slightly more conservative than the formula.

The best noise depends on the bits in which two values differ:

- Categories and buckets: two values differ in two bits, one that rises and one that falls, as two
  strings with one hash function do. The best noise is therefore the noise of strings
  (`rappor.planning.noise`), for a category of the mean share 1/k.
- A yes-or-no question: the two values differ in one bit, which may rise or fall. The best noise is
  symmetric for every share, p* = 1 - q* = 1 / (1 + e^epsilon). The same holds for the permanent
  response.
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

_MAX_BIT_LOSS: Final = 40.0
"""Largest loss of one bit, in nats. Coins have 32 bits, so the odds of a bit change by at most a
factor of (2^32 - 1)^2, which is 44 nats. 40 nats leave room for rounding."""


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
        """Return the standard errors of categories with these shares.

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
        return {"coins": 1 - float(sampled[0]), "sampling": float(sampled[0])}

    @property
    def _gap(self) -> float:
        """q* - p*."""
        return self.params.q_star - self.params.p_star

    def _report_variance(self, shares: Floats) -> Floats:
        """Compute N times the variance of the proportion of ones, (number of shares,) float64.

        It is the numerator of error^2 in the module docstring.
        """
        params = self.params
        mean = params.p_star + self._gap * shares
        device_variance = (mean - params.p) * (params.q - mean)
        return np.asarray(mean * (1 - mean) + (self.repeated - 1) * device_variance)


def choose_category_noise(
    budget: Budget, encoding: str, categories: Sequence[str], *, symmetric: bool = False
) -> Params:
    """Return the parameters with the least variance within a budget.

    Parameters
    ----------
    budget : limits of the privacy losses, in nats.
    encoding : name of the encoding, such as "onehot".
    categories : the categories or bucket edges.
    symmetric : require q = 1 - p.

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
    differs_both_ways, bits = _count_differing_bits(
        build_params({"f": 0.5, "g": 0.5, "p": 0.25, "q": 0.75})
    )
    # Half of the differing bits rise and half of them fall. A yes-or-no question has one bit, which
    # counts as half a bit in each direction.
    bits /= 2
    # `level` is the share for which the noise is best: the mean share 1/k. The best noise for the
    # share 0.5 is symmetric.
    level = 1 / k if differs_both_ways and not symmetric else 0.5
    losses = (
        min(epsilon / bits, _MAX_BIT_LOSS) for epsilon in (budget.epsilon_1, budget.epsilon_inf)
    )
    q_star, b = (find_best_high(epsilon, level) for epsilon in losses)
    return round_to_thresholds(build_params, budget, (q_star, b), bits=bits)


def compute_best_variance(params: Params, epsilon_1: float) -> float:
    """Return the smallest known variance of a rare category, times the number of reports.

    - Strings, categories and buckets: the variance of optimised unary encoding for large domains
      [WBLJ17].
    - A yes-or-no question: the variance of randomized response, which is a quarter of it.
    - Generalized randomized response, whose reports name one bucket: its own variance, if it is
      smaller than the variance of optimised unary encoding. This is the case for few categories.
    - Sets: the variance of the best design with one bucket in a report. A report of several items
      of a list, as in PrivSet, has a smaller variance, but needs the list on the devices.
    """
    if get_encoding(params).supports_items:
        return compute_rare_variance(design_sets(params.items, epsilon_1, m=params.m))
    differs_both_ways, _ = _count_differing_bits(params)
    optimum = compute_optimal_variance(epsilon_1)
    if params.response.is_exclusive:
        optimum = min(optimum, compute_rare_variance(params))
    return optimum if differs_both_ways else optimum / 4


def _count_differing_bits(params: Params) -> tuple[bool, float]:
    """Compute in how many bits two values can differ, and whether in both directions.

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
