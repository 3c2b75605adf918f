"""Clients that send slowly, read slowly or are too many: what a connection may cost.

uvicorn waits for a head without a limit of time or size, takes any number of requests before it
has answered the first, and waits without end for a peer that does not read. Here each of these
has a limit, and so has the number of connections. The body of a request is bounded where it is
read.
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
from rappor_server.base.problems import RETRY_SECONDS, Problem, render
from rappor_server.base.request_limits import WHOLE_BODY
from rappor_server.http.envelope import added_headers
from rappor_server.http.uploads import UPLOADS

SETTINGS: Final = "settings"
"""How the application names its settings in the state that it hands to the server."""
METRICS: Final = "metrics"
"""How it names its counters there."""
SOURCES: Final = "sources"
"""How it names there what connections each source has."""

_MAX_HEAD_BYTES: Final = 16_384
"""Of a head, and of the trailers after a body in chunks."""
_NOT_COUNTED: Final = -1
_MOST_WAITING: Final = 16
"""Requests of a connection that wait for the answer to the one before them.

Nothing more is read while one waits, so their bodies are what one read of the socket has brought.
"""
_UNAVAILABLE: Final = HTTPStatus.SERVICE_UNAVAILABLE
_TOO_MANY: Final = HTTPStatus.TOO_MANY_REQUESTS
_NOWHERE: Final[deque[Any]] = deque(maxlen=0)
_LEAST_READ: Final = 1000
"""Bytes a second that a peer must read of the answers that wait for it."""
_RESET: Final = struct.pack("ii", 1, 0)
"""Of SO_LINGER: what waits in the system's buffers is dropped, and the peer told so."""


class PunctualProtocol(HttpToolsProtocol):
    """The protocol of uvicorn with a timer that ends a connection whose head is late.

    Connections beyond `max_connections` get 503, and those of one source beyond
    `max_source_connections` get 429, unless they are at the operators' address.
    """

    is_bounded: ClassVar[bool] = True
    _timer: asyncio.TimerHandle | None = None
    _is_in_head: bool = False
    _n_head_bytes: int = 0
    _address: str = ""

    def connection_made(self, transport: Any) -> None:
        """Start the timer of the first request, or turn away one connection too many."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)
        if self.is_bounded and (found := self._crossed_bound()):
            bound, problem = found
            self.app_state[METRICS].refused_connections.labels(bound).inc()
            self._end_with(problem)
        else:
            self._start_timer()

    def _crossed_bound(self) -> tuple[str, Problem] | None:
        """Return which bound this connection crosses, and the answer; else count its source."""
        if len(self.connections) > self._settings.max_connections:
            return "max_connections", _too_many_connections("the collector", _UNAVAILABLE)
        address = self.client[0] if self.client else ""
        if not self.app_state[SOURCES].take(address):
            return "max_source_connections", _too_many_connections("this source", _TOO_MANY)
        self._address = address
        return None

    def data_received(self, data: bytes) -> None:
        """Start the timer of a request that has begun and has no head yet; bound its size."""
        super().data_received(data)
        is_idle = self.cycle is None or self.cycle.response_complete
        if self._timer is None and is_idle:
            self._start_timer()
        if self._is_in_head:
            self._count_head(len(data))

    def on_message_begin(self) -> None:
        """Count the bytes of the head from the next packet on: in this one an earlier body ends."""
        self._is_in_head, self._n_head_bytes = True, _NOT_COUNTED
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Stop the timer, because the head is complete, and let the application answer."""
        self._is_in_head = False
        self._stop_timer()
        super().on_headers_complete()
        self.headers = _NOWHERE  # type: ignore[assignment]  # trailers say nothing
        if len(self.pipeline) > _MOST_WAITING:
            raise _TooMuchError

    def on_chunk_complete(self) -> None:
        """Count the bytes until the next chunk, which may be trailers without an end."""
        self._is_in_head, self._n_head_bytes = True, _NOT_COUNTED

    def on_body(self, body: bytes) -> None:
        """Keep a part of a body."""
        self._is_in_head = False
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Let the application know that it need not wait for the body."""
        self._is_in_head = False
        self.scope[WHOLE_BODY] = True  # type: ignore[typeddict-unknown-key]
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer, because the connection has ended."""
        self._stop_timer()
        if self._address:
            self.app_state[SOURCES].give_back(self._address)
            self._address = ""
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer uploads whose sender sends no more and may still read; others have hung up."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body or self.scheme == "https":
            return False
        cycle.keep_alive = False
        return cycle.scope["path"] == UPLOADS

    def _unsupported_upgrade_warning(self) -> None:
        """Answer who wants another protocol, and read no more: the parser has skipped the body."""
        self.parser = _Deaf()  # type: ignore[assignment]
        self.cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - it may repeat what was sent
        """Answer bytes that are no HTTP with a problem in their turn, and end the connection."""
        self.parser = _Deaf()  # type: ignore[assignment]
        cycle = self.cycle
        if cycle is None or cycle.response_complete or (cycle.more_body and not self.pipeline):
            self._end_with(_not_http())
            return
        cycle.keep_alive = False
        if cycle.more_body:
            self.pipeline[0] = (cycle, _answer_not_http)  # type: ignore[assignment]

    def _end_with(self, problem: Problem) -> None:
        """Answer with a problem whatever was asked, and end the connection."""
        answer = render(problem)
        added = added_headers(answer.raw_headers, is_secure=self.scheme == "https")
        head = [f"HTTP/1.1 {problem.status.value} {problem.status.phrase}".encode()]
        head += [name + b": " + value for name, value in (*answer.raw_headers, *added)]
        head += [b"connection: close", b"", b""]
        self.transport.write(b"\r\n".join(head) + bytes(answer.body))
        self.transport.close()

    @property
    def _settings(self) -> Settings:
        settings: Settings = self.app_state[SETTINGS]
        return settings

    def n_unread(self) -> int:
        """Return how many bytes wait for the peer to read what was sent before."""
        return self.transport.get_write_buffer_size()

    def drop(self) -> None:
        """End the connection at once, with all that waits for its peer."""
        with contextlib.suppress(OSError):  # it ends already
            peer = self.transport.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def _count_head(self, n_bytes: int) -> None:
        """Count a packet that has ended in a head; abort the connection if there were too many."""
        if self._n_head_bytes == _NOT_COUNTED:
            self._n_head_bytes = 0
            return
        self._n_head_bytes += n_bytes
        if self._n_head_bytes > _MAX_HEAD_BYTES:
            self.transport.abort()

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self._settings.body_seconds, self._hang_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _hang_up(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()


class SlowReaders:
    """Ends connections whose peers do not read their answers."""

    def __init__(self, connections: Collection[Any], *, seconds: float) -> None:
        """Look at these connections, PunctualProtocol all of them, every few seconds."""
        self._connections = connections
        self._seconds = seconds
        self._before: dict[Any, tuple[int, Any, int]] = {}

    async def keep_ending(self) -> None:
        """Look again and again, until the task is cancelled."""
        while True:
            await asyncio.sleep(self._seconds)
            self.end_slow()

    def end_slow(self) -> None:
        """End the connections whose peers have read too little since the last look."""
        least = self._seconds * _LEAST_READ
        now: dict[Any, tuple[int, Any, int]] = {}
        for each in list(self._connections):
            if n_unread := each.n_unread():
                now[each] = len(each.pipeline), each.cycle, n_unread
                *others, n_before = self._before.get(each, (0, None, 0))
                if others == list(now[each][:2]) and n_unread > n_before - least:
                    each.drop()
        self._before = now


class OperatorsProtocol(PunctualProtocol):
    """The protocol at the operators' address, which devices cannot keep others from."""

    is_bounded = False


class _TooMuchError(Exception):
    """Ends the parsing of what a connection has sent."""


class _Deaf:
    """Parses nothing, after what could not be parsed."""

    def feed_data(self, data: bytes) -> None:
        """Ignore what comes."""


class _Flow(FlowControl):
    """Reads nothing more while requests wait for the answer to the one before them."""

    def __init__(self, transport: asyncio.Transport, waiting: deque[Any]) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        """Read on unless requests wait."""
        if self.read_paused and not self._waiting:
            super().resume_reading()


def _not_http() -> Problem:
    detail = f"requests must be HTTP/1.1, and at most {_MOST_WAITING} must wait for an answer"
    return Problem(HTTPStatus.BAD_REQUEST, detail)


async def _answer_not_http(scope: Scope, receive: Receive, send: Send) -> None:
    """Be the application that answers a request which could not be parsed to its end."""
    await render(_not_http())(scope, receive, send)


def _too_many_connections(whose: str, status: HTTPStatus) -> Problem:
    return Problem(
        status, f"{whose} has reached its limit of connections", retry_after=RETRY_SECONDS
    )
