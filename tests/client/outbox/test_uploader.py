"""Spool and uploader: limits, retries under one id, backoff, wrong clocks and failing disks."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from days import build_metrics, finish_days, record_days
from devices import (
    BALANCED,
    Home,
    Opener,
    build_metric,
    open_spool,
    peek,
    refuse_new_rows,
    simulate_full_disk,
    write_events,
)
from rappor_client import Client, FlushReason, Outcome, QueueLimits, SkipReason, TransportResponse
from rappor_client.folder.spool import QueuedUpload
from rappor_client.folder.spool_tables import write_value
from rappor_client.outbox.backoff import find_wait
from rappor_client.testing import FixedClock, MemoryTransport, constant_coins

from rappor.protocol.wire import parse_upload

DAY = 86400.0
LATE = constant_coins(2**32 - 1)
"""With these coins every random wait is as long as possible."""
EARLY = constant_coins(0)
"""With these coins every random wait is 0."""
WIDE = dataclasses.replace(BALANCED, k=2040)
"""Has reports of 255 bytes."""
MONTH = 31 * DAY
"""A wait of so many seconds is longer than any."""


def list_ids(transport: MemoryTransport) -> list[str]:
    """Return the ids of the uploads in the order of arrival."""
    return [json.loads(body)["id"] for body in transport.bodies]


def queue_offline(open_client: Opener, value: str) -> None:
    """Record a value by a client that never sends, and queue its report on the next day."""
    client = open_client(build_metric())
    record_days(client, "page", [value])
    client.close()


def retry_at(folder: Path) -> float:
    """Return the end of the backoff of the only tried upload."""
    (pending,) = peek(folder).tried_uploads
    return pending.backoff_until


def test_upload_contains_one_report(home: Home) -> None:
    """Each upload contains one report under an id of its own, the oldest first.

    The reports are those of the spool, bit for bit.
    """
    client = home.open(*build_metrics(3), collector=home.transport)
    for i in (1, 0, 2):
        record_days(client, f"page{i}", "x")
    waiting = peek(home.folder).queued_reports
    assert client.flush()
    read = [parse_upload(body, client.registry.lookup) for body in home.transport.bodies]
    assert [upload_id for upload_id, _ in read] == list(dict.fromkeys(list_ids(home.transport)))
    assert [reports for _, reports in read] == [[report] for report in waiting]


@pytest.mark.parametrize("status", [400, 409, 413, 415, 422])
def test_permanent_statuses_drop_the_upload(status: int, home: Home) -> None:
    """The upload is dropped and counted, and the next upload leaves in the same flush."""
    transport = MemoryTransport([TransportResponse(status=status)])
    client = home.open(*build_metrics(2), collector=transport)
    for value, name in (("x", "page0"), ("y", "page1")):
        client.record(name, value)
    finish_days(client)
    assert client.flush()
    assert client.event_counts() == {"refused": 1, "accepted": 1, "recorded": 2}
    assert client.sent_uploads()[0].reports[0].status == f"refused: status {status}"


@pytest.mark.parametrize("status", [301, 401, 403, 404, 408, 425, 429, 500, 502, 503, 504])
def test_other_statuses_keep_the_upload(status: int, home: Home) -> None:
    """The upload stays queued, waits for its backoff, and is accepted under the same id."""
    transport = MemoryTransport([TransportResponse(status=status)])
    client = home.open(collector=transport, coins=LATE)
    record_days(client, "page", "x")
    assert not client.flush(timeout=0.0)
    assert client.queued_count() == 1
    assert len(transport.bodies) == 1
    assert retry_at(home.folder) == pytest.approx(home.clock() + 5.0)
    assert client.flush()
    assert list_ids(transport)[0] == list_ids(transport)[1]


def test_a_flush_after_an_outage_sends_all_uploads(home: Home) -> None:
    """A flush ignores the backoff of each upload. Its first result ends the pause of all uploads.

    Both uploads have failed before, and the pause is not over.
    """
    transport = MemoryTransport([None, None])
    client = home.open(*build_metrics(2), collector=transport, coins=LATE)
    for name in ("page0", "page1"):
        client.record(name, "x")
    finish_days(client)
    for _ in range(2):
        assert not client.flush(timeout=0.0)
    assert len(set(list_ids(transport))) == 2
    assert client.flush(timeout=1.0)
    assert len(transport.reports) == 2


def test_backoff_doubles_up_to_an_hour_and_jitters_fully(home: Home) -> None:
    """The backoff is uniform between 0 and 5 s times 2^(attempts - 1), at most an hour.

    The largest coin gives the upper limit, and the smallest coin gives 0.
    """
    transport = MemoryTransport([None] * 40)
    client = home.open(collector=transport, coins=LATE)
    record_days(client, "page", "x")
    waits = []
    for _ in range(14):
        client.flush(timeout=0.0)
        waits.append(retry_at(home.folder) - home.clock())
        home.clock.now = retry_at(home.folder)
    expected = [min(5.0 * 2**i, 3600.0) for i in range(14)]
    assert waits == pytest.approx(expected, rel=1e-6)
    client.close()
    early = home.open(collector=transport, coins=EARLY)
    assert not early.flush(timeout=0.0)
    assert len(transport.bodies) == 15
    assert retry_at(home.folder) == home.clock()


@pytest.mark.parametrize(
    ("backoff", "pause", "retry_after", "wait"),
    [
        (30, 60, 0, 60),
        (60, 30, 0, 60),
        (MONTH, 60, 0, 60),
        (60, MONTH, 0, 60),
        (60, 30, MONTH, 60),
        (MONTH, MONTH, 60, 60),
        (MONTH, MONTH, MONTH, None),
    ],
)
def test_a_wait_of_a_wrong_clock_does_not_end_another_wait(
    home: Home, backoff: float, pause: float, retry_after: float, wait: float | None
) -> None:
    """The backoff, the pause of all uploads and Retry-After end by themselves.

    The numbers are seconds from now. No wait is longer than a day. So a wait of a month was set
    before the clock was set back by a month, and is ignored.
    """
    now = home.clock()
    client = home.open()
    record_days(client, "page", "x")
    upload = QueuedUpload("id", "page", b"", attempts=1, backoff_until=now + backoff)
    with open_spool(home.folder) as db:
        write_value(db, "pause_until", now + pause)
        write_value(db, "retry_after_until", now + retry_after)
        step = find_wait(db, upload, now, ignore_backoff=False, ignore_pause=False)
    assert (step and step.next_at) == (wait and now + wait)


def test_each_report_has_a_status_of_its_own(home: Home) -> None:
    """A refused report has the reason of the collector as its status, and is not sent again.

    A reason with other characters than letters and digits is not shown. Counters contain no
    reasons, so their number is bounded.
    """
    statuses = [
        {"status": "accepted"},
        {"status": "refused", "reason": "unknown metric"},
        {"status": "refused", "reason": "<script>" * 100},
    ]
    responses = [
        TransportResponse(status=200, body=json.dumps({"reports": [status]}).encode())
        for status in statuses
    ]
    client = home.open(
        *(build_metric(name) for name in "abc"), collector=MemoryTransport(responses)
    )
    for name in "abc":
        client.record(name, "x")
    finish_days(client)
    assert client.flush()
    assert [upload.reports[0].status for upload in client.sent_uploads()] == [
        "accepted",
        "refused: unknown metric",
        "refused: no reason given",
    ]
    assert client.event_counts() == {
        "accepted": 1,
        "recorded": 3,
        "refused": 2,
    }


def test_upload_is_given_up_seven_days_after_its_first_attempt(home: Home) -> None:
    """The time before the first attempt does not count."""
    transport = MemoryTransport([None, None])
    queue_offline(home.open, "x")
    client = home.open(collector=transport, coins=EARLY)
    home.clock.advance(days=30)
    assert not client.flush(timeout=0.0)
    home.clock.advance(days=7)
    assert not client.flush(timeout=0.0)
    assert client.queued_count() == 1
    home.clock.advance(seconds=1)
    queue_offline(home.open, "y")
    assert client.flush()
    assert client.event_counts()["given_up"] == 1
    assert client.event_counts()["accepted"] == 1
    assert len(set(list_ids(transport))) == 2


@pytest.mark.parametrize("bound", ["reports", "n_bytes"])
def test_spool_is_bounded(bound: str, home: Home) -> None:
    """Number and bytes of the queued reports are limited, and the oldest reports are dropped."""
    queue_offline(home.open, "x")
    with open_spool(home.folder) as db:
        (length,) = db.execute("SELECT LENGTH(body) FROM report").fetchone()
    client = home.open(queue_limits=QueueLimits(**{bound: 3 * length if bound == "n_bytes" else 3}))
    recorded = []
    for _ in range(11):
        record_days(client, "page", "x")
        recorded.append(peek(home.folder).queued_reports[-1].bits)
    assert [report.bits for report in peek(home.folder).queued_reports] == recorded[-3:]
    assert client.event_counts()["dropped_full"] == 9


def test_log_contains_every_tried_upload(home: Home) -> None:
    """The log contains day, bytes and parameters of every upload that was tried.

    It contains no upload before its first attempt.
    """
    transport = MemoryTransport([None])
    metric = build_metric()
    queue_offline(home.open, "x")
    client = home.open(metric, collector=transport, coins=EARLY)
    assert client.sent_uploads() == []
    assert not client.flush(timeout=0.0)
    (sent,) = client.sent_uploads()
    assert (sent.day, sent.attempts) == ("2026-11-19", 1)
    assert sent.reports[0].status == "unanswered"
    home.clock.advance(days=1)
    assert client.flush()
    (sent,) = client.sent_uploads()
    assert (sent.day, sent.attempts) == ("2026-11-19", 2)
    assert sent.body == transport.bodies[0]
    (report,) = sent.reports
    assert report.params == metric.params
    assert report.bits == transport.reports[0].bits
    assert report.status == "accepted"


def test_log_is_limited(home: Home) -> None:
    """The oldest finished uploads beyond the limit are deleted, and queued uploads stay."""
    limits, metrics = QueueLimits(log=3), build_metrics(7)
    client = home.open(*metrics, collector=MemoryTransport(), queue_limits=limits)
    for n in (7, 1):
        for metric in metrics[:n]:
            client.record(metric.name, "x")
        finish_days(client)
        assert client.flush()
    assert len(client.sent_uploads()) <= 4


# Failing uploads, dead processes and wrong clocks


class FailingForOne(MemoryTransport):
    """A collector that responds 500 to one upload, the first that it receives."""

    def send(self, body: bytes, *, timeout: float) -> TransportResponse:
        """Respond 500 to the first upload, and accept all other uploads."""
        if body == (self.bodies or [body])[0]:
            self.bodies.append(body)
            return TransportResponse(status=500)
        return super().send(body, timeout=timeout)


def test_upload_that_always_fails_does_not_block_the_others(home: Home) -> None:
    """All other uploads leave in the same flush, and the failing upload stays queued."""
    transport, metrics = FailingForOne(), build_metrics(5)
    client = home.open(*metrics, collector=transport, coins=LATE)
    for metric in metrics:
        client.record(metric.name, "x")
    finish_days(client)
    assert not client.flush(timeout=0.5)
    assert len(transport.reports) == 4
    assert client.queued_count() == 1
    record_days(client, "page1", "x")
    assert not client.flush(timeout=0.5)
    assert len(transport.reports) == 5
    assert client.queued_count() == 1
    assert transport.bodies.count(transport.bodies[0]) == 2


def test_failing_collector_gets_fewer_and_fewer_requests(home: Home) -> None:
    """With 100 queued reports, a day of failures has fewer than 100 requests."""
    transport = MemoryTransport([TransportResponse(status=500)] * 10_000)
    metrics = build_metrics(100)
    client = home.open(*metrics, collector=transport, coins=LATE)
    for metric in metrics:
        client.record(metric.name, "x")
    finish_days(client, days=2)  # the send_after of all reports has passed
    sender = client._get_sender()
    assert sender is not None
    end = home.clock() + DAY
    while (next_at := sender.uploader.step().next_at) is not None and next_at < end:
        home.clock.now = max(next_at, home.clock())
    assert 24 <= len(transport.bodies) < 100
    assert client.queued_count() == 100
    transport.script.clear()
    home.clock.advance(hours=2)
    assert client.flush()
    assert len(transport.reports) == 100


def claim_upload(client: Client, clock: FixedClock) -> None:
    """Claim an upload, as a step does before it sends the upload."""
    sender, writer = client._get_sender(), client._writer
    assert sender is not None
    assert writer is not None
    claimed = writer.run(
        lambda db: sender.uploader._claim(db, clock(), (), is_backlog=False),
        lock_seconds=1.0,
    )
    assert isinstance(claimed, QueuedUpload)


@pytest.mark.parametrize("days_ahead", [0, 1000])
def test_claim_of_a_dead_process_ends_soon(days_ahead: int, home: Home) -> None:
    """The claim of a dead process ends after two seconds.

    A claim by a clock that was ahead does not count at all.
    """
    home.clock.advance(days=days_ahead)
    dying = home.open(collector=MemoryTransport())
    record_days(dying, "page", "x")
    claim_upload(dying, home.clock)  # the process ends here
    home.clock.advance(days=-days_ahead)
    client = home.open(collector=MemoryTransport())
    if not days_ahead:
        assert client.flush(timeout=0.0).reason is FlushReason.BUSY
        home.clock.advance(seconds=2)
    assert client.flush(timeout=0.0).reason is FlushReason.SENT


@pytest.mark.parametrize(
    "wrong", ["1970-01-01T00:00:07", "2027-12-23T12:00:00", "2029-11-18T12:00:00"]
)
def test_first_attempt_by_a_wrong_clock_gives_nothing_up(wrong: str, home: Home) -> None:
    """The week until an upload is given up starts again when the clock is right."""
    right = home.clock()
    home.clock.set(wrong)
    transport = MemoryTransport([None, None])
    client = home.open(collector=transport, coins=EARLY)
    record_days(client, "page", "x")
    for now, n_bodies in ((home.clock(), 1), (right, 2), (right + 6 * DAY, 3)):
        home.clock.now = now
        # While the writer commits, a flush of 0 s sends nothing.
        while len(transport.bodies) < n_bodies:
            client.flush(timeout=0.0)
    assert client.event_counts() == {"accepted": 1, "recorded": 1}


def test_random_wait_of_a_clock_that_was_ahead_is_cut_to_a_week(home: Home) -> None:
    """A send_after in another year is replaced by the time in a week."""
    client = home.open(build_metric(interval="week"), collector=home.transport, coins=LATE)
    home.clock.advance(days=1000)
    client.record("page", "x")
    home.clock.advance(days=7)
    client.record("page", "x")  # ends the first week, so its report gets a send_after in the second
    home.clock.advance(days=-1007)
    sender = client._get_sender()
    assert sender is not None
    assert not sender.uploader.step().is_attempt
    home.clock.advance(days=7)
    assert sender.uploader.step().is_attempt


# Failing disks


@pytest.mark.parametrize(
    "failing_disk", [simulate_full_disk, partial(refuse_new_rows, table="held")]
)
def test_failing_disk_does_not_reach_the_host(
    failing_disk: Callable[[Path], contextlib.AbstractContextManager[None]],
    home: Home,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A failing disk leads to a counter and a log line without a value.

    The events in memory are written when the disk works again.
    """
    metrics = (
        build_metric(),
        *build_metrics(100, params=WIDE),
        build_metric("durable", durable=True),
    )
    client = home.open(*metrics, collector=MemoryTransport())
    record_days(client, "page", ["first"])
    assert client.queued_count() == 1
    with failing_disk(home.folder):
        outcomes = [client.record(f"page{i}", f"telltale {i}") for i in range(100)]
        assert client.record("durable", "telltale") == Outcome.FAILED
        write_events(client)
    assert set(outcomes) == {Outcome.RECORDED}
    assert "telemetry failed in" in caplog.text
    assert "telltale" not in caplog.text
    finish_days(client)
    assert client.queued_count() == 102
    assert client.event_counts()["failures"] >= 1


def test_folder_that_cannot_be_created_does_not_reach_the_host(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """A file in place of the folder disables the client, with one log line."""
    (home.folder).write_text("in the way")
    client = home.open(collector=MemoryTransport())
    assert client.disabled_reason == "the folder cannot be used: File exists (EEXIST)"
    assert client.record("page", "x").reason is SkipReason.DISABLED
    assert caplog.text.count("telemetry is disabled in") == 1
    assert client.flush(timeout=0.0).reason is FlushReason.FAILED
