"""Closed forms: where each bit is one answer there is no regression.

Theory of operation
-------------------
Bits get noise of their own, so their estimates b are independent but for what a device says: one
answer, and not another. Their covariance V is that of the noise and of a multinomial sample. What
fits nowhere is one more cell, 1 - sum b, which is free: it tells nothing about the others.

Where the metric is complete there is no such cell, and the shares sum to one. Generalised least
squares then give (Rao, Linear statistical inference, 4a)

    b - V1 (1'b - 1) / 1'V1,    covariance V - V1 1'V / 1'V1

With k answers of the same noise the standard errors are sqrt(1 - 1/k) of those before. Tests stay
those of each bit alone, which are exact for few reports, and so do the intervals: they are moved
to the new estimate and shrink as its error does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from rappor.base.errors import DecodeError
from rappor.counts.arrays import Floats, Integers
from rappor.decoding.contrasts import add_sampling
from rappor.estimator.debias import Target
from rappor.estimator.fit import LEAST_NOISE
from rappor.estimator.proportion_tests import Proportions
from rappor.protocol.encodings import encoding_of
from rappor.protocol.params import Params


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answers:
    """What the bits say, one entry for each of k answers.

    Attributes
    ----------
    estimate, std_error : (k,) float64. The proportion, unclipped, by the inverse-variance mean
        over parameter sets, and its standard error at that proportion.
    weight : (g, k) float64. What each collection weighs in that mean.
    devices : (g,) float64. The effective number behind each collection.
    proportions : the counts themselves, for tests and intervals.
    """

    estimate: Floats
    std_error: Floats
    weight: Floats
    devices: Floats
    proportions: Proportions

    def shares(self, *, exclusive: bool) -> Floats:
        """Return the distribution answer, (k,)."""
        if not exclusive:
            return np.clip(self.estimate, 0, 1)
        if self.estimate[self.estimate > 0].sum() <= 1:
            return np.maximum(0.0, self.estimate)
        return simplex_shares(self.estimate, self.std_error**2)

    def interval(self, error: float | Floats) -> tuple[Floats, Floats]:
        """Return the ends, (k,) each, of the intervals that miss with this probability."""
        return self.proportions.interval(error)

    def covariance(self, entries: Integers) -> Floats:
        """Return the covariance of the shares of these answers, (r, r); a device gives one."""
        weight = self.weight[:, entries]
        return add_sampling(
            np.diag(self.std_error[entries] ** 2),
            self.estimate[entries],
            (weight / self.devices[:, None]).T @ weight,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompleteAnswers(Answers):
    """Answers whose shares sum to one.

    Attributes
    ----------
    alone : the answers without that.
    whole : (k, k) float64. Their covariance.
    common : (k,) float64. Covariance of each answer alone with the sum of all.
    """

    alone: Answers
    whole: Floats
    common: Floats

    @classmethod
    def of(cls, alone: Answers) -> CompleteAnswers:
        """Fit the answers together."""
        whole = alone.covariance(np.arange(len(alone.estimate)))
        common = np.maximum(whole.sum(axis=1), LEAST_NOISE)
        total = common.sum()
        whole -= np.outer(common, common) / total
        return cls(
            estimate=alone.estimate - common * (alone.estimate.sum() - 1) / total,
            std_error=np.sqrt(np.maximum(whole.diagonal(), 0.0)),
            weight=alone.weight,
            devices=alone.devices,
            proportions=alone.proportions,
            alone=alone,
            whole=whole,
            common=common,
        )

    def covariance(self, entries: Integers) -> Floats:
        """Return the covariance of the shares of these answers, (r, r)."""
        return self.whole[np.ix_(entries, entries)]

    def shares(self, *, exclusive: bool) -> Floats:  # noqa: ARG002  # they are
        """Return the distribution answer, (k,), which sums to one."""
        return simplex_shares(self.alone.estimate, self.common)

    def interval(self, error: float | Floats) -> tuple[Floats, Floats]:
        """Return the ends, (k,) each, of the intervals that miss with this probability."""
        shrunk = self.std_error / np.maximum(self.alone.std_error, LEAST_NOISE)
        low, high = (shrunk * (end - self.alone.estimate) for end in self.alone.interval(error))
        return self.estimate + low, self.estimate + high

    def describe(self) -> dict[str, Any]:
        """Say what the answers alone add up to, for the diagnostics."""
        total, error = float(self.alone.estimate.sum()), float(np.sqrt(self.common.sum()))
        return {
            "sum": total,
            "std_error": error,
            "p_value": float(2 * special.ndtr(-abs(total - 1) / error)),
        }


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
    ones = np.concatenate([counts.bit_counts for counts in target.counts]).astype(float)
    return Answers(
        estimate=estimate,
        std_error=std_error,
        weight=weight,
        devices=target.devices,
        proportions=Proportions(ones=ones, **columns),
    )


def pool(proportions: Floats, noise: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the inverse-variance mean of g collections, (k,), its error, and weights, (g, k)."""
    weight = 1 / np.maximum(noise, LEAST_NOISE)
    total = weight.sum(axis=0)
    return (weight * proportions).sum(axis=0) / total, 1 / np.sqrt(total), weight / total


def simplex_shares(estimate: Floats, variance: Floats) -> Floats:
    """Return the shares that sum to one nearest to the estimates, in standard errors.

    The likelihood is normal, so this is its maximum on the simplex: shares are
    max(0, estimate - mu variance) with mu such that they sum to one. Share i is positive
    while mu < estimate_i / variance_i, so mu is found among these ends, sorted.
    """
    ends = estimate / variance
    order = np.argsort(-ends)
    levels = (np.cumsum(estimate[order]) - 1) / np.cumsum(variance[order])
    mu = levels[np.flatnonzero(ends[order] > levels)[-1]]
    shares = np.maximum(0.0, estimate - mu * variance)
    return np.asarray(shares / shares.sum())
