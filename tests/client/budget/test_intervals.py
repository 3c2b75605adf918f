"""Intervals and epochs: an interval ends with its epoch, and only the chosen event counts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from devices import CLEAR, Home, locked, metric_of, peek, refusing_disk, response_of, secret_of
from rappor_client import Outcome
from rappor_client.testing import FixedClock, MemoryTransport

from rappor import Metric
from rappor.protocol.params import EPOCHS
from rappor.protocol.parts import Part

HELD = Outcome.RECORDED
REPLACES, STAYS = 0, 2**32 - 1


class Choice:
    """Coins that let the next event replace the one held, or not: the smallest tag stays."""

    def __init__(self) -> None:
        self.u = STAYS

    def __call__(self, n: int) -> Sequence[int]:
        """Return n equal coins; the reports of this module do not depend on them."""
        return [self.u] * n


def metric(epoch: str = "month", interval: str = "day", **fields: Any) -> Metric:
    """Return a metric whose reports show permanent responses."""
    return metric_of(params=CLEAR, epoch=epoch, interval=interval, **fields)


def test_interval_ends_with_its_epoch(home: Home) -> None:
    """A week over the end of a year is two intervals, and each report is of its own epoch."""
    client = home.open(metric("year", "week"), collector=home.transport)
    home.clock.set("2026-12-30T12:00:00")  # a Wednesday
    assert client.record("page", "old") == HELD
    (held,) = peek(home.folder).pending_reports
    home.clock.set("2027-01-01T00:00:00")
    assert held.interval_end == home.clock()
    assert client.record("page", "new") == HELD
    assert client.flush()
    assert len(home.transport.reports) == 1
    home.clock.set("2027-01-03T23:59:59")
    assert client.record("page", "new") == HELD
    assert client.flush()
    assert len(home.transport.reports) == 1
    home.clock.set("2027-01-04T00:00:00")
    assert client.flush()
    shown = [report.bits for report in home.transport.reports]
    secret, told = secret_of(home.folder), {"2026": "old", "2027": "new"}
    assert shown == [response_of(secret, value, epoch=epoch) for epoch, value in told.items()]


def test_interval_of_a_metric_for_life_has_no_epoch_to_end_with(home: Home) -> None:
    """Its week is a whole one."""
    client = home.open(metric("life", "week"), clock=FixedClock("2026-12-30T12:00:00"))
    assert client.record("page", "a") == HELD
    assert peek(home.folder).pending_reports[0].interval_end == FixedClock("2027-01-04")()


@pytest.mark.parametrize("values", ["abcabc", "abbcca"])
def test_only_the_chosen_event_of_the_first_interval_is_memoized(values: str, home: Home) -> None:
    """Three days of two events, for all choices: the first chosen value is in all reports."""
    pairs = [values[i : i + 2] for i in range(0, 6, 2)]
    for number, chosen in enumerate(itertools.product([0, 1], repeat=3)):
        home.clock.set("2026-11-18T12:00:00")
        coins, transport, name = Choice(), MemoryTransport(), str(number)
        settings: dict[str, Any] = {"folder": name, "coins": coins, "collector": transport}
        client = home.open(metric(), **settings)
        expected: list[bytes] = []
        for pair, second in zip(pairs, chosen, strict=True):
            for value, u in zip(pair, (STAYS, REPLACES if second else STAYS), strict=True):
                coins.u = u
                assert client.record("page", value) == HELD
                assert client.queued_count() == len(expected) - len(transport.reports)
            if number % 2:  # the next run settles it as well
                client.close()
                client = home.open(metric(), **settings)
            home.clock.advance(days=1)
            assert client.flush()
            secret = secret_of(home.place / name)
            expected.append(response_of(secret, pairs[0][chosen[0]], epoch="2026-11"))
        assert [report.bits for report in transport.reports] == expected, chosen
        (scope,) = peek(home.place / name).scopes
        assert scope.permanent == expected[0]


def test_part_that_an_earlier_registry_chose_waits_for_no_second_one(home: Home) -> None:
    """Shares and interval change while a report is held: the device answers for one part."""
    whole = (Part("prefix:2", 1e-9), Part("whole"))
    prefix = (Part("prefix:2", 1 - 1e-9), Part("whole"))
    client = home.open(metric("life", parts=whole), collector=home.transport)
    assert client.record("page", "alpha") == HELD
    client.close()
    client = home.open(metric("life", "week", parts=prefix), collector=home.transport)
    home.clock.advance(days=1)
    assert client.record("page", "alpha") == HELD  # drawn before the held one has a scope
    for days in (0, 7):
        home.clock.advance(days=days)
        assert client.flush()
    assert len(home.transport.reports) == 2
    assert len({report.cohort for report in home.transport.reports}) == 1
    assert len(peek(home.folder).scopes) == 1


@pytest.mark.parametrize(("interval", "hours"), [("day", 24), ("week", 168)])
@pytest.mark.parametrize("intervals", [1, 5])
def test_each_interval_has_one_report_however_the_clock_jumps(
    intervals: int, interval: str, hours: int, home: Home
) -> None:
    """Back and forth over the end of a month; by less than an interval, each has one report."""
    its = metric(interval=interval)
    client = home.open(its)
    middle = FixedClock("2026-12-01T00:00:00")()
    entered = set()
    for i in range(1, 120):
        jump = (7919 * i) % 997 / 997 - 0.5  # between halves, evenly
        home.clock.now = middle + 3600 * hours * intervals * jump
        client.record("page", "a")
        client.queued_count()
        entered.add(math.floor(intervals * jump))
    home.clock.set("2027-02-01T00:00:00")
    client.record("page", "a")
    reports = client.queued_count()
    assert reports >= len(entered) == 2 * ((intervals + 1) // 2)
    assert reports == len(entered) or intervals > 1


@pytest.mark.parametrize("before", [None, *EPOCHS])
def test_interval_has_one_report_whatever_epoch_the_registry_says(
    before: str | None, home: Home
) -> None:
    """It changes and changes back within a week, in which each event has another value."""
    for first, second in itertools.product(EPOCHS, repeat=2):
        transport = MemoryTransport()
        home.clock.set("2026-11-09T12:00:00")  # a Monday
        for day, epoch in enumerate([before, first, second, first, second]):
            settings: dict[str, Any] = {"folder": f"{first} {second}", "collector": transport}
            with home.open(metric(epoch or first, "week"), **settings) as client:
                if epoch is not None:
                    assert client.record("page", "abcde"[day]) == HELD
                home.clock.advance(days=1 if day else 7)
                assert client.flush()
        home.clock.advance(days=7)
        with home.open(metric(second, "week"), **settings) as client:
            assert client.flush()
        assert len(transport.reports) == (1 if before is None else 2), (first, second)


@pytest.mark.parametrize("is_failing", [False, True])
def test_held_report_leaves_once_where_the_epoch_has_changed_meanwhile(
    is_failing: bool, home: Home, clock: FixedClock
) -> None:
    """An event of a month is entered after the interval of a year has ended; the disk fails."""
    transport, second = MemoryTransport(), metric_of("second", CLEAR, interval="day")
    client = home.open(metric("year"), second, collector=transport)
    assert client.record("page", "a") == HELD
    assert client.record("second", "a") == HELD
    client.close()
    client = home.open(metric("month"), second, collector=transport)
    clock.advance(days=1)
    assert client.record("page", "b") == HELD
    if is_failing:  # between the state and the spool
        with refusing_disk(home.folder):
            assert not client.flush()
    assert client.flush()
    clock.advance(days=1)
    assert client.flush()
    assert [report.metric for report in transport.reports] == ["page", "second", "page"]
    assert len(transport.bodies) == 3


def test_events_of_two_intervals_leave_once_where_the_disk_fails_in_between(
    home: Home, clock: FixedClock
) -> None:
    """They wait in memory; what is held is on the disk, and what goes with it is not yet."""
    transport, choice, folder = MemoryTransport(), Choice(), home.folder
    client = home.open(metric(), collector=transport, coins=choice)
    client.flush()  # the spool is there
    with locked(folder):
        choice.u = REPLACES
        assert client.record("page", "a") == HELD
        clock.advance(days=1)
        choice.u = STAYS
        assert client.record("page", "b") == HELD
    with refusing_disk(folder):
        assert not client.flush()
    clock.advance(days=1)
    assert client.flush().sent == 1
    clock.advance(days=1)
    assert client.flush()
    assert len(transport.bodies) == len(transport.reports) == 2
    assert len({report.bits for report in transport.reports}) == 1


def test_event_that_takes_no_part_reserves_nothing(home: Home, clock: FixedClock) -> None:
    """The open interval of another epoch takes no further event; the next one does."""
    client = home.open(metric("month"))
    assert client.record("page", "a") == HELD
    reserved = client.privacy_spent().reserved
    client.close()
    client = home.open(metric("year"))
    assert client.record("page", "b") == HELD
    assert client.privacy_spent().reserved == reserved
    clock.advance(days=1)
    assert client.record("page", "b") == HELD
    assert client.privacy_spent().reserved[2026] > reserved[2026]


def test_report_that_waited_in_memory_closes_no_later_interval(home: Home) -> None:
    """It is stored days later: the interval that is open by then is not one of a wrong clock."""
    metric = metric_of(epoch="month", interval="day")
    slow, other = home.open(metric), home.open(metric)
    with locked(home.folder):
        assert slow.record("page", "a") == HELD
        home.clock.advance(days=5)
        assert other.record("page", "a") == HELD
    slow.close()
    assert other.queued_count() == 1  # the first day's
    assert len(peek(home.folder).pending_reports) == 1
