"""Rows of a contrast: what each bit of each cohort shows of a weighted sum of samples.

Theory of operation
-------------------
A string sets the same bits of a cohort in every collection of the same k, h and m, whatever f, p
and q. So the de-biased proportions of the samples, y_t, are measurements of the same row, and with
weights w_t that sum to 0

    sum over t of w_t y_t = sum over strings of (sum over t of w_t beta_t) x + noise

holds only strings whose share changed. Whatever stayed as it was is gone, candidate or not, and
with it all collisions that it makes.

The variance of one row of one sample is within + between: what fresh coins add to each report, and
what differs between devices (`rappor.estimator.debias`). Devices in several samples bring the same
between (`rappor.comparison.shared_devices`). How large its part is of the most that it can be is
one number for all rows. If no overlap is known, the rows' own variance says it, plus one standard
error: bits that frequent strings set are left out, and those whose contrast is beyond noise.

Devices that changed their value have new permanent noise in all rows, which the rows' own variance
shows. Their sampling, and the larger permanent noise of a 1, are in the rows of changed strings
only, which are left out of that variance. `ContrastRows.changed` returns that part.
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

from rappor.comparison.shared_devices import changed_sampling, devices_variance
from rappor.counts.arrays import Booleans, Floats, Integers
from rappor.estimator.debias import Target, debias
from rappor.estimator.device_assumptions import AddedCollections
from rappor.estimator.device_correlation import HEAVY
from rappor.estimator.fit import LEAST_NOISE
from rappor.protocol.params import Params

_FEWEST_ROWS: Final = 256
"""Rows that are needed to estimate the devices' part: one row is the contrast itself."""

_OUTLIER: Final = float(-special.ndtri(0.5e-4))
"""Standard deviations from which a row is no noise: noise alone leaves out one in 10,000."""

_LOST: Final = 0.02
"""Part of the weights of one sign that samples without reports in a cohort may have: the others of
that sign take it over. A row that misses more is left out."""

_ROUNDS: Final = 4
"""Rounds in which the devices' part and the rows that are left out settle."""

Shape = tuple[int, int, int, str, str]
"""k, h, m, hash layout and normalizer: what decides which bits a string sets."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pooled:
    """The rows of one sample under parameter sets of one shape: their weighted mean.

    Attributes
    ----------
    targets : one for each parameter set, n rows each.
    weights : (g, n) float64, of each in the mean; 0 for empty cohorts. They do not depend on the
        ones that were counted.
    """

    targets: tuple[Target, ...]
    weights: Floats

    @classmethod
    def of(cls, sample: AddedCollections, shape: Shape) -> Pooled:
        """Take the collections of a shape."""
        pairs = zip(sample.counts, sample.repetitions, strict=True)
        targets = tuple(
            debias([counts], [each]) for counts, each in pairs if shape_of(counts.params) == shape
        )
        precision = np.array([1 / target.noise(target.density) for target in targets])
        total = precision.sum(axis=0)
        weights = np.divide(precision, total, out=np.zeros_like(precision), where=total > 0)
        return cls(targets=targets, weights=weights)

    @property
    def live(self) -> Booleans:
        """Return which rows, (n,), have reports."""
        return np.asarray(self.weights.sum(axis=0) > 0)

    @property
    def proportions(self) -> Floats:
        """The de-biased proportion of each row, (n,)."""
        return sum_over(
            weight * target.proportions
            for weight, target in zip(self.weights, self.targets, strict=True)
        )

    def noise(self, theta: Floats) -> Floats:
        """Return the variance of each row, (n,), at true proportions; 0 for empty cohorts."""
        return self._squared("noise", theta)

    def between(self, theta: Floats) -> Floats:
        """Return the part of it that is of the devices."""
        return self._squared("devices_noise", theta)

    def between_at(self, level: float) -> Floats:
        """Return that part of each row at one true proportion."""
        return self.between(np.full(self.weights.shape[1], level))

    @property
    def per_device(self) -> Floats:
        """Return 1 over the effective number of devices of each row, (n,); 0 for empty cohorts."""
        return sum_over(
            weight**2 * target.repeated / np.maximum(target.reports, 1.0)
            for weight, target in zip(self.weights, self.targets, strict=True)
        )

    def fourth(self, theta: Floats) -> Floats:
        """Return a bound on the fourth cumulant of each row: that of a binomial count of few ones.

        With n reports of gap g = q* - p*, a row of variance v has at most v / (n g)^2.
        """
        parts = []
        for weight, target in zip(self.weights, self.targets, strict=True):
            one = np.maximum(target.reports * (target.q_star - target.p_star), 1e-9)
            noise = np.where(weight > 0, target.noise(theta), 0.0)
            parts.append(weight**4 * noise / one**2)
        return sum_over(parts)

    def _squared(self, name: str, theta: Floats) -> Floats:
        return sum_over(
            weight**2 * np.where(weight > 0, getattr(target, name)(theta), 0.0)
            for weight, target in zip(self.weights, self.targets, strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ContrastRows(Target):
    """The rows of a contrast for the regression of `fit`, all shapes that its samples share.

    Attributes
    ----------
    samples : the t samples of each shape.
    weights : (t, n) float64. In each row with reports they sum to 0, and those of each sign to as
        much as in all rows; 0 for a sample without reports in the cohort.
    overlap : rho; None if it is not known.
    part : of the most that devices can bring; 1 if the overlap is known.
    mean : (n,) float64. The mean of all samples, smoothed, which says how noisy a row is; its noise
        is independent of that of the contrast.
    slope : (t, n) float64. By how much the level of each sample is above it if the contrast is 1.
    sampling : (n,) float64. Variance of the sampling of devices whose value changed, for a unit of
        change, if all samples have the same devices; 0 for empty cohorts.
    sampling_square : (n,) float64. The same for a unit of the negative square of the change.
    permanent : (2, n) float64. Variance of the permanent response of one device to a 0 and to a 1,
        in units of a share.
    """

    samples: tuple[tuple[Pooled, ...], ...]
    weights: Floats
    overlap: float | None
    part: float
    mean: Floats
    slope: Floats
    sampling: Floats
    sampling_square: Floats
    permanent: Floats

    @property
    def certain(self) -> Booleans:
        """Return in which rows, (n,), some sample has no bit that is falsely 1, or falsely 0."""
        every = [[each.targets[0].certain for each in some] for some in self.samples]
        return np.asarray(np.concatenate(every, axis=1).any(axis=0))

    def noise(self, theta: Floats) -> Floats:
        """Return the variance of each row if the true contrasts were `theta`."""
        fresh, devices = self.variances(theta)
        variance = np.maximum(fresh + self.part * devices, LEAST_NOISE)
        return np.where(self.reports > 0, variance, np.inf)

    def variances(self, theta: Floats) -> tuple[Floats, Floats]:
        """Return the variance of the fresh coins, (n,), and the most that is of the devices."""
        levels = self.mean + self.slope * theta
        noise, between = (self._of_samples(name, levels) for name in ("noise", "between"))
        between = np.maximum(between, 0.0)
        fresh = (self.weights**2 * np.maximum(noise - between, 0.0)).sum(axis=0)
        devices = self.weights * np.sqrt(between)
        return np.asarray(fresh), devices_variance(devices, self.overlap)

    def fourth(self) -> Floats:
        """Return a bound on the fourth cumulant of each row, (n,), if nothing changed."""
        levels = np.tile(self.mean, (len(self.weights), 1))
        return np.asarray((self.weights**4 * self._of_samples("fourth", levels)).sum(axis=0))

    def mirrored(self) -> ContrastRows:
        """Return the rows of the weights with the other sign."""
        return replace(
            self, proportions=-self.proportions, weights=-self.weights, slope=-self.slope
        )

    def excess(self, fitted: Floats, variance: Floats) -> Floats:
        """Return how far each row is from a fit, in standard deviations: strings rise and fall."""
        return np.asarray(np.abs(self.proportions - fitted) / np.sqrt(variance))

    def _of_samples(self, name: str, levels: Floats) -> Floats:
        """Return what each sample's rows have by this name at its levels, (t, n)."""
        ends = np.cumsum([len(some[0].targets[0]) for some in self.samples])[:-1]
        return np.concatenate(
            [
                np.array([getattr(each, name)(level) for each, level in zip(some, at, strict=True)])
                for some, at in zip(self.samples, np.split(levels, ends, axis=1), strict=True)
            ],
            axis=1,
        )


def shape_of(params: Params) -> Shape:
    """Return what decides which bits a string sets."""
    return params.k, params.h, params.m, params.layout, params.normalize


def shapes_of(sample: AddedCollections) -> set[Shape]:
    """Return the shapes of its collections."""
    return {shape_of(counts.params) for counts in sample.counts}


def shared_params(samples: Sequence[AddedCollections]) -> list[Params]:
    """Return parameters of each shape that all samples share, in the order of their rows."""
    shapes = {shape_of(counts.params): counts.params for counts in samples[0].counts}
    shared = set.intersection(*map(shapes_of, samples))
    return [shapes[shape] for shape in sorted(shared)]


def contrast_rows(
    samples: Sequence[AddedCollections],
    weights: Floats,
    explained: Floats,
    *,
    overlap: float | None,
) -> ContrastRows:
    """Stack the rows of a contrast of samples that share a shape; `part` is 1, the most.

    Parameters
    ----------
    weights : (t,) float64, none of them 0; they sum to 0.
    explained : (t, n) float64. What the detected strings of each sample set in each row.
    """
    shapes = [shape_of(params) for params in shared_params(samples)]
    pooled = tuple(tuple(Pooled.of(each, shape) for each in samples) for shape in shapes)
    firsts = [some[0].targets[0] for some in pooled]
    one_of_each = debias([t.counts[0] for t in firsts], [t.repetitions[0] for t in firsts])

    def of_samples(value: Callable[[Pooled], NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate([[value(each) for each in some] for some in pooled], axis=1)

    live, proportions = of_samples(lambda s: s.live), of_samples(lambda s: s.proportions)
    noise = of_samples(lambda s: s.noise(s.targets[0].density))
    counted = of_samples(lambda s: s.targets[0].reports)
    used = weights_of_rows(weights, live)
    there = used != 0
    alive = there.any(axis=0)
    precision = np.where(there, 1 / np.maximum(noise, LEAST_NOISE), 0.0)
    total = np.where(alive, precision.sum(axis=0), 1.0)
    shares = precision / total
    known = (shares * explained).sum(axis=0)
    mean = (shares * proportions).sum(axis=0)
    spread = np.where(alive, 1 / total, np.inf)
    pull = used * np.maximum(noise, LEAST_NOISE)
    slope = pull / np.where(alive, (used * pull).sum(axis=0), 1.0)
    per_device = of_samples(lambda s: s.per_device)
    n_per_device = np.maximum(per_device.sum(axis=0), np.finfo(float).tiny)
    sampling, sampling_square = changed_sampling(used, per_device, slope)
    zero, one = (
        of_samples(functools.partial(Pooled.between_at, level=level)).sum(axis=0) / n_per_device
        for level in (0.0, 1.0)
    )
    return ContrastRows(
        **{each.name: getattr(one_of_each, each.name) for each in fields(Target)}
        | {
            "proportions": (used * proportions).sum(axis=0),
            "reports": np.where(alive, np.where(there, counted, np.inf).min(axis=0), 0.0),
            "n_reports": sum(counts.n_reports for each in samples for counts in each.counts),
        },
        samples=pooled,
        weights=used,
        overlap=overlap,
        part=1.0,
        mean=known + _smoothed(mean - known, spread, one_of_each.group),
        slope=slope,
        sampling=sampling,
        sampling_square=sampling_square,
        permanent=np.maximum([zero, one], 0.0),
    )


def weights_of_rows(weights: Floats, live: Booleans) -> Floats:
    """Return the weights of each row, (t, n): those of samples without reports go to the others.

    Each sign keeps its sum, so that what did not change still cancels. A row is left out, all 0,
    where one sign lacks more than `_LOST` of its weights.

    Parameters
    ----------
    weights : (t,) float64; they sum to 0.
    live : (t, n). Whether a sample has reports in the row's cohort.
    """
    rows = np.zeros(live.shape)
    alive = np.ones(live.shape[1], dtype=bool)
    for sign in (-1.0, 1.0):
        full = np.maximum(sign * weights, 0.0)
        there = full @ live
        alive &= there >= (1 - _LOST) * full.sum()
        scale = full.sum() / np.where(there > 0, there, 1.0)
        rows += sign * full[:, None] * live * scale
    return rows * alive


def _smoothed(rows: Floats, variance: Floats, group: Integers) -> Floats:
    """Return what rows, (n,), are without their noise: shrunken to the mean of their group.

    Raw rows would tie weights to noise: where reports are few, a row with more ones by luck would
    have a larger variance and a smaller weight, and every change would come out too small. How
    much stays is their variance beyond the noise (James and Stein): of rare strings nothing, of
    heavy strings that are no candidates nearly all.
    """
    weight = 1 / variance
    total = np.maximum(np.bincount(group, weight), np.finfo(float).tiny)
    level = (np.bincount(group, weight * rows) / total)[group]
    beyond = np.bincount(group, weight * ((rows - level) ** 2 - np.minimum(variance, 1e300)))
    spread = np.maximum(beyond / total, 0.0)[group]
    return np.asarray(level + spread / (spread + variance) * (rows - level))


def with_estimated_part(target: ContrastRows) -> ContrastRows:
    """Return the rows with the devices' part that their variance shows, plus one standard error.

    It stays the most that is possible where there are too few rows to tell.
    """
    nothing = np.zeros(len(target))
    fresh, devices = target.variances(nothing)
    squares = (target.proportions - group_means(target, target.noise(nothing))) ** 2
    usual = (target.reports > 0) & (devices > 0) & ~_heavy(target)
    if usual.sum() < _FEWEST_ROWS:
        return target
    part, error = 1.0, 0.0
    for _ in range(_ROUNDS):
        expected = fresh + min(max(part, 0.0), 1.0) * devices
        used = usual & (squares <= _OUTLIER**2 * expected)
        total = float(devices[used].sum())
        if not total > 0:
            return target
        part = float((squares - fresh)[used].sum()) / total
        rest = (squares - fresh - part * devices)[used]
        normal = 2 * expected[used] ** 2
        error = math.sqrt(max(float((rest**2).sum()), float(normal.sum()))) / total
    return replace(target, part=min(max(part + error, 0.0), 1.0))


def _heavy(target: ContrastRows) -> Booleans:
    """Return which rows, (n,), frequent strings set: their mean is above noise."""
    levels = np.tile(target.mean, (len(target.weights), 1))
    noise = np.maximum(target._of_samples("noise", levels), LEAST_NOISE)
    precision = np.where(target.weights != 0, 1 / noise, 0.0).sum(axis=0)
    spread = 1 / np.sqrt(np.maximum(precision, np.finfo(float).tiny))
    heavy = np.zeros(len(target), dtype=bool)
    for number in range(len(target.counts)):
        rows = (target.group == number) & (target.reports > 0)
        if rows.any():
            heavy[rows] = target.mean[rows] > np.median(target.mean[rows]) + HEAVY * spread[rows]
    return heavy


def rows_p_value(target: ContrastRows) -> float:
    """Return how often rows differ as much or more if nothing at all changed.

    The sum of squared rows, each over its variance at the mean of all samples, is compared with a
    gamma distribution of the same mean and variance; few ones have a larger variance.
    """
    live = target.reports > 0
    variance = target.noise(np.zeros(len(target)))
    if not live.any():
        return 1.0
    middle = group_means(target, variance)
    squares = float(np.sum((target.proportions - middle)[live] ** 2 / variance[live]))
    degrees = float(live.sum() - len(np.unique(target.group[live])))
    if degrees <= 0:
        return 1.0
    spread = 2 * degrees + float(np.sum((target.fourth() / variance**2)[live]))
    shape = degrees**2 / spread
    return float(special.gammaincc(shape, squares * shape / degrees))


def group_means(target: ContrastRows, variance: Floats) -> Floats:
    """Return the weighted mean of each group's rows, at each row: the change of the background."""
    weight = 1 / variance
    total = np.bincount(target.group, weight)
    sums = np.bincount(target.group, weight * target.proportions)
    return np.asarray((sums / np.maximum(total, np.finfo(float).tiny))[target.group])


def sum_over(arrays: Iterable[Floats]) -> Floats:
    """Add up arrays of one shape."""
    return np.asarray(np.sum(list(arrays), axis=0))
