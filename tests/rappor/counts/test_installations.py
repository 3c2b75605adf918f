"""Active installations: intervals, estimates, changes, and the JSON of a collector."""

from __future__ import annotations

import dataclasses
import datetime
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
from rappor.counts.installations import ActiveInterval, Installations
from rappor.counts.released_counts import ReleasedCounts
from rappor.counts.squared_reports import count_max_reports, is_same_interval

PACES = st.sampled_from(["day", "week", "month", "quarter", "year"])
EPOCHS = st.sampled_from(["life", "year", "quarter", "month"])
DAYS = st.dates(datetime.date(2020, 1, 1), datetime.date(2031, 12, 31))
MONDAY = datetime.date(2026, 11, 2)


def week(number: int, reports: float | None, *, is_complete: bool = True) -> ActiveInterval:
    """Return a whole week, counted from the week of 2 November 2026."""
    first = MONDAY + datetime.timedelta(days=7 * number)
    last = first + datetime.timedelta(days=6)
    return ActiveInterval(first=first, last=last, reports=reports, is_complete=is_complete)


def weekly(*intervals: ActiveInterval, sampling_rate: float = 1.0) -> Installations:
    """Return the active installations of a weekly metric."""
    return Installations(
        metric="page",
        pace="week",
        sampling_rate=sampling_rate,
        intervals=intervals,
        has_other_pace=False,
    )


@given(pace=PACES, epoch=EPOCHS, first=DAYS, n_days=st.integers(0, 500))
def test_intervals_are_those_of_the_bound_on_repeated_reports(
    pace: str, epoch: str, first: datetime.date, n_days: int
) -> None:
    """The rule for intervals exists twice, by days and by numbers, and both agree on any range."""
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
    """1 January 2027 is a Friday, so the week has four days in 2026 and three days in 2027."""
    days = [datetime.date(2026, 12, 28), datetime.date(2027, 1, 1)]
    assert [find_interval("week", "year", day) for day in days] == [
        (datetime.date(2026, 12, 28), datetime.date(2026, 12, 31)),
        (datetime.date(2027, 1, 1), datetime.date(2027, 1, 3)),
    ]


def test_without_sampling_the_reports_are_the_devices() -> None:
    """The change has no error either, because every device takes part."""
    installations = weekly(week(0, 1000.0), week(1, 1030.0))
    latest = installations.latest
    assert latest is not None
    assert installations.estimate_devices(latest) == (1030.0, 0.0)
    change = installations.compute_change()
    assert change is not None
    assert (change.before, change.std_error) == (week(0, 1000.0), 0.0)
    assert change.ratio == pytest.approx(0.03, rel=1e-12)


@pytest.mark.parametrize("share", [0.01, 0.25, 0.9])
def test_the_error_of_sampled_devices_is_that_of_the_binomial(share: float) -> None:
    """The estimated number of D devices, and the square of its standard error, are unbiased.

    Each of D devices reports with the probability `share`. The mean of the estimated number is D.
    The mean of the squared standard error is the variance of the estimated number. Both means are
    exact sums over the binomial distribution of the number of reports.
    """
    n_devices = 400
    numbers = np.arange(n_devices + 1)
    probability = stats.binom.pmf(numbers, n_devices, share)
    estimates = [
        weekly(interval, sampling_rate=share).estimate_devices(interval)
        for interval in (week(0, float(number)) for number in numbers)
    ]
    devices, errors = np.array(estimates).T
    assert probability @ devices == pytest.approx(n_devices, rel=1e-9)
    variance = probability @ (devices - n_devices) ** 2
    assert probability @ errors**2 == pytest.approx(variance, rel=1e-9)


def test_the_error_of_a_change_is_that_of_two_binomials() -> None:
    """The exact standard deviation of N' / N, from the joint distribution, differs by under 1 %."""
    share, before, after = 0.2, 20_000, 25_000
    first, second = (np.arange(int(n * share) - 400, int(n * share) + 401) for n in (before, after))
    weight = np.outer(stats.binom.pmf(first, before, share), stats.binom.pmf(second, after, share))
    assert weight.sum() == pytest.approx(1, abs=1e-9)
    ratio = second[None, :] / first[:, None]
    mean = (weight * ratio).sum()
    exact = math.sqrt((weight * (ratio - mean) ** 2).sum())
    change = weekly(
        week(0, before * share), week(1, after * share), sampling_rate=share
    ).compute_change()
    assert change is not None
    assert change.ratio == pytest.approx(0.25)
    assert change.std_error == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize(
    "intervals",
    [
        (week(0, 100.0),),
        (week(0, None), week(1, 100.0)),
        (week(0, 0.0), week(1, 100.0)),
        (week(0, 100.0, is_complete=False), week(1, 100.0)),
        (week(0, 100.0), week(1, 100.0, is_complete=False)),
        (week(0, 100.0), dataclasses.replace(week(1, 90.0), last=week(1, 90.0).first)),
        (dataclasses.replace(week(0, 90.0), last=week(0, 90.0).first), week(1, 100.0)),
        (week(0, None),),
        (),
    ],
)
def test_no_change_without_two_whole_intervals(intervals: tuple[ActiveInterval, ...]) -> None:
    """A part that is released later, or a week that an epoch cuts, would look like a change."""
    assert weekly(*intervals).compute_change() is None


def test_the_latest_interval_is_the_last_one_with_a_number() -> None:
    """A newer interval of which nothing is released has no number."""
    installations = weekly(week(0, 100.0), week(1, 110.0), week(2, None, is_complete=False))
    assert installations.latest == week(1, 110.0)
    change = installations.compute_change()
    assert change is not None
    assert change.ratio == pytest.approx(0.1)


SAMPLED = dataclasses.replace(
    weekly(week(0, 100 / 3, is_complete=False), week(1, None), sampling_rate=0.1),
    has_other_pace=True,
)
RELEASED = ReleasedCounts(
    metric="page", first=MONDAY, last=MONDAY, periods=(), withheld=(), installations=SAMPLED
)


def test_counts_keep_their_installations() -> None:
    """The JSON has the estimate for people, and the number of reports, from which it is computed.

    A third of a block is not rounded.
    """
    assert ReleasedCounts.from_json(RELEASED.to_json()) == RELEASED
    assert json.loads(RELEASED.to_json())["installations"] == {
        "metric": "page",
        "unit": "devices that reported",
        "interval": "week",
        "sampling_rate": 0.1,
        "intervals": [
            {
                "from": "2026-11-02",
                "to": "2026-11-08",
                "reports": 100 / 3,
                "devices": 100 / 3 / 0.1,
                "std_error": math.sqrt(100 / 3 * 0.9) / 0.1,
                "complete": False,
            },
            {
                "from": "2026-11-09",
                "to": "2026-11-15",
                "reports": None,
                "devices": None,
                "std_error": None,
                "complete": True,
            },
        ],
        "other_intervals": True,
    }
    without = dataclasses.replace(RELEASED, installations=None)
    assert "installations" not in json.loads(without.to_json())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": 3}, "active installations must have a metric, interval and share"),
        ({"interval": "hour"}, "active installations must have a metric, interval and share"),
        ({"sampling_rate": 0}, "active installations must have a metric, interval and share"),
        ({"sampling_rate": "1"}, "it is not the counts of a collector"),
        ({"intervals": 3}, "it is not the counts of a collector"),
        ({"intervals": [{"from": "2026-11-02"}]}, "it is not the counts of a collector"),
    ],
)
def test_wrong_installations_are_refused(changes: dict[str, Any], message: str) -> None:
    """The message is one sentence with the name of the file."""
    document = json.loads(RELEASED.to_json())
    document["installations"] |= changes
    with pytest.raises(FileError, match=message):
        ReleasedCounts.from_json(json.dumps(document).encode(), name="page.json")


@pytest.mark.parametrize("reports", [-1, math.inf, math.nan])
def test_an_impossible_number_is_refused(reports: float) -> None:
    """Python's JSON also has infinite numbers."""
    document = json.loads(RELEASED.to_json())
    document["installations"]["intervals"][0]["reports"] = reports
    with pytest.raises(FileError, match="active installations must be numbers of at least 0"):
        ReleasedCounts.from_json(json.dumps(document).encode())
