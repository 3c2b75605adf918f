"""Predictions of plans against simulations: nine plans are simulated, decoded and compared.

A plan predicts the smallest share that is detected with probability .8. Each simulated collection
has a string of this share, the probe. A *hit* is a collection in which the probe is detected.

The stage acceptance has enough collections to check the bounds themselves. The second stage runs
two plans with few collections, and widens the bounds by the deviation of so few.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from benchmark_modules import import_benchmark
from scipy import stats

from rappor.planning.noise import compute_optimal_variance

if TYPE_CHECKING:
    from benchmarks import plans
else:
    plans = import_benchmark("plans")

pytestmark = pytest.mark.slow

FALSE_ALARM = 1e-9
"""Probability that one check fails by chance although the prediction is within its bound."""

SIGMAS = float(stats.norm.isf(FALSE_ALARM))
"""Standard deviations that a normal number exceeds with probability `FALSE_ALARM`: 6.0."""

MANY = 400
"""Number of collections of each plan in the stage acceptance. More collections take longer, and
show smaller errors."""
QUICK = {"strict, 20,000 reports": 60, "h = 2, symmetric": 16}
"""Plans of the second stage, one for each number of hash functions. The value is the number of
collections. 60 collections find a probability of detection of .3 in place of .8 with probability
.9."""

MAX_RELATIVE_MARGIN = 0.3
"""Largest random margin of a mean, relative to the mean. It is the power of a check: with a larger
margin, a check with few collections would accept almost any prediction."""

each_plan = pytest.mark.parametrize(
    ("name", "n_runs"),
    [
        *(pytest.param(name, few, id=f"{name}, few") for name, few in QUICK.items()),
        *(
            pytest.param(
                name,
                MANY,
                id=f"{name}, many",
                marks=[pytest.mark.acceptance, pytest.mark.timeout(7200)],
            )
            for name in plans.CASES
        ),
    ],
    scope="module",
)
"""Runs a test with the plans of `QUICK` and their small numbers of collections. The stage
acceptance runs the test with all plans and `MANY` collections. The scope lets all tests of a plan
run one after another, mostly in one process, which simulates their collections once."""


@functools.cache
def simulate_runs(name: str, n_runs: int) -> list[plans.Observed]:
    """Return the results of simulated collections of a plan. Several tests share them."""
    return [plans.simulate_case(seed, name) for seed in range(n_runs)]


def compute_margin(values: list[float]) -> float:
    """Return the deviation that the mean of the runs exceeds with probability `FALSE_ALARM`.

    The standard error of the mean is estimated from the spread of the runs.
    """
    return SIGMAS * float(np.std(values, ddof=1)) / math.sqrt(len(values))


@each_plan
def test_the_share_is_detected_as_often_as_planned(name: str, n_runs: int) -> None:
    """The probe is detected in 80 % of the collections.

    Its share is the smallest one that the plan promises to detect with probability .8. The
    probability may differ by 5 points. The number of detections is binomial.
    """
    hits = sum(run.is_probe_detected for run in simulate_runs(name, n_runs))
    power = plans.get_case(name).plan.target.power
    low = stats.binom.ppf(FALSE_ALARM, n_runs, power - 0.05)
    high = stats.binom.isf(FALSE_ALARM, n_runs, min(power + 0.05, 1.0))
    assert low <= hits <= high


@each_plan
def test_present_strings_are_detected_as_often_as_predicted(name: str, n_runs: int) -> None:
    """Strings are detected in as large a proportion of the runs as predicted.

    Strings are grouped in bins of similar predicted probabilities. In each bin, the mean proportion
    may differ by 5 points, and by chance.
    """
    runs = simulate_runs(name, n_runs)
    expected = plans.predict_with_probe(name)[1]
    bins = np.digitize(expected, plans.BINS)
    assert (bins > 0).any()
    for bin_number in np.unique(bins):
        is_in_bin = bins == bin_number
        rates = [float(run.detected[is_in_bin].mean()) for run in runs]
        # Few runs may be equal by chance, and their spread would be 0. So the allowed deviation is
        # at least the deviation of a binomial number.
        rate = float(expected[is_in_bin].mean())
        least = SIGMAS * math.sqrt(rate * (1 - rate) / n_runs / is_in_bin.sum())
        assert abs(np.mean(rates) - rate) <= 0.05 + max(compute_margin(rates), least)


@each_plan
def test_as_many_strings_are_found_as_expected(name: str, n_runs: int) -> None:
    """The mean number of detected strings agrees with the prediction within 5 % and chance."""
    n_detected = [
        float(run.detected.sum() + run.is_probe_detected) for run in simulate_runs(name, n_runs)
    ]
    expected = plans.predict_with_probe(name)[0]
    margin = compute_margin(n_detected)
    assert margin <= MAX_RELATIVE_MARGIN * expected
    assert abs(np.mean(n_detected) - expected) <= 0.05 * expected + margin


@each_plan
def test_intervals_are_as_wide_as_predicted(name: str, n_runs: int) -> None:
    """The mean widths of the probe's two intervals agree with the predicted widths within 5 %.

    The adjusted interval is widened for the selection, so only a detected string has one.
    """
    runs = simulate_runs(name, n_runs)
    prediction = plans.get_case(name).plan.prediction
    widths = [run.width for run in runs]
    assert np.mean(widths) == pytest.approx(prediction.width, rel=0.05)
    adjusted = [run.adjusted_width for run in runs if run.is_probe_detected]
    assert adjusted
    assert np.mean(adjusted) == pytest.approx(prediction.adjusted_width, rel=0.05)


@each_plan
def test_rare_strings_have_the_variance_predicted(name: str, n_runs: int) -> None:
    """The variance of rare strings agrees with the predicted variance within 5 % and chance.

    `excess` is this variance divided by the smallest known variance at the same epsilon_1. It is at
    most 1.1, unless the case limits the bytes, epsilon_inf or the hash functions of its plan.
    """
    runs = simulate_runs(name, n_runs)
    case = plans.get_case(name)
    best = compute_optimal_variance(case.plan.budget.epsilon_1) / case.plan.reports
    ratios = [run.rare / best for run in runs]
    mean, margin = float(np.mean(ratios)), compute_margin(ratios)
    assert margin <= MAX_RELATIVE_MARGIN * case.plan.excess
    assert abs(mean - case.plan.excess) <= 0.05 * case.plan.excess + margin
    if not case.is_limited:
        assert case.plan.excess <= 1.1
        assert mean <= 1.1 + margin
