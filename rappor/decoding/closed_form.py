"""Closed forms: where each bit is one answer there is no regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.decoding.contrasts import add_sampling
from rappor.decoding.debias import Target
from rappor.decoding.proportions import Proportions
from rappor.ground.errors import DecodeError
from rappor.protocol.encodings import encoding_of
from rappor.protocol.params import Params

_LEAST_NOISE: Final = 1e-18
"""Variance that stands for none, where p* = 0 and nobody sends the bit: the squared share of one
report of 10^9, so that such a row decides without dividing by zero."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answers:
    """What the bits say, one entry for each of k answers.

    Attributes
    ----------
    estimate, std_error : (k,) float64. The proportion, unclipped, by the inverse-variance mean
        over parameter sets, and its standard error at that proportion.
    weight : (g, k) float64. What each collection weighs in that mean.
    proportions : the counts themselves, for tests and intervals.
    """

    estimate: NDArray[np.float64]
    std_error: NDArray[np.float64]
    weight: NDArray[np.float64]
    proportions: Proportions


def read_answers(target: Target, params: Params) -> Answers:
    """Estimate the share of reports behind each bit.

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
    estimate, std_error, weight = pool(proportions, noise)
    columns = {
        name: getattr(target, name).reshape(shape)[:, :1]
        for name in ("reports", "repeated", "p_star", "q_star", "p", "q")
    }
    ones = np.concatenate([counts.ones for counts in target.counts]).astype(float)
    return Answers(
        estimate=estimate,
        std_error=std_error,
        weight=weight,
        proportions=Proportions(ones=ones, **columns),
    )


def covariance(target: Target, answers: Answers, entries: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the covariance of the shares of these answers, (r, r), of which a device gives one."""
    weight = answers.weight[:, entries]
    devices = [
        counts.n_reports / each.reports_per_device
        for counts, each in zip(target.counts, target.repetitions, strict=True)
    ]
    return add_sampling(
        np.diag(answers.std_error[entries] ** 2),
        answers.estimate[entries],
        (weight / np.array(devices)[:, None]).T @ weight,
    )


def pool(
    proportions: NDArray[np.float64], noise: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the inverse-variance mean of g collections, (k,), its error, and weights, (g, k)."""
    weight = 1 / np.maximum(noise, _LEAST_NOISE)
    total = weight.sum(axis=0)
    return (weight * proportions).sum(axis=0) / total, 1 / np.sqrt(total), weight / total


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
