"""Rows of contrasts, as `rappor.comparison.contrast_rows` computes them.

A row is one bit of one cohort. A contrast gives each sample a weight, and its row is the weighted
sum of the debiased proportions of the samples at this bit. The tests write the formulas of variance
and tail a second time, with loops, and check properties that follow from the formulas.

Two kinds of noise have separate variances. Fresh coins are independent between samples. Device
noise (sampling and permanent responses) is shared by samples of the same devices, with the
correlation rho that the arguments call `overlap` or `device_correlation`. None means unknown.
"""

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
"""Most of the noise is permanent, and 1,024 bits are enough to estimate the device correlation."""

OTHER = Params(k=8, h=1, m=2, f=0.25, p=0.3, q=0.7)
EVEN = Population([f"s{i}" for i in range(200)], [1.0] * 200)
FALSE_ALARM = 1e-9


def counted(params: Params, n: int, seed: int) -> Counts:
    """Make counts of n reports in each cohort, with random ones."""
    ones = np.random.default_rng(seed).integers(0, n + 1, (params.m, params.k))
    return Counts(params, ones, np.full(params.m, n))


def sample_of(*collections: Counts) -> AddedCollections:
    """Return a sample with the assumptions about its devices that its counts state."""
    return add_collections(collections)


THREE = [
    sample_of(counted(PARAMS, a, seed), counted(OTHER, b, 10 + seed))
    for seed, (a, b) in enumerate(((50, 60), (300, 20), (100, 90)))
]
"""Three samples, each with collections of two shapes (k, h, m)."""

WEIGHTS = np.array([-1.0, 0.25, 0.75])
"""The contrast compares the first sample of THREE with a mean of the second and the third."""

N_ROWS = PARAMS.m * PARAMS.k + OTHER.m * OTHER.k


def rows_of(
    samples: Sequence[AddedCollections], weights: Sequence[float], overlap: float | None = 0.0
) -> ContrastRows:
    """Build the rows of a contrast whose candidates explain nothing."""
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


def test_device_noise_of_several_samples_is_added_by_its_correlation() -> None:
    """Device noise is combined by the correlation rho, or is the largest possible without rho.

    `d` has the weighted standard deviations of four samples. If rho is unknown, any samples may
    have the same devices. The expected value is then the largest one over all ways to divide the
    four samples into groups of the same devices.
    """
    d = np.array([[-2.0], [0.5], [3.0], [-1.0]])
    for rho in (0.0, 0.4, 1.0):
        covariance = np.where(np.eye(4) > 0, 1.0, rho)
        assert compute_device_variance(d, rho)[0] == pytest.approx((d.T @ covariance @ d).item())
    most = max(
        sum(float(d[np.array(groups) == group].sum()) ** 2 for group in range(4))
        for groups in itertools.product(range(4), repeat=4)
    )
    assert compute_device_variance(d, None)[0] == pytest.approx(most)


@pytest.mark.parametrize("overlap", [None, 0.0, 0.7])
def test_the_variance_of_a_contrast_adds_fresh_coins_and_device_noise(
    overlap: float | None,
) -> None:
    """The variance of a contrast is that of fresh coins plus the combined device noise."""
    target, theta = rows_of(THREE, WEIGHTS.tolist(), overlap), np.linspace(-0.3, 0.3, N_ROWS)
    # theta is the true value of the contrast in each row. mean + slope theta gives the shares of
    # the samples, whose contrast is theta again.
    levels = target.mean + target.slope * theta
    assert WEIGHTS @ levels == pytest.approx(theta)
    between = np.array(
        [noise_of(s, "compute_device_variance", at) for s, at in zip(THREE, levels, strict=True)]
    )
    noise = np.array(
        [noise_of(s, "compute_noise_variance", at) for s, at in zip(THREE, levels, strict=True)]
    )
    # noise contains device noise. Its own part is removed, and the combined part is added.
    shared = compute_device_variance(WEIGHTS[:, None] * np.sqrt(between), overlap)
    assert target.compute_noise_variance(theta) == pytest.approx(
        WEIGHTS**2 @ (noise - between) + shared, rel=1e-9
    )


def test_the_mean_of_all_samples_is_independent_of_their_contrast() -> None:
    """The mean weighted by precision has the covariance 0 with the contrast.

    The covariance is the sum over samples of weight in the mean * variance * weight in the
    contrast. A change along the contrast (`slope`) does not change this mean either.
    """
    target = rows_of(THREE, WEIGHTS.tolist())
    noise = np.array(
        [noise_of(sample, "compute_noise_variance", target.density) for sample in THREE]
    )
    shares = (1 / noise) / (1 / noise).sum(axis=0)
    assert (shares * noise * WEIGHTS[:, None]).sum(axis=0) == pytest.approx(0, abs=1e-12)
    assert (shares * target.slope).sum(axis=0) == pytest.approx(0, abs=1e-12)


def test_means_of_rows_shrink_to_their_common_mean_with_few_reports() -> None:
    """With few reports rows shrink to their common mean, with many reports they do not."""
    # Proportions alternate between n/2 and n/2 + 1, so they differ less than the noise of n
    # reports.
    few = [
        Counts(PARAMS, np.full((3, 4), n // 2) + np.arange(4) % 2, np.full(3, n)) for n in (20, 60)
    ]
    target = rows_of([sample_of(counts) for counts in few], [-1, 1])
    assert np.ptp(target.mean) == pytest.approx(0, abs=1e-12)
    # With 1e9 times the reports the same proportions are exact. The mean weights them by reports.
    many = [
        sample_of(Counts(PARAMS, 10**9 * counts.bit_counts, 10**9 * counts.cohort_reports))
        for counts in few
    ]
    raw = np.array([debias(sample.counts, sample.repetitions).proportions for sample in many])
    target = rows_of(many, [-1, 1])
    part_of_second = 1 / (1 + few[0].n_reports / few[1].n_reports)
    assert target.mean == pytest.approx(
        (1 - part_of_second) * raw[0] + part_of_second * raw[1], rel=1e-6
    )


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
    """The test that no row changed adds the squares of all rows, divided by their variances.

    The sum has the mean `degrees` (rows less one for each collection) and the variance `spread`,
    which is 2 degrees plus the fourth cumulants. The p-value is from the gamma distribution with
    this mean and variance.
    """
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
        rows = target.collection_index == group
        mean = np.average(target.proportions[rows], weights=1 / variance[rows])
        squares += float(np.sum((target.proportions[rows] - mean) ** 2 / variance[rows]))
        degrees += int(rows.sum()) - 1
        spread += float(np.sum(fourth[rows] / variance[rows] ** 2))
    spread += 2 * degrees
    expected = stats.gamma.sf(squares, degrees**2 / spread, scale=spread / degrees)
    assert 1e-6 < expected < 0.999999  # a p-value of 0 or 1 would agree with many formulas
    assert compute_rows_p_value(target) == pytest.approx(expected, rel=1e-9)


def draw_weeks(seed: int) -> list[Counts]:
    """Simulate three weeks. Devices of a week send seven reports, and no device is in two weeks."""
    return [
        simulate_repeated(EVEN, STEADY, devices={7: 2e4}, seed=seed + i).counts for i in range(3)
    ]


def draw_days(seed: int) -> list[Counts]:
    """Simulate three days of the same devices."""
    return simulate_days(EVEN, STEADY, n_devices=5e4, n_days=3, seed=seed)


def draw_unknown(seed: int) -> list[Counts]:
    """Simulate three samples of different devices with an overstated number of reports per device.

    Each device sends one report. The sum of squared reports states at most seven.
    """
    counts = [simulate_counts(EVEN, STEADY, n_reports=1e5, seed=seed + i) for i in range(3)]
    return [
        Counts(STEADY, c.bit_counts, c.cohort_reports, sum_squared_reports=7 * c.n_reports)
        for c in counts
    ]


@pytest.mark.parametrize("weights", [(-1, 0.5, 0.5), (-1, 0, 1)])
@pytest.mark.parametrize("draw", [draw_weeks, draw_days, draw_unknown])
def test_the_device_share_is_estimated_from_the_rows(
    draw: object, weights: tuple[float, ...]
) -> None:
    """With the estimated device share, the squares of rows equal their variances in the mean.

    The device share is the part of the largest possible device noise. The samples have different
    devices that repeat, the same devices, or devices about which the counts are wrong.
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
    # 12 simulations of 1,024 rows. The mean of n squares of normal rows has the variance 2 / n. The
    # factor 1.2 allows for rows that are not exactly normal. The estimate is one standard error
    # above the likeliest device share, so the mean may be smaller by another 10 %.
    margin = -stats.norm.ppf(FALSE_ALARM) * 1.2 * math.sqrt(2 / (12 * 1024))
    assert 0.9 - margin < np.mean(ratios) < 1 + margin
    assert (
        np.mean(device_shares) > 0.9
        if draw is draw_weeks and len(used) == 2
        else np.mean(device_shares) < 0.9
    )
    # The rows of THREE are too few to estimate from, so the largest possible noise is assumed.
    assert estimate_device_share(rows_of(THREE, WEIGHTS.tolist(), None)).device_share == 1.0


def test_cohorts_without_reports_are_excluded() -> None:
    """Cohorts that are empty in one of two samples are excluded."""
    a, b = (simulate_counts(EVEN, STEADY, n_reports=2000, seed=seed) for seed in (33, 34))
    has_reports = np.arange(32) >= 3
    holed = Counts(STEADY, a.bit_counts * has_reports[:, None], a.cohort_reports * has_reports)
    (contrast,) = compare_samples({"a": holed, "b": b}, EVEN.values[:40]).contrasts
    assert np.isfinite(contrast.std_error).all()
    assert 0.001 < compute_rows_p_value(rows_of([sample_of(holed), sample_of(b)], [-1, 1])) <= 1


@given(data=st.data(), n=st.integers(2, 6))
def test_weights_of_a_sample_without_reports_go_to_the_others_of_its_sign(
    data: st.DataObject, n: int
) -> None:
    """Samples of one sign take over the weight of empty samples of this sign, up to 2 % of the sum.

    If more than 2 % of the weight of a sign is missing, the row is excluded: all its weights are 0.
    The weights of a contrast sum to 1 and to -1 by sign. `live` is False for a sample without
    reports.
    """
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
    """A third sample of five reports changes no error of a contrast by more than 1 %.

    Its five reports are in five of 32 cohorts. The rows of the other cohorts must stay in use.
    """
    large = [simulate_counts(EVEN, STEADY, n_reports=30_000, seed=seed) for seed in (1, 2)]
    tiny = simulate_counts(EVEN, STEADY, n_reports=5, seed=3)
    without_tiny, with_tiny = (
        compare_samples(dict(zip("abc", samples, strict=False)), EVEN.values[:20]).contrast(weights)
        for samples, weights in (
            (large, [-1.0, 1.0]),
            ([*large, tiny], [-1.0, 29_995 / 30_000, 5 / 30_000]),
        )
    )
    assert with_tiny.std_error == pytest.approx(without_tiny.std_error, rel=0.01)


@pytest.mark.parametrize("h", [1, 2, 4])
def test_the_error_of_a_difference_contains_the_sampling_of_devices(h: int) -> None:
    """Nearly without noise, the variance is that of sampling devices: share (1 - share) / devices.

    The h bits of a string have the same devices, so h must not change the variance.
    """
    params = Params(k=256, h=h, m=16, f=0.0, p=0.001, q=0.999, insecure=True)
    a, b = (
        simulate_counts(Population(["x", "y"], weights), params, n_reports=n, seed=1)
        for weights, n in (([1, 4], 1e5), ([1, 1], 3e5))
    )
    (contrast,) = compare_samples({"a": a, "b": b}, ["x", "y"], device_correlation=0.0).contrasts
    # "x" has the share 1/5 of 1e5 devices, and 1/2 of 3e5 devices.
    sampling = 0.2 * 0.8 / 1e5 + 0.5 * 0.5 / 3e5
    assert contrast.std_error**2 == pytest.approx(sampling, rel=0.1)


@pytest.mark.slow
def test_intervals_are_longer_on_the_side_of_the_longer_tail() -> None:
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


def test_candidates_with_equal_bits_have_the_errors_of_one_candidate() -> None:
    """Two candidates with equal bits have the estimate and the error of a list with one of them."""
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
def test_errors_of_thousands_of_candidates_are_symmetric() -> None:
    """Swapping the samples leaves the standard errors of 2,600 candidates.

    So many candidates are screened first, and only some are fitted. The choice must not prefer
    rises.
    """
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
    """Samples of three different shapes share no bits, so their estimates are combined as numbers.

    With the correlation 0 the variances of all samples add. If the correlation is unknown, the
    variance is the largest possible one: samples of the same sign have the same devices, and their
    errors add.
    """
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
    independent = np.hypot(errors[0], np.hypot(errors[1], errors[2]) / 2)
    same_devices = np.hypot(errors[0], (errors[1] + errors[2]) / 2)
    expected = independent if overlap == 0 else same_devices
    assert contrast.std_error == pytest.approx(expected)
    z = contrast.estimate / contrast.std_error
    assert contrast.p_value == pytest.approx(2 * stats.norm.sf(np.abs(z)))
    half_width = stats.norm.isf(0.025) * contrast.std_error
    assert contrast.ci_low == pytest.approx(contrast.estimate - half_width)
    assert contrast.ci_high == pytest.approx(contrast.estimate + half_width)
