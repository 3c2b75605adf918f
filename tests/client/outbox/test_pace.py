"""Pace of the uploads: late reports leave one by one, one in each interval.

A report of an interval gets a random time of the next interval, from which it may be sent. A device
that was offline for days has several such reports. To the collector they must not look like several
reports of one day. So an attempt to send begins a cooldown of its metric: until the end of the
interval, the metric sends no other report. Reports that are a week late are given up.

Uploads leave in two ways, and most tests run for both: the steps of the background sender, and a
flush. The thread of the background sender does not run here. The tests call its steps and move the
clock.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path

import pytest
from devices import Home, Opener, build_metric, peek
from rappor_client import Client, QueueLimits, TransportResponse, UploadError
from rappor_client.periods import HOUR, WEEK, day_of, find_interval_end, get_interval_seconds
from rappor_client.testing import FixedClock, FixedCoins, MemoryTransport, constant_coins

INTERVALS = pytest.mark.parametrize(("interval", "n"), [("day", 9), ("week", 3)])
"""Length of an interval, and the number of intervals for which the device is offline. After 9 days
the first reports are a week late."""
PATHS = pytest.mark.parametrize("is_flush", [False, True], ids=["background", "flush"])
"""Way in which uploads leave."""


def record_offline(open_client: Opener, clock: FixedClock, interval: str, n: int) -> None:
    """Record an event in each of n intervals, by a client without a collector."""
    client = open_client(build_metric(interval=interval), coins=FixedCoins(seed=1))
    for _ in range(n):
        assert client.record("page", "x")
        clock.now += get_interval_seconds(interval)
    client.close()


def send(client: Client, *, is_flush: bool) -> float | None:
    """Send all uploads that may leave now, and return the time of the next upload."""
    if is_flush:
        return client.flush(timeout=2.0).retry_at
    sender = client._get_sender()
    assert sender is not None
    while True:
        step = sender.uploader.step()
        if not step.upload_id:  # nothing more may leave now
            return step.next_at


def send_until_empty(
    client: Client, transport: MemoryTransport, clock: FixedClock, interval: str, *, is_flush: bool
) -> dict[float, dict[str, float]]:
    """Send at all times at which an upload may leave, until no report is queued.

    Returns, for the end of each interval, the ids of the uploads that arrived in the interval, each
    with the time of its first arrival.
    """
    arrivals: dict[float, dict[str, float]] = defaultdict(dict)
    for _ in range(1000):  # a limit for an uploader that never empties the queue
        if not client.queued_count():
            break
        n_bodies = len(transport.bodies)
        next_time = send(client, is_flush=is_flush)
        for body in transport.bodies[n_bodies:]:
            arrivals[find_interval_end(interval, clock())].setdefault(
                json.loads(body)["id"], clock()
            )
        clock.now = max(clock.now, next_time or 0.0)
    return arrivals


@PATHS
@INTERVALS
def test_late_reports_leave_one_by_one(
    interval: str, n: int, is_flush: bool, home: Home, clock: FixedClock, tmp_path: Path
) -> None:
    """One late report leaves in each interval, and reports that are a week late are given up.

    The background sender sends no two reports at the same time of their intervals.
    """
    record_offline(home.open, clock, interval, n)
    transport = MemoryTransport()
    client = home.open(
        build_metric(interval=interval), collector=transport, coins=FixedCoins(seed=2)
    )
    # The report of the last interval is still pending. The next step queues it.
    assert client.queued_count() == n - 1
    send_times = [time for time in peek(tmp_path / "device").send_after if time is not None]
    late = sum(time < clock() - WEEK for time in send_times)
    arrivals = send_until_empty(client, transport, clock, interval, is_flush=is_flush)
    assert {len(ids) for ids in arrivals.values()} == {1}
    counts = {"recorded": n, "accepted": n - late, "given_up": late}
    assert client.event_counts() == counts
    # The background sender waits for a random time of each interval, so no two offsets are equal. A
    # flush sends as soon as the cooldown has ended.
    offsets = {end - arrival for end, ids in arrivals.items() for arrival in ids.values()}
    assert is_flush or len(offsets) == n - late


@PATHS
def test_program_that_seldom_runs_reports_each_time(
    is_flush: bool, home: Home, clock: FixedClock
) -> None:
    """The only report of a program that runs once in 20 days is not given up."""
    transport = MemoryTransport()
    for n_sent in range(4):
        client = home.open(build_metric(interval="day"), collector=transport)
        assert client.record("page", "x")
        send(client, is_flush=is_flush)
        client.close()
        assert len(transport.reports) == n_sent
        clock.advance(days=20)


def test_first_report_has_no_cooldown(home: Home, clock: FixedClock) -> None:
    """The first report of a metric waits for its random time, and for no cooldown."""
    largest_coins = constant_coins(2**32 - 1)  # the latest random time of the next day
    client = home.open(
        build_metric(interval="day"), collector=MemoryTransport(), coins=largest_coins
    )
    client.record("page", "x")
    clock.advance(days=1)
    assert client.queued_count() == 0
    sender = client._get_sender()
    assert sender is not None
    step = sender.uploader.step()
    assert (step.upload_id, step.detail) == ("", "")
    assert step.next_at is not None
    assert step.next_at > clock()


@pytest.mark.slow
@PATHS
@pytest.mark.parametrize("days_between_runs", [2, 9, 40])
def test_month_has_one_report_with_interval_epoch(
    days_between_runs: int, is_flush: bool, home: Home, clock: FixedClock
) -> None:
    """With `interval = "epoch"` no month has two reports.

    A report that could leave only in the next month is given up, and the counter `given_up` grows.
    """
    metric, transport = build_metric(epoch="month", interval="epoch"), MemoryTransport()
    months = []
    for _ in range(0, 240, days_between_runs):
        client = home.open(metric, collector=transport)
        client.record("page", "x")
        n_seen = len(transport.reports)
        send(client, is_flush=is_flush)
        months += [metric.epoch_at(day_of(clock()))] * (len(transport.reports) - n_seen)
        client.close()
        clock.advance(days=days_between_runs)
    assert len(set(months)) == len(months)
    counts = client.event_counts()
    assert counts["recorded"] == len(months) + counts.get("given_up", 0) + client.queued_count()
    # The 240 days touch 9 months. A month has a report if the program runs on or after the random
    # report day of the month, and runs again later in the month to send the report. A program that
    # runs every 40 days never runs twice in a month, so its reports are given up. The other bounds
    # leave room for report days late in the month.
    fewest_reports = {2: 4, 9: 1, 40: 0}
    assert len(months) >= fewest_reports[days_between_runs]
    assert counts.get("given_up", 0) or days_between_runs < 40


@pytest.mark.slow
@pytest.mark.parametrize("hours", [1, 8])
def test_program_of_few_hours_a_day_loses_no_report(
    hours: int, home: Home, clock: FixedClock
) -> None:
    """A program that runs for few hours a day sends its reports when it starts.

    The random time of a report is often outside of these hours.
    """
    start = clock()
    for day in range(60):
        clock.now = start + day * 24 * HOUR
        client = home.open(build_metric(interval="day"), collector=MemoryTransport())
        client.record("page", "x")
        sender = client._get_sender()
        assert sender is not None
        sender._n_backlog = client.queued_count()
        while clock() < (end := start + (day * 24 + hours) * HOUR):
            seconds = sender._step()
            clock.now = end if seconds is None else min(end, clock() + seconds)
        counts = client.event_counts()
        client.close()
    assert counts["recorded"] == 59  # the report of the last day is pending
    assert counts["accepted"] >= 57


def test_failing_uploads_hold_up_no_other_metric(home: Home, clock: FixedClock) -> None:
    """Uploads that always fail hold up no upload of another metric."""
    names = [f"bad{n}" for n in range(5)] + [f"good{n}" for n in range(3)]

    class Refusing(MemoryTransport):
        def send(self, body: bytes, *, timeout: float) -> TransportResponse:
            """Refuse the uploads of the five bad metrics, and accept all others."""
            if b'"bad' in body:
                raise UploadError("refused", retryable=True, status=403)
            return super().send(body, timeout=timeout)

    transport = Refusing()
    client = home.open(*(build_metric(name, interval="day") for name in names), collector=transport)
    for _ in range(20):
        for name in names:
            client.record(name, "x")
        for _ in range(12):
            client.flush(timeout=0.0)
            clock.now += 2 * HOUR
    assert len(transport.reports) >= 3 * 18


@PATHS
def test_each_day_tries_one_upload_while_the_collector_fails(
    is_flush: bool, home: Home, clock: FixedClock
) -> None:
    """While the collector fails for days, each day has attempts for one upload only."""
    record_offline(home.open, clock, "day", 6)
    network_fails = None
    transport = MemoryTransport([network_fails] * 14)
    client = home.open(build_metric(interval="day"), collector=transport, coins=FixedCoins(seed=2))
    arrivals = send_until_empty(client, transport, clock, "day", is_flush=is_flush)
    assert {len(ids) for ids in arrivals.values()} == {1}
    assert len({name for ids in arrivals.values() for name in ids}) == 6
    # The upload of each interval, in order of time. Attempts of one upload follow one another: no
    # upload is tried again after another upload was tried.
    upload_ids = [next(iter(ids)) for _, ids in sorted(arrivals.items())]
    assert len(list(itertools.groupby(upload_ids))) == 6
    assert client.event_counts() == {"recorded": 6, "accepted": 6}


def test_reports_of_two_metrics_do_not_wait_for_each_other(home: Home, clock: FixedClock) -> None:
    """A flush sends one report of each metric, also of metrics that the registry no longer has."""
    metrics = build_metric("page"), build_metric("theme")
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
    client = home.open(build_metric("event"), collector=transport)
    assert client.flush(timeout=2.0).sent == 0
    clock.advance(days=7)
    assert client.flush(timeout=2.0).sent == 2
    assert client.event_counts()["given_up"] == 2


@PATHS
def test_clock_that_is_set_back_ends_no_cooldown(
    is_flush: bool, home: Home, clock: FixedClock
) -> None:
    """A retry by a clock that was set back does not end the cooldown of the first attempt.

    The first attempt fails. The clock is set back by 8 days, and the same upload is sent again.
    One day after the first attempt, in the same week, no other upload may leave.
    """
    clock.set("2026-10-28")
    record_offline(home.open, clock, "week", 3)
    transport = MemoryTransport([None])
    client = home.open(build_metric(interval="week"), collector=transport)
    for days in (-8, 9):
        send(client, is_flush=is_flush)
        clock.advance(days=days)
    send(client, is_flush=is_flush)
    assert len(set(transport.bodies)) == 1 < len(transport.bodies)


def test_clock_that_was_ahead_begins_no_cooldown(home: Home, clock: FixedClock) -> None:
    """An attempt by a clock that was years ahead begins no cooldown.

    The clock is 3 years ahead, then right, then 2 years ahead. By the clock that is 2 years ahead,
    the report of the right time is 2 years late, and still it is not given up.
    """
    transport = MemoryTransport()
    client = home.open(
        build_metric(interval="day"), collector=transport, queue_limits=QueueLimits(reports=9)
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
