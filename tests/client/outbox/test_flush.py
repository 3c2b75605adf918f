"""Flush of the client: one attempt at once, and the reason why the flush ended.

`Client.flush` sends the queued reports within a timeout. Its first attempt ignores the backoff, the
random wait after an earlier failure. It never ignores Retry-After, the wait that a collector asks
for. In the scripts of `MemoryTransport`, None stands for a network that fails.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from typing import Any

import pytest
from days import build_metrics, finish_days
from devices import Home, Opener, build_metric, find_spool, hold_folder_lock
from rappor_client import Client, FlushReason, FlushResult, TransportResponse
from rappor_client.folder.identity_folder import BUSY_SECONDS
from rappor_client.folder.spool import CLAIM_SECONDS
from rappor_client.testing import MemoryTransport, constant_coins

from rappor import ParamsError

LATE = constant_coins(2**32 - 1)
"""With these coins every random wait is as long as possible."""
NEXT_ATTEMPT = "; the next attempt is planned for 2026-11-19 12:00:05 UTC"
"""Ends the sentence of a flush after a failure. The next attempt waits for the longest first
backoff, 5 s after noon of the day after the event."""
BAD, BUSY, INCOMPLETE = (
    TransportResponse(status=400),
    TransportResponse(status=503),
    TransportResponse(status=200, body=b"{"),
)
"""Responses that end an attempt without an accepted report: BAD drops the report, and the others
leave it queued."""


def open_with_queued_reports(
    open_client: Opener, transport: MemoryTransport | None, n: int = 1
) -> Client:
    """Open a client with queued reports of n metrics. All random waits are as long as possible."""
    metrics = (build_metric(), *build_metrics(n))[: max(n, 1)]
    client = open_client(*metrics, collector=transport, coins=LATE)
    for metric in metrics[:n]:
        client.record(metric.name, "x")
    finish_days(client)
    return client


def refuse_report(reason: str) -> TransportResponse:
    """Return a response that refuses the only report."""
    document = {"reports": [{"status": "refused", "reason": reason}]}
    return TransportResponse(status=200, body=json.dumps(document).encode())


ENDS: dict[str, tuple[int, list[TransportResponse | None], FlushReason, int, int | None]] = {
    "nothing was waiting": (0, [], FlushReason.NOTHING_WAITING, 0, None),
    "the collector accepted everything": (2, [], FlushReason.SENT, 2, None),
    "the collector answered with status 400": (2, [BAD], FlushReason.REFUSED, 1, 400),
    "the collector refused: unknown": (2, [refuse_report("unknown")], FlushReason.REFUSED, 1, None),
    f"the network failed, as the script says{NEXT_ATTEMPT}": (
        1,
        [None],
        FlushReason.UNREACHABLE,
        0,
        None,
    ),
    f"the collector answered with status 503{NEXT_ATTEMPT}": (
        1,
        [BUSY],
        FlushReason.COLLECTOR_ERROR,
        0,
        503,
    ),
    f"the collector's answer was not whole{NEXT_ATTEMPT}": (
        1,
        [INCOMPLETE],
        FlushReason.COLLECTOR_ERROR,
        0,
        200,
    ),
}
"""Results of a flush by their sentence. Each has the number of reports, the script of the
transport, the reason, the number of sent reports and the HTTP status."""


@pytest.mark.parametrize("sentence", ENDS)
def test_result_contains_the_reason_of_the_end(sentence: str, home: Home) -> None:
    """The result contains reason, sent reports, waiting reports and status.

    A refusal is the reason also if a later upload is accepted.
    """
    n, script, reason, sent, status = ENDS[sentence]
    client = open_with_queued_reports(home.open, MemoryTransport(script), n)
    flushed = client.flush(timeout=1.0)
    assert str(flushed) == sentence
    assert (flushed.reason, flushed.sent, flushed.status) == (reason, sent, status)
    # The flushes of one report end with a failure, so the report stays queued.
    assert flushed.waiting == client.queued_count() == (n == 1)
    assert flushed.done is bool(flushed) is (flushed.waiting == 0)


def test_flush_without_time_makes_one_attempt(home: Home) -> None:
    """A flush without time sends the first upload and does not try the second one."""
    client = open_with_queued_reports(home.open, MemoryTransport(), n=2)
    assert client.flush(timeout=0.0) == FlushResult(reason=FlushReason.TIMEOUT, sent=1, waiting=1)


def test_without_collector_or_consent_nothing_leaves(home: Home) -> None:
    """Without consent nothing is queued. Without a collector the queued report stays queued."""
    refused = home.open(collector=MemoryTransport(), consent=False)
    assert refused.flush().reason is FlushReason.NOTHING_WAITING
    client = open_with_queued_reports(home.open, None)
    assert client.flush() == FlushResult(reason=FlushReason.NO_COLLECTOR, waiting=1)


def test_flush_fails_if_the_spool_cannot_be_read(home: Home) -> None:
    """A flush of a damaged spool is false. It does not take the spool for an empty one."""
    open_with_queued_reports(home.open, None).close()
    find_spool(home.folder).write_bytes(b"damaged" * 1000)
    client = home.open()
    assert client.flush() == FlushResult(reason=FlushReason.FAILED)
    assert client.queued_count() == 0
    assert client.event_counts()["failures"] > 0


def test_next_run_ignores_the_backoff_of_an_earlier_run(home: Home) -> None:
    """The first attempt of a flush ignores backoffs, so each run of a short program tries once."""
    transport = MemoryTransport([None, None])
    first = open_with_queued_reports(home.open, transport)
    # The first attempt fails. The backoff is longer than the timeout, so no second attempt follows.
    assert not first.flush(timeout=1.0)
    assert len(transport.bodies) == 1
    assert not first.flush(timeout=1.0)
    first.close()
    second = home.open(collector=transport, coins=LATE)
    assert second.flush(timeout=0.0).reason is FlushReason.SENT
    assert len(transport.bodies) == 3
    assert len(set(transport.bodies)) == 1  # all attempts send the same bytes


def test_flush_obeys_retry_after(home: Home) -> None:
    """No attempt is made before the end of Retry-After, also in the next run.

    The wait is limited to a day.
    """
    script = [
        TransportResponse(status=503, retry_after=120.0),
        TransportResponse(status=429, retry_after=1e9),
    ]
    transport = MemoryTransport(script)
    first = open_with_queued_reports(home.open, transport)
    assert first.flush(timeout=0.0).reason is FlushReason.COLLECTOR_ERROR
    first.close()
    second = home.open(collector=transport, coins=LATE)
    waiting = second.flush(timeout=1.0)
    assert waiting == FlushResult(
        reason=FlushReason.ASKED_TO_WAIT, waiting=1, retry_at=home.clock() + 120.0
    )
    assert str(waiting) == (
        "the collector asked to wait; the next attempt is planned for 2026-11-19 12:02:00 UTC"
    )
    home.clock.advance(seconds=119)
    assert not second.flush(timeout=0.05)
    assert len(transport.bodies) == 1
    home.clock.advance(seconds=1)
    assert not second.flush(timeout=0.0)
    assert len(transport.bodies) == 2
    home.clock.advance(days=1)
    assert second.flush()


def test_flush_with_time_waits_for_the_backoff(home: Home) -> None:
    """A flush with enough time waits for the backoff and tries again."""
    transport = MemoryTransport([None, TransportResponse(status=429, retry_after=0.05)])
    open_with_queued_reports(home.open, None).close()
    client = home.open(collector=transport, coins=constant_coins(0), clock=time.time)
    assert client.flush(timeout=20.0).reason is FlushReason.SENT
    assert len(transport.bodies) == 3


def test_flush_ends_in_time_beside_a_stopped_process(home: Home) -> None:
    """A flush ends in time beside a stopped process that has the lock, and returns a failure.

    The wait for the lock and the flush end after the same time. The machine decides which end the
    flush notices first.
    """
    failures = {FlushReason.FAILED, FlushReason.TIMEOUT}
    for collector in (None, MemoryTransport()):
        client = home.open(collector=collector)
        with hold_folder_lock(home.folder):
            client.record("page", "x")
            begun = time.monotonic()
            result = client.flush(timeout=0.1)
            assert not result
            assert result.reason in failures
            assert time.monotonic() - begun < BUSY_SECONDS


def test_flush_without_time_waits_for_a_short_lock(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush of 0 s succeeds although another process has the lock for some milliseconds."""
    client = open_with_queued_reports(home.open, MemoryTransport())
    assert client.queued_count() == 1
    sleep, waits = time.sleep, list[float]()
    with contextlib.ExitStack() as lock:
        lock.enter_context(hold_folder_lock(home.folder))

        def wait(seconds: float) -> None:
            sleep(seconds)
            waits.append(seconds)
            if len(waits) == 2:
                lock.close()

        monkeypatch.setattr("rappor_client.outbox.writer.time.sleep", wait)
        assert client.flush(timeout=0.0).reason is FlushReason.SENT


@pytest.mark.parametrize("locked_seconds", [0.0, 1.5 * CLAIM_SECONDS])
def test_two_clients_do_not_send_an_upload_at_once(
    locked_seconds: float, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client leaves an upload alone that another client has claimed.

    A claim begins after the wait for the folder's lock, so a long wait does not shorten it. The
    timeout of the transport is above 0, also in a flush of 0 s.
    """
    second_results: list[FlushResult] = []
    timeouts: list[float] = []

    class SlowTransport(MemoryTransport):
        def send(self, body: bytes, *, timeout: float) -> TransportResponse:
            timeouts.append(timeout)  # a socket takes 0 for "do not wait"
            second_results.append(second.flush(timeout=0.0))
            return super().send(body, timeout=timeout)

    first = open_with_queued_reports(home.open, SlowTransport())
    second_transport = MemoryTransport()
    second = home.open(collector=second_transport, coins=LATE)
    with contextlib.ExitStack() as lock:
        if locked_seconds:
            lock.enter_context(hold_folder_lock(home.folder))

        def wait(_: float) -> None:
            home.clock.advance(seconds=locked_seconds)
            lock.close()

        monkeypatch.setattr("rappor_client.outbox.writer.time.sleep", wait)
        assert first.flush(timeout=0.0).reason is FlushReason.SENT
    assert [result.reason for result in second_results] == [FlushReason.BUSY]
    assert second_transport.bodies == []
    assert 0 < timeouts[0] < 0.01


@pytest.mark.parametrize("timeout", [1e10, math.inf])
def test_a_timeout_may_be_longer_than_any_flush(timeout: float, home: Home) -> None:
    """A flush with a huge or infinite timeout ends when no report is queued."""
    client = open_with_queued_reports(home.open, MemoryTransport())
    assert client.flush(timeout=timeout)


@pytest.mark.parametrize("timeout", [-1.0, math.nan, "2", None, True])
def test_timeout_must_be_a_number_of_at_least_0(timeout: Any, home: Home) -> None:
    """A timeout that is no number of at least 0 raises ParamsError."""
    client = open_with_queued_reports(home.open, MemoryTransport())
    with pytest.raises(ParamsError, match=r"timeout must be a number in \[0, infinity\], got "):
        client.flush(timeout=timeout)
