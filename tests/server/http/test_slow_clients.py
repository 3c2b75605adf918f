"""Peers that read too little of their answers, and requests that wait behind others."""

from __future__ import annotations

import asyncio

import pytest
from programs import become
from rappor_server.app.settings import Settings
from rappor_server.base.connection_limits import Sources
from rappor_server.http.slow_clients import SETTINGS, SOURCES, PunctualProtocol, SlowReaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn import Config
from uvicorn.server import ServerState


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


class Connection(asyncio.Transport):
    """A connection without a network: its peer is whoever calls `say`."""

    def __init__(self, app: ASGIApp) -> None:
        """Make one in the loop that runs, with an application that answers it."""
        super().__init__()
        config = Config(app, lifespan="off", ws="none", log_config=None)
        config.load()
        state = {SETTINGS: Settings(registry="metrics.toml"), SOURCES: Sources(1, proxies="")}
        self._is_read = True
        self.sent = b""
        self.protocol = PunctualProtocol(config, ServerState(), state)
        self.protocol.connection_made(self)

    def say(self, data: bytes) -> None:
        """Bring what one read of the socket brings."""
        assert self.is_read()
        self.protocol.data_received(data)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Note what is sent."""
        self.sent += data

    def pause_reading(self) -> None:
        """Note that nothing more is read."""
        self._is_read = False

    def resume_reading(self) -> None:
        """Note that the socket is read again."""
        self._is_read = True

    def is_read(self) -> bool:
        """Return whether the socket is read."""
        return self._is_read

    def is_closing(self) -> bool:
        """Stay open."""
        return False

    def close(self) -> None:
        """End, when everything is sent, which it is."""


@pytest.mark.anyio
async def test_nothing_is_read_while_a_request_waits_for_its_turn() -> None:
    """Of a body behind another request one read is kept; the rest is read when it has its turn."""
    length = 150_000
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    has_read, may_answer = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        n_bytes = len(await request.body())
        has_read.set()
        await may_answer.wait()
        await PlainTextResponse(f"{n_bytes} bytes")(scope, receive, send)

    connection = Connection(app)
    connection.say(head % 3 + b"abc" + head % length + bytes(100_000))
    await has_read.wait()
    assert not connection.is_read()
    may_answer.set()
    await become(connection.is_read)
    assert connection.sent.endswith(b"3 bytes")
    connection.say(bytes(50_000))
    await become(lambda: connection.sent.endswith(b"150000 bytes"))
    connection.protocol.connection_lost(None)
