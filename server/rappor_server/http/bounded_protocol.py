"""HTTP connections with limits on their number, and on the cost of slow or flooding clients.

uvicorn's protocol trusts its clients. It waits without limit for the head of a request, parses any
number of pipelined requests before it has responded to the first one, and waits without limit for a
client that does not read. `BoundedProtocol` extends the protocol by a limit for each of these
cases. The body of a request has limits elsewhere (`base/request_limits.py`).

How to think about a connection. It has a queue of requests whose heads are complete. uvicorn calls
the newest request the `cycle`, and puts a request that arrives before the previous response is
complete into the `pipeline`. Responses leave in the order of the requests. A connection is in one
of these states:

    refused     One connection too many. It gets the problem 503 (all connections) or 429
                (connections of its source), and is closed.
    waiting     No response is in progress, and the head of the next request is incomplete. A timer
                closes the connection after `body_seconds`. It starts with the connection, and
                after a response with the first byte that follows.
    responding  At least one request is in progress or in the pipeline. No timer runs: the
                application has limits of its own.
    closing     The client sent bytes that are no HTTP, or asked for another protocol. The parser is
                replaced by `_NullParser`, so no later byte becomes a request. Requests that were
                complete before are still answered, in their order.

Invariants:

- At most 16 requests wait in the pipeline. While one waits, nothing is read from the socket, so
  the pipeline needs the memory of one read.
- A head has at most 16 KB, and so have the trailers that follow a chunked body.
- Each accepted connection uses one unit of the quota of its source until it is lost.

Example: a client sends three uploads and then garbage in one packet. The three heads and bodies are
complete, so three responses with 200 are sent; then the connection is closed. If the third upload
is broken in the middle of its body, the client gets 200, 200, 400.

`SlowReaderMonitor` closes connections whose clients do not read their responses.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Collection
from http import HTTPStatus
from typing import Any, ClassVar, Final

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rappor_server.app.settings import Settings
from rappor_server.base.problems import RETRY_SECONDS, Problem, render_problem
from rappor_server.base.request_limits import HAS_WHOLE_BODY
from rappor_server.http.device_endpoints import UPLOAD_PATH
from rappor_server.http.middleware import list_missing_headers

SETTINGS: Final = "settings"
"""Key of the settings in the state that the application passes to the server."""
METRICS: Final = "metrics"
"""Key of the Prometheus metrics in that state."""
QUOTA: Final = "quota"
"""Key of the quota of connections for each source in that state."""

_MAX_HEAD_BYTES: Final = 16_384
"""Largest size of a head, and of the trailers of a chunked body, in bytes. The first packet is not
counted. A larger value lets a client use more memory before it is disconnected."""
_NOT_COUNTED: Final = -1
"""Value of `_n_head_bytes` until the end of the packet in which a head or trailers begin."""
_MAX_PIPELINE: Final = 16
"""Largest number of requests of a connection that wait for a previous response. A larger value lets
one packet start more work."""
_DISCARDED: Final[deque[Any]] = deque(maxlen=0)
"""List of headers that stores nothing."""
_MIN_READ_RATE: Final = 1000
"""Smallest rate at which a client must read its responses, in bytes per second. A larger value
disconnects slower networks."""
_RESET: Final = struct.pack("ii", 1, 0)
"""Value of SO_LINGER by which closing discards unsent data and resets the connection."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits. The description of the module explains the states."""

    has_connection_limits: ClassVar[bool] = True
    """Whether `max_connections` and `max_source_connections` apply."""
    _timer: asyncio.TimerHandle | None = None
    _is_in_head: bool = False
    """Whether the parser is inside a head, or between two chunks, where trailers may follow."""
    _n_head_bytes: int = 0
    _address: str = ""
    """Address for which the connection uses a unit of the quota; empty if it uses none."""

    def connection_made(self, transport: Any) -> None:
        """Start the timer of the first head, or refuse the connection if a limit is reached."""
        super().connection_made(transport)
        self.flow = _PipelineFlowControl(transport, self.pipeline)
        if self.has_connection_limits and (refusal := self._acquire()):
            limit, problem = refusal
            self.app_state[METRICS].refused_connections.labels(limit).inc()
            self._respond_and_close(problem)
        else:
            self._start_timer()

    def _acquire(self) -> tuple[str, Problem] | None:
        """Count the connection for its source; return the reached limit and a problem, or None."""
        if len(self.connections) > self._settings.max_connections:
            status = HTTPStatus.SERVICE_UNAVAILABLE
            return "max_connections", _make_too_many_connections("the collector", status)
        address = self.client[0] if self.client else ""
        if not self.app_state[QUOTA].acquire(address):
            status = HTTPStatus.TOO_MANY_REQUESTS
            return "max_source_connections", _make_too_many_connections("this source", status)
        self._address = address
        return None

    def data_received(self, data: bytes) -> None:
        """Parse bytes; start the timer if they begin a head; limit the size of the head."""
        super().data_received(data)
        is_waiting = self.cycle is None or self.cycle.response_complete
        if self._timer is None and is_waiting:
            # The bytes did not complete a head: part of a head, blank lines, or the rest of a body
            # whose response was sent early. uvicorn has stopped its own timer for idle connections.
            self._start_timer()
        if self._is_in_head:
            self._count_head(len(data))

    def on_message_begin(self) -> None:
        """Note that a head begins. The parser calls this method.

        The packet in which the head begins is not counted, because it may also contain the end of a
        large body.
        """
        self._is_in_head, self._n_head_bytes = True, _NOT_COUNTED
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Stop the timer and let the application respond. The parser calls this method."""
        self._is_in_head = False
        self._stop_timer()
        n_hosts = sum(name == b"host" for name, _ in self.headers)
        if n_hosts != 1 and self.parser.get_http_version() == "1.1":
            # A proxy in front of the collector may choose another Host header of two. RFC 9112,
            # section 3.2, asks for 400. The exception ends the parsing.
            raise _HostError
        super().on_headers_complete()
        # The parser also passes trailers as headers. A client could send trailers without end, and
        # nothing reads them.
        self.headers = _DISCARDED  # type: ignore[assignment]
        if len(self.pipeline) > _MAX_PIPELINE:
            # The exception ends the parsing; `send_400_response` responds.
            raise _PipelineFullError

    def on_chunk_complete(self) -> None:
        """Note that trailers may follow. The parser calls this method after each chunk."""
        self._is_in_head, self._n_head_bytes = True, _NOT_COUNTED

    def on_body(self, body: bytes) -> None:
        """Store a part of a body. The parser calls this method."""
        self._is_in_head = False
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note in the scope that the whole body has arrived. The parser calls this method."""
        self._is_in_head = False
        self.scope[HAS_WHOLE_BODY] = True  # type: ignore[typeddict-unknown-key]
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer and return the unit of the quota."""
        self._stop_timer()
        if self._address:
            self.app_state[QUOTA].release(self._address)
            self._address = ""
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return whether to keep the connection open after the client closed its sending half.

        A device may close its half after a complete upload and still read the response. For any
        other request the closed half is treated as a disconnect, which cancels a computation. TLS
        has no closed half.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body or self.scheme == "https":
            return False
        cycle.keep_alive = False
        return cycle.scope["path"] == UPLOAD_PATH

    def _unsupported_upgrade_warning(self) -> None:
        """Parse nothing more after a request for another protocol. uvicorn calls this method.

        The parser has skipped the body of such a request. The body was once parsed as the next
        request, so a client could smuggle a request past a proxy.
        """
        self.parser = _NullParser()  # type: ignore[assignment]
        self.cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - it may repeat sent bytes
        """Respond to bytes that are no HTTP, after all previous responses, and close.

        There are three cases:

        - No other request is in progress: respond now.
        - The newest request is complete, and the invalid bytes follow it: let its response be the
          last one.
        - The newest request is incomplete and waits in the pipeline: respond with the problem when
          its turn comes. An immediate response would be read as that of the request before it.
        """
        self.parser = _NullParser()  # type: ignore[assignment]
        cycle = self.cycle
        if cycle is None or cycle.response_complete or (cycle.more_body and not self.pipeline):
            self._respond_and_close(_make_not_http())
            return
        cycle.keep_alive = False
        if cycle.more_body:
            # uvicorn adds new requests on the left of the pipeline.
            self.pipeline[0] = (cycle, _respond_not_http)  # type: ignore[assignment]

    def _respond_and_close(self, problem: Problem) -> None:
        """Write a problem to the socket without an application, and close the connection."""
        response = render_problem(problem)
        missing = list_missing_headers(response.raw_headers, is_secure=self.scheme == "https")
        lines = [f"HTTP/1.1 {problem.status.value} {problem.status.phrase}".encode()]
        lines += [name + b": " + value for name, value in (*response.raw_headers, *missing)]
        lines += [b"connection: close", b"", b""]
        self.transport.write(b"\r\n".join(lines) + bytes(response.body))
        self.transport.close()

    @property
    def _settings(self) -> Settings:
        settings: Settings = self.app_state[SETTINGS]
        return settings

    def count_unsent_bytes(self) -> int:
        """Return the number of bytes that wait for the client to read previous ones."""
        return self.transport.get_write_buffer_size()

    def reset(self) -> None:
        """Close the connection at once and discard all unsent data.

        Without the reset, the operating system would keep the data in its buffers for minutes.
        """
        with contextlib.suppress(OSError):  # the connection is closing already
            client_socket = self.transport.get_extra_info("socket")
            client_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def _count_head(self, n_bytes: int) -> None:
        """Count the bytes of a packet that ended inside a head; abort if the head is too large."""
        if self._n_head_bytes == _NOT_COUNTED:
            self._n_head_bytes = 0
            return
        self._n_head_bytes += n_bytes
        if self._n_head_bytes > _MAX_HEAD_BYTES:
            self.transport.abort()

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self._settings.body_seconds, self._close_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_late(self) -> None:
        """Close the connection because the head did not arrive in time."""
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()


class OperatorProtocol(BoundedProtocol):
    """The protocol at the admin address, which devices must not be able to fill up."""

    has_connection_limits = False


class SlowReaderMonitor:
    """Resets connections whose clients read their responses too slowly.

    A client that requests a large response and reads nothing would keep the connection and the
    response in memory forever. The monitor looks at all connections every `seconds`. A connection
    is reset if both looks found the same response in progress with unsent bytes, and the client
    has read fewer than 1,000 bytes per second in between. Unsent bytes that belong to a new
    response restart the observation.
    """

    def __init__(self, connections: Collection[Any], *, seconds: float) -> None:
        """Observe connections.

        Parameters
        ----------
        connections : the protocols (`BoundedProtocol`) of all open connections
        seconds : time between two looks
        """
        self._connections = connections
        self._seconds = seconds
        self._previous: dict[Any, tuple[int, Any, int]] = {}
        """Pipeline length, newest request and unsent bytes of each connection at the last look."""

    async def keep_resetting(self) -> None:
        """Look at the connections again and again, until the task is cancelled."""
        while True:
            await asyncio.sleep(self._seconds)
            self.reset_slow()

    def reset_slow(self) -> None:
        """Reset the connections whose clients have read too little since the last look."""
        min_read = self._seconds * _MIN_READ_RATE
        current: dict[Any, tuple[int, Any, int]] = {}
        for connection in list(self._connections):
            n_unsent = connection.count_unsent_bytes()
            if not n_unsent:
                continue
            current[connection] = len(connection.pipeline), connection.cycle, n_unsent
            *requests, n_previous = self._previous.get(connection, (0, None, 0))
            has_same_requests = requests == list(current[connection][:2])
            if has_same_requests and n_unsent > n_previous - min_read:
                connection.reset()
        self._previous = current


class _PipelineFullError(Exception):
    """Stops the parser after too many pipelined requests."""


class _HostError(Exception):
    """Stops the parser at a request of HTTP/1.1 that has no Host header, or several."""


class _NullParser:
    """Parser that ignores all bytes."""

    def feed_data(self, data: bytes) -> None:
        """Ignore bytes."""


class _PipelineFlowControl(FlowControl):
    """Flow control that reads nothing from the socket while requests wait in the pipeline.

    uvicorn resumes reading after each response, even if further requests wait.
    """

    def __init__(self, transport: asyncio.Transport, pipeline: deque[Any]) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        """Resume reading unless a request waits."""
        if self.read_paused and not self._pipeline:
            super().resume_reading()


def _make_not_http() -> Problem:
    detail = (
        "requests must be HTTP/1.1 with one Host header, and at most "
        f"{_MAX_PIPELINE} must wait for a response"
    )
    return Problem(HTTPStatus.BAD_REQUEST, detail)


async def _respond_not_http(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with the problem of `_make_not_http`, as an ASGI application."""
    await render_problem(_make_not_http())(scope, receive, send)


def _make_too_many_connections(subject: str, status: HTTPStatus) -> Problem:
    detail = f"{subject} has reached its limit of connections"
    return Problem(status, detail, retry_after=RETRY_SECONDS)
