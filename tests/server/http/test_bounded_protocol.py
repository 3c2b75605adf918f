"""Slow readers, pipelined requests and Host headers, without a network.

The tests call the protocol and its monitor directly. Over a socket, the buffers of the operating
system would determine how many bytes the collector has sent. `test_hostile.py` has such tests.
"""

from __future__ import annotations

import asyncio

import pytest
from programs import wait_in_event_loop
from rappor_server.app.settings import Settings
from rappor_server.base.source_quota import SourceQuota
from rappor_server.http.bounded_protocol import QUOTA, SETTINGS, BoundedProtocol, SlowReaderMonitor
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn import Config
from uvicorn.server import ServerState


class FakeConnection:
    """A replacement of the protocol whose number of unsent bytes a test sets. It records a reset.

    `cycle` is the newest request. A new object means that a new request has begun.
    """

    def __init__(self) -> None:
        self.pipeline: list[object] = []
        self.cycle: object | None = object()
        self.unread = 0
        self.is_reset = False

    def count_unsent_bytes(self) -> int:
        """Return the number of unsent bytes."""
        return self.unread

    def reset(self) -> None:
        """Record the reset."""
        self.is_reset = True


def test_a_client_must_read_a_kilobyte_per_second() -> None:
    """The monitor resets a client that reads less than 1,000 bytes a second between two checks.

    A new response restarts the observation.
    """
    slow, steady, busy, _ = connections = [FakeConnection() for _ in range(4)]
    # Between two checks, 10 seconds apart, a client must read 10,000 bytes.
    monitor = SlowReaderMonitor(connections, seconds=10)
    slow.unread = steady.unread = busy.unread = 100_000
    monitor.reset_slow()
    assert not any(connection.is_reset for connection in connections)
    slow.unread -= 9_999
    steady.unread -= 10_000
    # The client has read its response and requested another one, which is longer.
    busy.unread += 100_000
    busy.cycle = object()
    monitor.reset_slow()
    assert [connection.is_reset for connection in connections] == [True, False, False, False]
    # A client that has read everything is not observed. The next check is then a first one.
    steady.unread = 0
    monitor.reset_slow()
    steady.unread = 100_000
    assert not steady.is_reset
    monitor.reset_slow()
    assert not steady.is_reset


def test_two_checks_must_see_a_response_before_a_reset() -> None:
    """A refused connection, which has a response and no request, is reset at the second check."""
    refused = FakeConnection()
    refused.cycle = None
    monitor = SlowReaderMonitor([refused], seconds=10)
    refused.unread = 200
    monitor.reset_slow()
    assert not refused.is_reset
    monitor.reset_slow()
    assert refused.is_reset


class Connection(asyncio.Transport):
    """A transport without a network. The test calls `receive` in place of a client.

    It has no address of a client, like a socket whose client has reset the connection.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Connect to an application in the running event loop."""
        super().__init__()
        config = Config(app, lifespan="off", ws="none", log_config=None)
        config.load()
        state = {SETTINGS: Settings(registry="metrics.toml"), QUOTA: SourceQuota(1, proxies="")}
        self._is_read = True
        self.sent = b""
        self.protocol = BoundedProtocol(config, ServerState(), state)
        self.protocol.connection_made(self)

    def receive(self, data: bytes) -> None:
        """Pass the bytes of one read of the socket to the protocol."""
        assert self.is_read()
        self.protocol.data_received(data)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Record sent bytes."""
        self.sent += data

    def pause_reading(self) -> None:
        """Record that the socket is not read."""
        self._is_read = False

    def resume_reading(self) -> None:
        """Record that the socket is read again."""
        self._is_read = True

    def is_read(self) -> bool:
        """Return whether the socket is read."""
        return self._is_read

    def is_closing(self) -> bool:
        """Return False: the connection stays open."""
        return False

    def close(self) -> None:
        """Do nothing: all bytes are sent already."""


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n", b"200 OK"),
        (b"GET / HTTP/1.0\r\n", b"200 OK"),  # HTTP/1.0 needs no Host header
        (b"GET / HTTP/1.1\r\n", b"400 Bad Request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n", b"400 Bad Request"),
        (b"GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n", b"400 Bad Request"),
        *(
            (b"GET / HTTP/1.1\r\nHost: %b\r\n" % host, b"200 OK")
            for host in (b"", b"a:80", b"a.b-c_d:", b"[::1]:8080", b"127.0.0.1 ", b"x%20y", b"a,b")
        ),
        *(
            (b"GET / HTTP/1.1\r\nHost: %b\r\n" % host, b"400 Bad Request")
            for host in (b"a b", b"a/b", b"u@a", b"a:b", b"[::1", b"::1", b"a?b", b'"a"', b"\xe9")
        ),
    ],
)
async def test_a_request_of_http_1_1_has_one_host(head: bytes, status: bytes) -> None:
    """A request without a Host header, with two of them or with a wrong one gets 400.

    RFC 9112, section 3.2, requires it. Of two Host headers, a proxy may use one and the collector
    the other.
    """
    connection = Connection(PlainTextResponse("yes"))
    connection.receive(head + b"\r\n")
    await wait_in_event_loop(lambda: connection.sent.startswith(b"HTTP/1.1 " + status))
    connection.protocol.connection_lost(None)


@pytest.mark.anyio
async def test_a_connection_without_an_address_uses_no_quota() -> None:
    """A connection that its client has reset has no address, and no source to which it counts.

    Such connections would otherwise use up the quota of an empty address, and never release it.
    """
    connection = Connection(PlainTextResponse("yes"))
    quota = connection.protocol.app_state[QUOTA]
    connection.protocol.connection_lost(None)
    assert quota.acquire("")


@pytest.mark.anyio
async def test_the_socket_is_not_read_while_a_request_waits() -> None:
    """While a pipelined request waits, the socket is not read, so its body uses no memory.

    The first packet contains a complete request, and a second request with an incomplete body. The
    socket is read again when the first response is complete.
    """
    length = 150_000
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    has_read, may_respond = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        n_bytes = len(await request.body())
        has_read.set()
        await may_respond.wait()
        await PlainTextResponse(f"{n_bytes} bytes")(scope, receive, send)

    connection = Connection(app)
    connection.receive(head % 3 + b"abc" + head % length + bytes(100_000))
    await has_read.wait()
    # The first request is in progress, so the second one waits in the pipeline.
    assert not connection.is_read()
    may_respond.set()
    await wait_in_event_loop(connection.is_read)
    assert connection.sent.endswith(b"3 bytes")
    connection.receive(bytes(50_000))
    await wait_in_event_loop(lambda: connection.sent.endswith(b"150000 bytes"))
    connection.protocol.connection_lost(None)
