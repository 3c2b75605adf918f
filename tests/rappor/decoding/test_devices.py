"""Standard errors if devices report more than once, and the sentence that states the assumption.

R (`reports_per_device`) is the sum of squared reports over devices, divided by the number of
reports. If all devices send the same number of reports, R is this number. Permanent noise and
sampling count R times. R comes from an argument, from the counts, or is estimated from collections
of several days.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from decodings import (
    ABSENT,
    CANDIDATES,
    FALSE_ALARM,
    PARAMS,
    POPULATION,
    compute_true_shares,
    is_covered,
    simulate_population_counts,
)
from scipy import stats

from rappor.base.errors import DecodeError
from rappor.counts.counts import Counts
from rappor.decoding.decoder import decode
from rappor.estimator.device_assumptions import add_collections
from rappor.estimator.device_correlation import estimate_reports_per_device
from rappor.protocol.params import Params
from rappor.simulation import Population, simulate_days, simulate_repeated


def change_shape(profile: str, *, k: int, m: int) -> Params:
    """Return the parameters of a profile with other numbers of bits and cohorts."""
    return dataclasses.replace(Params.profile(profile), k=k, m=m)


def find_smallest_count(n: int, probability: float) -> int:
    """Return the smallest number of successes of n trials that is no false alarm."""
    return int(stats.binom.ppf(FALSE_ALARM, n, probability))


def test_days_are_decoded_as_their_sum() -> None:
    """For a known R, days of one parameter set have the estimates of the sum of their counts."""
    days = simulate_days(POPULATION, PARAMS, n_devices=100_000, n_days=3, seed=1)
    of_days = decode(days, CANDIDATES, reports_per_device=2.5)
    of_sum = decode(days[0] + days[1] + days[2], CANDIDATES, reports_per_device=2.5)
    assert of_days.to_dict() == of_sum.to_dict()


@pytest.mark.parametrize("churn", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("profile", ["strict", "balanced", "low-noise"])
def test_reports_per_device_are_estimated_from_days(profile: str, churn: float) -> None:
    """R is estimated from five days without any identity, and its standard error is right.

    The permanent noise of a device returns on every day, so the residuals of two days are
    correlated as far as their devices are the same. `churn` is the share of devices that are
    replaced from each day to the next. A device of day i is there on day j with probability
    (1 - churn)^|i - j|. The sum over all pairs of days, divided by the number of days, is R.
    """
    n_days = 5
    params = change_shape(profile, k=64, m=64)
    truth = sum((1 - churn) ** abs(i - j) for i in range(n_days) for j in range(n_days)) / n_days
    days = simulate_days(POPULATION, params, n_devices=100_000, n_days=n_days, churn=churn, seed=7)
    reports_per_device = estimate_reports_per_device(days, [1.0] * n_days)
    assert reports_per_device is not None
    assert reports_per_device.std_error < 0.6
    # The largest of twelve normal errors (four churns, three profiles) exceeds 6.5 standard errors
    # with a probability below 1e-9.
    assert abs(reports_per_device.reports_per_device - truth) < 6.5 * reports_per_device.std_error


def test_a_string_that_becomes_frequent_does_not_change_reports_per_device() -> None:
    """The estimate of R does not change if a string becomes frequent.

    A change of the shares also correlates the counts of days, but R must be estimated from the
    noise of the permanent responses alone. 200,000 devices report on all three days. Each day has
    50,000 further devices, whose strings change from day to day (`changed`) or not (`steady`).
    """
    params = change_shape("balanced", k=64, m=32)
    names = ["old", "new"]
    base = simulate_days(Population(names, [8, 2]), params, n_devices=200_000, n_days=3, seed=1)
    repetitions = []
    for weights in ([(1, 0), (1, 1), (1, 3)], [(1, 0)] * 3):
        further = (
            simulate_repeated(Population(names, weight), params, devices={1: 50_000}, seed=seed)
            for seed, weight in enumerate(weights, start=2)
        )
        days = [
            day.add(repeated.counts, same_devices=False)
            for day, repeated in zip(base, further, strict=True)
        ]
        repetitions.append(estimate_reports_per_device(days, [1.0] * 3))
    changed, steady = repetitions
    assert changed is not None
    assert steady is not None
    error = math.hypot(changed.std_error, steady.std_error)
    assert abs(changed.reports_per_device - steady.reports_per_device) < 6.5 * error


def test_without_permanent_noise_the_same_devices_are_assumed() -> None:
    """Without permanent noise, R has its largest value, here 4 for four days.

    The instantaneous noise is drawn anew on each day, so the counts do not show whether devices
    return. The assumption that all of them return gives the largest errors.
    """
    params = Params(k=64, m=32, f=0.0, p=0.1, q=0.6)
    days = simulate_days(POPULATION, params, n_devices=1000, n_days=4, churn=1.0, seed=1)
    (_, (repetition,)) = add_collections(days)
    assert repetition.reports_per_device == 4
    assert repetition.std_error is None


@pytest.mark.slow
def test_estimates_from_days_cover() -> None:
    """Intervals from seven days of the same devices contain at least 93 % of the true shares.

    The bound allows for a false alarm in 1e9. Eight strings are present in each of 12 runs. With
    `reports_per_device=1`, as if each day had other devices, the intervals are too short and
    contain fewer true shares.
    """
    params = change_shape("low-noise", k=64, m=32)
    n_runs, n_covered, n_covered_if_wrong = 12, 0, 0
    for seed in range(n_runs):
        days = simulate_days(POPULATION, params, n_devices=20_000, n_days=7, seed=seed)
        estimates = decode(days, CANDIDATES)
        truth = compute_true_shares(estimates, POPULATION)
        n_covered += int(is_covered(estimates, truth)[truth > 0].sum())
        wrong = decode(days, CANDIDATES, reports_per_device=1)
        truth = compute_true_shares(wrong, POPULATION)
        n_covered_if_wrong += int(is_covered(wrong, truth)[truth > 0].sum())
    assert n_covered >= find_smallest_count(8 * n_runs, 0.93)
    assert n_covered_if_wrong < n_covered


def test_every_result_states_the_assumption_about_devices() -> None:
    """Every result states its assumption about repeated reports, and the source of R.

    R is unknown, or comes from the counts, from an argument or from days. The standard errors
    depend on R, so a reader must see the assumption on the terminal and in the JSON.
    """
    known = simulate_population_counts(n=1000)
    unknown = Counts(PARAMS, known.bit_counts, known.cohort_reports)
    lines = {
        "the most that the counts allow": decode(known, CANDIDATES),
        "if they reported again, the errors are larger": decode(unknown, CANDIDATES),
        "100 devices, 10 reports per device (as given)": decode(known, CANDIDATES, devices=100),
        "2 collections may be from the same devices": decode([known, known], ABSENT),
    }
    for words, estimates in lines.items():
        assert words in estimates.assumptions
        assert "\n" not in estimates.assumptions
        assert estimates.assumptions in " ".join(str(estimates).split())
        assert estimates.to_dict()["assumptions"] == estimates.assumptions


def test_fewer_devices_have_larger_errors() -> None:
    """The same counts have larger errors if they come from fewer devices.

    Repeated reports of a device repeat its value and its permanent noise.
    """
    counts = simulate_population_counts(n=100_000)
    default, same, fewer = (decode(counts, CANDIDATES, devices=n) for n in (None, 100_000, 10_000))
    assert np.array_equal(default.std_error, same.std_error)
    assert (fewer.std_error > default.std_error).all()
    # The sum of a column of a data frame is an integer of numpy.
    from_numpy = decode(counts, CANDIDATES, devices=np.int64(10_000))  # type: ignore[arg-type]
    assert from_numpy.to_json() == fewer.to_json()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"devices": 5, "reports_per_device": 2}, "must not be given both"),
        ({"devices": 1001}, r"devices must be a number in \[1, 1000\]"),
        ({"devices": 0}, "devices must be"),
        ({"reports_per_device": 0.9}, "reports_per_device must be"),
        ({"reports_per_device": math.nan}, "reports_per_device must be"),
    ],
)
def test_impossible_devices_are_refused(options: dict[str, float], reason: str) -> None:
    """Numbers of devices outside their range are refused with the range."""
    with pytest.raises(DecodeError, match=reason):
        decode(simulate_population_counts(n=1000), CANDIDATES, **options)  # type: ignore[arg-type]
