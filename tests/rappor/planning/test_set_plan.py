"""Plans of sets: their design, the shares of items, and predictions that simulations confirm."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import defaultdict
from datetime import date

import numpy as np
import pytest
from scipy import stats

from rappor import Params, ParamsError, Registry, decode, epsilon_1, predict_power, simulate_counts
from rappor.planning import DetectionTarget, Frequencies, plan_sets
from rappor.planning.detection_limit import compute_rare_variance
from rappor.planning.dimensions import compute_min_cohorts
from rappor.planning.power import predict
from rappor.planning.set_design import design_sets
from rappor.reporting.plan_tables import plan_table
from rappor.simulation.population import Population

FALSE_ALARM = 1e-9
"""Probability that a statistical check fails although the code is right."""


@pytest.mark.parametrize("items", [1, 2, 8, 32, 64])
def test_the_design_at_4_nats_is_the_profile_once(items: int) -> None:
    """The profile `once` has 4 nats, and the planner chooses its buckets k and its `keep`."""
    assert design_sets(items, 4, m=128) == Params.profile("once", encoding="set", items=items)


@pytest.mark.parametrize("items", [1, 3, 8, 64])
@pytest.mark.parametrize("epsilon", [0.5, 1, 2, 6])
def test_the_design_spends_its_budget_with_the_least_variance(items: int, epsilon: float) -> None:
    """The loss is within the budget, and no number of buckets nearby has a smaller variance.

    Designs with 8 or 16 buckets more or fewer have at most .1 % less variance. The formula of the
    best number of buckets is an approximation for many buckets, rounded to a multiple of 8.
    """
    params = design_sets(items, epsilon, m=4)
    assert epsilon - 1e-6 < epsilon_1(params) <= epsilon
    variance = compute_rare_variance(params)
    for k in range(params.k - 16, params.k + 17, 8):
        if items < k <= 2040 and k != params.k:
            odds = math.expm1(epsilon) * items / k
            alternative = dataclasses.replace(params, k=k, keep=odds / (1 + odds))
            assert compute_rare_variance(alternative) >= variance * 0.999


def test_shares_of_items_are_inclusion_probabilities() -> None:
    """The share of an item is the probability that a set of 3 of 12 items includes the item.

    Sets are drawn without repetition, with probabilities by Zipf's law. The exact probabilities are
    sums over all 1,320 orders of three items. The formula is an approximation for many items. With
    12 items its error is below .02.
    """
    popularity = 1 / np.arange(1, 13)
    popularity /= popularity.sum()
    exact: dict[int, float] = defaultdict(float)
    for order in itertools.permutations(range(12), 3):
        probability, remaining = 1.0, 1.0
        for item in order:
            probability *= popularity[item] / remaining
            remaining -= popularity[item]
        for item in order:
            exact[item] += probability
    frequencies = Frequencies.zipf(12).as_items(3)
    assert frequencies.total == pytest.approx(3)
    assert frequencies.shares == pytest.approx([exact[i] for i in range(12)], abs=0.02)


def test_a_set_needs_more_candidates_than_items() -> None:
    """Sets of six items on average need more than six candidates."""
    with pytest.raises(ParamsError, match="must number more than 6, the mean number of items"):
        Frequencies.zipf(6).as_items(6)


@pytest.mark.parametrize(("n_candidates", "mean_items"), [(1, 0.75), (3, 2.25), (8, 6), (500, 6)])
def test_a_plan_of_few_candidates_assumes_smaller_sets(
    n_candidates: int, mean_items: float
) -> None:
    """Sets are three quarters full: of eight items, or of all candidates if there are fewer."""
    planned = plan_sets(n_candidates, items=8, epsilon=4, reports=1e5)
    assert planned.target.frequencies.total == pytest.approx(mean_items)
    assert planned.share is not None


def test_sets_may_contain_strings_that_are_no_candidates() -> None:
    """Of ten strings, three are candidates. A set of up to eight items has six on average."""
    assert Frequencies.of_shares(range(10, 0, -1), 3).as_sets(8).total == pytest.approx(6)


def test_many_equal_items_have_the_variance_of_the_closed_form() -> None:
    """With a million equally rare items, the predicted error is that of the closed form.

    The closed form assumes that every bucket is an own bucket of the same share of the devices. So
    many items spread evenly over the buckets. `Frequencies.zipf` with exponent 0 is uniform.
    """
    params = design_sets(8, 4, m=1024)
    target = DetectionTarget(frequencies=Frequencies.zipf(1_000_000, 0).as_items(6))
    error = predict(params, 10_000, target).absent_std_error
    closed_form = math.sqrt(compute_rare_variance(params) / 10_000)
    assert error == pytest.approx(closed_form, rel=0.01)


@pytest.mark.slow
def test_a_plan_for_a_share_has_the_necessary_reports() -> None:
    """The planned number of reports detects the share, and 1.5 % fewer reports do not."""
    planned = plan_sets(500, items=8, epsilon=2, share=0.02)
    assert planned.share is not None
    assert planned.share <= 0.02
    fewer = predict_power(planned.params, 500, reports=0.985 * planned.reports)
    assert fewer.share is not None
    assert fewer.share > 0.02


@pytest.mark.parametrize(("devices", "most"), [(300, 16), (10**5, 1024)])
def test_few_devices_have_few_cohorts(devices: int, most: int) -> None:
    """The number of cohorts m is so small that a cohort has about 100 reports.

    The counts of a cohort with few reports are withheld. But m is at least so large that any two of
    1,000 candidates have different buckets in some cohort, else the counts cannot distinguish them.
    """
    planned = plan_sets(1000, items=8, epsilon=4, reports=devices)
    assert compute_min_cohorts(planned.params.k, 1000) <= planned.params.m <= most


def test_a_plan_for_ten_devices_promises_nothing() -> None:
    """Ten devices detect no share, and the plan recommends no number of cohorts for them.

    A plan has at least four cohorts, which distinguish 1,000 items of 464 buckets. Each needs 20
    reports on average, so 80 devices are the smallest number that some m suits.
    """
    params = Params.profile("once", encoding="set", items=8)
    rows = plan_table(predict_power(params, 1000, reports=10)).rows
    pairs = {row[0]: row[1] for row in rows}
    assert pairs["detects"].startswith("no share in 10 reports")
    assert pairs["m is too large"].endswith("no m would do below 80 devices, which need m = 4")
    assert not {"expected", "interval"} & pairs.keys()
    rows = plan_table(predict_power(params, 1000, reports=80)).rows
    (enough,) = [text for name, text in rows if name == "m is too large"]
    assert enough.endswith("m = 4 would do")


def test_a_planned_entry_has_the_planned_parameters() -> None:
    """The printed entry has the planned parameters, and one report in an epoch."""
    planned = plan_sets(1000, items=5, epsilon=3, reports=1e5)
    metric = Registry.loads(planned.to_toml("plugins", expires=date(2030, 1, 1))).metric("plugins")
    assert dataclasses.replace(metric.params, interval="", epoch="") == planned.params
    assert metric.interval == "epoch"


@pytest.mark.slow
@pytest.mark.parametrize("n_runs", [10, pytest.param(40, marks=pytest.mark.acceptance)])
def test_as_many_items_are_found_as_predicted(n_runs: int) -> None:
    """The plan predicts the mean number of detected items up to 5 % and to chance.

    The number of detected items is a sum of independent coins with the predicted probabilities, 37
    in the mean with the standard deviation 3.5. Chance is the normal quantile of FALSE_ALARM times
    the standard error of the mean. Ten collections find a mean that is a third too large or too
    small with probability .999. Items are independent, 200 of the candidates have devices and 200
    have none. The names differ in each collection, so that other items collide.
    """
    frequencies = dataclasses.replace(Frequencies.zipf(200).as_items(1.5), absent=200)
    params = design_sets(4, 4, m=32)
    prediction = predict(params, 30_000, DetectionTarget(frequencies=frequencies))
    expected, probabilities = prediction.expected_detections, prediction.probabilities
    n_detected = []
    for seed in range(n_runs):
        names = [f"{seed}/{i}" for i in range(200)]
        shares = dict(zip(names, frequencies.shares.tolist(), strict=True))
        population = Population.of_independent_items(shares, n_sets=30_000, seed=seed)
        counts = simulate_counts(population, params, n_reports=30_000, seed=seed)
        absent = [f"{seed}/absent/{i}" for i in range(200)]
        detected = set(decode(counts, [*names, *absent]).detected_candidates)
        n_detected.append(len(detected.intersection(names)))
    variance = float((probabilities * (1 - probabilities)).sum())
    noise = stats.norm.isf(FALSE_ALARM / 2) * math.sqrt(variance / n_runs)
    assert noise < 0.2 * expected
    assert abs(np.mean(n_detected) - expected) <= 0.05 * expected + noise
