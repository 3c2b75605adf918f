"""Closed forms: where each bit is one answer there is no regression."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from rappor.decoding.debias import Target
from rappor.errors import DecodeError
from rappor.protocol.encodings import encoding_of
from rappor.protocol.params import Params

_LEAST_NOISE: Final = 1e-18
"""Variance that stands for none, where p* = 0 and nobody sends the bit: the squared share of one
report of 10^9, so that such a row decides without dividing by zero."""


def estimate_bits(
    target: Target, params: Params
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Estimate the share of reports behind each bit, by the inverse-variance mean over collections.

    Each report counts as an independent device. Where devices report repeatedly the true errors
    are larger than these: the noise of a permanent response is shared by all reports of a device.

    Returns
    -------
    estimate, std_error, p_value : (k,) float64. The proportion, unclipped; its standard
        error at that proportion; the one-sided p-value of the share being zero, from the
        noise that an all-zero bit has.

    Raises
    ------
    DecodeError: the collections do not have the same answers.
    """
    for counts in target.counts:
        if not encoding_of(params).answers_like(counts.params):
            raise DecodeError("counts must share one encoding and its categories")
    shape = (len(target.counts), params.k)
    proportions = target.proportions.reshape(shape)
    at_zero = target.noise(np.zeros(len(target))).reshape(shape)
    first = pool(proportions, at_zero)[0]
    noise = target.noise(np.tile(first, shape[0])).reshape(shape)
    estimate, std_error = pool(proportions, noise)
    null_estimate, null_error = pool(proportions, at_zero)
    return estimate, std_error, np.asarray(special.ndtr(-null_estimate / null_error))


def pool(
    proportions: NDArray[np.float64], noise: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the inverse-variance mean over collections, (k,), and its standard error."""
    weight = 1 / np.maximum(noise, _LEAST_NOISE)
    total = weight.sum(axis=0)
    return (weight * proportions).sum(axis=0) / total, 1 / np.sqrt(total)


def simplex_shares(
    estimate: NDArray[np.float64], std_error: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the shares that sum to at most one nearest to the estimates, in standard errors.

    Values that fit nowhere are the rest.

    The likelihood is normal, so this is its maximum on the simplex: shares are
    max(0, estimate - mu std_error^2) with mu such that they sum to one. Share i is positive
    while mu < estimate_i / std_error_i^2, so mu is found among these ends, sorted.
    """
    if (positive := np.maximum(0.0, estimate)).sum() <= 1:
        return positive
    variance = std_error**2
    ends = estimate / variance
    order = np.argsort(-ends)
    levels = (np.cumsum(estimate[order]) - 1) / np.cumsum(variance[order])
    mu = levels[np.flatnonzero(ends[order] > levels)[-1]]
    shares = np.maximum(0.0, estimate - mu * variance)
    return np.asarray(shares / shares.sum())
