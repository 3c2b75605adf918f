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
string causes two errors, in its own share and in the remainder. Beyond the priors, the method has
no tuning constant.

*Example.* 100 candidates have the share .002 with probability .4 each, and otherwise 0. All medians
(u = 1/2) are 0, although the expected sum of the shares, E T, is .08. The remainder would be too
large by .08.

The prior has no assumed shape and is learnt from all candidates (`prior.py`). It is fitted twice.
The quantiles of single shares come from a smoothed prior (`fit_quantile_prior`). T comes from the
prior of largest likelihood, because smoothing adds small shares and T would be too large.

T is at most 1. Before this limit, T is normal with the moments of `Posterior.sum`, which include
the error of the fitted prior.

Complete lists
--------------
Many lists contain all strings of the devices. Then T is exactly 1. If the estimate of T is 1, too,
the normal distribution below the limit has its median about .67 standard deviations below 1, and
the list would get a remainder of this size. The posterior of T is therefore a mixture of two
hypotheses, with equal prior probabilities:

- complete: T = 1;
- incomplete: T has any value below 1, with the prior density 1. Negative values are impossible, but
  far below the estimates, so they change nothing.

The odds of the two hypotheses are multiplied by two Bayes factors.

*The estimated total.* Let the estimate of T be N(T, s^2), with the value t. The densities of t are
phi((1 - t) / s) / s if the list is complete, and Phi((1 - t) / s) after integration over all T
below 1 if it is incomplete. Their ratio with x = (1 - t) / s is

    B_T = phi(x) / (s Phi(x))

*The goodness of fit.* Strings that are no candidates lift single rows of the regression, so the
candidates explain the counts badly. The p-value p of the fit is uniform if the list is complete,
and small if it is not. If p has a density a p^(a - 1) with a < 1 for incomplete lists, the Bayes
factor for completeness is at least -e p ln p for p < 1/e (Sellke, Bayarri and Berger, American
Statistician 55, 2001, who show it for further distributions, too). The factor itself is unknown,
because the missing strings are. So the bound is used, and 1 for larger p.

*Example.* 90 of 100 strings are candidates, and the ten others have 8.3 % of the devices together.
Their total is estimated as .917 +- .040, which gives B_T = 1.2: this list cannot be recognised as
incomplete by its total. But the fit has the p-value .001, with the bound .02. The probability that
the list is complete is 2 %.

If the posterior probability of T = 1 exceeds the level u at which the estimates sum to 1, the
estimates sum to 1, and the remainder is 0. Bad case: a list that lacks many rare strings fits well.
If their share is below about two standard errors of T, the list counts as complete.

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
from rappor.decoding.prior import NO_NOISE, Posterior, fit_prior, fit_quantile_prior, round_scores

_FINE: Final = 1e-4
"""Largest error of the level u, a probability. It changes a share by at most a thousandth of its
standard error. With a larger number the search needs fewer steps."""


def estimate_shares(
    estimate: Floats, std_error: Floats, *, fit_p_value: float = 1.0
) -> tuple[Floats, Floats]:
    """Estimate the shares of all candidates together, and their standard errors, (c,) each.

    Shares are not negative, and their sum is at most 1.

    Parameters
    ----------
    estimate, std_error : (c,) float64. De-biased proportions and their standard errors. A candidate
        with an infinite error gets the share 0, and its error stays infinite.
    fit_p_value : p-value of the goodness of fit of the candidates. It is small if strings are
        missing from the list. 0 excludes that the list is complete.

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
    likeliest = fit_prior(rounded, counts)
    posterior = Posterior(fit_quantile_prior(rounded, counts, likeliest), rounded)
    mean, variance = posterior.mean[bins], posterior.variance[bins]
    # The posterior is computed at rounded scores. The difference is added back below.
    rounding = z - rounded[bins]
    moments = Posterior(likeliest, rounded).sum(np.bincount(bins, scale) / counts, counts)
    # Mean and standard deviation of T before its limit of 1.
    total_mean = moments.mean + float(rounding @ scale)
    total_spread = max(math.sqrt(moments.variance), NO_NOISE)
    completeness = _compute_completeness(total_mean, total_spread, fit_p_value)

    def compute_quantiles(quantile: float) -> Floats:
        """Compute this posterior quantile of each share with a finite error."""
        curve = posterior.quantile(quantile)[bins]
        # The curve is the quantile of a share as a function of the score. Its slope is near 1
        # where the quantile is not 0, so the rounding of the score is added back.
        return np.asarray(np.where(curve > 0, np.maximum(curve + rounding, 0.0), 0.0) * scale)

    # The difference of u and the probability rises with u, so it changes its sign once.
    level = optimize.brentq(
        lambda u: (
            u
            - _compute_exceedance(
                total_mean, total_spread, float(compute_quantiles(u).sum()), completeness
            )
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


def _compute_completeness(mean: float, spread: float, fit_p_value: float) -> float:
    """Compute the posterior probability that the list is complete, so that T = 1.

    The module docstring derives both Bayes factors.

    Parameters
    ----------
    mean, spread : mean and standard deviation of T before its limit of 1.
    fit_p_value : as in `estimate_shares`.
    """
    # phi(x) / Phi(x) = sqrt(2 / pi) / erfcx(-x / sqrt(2)). If the mean is far above 1, phi and
    # Phi would both round to 0. If it is far below 1, erfcx is infinite and the factor is 0.
    distance = (1 - mean) / spread
    total_factor = math.sqrt(2 / math.pi) / (spread * special.erfcx(-distance / math.sqrt(2)))
    fit_factor = 1.0
    if fit_p_value < 1 / math.e:
        fit_factor = float(math.e * special.entr(fit_p_value))  # entr(p) = -p ln p, and entr(0) = 0
    odds = float(total_factor) * fit_factor
    return odds / (1 + odds)


def _compute_exceedance(mean: float, spread: float, value: float, completeness: float) -> float:
    """Compute the probability that the total T exceeds a value.

    With probability `completeness`, T is 1. Otherwise T is normal with this mean and standard
    deviation, conditional on being at most 1. So it exceeds the value with the probability
    1 - P(T < value) / P(T < 1), with both probabilities before the condition.
    """
    if value >= 1:
        return 0.0
    # Logarithms: far below its mean, both probabilities would round to 0.
    below, most = (special.log_ndtr((end - mean) / spread) for end in (value, 1.0))
    return completeness + (1 - completeness) * float(-np.expm1(below - most))
