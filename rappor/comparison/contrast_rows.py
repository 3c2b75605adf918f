"""Rows of a contrast: for each bit of each cohort, a weighted sum of the samples' proportions.

`Samples` calls `build_contrast_rows` for each requested contrast. The input is the collections of T
samples, such as weeks, and their weights. The output is a `ContrastRows`. `change_regression.py`
fits its rows like the rows of one sample (a `ContrastRows` is a `Target`), and obtains changes of
shares in place of shares.

The idea
--------
A row is the proportion of ones at one bit of one cohort. Many strings set the same bit, and the
analyst does not know all of them. But a string whose share did not change adds the same amount to
the row in both weeks. If one week is subtracted from the other, this amount cancels, and only the
strings with a changed share remain. So the differences are explained by few strings, and strings
that are no candidates disturb only if they changed.

*Example.* In two weeks, a row has the de-biased proportions .30 and .34, with the variances .0001
and .0003. With the weights -1 and 1 the contrast of the row is .04. If the weeks have different
devices, its variance is .0001 + .0003 = .0004, and its standard error .02. If both weeks have the
same devices, a part of their noise is equal and cancels, and the variance is smaller.

The steps of `build_contrast_rows`:

1. Pool the collections of a sample that have the same bits for each string (`PooledRows`).
2. Subtract: add the pooled proportions, multiplied by the weights of their samples. Weights of
   samples without reports in a cohort are taken over by other samples (`spread_weights`).
3. Estimate the mean level of each row over all samples, which determines its variance
   (`_estimate_mean_levels`).
4. Compute coefficients of the variance that devices with a changed value add.

If rho is unknown, `estimate_device_share` then estimates how much device noise has cancelled.

Theory of operation
-------------------
| symbol | meaning | shape |
|---|---|---|
| row | a bit of a cohort. A sample has n rows | |
| t | a sample, one of T | |
| y_t | proportions of ones of sample t, de-biased: the expected noise is subtracted | (n,) |
| w_t | weight of sample t. The weights sum to 0 | number |
| beta_t | share of a string in sample t | number |
| x | column of the string: 1 in the rows that it sets | (n,) |
| level | true de-biased proportion of a row in one sample | (T, n) |
| theta | true contrast of a row: sum over t of w_t times the level in sample t | (n,) |
| v_t | variance of y_t | (n,) |
| rho | correlation of the device noise of two samples | number |
| device_share | device variance of the contrast, divided by the largest possible one | number |

*Shape* is the word of this package for k, h, m, hash layout and normalizer: the parameters that
determine which bits a string sets. A string sets the same bits of a cohort in every collection of
the same k, h and m, whatever f, p and q. So the de-biased proportions y_t of the samples measure
the same row, and with weights w_t that sum to 0

    sum over t of w_t y_t = sum over strings of (sum over t of w_t beta_t) x + noise

contains only strings whose share changed. Unchanged strings cancel, candidates or not, together
with all of their collisions.

*The variance of a row.* The variance of a row of one sample is the sum of two variances: the
variance of the fresh coins in each report, and the variance of the devices
(`rappor.estimator.debias`). Samples with devices in common have the same device noise
(`rappor.comparison.shared_devices`).

If rho is unknown, `device_share` is estimated from the observed variance of the rows
(`estimate_device_share`). It is one number for all rows. One standard error is added to the
estimate, so that intervals are rather too wide than too narrow. The estimate excludes rows that
show more than noise: the rows of frequent strings, and rows whose contrast is far from 0.

*The level of a row.* Both variances depend on the levels, which are estimated in two steps. The
precision-weighted mean m of the samples has the weights p_t = (1 / v_t) / P, with P the sum of all
1 / v_t. Its noise is uncorrelated with the noise of the contrast, because the covariance is the sum
over t of w_t p_t v_t = (sum of w_t) / P = 0. So the noise that enlarges the contrast of a row does
not change the computed variance of the row. If the contrast is theta, sample t has the level
m + slope_t theta, with

    slope_t = w_t v_t / sum over s of w_s^2 v_s

*Derivation.* The levels m + d_t must have the contrast theta: sum of w_t d_t = theta, because the
weights sum to 0. Of all such levels, those are most probable that minimise the sum of d_t^2 / v_t.
With a Lagrange multiplier, d_t is proportional to w_t v_t, and the condition gives the factor.

*Devices that changed their value.* A device with a new value draws new permanent responses in all
rows, whatever the values are. This noise is in the observed variance of all rows, and therefore in
the estimate of `device_share`.

Two further effects are only in the rows of the strings whose share changed, and the estimate of
`device_share` excludes these rows:

- Sampling: the devices that changed are a random sample of the population.
- Permanent response to a 1: it may have a larger variance than the response to a 0.

So both effects are computed. The attributes `sampling`, `sampling_square` and `permanent` of
`ContrastRows` contain their coefficients.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from rappor.comparison.shared_devices import compute_changed_sampling, compute_device_variance
from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.estimator.debias import FEW_ONES, Target, debias
from rappor.estimator.device_assumptions import AddedCollections
from rappor.estimator.device_correlation import FREQUENT_Z
from rappor.estimator.fit import LEAST_NOISE
from rappor.protocol.params import Params

_MIN_ROWS: Final = 256
"""Smallest number of rows from which `device_share` is estimated. With fewer rows, the rows of
changed strings would dominate the estimate, so `device_share` stays 1, its largest value."""

_OUTLIER_Z: Final = float(-special.ndtri(0.5e-4))
"""Standard deviations beyond which a row is not noise, and is excluded from the estimate of
`device_share`. Noise alone exceeds the limit in one row of 10,000."""

_MAX_LOST_WEIGHT: Final = 0.02
"""Largest share of the weights of one sign that may belong to samples without reports in a cohort.
The other samples of this sign take over the weight. If the share is larger, the rows of the cohort
are excluded: with the other samples alone, their contrast would be the change between other periods
than the caller requested."""

_ITERATIONS: Final = 4
"""Number of rounds in the estimate of `device_share`. Each round excludes rows by the previous
estimate."""

Shape = tuple[int, int, int, str, str]
"""k, h, m, hash layout and normalizer: the parameters that determine which bits a string sets."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PooledRows:
    """The rows of one sample, pooled over all parameter sets of one shape.

    Reports of different parameter sets measure the same levels with different noise. A pooled row
    is their mean, weighted by 1 / variance.

    Attributes
    ----------
    targets : one target for each of g parameter sets, n rows each.
    weights : (g, n) float64. Weights of the mean, 0 for empty cohorts. The weights do not depend on
        the counted ones, so they are independent of the noise.
    """

    targets: tuple[Target, ...]
    weights: Floats

    @classmethod
    def from_collections(cls, sample: AddedCollections, shape: Shape) -> PooledRows:
        """Pool the collections of a sample that have this shape."""
        pairs = zip(sample.counts, sample.repetitions, strict=True)
        targets = tuple(
            debias([counts], [repetition])
            for counts, repetition in pairs
            if shape_of(counts.params) == shape
        )
        # The noise is evaluated at the expected background, not at the measured proportion. Weights
        # from measured proportions would be correlated with the noise of the rows, and biased.
        precision = np.array(
            [1 / target.compute_noise_variance(target.density) for target in targets]
        )
        total = precision.sum(axis=0)
        weights = np.divide(precision, total, out=np.zeros_like(precision), where=total > 0)
        return cls(targets=targets, weights=weights)

    @property
    def reports(self) -> Floats:
        """(n,) float64. Number of reports in the row's cohort, of all parameter sets."""
        return add_arrays(target.reports for target in self.targets)

    @property
    def has_one_sided_noise(self) -> Booleans:
        """(n,) bool. True for all rows if a parameter set has p* = 0 or q* = 1."""
        return np.asarray(np.any([target.has_one_sided_noise for target in self.targets], axis=0))

    @property
    def density(self) -> Floats:
        """(n,) float64. Probability that a random string sets the row.

        It depends on k and h only, so all parameter sets of a shape have the same density.
        """
        return self.targets[0].density

    @property
    def proportions(self) -> Floats:
        """(n,) float64. De-biased proportion of each row: the weighted mean of the targets."""
        return add_arrays(
            weight * target.proportions
            for weight, target in zip(self.weights, self.targets, strict=True)
        )

    def compute_noise_variance(self, theta: Floats) -> Floats:
        """Compute the variance of each row, (n,), at true proportions theta, (n,).

        Rows of empty cohorts have the variance 0.
        """
        return self._add_weighted_variances("compute_noise_variance", theta)

    def compute_device_variance(self, theta: Floats) -> Floats:
        """Compute the part of the variance that comes from the devices, (n,).

        Rows of empty cohorts have the variance 0.

        Parameters
        ----------
        theta : (n,) float64. True proportions.
        """
        return self._add_weighted_variances("compute_device_variance", theta)

    def compute_device_variance_at(self, level: float) -> Floats:
        """Compute the device variance, (n,), with the same true proportion in all rows."""
        return self.compute_device_variance(np.full(self.weights.shape[1], level))

    @property
    def inverse_devices(self) -> Floats:
        """(n,) float64. 1 / (effective number of devices) of each row. 0 for empty cohorts.

        Devices with the variance 1 each would give the row this variance: the sum of weight^2 / D
        over the parameter sets, with D the reports divided by the reports per device.
        """
        return add_arrays(
            weight**2 * target.reports_per_device / np.maximum(target.reports, 1.0)
            for weight, target in zip(self.weights, self.targets, strict=True)
        )

    def bound_third_cumulant(self, theta: Floats) -> Floats:
        """Compute an upper bound on the third cumulant of each row, (n,). See `_bound_cumulant`."""
        return self._bound_cumulant(theta, order=3)

    def bound_fourth_cumulant(self, theta: Floats) -> Floats:
        """Compute an upper bound on the fourth cumulant of each row, (n,). See `_bound_cumulant`.

        The fourth cumulant of a random number is its fourth central moment minus 3 variance^2. It
        is 0 for a normal number. A row with few ones is not normal, and its square varies more than
        the square of a normal number by this cumulant (`compute_rows_p_value`).
        """
        return self._bound_cumulant(theta, order=4)

    def _bound_cumulant(self, theta: Floats, *, order: int) -> Floats:
        """Compute an upper bound on the third or the fourth cumulant of each row, (n,).

        A binomial count with the variance s = N mu (1 - mu) has the third cumulant s (1 - 2 mu) and
        the fourth cumulant s (1 - 6 mu (1 - mu)). Both are at most s. A de-biased row is a count
        divided by N g, with N reports and g = q* - p*. If the row has the variance v, the count has
        the variance v (N g)^2, and the row a cumulant of order r of at most v (N g)^2 / (N g)^r
        = v / (N g)^(r - 2).

        Parameters
        ----------
        theta : (n,) float64. True proportions.
        order : order r of the cumulant, 3 or 4.
        """
        cumulants = []
        for weight, target in zip(self.weights, self.targets, strict=True):
            # An empty cohort would have the divisor 0. Its weight is 0, so any divisor will do.
            divisor = np.maximum(target.reports * (target.q_star - target.p_star), 1e-9)
            variance = np.where(weight > 0, target.compute_noise_variance(theta), 0.0)
            cumulants.append(weight**order * variance / divisor ** (order - 2))
        return add_arrays(cumulants)

    def _add_weighted_variances(self, name: str, theta: Floats) -> Floats:
        """Compute a variance of the pooled rows, (n,): sum over targets of weight^2 times variance.

        `name` is the method of `Target` that computes the variance of a target at true proportions
        theta, (n,).
        """
        return add_arrays(
            weight**2 * np.where(weight > 0, getattr(target, name)(theta), 0.0)
            for weight, target in zip(self.weights, self.targets, strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ContrastRows(Target):
    """The rows of a contrast for the regression of `fit`, over all shapes that the samples share.

    Attributes
    ----------
    samples : for each shape, the pooled rows of T samples.
    weights : (T, n) float64. Weight of each sample in each row. A sample without reports in the
        cohort of the row has weight 0, and the other samples of the same sign take over its weight
        (`spread_weights`). So the weights of every row with reports sum to 0.
    device_correlation : rho; None if unknown.
    device_share : device variance of the contrast, divided by the device variance that
        `compute_variances` returns. If rho is unknown, that is the largest possible variance, and
        `device_share` is estimated. If the caller passed rho, it is the variance at rho, so
        `device_share` is 1.
    mean : (n,) float64. m: smoothed mean level of all samples, which determines the noise of a row.
    slope : (T, n) float64. Difference between the level of each sample and `mean` if the contrast
        of the row is 1.
    sampling, sampling_square : (n,) float64 each. Coefficients of the variance that devices with a
        changed value add to a row, if all samples have the same devices. A change delta of the row
        adds |delta| `sampling` - delta^2 `sampling_square`. Both are 0 for empty cohorts.
    permanent : (2, n) float64. Variance of the permanent response of one device to a 0 and to a 1,
        after de-biasing, so in squared shares.
    unit : (n,) float64. Contrast that one 1 adds to a row or subtracts from it, as a share. Of
        several samples it is the mean, weighted by their parts of the variance. 0 for empty
        cohorts.
    unchanged : (2, n) float64. The two parts of the variance (`compute_variances`) without any
        change.
    """

    samples: tuple[tuple[PooledRows, ...], ...]
    weights: Floats
    device_correlation: float | None
    device_share: float
    mean: Floats
    slope: Floats
    sampling: Floats
    sampling_square: Floats
    permanent: Floats
    unit: Floats
    unchanged: Floats

    @property
    def has_one_sided_noise(self) -> Booleans:
        """(n,) bool. True for rows that have a sample with p* = 0 or q* = 1."""
        # In such rows a true 0 is never sent as 1, or a true 1 never as 0, so tails are not normal.
        by_shape = [
            np.any([rows.has_one_sided_noise for rows in shape_rows], axis=0)
            for shape_rows in self.samples
        ]
        return np.concatenate(by_shape)

    def compute_noise_variance(self, theta: Floats) -> Floats:
        """Compute the variance of each row, (n,), if the true contrasts are theta, (n,).

        In a row with few expected ones it is at least the variance without any change.
        """
        fresh, devices = self.compute_variances(theta)
        variance = fresh + self.device_share * devices
        # Case: a sample of 30 reports has no 1 in the rows of a string that a large sample has at
        # 70 %. One 1 was expected, so this happens by chance. The fit then explains it by a change
        # of 70 points, at which the share in the small sample is 0, and so is nearly all noise.
        # The change would be 7 standard errors, and with the noise without a change it is one.
        without_change = self.unchanged[0] + self.device_share * self.unchanged[1]
        is_sparse = without_change < FEW_ONES * self.unit**2
        variance = np.where(is_sparse, np.maximum(variance, without_change), variance)
        return np.where(self.reports > 0, np.maximum(variance, LEAST_NOISE), np.inf)

    def compute_variances(self, theta: Floats) -> tuple[Floats, Floats]:
        """Compute the two parts of the variance if the true contrasts are theta, (n,).

        Returns
        -------
        fresh : (n,) float64. Variance of the instantaneous responses.
        devices : (n,) float64. Device variance at rho, or the largest one if rho is unknown.
        """
        levels = self.mean + self.slope * theta
        total, device_variance = (
            self._stack_samples(name, levels)
            for name in ("compute_noise_variance", "compute_device_variance")
        )
        device_variance = np.maximum(device_variance, 0.0)
        fresh = (self.weights**2 * np.maximum(total - device_variance, 0.0)).sum(axis=0)
        devices = self.weights * np.sqrt(device_variance)
        return np.asarray(fresh), compute_device_variance(devices, self.device_correlation)

    def bound_fourth_cumulant(self) -> Floats:
        """Compute an upper bound on the fourth cumulant of each row, (n,), if nothing changed."""
        levels = np.tile(self.mean, (len(self.weights), 1))
        return np.asarray(
            (self.weights**4 * self._stack_samples("bound_fourth_cumulant", levels)).sum(axis=0)
        )

    def mirror(self) -> ContrastRows:
        """Return the rows with all weights negated: rises become falls."""
        return replace(
            self, proportions=-self.proportions, weights=-self.weights, slope=-self.slope
        )

    def compute_excess(self, fitted: Floats, variance: Floats) -> Floats:
        """Compute the distance of each row from a fit, (n,), in standard deviations.

        The distance is two-sided, because the shares of strings that are no candidates rise and
        fall. `Target.compute_excess` is one-sided.
        """
        return self.standardise(self.proportions - fitted, variance)

    def standardise(self, residual: Floats, variance: Floats) -> Floats:
        """Compute the distance of each residual from 0, (n,), in standard deviations.

        In a row with few expected ones, a single 1 is many standard deviations from 0 without being
        unusual. The root of the deviance of a Poisson count replaces the distance in such rows. The
        count has the variance of the row and jumps by u, the `unit` of the row. So its mean is
        mu = variance / u^2, and a residual of x jumps has the deviance

            2 ((mu + x) log((mu + x) / mu) - x)

        A residual that lacks ones is treated like one that has too many. It is never an outlier: at
        most mu < `FEW_ONES` ones can be missing.

        Parameters
        ----------
        residual : (n,) float64. Contrasts minus their expectation.
        variance : (n,) float64. Variance of each row, all of it or with other noise.

        Returns
        -------
        (n,) float64, at least 0.
        """
        distance = np.abs(residual) / np.sqrt(variance)
        unit = np.where(self.unit > 0, self.unit, 1.0)
        mean = variance / unit**2
        is_sparse = (self.unit > 0) & (mean < FEW_ONES)
        mu, jumps = mean[is_sparse], (np.abs(residual) / unit)[is_sparse]
        deviance = 2 * (special.rel_entr(mu + jumps, mu) - jumps)
        distance[is_sparse] = np.sqrt(np.maximum(deviance, 0.0))
        return np.asarray(distance)

    def _stack_samples(self, name: str, levels: Floats) -> Floats:
        """Compute a variance of every sample's rows, (T, n), by a method of `PooledRows`.

        Parameters
        ----------
        name : name of the method.
        levels : (T, n) float64. True proportions in each sample.
        """
        # The rows are stacked by shape. `ends` are the row numbers at which a next shape begins.
        ends = np.cumsum([len(shape_rows[0].targets[0]) for shape_rows in self.samples])[:-1]
        levels_by_shape = np.split(levels, ends, axis=1)
        variances_by_shape = [
            np.array(
                [
                    getattr(rows, name)(level)
                    for rows, level in zip(shape_rows, shape_levels, strict=True)
                ]
            )
            for shape_rows, shape_levels in zip(self.samples, levels_by_shape, strict=True)
        ]
        return np.concatenate(variances_by_shape, axis=1)


def shape_of(params: Params) -> Shape:
    """Return the parameters that determine which bits a string sets."""
    return params.k, params.h, params.m, params.layout, params.normalize


def list_shapes(sample: AddedCollections) -> set[Shape]:
    """Return the shapes of a sample's collections."""
    return {shape_of(counts.params) for counts in sample.counts}


def list_shared_params(samples: Sequence[AddedCollections]) -> list[Params]:
    """Return one parameter set of each shape that all samples share, in the order of the rows."""
    shapes = {shape_of(counts.params): counts.params for counts in samples[0].counts}
    shared = set.intersection(*map(list_shapes, samples))
    return [shapes[shape] for shape in sorted(shared)]


def build_contrast_rows(
    samples: Sequence[AddedCollections],
    weights: Floats,
    explained: Floats,
    *,
    device_correlation: float | None,
) -> ContrastRows:
    """Stack the rows of a contrast over all shapes. `device_share` is 1, the largest value.

    Parameters
    ----------
    samples : T samples that share at least one shape.
    weights : (T,) float64, none of them 0; they sum to 0.
    explained : (T, n) float64. The part of the level that detected strings explain: for each row,
        the sum of the shares of the detected strings that set the row, by the separate decode of
        each sample.
    device_correlation : rho; None if unknown.
    """
    shapes = [shape_of(params) for params in list_shared_params(samples)]
    pooled = tuple(
        tuple(PooledRows.from_collections(sample, shape) for sample in samples) for shape in shapes
    )
    first_targets = [shape_rows[0].targets[0] for shape_rows in pooled]
    # The stacked target has the layout of the rows. The proportions and the numbers of reports in
    # it are replaced below.
    stacked = debias(
        [target.counts[0] for target in first_targets],
        [target.repetitions[0] for target in first_targets],
    )

    def stack(value: Callable[[PooledRows], NDArray[Any]]) -> NDArray[Any]:
        """Stack a value of each row of each sample, (T, n)."""
        return np.concatenate(
            [[value(sample) for sample in shape_rows] for shape_rows in pooled], axis=1
        )

    proportions = stack(lambda rows: rows.proportions)
    noise = stack(lambda rows: rows.compute_noise_variance(rows.density))
    n_reports = stack(lambda rows: rows.reports)
    row_weights = spread_weights(weights, n_reports > 0)
    # A sample without reports in the cohort of a row has the weight 0 in the row. Only samples with
    # a weight contribute to the means and the minimum below. If too much weight is lost, all
    # weights of a row are 0 (`spread_weights`), and the row counts as a row without reports.
    is_used = row_weights != 0
    is_complete = is_used.any(axis=0)
    # slope_t of the module docstring.
    weighted_noise = row_weights * np.maximum(noise, LEAST_NOISE)
    slope = weighted_noise / np.where(is_complete, (row_weights * weighted_noise).sum(axis=0), 1.0)
    # A row has the variance mu u^2 and the third cumulant mu u^3 if it counts mu ones of u each.
    # Their ratio u is taken at the expected background, because it hardly depends on the level.
    third_cumulant = stack(lambda rows: rows.bound_third_cumulant(rows.density))
    unit = (np.abs(row_weights) ** 3 * third_cumulant).sum(axis=0)
    unit /= np.maximum((row_weights**2 * noise).sum(axis=0), LEAST_NOISE)
    inverse_devices = stack(lambda rows: rows.inverse_devices)
    sampling, sampling_square = compute_changed_sampling(row_weights, inverse_devices, slope)
    # The device variance of a sample is the variance of one device, divided by the number of
    # devices. At level 0 (or 1) all devices have the same true bit, so the variance of one device
    # is the variance of its permanent response to a 0 (or a 1).
    total_inverse_devices = np.maximum(inverse_devices.sum(axis=0), np.finfo(float).tiny)
    zero_variance, one_variance = (
        stack(functools.partial(PooledRows.compute_device_variance_at, level=level)).sum(axis=0)
        / total_inverse_devices
        for level in (0.0, 1.0)
    )
    rows = ContrastRows(
        **{field.name: getattr(stacked, field.name) for field in fields(Target)}
        | {
            "proportions": (row_weights * proportions).sum(axis=0),
            # The sample with the fewest reports in the cohort, of all samples with a weight. The
            # number is 0 only for rows that are excluded.
            "reports": np.where(is_complete, np.where(is_used, n_reports, np.inf).min(axis=0), 0.0),
            "n_reports": sum(counts.n_reports for sample in samples for counts in sample.counts),
        },
        samples=pooled,
        weights=row_weights,
        device_correlation=device_correlation,
        device_share=1.0,
        mean=_estimate_mean_levels(
            proportions, np.where(is_used, noise, np.inf), explained, stacked.collection_index
        ),
        slope=slope,
        sampling=sampling,
        sampling_square=sampling_square,
        permanent=np.maximum([zero_variance, one_variance], 0.0),
        unit=unit,
        unchanged=np.zeros((2, len(stacked))),
    )
    return replace(rows, unchanged=np.stack(rows.compute_variances(np.zeros(len(rows)))))


def _estimate_mean_levels(
    proportions: Floats, noise: Floats, explained: Floats, collection_index: Integers
) -> Floats:
    """Estimate the mean level of the samples in each row, m of the module docstring, (n,).

    The precision-weighted mean is noisy. Strings that a decode detected really lift their rows, so
    the part of the mean that they explain stays. The remaining part is mostly noise and is shrunk.

    Parameters
    ----------
    proportions : (T, n) float64. De-biased proportions of each sample.
    noise : (T, n) float64. Variance of each proportion. Infinite for samples without a weight in
        the row.
    explained : (T, n) float64. The part of the level that detected strings explain.
    collection_index : (n,) int64. Index of the row's collection.
    """
    precision = 1 / np.maximum(noise, LEAST_NOISE)
    total_precision = precision.sum(axis=0)
    has_samples = total_precision > 0
    mean_weights = precision / np.where(has_samples, total_precision, 1.0)
    mean = (mean_weights * proportions).sum(axis=0)
    explained_mean = (mean_weights * explained).sum(axis=0)
    mean_variance = np.where(has_samples, 1 / np.where(has_samples, total_precision, 1.0), np.inf)
    shrunk = _shrink(mean - explained_mean, mean_variance, collection_index)
    return np.asarray(explained_mean + shrunk)


def spread_weights(weights: Floats, has_reports: Booleans) -> Floats:
    """Return the weight of each sample in each row, (T, n).

    A sample without reports in the cohort of a row has weight 0 there. Its weight is divided among
    the samples of the same sign, in proportion to their weights. So the sum of the weights of each
    sign stays the same, and unchanged strings still cancel. If more than `_MAX_LOST_WEIGHT` of the
    weights of one sign belong to samples without reports, all weights of the row are 0.

    Example: the weights are -1, .99 and .01, and the third sample has no reports in a cohort. The
    rows of this cohort have the weights -1, 1 and 0. Without reports in the second sample, 99 % of
    the positive weights would be lost, so the rows have the weights 0, 0 and 0.

    Parameters
    ----------
    weights : (T,) float64; they sum to 0.
    has_reports : (T, n) bool. Whether a sample has reports in the row's cohort.
    """
    row_weights = np.zeros(has_reports.shape)
    is_complete = np.ones(has_reports.shape[1], dtype=bool)
    for sign in (-1.0, 1.0):
        # The absolute weights of the samples with this sign, and their sum over the samples with
        # reports in the row.
        one_sign = np.maximum(sign * weights, 0.0)
        present = one_sign @ has_reports
        is_complete &= present >= (1 - _MAX_LOST_WEIGHT) * one_sign.sum()
        scale = one_sign.sum() / np.where(present > 0, present, 1.0)
        row_weights += sign * one_sign[:, None] * has_reports * scale
    return row_weights * is_complete


def _shrink(rows: Floats, variance: Floats, collection_index: Integers) -> Floats:
    """Shrink rows, (n,), to the mean of their collection (James and Stein).

    Assumption: within a collection, the true rows have mean `center` and variance `spread`. So the
    distance of a row from the mean is multiplied by spread / (spread + variance). If all strings
    are rare, `spread` is about 0 and all rows become the mean. If a frequent string lifts some
    rows, `spread` is large and the rows hardly change.

    Without shrinkage, every change would be estimated too small if there are few reports. A row
    with more ones by chance would get a larger computed variance and a smaller weight.

    Parameters
    ----------
    rows : (n,) float64.
    variance : (n,) float64. Variance of the noise of each row, infinite for empty cohorts.
    collection_index : (n,) int64. Index of the row's collection.
    """
    weight = 1 / variance
    total = np.maximum(np.bincount(collection_index, weight), np.finfo(float).tiny)
    center = (np.bincount(collection_index, weight * rows) / total)[collection_index]
    # Empty cohorts have infinite variance and weight 0. The bound avoids 0 times infinity.
    excess = np.bincount(
        collection_index, weight * ((rows - center) ** 2 - np.minimum(variance, 1e300))
    )
    spread = np.maximum(excess / total, 0.0)[collection_index]
    return np.asarray(center + spread / (spread + variance) * (rows - center))


def estimate_device_share(target: ContrastRows) -> ContrastRows:
    """Return the rows with `device_share` estimated from their variance, plus one standard error.

    Model: a row without changed strings, minus the change of the background, has the mean square
    fresh + device_share x devices, where fresh and devices are the two parts of its variance
    (`ContrastRows.compute_variances`). Summed over these rows,

        device_share = sum of (square - fresh) / sum of devices

    The standard error of this ratio has the numerator sqrt(sum of residual^2), with the residual
    square - fresh - device_share x devices. If all rows are normal, the sum of residual^2 has the
    expectation sum of 2 (variance of the row)^2. The larger of the two sums is used. With fewer
    than `_MIN_ROWS` rows, `device_share` stays 1.
    """
    zeros = np.zeros(len(target))
    fresh, devices = target.compute_variances(zeros)
    residual_rows = target.proportions - compute_group_means(
        target, target.compute_noise_variance(zeros)
    )
    squares = residual_rows**2
    is_usual = (target.reports > 0) & (devices > 0) & ~_find_frequent_rows(target)
    if is_usual.sum() < _MIN_ROWS:
        return target
    device_share, std_error = 1.0, 0.0
    for _ in range(_ITERATIONS):
        expected = fresh + min(max(device_share, 0.0), 1.0) * devices
        # Case: so few reports that most rows have no 1, and a row with a 1 is 5 or more standard
        # deviations from 0. If these rows were outliers, no noise would remain to be estimated.
        distance = target.standardise(residual_rows, np.maximum(expected, LEAST_NOISE))
        is_used = is_usual & (distance <= _OUTLIER_Z)
        total = float(devices[is_used].sum())
        if not total > 0:
            return target
        device_share = float((squares - fresh)[is_used].sum()) / total
        residual = (squares - fresh - device_share * devices)[is_used]
        squares_if_normal = 2 * expected[is_used] ** 2
        sum_of_squares = max(float((residual**2).sum()), float(squares_if_normal.sum()))
        std_error = math.sqrt(sum_of_squares) / total
    return replace(target, device_share=min(max(device_share + std_error, 0.0), 1.0))


def _find_frequent_rows(target: ContrastRows) -> Booleans:
    """Find the rows that frequent strings set, (n,) bool.

    The mean of such a row over all samples exceeds the median of its collection by more than
    `FREQUENT_Z` standard errors of the mean.
    """
    levels = np.tile(target.mean, (len(target.weights), 1))
    noise = np.maximum(target._stack_samples("compute_noise_variance", levels), LEAST_NOISE)
    precision = np.where(target.weights != 0, 1 / noise, 0.0).sum(axis=0)
    spread = 1 / np.sqrt(np.maximum(precision, np.finfo(float).tiny))
    is_frequent = np.zeros(len(target), dtype=bool)
    for index in range(len(target.counts)):
        in_collection = (target.collection_index == index) & (target.reports > 0)
        if in_collection.any():
            is_frequent[in_collection] = (
                target.mean[in_collection]
                > np.median(target.mean[in_collection]) + FREQUENT_Z * spread[in_collection]
            )
    return is_frequent


def compute_rows_p_value(target: ContrastRows) -> float:
    """Return the p-value of the test that no row changed.

    The statistic Q is the sum of squared rows, each divided by its variance v. The mean of each
    collection's rows is subtracted first, because a change of the background is no change of a
    string. If no row changed, Q has the mean d, the number of rows minus the number of collections.
    A squared row has the variance 2 v^2 + kappa_4, with kappa_4 the fourth cumulant of the row, so
    Q has the variance 2 d + sum of kappa_4 / v^2. kappa_4 matters in rows with few ones. The
    p-value is the tail of the gamma distribution with this mean and variance.
    """
    has_reports = target.reports > 0
    variance = target.compute_noise_variance(np.zeros(len(target)))
    if not has_reports.any():
        return 1.0
    means = compute_group_means(target, variance)
    squares = float(np.sum((target.proportions - means)[has_reports] ** 2 / variance[has_reports]))
    degrees = float(has_reports.sum() - len(np.unique(target.collection_index[has_reports])))
    # One row per collection: its mean equals the row, so nothing is left to test.
    if degrees <= 0:
        return 1.0
    square_variance = 2 * degrees + float(
        np.sum((target.bound_fourth_cumulant() / variance**2)[has_reports])
    )
    # A gamma distribution with mean d and variance V has the shape d^2 / V and the scale V / d.
    gamma_shape = degrees**2 / square_variance
    return float(special.gammaincc(gamma_shape, squares * gamma_shape / degrees))


def compute_group_means(target: ContrastRows, variance: Floats) -> Floats:
    """Compute the weighted mean of each collection's rows, (n,): the change of the background."""
    weight = 1 / variance
    total = np.bincount(target.collection_index, weight)
    sums = np.bincount(target.collection_index, weight * target.proportions)
    return np.asarray((sums / np.maximum(total, np.finfo(float).tiny))[target.collection_index])


def add_arrays(arrays: Iterable[Floats]) -> Floats:
    """Add arrays of the same shape."""
    return np.asarray(np.sum(list(arrays), axis=0))
