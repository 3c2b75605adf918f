"""The distribution answer: the whole list with the smallest total error.

Theory of operation
-------------------
This is another question than detection: which shares, of all candidates and of the rest, have the
smallest expected total variation? With s_i the shares, T their sum and q_i the answer, that is

    E sum |q_i - s_i| + E |sum q_i - T|,    so    P(s_i <= q_i) = u = P(T >= sum q_i)

for every i: the answer is a quantile of each posterior, the same one for all, at which the
probability that more is missing is that of the quantile. Where much mass is spread over strings of
which each is doubtful, a string that is left out is missing twice, from its own share and from the
rest's, and u is well above one half. No constant is chosen.

The prior has no assumed shape and is learnt from all candidates (`prior.py`). It is fitted twice.
The quantiles of single shares come from the smoothed prior. T comes from the prior of largest
likelihood, because smoothing adds small shares and T would be too large.

T is at most one. Before that is known it is normal, with the moments of `Posterior.sum`, which
contain the error of the fitted prior.

Estimates are divided by their standard errors (z scores), so that one curve from z to share is
valid for all candidates. The standard error of a share is the root of its mean squared error
under the posterior: the posterior's variance, and the squared distance from its mean.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from scipy import optimize, special

from rappor.counts.arrays import Floats
from rappor.decoding.prior import NO_NOISE, SMOOTH, Posterior, fit_prior, round_scores

_FINE: Final = 1e-4
"""Error of the quantile: it moves a share by a thousandth of its error at most."""


def estimate_shares(estimate: Floats, std_error: Floats) -> tuple[Floats, Floats]:
    """Estimate the shares of the whole list at once, and their standard errors, (c,) each.

    Shares are not negative, and sum to at most one.

    Parameters
    ----------
    estimate, std_error : (c,) float64. De-biased proportions and their standard errors;
        a candidate with an infinite error gets no share, and its error stays infinite.

    Examples
    --------
    >>> shares, errors = estimate_shares(np.array([0.5, 0.2, 0.01, -0.01]), np.full(4, 0.01))
    >>> [round(float(share), 2) for share in shares]
    [0.5, 0.2, 0.0, 0.0]
    """
    share, error = np.zeros(len(estimate)), np.full(len(estimate), np.inf)
    known = np.isfinite(std_error)
    if not known.any():
        return share, error
    scale = np.maximum(std_error[known], NO_NOISE)
    z = estimate[known] / scale
    rounded, place, counts = round_scores(z)
    posterior = Posterior(fit_prior(rounded, counts, smoothing=SMOOTH), rounded)
    mean, variance = posterior.mean[place], posterior.variance[place]
    off = z - rounded[place]
    moments = Posterior(fit_prior(rounded, counts), rounded).sum(
        np.bincount(place, scale) / counts, counts
    )
    total = moments.mean + float(off @ scale), max(math.sqrt(moments.variance), NO_NOISE)

    def quantiles(quantile: float) -> Floats:
        curve = posterior.quantile(quantile)[place]
        # Where the curve is not zero its slope is near one, so what rounding took is added back.
        return np.asarray(np.where(curve > 0, np.maximum(curve + off, 0.0), 0.0) * scale)

    level = optimize.brentq(
        lambda u: u - _exceeds(*total, float(quantiles(u).sum())), 0.0, 1.0, xtol=_FINE
    )
    share[known] = quantiles(level)
    share /= max(float(share.sum()), 1.0)
    away = (mean + off) * scale - share[known]
    error[known] = np.sqrt(variance * scale**2 + away**2)
    return share, error


def _exceeds(mean: float, spread: float, value: float) -> float:
    """Return the probability that a normal total which is at most one exceeds a value."""
    if value >= 1:
        return 0.0
    below, most = (special.log_ndtr((end - mean) / spread) for end in (value, 1.0))
    return float(-np.expm1(below - most))
