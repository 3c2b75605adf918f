"""Intervals of changes, if the same devices report in several samples and some change their value.

An interval should contain the change of the population. The devices are drawn from this population,
so the number of devices that change is random, and adds to the variance of the estimate.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from benchmark_modules import import_benchmark
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
    changes = import_benchmark("changes")

FALSE_ALARM = 1e-9
"""Probability that a statistical check fails although the code is right."""
YES = Params.profile("balanced", encoding="boolean")
"""Parameters of a question with the answers yes and no."""


def compute_variance_of_one_device(
    weights: list[Fraction], levels: list[Fraction], of_zero: Fraction, of_one: Fraction
) -> Fraction:
    """Return the variance of a weighted sum of the debiased permanent responses of one device.

    `levels` are the shares of devices with a true bit 1 in each sample. `of_zero` and `of_one` are
    the probabilities of the permanent response 1 for a true bit 0 and 1.

    A uniform number u is drawn for the device. Its true bit is 1 in the samples with level > u, so
    as few devices change as the levels allow. The device draws one permanent response for each of
    its two true bits and repeats it in all samples.
    """
    first, second = Fraction(0), Fraction(0)  # moments of the sum
    edges = sorted({Fraction(0), Fraction(1), *levels})
    for low, high in itertools.pairwise(edges):
        for response_to_zero, response_to_one in itertools.product((0, 1), repeat=2):
            probability = (high - low) * (of_zero if response_to_zero else 1 - of_zero)
            probability *= of_one if response_to_one else 1 - of_one
            total = sum(
                (
                    weight * (response_to_one if level >= high else response_to_zero)
                    for weight, level in zip(weights, levels, strict=True)
                ),
                Fraction(0),
            ) / (of_one - of_zero)
            first += probability * total
            second += probability * total**2
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
    """The variance of devices that change equals an exact enumeration for one device.

    `levels` are the true shares in the samples, and `of_zero` and `of_one` the probabilities of a
    permanent response 1 to a true 0 and to a true 1. The formula is for one device in each sample.
    """
    parts, shares = [Fraction(weight) for weight in weights], [Fraction(level) for level in levels]
    rate_of_zero, rate_of_one = Fraction(of_zero), Fraction(of_one)
    expected = float(compute_variance_of_one_device(parts, shares, rate_of_zero, rate_of_one))
    w, theta = np.array(weights, dtype=float)[:, None], np.array(shares, dtype=float)[:, None]
    delta = (w * theta).sum(axis=0)
    linear, square = compute_changed_sampling(w, np.ones_like(w), theta / delta)
    noise = float(
        (rate_of_zero * (1 - rate_of_zero) + rate_of_one * (1 - rate_of_one))
        / (rate_of_one - rate_of_zero) ** 2
    )
    variance = ChangeVariance(linear * (1 + noise), square).variance_at(delta)
    assert variance == pytest.approx(expected, rel=1e-9)


def test_an_end_of_an_interval_has_the_variance_of_its_own_change() -> None:
    """An end of an interval has the variance of a change as large as this end.

    The end solves (estimate - end)^2 = distance^2 + z^2 variance(end). `distance` is that of the
    interval without changed devices: `below` or `above`. At a change of 0 no device has changed and
    the variance is 0, so the interval includes 0 exactly if the interval without changed devices
    does. The test of no change therefore stays the same.
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


def test_other_changes_are_the_larger_sum_of_rises_or_falls() -> None:
    """The other changes of a row are the larger sum of all rises or all falls, minus its own.

    A device that leaves a value takes another one, so at least this share of the devices changed
    between other values. The rises sum to .3 and the falls to .2. The last row has the p-value .2,
    so its rise of .05 is not counted.
    """
    estimate, p_value = np.array([0.3, -0.1, -0.1, 0.05]), np.array([1e-9, 1e-9, 1e-9, 0.2])
    assert estimate_other_changes(estimate, p_value) == pytest.approx([0, 0.2, 0.2, 0.3])


@pytest.mark.parametrize(("before", "after"), [(0.2, 0.25), (0.05, 0.1), (0.3, 0.1), (0.2, 0.2)])
def test_the_error_of_a_change_of_a_boolean_equals_the_spread_of_panels(
    before: float, after: float
) -> None:
    """The standard deviation of 1e5 simulated estimates is 95 to 100 % of the standard error.

    A panel is a set of devices that report in both samples. The quotient may deviate by chance from
    these bounds, to .937 or 1.013. Intervals at 95 % would then have coverages of .964 and .947.
    Without the variance of the devices that changed, the standard error was .44 of the standard
    deviation.
    """
    n_devices, n_reports, n_panels = 20_000, 30, 100_000
    rng = np.random.default_rng(7)
    # As few devices change as before and after allow: all changes go in one direction. Arrays have
    # an entry for each simulated panel.
    yes = rng.binomial(n_devices, before, n_panels)
    share = abs(after - before) / (1 - before if after > before else before)
    changing = rng.binomial(n_devices - yes if after > before else yes, share)
    stays = yes if after > before else yes - changing
    unchanged_responses = rng.binomial(stays, 1 - YES.f0)
    unchanged_responses += rng.binomial(n_devices - stays - changing, YES.f1)
    of_one, of_zero = rng.binomial(changing, 1 - YES.f0), rng.binomial(changing, YES.f1)
    responses = [unchanged_responses + of_zero, unchanged_responses + of_one]
    bit_counts_of_samples = [
        rng.binomial(n_reports * n_yes, YES.q)
        + rng.binomial(n_reports * (n_devices - n_yes), YES.p)
        for n_yes in (responses if after > before else responses[::-1])
    ]
    total = n_reports * n_devices
    estimates = (
        (bit_counts_of_samples[1] - bit_counts_of_samples[0]) / total / (YES.q_star - YES.p_star)
    )
    median_panel = int(np.argsort(estimates)[n_panels // 2])
    samples = [
        add_collections(
            [
                Counts(
                    YES,
                    [[int(bit_counts[median_panel])]],
                    [total],
                    sum_squared_reports=n_reports * total,
                )
            ]
        )
        for bit_counts in bit_counts_of_samples
    ]
    joined = CategoryContrast(samples, np.array([-1.0, 1.0]), 1.0, complete=False)
    # The relative standard error of the standard deviation of n panels is 1 / sqrt(2 n) = .0022.
    # Six of them are .013.
    assert 0.95 - 0.013 < float(estimates.std() / joined.std_error[0]) < 1.013
    low, high = joined.interval(0.05)
    assert low[0] < after - before < high[0]


@pytest.mark.timeout(3600)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "n_panels"),
    [
        ("strings, device correlation 1", 8),
        ("strings, device correlation unknown", 4),
        *(pytest.param(name, 200, marks=pytest.mark.acceptance) for name in changes.CELLS),
    ],
)
def test_intervals_of_changes_cover_if_devices_stay(name: str, n_panels: int) -> None:
    """Intervals of changed strings have their coverage if all samples have the same devices.

    The sum of the squared errors, divided by their variances, has a chi-squared distribution. The
    variances may be 30 % too large, but only 10 % too small. In an earlier version the variance of
    changed devices was missing. At a device correlation of 1 the sum was then 4 times its
    expectation, and 65 % of the intervals contained the change. 8 panels have 48 changes, and find
    such variances with probability .89. 4 panels have 24 changes, and find variances 6 times too
    small with probability .86. At most 5 % of the significant changes are false.
    """
    runs = changes.measure_many(name, n_panels)
    squares = np.concatenate([run.squares for run in runs])
    if len(squares):
        low, high = (
            float(stats.chi2.isf(rate, len(squares))) for rate in (1 - FALSE_ALARM, FALSE_ALARM)
        )
        assert 0.7 * low < squares.sum() < 1.1 * high
    for covered_by_run in ([run.changed for run in runs], [run.others for run in runs]):
        is_covered = list(itertools.chain.from_iterable(covered_by_run))
        assert sum(is_covered) >= stats.binom.isf(1 - FALSE_ALARM, len(is_covered), 0.93)
    margin = 6 * np.sqrt(0.05 * 0.95 / n_panels)  # six standard errors of a share of .05
    assert np.mean([run.false for run in runs]) < 0.05 + margin
