"""Rows of contrasts: formulas written a second time, and properties that follow from them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from rappor import Candidates, Counts, Params, Population, compare_samples, decode, simulate_counts
from rappor.comparison.contrast_rows import (
    ContrastRows,
    PooledRows,
    build_contrast_rows,
    compute_rows_p_value,
    estimate_device_share,
    list_shapes,
    shape_of,
    spread_weights,
)
from rappor.comparison.shared_devices import compute_device_variance
from rappor.estimator.debias import debias
from rappor.estimator.device_assumptions import AddedCollections, add_collections
from rappor.simulation import simulate_days, simulate_repeated

PARAMS = Params(k=4, h=1, m=3, f=0.25, p=0.3, q=0.7)
NOISIER = Params(k=4, h=1, m=3, f=0.25, p=0.4, q=0.6)
STEADY = Params(k=32, h=1, m=32, f=0.5, p=0.1, q=0.9)
"""Most of the noise is permanent, and there are bits enough to tell the devices' part from."""

OTHER = Params(k=8, h=1, m=2, f=0.25, p=0.3, q=0.7)
EVEN = Population([f"s{i}" for i in range(200)], [1.0] * 200)
FALSE_ALARM = 1e-9


def counted(params: Params, n: int, seed: int) -> Counts:
    """Make counts of n reports in each cohort, with random ones."""
    ones = np.random.default_rng(seed).integers(0, n + 1, (params.m, params.k))
    return Counts(params, ones, np.full(params.m, n))


def sample_of(*collections: Counts) -> AddedCollections:
    return add_collections(collections)


THREE = [
    sample_of(counted(PARAMS, a, seed), counted(OTHER, b, 10 + seed))
    for seed, (a, b) in enumerate(((50, 60), (300, 20), (100, 90)))
]
WEIGHTS = np.array([-1.0, 0.25, 0.75])
N_ROWS = PARAMS.m * PARAMS.k + OTHER.m * OTHER.k


def rows_of(
    samples: Sequence[AddedCollections], weights: Sequence[float], overlap: float | None = 0.0
) -> ContrastRows:
    n = sum(collection.params.m * collection.params.k for collection in samples[0].counts)
    nothing = np.zeros((len(samples), n))
    return build_contrast_rows(samples, np.array(weights), nothing, device_correlation=overlap)


def noise_of(
    sample: AddedCollections, name: str, theta: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Compute a variance of the rows of a sample, over all shapes, by the name of its method."""
    pooled = [PooledRows.from_collections(sample, shape) for shape in sorted(list_shapes(sample))]
    ends = np.cumsum([len(rows.targets[0]) for rows in pooled])[:-1]
    parts = zip(pooled, np.split(theta, ends), strict=True)
    return np.concatenate([getattr(rows, name)(some) for rows, some in parts])


def test_devices_of_several_samples_are_added_as_their_overlaps_say() -> None:
    """Device noise is combined by rho, or is the largest possible if rho is unknown."""
    d = np.array([[-2.0], [0.5], [3.0], [-1.0]])
    for rho in (0.0, 0.4, 1.0):
        covariance = np.where(np.eye(4) > 0, 1.0, rho)
        assert compute_device_variance(d, rho)[0] == pytest.approx((d.T @ covariance @ d).item())
    most = max(
        sum(float(d[np.array(groups) == one].sum()) ** 2 for one in range(4))
        for groups in itertools.product(range(4), repeat=4)
    )
    assert compute_device_variance(d, None)[0] == pytest.approx(most)


@pytest.mark.parametrize("overlap", [None, 0.0, 0.7])
def test_the_noise_of_a_contrast_is_that_of_its_samples_and_what_they_share(
    overlap: float | None,
) -> None:
    """The variance of a contrast is that of fresh coins plus the combined device noise."""
    target, theta = rows_of(THREE, WEIGHTS.tolist(), overlap), np.linspace(-0.3, 0.3, N_ROWS)
    levels = target.mean + target.slope * theta
    assert WEIGHTS @ levels == pytest.approx(theta)
    between = np.array(
        [noise_of(s, "compute_device_variance", at) for s, at in zip(THREE, levels, strict=True)]
    )
    noise = np.array(
        [noise_of(s, "compute_noise_variance", at) for s, at in zip(THREE, levels, strict=True)]
    )
    shared = compute_device_variance(WEIGHTS[:, None] * np.sqrt(between), overlap)
    assert target.compute_noise_variance(theta) == pytest.approx(
        WEIGHTS**2 @ (noise - between) + shared, rel=1e-9
    )


def test_the_mean_of_all_samples_says_nothing_of_their_contrast() -> None:
    """The mean of all samples is weighted by precision, so its noise is independent."""
    target = rows_of(THREE, WEIGHTS.tolist())
    noise = np.array(
        [noise_of(sample, "compute_noise_variance", target.density) for sample in THREE]
    )
    shares = (1 / noise) / (1 / noise).sum(axis=0)
    assert (shares * noise * WEIGHTS[:, None]).sum(axis=0) == pytest.approx(0, abs=1e-12)
    assert (shares * target.slope).sum(axis=0) == pytest.approx(0, abs=1e-12)


def test_a_few_reports_tell_nothing_of_rows_that_differ_less_than_their_noise() -> None:
    """With few reports rows shrink to their common mean, with many reports they do not."""
    few = [
        Counts(PARAMS, np.full((3, 4), n // 2) + np.arange(4) % 2, np.full(3, n)) for n in (20, 60)
    ]
    target = rows_of([sample_of(counts) for counts in few], [-1, 1])
    assert np.ptp(target.mean) == pytest.approx(0, abs=1e-12)
    many = [
        sample_of(Counts(PARAMS, 10**9 * counts.bit_counts, 10**9 * counts.cohort_reports))
        for counts in few
    ]
    raw = np.array([debias(sample.counts, sample.repetitions).proportions for sample in many])
    target = rows_of(many, [-1, 1])
    part = 1 / (1 + few[0].n_reports / few[1].n_reports)
    assert target.mean == pytest.approx((1 - part) * raw[0] + part * raw[1], rel=1e-6)


def test_parameter_sets_of_a_shape_are_pooled_by_their_precision() -> None:
    """Parameter sets of one shape are averaged by precision, and cumulants add."""
    sample = sample_of(counted(PARAMS, 50, 5), counted(NOISIER, 80, 6))
    rows = PooledRows.from_collections(sample, shape_of(PARAMS))
    density = rows.targets[0].density
    single = [target.compute_noise_variance(density) for target in rows.targets]
    assert rows.compute_noise_variance(density) == pytest.approx(
        1 / sum(1 / variance for variance in single), rel=1e-12
    )
    between = [target.compute_device_variance(density) for target in rows.targets]
    weights = [1 / variance * rows.compute_noise_variance(density) for variance in single]
    expected = sum(w**2 * variance for w, variance in zip(weights, between, strict=True))
    assert rows.compute_device_variance(density) == pytest.approx(expected, rel=1e-12)
    fourth: NDArray[np.float64] = np.zeros(len(density))
    for weight, target in zip(weights, rows.targets, strict=True):
        gap = target.q_star - target.p_star
        mu = target.p_star + gap * density
        fourth += (weight / (target.reports * gap)) ** 4 * target.reports * mu * (1 - mu)
    assert rows.fourth_cumulant(density) == pytest.approx(fourth, rel=1e-12)


def test_the_test_of_all_rows_is_a_gamma_distribution_of_their_moments() -> None:
    """The p-value of all rows uses the gamma distribution of their mean and variance."""
    samples = [
        sample_of(
            *(simulate_counts(EVEN, params, n_reports=n, seed=i) for params in (PARAMS, OTHER))
        )
        for i, n in enumerate((500, 900))
    ]
    target = rows_of(samples, [-1, 1])
    variance, fourth = target.compute_noise_variance(np.zeros(N_ROWS)), target.fourth_cumulant()
    squares, degrees, spread = 0.0, 0.0, 0.0
    for group in (0, 1):
        mine = target.collection_index == group
        middle = np.average(target.proportions[mine], weights=1 / variance[mine])
        squares += float(np.sum((target.proportions[mine] - middle) ** 2 / variance[mine]))
        degrees += int(mine.sum()) - 1
        spread += float(np.sum(fourth[mine] / variance[mine] ** 2))
    spread += 2 * degrees
    expected = stats.gamma.sf(squares, degrees**2 / spread, scale=spread / degrees)
    assert 1e-6 < expected < 0.999999
    assert compute_rows_p_value(target) == pytest.approx(expected, rel=1e-9)


def repeated(seed: int) -> list[Counts]:
    """Return three weeks. Devices of a week send seven reports, and no device is in two weeks."""
    return [
        simulate_repeated(EVEN, STEADY, devices={7: 2e4}, seed=seed + i).counts for i in range(3)
    ]


def days(seed: int) -> list[Counts]:
    """Return three days of the same devices."""
    return simulate_days(EVEN, STEADY, n_devices=5e4, n_days=3, seed=seed)


def guessed(seed: int) -> list[Counts]:
    """Return three samples of different devices whose number of reports per device is unknown."""
    counts = [simulate_counts(EVEN, STEADY, n_reports=1e5, seed=seed + i) for i in range(3)]
    return [
        Counts(STEADY, c.bit_counts, c.cohort_reports, sum_squared_reports=7 * c.n_reports)
        for c in counts
    ]


@pytest.mark.parametrize("weights", [(-1, 0.5, 0.5), (-1, 0, 1)])
@pytest.mark.parametrize("draw", [repeated, days, guessed])
def test_the_rows_say_what_devices_bring(draw: object, weights: tuple[float, ...]) -> None:
    """The estimated device share gives mean squares of 1, or at most one error more variance.

    The samples have the same devices, different devices that repeat, or unknown devices.
    """
    assert callable(draw)
    used = [i for i in range(3) if weights[i]]
    ratios, device_shares = [], []
    for seed in range(0, 60, 5):
        target = rows_of([sample_of(draw(seed)[i]) for i in used], [weights[i] for i in used], None)
        estimated = estimate_device_share(target)
        device_shares.append(estimated.device_share)
        ratios.append(
            np.mean(target.proportions**2 / estimated.compute_noise_variance(np.zeros(len(target))))
        )
    margin = -stats.norm.ppf(FALSE_ALARM) * 1.2 * math.sqrt(2 / (12 * 1024))
    assert 0.9 - margin < np.mean(ratios) < 1 + margin
    assert (
        np.mean(device_shares) > 0.9
        if draw is repeated and len(used) == 2
        else np.mean(device_shares) < 0.9
    )
    # A few rows leave the most that is possible: nothing is estimated.
    assert estimate_device_share(rows_of(THREE, WEIGHTS.tolist(), None)).device_share == 1.0


def test_rows_of_no_reports_say_nothing() -> None:
    """Cohorts that are empty in one of two samples are excluded."""
    a, b = (simulate_counts(EVEN, STEADY, n_reports=2000, seed=seed) for seed in (33, 34))
    there = np.arange(32) >= 3
    holed = Counts(STEADY, a.bit_counts * there[:, None], a.cohort_reports * there)
    (contrast,) = compare_samples({"a": holed, "b": b}, EVEN.values[:40]).contrasts
    assert np.isfinite(contrast.std_error).all()
    assert 0.001 < compute_rows_p_value(rows_of([sample_of(holed), sample_of(b)], [-1, 1])) <= 1


@given(data=st.data(), n=st.integers(2, 6))
def test_weights_of_a_sample_without_reports_go_to_the_others_of_its_sign(
    data: st.DataObject, n: int
) -> None:
    """Samples of one sign take over the weight of an empty one, up to 2 % of it."""
    sizes = np.array(data.draw(st.lists(st.floats(0.001, 1), min_size=2 * n, max_size=2 * n)))
    sides = sizes[:n] / sizes[:n].sum(), -sizes[n:] / sizes[n:].sum()
    weights = np.concatenate(sides)
    live = np.array(data.draw(st.lists(st.booleans(), min_size=2 * n, max_size=2 * n)))
    (row,) = spread_weights(weights, live[:, None]).T
    missing = [
        abs(float(side @ ~there)) for side, there in zip(sides, np.split(live, 2), strict=True)
    ]
    if max(missing) > 0.02 + 1e-12:
        assert not row.any()
    elif max(missing) < 0.02 - 1e-12:
        assert not row[~live].any()
        assert row[:n].sum() == pytest.approx(1)
        assert row[n:].sum() == pytest.approx(-1)
        there = live[:n]
        assert np.ptp(row[:n][there] / weights[:n][there]) == pytest.approx(0, abs=1e-9)


@pytest.mark.slow
def test_a_sample_of_five_reports_takes_no_row_from_the_others() -> None:
    """A sample of five reports changes no error of a contrast by more than its part."""
    large = [simulate_counts(EVEN, STEADY, n_reports=30_000, seed=seed) for seed in (1, 2)]
    tiny = simulate_counts(EVEN, STEADY, n_reports=5, seed=3)
    alone, beside = (
        compare_samples(dict(zip("abc", samples, strict=False)), EVEN.values[:20]).contrast(weights)
        for samples, weights in (
            (large, [-1.0, 1.0]),
            ([*large, tiny], [-1.0, 29_995 / 30_000, 5 / 30_000]),
        )
    )
    assert beside.std_error == pytest.approx(alone.std_error, rel=0.01)


@pytest.mark.parametrize("h", [1, 2, 4])
def test_the_error_of_a_difference_holds_the_sampling_of_devices(h: int) -> None:
    """Nearly without noise, the error is the sampling of devices, once for each string."""
    params = Params(k=256, h=h, m=16, f=0.0, p=0.001, q=0.999, insecure=True)
    a, b = (
        simulate_counts(Population(["x", "y"], weights), params, n_reports=n, seed=1)
        for weights, n in (([1, 4], 1e5), ([1, 1], 3e5))
    )
    (contrast,) = compare_samples({"a": a, "b": b}, ["x", "y"], device_correlation=0.0).contrasts
    sampling = 0.2 * 0.8 / 1e5 + 0.5 * 0.5 / 3e5
    assert contrast.std_error**2 == pytest.approx(sampling, rel=0.1)


@pytest.mark.slow
def test_intervals_reach_as_far_as_the_longer_tail() -> None:
    """Intervals use the longer tail of the residuals.

    With few reports, additional ones are more likely than missing ones. A sample of few reports
    therefore shows too large shares more often than too small ones, and the interval is longer
    upwards, or downwards if the samples are swapped.
    """
    params = Params(k=64, h=1, m=32, f=0.02, p=0.02, q=0.5, insecure=True)
    population = Population([f"s{i}" for i in range(50)], [1.0] * 50)
    few, many = (simulate_counts(population, params, n_reports=n, seed=n) for n in (600, 60_000))
    for samples, longer in (({"a": few, "b": many}, 1), ({"a": many, "b": few}, 0)):
        (contrast,) = compare_samples(samples, population.values, device_correlation=0.0).contrasts
        below = (contrast.estimate - contrast.ci_low) / contrast.std_error
        above = (contrast.ci_high - contrast.estimate) / contrast.std_error
        assert (above, below)[longer] == pytest.approx(stats.norm.isf(0.025))
        assert ((below, above)[longer] > 2).all()


def test_candidates_that_cannot_be_told_apart_explain_their_bits_once() -> None:
    """A group has the errors of a list with one of its members."""
    params = Params(k=16, h=1, m=3, f=0.0, p=0.1, q=0.9)
    many = Candidates.from_list(["vim", *(f"editor {i}" for i in range(30_000))])
    cells = many.compute_cells(params, 0, len(many))
    twin = many.strings[np.flatnonzero((cells == cells[0]).all(axis=1))[1]]
    a, b = (
        simulate_counts(Population(["vim", "other"], [1, 1]), params, n_reports=n, seed=1)
        for n in (1e5, 2e5)
    )
    alone, both = (compare_samples({"a": a, "b": b}, names) for names in (["vim"], ["vim", twin]))
    assert decode(a, ["vim", twin]).detected.all()
    assert both.group.tolist() == [1, 1]
    assert np.ptp(both.contrasts[0].estimate) == 0
    assert both.contrasts[0].std_error == pytest.approx(alone.contrasts[0].std_error[0], rel=1e-12)


@pytest.mark.slow
def test_strings_that_are_not_looked_at_closely_have_errors_of_both_signs() -> None:
    """Of thousands of candidates, rises and falls have the same errors."""
    params = Params(k=64, h=1, m=8, f=0.25, p=0.3, q=0.7)
    names = [f"s{i}" for i in range(2600)]
    a, b = (
        simulate_counts(Population(names[:3], weights), params, n_reports=1e4, seed=1)
        for weights in ([1, 1, 2], [2, 1, 1])
    )
    there, back = (
        dict(zip(comparison.candidates, comparison.contrasts[0].std_error.tolist(), strict=True))
        for comparison in (
            compare_samples(samples, names) for samples in ({"a": a, "b": b}, {"b": b, "a": a})
        )
    )
    assert there == pytest.approx(back, rel=1e-6)


@pytest.mark.parametrize("overlap", [None, 0.0])
def test_estimates_that_share_no_bits_are_added(overlap: float | None) -> None:
    """Separate estimates are added with their variances, the largest for unknown devices."""
    names = ["x", "y", "z"]
    sets = [PARAMS, Params(k=4, h=1, m=6, f=0.25, p=0.3, q=0.7), OTHER]
    counts = {
        name: simulate_counts(Population(names, [4, 3, 2]), params, n_reports=2e4, seed=1)
        for name, params in zip("abc", sets, strict=True)
    }
    comparison = compare_samples(counts, names, device_correlation=overlap)
    contrast = comparison.contrast([-1.0, 0.5, 0.5])
    assert contrast.how == comparison.contrasts[0].how == "separate"
    errors = comparison.per_sample.std_error
    same = np.hypot(errors[0], (errors[1] + errors[2]) / 2)
    expected = np.hypot(errors[0], np.hypot(errors[1], errors[2]) / 2) if overlap == 0 else same
    assert contrast.std_error == pytest.approx(expected)
    z = contrast.estimate / contrast.std_error
    assert contrast.p_value == pytest.approx(2 * stats.norm.sf(np.abs(z)))
    reach = stats.norm.isf(0.025) * contrast.std_error
    assert contrast.ci_low == pytest.approx(contrast.estimate - reach)
    assert contrast.ci_high == pytest.approx(contrast.estimate + reach)
