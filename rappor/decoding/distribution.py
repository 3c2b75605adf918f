"""Estimate the shares of the complete list together, with the smallest total error.

The decoder computes these posterior shares on request (`distribution=True`). They are for analysts
who need the whole distribution of the strings and not the test of each string.

Theory of operation
-------------------
Total variation is half of the sum of the absolute errors of all shares. The remainder, which is the
share of all strings that are no candidates, counts as one share. The estimates are the shares with
the smallest expected total variation.

| symbol | meaning |
|---|---|
| s_i | true share of candidate i, random given the counts (its posterior) |
| T | sum of all s_i. The remainder, 1 - T, belongs to strings that are no candidates |
| q_i | estimated share of candidate i |
| u | level of the posterior quantile, the same for all candidates |

Twice the expected total variation is

    E sum |q_i - s_i| + E |sum q_i - T|

At the minimum the derivative by each q_i is 0, so for every i

    P(s_i <= q_i) = u = P(T >= sum q_i)

The estimate of each share is therefore a quantile of its posterior. The level u is the same for all
shares, and it equals the probability that the total exceeds the sum of the estimates. If many
strings are perhaps present, each with a small share, then u is well above one half: an omitted
string causes two errors, in its own share and in the remainder. The method has no tuning constant.

The prior has no assumed shape and is learnt from all candidates (`prior.py`). It is fitted twice.
The quantiles of single shares come from the smoothed prior. T comes from the prior of largest
likelihood, because smoothing adds small shares and T would be too large.

T is at most 1. Before this limit, T is normal with the moments of `Posterior.sum`, which include
the error of the fitted prior.

Estimates are divided by their standard errors (z scores), so that one curve from z to share is
valid for all candidates. The standard error of a share is the root of its mean squared error under
the posterior: the posterior variance plus the squared distance from the posterior mean.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from scipy import optimize, special

from rappor.counts.arrays import Floats
from rappor.decoding.prior import NO_NOISE, SMOOTHING, Posterior, fit_prior, round_scores

_FINE: Final = 1e-4
"""Largest error of the level u. It changes a share by at most a thousandth of its standard error.
"""


def estimate_shares(estimate: Floats, std_error: Floats) -> tuple[Floats, Floats]:
    """Estimate the shares of the complete list together, and their standard errors, (c,) each.

    Shares are not negative, and their sum is at most 1.

    Parameters
    ----------
    estimate, std_error : (c,) float64. De-biased proportions and their standard errors. A candidate
        with an infinite error gets the share 0, and its error stays infinite.

    Examples
    --------
    >>> shares, errors = estimate_shares(np.array([0.5, 0.2, 0.01, -0.01]), np.full(4, 0.01))
    >>> [round(float(share), 2) for share in shares]
    [0.5, 0.2, 0.0, 0.0]
    """
    share, error = np.zeros(len(estimate)), np.full(len(estimate), np.inf)
    is_finite = np.isfinite(std_error)
    # Without any finite error there is no score to learn a prior from.
    if not is_finite.any():
        return share, error
    scale = np.maximum(std_error[is_finite], NO_NOISE)
    z = estimate[is_finite] / scale
    rounded, bins, counts = round_scores(z)
    posterior = Posterior(fit_prior(rounded, counts, smoothing=SMOOTHING), rounded)
    mean, variance = posterior.mean[bins], posterior.variance[bins]
    # The posterior is computed at rounded scores. The difference is added back below.
    rounding = z - rounded[bins]
    moments = Posterior(fit_prior(rounded, counts), rounded).sum(
        np.bincount(bins, scale) / counts, counts
    )
    # Mean and standard deviation of T before its limit of 1.
    total_mean = moments.mean + float(rounding @ scale)
    total_spread = max(math.sqrt(moments.variance), NO_NOISE)

    def compute_quantiles(quantile: float) -> Floats:
        """Compute this posterior quantile of each share with a finite error."""
        curve = posterior.quantile(quantile)[bins]
        # The slope of the curve is near 1 where it is not 0, so the rounding of the score is added
        # back.
        return np.asarray(np.where(curve > 0, np.maximum(curve + rounding, 0.0), 0.0) * scale)

    # The difference of u and the probability rises with u, so it has one zero.
    level = optimize.brentq(
        lambda u: (
            u - _compute_exceedance(total_mean, total_spread, float(compute_quantiles(u).sum()))
        ),
        0.0,
        1.0,
        xtol=_FINE,
    )
    share[is_finite] = compute_quantiles(level)
    share /= max(float(share.sum()), 1.0)
    deviation = (mean + rounding) * scale - share[is_finite]
    error[is_finite] = np.sqrt(variance * scale**2 + deviation**2)
    return share, error


def _compute_exceedance(mean: float, spread: float, value: float) -> float:
    """Compute the probability that the total T exceeds a value.

    T is normal with this mean and standard deviation, conditional on being at most 1.
    """
    if value >= 1:
        return 0.0
    # Logarithms: far below its mean, both probabilities would round to 0.
    below, most = (special.log_ndtr((end - mean) / spread) for end in (value, 1.0))
    return float(-np.expm1(below - most))
