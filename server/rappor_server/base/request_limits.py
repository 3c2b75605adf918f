"""Bounds on the cost of requests: size and time of a body, all bodies, uploads of a source."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import time
import zlib
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, Self

from starlette.types import Receive, Scope

from rappor_server.base.connection_limits import Sources, source_of
from rappor_server.base.problems import RETRY_SECONDS, Problem

MAX_RATIO: Final = 10
"""How many times its size a body may unpack to."""
WHOLE_BODY: Final = "rappor.whole_body"
"""Set in the scope of a request whose body had arrived before the application was called."""
_SHARE_OF_A_SOURCE: Final = 4
"""One source holds at most this part, a quarter, of the bytes of all bodies."""
_MINUTE: Final = 60.0
_GZIP: Final = 16 + zlib.MAX_WBITS


class BodyBudget:
    """The bytes that all bodies under way may hold together; for one thread."""

    def __init__(self, n_bytes: int, *, proxies: str = "*") -> None:
        """Allow a number of bytes, and a quarter of it to each source that is no proxy."""
        self._left = n_bytes
        self._sources = Sources(n_bytes // _SHARE_OF_A_SOURCE, proxies=proxies)

    def share(self, address: str = "", *, spare: int = 0) -> AddressShare:
        """Return a share of the budget, empty at first, to be held while a block runs.

        It takes none of the last `spare` bytes. An address bounds it by its source's share.
        """
        return AddressShare(self, address, spare)

    def take(self, n_bytes: int, *, address: str, spare: int) -> None:
        """Take bytes; the problem 503 if fewer than `spare` would be left, 429 by the source."""
        if n_bytes > self._left - spare:
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "the collector has no memory for another request body",
                retry_after=RETRY_SECONDS,
                headers={"Connection": "close"},
            )
        if address and not self._sources.take(address, n_bytes):
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                "a source must have fewer request bodies under way",
                retry_after=RETRY_SECONDS,
                headers={"Connection": "close"},
            )
        self._left -= n_bytes

    def give_back(self, n_bytes: int, *, address: str) -> None:
        """Take bytes no longer."""
        self._left += n_bytes
        if address:
            self._sources.give_back(address, n_bytes)


class AddressShare:
    """What one request holds of a budget; a context that gives it back."""

    __slots__ = ("_address", "_budget", "_spare", "n_bytes")

    def __init__(self, budget: BodyBudget, address: str, spare: int) -> None:
        self.n_bytes = 0
        self._budget = budget
        self._address = address
        self._spare = spare

    def grow(self, n_bytes: int) -> None:
        """Hold more bytes; the problem 503 or 429 if the budget has not as many left."""
        self._budget.take(n_bytes, address=self._address, spare=self._spare)
        self.n_bytes += n_bytes

    def release(self) -> None:
        """Give all of it back."""
        self._budget.give_back(self.n_bytes, address=self._address)
        self.n_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


async def read_body(
    scope: Scope, receive: Receive, share: AddressShare, *, max_body: int, seconds: float
) -> bytes:
    """Read a body of at most `max_body` bytes within some seconds, in a share of the budget.

    Raises Problem: 413 as soon as the body is too long, whatever its Content-Length, 408 when it
    takes too long, and 503 or 429 when all bodies together, or a source's, have grown too large.
    """
    declared = dict(scope["headers"]).get(b"content-length", b"0").strip()
    if not declared.isdigit() or int(declared[:20]) > max_body:
        raise _too_large(max_body)
    if scope.get(WHOLE_BODY):  # as nearly all uploads, so that no timer is needed
        return await _read_chunks(receive, share, max_body)
    try:
        async with asyncio.timeout(seconds):
            return await _read_chunks(receive, share, max_body)
    except TimeoutError:
        raise Problem(
            HTTPStatus.REQUEST_TIMEOUT,
            f"a body must arrive within {seconds:g} seconds",
            headers={"Connection": "close"},
        ) from None


async def _read_chunks(receive: Receive, share: AddressShare, max_body: int) -> bytes:
    """Read what arrives of a body until it is whole or too long."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem(HTTPStatus.BAD_REQUEST, "the body must be complete")
        chunk: bytes = message.get("body", b"")
        share.grow(len(chunk))
        if share.n_bytes > max_body:
            raise _too_large(max_body)
        is_whole = not message.get("more_body", False)
        if is_whole and not body:
            return chunk
        body += chunk
        if is_whole:
            return bytes(body)


def decompress(body: bytes, encoding: str, share: AddressShare, *, max_bytes: int) -> bytes:
    """Undo the content encoding, never unpacking more than `max_bytes`, nor the tenfold.

    Raises Problem: 413 beyond either, 400 for a body that is not exactly one gzip stream, 415 for
    another encoding, and 503 or 429 as `read_body` does.
    """
    if encoding in ("", "identity"):
        return body
    if encoding != "gzip":
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "Content-Encoding must be gzip or absent",
            headers={"Accept-Encoding": "gzip"},
        )
    bound = min(max_bytes, MAX_RATIO * len(body))
    share.grow(bound)
    machine = zlib.decompressobj(_GZIP)
    try:
        data = machine.decompress(body, bound + 1)
    except zlib.error:
        raise Problem(
            HTTPStatus.BAD_REQUEST, "the body must be gzip, as Content-Encoding says"
        ) from None
    if len(data) > bound:
        if bound == max_bytes:
            raise _too_large(max_bytes)
        raise Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"a body must unpack to at most {MAX_RATIO} times its size; send it as it is",
        )
    if not machine.eof or machine.unused_data:
        raise Problem(HTTPStatus.BAD_REQUEST, "the body must be one whole gzip stream")
    return data


class RateLimit:
    """A bound on the uploads of one source in a minute, in memory; no address is kept.

    A source (`source_of`) is a keyed hash here. Key and counts are replaced every minute, so a
    source may send twice its share around that moment. Sources beyond `max_sources` share one
    count.
    """

    def __init__(
        self,
        rate: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        new_key: Callable[[], bytes] = lambda: os.urandom(32),
        max_sources: int = 100_000,
        what: str = "uploads",
    ) -> None:
        """Allow `rate` uploads, or whatever is counted, in a minute; 0 is no limit."""
        self._rate = rate
        self._what = what
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
        source = self._source(address)
        if source not in self._counts and len(self._counts) >= self._max_sources:
            source = b""
        self._counts[source] = self._counts.get(source, 0) + 1
        if self._counts[source] > self._rate:
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"a source must send at most {self._rate} {self._what} a minute",
                retry_after=self._until - now,
            )

    def take_back(self, address: str) -> None:
        """Do not count what `check` has let pass of a source in this minute."""
        if (source := self._source(address)) in self._counts:
            self._counts[source] -= 1

    def _source(self, address: str) -> bytes:
        return hmac.digest(self._key, source_of(address).encode(), hashlib.sha256)[:16]


def _too_large(bound: int) -> Problem:
    return Problem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"a body must be at most {bound:,} bytes",
        headers={"Connection": "close"},
    )
