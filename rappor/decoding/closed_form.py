"""Closed-form estimates for encodings in which each bit is one category.

No regression is needed.

Theory of operation
-------------------
Let mu_i = p* + (q* - p*) theta_i be the probability that bit i of a report is 1. The covariance V
of the estimates b of N devices has the diagonal mu_i (1 - mu_i) / (N (q* - p*)^2). For two
categories:

    mechanism                          V_il
    RAPPOR's responses                 -theta_i theta_l / N
    generalized randomized response    -mu_i mu_l / (N (q* - p*)^2)

Under RAPPOR every bit has its own noise, so only the sampling of devices connects two categories: a
device has one category, and no other. Under generalized randomized response a report names one
bucket, and no other. Values outside all categories form one more cell, 1 - sum b, which is free and
carries no information about the others.

In a complete metric there is no such cell, and the shares sum to 1. Generalised least squares then
give (Rao, Linear statistical inference, 4a)

    b - V1 (1'b - 1) / 1'V1,    covariance V - V1 1'V / 1'V1

With k categories of equal noise the standard errors are sqrt(1 - 1/k) of the errors before. Tests
still use each bit alone, which is exact with few reports. The intervals are moved to the new
estimate, and shrink in proportion to its error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from rappor.base.errors import DecodeError
from rappor.counts.arrays import Floats, Integers
from rappor.estimator.debias import Target
from rappor.estimator.fit import LEAST_NOISE
from rappor.estimator.proportion_tests import Proportions
from rappor.protocol.encodings import get_encoding
from rappor.protocol.params import Params


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CategoryEstimates:
    """Estimates of k categories, one per bit.

    Attributes
    ----------
    estimate, std_error : (k,) float64. The proportion, unclipped, by the inverse-variance mean over
        parameter sets, and its standard error at that proportion.
    weight : (g, k) float64. Weight of each collection in that mean.
    devices : (g,) float64. Effective number of devices of each collection.
    params : parameters of each collection.
    proportions : the counts, for tests and intervals.
    """

    estimate: Floats
    std_error: Floats
    weight: Floats
    devices: Floats
    params: tuple[Params, ...]
    proportions: Proportions

    def shares(self, *, exclusive: bool) -> Floats:
        """Compute the posterior shares, (k,).

        They are not negative, and their sum is at most 1 if the categories exclude each other.
        """
        if not exclusive:
            # The encoding `boolean` has one share, which is bounded alone.
            return np.clip(self.estimate, 0, 1)
        # If the positive estimates leave room for values outside all categories, only negative
        # estimates are impossible.
        if self.estimate[self.estimate > 0].sum() <= 1:
            return np.maximum(0.0, self.estimate)
        return project_on_simplex(self.estimate, self.std_error**2)

    def interval(self, error: float | Floats) -> tuple[Floats, Floats]:
        """Compute the ends, (k,) each, of the intervals that miss with this probability."""
        return self.proportions.interval(error)

    def covariance(self, entries: Integers) -> Floats:
        """Compute the covariance of the shares of some categories, (r, r)."""
        share = np.clip(self.estimate[entries], 0.0, 1.0)
        covariance = np.zeros((len(entries), len(entries)))
        # A collection has the same covariance for one device, divided by its number of devices.
        for params, weight, devices in zip(
            self.params, self.weight[:, entries], self.devices, strict=True
        ):
            gap = params.q_star - params.p_star
            mean = params.p_star + gap * share
            one_report = params.response.compute_covariance(mean[:, None], mean[None, :])
            covariance += np.outer(weight, weight) * one_report / (devices * gap**2)
        np.fill_diagonal(covariance, self.std_error[entries] ** 2)
        return covariance


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompleteCategoryEstimates(CategoryEstimates):
    """Estimates of k categories whose shares sum to 1.

    Attributes
    ----------
    unconstrained : the estimates without that constraint.
    joint_covariance : (k, k) float64. Covariance of the constrained estimates.
    common : (k,) float64. Covariance of each unconstrained estimate with the sum of all.
    """

    unconstrained: CategoryEstimates
    joint_covariance: Floats
    common: Floats

    @classmethod
    def of(cls, unconstrained: CategoryEstimates) -> CompleteCategoryEstimates:
        """Constrain the sum of the estimates to 1."""
        joint_covariance = unconstrained.covariance(np.arange(len(unconstrained.estimate)))
        # Without noise (p* = 0) and without reports of a category its variance is 0. The bound
        # avoids a division by zero.
        common = np.maximum(joint_covariance.sum(axis=1), LEAST_NOISE)
        total = common.sum()
        joint_covariance -= np.outer(common, common) / total
        return cls(
            estimate=unconstrained.estimate - common * (unconstrained.estimate.sum() - 1) / total,
            std_error=np.sqrt(np.maximum(joint_covariance.diagonal(), 0.0)),
            weight=unconstrained.weight,
            devices=unconstrained.devices,
            params=unconstrained.params,
            proportions=unconstrained.proportions,
            unconstrained=unconstrained,
            joint_covariance=joint_covariance,
            common=common,
        )

    def covariance(self, entries: Integers) -> Floats:
        """Return the covariance of the shares of some categories, (r, r)."""
        return self.joint_covariance[np.ix_(entries, entries)]

    def shares(self, *, exclusive: bool) -> Floats:  # noqa: ARG002  # they are
        """Compute the posterior shares, (k,), which sum to 1."""
        return project_on_simplex(self.unconstrained.estimate, self.common)

    def interval(self, error: float | Floats) -> tuple[Floats, Floats]:
        """Compute the ends, (k,) each, of the intervals that miss with this probability."""
        # The tests of single bits are exact. The constraint only reduces the error, so the exact
        # interval is scaled and moved instead of being replaced by a normal one.
        shrunk = self.std_error / np.maximum(self.unconstrained.std_error, LEAST_NOISE)
        low, high = (
            shrunk * (end - self.unconstrained.estimate)
            for end in self.unconstrained.interval(error)
        )
        return self.estimate + low, self.estimate + high

    def describe(self) -> dict[str, Any]:
        """Describe the sum of the unconstrained estimates, for the diagnostics."""
        total, error = float(self.unconstrained.estimate.sum()), float(np.sqrt(self.common.sum()))
        return {
            "sum": total,
            "std_error": error,
            "p_value": float(2 * special.ndtr(-abs(total - 1) / error)),
        }


def estimate_categories(target: Target, params: Params) -> CategoryEstimates:
    """Estimate the share of the reports with each category.

    Raises
    ------
    DecodeError
        The collections do not have the same categories.
    """
    for counts in target.counts:
        # Bit i of two collections with different categories has different meanings.
        if not get_encoding(params).has_same_categories(counts.params):
            raise DecodeError("counts must share one encoding and its categories")
    n_categories = len(get_encoding(params).category_labels)
    shape = (len(target.counts), n_categories)
    proportions = target.proportions.reshape(shape)
    at_zero = target.compute_noise_variance(np.zeros(len(target))).reshape(shape)
    # The noise depends on the shares, so the mean is computed twice: first with the noise at 0,
    # then at the first mean.
    first = average_by_precision(proportions, at_zero)[0]
    noise = target.compute_noise_variance(np.tile(first, shape[0])).reshape(shape)
    estimate, std_error, weight = average_by_precision(proportions, noise)
    columns = {
        name: getattr(target, name).reshape(shape)[:, :1]
        for name in ("reports", "reports_per_device", "p_star", "q_star", "p", "q")
    }
    ones = np.concatenate([counts.bit_counts[:, :n_categories] for counts in target.counts])
    return CategoryEstimates(
        estimate=estimate,
        std_error=std_error,
        weight=weight,
        devices=target.effective_devices,
        params=tuple(counts.params for counts in target.counts),
        proportions=Proportions(ones=ones.astype(float), **columns),
    )


def average_by_precision(proportions: Floats, noise: Floats) -> tuple[Floats, Floats, Floats]:
    """Compute the inverse-variance mean of g collections.

    Returns
    -------
    The mean, (k,), its standard error, (k,), and the weights, (g, k).
    """
    weight = 1 / np.maximum(noise, LEAST_NOISE)
    total = weight.sum(axis=0)
    return (weight * proportions).sum(axis=0) / total, 1 / np.sqrt(total), weight / total


def project_on_simplex(estimate: Floats, variance: Floats) -> Floats:
    """Compute the shares with sum 1 that are nearest to the estimates, in standard errors.

    The likelihood is normal, so the result is its maximum on the simplex: the shares are max(0,
    estimate - mu variance), with mu chosen so that they sum to 1. Share i is positive while mu <
    estimate_i / variance_i, so mu is found among these sorted limits.
    """
    ends = estimate / variance
    order = np.argsort(-ends)
    levels = (np.cumsum(estimate[order]) - 1) / np.cumsum(variance[order])
    mu = levels[np.flatnonzero(ends[order] > levels)[-1]]
    shares = np.maximum(0.0, estimate - mu * variance)
    return np.asarray(shares / shares.sum())
