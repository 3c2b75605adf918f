"""A device that comes back after days lets what waits follow one by one, and no second device's."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path

import pytest
from devices import Home, Opener, metric_of, peek
from rappor_client import Client, QueueLimits, TransportResponse, UploadError
from rappor_client.periods import HOUR, WEEK, day_of, find_interval_end, get_interval_seconds
from rappor_client.testing import FixedClock, FixedCoins, MemoryTransport, constant_coins

INTERVALS = pytest.mark.parametrize(("interval", "n"), [("day", 9), ("week", 3)])
PATHS = pytest.mark.parametrize("is_flush", [False, True], ids=["background", "flush"])


def offline(open_client: Opener, clock: FixedClock, interval: str, n: int) -> None:
    """Record an event in each of n intervals by a client that has no collector."""
    client = open_client(metric_of(interval=interval), coins=FixedCoins(seed=1))
    for _ in range(n):
        assert client.record("page", "x")
        clock.now += get_interval_seconds(interval)
    client.close()


def send(client: Client, *, is_flush: bool) -> float | None:
    """Send what may go now, and return when the next may."""
    if is_flush:
        return client.flush(timeout=2.0).retry_at
    sender = client._get_sender()
    assert sender is not None
    steps = iter(sender.uploader.step, None)
    return next(step.next_at for step in steps if not step.upload_id)


def lived(
    client: Client, transport: MemoryTransport, clock: FixedClock, interval: str, *, is_flush: bool
) -> dict[float, dict[str, float]]:
    """Send whenever that is due; return when which upload first came, by the interval's end."""
    came: dict[float, dict[str, float]] = defaultdict(dict)
    for _ in itertools.takewhile(lambda _: client.queued_count(), range(1000)):
        n_seen = len(transport.bodies)
        due = send(client, is_flush=is_flush)
        for body in transport.bodies[n_seen:]:
            came[find_interval_end(interval, clock())].setdefault(json.loads(body)["id"], clock())
        clock.now = max(clock.now, due or 0.0)
    return came


@PATHS
@INTERVALS
def test_what_waited_for_days_leaves_one_by_one(
    interval: str, n: int, is_flush: bool, home: Home, clock: FixedClock, tmp_path: Path
) -> None:
    """One in an interval; what is a week late is given up and counted, all the rest arrives."""
    offline(home.open, clock, interval, n)
    transport = MemoryTransport()
    client = home.open(metric_of(interval=interval), collector=transport, coins=FixedCoins(seed=2))
    assert client.queued_count() == n - 1  # and the last is held until somebody writes
    dues = [due for due in peek(tmp_path / "device").send_after if due is not None]
    late = sum(due < clock() - WEEK for due in dues)
    came = lived(client, transport, clock, interval, is_flush=is_flush)
    assert {len(ids) for ids in came.values()} == {1}
    counted = {"recorded": n, "accepted": n - late, "given_up": late}
    assert client.event_counts() == counted
    offsets = {end - moment for end, ids in came.items() for moment in ids.values()}
    assert is_flush or len(offsets) == n - late  # no two at the same time of their intervals


@PATHS
def test_a_program_that_is_seldom_used_reports_each_time(
    is_flush: bool, home: Home, clock: FixedClock
) -> None:
    """What waits is weeks late, and the only one."""
    transport = MemoryTransport()
    for n_sent in range(4):
        client = home.open(metric_of(interval="day"), collector=transport)
        assert client.record("page", "x")
        send(client, is_flush=is_flush)
        client.close()
        assert len(transport.reports) == n_sent
        clock.advance(days=20)


def test_a_first_report_is_not_said_to_rest(home: Home, clock: FixedClock) -> None:
    """It waits for its random time alone."""
    late = constant_coins(2**32 - 1)
    client = home.open(metric_of(interval="day"), collector=MemoryTransport(), coins=late)
    client.record("page", "x")
    clock.advance(days=1)
    assert client.queued_count() == 0
    sender = client._get_sender()
    assert sender is not None
    step = sender.uploader.step()
    assert (step.upload_id, step.detail) == ("", "")
    assert step.next_at is not None
    assert step.next_at > clock()


@PATHS
@pytest.mark.parametrize("every", [2, 9, 40])
def test_one_a_month_leaves_where_one_a_month_is_drawn(
    every: int, is_flush: bool, home: Home, clock: FixedClock
) -> None:
    """A report that could leave in the next month only is given up and counted."""
    metric, transport = metric_of(epoch="month", interval="epoch"), MemoryTransport()
    months = []
    for _ in range(0, 240, every):
        client = home.open(metric, collector=transport)
        client.record("page", "x")
        n_seen = len(transport.reports)
        send(client, is_flush=is_flush)
        months += [metric.epoch_at(day_of(clock()))] * (len(transport.reports) - n_seen)
        client.close()
        clock.advance(days=every)
    assert len(set(months)) == len(months)
    counted = client.event_counts()
    assert counted["recorded"] == len(months) + counted.get("given_up", 0) + client.queued_count()
    # A device that comes every 40 days never comes again in the month of an event.
    assert len(months) >= {2: 4, 9: 1, 40: 0}[every]
    assert counted.get("given_up", 0) or every < 40


@pytest.mark.parametrize("hours", [1, 8])
def test_a_program_of_few_hours_a_day_loses_nothing(
    hours: int, home: Home, clock: FixedClock
) -> None:
    """What a random time of its day did not find running goes when the program starts again."""
    start = clock()
    for day in range(60):
        clock.now = start + day * 24 * HOUR
        client = home.open(metric_of(interval="day"), collector=MemoryTransport())
        client.record("page", "x")
        sender = client._get_sender()
        assert sender is not None
        sender._n_backlog = client.queued_count()
        while clock() < (end := start + (day * 24 + hours) * HOUR):
            clock.now = min(end, clock() + (sender._step() or end))
        counted = client.event_counts()
        client.close()
    assert counted["recorded"] == 59  # the last day's is held
    assert counted["accepted"] >= 57


def test_those_that_always_fail_hold_up_no_other(home: Home, clock: FixedClock) -> None:
    """Five metrics that the collector refuses to hear, and three others; flushed all day."""
    names = [f"bad{n}" for n in range(5)] + [f"good{n}" for n in range(3)]

    class Refusing(MemoryTransport):
        def send(self, body: bytes, *, timeout: float) -> TransportResponse:
            if b'"bad' in body:
                raise UploadError("refused", retryable=True, status=403)
            return super().send(body, timeout=timeout)

    transport = Refusing()
    client = home.open(*(metric_of(name, interval="day") for name in names), collector=transport)
    for _ in range(20):
        for name in names:
            client.record(name, "x")
        for _ in range(12):
            client.flush(timeout=0.0)
            clock.now += 2 * HOUR
    assert len(transport.reports) >= 3 * 18


@PATHS
def test_an_attempt_of_a_later_interval_takes_its_place(
    is_flush: bool, home: Home, clock: FixedClock
) -> None:
    """The collector fails for days: in each, one upload is tried, and perhaps again."""
    offline(home.open, clock, "day", 6)
    transport = MemoryTransport([None] * 14)
    client = home.open(metric_of(interval="day"), collector=transport, coins=FixedCoins(seed=2))
    came = lived(client, transport, clock, "day", is_flush=is_flush)
    assert {len(ids) for ids in came.values()} == {1}
    assert len({name for ids in came.values() for name in ids}) == 6
    first = [next(iter(ids)) for _, ids in sorted(came.items())]
    assert first == sorted(first, key=first.index)  # none comes back after another
    assert client.event_counts() == {"recorded": 6, "accepted": 6}


def test_reports_of_two_metrics_do_not_wait_for_each_other(home: Home, clock: FixedClock) -> None:
    """A flush sends one of each; also of what the registry names no more."""
    metrics = metric_of("page"), metric_of("theme")
    transport = MemoryTransport()
    client = home.open(*metrics, collector=transport)
    for _ in range(3):
        for name in ("page", "theme"):
            client.record(name, "x")
        clock.now += 24 * HOUR
    flushed = client.flush(timeout=2.0)
    assert (flushed.sent, flushed.waiting) == (2, 4)
    assert flushed.retry_at == find_interval_end("day", clock())
    assert flushed.detail == "one report of a metric leaves in an interval"
    client.close()
    client = home.open(metric_of("event"), collector=transport)
    assert client.flush(timeout=2.0).sent == 0
    clock.advance(days=7)
    assert client.flush(timeout=2.0).sent == 2
    assert client.event_counts()["given_up"] == 2


@PATHS
def test_a_clock_that_is_set_back_lets_no_second_report_leave(
    is_flush: bool, home: Home, clock: FixedClock
) -> None:
    """A retry in an earlier week takes nothing from the week of the first attempt."""
    clock.set("2026-10-28")
    offline(home.open, clock, "week", 3)
    transport = MemoryTransport([None])
    client = home.open(metric_of(interval="week"), collector=transport)
    for days in (-8, 9):
        send(client, is_flush=is_flush)
        clock.advance(days=days)
    send(client, is_flush=is_flush)
    assert len(set(transport.bodies)) == 1 < len(transport.bodies)


def test_a_clock_that_was_wrong_holds_up_nothing(home: Home, clock: FixedClock) -> None:
    """The last attempt was made years ahead; and what is years late is not given up."""
    transport = MemoryTransport()
    client = home.open(
        metric_of(interval="day"), collector=transport, queue_limits=QueueLimits(reports=9)
    )
    now = clock()
    for year in (3, 0, 2):
        clock.now = now + year * 366 * 24 * HOUR
        client.record("page", "x")
        clock.now += 24 * HOUR
        if year != 0:
            assert client.flush(timeout=1.0).sent == 1
    clock.now += 24 * HOUR
    assert client.flush(timeout=1.0).sent == 1
    assert client.event_counts() == {"recorded": 3, "accepted": 3}
