"""HTTP connections with limits on their number, and on the cost of slow or flooding clients.

The *head* of a request consists of its request line and its headers. *Pipelining* means that a
client sends further requests before it has received the response to the first request. *Trailers*
are headers that follow a chunked body.

uvicorn's protocol trusts its clients. `BoundedProtocol` extends it by a limit for each way in which
a client may be slow or flood the process:

| client                           | uvicorn                | here                                 |
|----------------------------------|------------------------|--------------------------------------|
| opens connections, sends nothing | keeps all of them      | 4,000 in all, 256 for a source       |
| sends a head byte by byte        | waits without limit    | `body_seconds`                       |
| sends an endless head            | reads without limit    | 16 KB                                |
| pipelines requests               | parses all of them     | 16 requests                          |
| does not read its responses      | keeps them in memory   | reset by `SlowReaderMonitor`         |
| sends a slow or large body       | waits, reads all of it | limits of `base/request_limits.py`   |

The numbers are the defaults of the settings `max_connections` and `max_source_connections`. While
more than half of all connections are taken, a source gets fewer (`limit_scarce`).

How to think about a connection. It has a queue of requests whose heads are complete. uvicorn calls
the newest request the `cycle`, and puts a request that arrives before the previous response is
complete into the `pipeline`. Responses leave in the order of the requests. A connection is in one
of these states:

    refused     The connection exceeds a limit. It gets the problem 503 (limit of all connections)
                or 429 (limit of one source), and is closed.
    waiting     No response is in progress, and the head of the next request is incomplete. A timer
                closes the connection after `body_seconds`. For the first request the timer starts
                with the connection, for later requests with the first byte after the response.
    responding  At least one request is in progress or in the pipeline. No timer runs: the
                application has limits of its own.
    closing     The client sent bytes that are not HTTP, or requested another protocol such as a
                websocket. `_NullParser` replaces the parser, so no later byte becomes a request.
                Requests that were complete before still get their responses, in their order.

Invariants:

- At most 16 requests wait in the pipeline. While a request waits, nothing is read from the socket,
  so the pipeline needs the memory of one read.
- A head has at most 16 KB, and so have the trailers of a chunked body.
- Each accepted connection uses one unit of the quota of its source until the connection is lost.

Example: a client sends three uploads and then garbage in one packet. The three heads and bodies are
complete, so three responses with 200 are sent. Then the connection is closed. If the third upload
is broken in the middle of its body, the client gets 200, 200, 400.

`SlowReaderMonitor` closes connections whose clients do not read their responses.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
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
from rappor_server.base.source_quota import limit_scarce
from rappor_server.http.device_endpoints import UPLOAD_PATH
from rappor_server.http.middleware import list_missing_headers

_HOST: Final = re.compile(
    rb"(\[[A-Za-z0-9:._~%!$&'()*+,;=-]+\]|[A-Za-z0-9._~%!$&'()*+,;=-]*)(:[0-9]*)?[ \t]*"
)
"""Matches the value of a Host header: an IP address in brackets or a name, and perhaps a port (RFC
9110 section 7.2). The name may be empty."""

# Keys of `app_state`, the dict that the lifespan of the application passes to each protocol.
SETTINGS: Final = "settings"
"""Key whose value is the `Settings` of the collector."""
METRICS: Final = "metrics"
"""Key whose value contains the Prometheus metrics (`operations/prometheus.Metrics`)."""
QUOTA: Final = "quota"
"""Key whose value is the `SourceQuota` of connections, which all protocols of a process share."""

_MAX_HEAD_BYTES: Final = 16_384
"""Largest size of a head, and of the trailers of a chunked body, in bytes. It is a convention:
other servers allow 8 to 64 KB, and a head of a device has a few hundred bytes. The packet in which
the head begins is not counted. A larger value lets a client use more memory before it is
disconnected."""
_NOT_COUNTED: Final = -1
"""Value of `_n_head_bytes` until the end of the packet in which a head or trailers begin."""
_MAX_PIPELINE: Final = 16
"""Largest number of requests of a connection that wait for a previous response. Devices do not
pipeline requests, but a few tools do. A larger value lets one packet start more work."""
_DISCARDED: Final[deque[Any]] = deque(maxlen=0)
"""Target of headers that the parser reports after a head. A deque of length 0 stores nothing."""
_MIN_READ_RATE: Final = 1000
"""Smallest rate at which a client must read its responses, in bytes per second. The slowest mobile
networks (GPRS) reach more. A larger value disconnects slower networks."""
_RESET: Final = struct.pack("ii", 1, 0)
"""Value of the socket option SO_LINGER, a C struct of two ints (on, 0 seconds). With this value,
closing discards unsent data and resets the connection."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits, one object for each connection.

    asyncio calls `connection_made`, `data_received`, `eof_received` and `connection_lost`. The
    parser (httptools) calls the methods `on_...` during `data_received`. The docstring of the
    module explains the states.
    """

    has_connection_limits: ClassVar[bool] = True
    """Whether `max_connections` and `max_source_connections` apply."""
    _timer: asyncio.TimerHandle | None = None
    """Timer that closes the connection in the state waiting, or None in any other state."""
    _is_in_head: bool = False
    """Whether the parser is inside a head, or between two chunks, where trailers may follow."""
    _n_head_bytes: int = 0
    """Bytes of the head or trailers in packets after the first, or `_NOT_COUNTED`."""
    _address: str = ""
    """Address for which the connection uses a unit of the quota; empty if it uses none."""

    def connection_made(self, transport: Any) -> None:
        """Start the timer of the first head, or refuse the connection if a limit is reached."""
        super().connection_made(transport)
        # uvicorn has created a flow control of its own, which reads while requests wait.
        self.flow = _PipelineFlowControl(transport, self.pipeline)
        if self.has_connection_limits and (refusal := self._acquire()):
            limit, problem = refusal
            self.app_state[METRICS].refused_connections.labels(limit).inc()
            self._respond_and_close(problem)
        else:
            self._start_timer()

    def _acquire(self) -> tuple[str, Problem] | None:
        """Count the connection for its source, unless a limit is reached.

        Returns
        -------
        None if the connection is accepted, otherwise the name of the reached setting and the
        problem for the client.
        """
        # uvicorn has added this connection to `connections` already, hence > and not >=.
        if len(self.connections) > self._settings.max_connections:
            status = HTTPStatus.SERVICE_UNAVAILABLE
            return "max_connections", _make_too_many_connections("the collector", status)
        if self.client is None:
            # The client has reset the connection before the process accepted it, so the socket has
            # no address of a client any more. `connection_lost` follows.
            return None
        address, _ = self.client
        limit = limit_scarce(len(self.connections) - 1, self._settings.max_connections)
        if not self.app_state[QUOTA].acquire(address, limit=limit):
            status = HTTPStatus.TOO_MANY_REQUESTS
            return "max_source_connections", _make_too_many_connections("this source", status)
        self._address = address
        return None

    def data_received(self, data: bytes) -> None:
        """Parse bytes; start the timer if the bytes begin a head; limit the size of the head."""
        super().data_received(data)
        is_waiting = self.cycle is None or self.cycle.response_complete
        if self._timer is None and is_waiting:
            # The bytes did not complete a head. They are part of a head, blank lines, or the rest
            # of a body whose response was sent early. uvicorn has stopped its own timer for idle
            # connections, so without this timer a client could stay in this state for ever.
            self._start_timer()
        if self._is_in_head:
            self._count_head(len(data))

    def on_message_begin(self) -> None:
        """Record that a head begins. The parser calls this method.

        The packet in which the head begins is not counted, because the packet may also contain the
        end of a large body.
        """
        self._is_in_head, self._n_head_bytes = True, _NOT_COUNTED
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Stop the timer and let the application respond. The parser calls this method."""
        self._is_in_head = False
        self._stop_timer()
        hosts = [value for name, value in self.headers if name == b"host"]
        least = 1 if self.parser.get_http_version() == "1.1" else 0
        if not least <= len(hosts) <= 1 or not all(map(_HOST.fullmatch, hosts)):
            # Of two Host headers, a proxy in front of the collector may use one and the collector
            # the other. Two programs may also read a wrong value in two ways. RFC 9112, section
            # 3.2, requires the status 400. The exception ends the parsing, and `send_400_response`
            # responds.
            raise _HostError
        super().on_headers_complete()
        # The parser reports trailers as headers, too. Nothing reads trailers, and a client could
        # send trailers until the memory is full. From here on they are dropped.
        self.headers = _DISCARDED  # type: ignore[assignment]
        if len(self.pipeline) > _MAX_PIPELINE:
            # The exception ends the parsing; `send_400_response` responds.
            raise _PipelineFullError

    def on_chunk_complete(self) -> None:
        """Record that trailers may follow. The parser calls this method after each chunk."""
        self._is_in_head, self._n_head_bytes = True, _NOT_COUNTED

    def on_body(self, body: bytes) -> None:
        """Pass a part of a body to the application. The parser calls this method."""
        self._is_in_head = False
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Record in the ASGI scope that the whole body has arrived. The parser calls this method.

        The application starts in a later turn of the event loop. If the body came in the same
        packet as the head, `read_body` reads the entry of the scope and needs no timer.
        """
        self._is_in_head = False
        self.scope[HAS_WHOLE_BODY] = True  # type: ignore[typeddict-unknown-key]
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer and return the unit of the quota. asyncio calls this method once."""
        self._stop_timer()
        if self._address:  # empty if the connection was refused, or lost its client before
            self.app_state[QUOTA].release(self._address)
            self._address = ""
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return whether to keep the connection open after the client closed its sending half.

        A simple device may close its half after a complete upload and still read the response. For
        any other request the closed half is treated as a disconnect, which cancels a computation,
        because an interrupted `curl` looks the same. TLS has no closed half.
        """
        cycle = self.cycle
        # No request is in progress, or its body can never be completed.
        if cycle is None or cycle.response_complete or cycle.more_body or self.scheme == "https":
            return False
        cycle.keep_alive = False
        return cycle.scope["path"] == UPLOAD_PATH

    def _unsupported_upgrade_warning(self) -> None:
        """Parse nothing more after a request for another protocol. uvicorn calls this method.

        The parser skips the body of a request with the header `Upgrade`. uvicorn would parse the
        body as the next request. A client could thus smuggle a request past a proxy that checks
        paths.
        """
        self.parser = _NullParser()  # type: ignore[assignment]
        self.cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - it may repeat sent bytes
        """Respond with 400 to bytes that are not HTTP, after all previous responses, and close.

        uvicorn calls this method when the parser fails, also by an exception of `on_...`. There are
        three cases:

        - No other request is in progress: respond now.
        - The newest request is complete, and the invalid bytes follow it: let its response be the
          last one.
        - The newest request is incomplete and waits in the pipeline: respond with the problem when
          its turn comes. The client would read an immediate response as the response to the
          previous request.
        """
        self.parser = _NullParser()  # type: ignore[assignment]
        cycle = self.cycle
        if cycle is None or cycle.response_complete or (cycle.more_body and not self.pipeline):
            self._respond_and_close(_make_not_http())
            return
        cycle.keep_alive = False
        if cycle.more_body:
            # uvicorn adds new requests on the left of the pipeline, so index 0 is the newest
            # request. Its entry is (cycle, application); another application responds instead.
            self.pipeline[0] = (cycle, _respond_not_http)  # type: ignore[assignment]

    def _respond_and_close(self, problem: Problem) -> None:
        """Write a problem to the socket without an application, and close the connection.

        No middleware sees this response, so its security headers are added here.
        """
        response = render_problem(problem)
        missing = list_missing_headers(response.raw_headers, is_secure=self.scheme == "https")
        lines = [f"HTTP/1.1 {problem.status.value} {problem.status.phrase}".encode()]
        lines += [name + b": " + value for name, value in (*response.raw_headers, *missing)]
        lines += [b"connection: close", b"", b""]
        self.transport.write(b"\r\n".join(lines) + bytes(response.body))
        self.transport.close()

    @property
    def _settings(self) -> Settings:
        """Settings of the collector."""
        settings: Settings = self.app_state[SETTINGS]
        return settings

    def count_unsent_bytes(self) -> int:
        """Return the number of bytes of responses that wait until the client reads."""
        return self.transport.get_write_buffer_size()

    def reset(self) -> None:
        """Close the connection at once and discard all unsent data.

        After an ordinary close, the operating system would keep the unsent data in its buffers for
        minutes and try to send it.
        """
        with contextlib.suppress(OSError):  # the connection is closing already
            client_socket = self.transport.get_extra_info("socket")
            client_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def _count_head(self, n_bytes: int) -> None:
        """Count a packet that ended inside a head or trailers; abort if they are too large.

        The client gets no response. No honest client sends 16 KB of headers, and a response could
        only follow the responses to earlier requests.
        """
        if self._n_head_bytes == _NOT_COUNTED:
            self._n_head_bytes = 0
            return
        self._n_head_bytes += n_bytes
        if self._n_head_bytes > _MAX_HEAD_BYTES:
            self.transport.abort()

    def _start_timer(self) -> None:
        """Begin the state waiting: the next head must be complete within `body_seconds`."""
        self._timer = self.loop.call_later(self._settings.body_seconds, self._close_late)

    def _stop_timer(self) -> None:
        """End the state waiting. A second call does nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_late(self) -> None:
        """Close the connection because the head did not arrive in time."""
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()


class OperatorProtocol(BoundedProtocol):
    """The protocol of a connection to the admin address.

    The limits on numbers of connections do not apply. If devices have used all connections, an
    operator must still reach /readyz and /metrics.
    """

    has_connection_limits = False


class SlowReaderMonitor:
    """Resets connections whose clients read their responses too slowly.

    A client that requests a large response and reads nothing would keep the connection and the
    response in memory for ever. The monitor looks at all connections every `seconds`. A connection
    is reset if two consecutive looks saw the same request in progress with unsent bytes, and the
    client has read fewer than 1,000 bytes per second in between. A response to a new request
    restarts the observation.

    Example with 15 seconds: 220,000 bytes are unsent at the first look. The client must have at
    most 205,000 unsent bytes at the second look, or the connection is reset.
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
        # State of each connection with unsent bytes at the last look: (length of the pipeline,
        # newest request, number of unsent bytes). The first two identify the response.
        self._previous: dict[Any, tuple[int, Any, int]] = {}

    async def keep_resetting_slow_readers(self) -> None:
        """Call `reset_slow` every `seconds`, until the task is cancelled."""
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
            if connection not in self._previous:
                continue
            *requests, n_previous = self._previous[connection]
            has_same_requests = requests == list(current[connection][:2])
            # Example of the comparison: see the docstring of the class. More unsent bytes than
            # before mean that the application writes faster than the client reads.
            if has_same_requests and n_unsent > n_previous - min_read:
                connection.reset()
        self._previous = current


class _PipelineFullError(Exception):
    """Stops the parser after too many pipelined requests."""


class _HostError(Exception):
    """Stops the parser at a request with a wrong Host header or several, or of HTTP/1.1 without."""


class _NullParser:
    """Parser that ignores all bytes of a connection in the state closing."""

    def feed_data(self, data: bytes) -> None:
        """Ignore bytes."""


class _PipelineFlowControl(FlowControl):
    """Flow control that reads nothing from the socket while requests wait in the pipeline.

    uvicorn resumes reading after each response, even if further requests wait. A client that sends
    faster than the collector responds would thus fill the memory.
    """

    def __init__(self, transport: asyncio.Transport, pipeline: deque[Any]) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        """Resume reading unless a request waits."""
        if self.read_paused and not self._pipeline:
            super().resume_reading()


def _make_not_http() -> Problem:
    """Return the problem 400, one sentence for every failure of the parser."""
    detail = (
        "requests must be HTTP/1.1 with one valid Host header, and at most "
        f"{_MAX_PIPELINE} must wait for a response"
    )
    return Problem(HTTPStatus.BAD_REQUEST, detail)


async def _respond_not_http(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with the problem of `_make_not_http`, as an ASGI application."""
    await render_problem(_make_not_http())(scope, receive, send)


def _make_too_many_connections(subject: str, status: HTTPStatus) -> Problem:
    """Return the problem for a connection beyond the limit of `subject`."""
    detail = f"{subject} has reached its limit of connections"
    return Problem(status, detail, retry_after=RETRY_SECONDS)
