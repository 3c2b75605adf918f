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
from rappor.simulation.population import Population

FALSE_ALARM = 1e-9


@pytest.mark.parametrize("items", [1, 2, 8, 32, 64])
def test_the_design_at_4_nats_is_the_profile_once(items: int) -> None:
    """The planner and the profile choose the same buckets and the same `keep`."""
    assert design_sets(items, 4, m=128) == Params.profile("once", encoding="set", items=items)


@pytest.mark.parametrize("items", [1, 3, 8, 64])
@pytest.mark.parametrize("epsilon", [0.5, 1, 2, 6])
def test_the_design_loses_what_is_allowed_and_no_other_has_less_variance(
    items: int, epsilon: float
) -> None:
    """The loss is within the budget, and 8 or 16 buckets more or less bring at most .1 %.

    The formula of the number of buckets is for many buckets, and the result is a multiple of 8.
    """
    params = design_sets(items, epsilon, m=4)
    assert epsilon - 1e-6 < epsilon_1(params) <= epsilon
    variance = compute_rare_variance(params)
    for k in range(params.k - 16, params.k + 17, 8):
        if items < k <= 2040 and k != params.k:
            odds = math.expm1(epsilon) * items / k
            other = dataclasses.replace(params, k=k, keep=odds / (1 + odds))
            assert compute_rare_variance(other) >= variance * 0.999


def test_shares_of_items_are_those_of_sets_drawn_without_repetition() -> None:
    """Shares agree with the exact inclusion probabilities of sets of 3 of 12 items.

    The probabilities are computed from all 1,320 orders in which three items can be drawn. The
    formula is for large populations: with 12 items its error is below .02.
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
    """Six items of a set cannot be drawn from six candidates without being all of them."""
    with pytest.raises(ParamsError, match="must number more than 6, the mean number of items"):
        Frequencies.zipf(6).as_items(6)


def test_many_equal_items_have_the_variance_of_the_closed_form() -> None:
    """With a million equally rare items, every bucket has the mean share, as in the closed form."""
    params = design_sets(8, 4, m=1024)
    target = DetectionTarget(frequencies=Frequencies.zipf(1_000_000, 0).as_items(6))
    error = predict(params, 10_000, target).rare_error
    closed_form = math.sqrt(compute_rare_variance(params) / 10_000)
    assert error == pytest.approx(closed_form, rel=0.01)


def test_a_plan_for_a_share_has_the_necessary_reports() -> None:
    """The planned reports detect the share, and a hundredth fewer reports do not."""
    planned = plan_sets(500, items=8, epsilon=2, share=0.02)
    assert planned.share is not None
    assert planned.share <= 0.02
    fewer = predict_power(planned.params, 500, reports=0.985 * planned.reports)
    assert fewer.share is not None
    assert fewer.share > 0.02


@pytest.mark.parametrize(("devices", "most"), [(300, 16), (10**5, 1024)])
def test_few_devices_have_few_cohorts(devices: int, most: int) -> None:
    """A cohort has about a hundred reports, unless candidates need more cohorts to differ."""
    planned = plan_sets(1000, items=8, epsilon=4, reports=devices)
    assert compute_min_cohorts(planned.params.k, 1000) <= planned.params.m <= most


def test_a_planned_entry_is_read_back() -> None:
    """The printed entry has the planned parameters, and one report in an epoch."""
    planned = plan_sets(1000, items=5, epsilon=3, reports=1e5)
    metric = Registry.loads(planned.to_toml("plugins", expires=date(2030, 1, 1))).metric("plugins")
    assert dataclasses.replace(metric.params, interval="", epoch="") == planned.params
    assert metric.interval == "epoch"


@pytest.mark.slow
def test_as_many_items_are_found_as_predicted() -> None:
    """The mean number of detected items agrees with the prediction within 5 %, and the noise.

    Items are independent, 200 have devices and 200 have none. Each of 20 collections has names of
    its own.
    """
    frequencies = dataclasses.replace(Frequencies.zipf(200).as_items(1.5), absent=200)
    params = design_sets(4, 4, m=32)
    expected = predict(params, 30_000, DetectionTarget(frequencies=frequencies)).found
    n_detected = []
    for seed in range(20):
        names = [f"{seed}/{i}" for i in range(200)]
        shares = dict(zip(names, frequencies.shares.tolist(), strict=True))
        population = Population.of_independent_items(shares, n_sets=30_000, seed=seed)
        counts = simulate_counts(population, params, n_reports=30_000, seed=seed)
        absent = [f"{seed}/absent/{i}" for i in range(200)]
        detected = set(decode(counts, [*names, *absent]).detected_candidates)
        n_detected.append(len(detected.intersection(names)))
    noise = (
        stats.norm.isf(FALSE_ALARM) * float(np.std(n_detected, ddof=1)) / math.sqrt(len(n_detected))
    )
    assert noise < 0.2 * expected
    assert abs(np.mean(n_detected) - expected) <= 0.05 * expected + noise
