"""Peers that read too little of their answers, and requests that wait behind others."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

from rappor_server.http.slow_clients import SlowReaders, _Flow


class Peer:
    """A connection, and whether it was ended."""

    def __init__(self) -> None:
        self.pipeline: list[object] = []
        self.cycle = object()
        self.unread = 0
        self.is_dropped = False

    def n_unread(self) -> int:
        """Return how many bytes wait for the peer."""
        return self.unread

    def drop(self) -> None:
        """End the connection."""
        self.is_dropped = True


def test_a_peer_must_read_a_kilobyte_a_second() -> None:
    """A little less ends it at the next look; the first look, and a new answer, end nobody."""
    slow, steady, busy, ready = peers = [Peer() for _ in range(4)]
    readers = SlowReaders(peers, seconds=10)
    slow.unread = steady.unread = busy.unread = 100_000
    readers.end_slow()
    assert not any(each.is_dropped for each in peers)
    slow.unread -= 9_999
    steady.unread -= 10_000
    busy.unread += 100_000
    busy.cycle = object()
    readers.end_slow()
    assert [each.is_dropped for each in (slow, steady, busy, ready)] == [True, False, False, False]
    steady.unread = 0
    readers.end_slow()
    steady.unread = 100_000
    assert not steady.is_dropped
    readers.end_slow()
    assert not steady.is_dropped


class Transport:
    """Notes whether it is read."""

    def __init__(self) -> None:
        self.is_read = True

    def pause_reading(self) -> None:
        """Stop."""
        self.is_read = False

    def resume_reading(self) -> None:
        """Go on."""
        self.is_read = True


def test_nothing_is_read_while_requests_wait() -> None:
    """A body that was taken makes no room before the requests behind it are begun."""
    transport, waiting = Transport(), deque[Any](["request"])
    flow = _Flow(cast("asyncio.Transport", transport), waiting)
    flow.pause_reading()
    flow.resume_reading()
    assert not transport.is_read
    waiting.clear()
    flow.resume_reading()
    assert transport.is_read
