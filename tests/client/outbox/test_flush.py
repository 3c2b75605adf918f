"""flush(): one attempt at once, and why it ended."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from devices import Opener, locked
from rappor_client import Answer, Client, Flushed, FlushReason
from rappor_client.folder.own_folder import BUSY_SECONDS
from rappor_client.testing import FixedClock, MemoryTransport, constant_coins

from rappor import ParamsError

LATE = constant_coins(2**32 - 1)
"""Every random wait is the longest."""
NEXT = "; the next attempt is planned for 2026-11-18 12:00"


def recorded(open_client: Opener, transport: MemoryTransport | None, n: int = 1) -> Client:
    """Open a client whose every wait is the longest, with n reports of one metric waiting."""
    client = open_client(collector=transport, coins=LATE)
    for _ in range(n):
        client.record("page", "x")
    return client


def refused(reason: str) -> Answer:
    """Return an answer that refuses the one report."""
    document = {"reports": [{"status": "refused", "reason": reason}]}
    return Answer(status=200, body=json.dumps(document).encode())


ENDS: dict[str, tuple[int, list[Answer | None], dict[str, Any]]] = {
    "nothing was waiting": (0, [], {"reason": FlushReason.NOTHING_WAITING}),
    "the collector accepted everything": (2, [], {"reason": FlushReason.SENT, "sent": 2}),
    "the collector answered with status 400": (
        2,
        [Answer(status=400)],
        {"reason": FlushReason.REFUSED, "sent": 1, "status": 400},
    ),
    "the collector refused: unknown metric": (
        2,
        [refused("unknown metric")],
        {"reason": FlushReason.REFUSED, "sent": 1},
    ),
    f"the network failed, as the script says{NEXT}:05 UTC": (
        1,
        [None],
        {"reason": FlushReason.UNREACHABLE, "waiting": 1},
    ),
    f"the collector answered with status 503{NEXT}:05 UTC": (
        1,
        [Answer(status=503)],
        {"reason": FlushReason.COLLECTOR_ERROR, "waiting": 1, "status": 503},
    ),
    f"the collector's answer was not whole{NEXT}:05 UTC": (
        1,
        [Answer(status=200, body=b"{")],
        {"reason": FlushReason.COLLECTOR_ERROR, "waiting": 1, "status": 200},
    ),
}
"""What is said of a flush, of how many reports, and the collector's first answer."""


@pytest.mark.parametrize("said", ENDS)
def test_flush_says_why_it_ended(said: str, open_client: Opener) -> None:
    """What was sent and what waits; a refusal is told even where a later upload is accepted."""
    n, script, expected = ENDS[said]
    client = recorded(open_client, MemoryTransport(script), n)
    flushed = client.flush(timeout=1.0)
    assert str(flushed) == said
    found = {name: getattr(flushed, name) for name in ("reason", "sent", "waiting", "status")}
    assert found == {"sent": 0, "waiting": 0, "status": None} | expected
    assert flushed.done is bool(flushed) is (flushed.waiting == 0)
    assert client.waiting() == flushed.waiting


def test_time_was_over_between_two_uploads(open_client: Opener) -> None:
    """The first was accepted, the second was not tried."""
    client = recorded(open_client, MemoryTransport(), n=2)
    assert client.flush(timeout=0.0) == Flushed(reason=FlushReason.TIMEOUT, sent=1, waiting=1)


def test_without_collector_or_consent_nothing_leaves(open_client: Opener) -> None:
    """Reports wait for a run that names a collector."""
    refused = open_client(collector=MemoryTransport(), consent=False)
    assert refused.flush().reason is FlushReason.NOTHING_WAITING
    client = recorded(open_client, None)
    assert client.flush() == Flushed(reason=FlushReason.NO_COLLECTOR, waiting=1)


def test_next_run_sends_what_the_first_one_could_not(open_client: Opener) -> None:
    """A program that runs once each time does not sit out the wait that its first run earned."""
    transport = MemoryTransport([None, None])
    first = recorded(open_client, transport)
    assert not first.flush(timeout=1.0)  # one attempt: the wait after it is longer than a second
    assert len(transport.bodies) == 1
    assert not first.flush(timeout=1.0)
    first.close()
    second = open_client(collector=transport, coins=LATE)
    assert second.flush(timeout=0.0).reason is FlushReason.SENT
    assert len(transport.bodies) == 3
    assert len(set(transport.bodies)) == 1


def test_wait_that_the_collector_asked_for_is_kept(open_client: Opener, clock: FixedClock) -> None:
    """Not a moment before it, in the next run neither; and nobody is silenced for over a day."""
    script = [Answer(status=503, retry_after=120.0), Answer(status=429, retry_after=1e9)]
    transport = MemoryTransport(script)
    first = recorded(open_client, transport)
    assert first.flush(timeout=0.0).reason is FlushReason.COLLECTOR_ERROR
    first.close()
    second = open_client(collector=transport, coins=LATE)
    waiting = second.flush(timeout=1.0)
    assert waiting == Flushed(reason=FlushReason.ASKED_TO_WAIT, waiting=1, retry_at=clock() + 120.0)
    assert str(waiting) == (
        "the collector asked to wait; the next attempt is planned for 2026-11-18 12:02:00 UTC"
    )
    clock.advance(seconds=119)
    assert not second.flush(timeout=0.05)
    assert len(transport.bodies) == 1
    clock.advance(seconds=1)
    assert not second.flush(timeout=0.0)
    assert len(transport.bodies) == 2
    clock.advance(days=1)
    assert second.flush()


def test_a_wait_that_fits_is_waited_for(open_client: Opener) -> None:
    """With time enough, the call itself tries again after the failure."""
    transport = MemoryTransport([None, Answer(status=429, retry_after=0.05)])
    recorded(open_client, None).close()
    client = open_client(collector=transport, coins=constant_coins(0), clock=time.time)
    assert client.flush(timeout=20.0).reason is FlushReason.SENT
    assert len(transport.bodies) == 3


def test_stopped_process_does_not_outlast_the_time(open_client: Opener, tmp_path: Path) -> None:
    """It keeps the lock; what waits in memory is not said to be sent."""
    for collector in (None, MemoryTransport()):
        client = open_client(collector=collector)
        with locked(tmp_path / "device"):
            client.record("page", "x")
            begun = time.monotonic()
            assert client.flush(timeout=0.1).reason is FlushReason.FAILED
            assert time.monotonic() - begun < BUSY_SECONDS


def test_two_clients_do_not_send_an_upload_at_once(open_client: Opener) -> None:
    """While one has claimed it, the other leaves it alone; what is left of no time is above 0."""
    met: list[Flushed] = []
    timeouts: list[float] = []

    class Slow(MemoryTransport):
        def send(self, body: bytes, *, timeout: float) -> Answer:
            timeouts.append(timeout)  # no socket takes 0
            met.append(other.flush(timeout=0.0))
            return super().send(body, timeout=timeout)

    client = recorded(open_client, Slow())
    unused = MemoryTransport()
    other = open_client(collector=unused, coins=LATE)
    assert client.flush(timeout=0.0).reason is FlushReason.SENT
    assert [flushed.reason for flushed in met] == [FlushReason.BUSY]
    assert unused.bodies == []
    assert 0 < timeouts[0] < 0.01


@pytest.mark.parametrize("timeout", [-1.0, math.nan, 1e10, math.inf])
def test_timeout_is_a_number_of_seconds(timeout: float, open_client: Opener) -> None:
    """As long as one likes: it ends when nothing waits. Else it is a mistake of the program."""
    client = recorded(open_client, MemoryTransport())
    if timeout > 0:
        assert client.flush(timeout=timeout)
        return
    with pytest.raises(ParamsError, match="timeout must be a number of seconds in"):
        client.flush(timeout=timeout)
