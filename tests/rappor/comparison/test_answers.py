"""Contrasts of categories between samples.

A category has one bit, so the interval of its share in one sample is exact (from the binomial
distribution). The interval of a difference combines the intervals of the samples by the method of
Newcombe: the distances from estimate to end add in squares.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from rappor import Counts, Params, Population, compare_samples, simulate_counts
from rappor.comparison.category_changes import CategoryContrast, estimate_category_changes
from rappor.estimator.debias import debias
from rappor.estimator.device_assumptions import AddedCollections, add_collections
from rappor.estimator.error_control import ErrorControl
from rappor.simulation import simulate_days

BOOLEAN = Params(k=1, encoding="boolean", f=0.5, p=0.1, q=0.9)
COLOURS = Params(k=3, encoding="onehot", categories=("red", "green", "blue"), f=0.5, p=0.1, q=0.9)
DIFFERENCE = np.array([-1.0, 1.0])
"""The contrast is the share in the second sample less the share in the first sample."""

LEVEL = 0.05
"""Probability that an interval misses the truth."""


def sample_of(*collections: Counts) -> AddedCollections:
    return add_collections(collections)


def simulate_colours(shares: list[float], seed: int, n: float = 1e4) -> Counts:
    """Simulate devices that report red, green or blue in proportion to `shares`."""
    population = Population(list(COLOURS.categories), shares)
    return simulate_counts(population, COLOURS, n_reports=n, seed=seed)


@pytest.mark.slow
def test_answers_are_compared_in_their_order() -> None:
    """Changes of categories are in the order of the categories, and a change is found.

    Every category has a row, and a page states how many are in use.
    """
    comparison = compare_samples(
        {"a": simulate_colours([5, 5, 0], 0, 5e4), "b": simulate_colours([4, 6, 0], 1, 5e4)}
    )
    (contrast,) = comparison.contrasts
    assert comparison.candidates == COLOURS.categories
    assert contrast.direction.tolist() == ["fall", "rise", ""]
    assert (contrast.how, contrast.rows_p_value) == ("answers", None)
    assert comparison.detected_overall.tolist() == [True, True, False]


@pytest.mark.slow
def test_test_and_interval_of_an_answer_agree() -> None:
    """A p-value is below an error rate exactly if the interval of this rate excludes 0."""
    # Ones of 20 reports in both samples: nearly equal, somewhat different, and far apart.
    for a, b in ((3, 2), (9, 12), (14, 2)):
        samples = [sample_of(Counts(BOOLEAN, [[ones]], [20])) for ones in (a, b)]
        changes = estimate_category_changes(samples, DIFFERENCE, 0.0, complete=False)
        p = float(changes.p_value[0])
        # At an error rate just above the p-value the interval excludes 0, just below it includes 0.
        for error, excludes_0 in ((min(p * 1.01, 1), True), (p * 0.99, False)):
            low, high = changes.interval(error)
            assert bool((low[0] > 0) | (high[0] < 0)) is (excludes_0 and p < 1)


@pytest.mark.parametrize("shares", [(0.1, 0.1), (0.5, 0.5), (0.05, 0.4)])
@pytest.mark.parametrize(("sizes", "weights"), [((20, 25), (-1, 1)), ((8, 9, 8), (-1, 0.5, 0.5))])
def test_intervals_of_few_answers_hold_exactly(
    shares: tuple[float, float], sizes: tuple[int, ...], weights: tuple[float, ...]
) -> None:
    """Over all outcomes of few devices, intervals cover the difference with 95 % or more.

    `ways` has every combination of numbers of ones in the samples. Each combination is a category
    of one artificial metric, so that all intervals are computed in one call.
    """
    ways = list(itertools.product(*(range(size + 1) for size in sizes)))
    params = Params(
        k=len(ways),
        encoding="onehot",
        categories=tuple(map(str, range(len(ways)))),
        f=0.25,
        p=0.25,
        q=0.75,
    )
    samples = [
        sample_of(Counts(params, [[way[i] for way in ways]], [size]))
        for i, size in enumerate(sizes)
    ]
    true = np.array([shares[0], *[shares[1]] * (len(sizes) - 1)])
    low, high = CategoryContrast(samples, np.array(weights), 0.0, complete=False).interval(LEVEL)
    mean = params.p_star + (params.q_star - params.p_star) * true
    mass = np.array(
        [
            np.prod([stats.binom.pmf(*binomial) for binomial in zip(way, sizes, mean, strict=True)])
            for way in ways
        ]
    )
    difference = float(np.dot(weights, true))
    assert mass @ ((low <= difference + 1e-12) & (difference - 1e-12 <= high)) >= 0.95


def test_correlated_answers_are_joined_as_their_errors_are() -> None:
    """The interval of correlated samples is Newcombe's, and symmetric under mirroring.

    `r` is the correlation of the errors: 0.8 of the device noise is shared. The distance of an end
    from the estimate also contains the noise of the devices that changed, for a change of that
    size.
    """
    samples = [
        sample_of(simulate_colours([5, 3, 2], 4, 300)),
        sample_of(simulate_colours([3, 5, 2], 5, 100)),
    ]
    there, back = (
        CategoryContrast(order, DIFFERENCE, 0.8, complete=False)
        for order in (samples, samples[::-1])
    )
    a, b = there.categories
    devices = [
        debias(sample.counts, sample.repetitions).compute_device_variance(mine.estimate)
        for sample, mine in zip(samples, (a, b), strict=True)
    ]
    r = 0.8 * np.sqrt(devices[0] * devices[1]) / (a.std_error * b.std_error)
    assert r.min() > 0.1
    variance = a.std_error**2 + b.std_error**2 - 2 * r * a.std_error * b.std_error
    other_variance = there.std_error**2 - variance - there.changed.variance_at(there.estimate)
    assert (other_variance > -1e-12).all()
    low, high = there.interval(LEVEL)
    for end, mirrored in zip((low, high), reversed(back.interval(LEVEL)), strict=True):
        assert end == pytest.approx(-mirrored)
    (_, high_a), (low_b, _) = (sample.proportions.interval(LEVEL) for sample in (a, b))
    # Distances to the lower end of the second share and to the upper end of the first one.
    down, up = b.estimate - low_b, high_a - a.estimate
    squares = down**2 - 2 * r * down * up + up**2
    squares += stats.norm.isf(LEVEL / 2) ** 2 * (other_variance + there.changed.variance_at(low))
    assert low == pytest.approx(there.estimate - np.sqrt(squares))


@pytest.mark.slow
def test_a_device_correlation_makes_intervals_shorter() -> None:
    """A device correlation above 0 makes intervals shorter. An unknown one counts as 0."""
    population = Population(["yes", "no"], [3, 7])
    first, second = simulate_days(population, BOOLEAN, n_devices=1e4, n_days=2, seed=1)
    unknown, none, same = (
        compare_samples({"a": first, "b": second}, device_correlation=correlation)
        for correlation in (None, 0.0, 1.0)
    )
    errors = [float(comparison.contrasts[0].std_error[0]) for comparison in (unknown, none, same)]
    assert errors[0] == pytest.approx(errors[1])
    assert errors[2] < 0.9 * errors[1]


@pytest.mark.slow
def test_intervals_of_changes_are_widened_for_their_choice() -> None:
    """With R of n differences significant, adjusted intervals have R / n of the error rate."""
    counts = [
        simulate_colours([5, 3, 2], 1),
        simulate_colours([5, 3, 2], 2),
        simulate_colours([3, 5, 2], 3),
    ]
    comparison = compare_samples(
        dict(zip("abc", counts, strict=True)),
        device_correlation=0.0,
        error_control=ErrorControl(confidence=0.9),
    )
    assert 2 <= comparison.n_changed < 6
    for contrast, other in zip(comparison.contrasts, counts[1:], strict=True):
        joined = CategoryContrast(
            [sample_of(counts[0]), sample_of(other)], DIFFERENCE, 0.0, complete=False
        )
        low, high = joined.interval(0.1)
        assert (contrast.ci_low.tolist(), contrast.ci_high.tolist()) == (
            low.tolist(),
            high.tolist(),
        )
        low, high = joined.interval(0.1 * comparison.n_changed / 6)
        assert contrast.ci_low_adjusted == pytest.approx(
            np.where(contrast.changed, low, np.nan), nan_ok=True
        )
        assert contrast.ci_high_adjusted == pytest.approx(
            np.where(contrast.changed, high, np.nan), nan_ok=True
        )
        assert contrast.unchanged_p_value == min(3 * float(contrast.p_value.min()), 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [0.0, 1.0])
def test_changes_of_a_complete_metric_sum_to_zero(overlap: float) -> None:
    """Changes of a complete metric sum to 0, and their errors are those of 400 simulations.

    The pairs of days are of the same or of different devices.
    """
    population = Population(list(COLOURS.categories), [5, 3, 2])
    errors, std_errors = [], []
    for seed in range(400):
        if overlap:
            days = simulate_days(population, COLOURS, n_devices=1e3, n_days=2, seed=seed)
        else:
            days = [simulate_colours([5, 3, 2], 1_000 + 2 * seed + i, 1e3) for i in range(2)]
        joined = CategoryContrast(
            [sample_of(day) for day in days], DIFFERENCE, overlap, complete=True
        )
        errors.append(joined.estimate)
        std_errors.append(joined.std_error)
    assert np.allclose(np.sum(errors, axis=1), 0)
    spread = np.sqrt(np.mean(np.square(errors), axis=0)) / np.mean(std_errors, axis=0)
    # The mean of 400 squares has the relative standard error sqrt(2 / 400) = 7 %, and its root half
    # of it. Six standard errors are allowed.
    assert spread == pytest.approx(1, abs=6 * 0.5 * np.sqrt(2 / 400))


@pytest.mark.slow
def test_a_complete_metric_is_compared_by_shares_that_sum_to_one() -> None:
    """Shares of each complete sample sum to 1, and changes have smaller errors."""
    days = {"a": simulate_colours([5, 3, 2], 0), "b": simulate_colours([4, 4, 2], 1)}
    incomplete, complete = compare_samples(days), compare_samples(days, complete=True)
    assert complete.per_sample.share.sum(axis=1) == pytest.approx(1)
    (incomplete_contrast,), (contrast,) = incomplete.contrasts, complete.contrasts
    assert contrast.estimate == pytest.approx(
        complete.per_sample.share[1] - complete.per_sample.share[0]
    )
    assert np.all(contrast.std_error < incomplete_contrast.std_error)
    assert np.all(
        contrast.ci_high - contrast.ci_low
        < incomplete_contrast.ci_high - incomplete_contrast.ci_low
    )
