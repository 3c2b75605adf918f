"""Active installations: the number of devices that reported a metric in an interval.

A device sends one report in an interval, so without sampling the reports are the devices. With a
sampling rate r, n reports stand for n / r devices, with the error of a binomial distribution.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rappor.base.errors import FileError
from rappor.counts.calendar_periods import find_interval, list_intervals
from rappor.counts.installations import ActiveInterval, Installations, SampledReports
from rappor.counts.released_counts import ReleasedCounts
from rappor.counts.squared_reports import count_max_reports, is_same_interval

PACES = st.sampled_from(["day", "week", "month", "quarter", "year"])
EPOCHS = st.sampled_from(["life", "year", "quarter", "month"])
DAYS = st.dates(datetime.date(2020, 1, 1), datetime.date(2031, 12, 31))
MONDAY = datetime.date(2026, 11, 2)


def make_sampled_week(
    number: int, *parts: tuple[float | None, float], is_complete: bool = True
) -> ActiveInterval:
    """Return the active devices of a whole week. Week 0 begins on 2 November 2026.

    `parts` are pairs of a sampling rate and a number of reports. The rate may change inside a week,
    and is None if it is unknown. `is_complete` is False if a part of the reports is not released.
    """
    first = MONDAY + datetime.timedelta(days=7 * number)
    last = first + datetime.timedelta(days=6)
    reports = tuple(SampledReports(*part) for part in parts)
    return ActiveInterval(first=first, last=last, parts=reports, is_complete=is_complete)


def make_week(number: int, reports: float | None, *, is_complete: bool = True) -> ActiveInterval:
    """Return a week without sampling. `reports` is None if no report of the week is released."""
    parts = [] if reports is None else [(1.0, reports)]
    return make_sampled_week(number, *parts, is_complete=is_complete)


def make_installations(*intervals: ActiveInterval) -> Installations:
    """Return the active installations of a weekly metric."""
    return Installations(metric="page", pace="week", intervals=intervals, has_other_pace=False)


@given(pace=PACES, epoch=EPOCHS, first=DAYS, n_days=st.integers(0, 500))
def test_intervals_are_those_of_the_bound_on_repeated_reports(
    pace: str, epoch: str, first: datetime.date, n_days: int
) -> None:
    """`list_intervals` and `count_max_reports` agree on the intervals of any range of days.

    The first lists the intervals for the number of devices, and the second counts them for the
    bound on repeated reports. If they disagreed, one of the two numbers would be wrong.
    """
    last = first + datetime.timedelta(days=n_days)
    intervals = list(list_intervals(pace, epoch, first, last))
    assert len(intervals) == count_max_reports(pace, epoch, first, last)
    assert intervals[0][0] <= first
    assert last <= intervals[-1][1]
    for begin, end in intervals:
        assert find_interval(pace, epoch, end) == (begin, end)
        assert is_same_interval(pace, epoch, begin, end)
        for outside in (begin - datetime.timedelta(days=1), end + datetime.timedelta(days=1)):
            assert not is_same_interval(pace, epoch, begin, outside)


def test_a_week_ends_with_its_epoch() -> None:
    """A week that contains the end of an epoch is two intervals, and a device may report in each.

    1 January 2027 is a Friday, so the week has four days in 2026 and three days in 2027.
    """
    days = [datetime.date(2026, 12, 28), datetime.date(2027, 1, 1)]
    assert [find_interval("week", "year", day) for day in days] == [
        (datetime.date(2026, 12, 28), datetime.date(2026, 12, 31)),
        (datetime.date(2027, 1, 1), datetime.date(2027, 1, 3)),
    ]


def test_without_sampling_the_reports_are_the_devices() -> None:
    """Without sampling, the number of devices is the number of reports, without an error.

    The change from one week to the next has no error either.
    """
    installations = make_installations(make_week(0, 1000.0), make_week(1, 1030.0))
    latest = installations.latest
    assert latest is not None
    assert latest.estimate_devices() == (1030.0, 0.0)
    change = installations.compute_change()
    assert change is not None
    assert (change.before, change.std_error) == (make_week(0, 1000.0), 0.0)
    assert change.ratio == pytest.approx(0.03, rel=1e-12)


@pytest.mark.parametrize("rates", [(0.01,), (0.25,), (0.9,), (0.2, 0.7), (0.1, 1.0)])
def test_the_error_of_sampled_devices_is_that_of_the_binomial(rates: tuple[float, ...]) -> None:
    """The estimated number of devices, and the square of its standard error, are unbiased.

    A group of 100 devices has each of the sampling rates. Each device reports with the probability
    of its rate. The mean of the estimated number is the number of all devices. The mean of the
    squared standard error is the variance of the estimated number. Both means are exact sums over
    the joint distribution of the numbers of reports.
    """
    n_devices = 100
    numbers = range(n_devices + 1)
    distributions = [np.asarray(stats.binom.pmf(numbers, n_devices, rate)) for rate in rates]
    estimates, probability = [], []
    for reports in itertools.product(numbers, repeat=len(rates)):
        interval = make_sampled_week(0, *zip(rates, reports, strict=True))
        estimates.append(interval.estimate_devices())
        probability.append(
            math.prod(
                distribution[n] for distribution, n in zip(distributions, reports, strict=True)
            )
        )
    devices, errors = np.array(estimates).T
    mean = np.array(probability) @ devices
    assert mean == pytest.approx(len(rates) * n_devices, rel=1e-9)
    variance = np.array(probability) @ (devices - mean) ** 2
    assert np.array(probability) @ errors**2 == pytest.approx(variance, rel=1e-9)


@pytest.mark.parametrize("rates", [(0.2, 0.2), (0.2, 0.5)])
def test_the_error_of_a_change_is_that_of_two_binomials(rates: tuple[float, float]) -> None:
    """The standard error of a change is within 1 % of the exact standard deviation.

    The change is the ratio of two estimated numbers of devices. Its exact distribution is that of
    two independent binomials, each with its own sampling rate.
    """
    devices = (20_000, 25_000)
    # The ranges are 500 reports around the means, at least 6 standard deviations. They have nearly
    # all of the probability, as the assertion about `weight` checks.
    reports = [
        np.arange(int(n * rate) - 500, int(n * rate) + 501)
        for n, rate in zip(devices, rates, strict=True)
    ]
    weight = np.outer(
        *(stats.binom.pmf(*arguments) for arguments in zip(reports, devices, rates, strict=True))
    )
    assert weight.sum() == pytest.approx(1, abs=1e-9)
    before, after = (numbers / rate for numbers, rate in zip(reports, rates, strict=True))
    ratio = after[None, :] / before[:, None]
    mean = (weight * ratio).sum()
    exact = math.sqrt((weight * (ratio - mean) ** 2).sum())
    change = make_installations(
        *(make_sampled_week(i, (rates[i], devices[i] * rates[i])) for i in (0, 1))
    ).compute_change()
    assert change is not None
    assert change.ratio == pytest.approx(0.25)
    assert change.std_error == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize(
    "intervals",
    [
        # No week before, no number of the week before, or no device from which a ratio follows.
        (make_week(0, 100.0),),
        (make_week(0, None), make_week(1, 100.0)),
        (make_week(0, 0.0), make_week(1, 100.0)),
        # A part of one of the two weeks is not released.
        (make_week(0, 100.0, is_complete=False), make_week(1, 100.0)),
        (make_week(0, 100.0), make_week(1, 100.0, is_complete=False)),
        # One of the two weeks is cut to one day.
        (
            make_week(0, 100.0),
            dataclasses.replace(make_week(1, 90.0), last=make_week(1, 90.0).first),
        ),
        (
            dataclasses.replace(make_week(0, 90.0), last=make_week(0, 90.0).first),
            make_week(1, 100.0),
        ),
        # No number at all.
        (make_week(0, None),),
        # The sampling rate of one of the two weeks is unknown.
        (make_sampled_week(0, (None, 100.0)), make_week(1, 100.0)),
        (make_sampled_week(0, (0.5, 10.0), (None, 100.0)), make_week(1, 100.0)),
        (make_week(0, 100.0), make_sampled_week(1, (None, 100.0))),
        # No interval.
        (),
    ],
)
def test_no_change_without_two_whole_intervals(intervals: tuple[ActiveInterval, ...]) -> None:
    """No change is computed unless two whole weeks in a row have a number of devices.

    Reports that are released later, or a week that an epoch cuts short, would look like a change.
    """
    assert make_installations(*intervals).compute_change() is None


def test_the_latest_interval_is_the_last_one_with_a_number() -> None:
    """The latest interval is the last one with a number.

    A newer interval whose reports are not released yet is passed over.
    """
    installations = make_installations(
        make_week(0, 100.0), make_week(1, 110.0), make_week(2, None, is_complete=False)
    )
    assert installations.latest == make_week(1, 110.0)
    change = installations.compute_change()
    assert change is not None
    assert change.ratio == pytest.approx(0.1)


def test_reports_of_an_unknown_rate_are_no_number_of_devices() -> None:
    """If a part of an interval has no known sampling rate, the interval has no number of devices.

    It has a number of reports, and is not the latest interval.
    """
    unknown = make_sampled_week(1, (0.5, 10.0), (None, 30.0))
    assert (unknown.reports, unknown.estimate_devices()) == (40.0, None)
    assert make_installations(make_week(0, 100.0), unknown).latest == make_week(0, 100.0)
    assert make_installations(unknown).latest is None


SAMPLED_WEEKS = dataclasses.replace(
    make_installations(
        make_sampled_week(0, (0.1, 100 / 3), (0.5, 30.0), is_complete=False),
        make_week(1, None),
        make_sampled_week(2, (0.5, 5.0), (None, 7.0)),
    ),
    has_other_pace=True,
)
"""Week 0 has two sampling rates, and a part of it is not released. Week 1 has no report. A part of
week 2 has an unknown sampling rate. Some devices report in another interval."""
RELEASED = ReleasedCounts(
    metric="page", first=MONDAY, last=MONDAY, periods=(), withheld=(), installations=SAMPLED_WEEKS
)


def test_counts_keep_their_installations() -> None:
    """Released counts with installations are read back from their JSON.

    The JSON has the estimate and its error for people, and the sampling rates and reports, from
    which the reader computes both again. A number of reports may be a fraction, and is not rounded:
    a collector releases sums of consecutive days, called blocks, and counts a third of a block in
    each of three intervals that contain its days.
    """
    assert ReleasedCounts.from_json(RELEASED.to_json()) == RELEASED
    assert json.loads(RELEASED.to_json())["installations"] == {
        "metric": "page",
        "unit": "devices that reported",
        "interval": "week",
        "intervals": [
            {
                "from": "2026-11-02",
                "to": "2026-11-08",
                "reports": 100 / 3 + 30,
                "devices": 100 / 3 / 0.1 + 60,
                "std_error": pytest.approx(math.sqrt(100 / 3 * 90 + 60), rel=1e-12),
                "complete": False,
                "parts": [
                    {"sampling_rate": 0.1, "reports": 100 / 3},
                    {"sampling_rate": 0.5, "reports": 30},
                ],
            },
            {
                "from": "2026-11-09",
                "to": "2026-11-15",
                "reports": None,
                "devices": None,
                "std_error": None,
                "complete": True,
                "parts": [],
            },
            {
                "from": "2026-11-16",
                "to": "2026-11-22",
                "reports": 12,
                "devices": None,
                "std_error": None,
                "complete": True,
                "parts": [
                    {"sampling_rate": 0.5, "reports": 5},
                    {"sampling_rate": None, "reports": 7},
                ],
            },
        ],
        "other_intervals": True,
    }
    without = dataclasses.replace(RELEASED, installations=None)
    assert "installations" not in json.loads(without.to_json())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": 3}, "active installations must have a metric and interval"),
        ({"interval": "hour"}, "active installations must have a metric and interval"),
        ({"intervals": 3}, "it is not the counts of a collector"),
        ({"intervals": [{"from": "2026-11-02"}]}, "it is not the counts of a collector"),
    ],
)
def test_wrong_installations_are_refused(changes: dict[str, Any], message: str) -> None:
    """Installations of a wrong form are refused with one sentence."""
    document = json.loads(RELEASED.to_json())
    document["installations"] |= changes
    with pytest.raises(FileError, match=message):
        ReleasedCounts.from_json(json.dumps(document).encode(), name="page.json")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        *(
            ("reports", value, "active installations must be numbers of at least 0")
            for value in (-1, math.inf, math.nan)
        ),
        *(
            ("sampling_rate", value, r"active installations must have sampling rates in \(0, 1]")
            for value in (0, -1, 1.1, math.nan)
        ),
        ("reports", None, "it is not the counts of a collector"),
        ("sampling_rate", "1", "it is not the counts of a collector"),
    ],
)
def test_an_impossible_part_is_refused(key: str, value: object, message: str) -> None:
    """A negative or infinite number of reports, or an impossible sampling rate, is refused.

    Python's reader of JSON also accepts NaN and Infinity.
    """
    document = json.loads(RELEASED.to_json())
    document["installations"]["intervals"][0]["parts"][0][key] = value
    with pytest.raises(FileError, match=message):
        ReleasedCounts.from_json(json.dumps(document).encode())
