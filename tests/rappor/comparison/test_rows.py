"""Rows of contrasts, as `rappor.comparison.contrast_rows` computes them.

A row is one bit of one cohort. A contrast gives each sample a weight. Its value in a row is the
weighted sum of the debiased proportions of the samples at this bit. The tests compute the formulas
of variances and tails a second time, with loops, and check properties that follow from them.

Two kinds of noise have separate variances. Fresh coins are the coins of the instantaneous response,
which are independent between samples. Device noise comes from sampling and permanent responses.
Samples of the same devices share it, with the correlation rho, the argument `device_correlation`.
None means that the correlation is unknown.
"""

from __future__ import annotations

import dataclasses
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
"""Parameters with the bits of PARAMS and more noise."""
STEADY = Params(k=32, h=1, m=32, f=0.5, p=0.1, q=0.9)
"""Parameters with mostly permanent noise. Their 1,024 rows are enough to estimate the device
correlation."""

OTHER = Params(k=8, h=1, m=2, f=0.25, p=0.3, q=0.7)
"""Parameters of another shape: a string has other bits than under PARAMS."""
EVEN = Population([f"s{i}" for i in range(200)], [1.0] * 200)
"""200 equally frequent strings. No row stands out."""
FALSE_ALARM = 1e-9
"""Probability that a statistical check fails although the code is right."""


def draw_counts(params: Params, n: int, seed: int) -> Counts:
    """Return counts of n reports in each cohort, with uniformly random bit counts."""
    bit_counts = np.random.default_rng(seed).integers(0, n + 1, (params.m, params.k))
    return Counts(params, bit_counts, np.full(params.m, n))


def build_sample(*collections: Counts) -> AddedCollections:
    """Return a sample whose assumptions about devices follow from its counts."""
    return add_collections(collections)


THREE = [
    build_sample(draw_counts(PARAMS, a, seed), draw_counts(OTHER, b, 10 + seed))
    for seed, (a, b) in enumerate(((50, 60), (300, 20), (100, 90)))
]
"""Three samples, each with collections of two shapes (k, h, m)."""

WEIGHTS = np.array([-1.0, 0.25, 0.75])
"""The contrast compares the first sample of THREE with a mean of the second and the third."""

N_ROWS = PARAMS.m * PARAMS.k + OTHER.m * OTHER.k
"""Number of rows of a sample of THREE."""


def build_rows(
    samples: Sequence[AddedCollections],
    weights: Sequence[float],
    device_correlation: float | None = 0.0,
) -> ContrastRows:
    """Return the rows of a contrast of samples in which no string is detected.

    Detected strings explain a part of the rows. This part is 0 here.
    """
    n = sum(k * m for k, _, m, *_ in list_shapes(samples[0]))
    explained = np.zeros((len(samples), n))
    return build_contrast_rows(
        samples, np.array(weights), explained, device_correlation=device_correlation
    )


def compute_variances(
    sample: AddedCollections, name: str, theta: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the variances that the method `name` computes for all rows of a sample.

    `theta` has the true proportion of each row, over all shapes.
    """
    pooled = [PooledRows.from_collections(sample, shape) for shape in sorted(list_shapes(sample))]
    ends = np.cumsum([len(rows.targets[0]) for rows in pooled])[:-1]
    parts = zip(pooled, np.split(theta, ends), strict=True)
    return np.concatenate([getattr(rows, name)(levels) for rows, levels in parts])


def test_device_variance_of_several_samples_depends_on_their_correlation() -> None:
    """The variance of device noise in a contrast is d' C d, with the correlation rho in C.

    `d` has the weighted standard deviations of the device noise of four samples, and C is 1 on its
    diagonal and rho elsewhere. If rho is unknown, any samples may have the same devices, and the
    variance must be the largest possible one: the largest over all ways to divide the four samples
    into groups of the same devices.
    """
    d = np.array([[-2.0], [0.5], [3.0], [-1.0]])
    for rho in (0.0, 0.4, 1.0):
        covariance = np.where(np.eye(4) > 0, 1.0, rho)
        assert compute_device_variance(d, rho)[0] == pytest.approx((d.T @ covariance @ d).item())
    largest = max(
        sum(float(d[np.array(groups) == group].sum()) ** 2 for group in range(4))
        for groups in itertools.product(range(4), repeat=4)
    )
    assert compute_device_variance(d, None)[0] == pytest.approx(largest)


@pytest.mark.parametrize("device_correlation", [None, 0.0, 0.7])
def test_the_variance_of_a_contrast_adds_fresh_coins_and_device_noise(
    device_correlation: float | None,
) -> None:
    """The variance of a contrast is the variance of fresh coins plus the variance of device noise.

    Fresh coins are independent between samples, so their variances add with squared weights. The
    device noise of the samples is correlated.
    """
    target = build_rows(THREE, WEIGHTS.tolist(), device_correlation)
    theta = np.linspace(-0.3, 0.3, N_ROWS)
    # theta is the true value of the contrast in each row. The three samples then have the levels
    # mean + slope theta, whose contrast is theta.
    levels = target.mean + target.slope * theta
    assert WEIGHTS @ levels == pytest.approx(theta)
    of_devices, of_all_noise = (
        np.array(
            [
                compute_variances(sample, name, level)
                for sample, level in zip(THREE, levels, strict=True)
            ]
        )
        for name in ("compute_device_variance", "compute_noise_variance")
    )
    of_coins = of_all_noise - of_devices
    shared = compute_device_variance(WEIGHTS[:, None] * np.sqrt(of_devices), device_correlation)
    assert target.compute_noise_variance(theta) == pytest.approx(
        WEIGHTS**2 @ of_coins + shared, rel=1e-9
    )


def test_the_mean_of_all_samples_is_independent_of_their_contrast() -> None:
    """The precision-weighted mean of the samples is uncorrelated with the contrast.

    The variance of a row is computed from this mean. If both were correlated, a row with a large
    contrast by chance would get a wrong variance. The covariance is the sum over samples of
    (weight in the mean) * variance * (weight in the contrast). A change of theta moves the levels
    along `slope` and leaves the mean unchanged.
    """
    target = build_rows(THREE, WEIGHTS.tolist())
    variances = np.array(
        [compute_variances(sample, "compute_noise_variance", target.density) for sample in THREE]
    )
    mean_weights = (1 / variances) / (1 / variances).sum(axis=0)
    assert (mean_weights * variances * WEIGHTS[:, None]).sum(axis=0) == pytest.approx(0, abs=1e-12)
    assert (mean_weights * target.slope).sum(axis=0) == pytest.approx(0, abs=1e-12)


def test_means_of_rows_shrink_to_their_common_mean_with_few_reports() -> None:
    """With few reports, the mean of each row is shrunk to the common mean of all rows.

    The differences of the means are then mostly noise, and so would be the variances from them.
    With many reports, rows keep their own means.
    """
    # Proportions alternate between n/2 and n/2 + 1, so they differ less than the noise of n
    # reports.
    few = [
        Counts(PARAMS, np.full((3, 4), n // 2) + np.arange(4) % 2, np.full(3, n)) for n in (20, 60)
    ]
    target = build_rows([build_sample(counts) for counts in few], [-1, 1])
    assert np.ptp(target.mean) == pytest.approx(0, abs=1e-12)
    # With 1e9 times as many reports, the same proportions are nearly exact. The mean of a row
    # weights the two samples by their reports.
    many = [
        build_sample(Counts(PARAMS, 10**9 * counts.bit_counts, 10**9 * counts.cohort_reports))
        for counts in few
    ]
    raw = np.array([debias(sample.counts, sample.repetitions).proportions for sample in many])
    target = build_rows(many, [-1, 1])
    weight_of_second = 1 / (1 + few[0].n_reports / few[1].n_reports)
    assert target.mean == pytest.approx(
        (1 - weight_of_second) * raw[0] + weight_of_second * raw[1], rel=1e-6
    )


def test_parameter_sets_of_a_shape_are_pooled_by_their_precision() -> None:
    """Collections with the same bits and different noise are averaged by their precision.

    The average has the variance 1 / (sum of 1 / variance). Its device variance and fourth cumulant
    are those of a weighted sum of independent collections.
    """
    sample = build_sample(draw_counts(PARAMS, 50, 5), draw_counts(NOISIER, 80, 6))
    rows = PooledRows.from_collections(sample, shape_of(PARAMS))
    density = rows.targets[0].density
    single = [target.compute_noise_variance(density) for target in rows.targets]
    assert rows.compute_noise_variance(density) == pytest.approx(
        1 / sum(1 / variance for variance in single), rel=1e-12
    )
    of_devices = [target.compute_device_variance(density) for target in rows.targets]
    weights = [1 / variance * rows.compute_noise_variance(density) for variance in single]
    expected = sum(w**2 * variance for w, variance in zip(weights, of_devices, strict=True))
    assert rows.compute_device_variance(density) == pytest.approx(expected, rel=1e-12)
    fourth: NDArray[np.float64] = np.zeros(len(density))
    for weight, target in zip(weights, rows.targets, strict=True):
        gap = target.q_star - target.p_star
        mu = target.p_star + gap * density
        fourth += (weight / (target.reports * gap)) ** 4 * target.reports * mu * (1 - mu)
    assert rows.bound_fourth_cumulant(density) == pytest.approx(fourth, rel=1e-12)


def test_a_cohort_has_the_reports_of_all_parameter_sets() -> None:
    """A row is excluded only if no parameter set of a sample has reports in its cohort.

    In the first sample, the first parameter set has reports in cohort 0 only, and the second in the
    cohorts 0 and 1. So only the rows of cohort 2 have no reports.
    """
    first, second = draw_counts(PARAMS, 50, 5), draw_counts(NOISIER, 80, 6)
    is_reported = np.array([1, 0, 0]), np.array([1, 1, 0])
    partial = [
        Counts(counts.params, counts.bit_counts * rows[:, None], counts.cohort_reports * rows)
        for counts, rows in zip((first, second), is_reported, strict=True)
    ]
    target = build_rows([build_sample(*partial), build_sample(first)], [-1, 1])
    # The first sample has 50 + 80 reports in cohort 0, and 80 in cohort 1. The second sample has 50
    # in each cohort, which is the smaller number.
    assert target.reports.reshape(3, 4)[:, 0].tolist() == [50, 50, 0]
    variance = target.compute_noise_variance(np.zeros(len(target))).reshape(3, 4)
    assert np.isfinite(variance).all(axis=1).tolist() == [True, True, False]


@pytest.mark.parametrize("is_first", [True, False])
def test_one_parameter_set_without_false_ones_makes_the_noise_one_sided(is_first: bool) -> None:
    """Rows have one-sided noise if any parameter set has p* = 0, whatever its position is."""
    certain = dataclasses.replace(PARAMS, f=0.0, p=0.0, insecure=True)
    counts = [draw_counts(params, 50, 5) for params in (certain, PARAMS)]
    sample = build_sample(*(counts if is_first else counts[::-1]))
    other = build_sample(draw_counts(PARAMS, 60, 7))
    assert build_rows([sample, other], [-1, 1]).has_one_sided_noise.all()
    assert not build_rows([other, other], [-1, 1]).has_one_sided_noise.any()


def test_p_value_of_all_rows_is_from_a_gamma_distribution() -> None:
    """The p-value of the test that no row changed is the tail of a gamma distribution.

    The statistic is the sum over rows of (contrast - common mean)^2 / variance. If no row changed,
    its mean is the number of rows minus one for each collection (`degrees`), and its variance is
    2 `degrees` plus the fourth cumulants, because few reports are not normal. The gamma
    distribution has this mean and variance.
    """
    samples = [
        build_sample(
            *(simulate_counts(EVEN, params, n_reports=n, seed=i) for params in (PARAMS, OTHER))
        )
        for i, n in enumerate((500, 900))
    ]
    target = build_rows(samples, [-1, 1])
    variance, fourth = (
        target.compute_noise_variance(np.zeros(N_ROWS)),
        target.bound_fourth_cumulant(),
    )
    squares, degrees, square_variance = 0.0, 0.0, 0.0
    for group in (0, 1):
        rows = target.collection_index == group
        mean = np.average(target.proportions[rows], weights=1 / variance[rows])
        squares += float(np.sum((target.proportions[rows] - mean) ** 2 / variance[rows]))
        degrees += int(rows.sum()) - 1
        square_variance += float(np.sum(fourth[rows] / variance[rows] ** 2))
    square_variance += 2 * degrees
    shape, scale = degrees**2 / square_variance, square_variance / degrees
    expected = stats.gamma.sf(squares, shape, scale=scale)
    assert 1e-6 < expected < 0.999999  # a p-value of 0 or 1 would agree with many formulas
    assert compute_rows_p_value(target) == pytest.approx(expected, rel=1e-9)


def draw_weeks(seed: int) -> list[Counts]:
    """Return counts of three weeks of different devices, which send seven reports each."""
    return [
        simulate_repeated(EVEN, STEADY, devices={7: 2e4}, seed=seed + i).counts for i in range(3)
    ]


def draw_days(seed: int) -> list[Counts]:
    """Return counts of three days of the same devices."""
    return simulate_days(EVEN, STEADY, n_devices=5e4, n_days=3, seed=seed)


def draw_overstated(seed: int) -> list[Counts]:
    """Return counts of three samples of different devices, which overstate repeated reports.

    Each device sends one report, but the sum of squared reports allows up to seven.
    """
    counts = [simulate_counts(EVEN, STEADY, n_reports=1e5, seed=seed + i) for i in range(3)]
    return [
        Counts(STEADY, c.bit_counts, c.cohort_reports, sum_squared_reports=7 * c.n_reports)
        for c in counts
    ]


@pytest.mark.parametrize("weights", [(-1, 0.5, 0.5), (-1, 0, 1)])
@pytest.mark.parametrize("draw", [draw_weeks, draw_days, draw_overstated])
def test_the_device_share_is_estimated_from_the_rows(
    draw: object, weights: tuple[float, ...]
) -> None:
    """With the estimated device share, the mean of square / variance over the rows is 1.

    The device share is the device variance divided by its largest possible value, which holds if
    the correlation of the samples is the worst one. It is 0 if the noise of the same devices
    cancels. Three kinds of samples are drawn: different devices with repeated reports, the same
    devices, and counts that overstate the reports per device.
    """
    assert callable(draw)
    used = [i for i in range(3) if weights[i]]
    ratios, device_shares = [], []
    for seed in range(0, 60, 5):
        target = build_rows(
            [build_sample(draw(seed)[i]) for i in used], [weights[i] for i in used], None
        )
        estimated = estimate_device_share(target)
        device_shares.append(estimated.device_share)
        ratios.append(
            np.mean(target.proportions**2 / estimated.compute_noise_variance(np.zeros(len(target))))
        )
    # There are 12 simulations of 1,024 rows. The mean of n squares of standard normal rows has the
    # variance 2 / n. The factor 1.2 allows for rows that are not exactly normal. The estimated
    # device share is one standard error above its maximum likelihood estimate, so the mean may be
    # smaller by another 10 %.
    margin = -stats.norm.ppf(FALSE_ALARM) * 1.2 * math.sqrt(2 / (12 * 1024))
    assert 0.9 - margin < np.mean(ratios) < 1 + margin
    # Only two samples of different devices with the stated repetitions have the largest possible
    # noise. With three samples, two of one sign might have the same devices.
    has_largest_noise = draw is draw_weeks and len(used) == 2
    assert (np.mean(device_shares) > 0.9) == has_largest_noise
    # The rows of THREE are too few to estimate from, so the largest possible noise is assumed.
    assert estimate_device_share(build_rows(THREE, WEIGHTS.tolist(), None)).device_share == 1.0


def test_cohorts_without_reports_are_excluded() -> None:
    """Rows of cohorts without reports in one of the samples are excluded.

    A contrast cannot be computed there. Errors stay finite, and the p-value of the remaining rows
    is not extreme, since nothing changed.
    """
    a, b = (simulate_counts(EVEN, STEADY, n_reports=2000, seed=seed) for seed in (33, 34))
    has_reports = np.arange(32) >= 3
    partial = Counts(STEADY, a.bit_counts * has_reports[:, None], a.cohort_reports * has_reports)
    (contrast,) = compare_samples({"a": partial, "b": b}, EVEN.values[:40]).contrasts
    assert np.isfinite(contrast.std_error).all()
    assert (
        0.001
        < compute_rows_p_value(build_rows([build_sample(partial), build_sample(b)], [-1, 1]))
        <= 1
    )


@given(data=st.data(), n=st.integers(2, 6))
def test_weights_of_samples_without_reports_go_to_samples_of_the_same_sign(
    data: st.DataObject, n: int
) -> None:
    """Samples without reports in a row leave their weight to the other samples of the same sign.

    The positive weights of a contrast sum to 1 and the negative ones to -1, also afterwards. If
    samples without reports have more than 2 % of the weight of a sign, the contrast of the row
    would be another one, so the row is excluded: all its weights are 0.
    """
    sizes = np.array(data.draw(st.lists(st.floats(0.001, 1), min_size=2 * n, max_size=2 * n)))
    by_sign = sizes[:n] / sizes[:n].sum(), -sizes[n:] / sizes[n:].sum()
    weights = np.concatenate(by_sign)
    has_reports = np.array(data.draw(st.lists(st.booleans(), min_size=2 * n, max_size=2 * n)))
    (row,) = spread_weights(weights, has_reports[:, None]).T
    missing = [
        abs(float(weights_of_sign @ ~present))
        for weights_of_sign, present in zip(by_sign, np.split(has_reports, 2), strict=True)
    ]
    if max(missing) > 0.02 + 1e-12:
        assert not row.any()
    elif max(missing) < 0.02 - 1e-12:
        assert not row[~has_reports].any()
        assert row[:n].sum() == pytest.approx(1)
        assert row[n:].sum() == pytest.approx(-1)
        # The weights of present samples are multiplied by one common factor.
        present = has_reports[:n]
        assert np.ptp(row[:n][present] / weights[:n][present]) == pytest.approx(0, abs=1e-9)


def test_a_row_with_a_single_one_is_no_outlier() -> None:
    """The distance of a row from the fit is the root of the deviance of a Poisson count.

    150 reports of sets are in 8 cohorts of 464 buckets, so a row has .04 ones on average. A single
    1 is 5 standard deviations above it, but not unusual: 4 % of the rows have one. With 500,000
    reports the distance is the normal one.
    """
    params = dataclasses.replace(Params.profile("once", encoding="set", items=8), m=8)
    population = Population(["git\tvim"], [1])
    many = simulate_counts(population, params, n_reports=5e5, seed=1)
    for n, is_sparse in ((150, True), (5e5, False)):
        few = simulate_counts(population, params, n_reports=n, seed=2)
        target = build_rows([build_sample(few), build_sample(many)], [-1, 1])
        variance = target.compute_noise_variance(np.zeros(len(target)))
        distance = target.compute_excess(np.zeros(len(target)), variance)
        normal = np.abs(target.proportions) / np.sqrt(variance)
        if not is_sparse:
            assert distance == pytest.approx(normal)
            continue
        # One report more or less in the few reports, as a share. The many reports hardly add to it.
        gap = target.q_star - target.p_star
        unit = 1 / (target.reports * gap)
        assert target.unit == pytest.approx(unit, rel=1e-3)
        # With half the weight, a report adds half as much.
        halved = build_rows([build_sample(few), build_sample(many)], [-0.5, 0.5])
        assert halved.unit == pytest.approx(unit / 2, rel=1e-3)
        # A change that explains the missing ones of the few reports does not lower the noise.
        assert (target.compute_noise_variance(np.ones(len(target))) >= variance).all()
        expected, ones = variance / unit**2, np.abs(target.proportions) / unit
        deviance = 2 * ((expected + ones) * np.log1p(ones / expected) - ones)
        assert distance == pytest.approx(np.sqrt(deviance), rel=1e-2)
        has_one = few.bit_counts.ravel() == 1
        is_usual = expected < 0.05
        assert (has_one & is_usual).any()
        assert normal[has_one & is_usual].min() > 4
        assert distance[has_one & is_usual].max() < 3.5


@pytest.mark.slow
def test_a_sample_of_five_reports_excludes_no_row() -> None:
    """A further sample of five reports changes no error of a contrast by more than 1 %.

    The five reports are in at most five of 32 cohorts. If the rows of all other cohorts were
    excluded, errors would more than double. They stay, because the sample has little weight.
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
    """Nearly without noise, the variance of a share is share (1 - share) / devices.

    Devices are a sample of the population. All h bits of a string come from the same devices, so
    this variance does not decrease with h as the noise of the coins does.
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
    """An interval is longer on one side if the residuals have a longer tail.

    With few reports, bit counts are skewed: large excesses of ones are more likely than large
    deficits. If the first sample has few reports, b - a has its longer tail below: the estimate may
    be far too small, so the interval is longer above. With swapped samples it is longer below.
    """
    params = Params(k=64, h=1, m=32, f=0.02, p=0.02, q=0.5, insecure=True)
    population = Population([f"s{i}" for i in range(50)], [1.0] * 50)
    few, many = (simulate_counts(population, params, n_reports=n, seed=n) for n in (600, 60_000))
    for samples, longer_side in (({"a": few, "b": many}, 1), ({"a": many, "b": few}, 0)):
        (contrast,) = compare_samples(samples, population.values, device_correlation=0.0).contrasts
        below = (contrast.estimate - contrast.ci_low) / contrast.std_error
        above = (contrast.ci_high - contrast.estimate) / contrast.std_error
        assert (above, below)[longer_side] == pytest.approx(stats.norm.isf(0.025))
        assert ((below, above)[longer_side] > 2).all()


def test_candidates_with_equal_bits_have_the_errors_of_one_candidate() -> None:
    """Two candidates with equal bits have one estimate, with the error of a single candidate.

    The regression has one column for both. With two equal columns the error would be infinite.
    `twin` is the first of 30,000 strings with the bits of "vim" in all three cohorts.
    """
    params = Params(k=16, h=1, m=3, f=0.0, p=0.1, q=0.9)
    many = Candidates.from_list(["vim", *(f"editor {i}" for i in range(30_000))])
    cells = many.compute_cells(params, 0, len(many))
    twin = many.strings[np.flatnonzero((cells == cells[0]).all(axis=1))[1]]
    a, b = (
        simulate_counts(Population(["vim", "other"], [1, 1]), params, n_reports=n, seed=1)
        for n in (1e5, 2e5)
    )
    one_candidate, both_candidates = (
        compare_samples({"a": a, "b": b}, names) for names in (["vim"], ["vim", twin])
    )
    assert decode(a, ["vim", twin]).detected.all()
    assert both_candidates.group.tolist() == [1, 1]
    assert np.ptp(both_candidates.contrasts[0].estimate) == 0
    assert both_candidates.contrasts[0].std_error == pytest.approx(
        one_candidate.contrasts[0].std_error[0], rel=1e-12
    )


@pytest.mark.slow
def test_errors_of_thousands_of_candidates_are_symmetric() -> None:
    """Swapping the samples leaves the standard errors of 2,600 candidates unchanged.

    With so many candidates, only those that pass a screening are fitted. A screening that prefers
    rises would choose other candidates after the swap.
    """
    params = Params(k=64, h=1, m=8, f=0.25, p=0.3, q=0.7)
    names = [f"s{i}" for i in range(2600)]
    a, b = (
        simulate_counts(Population(names[:3], weights), params, n_reports=1e4, seed=1)
        for weights in ([1, 1, 2], [2, 1, 1])
    )
    forward, backward = (
        dict(zip(comparison.candidates, comparison.contrasts[0].std_error.tolist(), strict=True))
        for comparison in (
            compare_samples(samples, names) for samples in ({"a": a, "b": b}, {"b": b, "a": a})
        )
    )
    assert forward == pytest.approx(backward, rel=1e-6)


@pytest.mark.parametrize("device_correlation", [None, 0.0])
def test_estimates_of_different_shapes_are_added(device_correlation: float | None) -> None:
    """Samples with three different shapes (k, h, m) are decoded, and their weighted shares added.

    They have no rows in common. With the device correlation 0, the variances of all samples add. If
    the correlation is unknown, the variance is the largest possible one: samples with weights of
    one sign have the same devices, so their errors add.
    """
    names = ["x", "y", "z"]
    sets = [PARAMS, Params(k=4, h=1, m=6, f=0.25, p=0.3, q=0.7), OTHER]
    counts = {
        name: simulate_counts(Population(names, [4, 3, 2]), params, n_reports=2e4, seed=1)
        for name, params in zip("abc", sets, strict=True)
    }
    comparison = compare_samples(counts, names, device_correlation=device_correlation)
    contrast = comparison.contrast([-1.0, 0.5, 0.5])
    assert contrast.how == comparison.contrasts[0].how == "separate"
    errors = comparison.per_sample.std_error
    independent = np.hypot(errors[0], np.hypot(errors[1], errors[2]) / 2)
    same_devices = np.hypot(errors[0], (errors[1] + errors[2]) / 2)
    expected = independent if device_correlation == 0 else same_devices
    assert contrast.std_error == pytest.approx(expected)
    z = contrast.estimate / contrast.std_error
    assert contrast.p_value == pytest.approx(2 * stats.norm.sf(np.abs(z)))
    half_width = stats.norm.isf(0.025) * contrast.std_error
    assert contrast.ci_low == pytest.approx(contrast.estimate - half_width)
    assert contrast.ci_high == pytest.approx(contrast.estimate + half_width)
