"""Days, intervals and epochs, against a slow walk through the calendar."""

from __future__ import annotations

import datetime

import pytest
from devices import Home, metric_of
from hypothesis import given
from hypothesis import strategies as st
from rappor_client.periods import bound_clock, day_of, find_epoch_days, find_interval_end
from rappor_client.testing import FixedClock

DAYS = st.dates(datetime.date(1970, 1, 5), datetime.date(2100, 1, 1))
MOMENTS = st.integers(0, 4_000_000_000)


@given(MOMENTS)
def test_intervals_end_after_the_moment_and_begin_no_later(now: int) -> None:
    """Days are UTC's, weeks begin on Monday."""
    for interval, span in (("day", 86400), ("week", 604800)):
        ends = find_interval_end(interval, now)
        assert ends - span <= now < ends
        assert find_interval_end(interval, ends) == ends + span
        moment = datetime.datetime.fromtimestamp(ends, datetime.UTC)
        assert (moment.minute, moment.second) == (0, 0)
        assert moment.hour == 0
        assert interval != "week" or moment.isoweekday() == 1


@pytest.mark.parametrize("epoch", ["year", "quarter", "month"])
@given(day=DAYS)
def test_epoch_begins_and_ends_on_its_days(epoch: str, day: datetime.date) -> None:
    """The days before and after it are in other epochs, and no day between is."""
    metric = metric_of(epoch=epoch)
    first, end = find_epoch_days(epoch, day)
    assert first <= day <= end
    assert metric.epoch_at(first) == metric.epoch_at(day) == metric.epoch_at(end)
    assert metric.epoch_at(end + datetime.timedelta(days=1)) != metric.epoch_at(end)
    assert metric.epoch_at(first - datetime.timedelta(days=1)) != metric.epoch_at(first)


def test_time_ends_with_the_calendar() -> None:
    """The last epoch that Python can write ends on its last day."""
    assert find_epoch_days("year", datetime.date(9999, 5, 1))[1] == datetime.date.max


def test_clock_of_the_tests_moves_as_told() -> None:
    """It starts at a moment in UTC, advances and jumps."""
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
        (253402300800.0, "9999-01-01"),
        (float("inf"), "9999-01-01"),
        (1_800_000_000.0, "2027-01-15"),
    ],
)
def test_clock_that_no_calendar_holds_is_bounded(now: float, day: str, home: Home) -> None:
    """It is a day like another: recording, sending and looking raise nothing."""
    assert day_of(bound_clock(lambda: now)()).isoformat() == day
    metrics = (metric_of(), metric_of("held", interval="week", epoch="quarter"))
    client = home.open(*metrics, clock=lambda: now, collector=home.transport)
    for metric in metrics:
        client.record(metric.name, "x")
    client.flush(timeout=0.0)
    assert client.privacy_spent() is not None
    assert len(client.sent_uploads()) == len(home.transport.bodies)
