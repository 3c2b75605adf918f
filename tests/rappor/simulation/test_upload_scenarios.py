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
MEMOIZED = Params(k=64, m=4, f=0.5, p=0.0, q=1.0, insecure=True)
"""Parameters under which a report equals the permanent response."""

PLAIN = Params(k=64, m=4, f=0.0, p=0.0, q=1.0, insecure=True)
N = 20_000


def simulate_days(scenario: Scenario, params: Params = MEMOIZED, seed: int = 1) -> list[Day]:
    """Simulate all days of a scenario of N devices."""
    return list(simulate_scenario(scenario, POPULATION, params, n_devices=N, seed=seed))


def count_reports(day: Day) -> dict[bytes, int]:
    """Return the number of times that each pair of bits and cohort is reported."""
    rows = np.column_stack([day.packed, day.cohorts.astype(np.uint8)])
    reports, times = np.unique(rows, axis=0, return_counts=True)
    return {row.tobytes(): int(n) for row, n in zip(reports, times, strict=True)}


def count_shared(first_day: Day, second_day: Day) -> int:
    """Return the number of reports that two days have in common."""
    first, second = count_reports(first_day), count_reports(second_day)
    return sum(min(n, second.get(row, 0)) for row, n in first.items())


def assert_share(n: int, of: int, share: float, *, detect: float) -> None:
    """Check n against Binomial(of, share).

    The last two lines check the power: a share that is wrong by `detect` would be within the bounds
    with a probability below 1e-3.
    """
    low, high = stats.binom.interval(1 - FALSE_ALARM, of, share)
    assert low <= n <= high
    assert stats.binom.cdf(high, of, share + detect) < 1e-3
    assert stats.binom.sf(low - 1, of, share - detect) < 1e-3


def test_the_same_devices_send_their_permanent_response_every_day() -> None:
    """Without churn, two days have the same reports in another order, in uploads with new ids."""
    first, second = simulate_days(Scenario(days=2))
    assert count_reports(first) == count_reports(second)
    assert not np.array_equal(first.packed, second.packed)
    assert not set(first.ids) & set(second.ids)


def test_reports_have_the_noise_of_both_responses() -> None:
    """The number of ones of a day is N q* for the true bits, plus p* for all other bits.

    With h = 1, each report has one true bit.
    """
    params = Params(k=64, h=1, m=4, f=0.5, p=0.25, q=0.75)
    n = N * params.k
    expected = N * params.q_star + (n - N) * params.p_star
    for day in simulate_days(Scenario(days=2), params):
        n_ones = int(np.bitwise_count(day.packed).sum())
        # Hoeffding's inequality bounds the deviation at FALSE_ALARM. With one stream of coins for
        # both responses, a tenth of all bits would differ, more than the bound of 1 %.
        assert abs(n_ones - expected) < (n * np.log(2 / FALSE_ALARM) / 2) ** 0.5 < 0.01 * n


def test_churn_replaces_devices() -> None:
    """With a churn of 0.1, 90 % of the reports are sent again on the next day.

    Two different devices of a cohort have equal reports with probability .625^64 = 9e-14. There are
    about 1e7 such pairs, so equal reports are from the same device.
    """
    first, second = simulate_days(Scenario(days=2, churn=0.1))
    assert len(second.packed) == N
    assert_share(count_shared(first, second), N, 0.9, detect=0.04)


def test_devices_that_change_their_value_report_the_first_value() -> None:
    """All devices draw a new value on the second day, and report their first value again.

    Two independent draws are equal with the probability of the sum of squared weights.
    """
    first, second = simulate_days(Scenario(days=2, changing=1.0))
    assert count_reports(first) == count_reports(second)
    assert np.array_equal(first.reported_values, second.reported_values)
    assert np.array_equal(first.reported_values, first.values)
    same = int((first.values == second.values).sum())
    assert_share(same, N, float((POPULATION.weights**2).sum()), detect=0.04)


def test_devices_report_several_times_a_day() -> None:
    """Each device sends the same response three times, in separate uploads."""
    (day,) = simulate_days(Scenario(reports_a_day=3))
    assert day.counts.n_reports == len(set(day.ids)) == 3 * N
    assert all(n % 3 == 0 for n in count_reports(day).values())


def test_unknown_values_have_indices_beyond_the_population() -> None:
    """30 % of the devices have an unknown string, whose index is not in the population.

    The shares of all other values are multiplied by 0.7.
    """
    (day,) = simulate_days(Scenario(unknown=0.3))
    unknown = int((day.values >= len(POPULATION)).sum())
    assert_share(unknown, N, 0.3, detect=0.04)
    assert_share(int((day.values == 0).sum()), N, 0.7 * 0.5, detect=0.04)


def test_forged_uploads_are_of_the_last_value() -> None:
    """A fifth of all uploads is forged: a quarter as many as the N honest uploads.

    A forged upload has the true bits of the last value in its cohort.
    """
    (day,) = simulate_days(Scenario(forged=0.2), PLAIN)
    assert len(day.packed) == N * 5 // 4
    encode = get_encoder(PLAIN).encode
    target = [encode("helix", j) for j in range(PLAIN.m)]
    of_target = sum(
        row.tobytes() == target[j] for row, j in zip(day.packed, day.cohorts, strict=True)
    )
    assert of_target == N // 4 + int((day.reported_values == 2).sum())


def test_lost_uploads_are_missing_in_the_counts() -> None:
    """One upload in five is lost. `values` still has the values of all devices."""
    (day,) = simulate_days(Scenario(lost=0.2))
    assert_share(day.counts.n_reports, N, 0.8, detect=0.04)
    assert len(day.values) == N


@pytest.mark.parametrize("lost", [0.0, 0.5])
def test_repeated_uploads_are_equal_and_count_once(lost: float) -> None:
    """One in five of the uploads that arrive comes twice, with the same id, bits and cohort.

    The counts contain each upload once.
    """
    (day,) = simulate_days(Scenario(repeated=0.2, lost=lost))
    order = np.argsort(day.ids, kind="stable")
    repeated = np.flatnonzero(np.diff(day.ids[order]) == 0)
    assert np.array_equal(day.packed[order][repeated], day.packed[order][repeated + 1])
    assert np.array_equal(day.cohorts[order][repeated], day.cohorts[order][repeated + 1])
    assert_share(len(repeated), day.counts.n_reports, 0.2, detect=0.04)
    assert day.counts.n_reports == len(set(day.ids)) == len(day.ids) - len(repeated)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_seed_repeats_a_named_scenario(name: str) -> None:
    """Equal seeds give equal days, and another seed gives others."""
    params = Params.profile("balanced")
    runs = [
        [day.counts for day in simulate_scenario(SCENARIOS[name], POPULATION, params, **options)]
        for options in ({"n_devices": 500, "seed": 1}, {"n_devices": 500, "seed": 1})
    ]
    assert runs[0] == runs[1]
    other_seed = simulate_scenario(SCENARIOS[name], POPULATION, params, n_devices=500, seed=2)
    assert next(other_seed).counts != runs[0][0]


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
    """A number outside its range is refused, and the message names the field."""
    with pytest.raises(ParamsError, match=field):
        dataclasses.replace(Scenario(), **{field: number})
