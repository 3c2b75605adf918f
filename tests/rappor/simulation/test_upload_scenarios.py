"""Scenarios: the effect of each event on the uploads."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from scipy import stats

from rappor.base.errors import ParamsError
from rappor.protocol.encodings import get_encoder
from rappor.protocol.params import Params
from rappor.simulation.population import Population
from rappor.simulation.upload_scenarios import SCENARIOS, Day, Scenario, simulate_scenario

FALSE_ALARM = 1e-9
"""Probability that a statistical check below fails although the code is right."""

POPULATION = Population(["vim", "emacs", "helix"], [3, 2, 1])
MEMOISED = Params(k=64, m=4, f=0.5, p=0.0, q=1.0, insecure=True)
"""Parameters under which a report equals the permanent response."""

PLAIN = Params(k=64, m=4, f=0.0, p=0.0, q=1.0, insecure=True)
N = 20_000


def days_of(scenario: Scenario, params: Params = MEMOISED, seed: int = 1) -> list[Day]:
    return list(simulate_scenario(scenario, POPULATION, params, n_devices=N, seed=seed))


def count_reports(day: Day) -> dict[bytes, int]:
    """Count equal reports with their cohorts."""
    rows = np.column_stack([day.packed, day.cohorts.astype(np.uint8)])
    reports, times = np.unique(rows, axis=0, return_counts=True)
    return {row.tobytes(): int(n) for row, n in zip(reports, times, strict=True)}


def count_shared(one: Day, other: Day) -> int:
    """Return how many reports of one day equal a report of another day."""
    first, second = count_reports(one), count_reports(other)
    return sum(min(n, second.get(row, 0)) for row, n in first.items())


def assert_share(n: int, of: int, share: float, *, detect: float) -> None:
    """Check n against Binomial(of, share), and that a share off by `detect` would be found."""
    low, high = stats.binom.interval(1 - FALSE_ALARM, of, share)
    assert low <= n <= high
    assert stats.binom.cdf(high, of, share + detect) < 1e-3
    assert stats.binom.sf(low - 1, of, share - detect) < 1e-3


def test_the_same_devices_send_their_permanent_response_every_day() -> None:
    """Without churn two days have the same reports in another order."""
    first, second = days_of(Scenario(days=2))
    assert count_reports(first) == count_reports(second)
    assert not np.array_equal(first.packed, second.packed)
    assert not set(first.ids) & set(second.ids)


def test_reports_have_the_noise_of_both_responses() -> None:
    """On each day the ones are as frequent as p* and q* require."""
    params = Params(k=64, h=1, m=4, f=0.5, p=0.25, q=0.75)
    n = N * params.k
    expected = N * params.q_star + (n - N) * params.p_star
    for day in days_of(Scenario(days=2), params):
        n_ones = int(np.bitwise_count(day.packed).sum())
        # By Hoeffding's inequality; one stream of coins for both would be off by a tenth of all.
        assert abs(n_ones - expected) < (n * np.log(2 / FALSE_ALARM) / 2) ** 0.5 < 0.01 * n


def test_churn_replaces_devices() -> None:
    """Nine in ten reports are repeated on the next day.

    Two other devices have equal reports with probability .625^64 = 9e-14, and 1e7 pairs of
    different devices share a cohort.
    """
    first, second = days_of(Scenario(days=2, churn=0.1))
    assert len(second.packed) == N
    assert_share(count_shared(first, second), N, 0.9, detect=0.04)


def test_devices_that_change_their_value_report_the_first_one() -> None:
    """The values of all devices are drawn anew, and the reports stay."""
    first, second = days_of(Scenario(days=2, changing=1.0))
    assert count_reports(first) == count_reports(second)
    assert np.array_equal(first.reported_values, second.reported_values)
    assert np.array_equal(first.reported_values, first.values)
    same = int((first.values == second.values).sum())
    assert_share(same, N, float((POPULATION.weights**2).sum()), detect=0.04)


def test_devices_report_several_times_a_day() -> None:
    """Each device sends the same response three times, in separate uploads."""
    (day,) = days_of(Scenario(reports_a_day=3))
    assert day.counts.n_reports == len(set(day.ids)) == 3 * N
    assert all(n % 3 == 0 for n in count_reports(day).values())


def test_unknown_values_are_beyond_the_population() -> None:
    """Three devices in ten have an unknown string.

    The shares of the other values stay in proportion.
    """
    (day,) = days_of(Scenario(unknown=0.3))
    unknown = int((day.values >= len(POPULATION)).sum())
    assert_share(unknown, N, 0.3, detect=0.04)
    assert_share(int((day.values == 0).sum()), N, 0.7 * 0.5, detect=0.04)


def test_forged_uploads_are_of_the_last_value() -> None:
    """A fifth of all uploads has the bits of the last value in some cohort, and no others."""
    (day,) = days_of(Scenario(forged=0.2), PLAIN)
    assert len(day.packed) == N * 5 // 4
    encode = get_encoder(PLAIN).encode
    target = [encode("helix", j) for j in range(PLAIN.m)]
    of_target = sum(
        row.tobytes() == target[j] for row, j in zip(day.packed, day.cohorts, strict=True)
    )
    assert of_target == N // 4 + int((day.reported_values == 2).sum())


def test_uploads_are_lost() -> None:
    """One upload in five is lost. The truth still has the devices that sent them."""
    (day,) = days_of(Scenario(lost=0.2))
    assert_share(day.counts.n_reports, N, 0.8, detect=0.04)
    assert len(day.values) == N


@pytest.mark.parametrize("lost", [0.0, 0.5])
def test_repeated_uploads_are_equal_and_count_once(lost: float) -> None:
    """One in five of the arriving uploads comes twice, with the same id and bits."""
    (day,) = days_of(Scenario(repeated=0.2, lost=lost))
    order = np.argsort(day.ids, kind="stable")
    again = np.flatnonzero(np.diff(day.ids[order]) == 0)
    assert np.array_equal(day.packed[order][again], day.packed[order][again + 1])
    assert np.array_equal(day.cohorts[order][again], day.cohorts[order][again + 1])
    assert_share(len(again), day.counts.n_reports, 0.2, detect=0.04)
    assert day.counts.n_reports == len(set(day.ids)) == len(day.ids) - len(again)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_seed_repeats_a_named_scenario(name: str) -> None:
    """Equal seeds give equal days, and another seed gives others."""
    params = Params.profile("balanced")
    runs = [
        [day.counts for day in simulate_scenario(SCENARIOS[name], POPULATION, params, **options)]
        for options in ({"n_devices": 500, "seed": 1}, {"n_devices": 500, "seed": 1})
    ]
    assert runs[0] == runs[1]
    other = simulate_scenario(SCENARIOS[name], POPULATION, params, n_devices=500, seed=2)
    assert next(other).counts != runs[0][0]


@pytest.mark.parametrize(
    ("field", "number"),
    [
        ("days", 0),
        ("reports_a_day", 0),
        ("churn", 1.1),
        ("changing", -0.1),
        ("unknown", 2),
        ("forged", 1),
        ("lost", 1),
        ("repeated", float("nan")),
    ],
)
def test_impossible_scenarios_are_refused(field: str, number: Any) -> None:
    """The message has the name of the number."""
    with pytest.raises(ParamsError, match=field):
        dataclasses.replace(Scenario(), **{field: number})
