"""Rows of differences: what each bit of each cohort shows in one sample more than in another.

Theory of operation
-------------------
A string sets the same bits of a cohort in every collection of the same k, h and m, whatever f, p
and q. So the de-biased proportions of two samples, y_a and y_b, are two measurements of the same
row, and their difference

    y_b - y_a = sum over strings of (beta_b - beta_a) x + noise

holds only strings whose share changed. Whatever stayed as it was is gone, candidate or not, and
with it all collisions that it makes.

The noise is known. The variance of one row of one sample is within + between: what fresh coins add
to each report, and what differs between devices (`rappor.decoding.debias`). Devices that are in
both samples bring the same between, so

    var(y_b - y_a) = within_a + within_b + between_a + between_b - 2 rho sqrt(between_a between_b)

with rho = S_ab / sqrt(S_a S_b), the overlap: S_a and S_b are the sums of the devices' squared
reports, S_ab that of the products of their reports in both. It is 0 for other devices and 1 for the
same ones with reports in proportion. Too small a rho makes errors too large, never too small.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rappor.counts.counts import Counts
from rappor.decoding.debias import Target, debias
from rappor.decoding.devices import Repetition
from rappor.decoding.overlap import estimate_overlap
from rappor.protocol.params import Params

_LEAST_VARIANCE: Final = 1e-18
"""Variance of a row that stands for none: that of one report of 10^9."""

_FEWEST_ROWS: Final = 256
"""Rows that are needed to estimate the overlap: for one row it is the difference itself."""

Shape = tuple[int, int, int, str, str]
"""k, h, m, hash layout and normalizer: what decides which bits a string sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One side of a comparison: collections, each under a parameter set of its own."""

    name: str
    counts: tuple[Counts, ...]
    repetitions: tuple[Repetition, ...]

    @property
    def n_reports(self) -> int:
        """Reports under all parameter sets."""
        return sum(counts.n_reports for counts in self.counts)

    @property
    def n_devices(self) -> float:
        """Effective number of devices: as many reports of different devices have the same error."""
        pairs = zip(self.counts, self.repetitions, strict=True)
        return sum(counts.n_reports / each.reports_per_device for counts, each in pairs)

    def shapes(self) -> set[Shape]:
        """Return the shapes of its collections."""
        return {shape_of(counts.params) for counts in self.counts}


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
    weights: NDArray[np.float64]

    @classmethod
    def of(cls, sample: Sample, shape: Shape) -> Pooled:
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
    def live(self) -> NDArray[np.bool_]:
        """Return which rows, (n,), have reports."""
        return np.asarray(self.weights.sum(axis=0) > 0)

    @property
    def proportions(self) -> NDArray[np.float64]:
        """The de-biased proportion of each row, (n,)."""
        return sum_over(
            weight * target.proportions
            for weight, target in zip(self.weights, self.targets, strict=True)
        )

    def noise(self, theta: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the variance of each row, (n,), at true proportions; 0 for empty cohorts."""
        return self._squared("noise", theta)

    def between(self, theta: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the part of it that is of the devices."""
        return self._squared("devices_noise", theta)

    def fourth(self, theta: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a bound on the fourth cumulant of each row: that of a binomial count of few ones.

        With n reports of gap g = q* - p*, a row of variance v has at most v / (n g)^2.
        """
        parts = []
        for weight, target in zip(self.weights, self.targets, strict=True):
            one = np.maximum(target.reports * (target.q_star - target.p_star), 1e-9)
            noise = np.where(weight > 0, target.noise(theta), 0.0)
            parts.append(weight**4 * noise / one**2)
        return sum_over(parts)

    def _squared(self, name: str, theta: NDArray[np.float64]) -> NDArray[np.float64]:
        return sum_over(
            weight**2 * np.where(weight > 0, getattr(target, name)(theta), 0.0)
            for weight, target in zip(self.weights, self.targets, strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pair:
    """Two samples of one shape, row by row; `overlap` is rho."""

    before: Pooled
    after: Pooled
    overlap: float

    def noise(self, a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the variance of each difference, (n,), at the true proportions of both."""
        shared = np.sqrt(np.maximum(self.before.between(a) * self.after.between(b), 0.0))
        variance = self.before.noise(a) + self.after.noise(b) - 2 * self.overlap * shared
        live = self.before.live & self.after.live
        return np.where(live, np.maximum(variance, _LEAST_VARIANCE), np.inf)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Differences(Target):
    """The rows of differences of all shapes that two samples share, for the regression of `fit`.

    Attributes
    ----------
    pairs : one for each shape.
    mean : (n,) float64. The mean of both proportions, smoothed, which says how noisy a row is; its
        noise is independent of that of their difference.
    part : (n,) float64. Weight of the second sample in that mean.
    """

    pairs: tuple[Pair, ...]
    mean: NDArray[np.float64]
    part: NDArray[np.float64]

    def noise(self, theta: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the variance of each row if the true differences were `theta`."""
        before, after = self.mean - self.part * theta, self.mean + (1 - self.part) * theta
        parts = zip(self.pairs, self._split(before), self._split(after), strict=True)
        return np.concatenate([pair.noise(a, b) for pair, a, b in parts])

    def fourth(self) -> NDArray[np.float64]:
        """Return a bound on the fourth cumulant of each row, (n,), if nothing changed."""
        parts = zip(self.pairs, self._split(self.mean), strict=True)
        return np.concatenate(
            [pair.before.fourth(theta) + pair.after.fourth(theta) for pair, theta in parts]
        )

    def _split(self, rows: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """Return the rows of each pair."""
        ends = np.cumsum([len(pair.before.targets[0]) for pair in self.pairs])[:-1]
        return np.split(rows, ends)

    def excess(
        self, fitted: NDArray[np.float64], variance: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return how far each row is from a fit, in standard deviations: strings rise and fall."""
        return np.asarray(np.abs(self.proportions - fitted) / np.sqrt(variance))


def shape_of(params: Params) -> Shape:
    """Return what decides which bits a string sets."""
    return params.k, params.h, params.m, params.layout, params.normalize


def shared_params(before: Sample, after: Sample) -> list[Params]:
    """Return parameters of each shape that two samples share, in the order of their rows."""
    shapes = {shape_of(counts.params): counts.params for counts in before.counts}
    return [shapes[shape] for shape in sorted(before.shapes() & after.shapes())]


def differences(
    before: Sample,
    after: Sample,
    explained: tuple[NDArray[np.float64], NDArray[np.float64]],
    *,
    overlap: float,
) -> Differences:
    """Stack the rows of differences of two samples that share a shape.

    Parameters
    ----------
    explained : (n,) float64 each. What the detected strings of each sample set in each row.
    """
    shapes = sorted(before.shapes() & after.shapes())
    pairs = [
        Pair(before=Pooled.of(before, shape), after=Pooled.of(after, shape), overlap=overlap)
        for shape in shapes
    ]
    firsts = [pair.before.targets[0] for pair in pairs]
    lasts = [pair.after.targets[0] for pair in pairs]
    live = np.concatenate([pair.before.live & pair.after.live for pair in pairs])
    a, b = (
        np.concatenate([getattr(pair, side).proportions for pair in pairs])
        for side in ("before", "after")
    )
    group = np.repeat(np.arange(len(pairs)), [len(each) for each in firsts])
    part = np.concatenate([_part(pair) for pair in pairs])
    variance = np.concatenate([_variance_of_mean(pair) for pair in pairs])
    known = (1 - part) * explained[0] + part * explained[1]
    unknown = np.where(live, (1 - part) * a + part * b - known, 0.0)

    def stacked(name: str, choose: np.ufunc = np.minimum) -> NDArray[np.float64]:
        both = zip(firsts, lasts, strict=True)
        return np.concatenate([choose(getattr(x, name), getattr(y, name)) for x, y in both])

    return Differences(
        proportions=np.where(live, b - a, 0.0),
        reports=np.where(live, stacked("reports"), 0.0),
        p_star=stacked("p_star"),
        q_star=stacked("q_star", np.maximum),
        p=stacked("p"),
        q=stacked("q", np.maximum),
        repeated=np.ones(len(a)),
        group=group,
        density=stacked("density"),
        n_reports=before.n_reports + after.n_reports,
        counts=tuple(each.counts[0] for each in firsts),
        repetitions=tuple(each.repetitions[0] for each in firsts),
        pairs=tuple(pairs),
        mean=known + _smoothed(unknown, np.where(live, variance, np.inf), group),
        part=part,
    )


def _part(pair: Pair) -> NDArray[np.float64]:
    """Return the weight of the second sample in the mean by inverse variances."""
    density = pair.before.targets[0].density
    a, b = pair.before.noise(density), pair.after.noise(density)
    return np.asarray(np.divide(a, a + b, out=np.full(len(a), 0.5), where=a + b > 0))


def _variance_of_mean(pair: Pair) -> NDArray[np.float64]:
    """Return the variance of that mean, if the samples are of other devices."""
    density = pair.before.targets[0].density
    part = _part(pair)
    noise = (1 - part) ** 2 * pair.before.noise(density) + part**2 * pair.after.noise(density)
    return np.asarray(noise)


def _smoothed(
    rows: NDArray[np.float64], variance: NDArray[np.float64], group: NDArray[np.int64]
) -> NDArray[np.float64]:
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


def estimated_overlap(before: Sample, after: Sample) -> float:
    """Return rho as estimated from the samples, minus one standard error; 0 if that is impossible.

    It tells where both have one and the same parameter set: see `rappor.decoding.overlap`.
    """
    if len(before.counts) != 1 or len(after.counts) != 1:
        return 0.0
    (a,), (b,) = before.counts, after.counts
    if a.params.fingerprint != b.params.fingerprint or a.ones.size < _FEWEST_ROWS:
        return 0.0
    repeated = [sample.repetitions[0].reports_per_device for sample in (before, after)]
    found = estimate_overlap([a, b], repeated)
    if found is None:
        return 0.0
    squares = [a.n_reports * repeated[0], b.n_reports * repeated[1]]
    n = a.n_reports + b.n_reports
    shared = (found.reports_per_device - found.std_error) * n - sum(squares)
    return min(max(shared / (2 * math.sqrt(squares[0] * squares[1])), 0.0), 1.0)


def sum_over(arrays: Iterable[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Add up arrays of one shape."""
    return np.asarray(np.sum(list(arrays), axis=0))
