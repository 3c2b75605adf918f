"""flush(): one attempt at once, and why it ended."""

from __future__ import annotations

import json
import math
import time

import pytest
from devices import Opener
from rappor_client import Answer, Client, Flushed, FlushReason
from rappor_client.testing import FixedClock, MemoryTransport, constant_coins

from rappor import ParamsError

LATE = constant_coins(2**32 - 1)
"""Every random wait is the longest."""


def recorded(open_client: Opener, transport: MemoryTransport | None, n: int = 1) -> Client:
    """Open a client whose every wait is the longest, with n reports of one metric waiting."""
    client = open_client(collector=transport, coins=LATE)
    for _ in range(n):
        client.record("page", "x")
    return client


def test_nothing_was_waiting(open_client: Opener) -> None:
    """With or without a collector, and without consent, there is nothing to do."""
    assert open_client(collector=MemoryTransport()).flush() == Flushed(
        reason=FlushReason.NOTHING_WAITING
    )
    assert open_client().flush().reason is FlushReason.NOTHING_WAITING
    refused = open_client(collector=MemoryTransport(), consent=False)
    assert refused.flush().reason is FlushReason.NOTHING_WAITING


def test_everything_was_sent(open_client: Opener) -> None:
    """Nothing waits any more, so the result is true."""
    flushed = recorded(open_client, MemoryTransport(), n=3).flush()
    assert flushed == Flushed(reason=FlushReason.SENT, sent=3)
    assert flushed.done
    assert str(flushed) == "the collector accepted everything"


@pytest.mark.parametrize(
    ("answer", "status", "told"),
    [
        (Answer(status=400), 400, "the collector answered with status 400"),
        (
            Answer(
                status=200,
                body=json.dumps(
                    {"reports": [{"status": "refused", "reason": "unknown metric"}]}
                ).encode(),
            ),
            None,
            "the collector refused: unknown metric",
        ),
    ],
    ids=["upload", "report"],
)
def test_what_was_refused_for_good_is_told(
    answer: Answer, status: int | None, told: str, open_client: Opener
) -> None:
    """It was dropped, so nothing waits; a refusal is told even where a later upload is accepted."""
    flushed = recorded(open_client, MemoryTransport([answer]), n=2).flush()
    assert flushed == Flushed(reason=FlushReason.REFUSED, sent=1, status=status, detail=told)
    assert flushed
    assert str(flushed) == told


def test_collector_was_not_reached(open_client: Opener, clock: FixedClock) -> None:
    """It says what failed and when the next attempt is planned."""
    flushed = recorded(open_client, MemoryTransport([None])).flush(timeout=0.0)
    assert not flushed
    assert flushed.reason is FlushReason.UNREACHABLE
    assert flushed.status is None
    assert flushed.retry_at == pytest.approx(clock() + 5)
    assert str(flushed).startswith("the network failed, as the script says; the next attempt is ")
    assert str(flushed).endswith("planned for 2026-11-18 12:00:05 UTC")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Answer(status=503), "the collector answered with status 503"),
        (Answer(status=200, body=b"{"), "the collector's answer was not whole"),
    ],
    ids=["status", "body"],
)
def test_collector_answered_with_an_error(answer: Answer, told: str, open_client: Opener) -> None:
    """The upload stays; the result has the status."""
    client = recorded(open_client, MemoryTransport([answer]))
    flushed = client.flush(timeout=0.0)
    assert (flushed.reason, flushed.status) == (FlushReason.COLLECTOR_ERROR, answer.status)
    assert flushed.detail == told
    assert client.waiting() == 1


def test_next_run_sends_what_the_first_one_could_not(open_client: Opener) -> None:
    """A program that runs once each time does not sit out the wait that its first run earned."""
    transport = MemoryTransport([None])
    first = recorded(open_client, transport)
    assert not first.flush(timeout=0.0)
    first.close()
    second = open_client(collector=transport, coins=LATE)
    assert second.flush(timeout=0.0).reason is FlushReason.SENT
    assert len(set(transport.bodies)) == 1


def test_only_the_first_attempt_of_a_call_comes_at_once(open_client: Opener) -> None:
    """After a failure in the call the wait counts: it is longer than the time given."""
    transport = MemoryTransport([None, None])
    client = recorded(open_client, transport)
    assert not client.flush(timeout=1.0)
    assert len(transport.bodies) == 1
    assert not client.flush(timeout=1.0)
    assert len(transport.bodies) == 2


def test_wait_that_the_collector_asked_for_is_kept(open_client: Opener, clock: FixedClock) -> None:
    """The next run makes no attempt before it, and one at once after it."""
    transport = MemoryTransport([Answer(status=503, retry_after=120.0)])
    first = recorded(open_client, transport)
    assert first.flush(timeout=0.0).reason is FlushReason.COLLECTOR_ERROR
    first.close()
    second = open_client(collector=transport, coins=LATE)
    waiting = second.flush(timeout=1.0)
    assert waiting == Flushed(reason=FlushReason.ASKED_TO_WAIT, waiting=1, retry_at=clock() + 120.0)
    assert str(waiting) == (
        "the collector asked to wait; the next attempt is planned for 2026-11-18 12:02:00 UTC"
    )
    assert len(transport.bodies) == 1
    clock.advance(seconds=120)
    assert second.flush(timeout=0.0).reason is FlushReason.SENT


def test_a_wait_that_fits_is_waited_for(open_client: Opener) -> None:
    """With time enough, the call itself tries again after the failure."""
    transport = MemoryTransport([None, Answer(status=429, retry_after=0.05)])
    recorded(open_client, None).close()
    client = open_client(collector=transport, coins=constant_coins(0), clock=time.time)
    assert client.flush(timeout=20.0).reason is FlushReason.SENT
    assert len(transport.bodies) == 3


def test_time_was_over_between_two_uploads(open_client: Opener) -> None:
    """The first was accepted, the second was not tried."""
    transport = MemoryTransport()
    client = recorded(open_client, transport, n=2)
    assert client.flush(timeout=0.0) == Flushed(reason=FlushReason.TIMEOUT, sent=1, waiting=1)
    assert client.waiting() == 1


def test_attempt_without_time_has_a_timeout_that_sockets_accept(open_client: Opener) -> None:
    """What is left of no time at all is below zero, and no socket takes that."""
    timeouts: list[float] = []

    class Timed(MemoryTransport):
        def send(self, body: bytes, *, timeout: float) -> Answer:
            timeouts.append(timeout)
            return super().send(body, timeout=timeout)

    assert recorded(open_client, Timed()).flush(timeout=0.0)
    (timeout,) = timeouts
    assert 0 < timeout < 0.01


def test_no_collector_was_named(open_client: Opener) -> None:
    """Reports wait for a run that names one."""
    client = recorded(open_client, None)
    assert client.flush() == Flushed(reason=FlushReason.NO_COLLECTOR, waiting=1)
    assert client.waiting() == 1


def test_another_client_is_sending(open_client: Opener) -> None:
    """While one has claimed the upload, the other leaves it alone, however urgent."""
    met: list[Flushed] = []

    class Slow(MemoryTransport):
        def send(self, body: bytes, *, timeout: float) -> Answer:
            met.append(other.flush(timeout=0.0))
            return super().send(body, timeout=timeout)

    client = recorded(open_client, Slow())
    other = open_client(collector=MemoryTransport(), coins=LATE)
    assert client.flush().reason is FlushReason.SENT
    assert [flushed.reason for flushed in met] == [FlushReason.BUSY]


@pytest.mark.parametrize("timeout", [-1.0, math.nan])
def test_timeout_is_a_number_of_seconds(timeout: float, open_client: Opener) -> None:
    """Anything else is a mistake of the program."""
    with pytest.raises(ParamsError, match="timeout must be a number of seconds in"):
        recorded(open_client, MemoryTransport()).flush(timeout=timeout)


@pytest.mark.parametrize("timeout", [1e10, math.inf])
def test_timeout_may_be_as_long_as_one_likes(timeout: float, open_client: Opener) -> None:
    """It ends when nothing waits."""
    assert recorded(open_client, MemoryTransport()).flush(timeout=timeout)
