"""Contrasts of categories between samples.

A category has one bit, so the interval of its share in one sample is exact: it inverts the binomial
distribution of the bit count. The interval of a difference combines the intervals of the samples
by Newcombe's method. The distance from the estimate to an end of the interval is the root of the
sum of the squared distances in the samples.
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
"""With these weights, the contrast is the share in the second sample minus that in the first."""

LEVEL = 0.05
"""Largest probability that an interval misses the true value."""


def build_sample(*collections: Counts) -> AddedCollections:
    """Return a sample whose assumptions about devices follow from its counts."""
    return add_collections(collections)


def simulate_colours(shares: list[float], seed: int, n: float = 1e4) -> Counts:
    """Return counts of devices that report red, green or blue in proportion to `shares`."""
    population = Population(list(COLOURS.categories), shares)
    return simulate_counts(population, COLOURS, n_reports=n, seed=seed)


@pytest.mark.slow
def test_categories_are_compared_in_their_order() -> None:
    """Rows are in the order of the categories, with a row for a category without devices.

    Red falls from 1/2 to 2/5 of the devices and green rises by the same share. No device reports
    blue.
    """
    comparison = compare_samples(
        {"a": simulate_colours([5, 5, 0], 0, 5e4), "b": simulate_colours([4, 6, 0], 1, 5e4)}
    )
    (contrast,) = comparison.contrasts
    assert comparison.candidates == COLOURS.categories
    assert contrast.direction.tolist() == ["fall", "rise", ""]
    # The shares of categories were subtracted (method "answers"). No rows of a regression were
    # subtracted, so there is no p-value of a test of rows.
    assert contrast.how == "answers"
    assert contrast.rows_p_value is None
    assert comparison.detected_overall.tolist() == [True, True, False]


@pytest.mark.slow
def test_p_value_and_interval_of_a_category_agree() -> None:
    """A p-value is below an error rate exactly if the interval of this rate excludes 0.

    A significant change with an interval around 0 would be a contradiction.
    """
    # Bit counts of both samples: nearly equal, somewhat different, and far apart. In the last case
    # the p-value is that of the largest score of a tail.
    for a, b, n in ((3, 2, 20), (9, 12, 20), (14, 2, 20), (10, 190, 200)):
        samples = [build_sample(Counts(BOOLEAN, [[n_ones]], [n])) for n_ones in (a, b)]
        changes = estimate_category_changes(samples, DIFFERENCE, 0.0, complete=False)
        p = float(changes.p_value[0])
        # The interval excludes 0 at an error rate just above the p-value, and includes 0 at a rate
        # just below. A p-value of 1 has no rate above, so its interval always includes 0.
        for error, is_0_excluded in ((min(p * 1.01, 1), True), (p * 0.99, False)):
            low, high = changes.interval(error)
            assert bool((low[0] > 0) | (high[0] < 0)) is (is_0_excluded and p < 1)


@pytest.mark.parametrize("shares", [(0.1, 0.1), (0.5, 0.5), (0.05, 0.4)])
@pytest.mark.parametrize(("sizes", "weights"), [((20, 25), (-1, 1)), ((8, 9, 8), (-1, 0.5, 0.5))])
def test_intervals_of_few_devices_cover_exactly(
    shares: tuple[float, float], sizes: tuple[int, ...], weights: tuple[float, ...]
) -> None:
    """The exact coverage of 95 % intervals is at least 95 % with 8 to 25 devices in a sample.

    The coverage is the sum of the probabilities of all outcomes whose interval contains the true
    difference. An outcome is a combination of the bit counts of the samples. Each outcome is a
    category of one artificial metric, so that one call computes all intervals. The first sample has
    the true share `shares[0]`, and the later samples have `shares[1]`.
    """
    outcomes = list(itertools.product(*(range(size + 1) for size in sizes)))
    params = Params(
        k=len(outcomes),
        encoding="onehot",
        categories=tuple(map(str, range(len(outcomes)))),
        f=0.25,
        p=0.25,
        q=0.75,
    )
    samples = [
        build_sample(Counts(params, [[outcome[i] for outcome in outcomes]], [size]))
        for i, size in enumerate(sizes)
    ]
    true_shares = np.array([shares[0], *[shares[1]] * (len(sizes) - 1)])
    low, high = CategoryContrast(samples, np.array(weights), 0.0, complete=False).interval(LEVEL)
    mean = params.p_star + (params.q_star - params.p_star) * true_shares
    probabilities = np.array(
        [
            np.prod(
                [stats.binom.pmf(*binomial) for binomial in zip(outcome, sizes, mean, strict=True)]
            )
            for outcome in outcomes
        ]
    )
    difference = float(np.dot(weights, true_shares))
    is_covered = (low <= difference + 1e-12) & (difference - 1e-12 <= high)
    assert probabilities @ is_covered >= 0.95


def test_interval_of_correlated_samples_is_the_one_of_newcombe() -> None:
    """The interval of a difference of correlated samples is Newcombe's, by a second computation.

    The device noise of both samples has the correlation .8. `r` is the resulting correlation of the
    errors of both shares, which also contain independent coins. `down` is the distance from the
    share of one sample to the lower end of its interval. `up` is the distance from the share of the
    other sample to the upper end of its interval. The squared distance from the difference to the
    end of its interval is the sum of two terms:

    - Newcombe's term, down^2 - 2 r down up + up^2.
    - z^2 times the variance of devices whose value changed. It is computed for a change that is as
      large as the end of the interval.

    Swapped samples have the mirrored interval.
    """
    samples = [
        build_sample(simulate_colours([5, 3, 2], 4, 300)),
        build_sample(simulate_colours([3, 5, 2], 5, 100)),
    ]
    forward, backward = (
        CategoryContrast(order, DIFFERENCE, 0.8, complete=False)
        for order in (samples, samples[::-1])
    )
    a, b = forward.categories
    device_variances = [
        debias(sample.counts, sample.repetitions).compute_device_variance(category.estimate)
        for sample, category in zip(samples, (a, b), strict=True)
    ]
    r = 0.8 * np.sqrt(device_variances[0] * device_variances[1]) / (a.std_error * b.std_error)
    assert r.min() > 0.1
    variance = a.std_error**2 + b.std_error**2 - 2 * r * a.std_error * b.std_error
    # The squared standard error has three terms: the noise if no share changed (`variance`), and
    # the variance of two groups of devices. One group changed to or from the category. The other
    # group changed between two other categories. The test computes the last term as the rest.
    changed_variance = forward.changed.variance_at(forward.estimate)
    other_devices_variance = forward.std_error**2 - variance - changed_variance
    # A variance is not negative, except for rounding errors.
    assert (other_devices_variance > -1e-12).all()
    low, high = forward.interval(LEVEL)
    for end, mirrored in zip((low, high), reversed(backward.interval(LEVEL)), strict=True):
        assert end == pytest.approx(-mirrored)
    (_, high_a), (low_b, _) = (sample.proportions.interval(LEVEL) for sample in (a, b))
    # The lower end of the difference b - a combines the lower end of b and the upper end of a.
    down, up = b.estimate - low_b, high_a - a.estimate
    squares = down**2 - 2 * r * down * up + up**2
    changed_variance_at_end = forward.changed.variance_at(low)
    z = stats.norm.isf(LEVEL / 2)
    squares += z**2 * (other_devices_variance + changed_variance_at_end)
    assert low == pytest.approx(forward.estimate - np.sqrt(squares))


@pytest.mark.slow
def test_a_device_correlation_makes_intervals_shorter() -> None:
    """If both samples have the same devices (correlation 1), the error of a difference is smaller.

    The permanent noise of the devices cancels in the difference. An unknown correlation has the
    errors of different devices, which are larger.
    """
    population = Population(["yes", "no"], [3, 7])
    first, second = simulate_days(population, BOOLEAN, n_devices=1e4, n_days=2, seed=1)
    unknown, different, same = (
        compare_samples({"a": first, "b": second}, device_correlation=correlation)
        for correlation in (None, 0.0, 1.0)
    )
    error_if_unknown, error_if_different, error_if_same = (
        float(comparison.contrasts[0].std_error[0]) for comparison in (unknown, different, same)
    )
    assert error_if_unknown == pytest.approx(error_if_different)
    assert error_if_same < 0.9 * error_if_different


@pytest.mark.slow
def test_intervals_of_changes_are_adjusted_for_their_selection() -> None:
    """If R of n differences are significant, their adjusted intervals have R / n of the error rate.

    So the expected share of the selected intervals that miss the true difference is at most the
    error rate (Benjamini and Yekutieli 2005). Here n is 6, three categories times two contrasts,
    and the error rate is .1.
    """
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
    for contrast, later_counts in zip(comparison.contrasts, counts[1:], strict=True):
        joined = CategoryContrast(
            [build_sample(counts[0]), build_sample(later_counts)], DIFFERENCE, 0.0, complete=False
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
@pytest.mark.parametrize("device_correlation", [0.0, 1.0])
def test_changes_of_a_complete_metric_sum_to_zero(device_correlation: float) -> None:
    """Changes of a complete metric sum to 0, and their standard errors are right.

    The shares of both days sum to 1. No share changes, so each estimate is an error. Its root mean
    square over 400 simulated pairs of days is compared with the mean standard error. Both days have
    the same devices (correlation 1) or different devices (0).
    """
    population = Population(list(COLOURS.categories), [5, 3, 2])
    errors, std_errors = [], []
    for seed in range(400):
        if device_correlation:
            days = simulate_days(population, COLOURS, n_devices=1e3, n_days=2, seed=seed)
        else:
            days = [simulate_colours([5, 3, 2], 1_000 + 2 * seed + i, 1e3) for i in range(2)]
        joined = CategoryContrast(
            [build_sample(day) for day in days], DIFFERENCE, device_correlation, complete=True
        )
        errors.append(joined.estimate)
        std_errors.append(joined.std_error)
    assert np.allclose(np.sum(errors, axis=1), 0)
    ratio = np.sqrt(np.mean(np.square(errors), axis=0)) / np.mean(std_errors, axis=0)
    # The mean of 400 squares has the relative standard error sqrt(2 / 400) = 7 %, and the root of
    # the mean has half of this error. Six standard errors are allowed.
    assert ratio == pytest.approx(1, abs=6 * 0.5 * np.sqrt(2 / 400))


@pytest.mark.slow
def test_a_complete_metric_is_compared_by_shares_that_sum_to_one() -> None:
    """With complete=True, the shares of each sample sum to 1, and changes have smaller errors."""
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
