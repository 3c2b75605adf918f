"""What buckets say of the numbers in them: the parts below each edge, the mean and quantiles.

Theory of operation
-------------------
All of it is of the reports whose number is in a bucket: shares over their sum S. Such a ratio
r = a's / S moves with the shares s as (a - r) / S, so it is a contrast with these weights, and has
its error by the joint covariance.

The band of the distribution function holds at all edges at once. With A_j the event that edge j is
farther off than c standard errors,

    P(any A_j) <= sum P(A_j) - sum P(A_j and A_j+1)

(Worsley, Biometrika 1982), and c is such that the right side is the error that is allowed. It
counts how often the function leaves the band, which at these levels is hardly ever twice.

A quantile's interval has all numbers at which the distribution function does not differ from the
level by more than its own errors there (Woodruff, JASA 1952, inverted as Francisco and Fuller do,
Annals of Statistics 1991: an error at the estimate instead of the number covers less). Between two
edges numbers are taken to be spread evenly. How far a number is beyond the outer edges nobody
knows: such a quantile is infinite, and the mean counts these numbers as the edge.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy import special

from rappor.base.errors import DecodeError
from rappor.counts.arrays import Floats
from rappor.decoding.contrasts import Contrast, normal_reach
from rappor.decoding.estimates import Estimates
from rappor.protocol.encodings import encoding_of

LEVELS: Final = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Quantiles that are shown."""

_FEWEST: Final = 5.0
"""Standard errors of S below which a ratio to it is not nearly normal."""

_FARTHEST: Final = 40.0
"""Standard errors beyond which a normal distribution has nothing."""

_HALVINGS: Final = 60


def describe_numbers(estimates: Estimates) -> tuple[Contrast, ...]:
    """Return the distribution function with a band, the mean, and quantiles of buckets.

    Raises
    ------
    DecodeError
        The answers are no buckets, or hardly any report has a number in one.
    """
    edges = np.array(encoding_of(estimates.collections[0].params).edges)
    if not len(edges):
        raise DecodeError("counts must be of buckets: other values have no quantiles")
    k = len(edges) + 1
    shares, covariance = estimates.covariance.contrasts(np.arange(k), np.eye(k))
    total = float(shares.sum())
    if not total > _FEWEST * np.sqrt(max(covariance.sum(), 0.0)):
        raise DecodeError(
            f"the reports with a number must be more than noise, got {total:.3g} of all"
        )

    def ratios(weights: Floats) -> tuple[Floats, Floats]:
        value = weights @ shares / total
        moved = (weights - value[:, None]) / total
        return value, moved @ covariance @ moved.T

    part, covariances = ratios(np.tri(k)[:-1])
    inner = (edges[:-1] + edges[1:]) / 2
    (mean,), ((variance,),) = ratios(np.concatenate([edges[:1], inner, edges[-1:]])[None])
    confidence = estimates.error_control.confidence
    reach, together = normal_reach(confidence), reach_of_all(covariances, 1 - confidence)
    return (
        *(
            Contrast.around(f"below {edge:g}", value, own, together)
            for edge, value, own in zip(edges, part, covariances.diagonal(), strict=True)
        ),
        # Of one edge every number counts as that edge, which is no mean.
        *(
            [Contrast.around("mean", mean, variance, reach, is_share=False)]
            if len(edges) > 1
            else []
        ),
        *(_quantile(edges, part, covariances, level, reach) for level in LEVELS),
    )


def reach_of_all(covariance: Floats, allowed: float) -> float:
    """Return how many standard errors a band reaches that misses with this probability."""
    known = covariance.diagonal() > 0
    scale = np.sqrt(covariance.diagonal()[known])
    correlation = covariance[np.ix_(known, known)] / np.outer(scale, scale)
    next_ones = np.clip(correlation.diagonal(1), -1.0, 1.0)
    low, high = 0.0, _FARTHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        outside = 2 * len(scale) * special.ndtr(-middle) - _both_outside(middle, next_ones).sum()
        low, high = (middle, high) if outside > allowed else (low, middle)
    return high


def _both_outside(limit: float, correlation: Floats) -> Floats:
    """Return how often two normal numbers of each correlation are both beyond +-limit (Owen)."""
    with np.errstate(divide="ignore"):
        slope = np.sqrt((1 - correlation) / (1 + correlation))
        away = special.owens_t(limit, slope) + special.owens_t(limit, 1 / slope)
    return np.asarray(4 * special.ndtr(-limit) - 4 * away)


def _quantile(
    edges: Floats, part: Floats, covariance: Floats, level: float, reach: float
) -> Contrast:
    """Return the number below which this part of the numbers is, infinite beyond the outer edges.

    `part` is (e,), that below each edge. Noise makes it fall in places; it is held between the most
    so far and the least to come.
    """
    error = np.sqrt(np.maximum(covariance.diagonal(), 0.0))

    def reached(n_errors: float) -> float:
        """Find the level in the parts as they are this many standard errors higher."""
        higher = part + n_errors * error
        least = np.minimum.accumulate(higher[::-1])[::-1]
        rising = (np.maximum.accumulate(higher) + least) / 2
        return float(np.interp(level, rising, edges, left=-np.inf, right=np.inf))

    low, high = reached(reach), reached(-reach)
    return Contrast(
        name="median" if level == 0.5 else f"quantile {level:g}",
        estimate=reached(0.0),
        std_error=(high - low) / (2 * reach) if np.isfinite([low, high]).all() else np.inf,
        ci_low=low,
        ci_high=high,
        p_value=None,
        is_share=False,
    )
