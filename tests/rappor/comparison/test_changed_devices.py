"""Intervals of changes where the same devices report in several samples and some of them change.

The truth is the change of the population, of which the devices are a sample.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from benchmark_modules import benchmark
from scipy import stats

from rappor import Counts, Params
from rappor.comparison.category_changes import CategoryContrast
from rappor.comparison.shared_devices import (
    ChangeVariance,
    compute_changed_sampling,
    estimate_other_changes,
)
from rappor.estimator.device_assumptions import add_collections

if TYPE_CHECKING:
    from benchmarks import changes
else:
    changes = benchmark("changes")

FALSE_ALARM = 1e-9
YES = Params.profile("balanced", encoding="boolean")


def variance_of_one_device(
    weights: list[Fraction], levels: list[Fraction], of_zero: Fraction, of_one: Fraction
) -> Fraction:
    """Return the variance of a weighted sum of one device's permanent responses, as shares.

    The device has the value in the samples whose level is above a uniform number, so as few devices
    change as the levels allow. Each of its two values has one permanent response.
    """
    first, second = Fraction(0), Fraction(0)
    edges = sorted({Fraction(0), Fraction(1), *levels})
    for low, high in itertools.pairwise(edges):
        for zero, one in itertools.product((0, 1), repeat=2):
            chance = (high - low) * (of_zero if zero else 1 - of_zero)
            chance *= of_one if one else 1 - of_one
            total = sum(
                (
                    weight * (one if level >= high else zero)
                    for weight, level in zip(weights, levels, strict=True)
                ),
                Fraction(0),
            ) / (of_one - of_zero)
            first += chance * total
            second += chance * total**2
    return second - first**2


@pytest.mark.parametrize(
    ("weights", "levels"),
    [
        ((-1, 1), ("1/5", "1/4")),
        ((-1, 1), ("0", "1")),
        ((1, -1), ("1/10", "1/2")),
        ((-3, -1, 1, 3), ("1/20", "1/25", "3/100", "1/50")),
        ((-2, 1, 1), ("1/2", "1/4", "1/4")),
        ((-1, 2, -1), ("1/10", "3/10", "1/5")),
    ],
)
@pytest.mark.parametrize(("of_zero", "of_one"), [("0", "1"), ("1/4", "3/4"), ("1/200", "2/3")])
def test_devices_that_change_have_the_variance_of_all_their_responses(
    weights: tuple[int, ...], levels: tuple[str, ...], of_zero: str, of_one: str
) -> None:
    """The variance of changed devices equals an enumeration in exact fractions."""
    parts, shares = [Fraction(weight) for weight in weights], [Fraction(level) for level in levels]
    zero, one = Fraction(of_zero), Fraction(of_one)
    expected = float(variance_of_one_device(parts, shares, zero, one))
    w, theta = np.array(weights, dtype=float)[:, None], np.array(shares, dtype=float)[:, None]
    delta = (w * theta).sum(axis=0)
    linear, square = compute_changed_sampling(w, np.ones_like(w), theta / delta)
    noise = float((zero * (1 - zero) + one * (1 - one)) / (one - zero) ** 2)
    variance = ChangeVariance(linear * (1 + noise), square).variance_at(delta)
    assert variance == pytest.approx(expected, rel=1e-9)


def test_an_end_of_an_interval_is_as_far_as_the_noise_at_that_change() -> None:
    """An end is as far from the estimate as the noise at a change of that size.

    The interval includes 0 exactly if the interval without changed devices includes 0.
    """
    estimate = np.linspace(-0.4, 0.4, 81)
    variance = ChangeVariance(np.full(81, 3e-3), np.full(81, 2e-3))
    z = stats.norm.isf(0.025)
    below, above = np.full(81, 0.1), np.full(81, 0.2)
    low, high = variance.interval(estimate, below, above, 0.05)
    assert (estimate - low) ** 2 == pytest.approx(below**2 + z**2 * variance.variance_at(low))
    assert (high - estimate) ** 2 == pytest.approx(above**2 + z**2 * variance.variance_at(high))
    assert ((low <= 0) == (estimate <= below)).all()
    assert ((high >= 0) == (estimate >= -above)).all()
    unknown = np.full(81, np.inf)
    assert np.isinf(variance.interval(estimate, unknown, unknown, 0.05)).all()


def test_devices_that_leave_a_value_come_to_another() -> None:
    """Other changes are the larger sum of significant rises or falls, without the own change."""
    estimate, p_value = np.array([0.3, -0.1, -0.1, 0.05]), np.array([1e-9, 1e-9, 1e-9, 0.2])
    assert estimate_other_changes(estimate, p_value) == pytest.approx([0, 0.2, 0.2, 0.3])


@pytest.mark.parametrize(("before", "after"), [(0.2, 0.25), (0.05, 0.1), (0.3, 0.1), (0.2, 0.2)])
def test_the_error_of_a_change_of_yes_or_no_is_that_of_many_panels(
    before: float, after: float
) -> None:
    """The standard error of a change is 95 to 100 % of the spread of 1e5 comparisons.

    Intervals at 95 % then cover between .945 and .963. Without the variance of changed devices the
    error was .44 of the spread.
    """
    n_devices, n_reports, n_panels = 20_000, 30, 100_000
    rng = np.random.default_rng(7)
    yes = rng.binomial(n_devices, before, n_panels)
    share = abs(after - before) / (1 - before if after > before else before)
    changing = rng.binomial(n_devices - yes if after > before else yes, share)
    stays = yes if after > before else yes - changing
    kept = rng.binomial(stays, 1 - YES.f0)
    kept += rng.binomial(n_devices - stays - changing, YES.f1)
    of_one, of_zero = rng.binomial(changing, 1 - YES.f0), rng.binomial(changing, YES.f1)
    responses = [kept + of_zero, kept + of_one]
    ones = [
        rng.binomial(n_reports * n_yes, YES.q)
        + rng.binomial(n_reports * (n_devices - n_yes), YES.p)
        for n_yes in (responses if after > before else responses[::-1])
    ]
    total = n_reports * n_devices
    estimates = (ones[1] - ones[0]) / total / (YES.q_star - YES.p_star)
    usual = int(np.argsort(estimates)[n_panels // 2])
    samples = [
        add_collections(
            [
                Counts(
                    YES, [[int(bit_counts[usual])]], [total], sum_squared_reports=n_reports * total
                )
            ]
        )
        for bit_counts in ones
    ]
    joined = CategoryContrast(samples, np.array([-1.0, 1.0]), 1.0, complete=False)
    # 1e5 panels measure the spread to .0022 of itself; six of these are .013.
    assert 0.95 - 0.013 < float(estimates.std() / joined.std_error[0]) < 1.013
    low, high = joined.interval(0.05)
    assert low[0] < after - before < high[0]


@pytest.mark.timeout(3600)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "n_panels"),
    [
        ("strings, overlap 1", 8),
        ("strings, overlap unknown", 8),
        *(pytest.param(name, 200, marks=pytest.mark.acceptance) for name in changes.CELLS),
    ],
)
def test_intervals_of_changes_cover_if_devices_stay(name: str, n_panels: int) -> None:
    """Intervals of changed strings cover if the same devices report in all samples.

    Before changed devices counted as new devices, squared errors were 4 times their variance at a
    device correlation of 1, and .65 of the intervals covered.
    """
    runs = changes.measure_many(name, n_panels)
    squares = np.concatenate([run.squares for run in runs])
    if len(squares):
        low, high = (
            float(stats.chi2.isf(rate, len(squares))) for rate in (1 - FALSE_ALARM, FALSE_ALARM)
        )
        assert 0.7 * low < squares.sum() < 1.1 * high
    for some in ([run.changed for run in runs], [run.others for run in runs]):
        holds = list(itertools.chain.from_iterable(some))
        assert sum(holds) >= stats.binom.isf(1 - FALSE_ALARM, len(holds), 0.93)
    margin = 6 * np.sqrt(0.05 * 0.95 / n_panels)
    assert np.mean([run.false for run in runs]) < 0.05 + margin
