"""Devices, not reports: errors with repeated reports, and the line of assumptions."""

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
    counted,
    covered,
    truth_of,
)
from scipy import stats

from rappor.base.errors import DecodeError
from rappor.counts.counts import Counts
from rappor.decoding.decoder import decode
from rappor.estimator.device_assumptions import add_collections
from rappor.estimator.device_correlation import estimate_reports_per_device
from rappor.protocol.params import Params
from rappor.simulation import Population, simulate_days, simulate_repeated


def params_of(profile: str, *, k: int, m: int) -> Params:
    return dataclasses.replace(Params.profile(profile), k=k, m=m)


def fewest(n: int, probability: float) -> int:
    """Return the smallest number of successes of n trials that is no false alarm."""
    return int(stats.binom.ppf(FALSE_ALARM, n, probability))


def test_days_merge_to_their_sum() -> None:
    """Days of one parameter set have the estimates of their sum under the same devices."""
    days = simulate_days(POPULATION, PARAMS, n_devices=100_000, n_days=3, seed=1)
    apart = decode(days, CANDIDATES, reports_per_device=2.5)
    together = decode(days[0] + days[1] + days[2], CANDIDATES, reports_per_device=2.5)
    assert apart.to_dict() == together.to_dict()


@pytest.mark.parametrize("churn", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("profile", ["strict", "balanced", "low-noise"])
def test_the_overlap_of_days_is_estimated_with_its_error(profile: str, churn: float) -> None:
    """R is estimated from days, near the sum over pairs of days of (1 - churn)^distance / days."""
    n_days = 5
    params = params_of(profile, k=64, m=64)
    truth = sum((1 - churn) ** abs(i - j) for i in range(n_days) for j in range(n_days)) / n_days
    days = simulate_days(POPULATION, params, n_devices=100_000, n_days=n_days, churn=churn, seed=7)
    reports_per_device = estimate_reports_per_device(days, [1.0] * n_days)
    assert reports_per_device is not None
    assert reports_per_device.std_error < 0.6
    # The largest z score of twelve normal ones at the rate of false alarms is 6.5.
    assert abs(reports_per_device.reports_per_device - truth) < 6.5 * reports_per_device.std_error


def test_a_string_that_comes_into_fashion_is_no_other_device() -> None:
    """If half of the devices take one string on day two, R stays that of the same devices."""
    params = params_of("balanced", k=64, m=32)
    names = ["old", "new"]
    base = simulate_days(Population(names, [8, 2]), params, n_devices=200_000, n_days=3, seed=1)
    repetitions = []
    for weights in ([(1, 0), (1, 1), (1, 3)], [(1, 0)] * 3):
        more = (
            simulate_repeated(Population(names, weight), params, devices={1: 50_000}, seed=seed)
            for seed, weight in enumerate(weights, start=2)
        )
        days = [
            day.add(repeated.counts, same_devices=False)
            for day, repeated in zip(base, more, strict=True)
        ]
        repetitions.append(estimate_reports_per_device(days, [1.0] * 3))
    changed, steady = repetitions
    assert changed is not None
    assert steady is not None
    error = math.hypot(changed.std_error, steady.std_error)
    assert abs(changed.reports_per_device - steady.reports_per_device) < 6.5 * error


def test_noise_that_tells_nothing_leaves_the_safe_side() -> None:
    """Without a permanent response, the same devices are assumed on all days."""
    params = Params(k=64, m=32, f=0.0, p=0.1, q=0.6)
    days = simulate_days(POPULATION, params, n_devices=1000, n_days=4, churn=1.0, seed=1)
    (_, (repetition,)) = add_collections(days)
    assert repetition.reports_per_device == 4
    assert repetition.std_error is None


@pytest.mark.slow
def test_estimates_from_days_cover() -> None:
    """Intervals from seven days of the same devices cover. As different devices they would miss."""
    params = params_of("low-noise", k=64, m=32)
    n_runs, hits, naive = 12, 0, 0
    for seed in range(n_runs):
        days = simulate_days(POPULATION, params, n_devices=20_000, n_days=7, seed=seed)
        for reports, is_passed in ((None, True), (1, False)):
            estimates = decode(days, CANDIDATES, reports_per_device=reports)
            truth = truth_of(estimates, POPULATION)
            inside = int(covered(estimates, truth)[truth > 0].sum())
            hits, naive = (hits + inside, naive) if is_passed else (hits, naive + inside)
    assert hits >= fewest(8 * n_runs, 0.93)
    assert naive < hits


def test_every_answer_says_what_it_assumed() -> None:
    """The line of assumptions names the source of R: unknown, counts, argument or days."""
    known = counted(n=1000)
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


def test_more_reports_of_the_same_devices_widen() -> None:
    """The same counts from fewer devices have larger errors."""
    counts = counted(n=100_000)
    alone, same, fewer = (decode(counts, CANDIDATES, devices=n) for n in (None, 100_000, 10_000))
    assert np.array_equal(alone.std_error, same.std_error)
    assert (fewer.std_error > alone.std_error).all()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"devices": 5, "reports_per_device": 2}, "must not be given both"),
        ({"devices": 1001}, r"devices must be a number in \[1, 1000\]"),
        ({"devices": 0}, "devices must be"),
        ({"reports_per_device": 0.9}, "reports_per_device must be"),
        ({"reports_per_device": math.nan}, "reports_per_device must be"),
    ],
)
def test_impossible_devices_are_refused(said: dict[str, float], reason: str) -> None:
    """Numbers of devices outside their range are refused with the range."""
    with pytest.raises(DecodeError, match=reason):
        decode(counted(n=1000), CANDIDATES, **said)  # type: ignore[arg-type]
