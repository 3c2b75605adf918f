"""Bounds on the cost of a request: the size and time of its body, and how often a source sends."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import time
import zlib
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from starlette.requests import ClientDisconnect, Request

from rappor_server.problems import Problem

_MINUTE: Final = 60.0
_GZIP: Final = 16 + zlib.MAX_WBITS


async def read_body(request: Request, *, max_body: int, seconds: float) -> bytes:
    """Read a body of at most `max_body` bytes within some seconds.

    Raises Problem: 413 as soon as the body is too long, whatever its Content-Length, and 408 when
    it takes too long.
    """
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared[:20]) > max_body:
        raise _too_large(max_body)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_body:
                    raise _too_large(max_body)
    except TimeoutError:
        raise Problem(
            HTTPStatus.REQUEST_TIMEOUT,
            f"a body must arrive within {seconds:g} seconds",
            headers={"Connection": "close"},
        ) from None
    except ClientDisconnect:
        raise Problem(HTTPStatus.BAD_REQUEST, "a body must arrive whole") from None
    return bytes(body)


def decompress(body: bytes, encoding: str, *, max_bytes: int) -> bytes:
    """Undo the content encoding, never unpacking more than `max_bytes`.

    Raises Problem: 413 beyond that, 400 for a body that is not exactly one gzip stream, and 415
    for another encoding.
    """
    if encoding in ("", "identity"):
        return body
    if encoding != "gzip":
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "Content-Encoding must be gzip or absent",
            headers={"Accept-Encoding": "gzip"},
        )
    machine = zlib.decompressobj(_GZIP)
    try:
        data = machine.decompress(body, max_bytes + 1)
    except zlib.error:
        raise Problem(HTTPStatus.BAD_REQUEST, "the body must be gzip, as it says") from None
    if len(data) > max_bytes:
        raise _too_large(max_bytes)
    if not machine.eof or machine.unused_data:
        raise Problem(HTTPStatus.BAD_REQUEST, "the body must be one whole gzip stream")
    return data


class RateLimit:
    """A bound on the uploads of one source in a minute, in memory; no address is kept.

    A source is a keyed hash of its address. Key and counts are replaced every minute, so a source
    may send twice its share around that moment. Sources beyond `max_sources` share one count.
    """

    def __init__(
        self,
        rate: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        new_key: Callable[[], bytes] = lambda: os.urandom(32),
        max_sources: int = 100_000,
    ) -> None:
        """Allow `rate` uploads a minute; 0 is no limit."""
        self._rate = rate
        self._max_sources = max_sources
        self._clock = clock
        self._new_key = new_key
        self._until = -1.0
        self._key = b""
        self._counts: dict[bytes, int] = {}

    def check(self, address: str) -> None:
        """Count an upload of a source; Problem 429 beyond the rate."""
        if not self._rate:
            return
        now = self._clock()
        if now >= self._until:
            self._until, self._key, self._counts = now + _MINUTE, self._new_key(), {}
        source = hmac.digest(self._key, address.encode(), hashlib.sha256)[:16]
        if source not in self._counts and len(self._counts) >= self._max_sources:
            source = b""
        self._counts[source] = self._counts.get(source, 0) + 1
        if self._counts[source] > self._rate:
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"a source must send at most {self._rate} uploads a minute",
                retry_after=self._until - now,
            )


def _too_large(bound: int) -> Problem:
    return Problem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"a body must be at most {bound:,} bytes",
        headers={"Connection": "close"},
    )
