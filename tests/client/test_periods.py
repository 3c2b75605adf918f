"""Days, intervals and epochs, compared with a slow walk through the calendar."""

from __future__ import annotations

import datetime

import pytest
from devices import Home, build_metric
from hypothesis import given
from hypothesis import strategies as st
from rappor_client.periods import bound_clock, day_of, find_epoch_days, find_interval_end
from rappor_client.testing import FixedClock

DAYS = st.dates(datetime.date(1970, 1, 5), datetime.date(2100, 1, 1))
"""Draws days from the first Monday after 1970-01-01 on."""
TIMES = st.integers(0, 4_000_000_000)
"""Draws times in seconds since 1970, until the year 2096."""


@given(TIMES)
def test_interval_contains_its_time(now: int) -> None:
    """An interval contains its time. Days begin at midnight (UTC), weeks on Monday."""
    for interval, seconds in (("day", 86400), ("week", 604800)):
        end = find_interval_end(interval, now)
        assert end - seconds <= now < end
        assert find_interval_end(interval, end) == end + seconds
        time = datetime.datetime.fromtimestamp(end, datetime.UTC)
        assert (time.minute, time.second) == (0, 0)
        assert time.hour == 0
        assert interval != "week" or time.isoweekday() == 1


@pytest.mark.parametrize("epoch", ["year", "quarter", "month"])
@given(day=DAYS)
def test_epoch_begins_and_ends_on_its_days(epoch: str, day: datetime.date) -> None:
    """All days of an epoch have its name, the days before and after it have other names."""
    metric = build_metric(epoch=epoch)
    first, end = find_epoch_days(epoch, day)
    assert first <= day <= end
    assert metric.epoch_at(first) == metric.epoch_at(day) == metric.epoch_at(end)
    assert metric.epoch_at(end + datetime.timedelta(days=1)) != metric.epoch_at(end)
    assert metric.epoch_at(first - datetime.timedelta(days=1)) != metric.epoch_at(first)


def test_time_ends_with_the_calendar() -> None:
    """The epoch of the year 9999 ends on the last day of Python's calendar."""
    assert find_epoch_days("year", datetime.date(9999, 5, 1))[1] == datetime.date.max


def test_fixed_clock_moves() -> None:
    """FixedClock starts at a time in UTC, advances and jumps."""
    clock = FixedClock("2026-11-18T12:00:00")
    assert day_of(clock()) == datetime.date(2026, 11, 18)
    clock.advance(hours=-13)
    assert day_of(clock()) == datetime.date(2026, 11, 17)
    clock.set("2027-01-01T00:00:00+01:00")
    assert day_of(clock()) == datetime.date(2026, 12, 31)


@pytest.mark.parametrize(
    ("now", "day"),
    [
        (float("nan"), "1970-01-01"),
        (float("-inf"), "1970-01-01"),
        (-1e9, "1970-01-01"),
        (253402300800.0, "9999-01-01"),  # the first second of the year 10000
        (float("inf"), "9999-01-01"),
        (1_800_000_000.0, "2027-01-15"),
    ],
)
def test_clock_outside_of_the_calendar_is_bounded(now: float, day: str, home: Home) -> None:
    """A clock outside of the calendar is limited, and no method of the client raises.

    Times before 1970 and NaN become 1970-01-01. Times after 9999-01-01 become that day.
    """
    assert day_of(bound_clock(lambda: now)()).isoformat() == day
    metrics = (build_metric(), build_metric("weekly", interval="week", epoch="quarter"))
    client = home.open(*metrics, clock=lambda: now, collector=home.transport)
    for metric in metrics:
        client.record(metric.name, "x")
    client.flush(timeout=0.0)
    assert client.privacy_spent() is not None
    assert len(client.sent_uploads()) == len(home.transport.bodies)
