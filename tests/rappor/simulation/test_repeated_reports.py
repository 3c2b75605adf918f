"""Devices that report several times: the variance of bit counts, and the number of devices.

If D devices send n reports each, a bit count has the mean n D mu and the variance
n D within + n^2 D between, where

- mu = p* + (q* - p*) share is the probability that a report has a 1 at the bit,
- between = (q - p)^2 mu' (1 - mu') is the variance between devices, from their values and permanent
  responses, with mu' = f/2 + (1 - f) share, the probability of a permanent 1,
- within = mu (1 - mu) - between is the variance from fresh coins.
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


def compute_variance_between(params: Params, share: float) -> float:
    """Return the variance between devices of the probability of a reported 1."""
    mean = params.f1 + (1 - params.f) * share
    return (params.q - params.p) ** 2 * mean * (1 - mean)


def compute_mean(params: Params, share: float) -> float:
    """Return the probability that a report has a 1 at the bit."""
    return params.p_star + (params.q_star - params.p_star) * share


def test_repeated_reports_vary_as_derived() -> None:
    """Mean and variance of a bit count over 400 collections are as derived, at FALSE_ALARM."""
    n_runs, n, reports_per_device, share = 400, 500, 12, 0.2
    bit_counts = np.array(
        [
            simulate_repeated(
                YES, BOOLEAN, devices={reports_per_device: n}, seed=seed
            ).counts.bit_counts[0, 0]
            for seed in range(n_runs)
        ]
    )
    mean, between = compute_mean(BOOLEAN, share), compute_variance_between(BOOLEAN, share)
    within = mean * (1 - mean) - between
    variance = n * reports_per_device * within + n * reports_per_device**2 * between
    z = (bit_counts.mean() - n * reports_per_device * mean) / math.sqrt(variance / n_runs)
    assert abs(z) < stats.norm.isf(FALSE_ALARM / 2)
    # Sums over 500 devices are nearly normal, so the variance has nearly a chi-squared
    # distribution. The bounds are 10 % wider than its quantiles.
    ratio = bit_counts.var(ddof=1) / variance
    degrees = n_runs - 1
    low = float(stats.chi2.ppf(FALSE_ALARM / 2, degrees)) / degrees
    high = float(stats.chi2.isf(FALSE_ALARM / 2, degrees)) / degrees
    assert low / 1.1 < ratio < high * 1.1
    # Power: independent reports would have a sixth of the variance, which the bounds exclude.
    assert high * 1.1 * n * reports_per_device * mean * (1 - mean) < variance * low / 1.1


def test_the_counts_store_squared_reports() -> None:
    """`devices` maps a number of reports to the number of devices that send so many.

    The counts have the sum of the reports of all devices, and the sum of their squares.
    """
    drawn = simulate_repeated(WORDS, BLOOM, devices={1: 500, 3: 200, 7: 10}, seed=1)
    assert drawn.counts.n_reports == 500 + 600 + 70
    assert drawn.counts.sum_squared_reports == 500 + 9 * 200 + 49 * 10
    assert drawn.devices.sum() == 710


def test_a_seed_repeats_a_simulation() -> None:
    """The same seed gives the same counts, and another seed gives others."""
    first, again, other_seed = (
        simulate_days(WORDS, BLOOM, n_devices=1e5, n_days=3, churn=0.2, seed=seed)
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other_seed


@pytest.mark.parametrize("churn", [0.0, 0.3, 1.0])
def test_all_days_have_the_same_number_of_devices(churn: float) -> None:
    """New devices replace the devices that leave, and every device reports once a day."""
    days = simulate_days(WORDS, BLOOM, n_devices=1000, n_days=5, churn=churn, seed=3)
    assert [day.n_reports for day in days] == [1000] * 5
    assert [day.sum_squared_reports for day in days] == [1000] * 5


@pytest.mark.parametrize("churn", [0.0, 0.02])
def test_with_one_report_an_epoch_a_device_reports_on_one_day(churn: float) -> None:
    """With `once_in`, each device reports on one random day of the epoch.

    Devices that leave before their day never report.
    """
    n, n_days = 90_000, 90
    days = simulate_days(
        WORDS, BLOOM, n_devices=n, n_days=n_days, churn=churn, once_in=n_days, seed=4
    )
    assert [day.sum_squared_reports for day in days] == [day.n_reports for day in days]
    # Share of the devices that report, by the first day of a device: devices whose day was before
    # the first day report at once, and the others report if they stay until their day.
    reporting = [
        (first + sum((1 - churn) ** (day - first) for day in range(first, n_days))) / n_days
        for first in range(n_days)
    ]
    expected = n * (reporting[0] + churn * sum(reporting[1:]))
    # The variance of a binomial distribution is at most its mean.
    bound = stats.norm.isf(FALSE_ALARM / 2) * math.sqrt(expected)
    assert abs(sum(day.n_reports for day in days) - expected) <= bound
    # The first day has 1,000 of 90,000 reports on average, with a standard deviation of 31.
    assert 700 < days[0].n_reports < 1300


@pytest.mark.parametrize(
    ("n_days", "reports_per_device"), [(7, 7 / 92), (92, 1), (200, 2 + 16 / 92)]
)
def test_number_of_reports_is_the_number_of_days_over_the_epoch(
    n_days: int, reports_per_device: float
) -> None:
    """With one report in 92 days, each device sends `n_days` / 92 reports on average.

    200 days are two epochs and 16 days of a third one.
    """
    n = 92_000
    days = simulate_days(WORDS, BLOOM, n_devices=n, n_days=n_days, once_in=92, seed=5)
    bound = stats.norm.isf(FALSE_ALARM / 2) * math.sqrt(n * (reports_per_device % 1))
    assert abs(sum(day.n_reports for day in days) - n * reports_per_device) <= bound


@pytest.mark.parametrize("churn", [0.0, 0.25])
def test_covariance_of_days_of_the_same_devices(churn: float) -> None:
    """The covariance of a bit count on two days, L days apart, is n between (1 - churn)^L.

    After L days, a device is still the same with probability (1 - churn)^L.
    """
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
    mean = compute_mean(BOOLEAN, share)
    variance = n * mean * (1 - mean)
    centred = days - n * mean
    for first, second in itertools.combinations(range(3), 2):
        products = centred[:, first] * centred[:, second]
        expected = n * compute_variance_between(BOOLEAN, share) * (1 - churn) ** (second - first)
        # The product of two normal variables of one variance has a variance of at most twice the
        # square of this variance. A mean of 600 products is nearly normal. The factor 1.5 allows
        # for its tails.
        bound = 1.5 * stats.norm.isf(FALSE_ALARM / 2) * variance * math.sqrt(2 / n_runs)
        assert abs(products.mean() - expected) < bound


def test_without_noise_days_of_the_same_devices_are_equal() -> None:
    """The values of devices stay the same from day to day. With churn they change."""
    plain = Params(k=16, h=1, m=4, f=0.0, p=0.0, q=1.0, insecure=True)
    first, *later_days = simulate_days(WORDS, plain, n_devices=1e9, n_days=4, seed=1)
    assert all(np.array_equal(first.bit_counts, day.bit_counts) for day in later_days)
    first, second = simulate_days(WORDS, plain, n_devices=1e9, n_days=2, churn=0.5, seed=1)
    assert not np.array_equal(first.bit_counts, second.bit_counts)


def test_impossible_numbers_are_refused() -> None:
    """The message names the argument."""
    with pytest.raises(ParamsError, match="reports of a device must be"):
        simulate_repeated(YES, BOOLEAN, devices={0: 5})
    with pytest.raises(ParamsError, match="reports must number at most"):
        simulate_repeated(YES, BOOLEAN, devices={2**40: 2**40})
    with pytest.raises(ParamsError, match="churn must be a number in"):
        simulate_days(YES, BOOLEAN, n_devices=5, n_days=2, churn=1.5)
