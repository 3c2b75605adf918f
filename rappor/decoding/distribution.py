"""Estimate the shares of all candidates together, with the smallest total error.

The decoder computes these posterior shares on request (`distribution=True`). They are for analysts
who need the whole distribution of the strings and not the test of each string. Strings outside the
list of candidates may exist. They have one share together, the remainder.

Theory of operation
-------------------
Total variation is half of the sum of the absolute errors of all shares. The remainder counts as one
share. The estimates are the shares with the smallest expected total variation.

| symbol | meaning |
|---|---|
| s_i | true share of candidate i, random given the counts (its posterior) |
| T | sum of all s_i. The remainder, 1 - T, belongs to strings that are no candidates |
| q_i | estimated share of candidate i |
| u | level of the posterior quantile, the same for all candidates |

Twice the expected total variation is

    E sum |q_i - s_i| + E |sum q_i - T|

E |q - s| has the derivative P(s <= q) - P(s > q) = 2 P(s <= q) - 1 by q. At the minimum the
derivative by each q_i is 0: 2 P(s_i <= q_i) - 1 + 2 P(T <= sum q_i) - 1 = 0. So for every i

    P(s_i <= q_i) = u = P(T >= sum q_i)

The posterior of a candidate has a point mass at 0, the probability that the candidate is absent. If
the mass exceeds u, no q_i fulfils the equation. Then q_i = 0 has the smallest error, because every
step away from 0 costs more than it gains. 0 is also the u-quantile of this posterior.

The estimate of each share is therefore a quantile of its posterior. The level u is the same for all
shares, and it equals the probability that the total exceeds the sum of the estimates. If many
strings are perhaps present, each with a small share, then u is well above one half: an omitted
string causes two errors, in its own share and in the remainder. The method has no tuning constant.

*Example.* 100 candidates have the share .002 with probability .4 each, and otherwise 0. All medians
(u = 1/2) are 0, although the expected sum of the shares, E T, is .08. The remainder would be too
large by .08.

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
"""Largest error of the level u, a probability. It changes a share by at most a thousandth of its
standard error. With a larger number the search needs fewer steps."""


def estimate_shares(estimate: Floats, std_error: Floats) -> tuple[Floats, Floats]:
    """Estimate the shares of all candidates together, and their standard errors, (c,) each.

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
    # `rounded` contains the distinct rounded scores, `bins` the index of each candidate's score in
    # `rounded`, and `counts` the number of candidates with each rounded score.
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
        # The curve is the quantile of a share as a function of the score. Its slope is near 1
        # where the quantile is not 0, so the rounding of the score is added back.
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

    T is normal with this mean and standard deviation, conditional on being at most 1. So the
    probability is 1 - P(T < value) / P(T < 1), with both probabilities before the condition.
    """
    if value >= 1:
        return 0.0
    # Logarithms: far below its mean, both probabilities would round to 0.
    below, most = (special.log_ndtr((end - mean) / spread) for end in (value, 1.0))
    return float(-np.expm1(below - most))
