"""Closed-form estimates for encodings in which each bit is one category.

The encodings are one-hot, boolean and buckets. The decoder calls `estimate_categories`. The input
is a `Target`, and the output the estimates of k categories. No regression is needed, because a bit
depends on one category only.

*Example.* With p* = .25 and q* = .75, a category whose bit has 300 ones in 1,000 reports has the
estimated share (.3 - .25) / .5 = .1, and the standard error sqrt(.3 (.7) / 1,000) / .5 = .029.

Theory of operation
-------------------
| symbol | meaning | shape |
|---|---|---|
| b | estimates: (c_i / N - p*) / (q* - p*) for c_i ones in N reports | (k,), shares |
| theta_i | true share of category i | share |
| mu_i | p* + (q* - p*) theta_i, the probability that bit i of a report is 1 | probability |
| V | covariance of b | (k, k) |
| 1 | vector of ones | (k,) |

V has the diagonal mu_i (1 - mu_i) / (N (q* - p*)^2) for N devices with one report each. For two
different categories i and l:

| responses of the devices | V_il |
|---|---|
| RAPPOR's two responses | -theta_i theta_l / N |
| generalized randomized response | -mu_i mu_l / (N (q* - p*)^2) |

Under RAPPOR every bit has its own noise, so only the sampling of devices connects two categories: a
device has one category, and no other. Under generalized randomized response a report names one
bucket, and no other.

Values outside all categories have the remaining share, 1 - sum b. This share may be any number, so
in general the sum of b says nothing about a single category. In a *complete* metric no value is
outside the categories, so the shares sum to 1. Generalised least squares then give (Rao, Linear
statistical inference, 4a)

    x = b - V1 (1'b - 1) / 1'V1,    covariance V - V1 1'V / 1'V1

*Derivation.* x minimises (x - b)' V^-1 (x - b) among all x with 1'x = 1. With a Lagrange multiplier
m, the derivative is 0 at x = b - m V1, and 1'x = 1 gives m = (1'b - 1) / 1'V1. So x is A b plus a
constant, with A = I - V1 1' / 1'V1, and A V A' is the covariance above. Each category loses a part
of the excess over 1, in proportion to V1, the covariance of its estimate with the sum of all
estimates.

*Example.* Three uncorrelated estimates .50, .35 and .24 of equal variance have the sum 1.09. Each
loses .03, and the result is .47, .32 and .21.

With k uncorrelated categories of the variance v, the covariance has the diagonal v (1 - 1/k), so
the standard errors become smaller by the factor sqrt(1 - 1/k). Tests still use each bit alone,
which is exact with few reports. The exact intervals of single bits are moved to the new estimates,
and shrink in proportion to the standard errors.
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
    """Estimates of k categories, one per bit, from g collections (parameter sets).

    Attributes
    ----------
    estimate, std_error : (k,) float64. Share of each category, unclipped, averaged over the
        collections by inverse variance, and its standard error.
    weight : (g, k) float64. Weight of each collection in that average. Columns sum to 1.
    devices : (g,) float64. Effective number of devices of each collection.
    params : (g,) parameter set of each collection.
    proportions : numbers of ones and of reports, for exact tests and intervals.
    """

    estimate: Floats
    std_error: Floats
    weight: Floats
    devices: Floats
    params: tuple[Params, ...]
    proportions: Proportions

    def shares(self, *, exclusive: bool) -> Floats:
        """Compute the posterior shares, (k,): the possible shares nearest to the estimates.

        Parameters
        ----------
        exclusive : True if a device has at most one of the categories. The sum of the shares is
            then at most 1. Otherwise only each share is in [0, 1].
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
        return self.adjust_interval(*self.proportions.interval(error))

    def adjust_interval(self, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """Return exact intervals of the proportions, whose ends are (k,) each, as they are.

        `CompleteCategoryEstimates` adjusts them to the sum 1.
        """
        return low, high

    def covariance(self, entries: Integers) -> Floats:
        """Compute the covariance of the shares of some categories, (r,) indices, as (r, r)."""
        share = np.clip(self.estimate[entries], 0.0, 1.0)
        covariance = np.zeros((len(entries), len(entries)))
        # Two ones of one report have the covariance `one_report` (the table of the module). Divided
        # by (q* - p*)^2 and by the number of devices, it is the covariance of the estimates of a
        # collection.
        for params, weight, devices in zip(
            self.params, self.weight[:, entries], self.devices, strict=True
        ):
            gap = params.q_star - params.p_star
            mean = params.p_star + gap * share
            one_report = params.response.compute_covariance(mean[:, None], mean[None, :])
            covariance += np.outer(weight, weight) * one_report / (devices * gap**2)
        # `compute_covariance` is for two different categories, so the diagonal is replaced.
        np.fill_diagonal(covariance, self.std_error[entries] ** 2)
        return covariance


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompleteCategoryEstimates(CategoryEstimates):
    """Estimates of k categories whose shares sum to 1.

    Attributes
    ----------
    unconstrained : the estimates without that constraint.
    joint_covariance : (k, k) float64. Covariance of the constrained estimates.
    sum_covariance : (k,) float64. V1: covariance of each unconstrained estimate with the sum of all
        unconstrained estimates.
    """

    unconstrained: CategoryEstimates
    joint_covariance: Floats
    sum_covariance: Floats

    @classmethod
    def of(cls, unconstrained: CategoryEstimates) -> CompleteCategoryEstimates:
        """Constrain the sum of the estimates to 1."""
        joint_covariance = unconstrained.covariance(np.arange(len(unconstrained.estimate)))
        # Without noise (p* = 0) and without reports of a category its variance is 0. The bound
        # avoids a division by zero.
        sum_covariance = np.maximum(joint_covariance.sum(axis=1), LEAST_NOISE)
        sum_variance = sum_covariance.sum()
        joint_covariance -= np.outer(sum_covariance, sum_covariance) / sum_variance
        excess = unconstrained.estimate.sum() - 1
        return cls(
            estimate=unconstrained.estimate - sum_covariance * excess / sum_variance,
            std_error=np.sqrt(np.maximum(joint_covariance.diagonal(), 0.0)),
            weight=unconstrained.weight,
            devices=unconstrained.devices,
            params=unconstrained.params,
            proportions=unconstrained.proportions,
            unconstrained=unconstrained,
            joint_covariance=joint_covariance,
            sum_covariance=sum_covariance,
        )

    def covariance(self, entries: Integers) -> Floats:
        """Return the covariance of the shares of some categories, (r,) indices, as (r, r)."""
        return self.joint_covariance[np.ix_(entries, entries)]

    def shares(self, *, exclusive: bool) -> Floats:  # noqa: ARG002  # complete ones exclude each other
        """Compute the posterior shares, (k,), which sum to 1."""
        # With V1 in place of variances, the projection subtracts a multiple of V1, as the
        # constrained estimate does. Both are equal unless a share would be negative.
        return project_on_simplex(self.unconstrained.estimate, self.sum_covariance)

    def adjust_interval(self, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """Scale and move the exact intervals of the proportions, whose ends are (k,) each."""
        # The tests of single bits are exact. The constraint only reduces the error, so the exact
        # interval is scaled and moved instead of being replaced by a normal one.
        shrunk = self.std_error / np.maximum(self.unconstrained.std_error, LEAST_NOISE)
        low, high = (shrunk * (end - self.unconstrained.estimate) for end in (low, high))
        return self.estimate + low, self.estimate + high

    def describe(self) -> dict[str, Any]:
        """Describe the sum of the unconstrained estimates, for the diagnostics.

        The p-value tests the hypothesis that the sum of the true shares is 1. A small p-value means
        that the metric is not complete.
        """
        total = float(self.unconstrained.estimate.sum())
        error = float(np.sqrt(self.sum_covariance.sum()))
        return {
            "sum": total,
            "std_error": error,
            "p_value": float(2 * special.ndtr(-abs(total - 1) / error)),
        }


def estimate_categories(target: Target, params: Params) -> CategoryEstimates:
    """Estimate the share of the reports with each category.

    Parameters
    ----------
    target : the rows of g collections, each with one cohort and k bits.
    params : a parameter set whose categories all collections must have.

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
    noise_at_zero = target.compute_noise_variance(np.zeros(len(target))).reshape(shape)
    # The noise depends on the shares, so the average is computed twice: first with the noise at
    # the share 0, then with the noise at the first average.
    first_estimate = average_by_precision(proportions, noise_at_zero)[0]
    noise = target.compute_noise_variance(np.tile(first_estimate, shape[0])).reshape(shape)
    estimate, std_error, weight = average_by_precision(proportions, noise)
    # All bits of a collection have the same number of reports and the same probabilities, so one
    # column is enough.
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
    """Average the proportions of g collections by inverse variance.

    Parameters
    ----------
    proportions : (g, k) float64.
    noise : (g, k) float64. Variance of each proportion.

    Returns
    -------
    mean, std_error : (k,) float64 each.
    weight : (g, k) float64. Columns sum to 1.
    """
    weight = 1 / np.maximum(noise, LEAST_NOISE)
    total = weight.sum(axis=0)
    return (weight * proportions).sum(axis=0) / total, 1 / np.sqrt(total), weight / total


def project_on_simplex(estimate: Floats, variance: Floats) -> Floats:
    """Compute the shares with sum 1 that are nearest to the estimates, in standard errors.

    The *simplex* is the set of shares that are at least 0 and sum to 1. The result minimises the
    sum of (share - estimate)^2 / variance on the simplex. With mu the Lagrange multiplier of the
    sum, the derivative is 0 at share = estimate - mu variance, or the share is 0. So the shares are

        max(0, estimate - mu variance)

    with mu chosen so that they sum to 1 (Duchi et al., ICML 2008, for equal variances). Share i is
    positive while mu < estimate_i / variance_i. Sorting these limits, largest first, gives mu: if
    the first j categories are positive, mu is (sum of their estimates - 1) / sum of their
    variances. The largest j whose last limit is above its mu is right.

    Parameters
    ----------
    estimate, variance : (k,) float64. All variances are positive.

    Returns
    -------
    (k,) float64, at least 0, with sum 1.

    Examples
    --------
    >>> project_on_simplex(np.array([0.7, 0.5, -0.1]), np.array([1.0, 1.0, 1.0])).round(2).tolist()
    [0.6, 0.4, 0.0]
    """
    limits = estimate / variance
    order = np.argsort(-limits)
    # mu if exactly the first 1, 2, ... k categories of this order had positive shares.
    possible_mu = (np.cumsum(estimate[order]) - 1) / np.cumsum(variance[order])
    mu = possible_mu[np.flatnonzero(limits[order] > possible_mu)[-1]]
    shares = np.maximum(0.0, estimate - mu * variance)
    return np.asarray(shares / shares.sum())
