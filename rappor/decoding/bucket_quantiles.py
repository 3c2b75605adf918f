"""Distribution function, mean and quantiles of the numbers in buckets.

`describe_numbers` is the public function. The input is the decode of a metric whose values are
numbers in buckets. The output is a list of contrasts with intervals.

Theory of operation
-------------------
| symbol | meaning | shape |
|---|---|---|
| s | shares of the k buckets | (k,) |
| S | sum of s: share of the reports with a number in a bucket | number |
| a | weights of the buckets | (k,) |
| a . s | sum of a_i s_i over all buckets i | number |
| r | a statistic: the ratio (a . s) / S | number |
| A_j | event that the share below edge j is more than c standard errors from the truth | |
| c | half width of the band, in standard errors | number |

All statistics describe the reports whose number is in a bucket: shares divided by their sum S. The
derivative of such a ratio r = (a . s) / S by the share s_i follows from the quotient rule. The
numerator has the derivative a_i, and S has the derivative 1:

    a_i / S - (a . s) / S^2 = (a_i - r) / S

The error of the ratio is therefore nearly the error of a weighted sum of the shares, with these
derivatives as weights. Its variance is computed from the joint covariance of the shares.

*Example.* The edges 0, 10 and 20 make four buckets, with the shares .1, .5, .3 and .05, S = .95.
The share below 10 has a = (1, 1, 0, 0), so it is .6 / .95 = .63. The mean has a = (0, 5, 15, 20):
the edge 0, two middles, and the edge 20.

The *band* of the distribution function contains an interval for the share below each edge. With the
given confidence, all of these intervals contain the truth at once. Its half width c is chosen so
that the right side of this bound equals the error probability (Worsley, Biometrika 1982):

    P(any A_j) <= sum P(A_j) - sum P(A_j and A_j+1)

P(A_j) is the probability of two normal tails beyond c, and P(A_j and A_j+1) follows from the
correlation of the shares below two neighbouring edges (`_compute_joint_tail`). The right side is
the expected number of times that the truth, from edge to edge, leaves the band or begins outside.
At usual confidence levels this is rarely more than once, so the bound is close.

The interval of a quantile contains all numbers x at which the estimated distribution function
differs from the level by at most z of its standard errors at x (Woodruff, JASA 1952; Francisco and
Fuller, Annals of Statistics 1991). With the standard error at the estimated quantile in place of
the standard error at x, the interval would contain the truth less often.

Numbers between two edges are assumed to be spread evenly. The counts contain no information about
numbers beyond the outer edges. A quantile there is infinite, and the mean counts these numbers as
the edge.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy import special

from rappor.base.errors import DecodeError
from rappor.counts.arrays import Floats
from rappor.decoding.contrasts import Contrast, compute_critical_value
from rappor.decoding.estimates import Estimates
from rappor.protocol.encodings import get_encoding

LEVELS: Final = (0.1, 0.25, 0.5, 0.75, 0.9)
"""The result contains the quantiles at these levels. A level is the share of the numbers below the
quantile."""

_SMALLEST_TOTAL: Final = 5.0
"""Smallest S, as a multiple of the standard error of S. The ratio to a smaller sum is not nearly
normal, and its interval would contain the truth too rarely."""

_LARGEST_HALF_WIDTH: Final = 40.0
"""Largest half width of a band, in standard errors. The bisection begins with it as upper limit.
The probability of a normal number above 40 standard errors is smaller than the smallest float64
above 0, so a larger limit would not change a result."""

_HALVINGS: Final = 60
"""Number of bisections. They find a half width to the rounding error of a float64."""


def describe_numbers(estimates: Estimates) -> tuple[Contrast, ...]:
    """Compute the distribution function with a band, the mean, and quantiles of buckets.

    Parameters
    ----------
    estimates : the decode of a metric with the encoding `buckets`.

    Returns
    -------
    Contrasts in this order: the share below each edge, with a band that contains all shares at
    once; the mean, unless there is only one edge; the quantiles of `LEVELS`. Mean and quantiles are
    in the unit of the numbers. All other intervals are for each contrast alone.

    Raises
    ------
    DecodeError
        The encoding has no buckets, or hardly any report has a number in a bucket.

    Examples
    --------
    >>> from rappor import Params, Population, decode, simulate_counts
    >>> params = Params.profile("balanced", encoding="buckets", categories=("0", "10", "20"))
    >>> counts = simulate_counts(
    ...     Population(["5", "15"], [1, 1]), params, n_reports=100_000, seed=1
    ... )
    >>> names = [contrast.name for contrast in describe_numbers(decode(counts))]
    >>> names[:4], names[-3]
    (['below 0', 'below 10', 'below 20', 'mean'], 'median')
    """
    edges = np.array(get_encoding(estimates.collections[0].params).edges)
    if not len(edges):
        raise DecodeError("counts must be of buckets: other values have no quantiles")
    k = len(edges) + 1
    shares, covariance = estimates.covariance.compute_contrasts(np.arange(k), np.eye(k))
    total = float(shares.sum())
    # A ratio to a sum near 0 has no useful standard error.
    total_std_error = np.sqrt(max(covariance.sum(), 0.0))
    if not total > _SMALLEST_TOTAL * total_std_error:
        raise DecodeError(
            f"the reports with a number must be more than noise, got {total:.3g} of all"
        )

    def compute_ratios(weights: Floats) -> tuple[Floats, Floats]:
        """Compute ratios r, (t,), with weights a, (t, k), and their covariance, (t, t)."""
        value = weights @ shares / total
        derivative = (weights - value[:, None]) / total
        return value, derivative @ covariance @ derivative.T

    below_edges, covariances = compute_ratios(np.tri(k)[:-1])
    # The mean counts each number as the middle of its bucket, and numbers beyond the outer edges as
    # the edge.
    middles = (edges[:-1] + edges[1:]) / 2
    number_of_bucket = np.concatenate([edges[:1], middles, edges[-1:]])
    # The mean is one ratio, so its weights are one row, and its covariance has one entry.
    means, mean_covariance = compute_ratios(number_of_bucket[None, :])
    mean, variance = means[0], mean_covariance[0, 0]
    confidence = estimates.error_control.confidence
    critical_value, band_critical_value = (
        compute_critical_value(confidence),
        compute_band_critical_value(covariances, 1 - confidence),
    )
    return (
        *(
            Contrast.from_variance(f"below {edge:g}", value, edge_variance, band_critical_value)
            for edge, value, edge_variance in zip(
                edges, below_edges, covariances.diagonal(), strict=True
            )
        ),
        # With one edge every number counts as this edge, which is no mean.
        *(
            [Contrast.from_variance("mean", mean, variance, critical_value, is_share=False)]
            if len(edges) > 1
            else []
        ),
        *(
            _compute_quantile(edges, below_edges, covariances, level, critical_value)
            for level in LEVELS
        ),
    )


def compute_band_critical_value(covariance: Floats, allowed: float) -> float:
    """Compute the half width c of a band that misses the truth with a given probability.

    Parameters
    ----------
    covariance : (e, e) float64. Covariance of the shares below e edges.
    allowed : probability that the share below any edge is outside the band.

    Returns
    -------
    The half width, in standard errors.
    """
    # An edge without variance is never outside the band, and its correlation is undefined.
    is_random = covariance.diagonal() > 0
    scale = np.sqrt(covariance.diagonal()[is_random])
    correlation = covariance[np.ix_(is_random, is_random)] / np.outer(scale, scale)
    next_correlations = np.clip(correlation.diagonal(1), -1.0, 1.0)
    low, high = 0.0, _LARGEST_HALF_WIDTH
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        outside = (
            2 * len(scale) * special.ndtr(-middle)
            - _compute_joint_tail(middle, next_correlations).sum()
        )
        low, high = (middle, high) if outside > allowed else (low, middle)
    return high


def _compute_joint_tail(limit: float, correlation: Floats) -> Floats:
    """Compute P(|x| > c and |y| > c) of two standard normal numbers by Owen's T function.

    Let x and y have the correlation rho, and let b = sqrt((1 - rho) / (1 + rho)). Owen (Annals of
    Mathematical Statistics 1956) expresses the bivariate normal distribution by his function T. For
    equal limits this gives

        P(x > c and y > c) = Phi(-c) - 2 T(c, b)

    with Phi the normal distribution function. The pair x and -y has the correlation -rho, for which
    b becomes 1 / b. Of the four cases of signs, two have the correlation rho and two have -rho:

        P(|x| > c and |y| > c) = 4 Phi(-c) - 4 T(c, b) - 4 T(c, 1 / b)

    Parameters
    ----------
    limit : c, above 0.
    correlation : (t,) float64. Correlations of t pairs.

    Returns
    -------
    (t,) float64.
    """
    # A correlation of 1 or -1 divides by zero. One of b and 1 / b is then infinite, and `owens_t`
    # returns the exact value for infinity.
    with np.errstate(divide="ignore"):
        slope = np.sqrt((1 - correlation) / (1 + correlation))  # b
        owen = special.owens_t(limit, slope) + special.owens_t(limit, 1 / slope)
    return np.asarray(4 * special.ndtr(-limit) - 4 * owen)


def _compute_quantile(
    edges: Floats, below_edges: Floats, covariance: Floats, level: float, critical_value: float
) -> Contrast:
    """Compute the quantile of a level: the number below which this share of all numbers lies.

    The quantile is infinite beyond the outer edges.

    Parameters
    ----------
    edges : (e,) float64, increasing. Edges of the buckets.
    below_edges : (e,) float64. Share of the numbers below each edge. Noise can make it decrease.
    covariance : (e, e) float64. Covariance of these shares.
    level : share of the numbers below the quantile, in (0, 1).
    critical_value : half width of the interval, in standard errors.
    """
    error = np.sqrt(np.maximum(covariance.diagonal(), 0.0))

    def find_number(n_errors: float) -> float:
        """Find the quantile if all shares were higher by this number of standard errors."""
        higher = below_edges + n_errors * error
        # A distribution function never decreases, but noise can make the shares decrease. So each
        # share is replaced by the mean of two numbers that never decrease: the largest share up to
        # this edge, and the smallest share from this edge on.
        smallest_to_come = np.minimum.accumulate(higher[::-1])[::-1]
        rising = (np.maximum.accumulate(higher) + smallest_to_come) / 2
        return float(np.interp(level, rising, edges, left=-np.inf, right=np.inf))

    # Higher shares below the edges mean smaller numbers.
    low, high = find_number(critical_value), find_number(-critical_value)
    std_error = np.inf
    if np.isfinite([low, high]).all():
        std_error = (high - low) / (2 * critical_value)
    return Contrast(
        name="median" if level == 0.5 else f"quantile {level:g}",
        estimate=find_number(0.0),
        std_error=std_error,
        ci_low=low,
        ci_high=high,
        p_value=None,
        is_share=False,
    )
