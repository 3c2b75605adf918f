"""Devices that report several times: the variance of counts, and the number of devices.

The number of ones at a bit, over n reports each of D devices, has the mean n D mu and the variance
n D within + n^2 D between. Here mu = p* + (q* - p*) share, between = (q - p)^2 mu' (1 - mu') with
mu' = f/2 + (1 - f) share, and within = mu (1 - mu) - between.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from rappor.base.errors import ParamsError
from rappor.protocol.params import Params
from rappor.simulation import Population, simulate_days, simulate_repeated

FALSE_ALARM = 1e-9

BOOLEAN = Params(k=1, encoding="boolean", f=0.25, p=0.1, q=0.6)
YES = Population(["yes", "no"], [1, 4])
BLOOM = Params(k=16, h=1, m=4, f=0.25, p=0.1, q=0.6)
WORDS = Population(["a", "b", "c"], [5, 3, 2])


def variance_between(params: Params, share: float) -> float:
    mean = params.f1 + (1 - params.f) * share
    return (params.q - params.p) ** 2 * mean * (1 - mean)


def mean_of(params: Params, share: float) -> float:
    return params.p_star + (params.q_star - params.p_star) * share


def test_repeated_reports_vary_as_derived() -> None:
    """Mean and variance of 400 collections are within bounds that fail once in 1e9 runs."""
    n_runs, n, reports_per_device, share = 400, 500, 12, 0.2
    ones = np.array(
        [
            simulate_repeated(
                YES, BOOLEAN, devices={reports_per_device: n}, seed=seed
            ).counts.bit_counts[0, 0]
            for seed in range(n_runs)
        ]
    )
    mean, between = mean_of(BOOLEAN, share), variance_between(BOOLEAN, share)
    within = mean * (1 - mean) - between
    variance = n * reports_per_device * within + n * reports_per_device**2 * between
    z = (ones.mean() - n * reports_per_device * mean) / math.sqrt(variance / n_runs)
    assert abs(z) < stats.norm.isf(FALSE_ALARM / 2)
    # Sums over 500 devices are normal to a percent; the bound is the normal one with 10 % more.
    ratio = ones.var(ddof=1) / variance
    degrees = n_runs - 1
    low = float(stats.chi2.ppf(FALSE_ALARM / 2, degrees)) / degrees
    high = float(stats.chi2.isf(FALSE_ALARM / 2, degrees)) / degrees
    assert low / 1.1 < ratio < high * 1.1
    # Independent reports would have a sixth of that variance, which these bounds exclude.
    assert high * 1.1 * n * reports_per_device * mean * (1 - mean) < variance * low / 1.1


def test_the_counts_store_squared_reports() -> None:
    """Reports, devices and the sum of squares are those of the arguments."""
    drawn = simulate_repeated(WORDS, BLOOM, devices={1: 500, 3: 200, 7: 10}, seed=1)
    assert drawn.counts.n_reports == 500 + 600 + 70
    assert drawn.counts.sum_squared_reports == 500 + 9 * 200 + 49 * 10
    assert drawn.devices.sum() == 710


def test_a_seed_repeats_a_simulation() -> None:
    """The same seed gives the same counts, and another seed gives others."""
    first, again, other = (
        simulate_days(WORDS, BLOOM, n_devices=1e5, n_days=3, churn=0.2, seed=seed)
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("churn", [0.0, 0.3, 1.0])
def test_days_have_as_many_devices_each(churn: float) -> None:
    """New devices replace the devices that leave, and every device reports once a day."""
    days = simulate_days(WORDS, BLOOM, n_devices=1000, n_days=5, churn=churn, seed=3)
    assert [day.n_reports for day in days] == [1000] * 5
    assert [day.sum_squared_reports for day in days] == [1000] * 5


@pytest.mark.parametrize("churn", [0.0, 0.02])
def test_once_every_device_reports_on_one_day(churn: float) -> None:
    """A part of the devices reports each day. Devices that leave before their day never report."""
    n, n_days = 90_000, 90
    days = simulate_days(
        WORDS, BLOOM, n_devices=n, n_days=n_days, churn=churn, once_in=n_days, seed=4
    )
    assert [day.sum_squared_reports for day in days] == [day.n_reports for day in days]
    # Of devices that come on one day: those whose day is over, and those that stay until it.
    answering = [
        (first + sum((1 - churn) ** (day - first) for day in range(first, n_days))) / n_days
        for first in range(n_days)
    ]
    expected = n * (answering[0] + churn * sum(answering[1:]))
    bound = stats.norm.isf(FALSE_ALARM / 2) * math.sqrt(expected)  # wider than any binomial
    assert abs(sum(day.n_reports for day in days) - expected) <= bound
    assert 700 < days[0].n_reports < 1300


@pytest.mark.parametrize(("n_days", "answers"), [(7, 7 / 92), (92, 1), (200, 2 + 16 / 92)])
def test_days_have_their_share_of_the_epochs(n_days: int, answers: float) -> None:
    """A week of a quarter has a thirteenth of the devices.

    200 days have 2.17 reports of each device.
    """
    n = 92_000
    days = simulate_days(WORDS, BLOOM, n_devices=n, n_days=n_days, once_in=92, seed=5)
    bound = stats.norm.isf(FALSE_ALARM / 2) * math.sqrt(n * (answers % 1))
    assert abs(sum(day.n_reports for day in days) - n * answers) <= bound


@pytest.mark.parametrize("churn", [0.0, 0.25])
def test_days_of_the_same_devices_agree_as_derived(churn: float) -> None:
    """The covariance of a bit's ones on two days, L days apart, is between (1 - churn)^L."""
    n_runs, n, share = 600, 400, 0.2
    days = np.array(
        [
            [
                day.bit_counts[0, 0]
                for day in simulate_days(
                    YES, BOOLEAN, n_devices=n, n_days=3, churn=churn, seed=seed
                )
            ]
            for seed in range(n_runs)
        ]
    )
    mean = mean_of(BOOLEAN, share)
    variance = n * mean * (1 - mean)
    centred = days - n * mean
    for first, second in itertools.combinations(range(3), 2):
        products = centred[:, first] * centred[:, second]
        expected = n * variance_between(BOOLEAN, share) * (1 - churn) ** (second - first)
        # A product of two normal variables has at most twice the squared variance, and a mean of
        # 600 has nearly normal tails; half as much again is allowed for the rest.
        bound = 1.5 * stats.norm.isf(FALSE_ALARM / 2) * variance * math.sqrt(2 / n_runs)
        assert abs(products.mean() - expected) < bound


def test_without_noise_days_of_the_same_devices_are_equal() -> None:
    """The values of devices stay the same from day to day. With churn they change."""
    plain = Params(k=16, h=1, m=4, f=0.0, p=0.0, q=1.0, insecure=True)
    first, *others = simulate_days(WORDS, plain, n_devices=1e9, n_days=4, seed=1)
    assert all(np.array_equal(first.bit_counts, day.bit_counts) for day in others)
    first, second = simulate_days(WORDS, plain, n_devices=1e9, n_days=2, churn=0.5, seed=1)
    assert not np.array_equal(first.bit_counts, second.bit_counts)


def test_impossible_numbers_are_refused() -> None:
    """The message has the name of the number."""
    with pytest.raises(ParamsError, match="reports of a device must be"):
        simulate_repeated(YES, BOOLEAN, devices={0: 5})
    with pytest.raises(ParamsError, match="reports must number at most"):
        simulate_repeated(YES, BOOLEAN, devices={2**40: 2**40})
    with pytest.raises(ParamsError, match="churn must be a number in"):
        simulate_days(YES, BOOLEAN, n_devices=5, n_days=2, churn=1.5)
