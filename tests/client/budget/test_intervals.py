"""Intervals of the client: each has one report, of an event that is chosen uniformly.

The client draws a random tag for each event. The event with the smallest tag of an interval is
reported when the interval is over. The permanent response to the first reported event is memoized.
All later intervals of the epoch repeat it. The clock begins at noon of Wednesday, 2026-11-18.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from devices import (
    CLEAR,
    Home,
    build_metric,
    compute_response,
    hold_folder_lock,
    peek,
    read_secret,
    refuse_new_rows,
    write_events,
)
from rappor_client import Outcome
from rappor_client.testing import FixedClock, MemoryTransport

from rappor import Metric
from rappor.protocol.params import EPOCHS
from rappor.protocol.parts import Part

RECORDED = Outcome.RECORDED
REPLACES, STAYS = 0, 2**32 - 1
"""The smallest and the largest coin. An event whose tag is smallest replaces a pending report with
a larger tag. An event whose tag is largest leaves the pending report as it is."""


class Choice:
    """Coins with which a test chooses whether the next event replaces the pending report.

    The coins of an event are its tag, and the smallest tag wins.
    """

    def __init__(self) -> None:
        self.u = STAYS

    def __call__(self, n: int) -> Sequence[int]:
        """Return n equal coins. The reports of this module do not depend on coins."""
        return [self.u] * n


def metric(epoch: str = "month", interval: str = "day", **fields: Any) -> Metric:
    """Return the metric `page`, whose reports equal their permanent responses."""
    return build_metric(params=CLEAR, epoch=epoch, interval=interval, **fields)


def test_interval_ends_with_its_epoch(home: Home) -> None:
    """A week over the end of a year is two intervals, and each has a report of its own epoch."""
    client = home.open(metric("year", "week"), collector=home.transport)
    home.clock.set("2026-12-30T12:00:00")  # a Wednesday
    assert client.record("page", "old") == RECORDED
    (pending,) = peek(home.folder).pending_reports
    home.clock.set("2027-01-01T00:00:00")
    assert pending.interval_end == home.clock()
    assert client.record("page", "new") == RECORDED
    assert client.flush()
    assert len(home.transport.reports) == 1
    home.clock.set("2027-01-03T23:59:59")
    assert client.record("page", "new") == RECORDED
    assert client.flush()
    assert len(home.transport.reports) == 1
    home.clock.set("2027-01-04T00:00:00")
    assert client.flush()
    sent_bits = [report.bits for report in home.transport.reports]
    secret, values = read_secret(home.folder), {"2026": "old", "2027": "new"}
    assert sent_bits == [
        compute_response(secret, value, epoch=epoch) for epoch, value in values.items()
    ]


def test_week_of_a_metric_for_life_ends_on_monday(home: Home) -> None:
    """A week of a metric for life ends on Monday, also over the end of a year."""
    client = home.open(metric("life", "week"), clock=FixedClock("2026-12-30T12:00:00"))
    assert client.record("page", "a") == RECORDED
    assert peek(home.folder).pending_reports[0].interval_end == FixedClock("2027-01-04")()


@pytest.mark.parametrize("values", ["abcabc", "abbcca"])
def test_only_the_chosen_event_of_the_first_interval_is_memoized(values: str, home: Home) -> None:
    """The first chosen value is in all reports, for every choice among two events on three days."""
    pairs = [values[i : i + 2] for i in range(0, 6, 2)]  # the two values of each day
    for number, chosen in enumerate(itertools.product([0, 1], repeat=3)):
        home.clock.set("2026-11-18T12:00:00")
        coins, transport, name = Choice(), MemoryTransport(), str(number)
        settings: dict[str, Any] = {"folder": name, "coins": coins, "collector": transport}
        client = home.open(metric(), **settings)
        expected: list[bytes] = []
        for pair, second in zip(pairs, chosen, strict=True):
            for value, u in zip(pair, (STAYS, REPLACES if second else STAYS), strict=True):
                coins.u = u
                assert client.record("page", value) == RECORDED
                assert client.queued_count() == len(expected) - len(transport.reports)
            if number % 2:  # a new run of the program decides the interval as well
                client.close()
                client = home.open(metric(), **settings)
            home.clock.advance(days=1)
            assert client.flush()
            secret = read_secret(home.parent / name)
            # The choices of the second and third day change nothing: the scope is memoized.
            expected.append(compute_response(secret, pairs[0][chosen[0]], epoch="2026-11"))
        assert [report.bits for report in transport.reports] == expected, chosen
        (scope,) = peek(home.parent / name).scopes
        assert scope.permanent == expected[0]


def test_device_reports_one_part_under_changed_shares(home: Home) -> None:
    """A device reports one part, also if shares and interval change while a report is pending."""
    # The first registry lets nearly all devices report the whole string, the second one the prefix.
    whole = (Part("prefix:2", 1e-9), Part("whole"))
    prefix = (Part("prefix:2", 1 - 1e-9), Part("whole"))
    client = home.open(metric("life", parts=whole), collector=home.transport)
    assert client.record("page", "alpha") == RECORDED
    client.close()
    client = home.open(metric("life", "week", parts=prefix), collector=home.transport)
    home.clock.advance(days=1)
    assert client.record("page", "alpha") == RECORDED  # drawn while no scope is memoized
    for days in (0, 7):
        home.clock.advance(days=days)
        assert client.flush()
    assert len(home.transport.reports) == 2
    assert len({report.cohort for report in home.transport.reports}) == 1
    assert len(peek(home.folder).scopes) == 1


@pytest.mark.parametrize(("interval", "hours"), [("day", 24), ("week", 168)])
@pytest.mark.parametrize("intervals", [1, 5])
def test_each_interval_has_one_report_under_a_jumping_clock(
    intervals: int, interval: str, hours: int, home: Home
) -> None:
    """A clock jumps 119 times over the end of a month, and each interval has one report.

    If it jumps back by more than an interval, an interval may have a second report.
    """
    client = home.open(metric(interval=interval))
    middle = FixedClock("2026-12-01T00:00:00")()
    intervals_with_events = set()
    for i in range(1, 120):
        # 997 is prime, so the 119 jumps differ. They are spread evenly over [-.5, .5).
        jump = (7919 * i) % 997 / 997 - 0.5
        home.clock.now = middle + 3600 * hours * intervals * jump
        client.record("page", "a")
        write_events(client)
        intervals_with_events.add(math.floor(intervals * jump))
    home.clock.set("2027-02-01T00:00:00")
    client.record("page", "a")
    reports = client.queued_count()
    # The jumps reach (intervals + 1) // 2 intervals on both sides of the end of the month.
    assert reports >= len(intervals_with_events) == 2 * ((intervals + 1) // 2)
    assert reports == len(intervals_with_events) or intervals > 1


@pytest.mark.slow
@pytest.mark.parametrize("before", [None, *EPOCHS])
def test_interval_has_one_report_under_changed_epochs(before: str | None, home: Home) -> None:
    """A week has one report, also if the registry changes the epoch and changes it back.

    Each event has another value, so a second report would show.
    """
    for first, second in itertools.product(EPOCHS, repeat=2):
        transport = MemoryTransport()
        home.clock.set("2026-11-09T12:00:00")  # a Monday
        for day, epoch in enumerate([before, first, second, first, second]):
            settings: dict[str, Any] = {"folder": f"{first} {second}", "collector": transport}
            with home.open(metric(epoch or first, "week"), **settings) as client:
                if epoch is not None:
                    assert client.record("page", "abcde"[day]) == RECORDED
                home.clock.advance(days=1 if day else 7)
                assert client.flush()
        home.clock.advance(days=7)
        with home.open(metric(second, "week"), **settings) as client:
            assert client.flush()
        assert len(transport.reports) == (1 if before is None else 2), (first, second)


@pytest.mark.parametrize("is_failing", [False, True])
def test_pending_report_leaves_once_after_a_change_of_the_epoch(
    is_failing: bool, home: Home, clock: FixedClock
) -> None:
    """A pending report of a year leaves once after the registry has changed to months.

    In the second case the disk fails between the write of the state and the write of the spool.
    """
    transport, second = MemoryTransport(), build_metric("second", CLEAR, interval="day")
    client = home.open(metric("year"), second, collector=transport)
    assert client.record("page", "a") == RECORDED
    assert client.record("second", "a") == RECORDED
    client.close()
    client = home.open(metric("month"), second, collector=transport)
    clock.advance(days=1)
    assert client.record("page", "b") == RECORDED
    if is_failing:
        with refuse_new_rows(home.folder):
            assert not client.flush()
    assert client.flush()
    clock.advance(days=1)
    assert client.flush()
    assert [report.metric for report in transport.reports] == ["page", "second", "page"]
    assert len(transport.bodies) == 3


def test_events_of_two_intervals_leave_once_after_a_failure_of_the_disk(
    home: Home, clock: FixedClock
) -> None:
    """Two events of two days leave once each, although the disk fails between state and spool.

    The events wait in memory and are entered again after the failure.
    """
    transport, choice, folder = MemoryTransport(), Choice(), home.folder
    client = home.open(metric(), collector=transport, coins=choice)
    client.flush()  # creates the spool
    with hold_folder_lock(folder):
        choice.u = REPLACES
        assert client.record("page", "a") == RECORDED
        clock.advance(days=1)
        choice.u = STAYS
        assert client.record("page", "b") == RECORDED
    with refuse_new_rows(folder):
        assert not client.flush()
    clock.advance(days=1)
    assert client.flush().sent == 1
    clock.advance(days=1)
    assert client.flush()
    assert len(transport.bodies) == len(transport.reports) == 2
    assert len({report.bits for report in transport.reports}) == 1


def test_event_without_an_interval_reserves_nothing(home: Home, clock: FixedClock) -> None:
    """An event reserves no budget if the open interval of another epoch takes no further event."""
    client = home.open(metric("month"))
    assert client.record("page", "a") == RECORDED
    reserved = client.privacy_spent().reserved
    client.close()
    client = home.open(metric("year"))
    assert client.record("page", "b") == RECORDED
    assert client.privacy_spent().reserved == reserved
    clock.advance(days=1)
    assert client.record("page", "b") == RECORDED
    assert client.privacy_spent().reserved[2026] > reserved[2026]


def test_late_write_ends_no_later_interval(home: Home) -> None:
    """A report that was written five days late does not end the interval that is open then."""
    metric = build_metric(epoch="month", interval="day")
    late, punctual = home.open(metric), home.open(metric)
    with hold_folder_lock(home.folder):
        assert late.record("page", "a") == RECORDED
        home.clock.advance(days=5)
        assert punctual.record("page", "a") == RECORDED
    late.close()
    assert punctual.queued_count() == 1  # the report of the first day
    assert len(peek(home.folder).pending_reports) == 1
