"""Clients that send slowly, or are too many: what a connection may cost before it asks anything.

uvicorn waits for a head without a limit of time or size, so a thousand half-sent ones would hold
a thousand connections. Here a head has both limits, and so has the number of connections. The
body of a request is bounded where it is read.
"""

from __future__ import annotations

import asyncio
import functools
import os
from http import HTTPStatus
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from rappor_server.problems import RETRY_SECONDS, Problem, render
from rappor_server.request_limits import WHOLE_BODY
from rappor_server.settings import Settings

ENVIRONMENT: Final = "RAPPOR_SERVER_SETTINGS"
"""Where a worker process finds the settings of its parent, as JSON."""
METRICS: Final = "metrics"
"""How the application names its counters in the state that it hands to the server."""

_MAX_HEAD_BYTES: Final = 16_384


class PunctualProtocol(HttpToolsProtocol):
    """The protocol of uvicorn with a timer that ends a connection whose head is late.

    Connections beyond `max_connections` get 503, unless they are at the operators' address.
    """

    is_bounded: ClassVar[bool] = True
    _timer: asyncio.TimerHandle | None = None
    _is_in_head: bool = False
    _n_head_bytes: int = 0

    def connection_made(self, transport: Any) -> None:
        """Start the timer of the first request, or turn away one connection too many."""
        super().connection_made(transport)
        if self.is_bounded and len(self.connections) > _settings().max_connections:
            self.app_state[METRICS].refused_connections.inc()
            self._end_with(_too_many_connections())
        else:
            self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Start the timer of a request that has begun and has no head yet; bound its size."""
        super().data_received(data)
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._start_timer()
        if self._is_in_head:
            self._n_head_bytes += len(data)
            if self._n_head_bytes > _MAX_HEAD_BYTES:
                self.transport.abort()

    def on_message_begin(self) -> None:
        """Count the bytes of the head from here on, not those of an earlier body."""
        self._is_in_head, self._n_head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Stop the timer, because the head is complete."""
        self._is_in_head = False
        self._stop_timer()
        super().on_headers_complete()
        if self.scope["method"] != "HEAD":  # whose answer has no body that its head could wait for
            self.cycle.transport = _HeadWithBody(self.cycle)  # type: ignore[assignment]

    def on_message_complete(self) -> None:
        """Tell the application that it need not wait for the body."""
        self.scope[WHOLE_BODY] = True  # type: ignore[typeddict-unknown-key]
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer, because the connection has ended."""
        self._stop_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - it may repeat what was sent
        """Answer bytes that are no HTTP with a problem too, and end the connection."""
        problem = Problem(HTTPStatus.BAD_REQUEST, "the request must be HTTP/1.1")
        self._end_with(problem)

    def _end_with(self, problem: Problem) -> None:
        """Answer with a problem whatever was asked, and end the connection."""
        answer = render(problem)
        head = [f"HTTP/1.1 {problem.status.value} {problem.status.phrase}".encode()]
        head += [name + b": " + value for name, value in answer.raw_headers]
        head += [b"connection: close", b"", b""]
        self.transport.write(b"\r\n".join(head) + bytes(answer.body))
        self.transport.close()

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(_settings().body_seconds, self._hang_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _hang_up(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()


class _HeadWithBody:
    """What an answer is written to: its head waits for the body, and both are sent at once."""

    __slots__ = ("_cycle", "_head", "_is_next", "_transport")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        self._head: bytes | None = None
        self._is_next = True

    def write(self, data: bytes) -> None:
        """Keep the head of the answer, which is what is written first once it has begun."""
        if self._head is not None:
            data, self._head = self._head + data, None
        elif self._is_next and self._cycle.response_started:
            self._head, self._is_next = data, False
            return
        self._transport.write(data)

    def close(self) -> None:
        """Send what waits, and end the connection."""
        if self._head is not None:
            self._transport.write(self._head)
        self._transport.close()

    def is_closing(self) -> bool:
        """Tell whether the connection is being ended."""
        return self._transport.is_closing()


class OperatorsProtocol(PunctualProtocol):
    """The protocol at the operators' address, which devices cannot keep others from."""

    is_bounded = False


def _too_many_connections() -> Problem:
    return Problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "the collector has as many connections as it may",
        retry_after=RETRY_SECONDS,
    )


@functools.cache
def _settings() -> Settings:
    return Settings.from_json(os.environ[ENVIRONMENT])
