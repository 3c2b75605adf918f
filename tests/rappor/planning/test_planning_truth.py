"""Predictions of plans against simulations: nine plans are simulated, decoded and compared.

The stage acceptance has enough collections to check the bounds themselves. The second stage runs
three plans with few collections, and widens the bounds by the deviation of so few.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from benchmark_modules import benchmark
from scipy import stats

from rappor.planning.noise import compute_optimal_variance

if TYPE_CHECKING:
    from benchmarks import plans
else:
    plans = benchmark("plans")

pytestmark = pytest.mark.slow

FALSE_ALARM = 1e-9
"""Probability that one check fails although the code is right and the bound is met in the limit."""

SIGMAS = float(stats.norm.isf(FALSE_ALARM))

MANY = 400
QUICK = {"strict, 20,000 reports": 100, "privacy of [EPK14]": 16, "h = 2, symmetric": 16}
"""Plans of the second stage. The value is the number of collections, which takes a minute."""

SEEN = 0.3
"""Part of a mean that noise may hide at most: an error of twice as much would be seen."""

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
)
"""Runs a test with the plans of `QUICK` and their small numbers of collections. The stage
acceptance runs the test with all plans and `MANY` collections."""


@functools.cache
def observed(name: str, n_runs: int) -> list[plans.Observed]:
    return [plans.observe(seed, name) for seed in range(n_runs)]


def stray(values: list[float]) -> float:
    """Return the largest plausible random deviation of the mean of the runs, from their spread."""
    return SIGMAS * float(np.std(values, ddof=1)) / math.sqrt(len(values))


@each_plan
def test_the_share_is_detected_as_often_as_planned(name: str, n_runs: int) -> None:
    """The smallest share is detected in 80 % of the collections.

    It may differ by 5 points, and by the binomial deviation of the number of detections.
    """
    hits = sum(run.hit for run in observed(name, n_runs))
    power = plans.case(name).plan.question.power
    low = stats.binom.ppf(FALSE_ALARM, n_runs, power - 0.05)
    high = stats.binom.isf(FALSE_ALARM, n_runs, min(power + 0.05, 1.0))
    assert low <= hits <= high


@each_plan
def test_present_strings_are_detected_as_often_as_predicted(name: str, n_runs: int) -> None:
    """In each bin of predicted probabilities, the detected proportion agrees within 5 points."""
    runs = observed(name, n_runs)
    expected = plans.predict_with_probe(name)[1]
    bins = np.digitize(expected, plans.BINS)
    assert (bins > 0).any()
    for b in np.unique(bins):
        rates = [float(run.detected[bins == b].mean()) for run in runs]
        # Few runs may all be alike, so a spread is theirs or the binomial's, if larger.
        rate = float(expected[bins == b].mean())
        least = SIGMAS * math.sqrt(rate * (1 - rate) / n_runs / (bins == b).sum())
        assert abs(np.mean(rates) - rate) <= 0.05 + max(stray(rates), least)


@each_plan
def test_as_many_strings_are_found_as_expected(name: str, n_runs: int) -> None:
    """The mean number of found strings agrees within 5 %."""
    n_detected = [float(run.detected.sum() + run.hit) for run in observed(name, n_runs)]
    expected = plans.predict_with_probe(name)[0]
    sure = stray(n_detected)
    assert sure <= SEEN * expected
    assert abs(np.mean(n_detected) - expected) <= 0.05 * expected + sure


@each_plan
def test_intervals_are_as_wide_as_predicted(name: str, n_runs: int) -> None:
    """The widths of intervals, own and adjusted, agree within 5 %."""
    runs = observed(name, n_runs)
    prediction = plans.case(name).plan.prediction
    widths = [run.width for run in runs]
    assert np.mean(widths) == pytest.approx(prediction.width, rel=0.05)
    adjusted = [run.adjusted_width for run in runs if run.hit]
    assert adjusted
    assert np.mean(adjusted) == pytest.approx(prediction.adjusted_width, rel=0.05)


@each_plan
def test_rare_strings_have_the_variance_predicted(name: str, n_runs: int) -> None:
    """The variance of rare strings agrees within 5 %.

    Without limits on the size it is at most 1.1 times the smallest known variance.
    """
    runs = observed(name, n_runs)
    it = plans.case(name)
    best = compute_optimal_variance(it.plan.budget.epsilon_1) / it.plan.reports
    ratios = [run.rare / best for run in runs]
    mean, sure = float(np.mean(ratios)), stray(ratios)
    assert sure <= SEEN * it.plan.excess
    assert abs(mean - it.plan.excess) <= 0.05 * it.plan.excess + sure
    if not it.limited:
        assert it.plan.excess <= 1.1
        assert mean <= 1.1 + sure
