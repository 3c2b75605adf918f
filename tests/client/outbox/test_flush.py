"""flush(): one attempt at once, and why it ended."""

from __future__ import annotations

import contextlib
import json
import math
import time
from typing import Any

import pytest
from days import finish_days, metrics_of
from devices import Home, Opener, hold_folder_lock, metric_of
from rappor_client import Client, FlushReason, FlushResult, TransportResponse
from rappor_client.folder.identity_folder import BUSY_SECONDS
from rappor_client.testing import MemoryTransport, constant_coins

from rappor import ParamsError

LATE = constant_coins(2**32 - 1)
"""Every random wait is the longest."""
NEXT = "; the next attempt is planned for 2026-11-19 12:00:05 UTC"
BAD, BUSY, CUT = (
    TransportResponse(status=400),
    TransportResponse(status=503),
    TransportResponse(status=200, body=b"{"),
)


def recorded(open_client: Opener, transport: MemoryTransport | None, n: int = 1) -> Client:
    """Open a client whose every wait is the longest, with reports of n metrics waiting."""
    metrics = (metric_of(), *metrics_of(n))[: max(n, 1)]
    client = open_client(*metrics, collector=transport, coins=LATE)
    for metric in metrics[:n]:
        client.record(metric.name, "x")
    finish_days(client)
    return client


def refused(reason: str) -> TransportResponse:
    """Return an answer that refuses the one report."""
    document = {"reports": [{"status": "refused", "reason": reason}]}
    return TransportResponse(status=200, body=json.dumps(document).encode())


ENDS: dict[str, tuple[int, list[TransportResponse | None], FlushReason, int, int | None]] = {
    "nothing was waiting": (0, [], FlushReason.NOTHING_WAITING, 0, None),
    "the collector accepted everything": (2, [], FlushReason.SENT, 2, None),
    "the collector answered with status 400": (2, [BAD], FlushReason.REFUSED, 1, 400),
    "the collector refused: unknown": (2, [refused("unknown")], FlushReason.REFUSED, 1, None),
    f"the network failed, as the script says{NEXT}": (1, [None], FlushReason.UNREACHABLE, 0, None),
    f"the collector answered with status 503{NEXT}": (
        1,
        [BUSY],
        FlushReason.COLLECTOR_ERROR,
        0,
        503,
    ),
    f"the collector's answer was not whole{NEXT}": (1, [CUT], FlushReason.COLLECTOR_ERROR, 0, 200),
}
"""What is said of a flush: reports, the collector's first answer, why, reports sent, the status."""


@pytest.mark.parametrize("said", ENDS)
def test_flush_says_why_it_ended(said: str, home: Home) -> None:
    """What was sent and what waits; a refusal is told even where a later upload is accepted."""
    n, script, reason, sent, status = ENDS[said]
    client = recorded(home.open, MemoryTransport(script), n)
    flushed = client.flush(timeout=1.0)
    assert str(flushed) == said
    assert (flushed.reason, flushed.sent, flushed.status) == (reason, sent, status)
    assert flushed.waiting == client.queued_count() == (n == 1)
    assert flushed.done is bool(flushed) is (flushed.waiting == 0)


def test_time_was_over_between_two_uploads(home: Home) -> None:
    """The first was accepted, the second was not tried."""
    client = recorded(home.open, MemoryTransport(), n=2)
    assert client.flush(timeout=0.0) == FlushResult(reason=FlushReason.TIMEOUT, sent=1, waiting=1)


def test_without_collector_or_consent_nothing_leaves(home: Home) -> None:
    """Reports wait for a run that names a collector."""
    refused = home.open(collector=MemoryTransport(), consent=False)
    assert refused.flush().reason is FlushReason.NOTHING_WAITING
    client = recorded(home.open, None)
    assert client.flush() == FlushResult(reason=FlushReason.NO_COLLECTOR, waiting=1)


def test_next_run_sends_what_the_first_one_could_not(home: Home) -> None:
    """A program that runs once each time does not sit out the wait that its first run earned."""
    transport = MemoryTransport([None, None])
    first = recorded(home.open, transport)
    assert not first.flush(timeout=1.0)  # one attempt: the wait after it is longer than a second
    assert len(transport.bodies) == 1
    assert not first.flush(timeout=1.0)
    first.close()
    second = home.open(collector=transport, coins=LATE)
    assert second.flush(timeout=0.0).reason is FlushReason.SENT
    assert len(transport.bodies) == 3
    assert len(set(transport.bodies)) == 1


def test_wait_that_the_collector_asked_for_is_kept(home: Home) -> None:
    """Not a moment before it, in the next run neither; and nobody is silenced for over a day."""
    script = [
        TransportResponse(status=503, retry_after=120.0),
        TransportResponse(status=429, retry_after=1e9),
    ]
    transport = MemoryTransport(script)
    first = recorded(home.open, transport)
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


def test_a_wait_that_fits_is_waited_for(home: Home) -> None:
    """With time enough, the call itself tries again after the failure."""
    transport = MemoryTransport([None, TransportResponse(status=429, retry_after=0.05)])
    recorded(home.open, None).close()
    client = home.open(collector=transport, coins=constant_coins(0), clock=time.time)
    assert client.flush(timeout=20.0).reason is FlushReason.SENT
    assert len(transport.bodies) == 3


def test_stopped_process_does_not_outlast_the_time(home: Home) -> None:
    """It keeps the lock; what waits in memory is not said to be sent."""
    for collector in (None, MemoryTransport()):
        client = home.open(collector=collector)
        with hold_folder_lock(home.folder):
            client.record("page", "x")
            begun = time.monotonic()
            assert client.flush(timeout=0.1).reason is FlushReason.FAILED
            assert time.monotonic() - begun < BUSY_SECONDS


def test_a_flush_without_time_waits_for_a_lock_that_is_soon_free(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that is inside for some milliseconds is no failure."""
    client = recorded(home.open, MemoryTransport())
    assert client.queued_count() == 1
    sleep, slept = time.sleep, list[float]()
    with contextlib.ExitStack() as lock:
        lock.enter_context(hold_folder_lock(home.folder))

        def wait(seconds: float) -> None:
            sleep(seconds)
            slept.append(seconds)
            if len(slept) == 2:
                lock.close()

        monkeypatch.setattr("rappor_client.outbox.writer.time.sleep", wait)
        assert client.flush(timeout=0.0).reason is FlushReason.SENT


def test_two_clients_do_not_send_an_upload_at_once(home: Home) -> None:
    """While one has claimed it, the other leaves it alone; what is left of no time is above 0."""
    met: list[FlushResult] = []
    timeouts: list[float] = []

    class Slow(MemoryTransport):
        def send(self, body: bytes, *, timeout: float) -> TransportResponse:
            timeouts.append(timeout)  # no socket takes 0
            met.append(other.flush(timeout=0.0))
            return super().send(body, timeout=timeout)

    client = recorded(home.open, Slow())
    unused = MemoryTransport()
    other = home.open(collector=unused, coins=LATE)
    assert client.flush(timeout=0.0).reason is FlushReason.SENT
    assert [flushed.reason for flushed in met] == [FlushReason.BUSY]
    assert unused.bodies == []
    assert 0 < timeouts[0] < 0.01


@pytest.mark.parametrize("timeout", [1e10, math.inf])
def test_a_timeout_may_be_longer_than_any_flush(timeout: float, home: Home) -> None:
    """The flush ends when no report is queued."""
    client = recorded(home.open, MemoryTransport())
    assert client.flush(timeout=timeout)


@pytest.mark.parametrize("timeout", [-1.0, math.nan, "2", None, True])
def test_timeout_must_be_a_number_of_at_least_0(timeout: Any, home: Home) -> None:
    """Anything else raises one sentence, not an error of Python."""
    client = recorded(home.open, MemoryTransport())
    with pytest.raises(ParamsError, match=r"timeout must be a number in \[0, infinity\], got "):
        client.flush(timeout=timeout)
