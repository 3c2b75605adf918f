"""Rows of a contrast: for each bit of each cohort, a weighted sum of the samples' proportions.

`Samples` calls `build_contrast_rows` for each requested contrast. The input is the collections of T
samples, such as weeks, and their weights. The output is a `ContrastRows`. `change_regression.py`
fits its rows like the rows of one sample (a `ContrastRows` is a `Target`), and obtains changes of
shares in place of shares.

Theory of operation
-------------------
| symbol | meaning | shape |
|---|---|---|
| t | a sample, one of T | |
| y_t | de-biased proportions of the rows of sample t | (n,) |
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

*Example.* In two weeks, a row has the de-biased proportions .30 and .34, with the variances .0001
and .0003. With the weights -1 and 1 the contrast of the row is .04, and its variance .0004 if the
weeks have different devices.

*The variance of a row.* The variance of a row of one sample is the sum of two variances: the
variance of the fresh coins in each report, and the variance of the devices
(`rappor.estimator.debias`). Samples with devices in common have the same device noise
(`rappor.comparison.shared_devices`). If rho is unknown, `device_share` is estimated from the
variance of the rows, plus one standard error (`estimate_device_share`). It is one number for all
rows. The estimate excludes rows that frequent strings set, and rows whose contrast exceeds the
noise.

*The level of a row.* Both variances depend on the levels, which are estimated in two steps. The
precision-weighted mean m of the samples has the weights p_t = (1 / v_t) / P, with P the sum of all
1 / v_t. Its noise is uncorrelated with the noise of the contrast, because the covariance is the sum
over t of w_t p_t v_t = (sum of w_t) / P = 0. So the computed variance of a row does not follow the
noise of its contrast. If the contrast is theta, the level of sample t is m + slope_t theta, with

    slope_t = w_t v_t / sum over s of w_s^2 v_s

Of all levels whose contrast is theta, these are nearest to m, each distance measured in standard
deviations of its sample.

*Devices that changed their value.* They draw new permanent noise in all rows, so the variance of
the rows includes this noise. Two further effects affect only the rows of changed strings, which the
estimate of `device_share` excludes: the sampling of these devices, and the larger permanent noise
of a 1. `sampling`, `sampling_square` and `permanent` describe these effects.
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
from rappor.estimator.debias import Target, debias
from rappor.estimator.device_assumptions import AddedCollections
from rappor.estimator.device_correlation import FREQUENT_Z
from rappor.estimator.fit import LEAST_NOISE
from rappor.protocol.params import Params

_MIN_ROWS: Final = 256
"""Smallest number of rows from which `device_share` is estimated. With fewer rows, the rows of
changed strings would dominate the estimate, and `device_share` stays 1."""

_OUTLIER_Z: Final = float(-special.ndtri(0.5e-4))
"""Standard deviations beyond which a row is not noise, and is excluded from the estimate of
`device_share`. Noise alone exceeds the limit in one row of 10,000."""

_MAX_LOST_WEIGHT: Final = 0.02
"""Largest share of the weights of one sign that may belong to samples without reports in a cohort.
The other samples of this sign take over the weight. If the share is larger, the rows of the cohort
are excluded: their contrast would compare other periods than the caller requested."""

_ITERATIONS: Final = 4
"""Number of rounds in the estimate of `device_share`. Each round excludes rows by the previous
estimate."""

Shape = tuple[int, int, int, str, str]
"""k, h, m, hash layout and normalizer: the parameters that determine which bits a string sets."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PooledRows:
    """The rows of one sample under all parameter sets of one shape: a weighted mean.

    Reports of different parameter sets measure the same levels with different noise. Their mean is
    weighted by 1 / variance.

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
    def has_reports(self) -> Booleans:
        """(n,) bool. True for rows of cohorts with reports."""
        return np.asarray(self.weights.sum(axis=0) > 0)

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
        return self._add_squared("compute_noise_variance", theta)

    def compute_device_variance(self, theta: Floats) -> Floats:
        """Compute the part of the variance that comes from the devices, (n,).

        Rows of empty cohorts have the variance 0.

        Parameters
        ----------
        theta : (n,) float64. True proportions.
        """
        return self._add_squared("compute_device_variance", theta)

    def device_variance_at(self, level: float) -> Floats:
        """Compute the device variance, (n,), with the same true proportion in all rows."""
        return self.compute_device_variance(np.full(self.weights.shape[1], level))

    @property
    def inverse_devices(self) -> Floats:
        """(n,) float64. 1 / effective number of devices of each row. 0 for empty cohorts."""
        return add_arrays(
            weight**2 * target.reports_per_device / np.maximum(target.reports, 1.0)
            for weight, target in zip(self.weights, self.targets, strict=True)
        )

    def fourth_cumulant(self, theta: Floats) -> Floats:
        """Compute an upper bound on the fourth cumulant of each row, (n,).

        The fourth cumulant of a binomial count is at most its variance. A de-biased row is a count
        divided by N g, with N reports and g = q* - p*. If the row has the variance v, the count has
        the variance v (N g)^2, and the row a fourth cumulant of at most v (N g)^2 / (N g)^4
        = v / (N g)^2.

        Parameters
        ----------
        theta : (n,) float64. True proportions.
        """
        terms = []
        for weight, target in zip(self.weights, self.targets, strict=True):
            # The smallest divisor is for empty cohorts, whose weight is 0.
            divisor = np.maximum(target.reports * (target.q_star - target.p_star), 1e-9)
            variance = np.where(weight > 0, target.compute_noise_variance(theta), 0.0)
            terms.append(weight**4 * variance / divisor**2)
        return add_arrays(terms)

    def _add_squared(self, name: str, theta: Floats) -> Floats:
        """Compute the sum of squared weights times a variance of the targets, (n,).

        `name` is the method of `Target` that computes the variance at true proportions theta, (n,).
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
    device_share : device variance of the contrast, divided by the largest possible device variance.
        If the caller passed rho, it is always 1: the method `variances` then computes the device
        variance at rho, and nothing remains to be estimated.
    mean : (n,) float64. m: smoothed mean level of all samples, which determines the noise of a row.
    slope : (T, n) float64. Difference between the level of each sample and `mean` if the contrast
        of the row is 1.
    sampling, sampling_square : (n,) float64 each. Coefficients of the variance that devices with a
        changed value add to a row, if all samples have the same devices. A change delta of the row
        adds |delta| `sampling` - delta^2 `sampling_square`. Both are 0 for empty cohorts.
    permanent : (2, n) float64. Variance of the permanent response of one device to a 0 and to a 1,
        after de-biasing, so in squared shares.
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

    @property
    def has_one_sided_noise(self) -> Booleans:
        """(n,) bool. True for rows that have a sample with p* = 0 or q* = 1."""
        # In such rows a true 0 is never sent as 1, or a true 1 never as 0, so tails are not normal.
        is_certain = [
            [rows.targets[0].has_one_sided_noise for rows in shape_rows]
            for shape_rows in self.samples
        ]
        return np.asarray(np.concatenate(is_certain, axis=1).any(axis=0))

    def compute_noise_variance(self, theta: Floats) -> Floats:
        """Compute the variance of each row, (n,), if the true contrasts are theta, (n,)."""
        fresh, devices = self.variances(theta)
        variance = np.maximum(fresh + self.device_share * devices, LEAST_NOISE)
        return np.where(self.reports > 0, variance, np.inf)

    def variances(self, theta: Floats) -> tuple[Floats, Floats]:
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

    def fourth_cumulant(self) -> Floats:
        """Compute an upper bound on the fourth cumulant of each row, (n,), if nothing changed."""
        levels = np.tile(self.mean, (len(self.weights), 1))
        return np.asarray(
            (self.weights**4 * self._stack_samples("fourth_cumulant", levels)).sum(axis=0)
        )

    def mirrored(self) -> ContrastRows:
        """Return the rows with all weights negated: rises become falls."""
        return replace(
            self, proportions=-self.proportions, weights=-self.weights, slope=-self.slope
        )

    def compute_excess(self, fitted: Floats, variance: Floats) -> Floats:
        """Compute the distance of each row from a fit, (n,), in standard deviations.

        The distance is two-sided, because the shares of strings that are no candidates rise and
        fall. `Target.compute_excess` is one-sided.
        """
        return np.asarray(np.abs(self.proportions - fitted) / np.sqrt(variance))

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


def shared_params(samples: Sequence[AddedCollections]) -> list[Params]:
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
    shapes = [shape_of(params) for params in shared_params(samples)]
    pooled = tuple(
        tuple(PooledRows.from_collections(sample, shape) for sample in samples) for shape in shapes
    )
    first_targets = [shape_rows[0].targets[0] for shape_rows in pooled]
    stacked = debias(
        [target.counts[0] for target in first_targets],
        [target.repetitions[0] for target in first_targets],
    )

    def stack(value: Callable[[PooledRows], NDArray[Any]]) -> NDArray[Any]:
        """Stack a value of each row of each sample, (T, n)."""
        return np.concatenate(
            [[value(sample) for sample in shape_rows] for shape_rows in pooled], axis=1
        )

    has_reports, proportions = (
        stack(lambda rows: rows.has_reports),
        stack(lambda rows: rows.proportions),
    )
    noise = stack(lambda rows: rows.compute_noise_variance(rows.targets[0].density))
    n_reports = stack(lambda rows: rows.targets[0].reports)
    row_weights = spread_weights(weights, has_reports)
    # A row may lack samples, because a sample has no reports in the cohort. Only samples with a
    # weight take part in the means and the minimum below.
    is_used = row_weights != 0
    is_complete = is_used.any(axis=0)
    # slope_t of the module docstring.
    weighted_noise = row_weights * np.maximum(noise, LEAST_NOISE)
    slope = weighted_noise / np.where(is_complete, (row_weights * weighted_noise).sum(axis=0), 1.0)
    inverse_devices = stack(lambda rows: rows.inverse_devices)
    sampling, sampling_square = compute_changed_sampling(row_weights, inverse_devices, slope)
    # The device variance of a sample is the variance of one device, divided by the number of
    # devices. At level 0 (or 1) all devices have the same true bit, so the variance of one device
    # is the variance of its permanent response to a 0 (or a 1).
    total_inverse_devices = np.maximum(inverse_devices.sum(axis=0), np.finfo(float).tiny)
    zero_variance, one_variance = (
        stack(functools.partial(PooledRows.device_variance_at, level=level)).sum(axis=0)
        / total_inverse_devices
        for level in (0.0, 1.0)
    )
    return ContrastRows(
        **{sample.name: getattr(stacked, sample.name) for sample in fields(Target)}
        | {
            "proportions": (row_weights * proportions).sum(axis=0),
            # The smallest number of reports in the cohort, of all samples with a weight.
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
    )


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
    rows = np.zeros(has_reports.shape)
    is_complete = np.ones(has_reports.shape[1], dtype=bool)
    for sign in (-1.0, 1.0):
        one_sign = np.maximum(sign * weights, 0.0)
        present = one_sign @ has_reports
        is_complete &= present >= (1 - _MAX_LOST_WEIGHT) * one_sign.sum()
        scale = one_sign.sum() / np.where(present > 0, present, 1.0)
        rows += sign * one_sign[:, None] * has_reports * scale
    return rows * is_complete


def _shrink(rows: Floats, variance: Floats, collection_index: Integers) -> Floats:
    """Shrink rows, (n,), to the mean of their collection (James and Stein).

    Assumption: within a collection, the true rows have mean `level` and variance `spread`. So the
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
    level = (np.bincount(collection_index, weight * rows) / total)[collection_index]
    # Empty cohorts have infinite variance and weight 0. The bound avoids 0 times infinity.
    excess = np.bincount(
        collection_index, weight * ((rows - level) ** 2 - np.minimum(variance, 1e300))
    )
    spread = np.maximum(excess / total, 0.0)[collection_index]
    return np.asarray(level + spread / (spread + variance) * (rows - level))


def estimate_device_share(target: ContrastRows) -> ContrastRows:
    """Return the rows with `device_share` estimated from their variance, plus one standard error.

    Model: a row without changed strings, minus the change of the background, has the mean square
    fresh + device_share x devices, where fresh and devices are the two parts of its variance
    (`ContrastRows.variances`). Summed over these rows,

        device_share = sum of (square - fresh) / sum of devices

    The standard error of this ratio has the numerator sqrt(sum of residual^2), with the residual
    square - fresh - device_share x devices. If all rows are normal, the sum of residual^2 has the
    expectation sum of 2 (variance of the row)^2. The larger of the two sums is used. With fewer
    than `_MIN_ROWS` rows, `device_share` stays 1.
    """
    zeros = np.zeros(len(target))
    fresh, devices = target.variances(zeros)
    squares = (
        target.proportions - compute_group_means(target, target.compute_noise_variance(zeros))
    ) ** 2
    is_usual = (target.reports > 0) & (devices > 0) & ~_find_frequent_rows(target)
    if is_usual.sum() < _MIN_ROWS:
        return target
    device_share, std_error = 1.0, 0.0
    for _ in range(_ITERATIONS):
        expected = fresh + min(max(device_share, 0.0), 1.0) * devices
        is_used = is_usual & (squares <= _OUTLIER_Z**2 * expected)
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
        np.sum((target.fourth_cumulant() / variance**2)[has_reports])
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
