"""Changes of the share of each category, where every bit is a category.

Categories are the values of the encodings one-hot, boolean and buckets. `Samples.estimate_changes`
calls `estimate_category_changes`. The input is T samples, such as weeks, and their weights, which
sum to 0. The output is the change of each of k categories. `change_regression.py` does the same for
strings, where one bit belongs to several strings.

The idea
--------
The share of a category in one sample has an exact interval, which is valid with few reports, too.
The interval of a change is built from these intervals: the distances between an estimate and its
interval ends are added like standard errors, as the root of the sum of their squares.

*Example.* A category has the share .20 with the interval .17 to .24 in the first week, and .30 with
the interval .26 to .33 in the second week. With the weights -1 and 1 the change is .10. It is
smallest if the first share is at its upper end, .04 higher, and the second share at its lower end,
.04 lower. If the weeks have different devices, both errors are independent, so the lower end of the
change is .10 - sqrt(.04^2 + .04^2) = .043. In the same way its upper end is
.10 + sqrt(.03^2 + .03^2) = .142.

The steps:

1. Estimate the categories of each sample, and the part of their variance that comes from the
   devices (`_read_sample`).
2. Add the estimates, multiplied by their weights.
3. Add the squared distances. If samples have devices in common, a part of their noise is equal and
   cancels (`_combine`).
4. Add the variance of the devices that changed their value (`_add_changed_devices`).
5. Find the p-value: the error probability at which the interval begins to include 0.

Theory of operation
-------------------
| symbol | meaning |
|---|---|
| w_t | weight of sample t |
| beta_t | estimated share of a category in sample t |
| l_t, u_t | ends of the exact interval of the share (`rappor.estimator.proportion_tests`) |
| rho | correlation of the device noise of two samples: 1 if they have the same devices |

The estimate of the change is the sum of w_t beta_t. The lower end of its interval combines the
lower ends of the shares with positive weight and the upper ends of the shares with negative weight.
Their distances from the estimates are squared and added:

    e_t = l_t if w_t > 0, u_t if w_t < 0
    lower end = estimate - sqrt(sum over t of (w_t (beta_t - e_t))^2)

The upper end exchanges l_t and u_t.

This is method 10 of Newcombe (Statistics in Medicine 1998), with exact intervals in place of
Wilson's. Zou and Donner (Statistics in Medicine 2008) extend it to any weights and to correlated
estimates.

Samples may have devices in common. So each squared distance is split into two parts. The part that
comes from the devices has the correlation rho between samples. The part that comes from the coins
of each report is independent.

An end of the interval is a possible true change. If that change is not 0, some devices changed
their value, and their noise does not cancel. The distance of an end therefore includes the variance
of as many devices as a change of this size needs (`rappor.comparison.shared_devices`). If rho is
unknown, the largest possible variance of the device parts is assumed. It belongs to samples of
different devices, whose noise does not cancel, so nothing is added for devices that changed.

In a *complete* metric every value is in a category, so the true shares sum to 1. The estimates of
each sample are then adjusted to the sum 1, which reduces their variances and correlates them
(`rappor.decoding.closed_form`).

The p-value comes from the interval, so test and interval never contradict each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import special

from rappor.comparison.change_regression import Changes
from rappor.comparison.shared_devices import (
    ChangeVariance,
    compute_changed_sampling,
    compute_device_variance,
    estimate_other_changes,
)
from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.decoding.closed_form import (
    CategoryEstimates,
    CompleteCategoryEstimates,
    estimate_categories,
)
from rappor.estimator.debias import debias
from rappor.estimator.device_assumptions import AddedCollections
from rappor.estimator.fit import LEAST_NOISE
from rappor.estimator.proportion_tests import LARGEST_TAIL_SCORE, Proportions

_LARGEST_Z: Final = 37.0
"""Largest z score of the search for a p-value. Its p-value is about 1e-299, near the smallest
positive float64."""

_Z_STEPS: Final = 1 << 20
"""Number of steps into which `_LARGEST_Z` is divided. A step is 37 / 2^20 = 4e-5, the precision of
a z score. A p-value falls about as exp(-z^2 / 2), so a change of z by 4e-5 changes it by the factor
1 + 4e-5 z: by 2e-3 at the largest z, and by less elsewhere."""

_STEPS_PER_HALVING: Final = 8
"""One in so many steps of the search for a z score halves the range. The search then ends after at
most 8 * 20 steps, whatever the interval is like. Six steps are usual, and a smaller number would
add steps."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Sample:
    """The k categories of one sample, and the variance of its devices.

    Attributes
    ----------
    categories : estimates and exact intervals of the categories.
    device_share : (k,) float64. The part of the variance of each estimate that comes from the
        devices, divided by the whole variance.
    per_device : (k,) float64. 1 / (effective number of devices): the variance of an estimate that
        comes from the devices, if the variance of each device is 1.
    permanent : (2, k) float64. Variance of the permanent response of one device to a 0 and to a 1,
        after de-biasing, so in squared shares.
    """

    categories: CategoryEstimates | CompleteCategoryEstimates
    device_share: Floats
    per_device: Floats
    permanent: Floats


class CategoryContrast:
    """Weighted sums of the shares of several samples, with intervals and p-values.

    Attributes
    ----------
    categories : list of T estimates, one for each sample.
    device_share : (T, k) float64. As in `_Sample`.
    weights : (T, 1) float64. Weights of the samples.
    device_correlation : rho; None if unknown.
    estimate : (k,) float64. The weighted sum of each category.
    changed : variance that a change adds to each sum, from devices that changed to or from the
        category.
    """

    def __init__(
        self,
        samples: Sequence[AddedCollections],
        weights: Floats,
        device_correlation: float | None,
        *,
        complete: bool,
    ) -> None:
        """Compute the estimates of all samples, and the variance of devices that changed.

        Raises
        ------
        DecodeError
            The samples have different categories.
        """
        counts = [collection for sample in samples for collection in sample.counts]
        repetitions = [repetition for sample in samples for repetition in sample.repetitions]
        # Only for its DecodeError if the samples have different categories. The estimates of all
        # samples together are not used.
        estimate_categories(debias(counts, repetitions), counts[0].params)
        read_samples = [_read_sample(sample, complete=complete) for sample in samples]
        self.categories = [sample.categories for sample in read_samples]
        self._joined_proportions = self._join_proportions()
        self.device_share = np.array([sample.device_share for sample in read_samples])
        self.weights, self.device_correlation = weights[:, None], device_correlation
        self.estimate = np.asarray(
            weights @ np.array([categories.estimate for categories in self.categories])
        )
        # Standard error of each sum if no share changed.
        self._null_error = self._combine(
            np.array([categories.std_error for categories in self.categories])
        )
        zeros = np.zeros(len(self.estimate))
        # Variance from devices that changed to or from the category, and from devices that changed
        # between two other categories. Without common devices (rho = 0) both are 0.
        self.changed, self._other_devices_variance = ChangeVariance(zeros, zeros), zeros
        if device_correlation:
            self._add_changed_devices(read_samples, device_correlation)

    def _add_changed_devices(self, samples: Sequence[_Sample], device_correlation: float) -> None:
        """Compute the variance of devices whose value changed (rho > 0).

        With common devices, the noise of a device with the same value cancels in the change. The
        noise of a device with a new value does not cancel: it draws a new permanent response.
        Without its variance, intervals covered the true changes too rarely.

        A change delta has the variance of `ChangeVariance`, |delta| linear - delta^2 square, from
        devices that changed to or from the category (`rappor.comparison.shared_devices` derives all
        formulas). With v_0 and v_1 the variances of the permanent response to a 0 and to a 1,
        `linear` contains the factor 1 + v_0 + v_1: the 1 is the sampling of these devices.
        """
        noise = np.maximum([sample.std_error**2 for sample in self.categories], LEAST_NOISE)
        # (T, k): if the change were 1, the share in each sample, minus the mean of all samples. A
        # sample whose weight or noise is large takes a larger part of the change
        # (`rappor.comparison.contrast_rows` derives the formula).
        slope = self.weights * noise / (self.weights**2 * noise).sum(axis=0)
        per_device = np.array([sample.per_device for sample in samples])
        weights = np.broadcast_to(self.weights, per_device.shape)
        linear, square = (
            device_correlation * part
            for part in compute_changed_sampling(weights, per_device, slope)
        )
        zero_variance, one_variance = np.mean([sample.permanent for sample in samples], axis=0)
        self.changed = ChangeVariance(linear * (1 + zero_variance + one_variance), square)
        # A device that changes between two other categories has a 0 of this category in both
        # samples, and draws a new permanent response to it. The difference of its two responses has
        # the variance 2 v_0. `estimate_other_changes` estimates the share of such devices from the
        # changes of all categories that are significant by a normal test.
        z = np.abs(self.estimate) / np.maximum(self._null_error, 1e-300)
        self._other_devices_variance = (
            2 * zero_variance * linear * estimate_other_changes(self.estimate, 2 * special.ndtr(-z))
        )

    @property
    def std_error(self) -> Floats:
        """The standard error of each sum, (k,), at a change as large as the estimate."""
        return np.sqrt(
            self._null_error**2
            + self._other_devices_variance
            + self.changed.variance_at(self.estimate)
        )

    @property
    def p_value(self) -> Floats:
        """The error probability, (k,), at which each interval ends at 0.

        The search is for the z score of this error probability, as a number of steps of which
        `_Z_STEPS` are `_LARGEST_Z`. The interval excludes 0 at `outside` and contains it at
        `inside`, and the search ends when both are neighbours. The next number follows from the
        distances between 0 and the nearer end of the interval, by the Illinois method
        (`rappor.estimator.proportion_tests`).
        """
        k = len(self.estimate)

        def compute_distance(steps: Integers) -> Floats:
            """Compute the distance of 0 from each interval, (k,), negative inside the interval."""
            low, high = self.interval(2 * special.ndtr(-_LARGEST_Z / _Z_STEPS * steps))
            return np.asarray(np.maximum(low, -high))

        # Tails of proportions end at the score `LARGEST_TAIL_SCORE`: beyond, the intervals of the
        # samples jump to the largest possible ones. Most frequent case of a significant change: the
        # interval excludes 0 before the jump and contains it after the jump.
        after_jump = int(LARGEST_TAIL_SCORE / _LARGEST_Z * _Z_STEPS) + 1
        distance = compute_distance(np.full(k, after_jump))
        is_excluded = distance > 0
        outside = np.where(is_excluded, after_jump, 0)
        inside = np.where(is_excluded, _Z_STEPS, after_jump)
        # Distances of the normal interval, because the distance after the jump is not that before.
        distance_outside = np.where(is_excluded, distance, np.abs(self.estimate))
        distance_inside = np.minimum(
            np.abs(self.estimate) - _LARGEST_Z / _Z_STEPS * inside * self.std_error, 0.0
        )
        was_excluded: Booleans | None = None
        for step in itertools.count(1):
            width = inside - outside
            if (width <= 1).all():
                break
            fraction = np.full(k, 0.5)
            if step % _STEPS_PER_HALVING:
                difference = distance_outside - distance_inside
                np.divide(distance_outside, difference, out=fraction, where=difference > 0)
            # A finished row has no number between its neighbours. Its `outside` is tried again, and
            # rounding of an end of its interval must not change it.
            is_open = width > 1
            tried = np.clip(
                outside + np.rint(width * fraction).astype(np.int64),
                outside + is_open,
                inside - 1,
            )
            distance = compute_distance(tried)
            is_excluded = distance > 0
            # After two numbers on the same side, the distance on the other side is halved, so that
            # the other side moves soon.
            is_same_side = False if was_excluded is None else is_excluded == was_excluded
            kept = np.where(is_same_side, 0.5, 1.0)
            distance_outside = np.where(is_excluded, distance, kept * distance_outside)
            distance_inside = np.where(is_excluded, kept * distance_inside, distance)
            outside = np.where(is_open & is_excluded, tried, outside)
            inside = np.where(is_open & ~is_excluded, tried, inside)
            was_excluded = is_excluded
        return np.asarray(2 * special.ndtr(-_LARGEST_Z / _Z_STEPS * outside))

    def interval(self, error: float | Floats) -> tuple[Floats, ...]:
        """Compute the ends, (k,) each, of intervals with this error probability.

        Parameters
        ----------
        error : probability that the interval misses the true change, a number or (k,) float64.
        """
        ends = self._compute_sample_intervals(error)
        estimates = np.array([categories.estimate for categories in self.categories])
        below, above = estimates - ends[:, 0], ends[:, 1] - estimates
        # The lower end combines lower ends of samples with positive weight, and upper ends of
        # samples with negative weight. The upper end combines the opposite ends.
        # `down` and `up` are the distances of the lower and the upper end of each sum, without the
        # variance of changed devices.
        is_positive = self.weights > 0
        down = self._combine(np.where(is_positive, below, above))
        up = self._combine(np.where(is_positive, above, below))
        # Devices that changed between two other categories add this squared distance to both ends.
        others_square = special.ndtri(np.asarray(error) / 2) ** 2 * self._other_devices_variance
        down, up = (np.sqrt(distance**2 + others_square) for distance in (down, up))
        return self.changed.interval(self.estimate, down, up, error)

    def _compute_sample_intervals(self, error: float | Floats) -> Floats:
        """Compute the ends of the intervals of each sample, (T, 2, k)."""
        n_samples, n_categories = len(self.categories), len(self.estimate)
        errors = np.tile(np.broadcast_to(error, n_categories), n_samples)
        ends = np.empty((n_samples, 2, n_categories))
        for samples, proportions in self._joined_proportions:
            exact = np.array(proportions.interval(errors[: len(samples) * n_categories]))
            for i, sample in enumerate(samples):
                columns = slice(i * n_categories, (i + 1) * n_categories)
                ends[sample] = self.categories[sample].adjust_interval(*exact[:, columns])
        return ends

    def _join_proportions(self) -> list[tuple[list[int], Proportions]]:
        """Join the proportions of samples with equally many collections.

        One call then computes the intervals of many samples. A trend of twelve weeks is computed
        eight times as fast.

        Returns
        -------
        Pairs of the indices of samples and their joined proportions.
        """
        groups: dict[int, list[int]] = {}
        for i, categories in enumerate(self.categories):
            groups.setdefault(len(categories.proportions.ones), []).append(i)
        return [
            (samples, Proportions.join([self.categories[i].proportions for i in samples]))
            for samples in groups.values()
        ]

    def _combine(self, distances: Floats) -> Floats:
        """Combine one distance of each sample to the distance of the weighted sum, (k,).

        The result is the root of the sum of squared weighted distances, with the device parts
        correlated by rho.

        Parameters
        ----------
        distances : (T, k) float64. Distances between estimates and interval ends, or standard
            errors.
        """
        weighted = self.weights * distances
        independent = (weighted**2 * (1 - self.device_share)).sum(axis=0)
        from_devices = compute_device_variance(
            weighted * np.sqrt(self.device_share), self.device_correlation
        )
        return np.asarray(np.sqrt(np.maximum(independent + from_devices, 0.0)))


def estimate_category_changes(
    samples: Sequence[AddedCollections],
    weights: Floats,
    device_correlation: float | None,
    *,
    complete: bool,
) -> Changes:
    """Estimate the change of every category.

    Parameters
    ----------
    samples : T samples with reports.
    weights : (T,) float64. They sum to 0.
    device_correlation : rho. None if it is unknown: the largest variance is then assumed.
    complete : True if every value is in one of the categories.

    Raises
    ------
    DecodeError
        The samples have different categories.
    """
    contrast = CategoryContrast(samples, weights, device_correlation, complete=complete)
    return Changes(
        estimate=contrast.estimate,
        std_error=contrast.std_error,
        p_value=contrast.p_value,
        interval=contrast.interval,
        how="answers",  # the name of this method in the JSON output (`Changes.how`)
    )


def _read_sample(sample: AddedCollections, *, complete: bool) -> _Sample:
    """Estimate the categories of a sample, and the part of their variance from devices."""
    target = debias(sample.counts, sample.repetitions)
    categories = estimate_categories(target, sample.counts[0].params)
    # The rows of the target are the k categories of each of g parameter sets, (g, k).
    shape = (len(sample.counts), len(categories.estimate))

    def compute_pooled_device_variance(theta: Floats) -> Floats:
        """Compute the device variance of each category, (k,), at true shares theta, (k,).

        Parameter sets are pooled with the weights of the estimates.
        """
        devices = target.compute_device_variance(np.tile(theta, shape[0])).reshape(shape)
        return np.asarray((categories.weight**2 * np.maximum(devices, 0.0)).sum(axis=0))

    variance = compute_pooled_device_variance(categories.estimate)
    devices = (target.reports / target.reports_per_device).reshape(shape)
    per_device = (categories.weight**2 / np.maximum(devices, LEAST_NOISE)).sum(axis=0)
    # At share 0 (or 1) all devices have the same true bit, so the device variance comes from their
    # permanent responses to a 0 (or to a 1) alone. Divided by `per_device`, it is the variance of
    # the response of one device.
    ends = (np.zeros(shape[1]), np.ones(shape[1]))
    permanent = np.array([compute_pooled_device_variance(end) for end in ends]) / per_device
    if complete:
        index = np.arange(len(variance))
        covariance = categories.covariance(index)
        std_error = categories.std_error
        covariance[index, index] = variance
        # Estimates are adjusted to the sum 1 by the linear function
        #     estimate - s (total - 1) / sum of s
        # with s the covariance of each estimate with the total (`sum_covariance`). `projection` is
        # the matrix P of this function, so a covariance C of the estimates becomes P C P'. Here C
        # is the part that comes from the devices. Fresh coins are independent between categories,
        # so the covariances of two categories come from the devices completely. Only the diagonal
        # of C is replaced by its device part.
        categories = CompleteCategoryEstimates.of(categories)
        projection = (
            np.eye(len(index))
            - categories.sum_covariance[:, None] / categories.sum_covariance.sum()
        )
        variance = ((projection @ covariance) * projection).sum(axis=1)
        # The adjusted estimates have smaller variances. The variances of the permanent responses
        # are reduced in the same ratio.
        permanent *= (categories.std_error / np.maximum(std_error, 1e-300)) ** 2
    return _Sample(
        categories=categories,
        device_share=np.clip(variance / np.maximum(categories.std_error, 1e-300) ** 2, 0.0, 1.0),
        per_device=per_device,
        permanent=permanent,
    )
