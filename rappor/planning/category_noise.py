"""Noise and errors of encodings with one bit for each category, bucket or yes-or-no question.

Theory of operation
-------------------
Each bit is one category, so no strings must be distinguished and no strings collide. A category of
share b has the mean mu = p* + (q* - p*) b. With R reports per device, its estimate has the error

    error^2 = (mu (1 - mu) + (R - 1) (mu - p) (q - mu)) / (N (q* - p*)^2)

(`rappor.estimator.proportion_tests`). Exact tests of few reports are slightly more conservative.

Two categories differ in two bits: one bit rises and one falls, as for two strings with one hash
function. So the noise is that of strings, for a category of the mean share 1/k. A yes-or-no
question differs in one bit, from which an observer may infer in either direction. Then p* = 1 - q*
= 1 / (1 + e^epsilon) is best, for rare and for even shares, and the same holds for the permanent
response.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rappor.base.errors import ParamsError
from rappor.counts.arrays import Floats
from rappor.planning.noise import (
    Budget,
    compute_optimal_variance,
    find_best_high,
    round_to_thresholds,
)
from rappor.protocol.encodings import get_encoding, get_encoding_class
from rappor.protocol.params import Noise, Params

_MAX_BIT_LOSS: Final = 40.0
"""Largest loss of one bit, in nats: the resolution of the coins allows no larger loss."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CategoryNoise:
    """Errors of the estimates of categories.

    Attributes
    ----------
    repeated : reports per device.
    """

    params: Params
    n_reports: int
    repeated: float

    def errors(self, shares: Floats) -> Floats:
        """Return the standard errors of categories with these shares, (s,)."""
        return np.asarray(np.sqrt(self._report_variance(shares) / self.n_reports) / self._gap)

    def parts(self, share: Floats) -> dict[str, float]:
        """Split the variance of a category of one share, (1,), by cause; the parts sum to one."""
        sampled = self.repeated * self._gap**2 * share * (1 - share) / self._report_variance(share)
        return {"coins": 1 - float(sampled[0]), "sampling": float(sampled[0])}

    @property
    def _gap(self) -> float:
        return self.params.q_star - self.params.p_star

    def _report_variance(self, shares: Floats) -> Floats:
        """Return the variance of the mean of the reports, times the number of reports, (s,)."""
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
    symmetric : require q = 1 - p.

    Raises
    ------
    ParamsError
        The encoding is unknown or hashes its values, or the categories do not fit the encoding.
    """
    k = get_encoding_class(encoding).count_bits(categories)
    if k is None:
        raise ParamsError(f"encoding must answer for every bit, got {encoding}")

    def build_params(noise: Noise) -> Params:
        return Params(encoding=encoding, k=k, categories=tuple(categories), **noise)

    differs_both_ways, bits = _count_differing_bits(
        build_params({"f": 0.5, "g": 0.5, "p": 0.25, "q": 0.75})
    )
    bits /= 2  # in each direction
    level = 1 / k if differs_both_ways and not symmetric else 0.5
    losses = (
        min(epsilon / bits, _MAX_BIT_LOSS) for epsilon in (budget.epsilon_1, budget.epsilon_inf)
    )
    q_star, b = (find_best_high(epsilon, level) for epsilon in losses)
    return round_to_thresholds(build_params, budget, (q_star, b), bits=bits)


def compute_best_variance(params: Params, epsilon_1: float) -> float:
    """Return the smallest known variance of a rare category, times the number of reports.

    For strings, categories and buckets, the bound is that of large domains [WBLJ17]. For a
    yes-or-no question, the bound is that of randomized response.
    """
    differs_both_ways, _ = _count_differing_bits(params)
    optimum = compute_optimal_variance(epsilon_1)
    return optimum if differs_both_ways else optimum / 4


def _count_differing_bits(params: Params) -> tuple[bool, float]:
    """Return whether two values differ in both directions, and in how many bits at most."""
    worst = get_encoding(params).compute_largest_loss
    return worst(1.0, 1.0) > worst(1.0, 0.0), worst(1.0, 1.0)
