"""Uploads that need no application: one that arrives whole is judged where it arrives.

Nearly all requests are uploads, and nearly all of those are plain and arrive in one packet. A
task, a scope and messages for each would cost more than all that the upload itself needs. Whatever
is not plain takes the road through the application (`uploads`), which answers the same.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from rappor_server.collector import Collector
from rappor_server.http.envelope import added_headers
from rappor_server.http.uploads import JSON, UPLOADS, judge_upload, refuse, success
from rappor_server.problems import expected
from rappor_server.request_limits import Share

_NOT_PLAIN: Final = frozenset(
    (
        b"content-encoding",
        b"expect",
        b"origin",
        b"transfer-encoding",
        b"upgrade",
        b"x-forwarded-for",
        b"x-forwarded-proto",
    )
)
"""Headers that the application looks at and this road does not."""

Headers = Sequence[tuple[bytes, bytes]]


class DirectUploads:
    """The uploads of a collector that are answered by their connections."""

    def __init__(self, collector: Collector) -> None:
        """Store what comes in this collector."""
        self._collector = collector
        self._is_for_pages = bool(collector.settings.origins)

    def are_plain(self, headers: Headers) -> bool:
        """Tell whether the headers of an upload ask for nothing that this road lacks."""
        named = dict(headers)
        return (
            not self._is_for_pages  # or answers name the origin
            and _NOT_PLAIN.isdisjoint(named)
            and len(named) == len(headers)
            and named.get(b"content-type") == JSON
            and int(named.get(b"content-length", b"0")) <= self._collector.settings.max_body
        )

    def take(self, exchange: Exchange, headers: Headers, body: bytes, *, address: str) -> None:
        """Judge an upload and have it stored; the exchange is answered now or later."""
        share = self._collector.bodies.share()
        try:
            submission = judge_upload(self._collector, dict(headers), address, body, share)
            stored = self._collector.enqueue(submission)
        except Exception as error:  # noqa: BLE001 - in the parser it would be a bad request
            share.release()
            self._refuse(exchange, error)
        else:
            stored.add_done_callback(functools.partial(self._answer, exchange, share))

    def _answer(self, exchange: Exchange, share: Share, stored: asyncio.Future[bytes]) -> None:
        share.release()
        if stored.cancelled():
            return
        if (error := stored.exception()) is not None:
            self._refuse(exchange, error)
            return
        headers, body = success(self._collector, stored.result())
        self._send(exchange, HTTPStatus.OK.value, headers, body)

    def _refuse(self, exchange: Exchange, error: BaseException) -> None:
        answer: Response = refuse(self._collector, expected(error))
        self._send(exchange, answer.status_code, answer.raw_headers, bytes(answer.body))

    def _send(self, exchange: Exchange, status: int, headers: Headers, body: bytes) -> None:
        exchange.send(status, headers, body)
        seconds = time.perf_counter() - exchange.began
        self._collector.metrics.observe_request(UPLOADS, status, seconds)


class Exchange:
    """One upload of a connection, and its answer; to uvicorn it looks like its own cycles."""

    message_event: Final = asyncio.Event()
    """Nobody waits for it."""

    def __init__(self, protocol: Any, *, keep_alive: bool) -> None:
        """Begin with an upload that has arrived."""
        self._protocol = protocol
        self.keep_alive = keep_alive
        self.began = time.perf_counter()
        self.scope: Mapping[str, str] = {"path": UPLOADS}
        self.more_body = False
        self.disconnected = False
        self.response_complete = False

    def send(self, status: int, headers: Headers, body: bytes) -> None:
        """Write the answer, and let the connection go on with its next request."""
        transport = self._protocol.transport
        if not transport.is_closing():
            is_secure = self._protocol.scheme == "https"
            self.keep_alive = self.keep_alive and (b"connection", b"close") not in headers
            head = _head(status, tuple(headers), is_secure=is_secure, keep_alive=self.keep_alive)
            transport.write(head + body)
        self.response_complete = True
        if not self.keep_alive:
            transport.close()
        self._protocol.on_response_complete()


@functools.lru_cache(maxsize=256)
def _head(
    status: int, headers: tuple[tuple[bytes, bytes], ...], *, is_secure: bool, keep_alive: bool
) -> bytes:
    """Write the head of an answer as uvicorn does, inside the same envelope."""
    every = [*headers, *added_headers(headers, is_secure=is_secure)]
    if not keep_alive and (b"connection", b"close") not in headers:
        every.append((b"connection", b"close"))
    lines = [name + b": " + value + b"\r\n" for name, value in every]
    return b"".join([STATUS_LINE[status], *lines, b"\r\n"])
