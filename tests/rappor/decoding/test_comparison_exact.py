"""The formulas of a comparison, written down once more or told by what must follow from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from rappor import Candidates, Counts, Params, Population, compare, decode, simulate_counts
from rappor.decoding.comparison.answer_changes import Joined
from rappor.decoding.comparison.changes import rows_p_value
from rappor.decoding.comparison.differences import (
    Differences,
    Pooled,
    Sample,
    differences,
    estimated_overlap,
    shape_of,
)
from rappor.decoding.debias import debias
from rappor.decoding.detection import Detection
from rappor.decoding.devices import merge
from rappor.decoding.overlap import estimate_overlap
from rappor.simulation import simulate_days

PARAMS = Params(k=4, h=1, m=3, f=0.25, p=0.3, q=0.7)
NOISIER = Params(k=4, h=1, m=3, f=0.25, p=0.4, q=0.6)
STEADY = Params(k=16, h=1, m=16, f=0.5, p=0.1, q=0.9)
"""Most of the noise is permanent, and there are bits enough to tell the overlap from."""

OTHER = Params(k=8, h=1, m=2, f=0.25, p=0.3, q=0.7)
COLOURS = Params(k=3, encoding="onehot", categories=("red", "green", "blue"), f=0.5, p=0.1, q=0.9)
LEVEL = 0.05


def counted(params: Params, n: int, seed: int) -> Counts:
    """Make counts of n reports a cohort, whose ones are any."""
    rng = np.random.default_rng(seed)
    ones = rng.integers(0, n + 1, (params.m, params.k))
    return Counts(params, ones, np.full(params.m, n))


def sample_of(*collections: Counts, name: str = "a") -> Sample:
    merged, repetitions = merge(collections)
    return Sample(name=name, counts=tuple(merged), repetitions=tuple(repetitions))


BEFORE = sample_of(counted(PARAMS, 50, 1), counted(OTHER, 60, 2))
AFTER = sample_of(counted(PARAMS, 300, 3), counted(OTHER, 20, 4))
N_ROWS = PARAMS.m * PARAMS.k + OTHER.m * OTHER.k
NOTHING = np.zeros(N_ROWS)


def differing(overlap: float = 0.0) -> Differences:
    return differences(BEFORE, AFTER, (NOTHING, NOTHING), overlap=overlap)


def pooled(sample: Sample) -> list[Pooled]:
    """Return the rows of each shape, in their order."""
    return [Pooled.of(sample, shape) for shape in sorted(sample.shapes())]


def noise_of(sample: Sample, name: str, theta: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what the rows of a sample have by this name, of all shapes."""
    ends = np.cumsum([len(each.targets[0]) for each in pooled(sample)])[:-1]
    parts = zip(pooled(sample), np.split(theta, ends), strict=True)
    return np.concatenate([getattr(each, name)(some) for each, some in parts])


@pytest.mark.parametrize("overlap", [0.0, 0.7])
def test_the_noise_of_a_difference_is_that_of_both_less_what_they_share(overlap: float) -> None:
    """At the proportions that have this difference and the mean that is known."""
    target, theta = differing(overlap), np.linspace(-0.3, 0.3, N_ROWS)
    before = target.mean - target.part * theta
    after = before + theta
    assert (1 - target.part) * before + target.part * after == pytest.approx(target.mean)
    shared = noise_of(BEFORE, "between", before) * noise_of(AFTER, "between", after)
    variance = noise_of(BEFORE, "noise", before) + noise_of(AFTER, "noise", after)
    assert target.noise(theta) == pytest.approx(variance - 2 * overlap * np.sqrt(shared), rel=1e-12)


def test_the_mean_of_both_samples_is_weighted_by_their_precision() -> None:
    """At the noise of strings that nobody knows; then the rows' means have the least noise."""
    target = differing()
    precision = [1 / noise_of(sample, "noise", target.density) for sample in (BEFORE, AFTER)]
    assert target.part == pytest.approx(precision[1] / (precision[0] + precision[1]), rel=1e-12)


def test_a_few_reports_tell_nothing_of_rows_that_differ_less_than_their_noise() -> None:
    """All rows of a shape are taken for their mean then, beside what detected strings explain."""
    level = [
        Counts(PARAMS, np.full((3, 4), n // 2) + np.arange(4) % 2, np.full(3, n)) for n in (20, 60)
    ]
    explained = np.linspace(0.1, 0.2, 12), np.linspace(0.3, 0.1, 12)
    target = differences(sample_of(level[0]), sample_of(level[1]), explained, overlap=0.0)
    known = (1 - target.part) * explained[0] + target.part * explained[1]
    assert np.ptp(target.mean - known) == pytest.approx(0, abs=1e-12)
    many = [Counts(PARAMS, 10**9 * each.ones, 10**9 * each.reports) for each in level]
    target = differences(sample_of(many[0]), sample_of(many[1]), explained, overlap=0.0)
    raw = [debias(sample_of(each).counts, sample_of(each).repetitions) for each in many]
    mean = (1 - target.part) * raw[0].proportions + target.part * raw[1].proportions
    assert target.mean == pytest.approx(mean, rel=1e-6)


def test_parameter_sets_of_a_shape_are_pooled_by_their_precision() -> None:
    """The variance of a weighted mean is the harmonic one; its cumulants add up."""
    sample = sample_of(counted(PARAMS, 50, 5), counted(NOISIER, 80, 6))
    rows = Pooled.of(sample, shape_of(PARAMS))
    density = rows.targets[0].density
    single = [target.noise(density) for target in rows.targets]
    assert rows.noise(density) == pytest.approx(1 / sum(1 / each for each in single), rel=1e-12)
    between = [target.devices_noise(density) for target in rows.targets]
    weights = [1 / each * rows.noise(density) for each in single]
    expected = sum(w**2 * each for w, each in zip(weights, between, strict=True))
    assert rows.between(density) == pytest.approx(expected, rel=1e-12)
    fourth: NDArray[np.float64] = np.zeros(len(density))
    for weight, target in zip(weights, rows.targets, strict=True):
        gap = target.q_star - target.p_star
        mu = target.p_star + gap * density
        variance = target.reports * mu * (1 - mu)
        cumulant = variance * (1 - 6 * mu * (1 - mu))  # of a binomial number of ones
        fourth += (weight / (target.reports * gap)) ** 4 * cumulant / (1 - 6 * mu * (1 - mu))
    assert rows.fourth(density) == pytest.approx(fourth, rel=1e-12)


def test_the_test_of_all_rows_is_a_gamma_distribution_of_their_moments() -> None:
    """A group loses a degree of freedom; few ones have a larger variance than normal noise."""
    target = differing()
    variance, fourth = target.noise(NOTHING), target.fourth()
    mean = np.concatenate([noise_of(each, "fourth", target.mean) for each in (BEFORE, AFTER)])
    assert fourth == pytest.approx(mean[:N_ROWS] + mean[N_ROWS:], rel=1e-12)
    squares, degrees, spread = 0.0, 0.0, 0.0
    for group in (0, 1):
        mine = target.group == group
        middle = np.average(target.proportions[mine], weights=1 / variance[mine])
        squares += float(np.sum((target.proportions[mine] - middle) ** 2 / variance[mine]))
        degrees += int(mine.sum()) - 1
        spread += float(np.sum(fourth[mine] / variance[mine] ** 2))
    spread += 2 * degrees
    scaled = squares / 30  # the counts differ too much for a p-value that tells anything
    near = shrunken(target, 1 / math.sqrt(30))
    expected = stats.gamma.sf(scaled, degrees**2 / spread, scale=spread / degrees)
    assert 1e-6 < expected < 0.999
    assert rows_p_value(near) == pytest.approx(expected, rel=1e-9)


def test_the_overlap_is_one_standard_error_less_than_estimated() -> None:
    """Devices of both: their squared reports in all are S_a + S_b + 2 rho sqrt(S_a S_b)."""
    params = dataclasses.replace(STEADY, k=32, m=32)
    population = Population([f"s{i}" for i in range(40)], [1.0] * 40)
    a, again = simulate_days(population, params, n_devices=5e4, n_days=2, seed=1)
    others = simulate_counts(population, params, n_reports=1e5, seed=2)
    b = Counts(params, again.ones + others.ones, again.reports + others.reports, squares=150_000)
    rho = estimated_overlap(sample_of(a), sample_of(b))
    assert 0 < rho < 1  # about .55 with an error of .06
    found = estimate_overlap([a, b], [1.0, 1.0])
    assert found is not None
    squares = (found.reports_per_device - found.std_error) * (a.n_reports + b.n_reports)
    shared = 2 * rho * math.sqrt(a.n_reports * b.n_reports)
    assert squares == pytest.approx(a.n_reports + b.n_reports + shared, rel=1e-6)


def test_whether_nothing_changed_is_asked_at_the_largest_errors() -> None:
    """An overlap that is only estimated makes differences more certain, and that test not."""
    names = [f"s{i}" for i in range(5)]
    days = simulate_days(Population(names, [1.0] * 5), STEADY, n_devices=5e4, n_days=2, seed=1)
    samples = dict(zip("ab", days, strict=True))
    (seen,), (none,), (given,) = (
        compare(samples, names, overlap=each).against for each in (None, 0.0, 0.9)
    )
    assert seen.overlap > 0.3  # about .9 with an error of .06
    assert seen.rows_p_value == none.rows_p_value
    assert seen.rows_p_value != given.rows_p_value
    assert none.rows_p_value is not None
    strings = min(5 * float(none.p_value.min()), 1.0)
    assert none.unchanged_p_value == min(2 * min(strings, none.rows_p_value), 1.0)


@pytest.mark.parametrize("h", [1, 2, 4])
def test_the_error_of_a_difference_holds_the_sampling_of_devices(h: int) -> None:
    """Nearly without noise it is all there is: a string's devices are drawn once, not h times."""
    params = Params(k=256, h=h, m=16, f=0.0, p=0.001, q=0.999, insecure=True)
    a, b = (
        simulate_counts(Population(["x", "y"], weights), params, n_reports=n, seed=1)
        for weights, n in (([1, 4], 1e5), ([1, 1], 3e5))
    )
    (found,) = compare({"a": a, "b": b}, ["x", "y"]).against
    sampling = 0.2 * 0.8 / 1e5 + 0.5 * 0.5 / 3e5
    assert found.std_error**2 == pytest.approx(sampling, rel=0.1)


def test_intervals_reach_as_far_as_the_longer_tail() -> None:
    """Of few reports, ones come by chance more easily than they stay away.

    So a sample of few reports shows more than there is rather than less, and a change away from it
    may be smaller than it seems. Then the interval reaches further up, and further down if swapped.
    """
    params = Params(k=64, h=1, m=32, f=0.02, p=0.02, q=0.5, insecure=True)
    population = Population([f"s{i}" for i in range(50)], [1.0] * 50)
    few, many = (simulate_counts(population, params, n_reports=n, seed=n) for n in (600, 60_000))
    for samples, longer in (({"a": few, "b": many}, 1), ({"a": many, "b": few}, 0)):
        (each,) = compare(samples, population.values).against
        below = (each.difference - each.ci_low) / each.std_error
        above = (each.ci_high - each.difference) / each.std_error
        assert (above, below)[longer] == pytest.approx(stats.norm.isf(0.025))
        assert ((below, above)[longer] > 2).all()


def test_candidates_that_cannot_be_told_apart_explain_their_bits_once() -> None:
    """Errors are those of a list that has one of them."""
    params = Params(k=16, h=1, m=3, f=0.0, p=0.1, q=0.9)
    many = Candidates.from_list(["vim", *(f"editor {i}" for i in range(30_000))])
    cells = many.cells(params, 0, len(many))
    twin = many.strings[np.flatnonzero((cells == cells[0]).all(axis=1))[1]]
    a, b = (
        simulate_counts(Population(["vim", "other"], [1, 1]), params, n_reports=n, seed=1)
        for n in (1e5, 2e5)
    )
    alone, both = (compare({"a": a, "b": b}, names) for names in (["vim"], ["vim", twin]))
    assert decode(a, ["vim", twin]).detected.all()
    assert both.group.tolist() == [1, 1]
    assert both.against[0].std_error == pytest.approx(alone.against[0].std_error[0], rel=1e-12)


def test_strings_that_are_not_looked_at_closely_have_errors_of_both_signs() -> None:
    """Of thousands of candidates, those that fall and those that rise are estimated alike."""
    params = Params(k=64, h=1, m=8, f=0.25, p=0.3, q=0.7)
    names = [f"s{i}" for i in range(2600)]
    a, b = (
        simulate_counts(Population(names[:3], weights), params, n_reports=1e4, seed=1)
        for weights in ([1, 1, 2], [2, 1, 1])
    )
    there, back = (
        {row["candidate"]: row["std_error"] for row in compare(samples, names).rows()}
        for samples in ({"a": a, "b": b}, {"b": b, "a": a})
    )
    assert there == pytest.approx(back, rel=1e-6)


def test_estimates_that_share_no_bits_are_subtracted() -> None:
    """Their variances add, and the rest is a normal distribution."""
    names = ["x", "y", "z"]
    other = Params(k=4, h=1, m=6, f=0.25, p=0.3, q=0.7)
    samples = {
        "a": simulate_counts(Population(names, [4, 3, 2]), PARAMS, n_reports=2e4, seed=1),
        "b": simulate_counts(Population(names, [4, 3, 2]), other, n_reports=1e4, seed=2),
    }
    found = compare(samples, names)
    (each,) = found.against
    assert each.how == "apart"
    rows = [{row["candidate"]: row for row in decode(c, names).rows()} for c in samples.values()]
    errors = [
        math.hypot(rows[0][name]["std_error"] / 2e4, rows[1][name]["std_error"] / 1e4)
        for name in found.candidates
    ]
    assert each.std_error == pytest.approx(errors)
    z = each.difference / each.std_error
    assert each.p_value == pytest.approx(2 * stats.norm.sf(np.abs(z)))
    reach = stats.norm.isf(0.025) * each.std_error
    assert each.ci_low == pytest.approx(each.difference - reach)
    assert each.ci_high == pytest.approx(each.difference + reach)


def answers(shares: Sequence[float], seed: int, n: float = 1e4) -> Counts:
    population = Population(list(COLOURS.categories), list(shares))
    return simulate_counts(population, COLOURS, n_reports=n, seed=seed)


def test_intervals_of_changes_are_widened_for_their_choice() -> None:
    """R of n differences are significant: theirs miss with R / n of the probability."""
    samples = {
        "a": answers([5, 3, 2], 1),
        "b": answers([5, 3, 2], 2),
        "c": answers([3, 5, 2], 3),
    }
    found = compare(samples, overlap=0.0, detection=Detection(confidence=0.9))
    changed = sum(int(each.changed.sum()) for each in found.against)
    assert 2 <= changed < 6
    for each, name in zip(found.against, "bc", strict=True):
        joined = Joined(sample_of(samples["a"]), sample_of(samples[name]), overlap=0.0)
        low, high = joined.interval(0.1)
        assert (each.ci_low.tolist(), each.ci_high.tolist()) == (low.tolist(), high.tolist())
        low, high = (np.where(each.changed, end, np.nan) for end in joined.interval(changed / 60))
        assert each.ci_low_adjusted == pytest.approx(low, nan_ok=True)
        assert each.ci_high_adjusted == pytest.approx(high, nan_ok=True)
        assert each.unchanged_p_value == min(3 * float(each.p_value.min()), 1.0)
    least = min(each.unchanged_p_value for each in found.against)
    assert found.unchanged_p_value == min(2 * least, 1.0)


def test_correlated_answers_are_joined_as_their_errors_are() -> None:
    """Newcombe's interval at the correlation of the devices' part; mirrored, it is the same."""
    before, after = sample_of(answers([5, 3, 2], 4, 300)), sample_of(answers([3, 5, 2], 5, 100))
    there, back = Joined(before, after, overlap=0.8), Joined(after, before, overlap=0.8)
    a, b, r = there.a, there.b, there.shared
    devices = [
        debias(each.counts, each.repetitions).devices_noise(mine.estimate)
        for each, mine in ((before, a), (after, b))
    ]
    assert r == pytest.approx(0.8 * np.sqrt(devices[0] * devices[1]) / (a.std_error * b.std_error))
    assert r.min() > 0.1
    variance = a.std_error**2 + b.std_error**2 - 2 * r * a.std_error * b.std_error
    assert there.std_error == pytest.approx(np.sqrt(variance))
    low, high = there.interval(LEVEL)
    for end, mirrored in zip((low, high), reversed(back.interval(LEVEL)), strict=True):
        assert end == pytest.approx(-mirrored)
    (_, high_a), (low_b, _) = (each.proportions.interval(LEVEL) for each in (a, b))
    down, up = b.estimate - low_b, high_a - a.estimate
    reach = np.sqrt(down**2 - 2 * r * down * up + up**2)
    assert low == pytest.approx(there.difference - reach)


def shrunken(target: Differences, factor: float) -> Differences:
    """Return the same rows with differences that are smaller by a factor."""
    return dataclasses.replace(target, proportions=factor * target.proportions)
