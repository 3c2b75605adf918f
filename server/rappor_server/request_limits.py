"""Bounds on what a request may cost: its body, its time, and how often one source may send."""

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
    """Read a body while it stays within bounds.

    Raises Problem: 413 as soon as it is too long, whatever it said of its length, 408 when it
    takes too long.
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
    """Undo the content encoding, never making more than the bound.

    Raises Problem: 413 beyond it, 400 for what is not exactly one gzip stream, 415 for another
    encoding.
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
    """Uploads a minute from one source, in memory; no address is kept.

    A source is a keyed hash of its address; key and counts are forgotten every minute, so a
    source may send twice its share around the turn, and nothing outlives it. Sources beyond
    those that there is room for share one count.
    """

    def __init__(
        self,
        rate: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        max_sources: int = 100_000,
    ) -> None:
        """Take the uploads a minute, 0 for no limit."""
        self._rate = rate
        self._max_sources = max_sources
        self._clock = clock
        self._until = -1.0
        self._key = b""
        self._counts: dict[bytes, int] = {}

    def check(self, address: str) -> None:
        """Count an upload; Problem 429 beyond the rate."""
        if not self._rate:
            return
        now = self._clock()
        if now >= self._until:
            self._until, self._key, self._counts = now + _MINUTE, os.urandom(32), {}
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
