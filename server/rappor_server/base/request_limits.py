"""Limits on the cost of requests: size and duration of a body, memory of all bodies, rate.

An upload passes the four parts of this module in this order:

    BodyBudget.allocate  opens an empty share of the memory for bodies
    RateLimit.check      429 if the source has sent too many uploads in this minute
    read_body            413 if the body is too large, 408 if it is late, 503 or 429 without memory
    decompress           413 if a gzip body unpacks to too many bytes

The memory for request bodies works like an allocator with a fixed total:

- `BodyBudget` has a number of free bytes. It belongs to one process.
- Each request opens a `BodyAllocation`, which is empty at first and grows with each chunk that
  arrives, and once more if the body is decompressed.
- The allocation is released when the response is ready, whether the request succeeded or failed.

Invariant: the free bytes plus the bytes of all open allocations are the total of the budget.

Three limits apply when an allocation grows:

1. The budget must have the bytes, else 503.
2. An allocation for an analyst must leave half of the budget free, else 503. Large queries can
   therefore not stop uploads.
3. All allocations of one source together may have a quarter of the budget, else 429. Allocations
   for analysts have no source: a token has its own limit (`queries_per_token`).

Example with a budget of 128 MB: two queries of 64 MB would fill the budget, so the second query
gets 503, while uploads continue.
"""

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

from rappor_server.base.problems import RETRY_SECONDS, Problem
from rappor_server.base.source_quota import SourceQuota, identify_source

MAX_RATIO: Final = 10
"""Largest ratio of the decompressed size of a body to its compressed size. Honest uploads stay far
below: reports are random bits in base64, and only the JSON around the bits compresses. A larger
ratio lets a small request use more memory."""
HAS_WHOLE_BODY: Final = "rappor.has_whole_body"
"""Key that `BoundedProtocol` sets in the ASGI scope to True if the whole body arrived before the
application was called."""
_BUDGET_PER_SOURCE: Final = 4
"""Budget divided by the bytes that one source may use: a source may use a quarter. With a larger
value, more hostile sources are needed to fill the budget, and an honest source with large bodies is
refused earlier."""
_PERIOD_SECONDS: Final = 60.0
"""Period of the rate limit in seconds. The setting `rate` counts uploads in a minute."""
_GZIP: Final = 16 + zlib.MAX_WBITS
"""Argument `wbits` of zlib for a gzip header. Without the 16, zlib would expect its own header."""


class BodyBudget:
    """Memory for the bodies of all requests in progress, in bytes. Not thread-safe."""

    def __init__(self, n_bytes: int, *, proxies: str = "*") -> None:
        """Create a budget whose bytes are all free.

        Parameters
        ----------
        n_bytes : size of the budget in bytes (setting `max_bodies`)
        proxies : addresses of trusted proxies, separated by commas, to which the quota of sources
            does not apply. The default "*" trusts every address.
        """
        self._free = n_bytes
        self._sources = SourceQuota(n_bytes // _BUDGET_PER_SOURCE, proxies=proxies)

    def allocate(self, address: str = "", *, min_free: int = 0) -> BodyAllocation:
        """Return an empty allocation, a context manager that releases its bytes.

        Parameters
        ----------
        address : address of the client. If it is empty, the quota of sources does not apply.
        min_free : bytes of the budget that this allocation must leave free
        """
        return BodyAllocation(self, address, min_free)

    def acquire(self, n_bytes: int, *, address: str, min_free: int) -> None:
        """Move bytes from the free bytes of the budget to an allocation.

        Raises
        ------
        Problem
            503 if fewer than `min_free` bytes would be free, 429 if the source has too many.
        """
        # `Connection: close` ends the connection. Otherwise the client would go on to send the rest
        # of the refused body, which nobody uses and no limit counts.
        if n_bytes > self._free - min_free:
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "the collector has no memory for another request body",
                retry_after=RETRY_SECONDS,
                headers={"Connection": "close"},
            )
        if address and not self._sources.acquire(address, n_bytes):
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                "this source must have fewer bytes of request bodies in progress",
                retry_after=RETRY_SECONDS,
                headers={"Connection": "close"},
            )
        self._free -= n_bytes

    def release(self, n_bytes: int, *, address: str) -> None:
        """Move bytes of an allocation back to the free bytes of the budget."""
        self._free += n_bytes
        if address:
            self._sources.release(address, n_bytes)


class BodyAllocation:
    """Bytes of a budget that one request uses. As a context manager it releases the bytes.

    Attributes
    ----------
    n_bytes : number of bytes in use, compressed and decompressed body together
    """

    __slots__ = ("_address", "_budget", "_min_free", "n_bytes")

    def __init__(self, budget: BodyBudget, address: str, min_free: int) -> None:
        self.n_bytes = 0
        self._budget = budget
        self._address = address
        self._min_free = min_free

    def grow(self, n_bytes: int) -> None:
        """Take more bytes of the budget; raise Problem 503 or 429 if a limit is reached."""
        # A refusal raises before the addition, so the release returns exactly the acquired bytes.
        self._budget.acquire(n_bytes, address=self._address, min_free=self._min_free)
        self.n_bytes += n_bytes

    def release(self) -> None:
        """Return all bytes to the budget. A second call does nothing."""
        self._budget.release(self.n_bytes, address=self._address)
        self.n_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


async def read_body(
    scope: Scope, receive: Receive, allocation: BodyAllocation, *, max_body: int, seconds: float
) -> bytes:
    """Read the body of a request, within limits of size, time and memory.

    Parameters
    ----------
    scope, receive : the request, as ASGI defines it
    allocation : memory for the body, which grows by each chunk that arrives
    max_body : largest size of the body, in bytes
    seconds : longest time in which the body must arrive

    Raises
    ------
    Problem
        413 as soon as the body is too large, 408 if it takes too long, 400 if the client
        disconnects, 503 or 429 if the allocation cannot grow.
    """
    # A body whose declared length is too large is refused before any byte is read. A smaller
    # declared length is not trusted: `_read_chunks` counts the bytes that arrive, also of a chunked
    # body, which declares no length. The cut at 20 digits bounds the conversion to int: 20 digits
    # are more than any limit.
    declared = dict(scope["headers"]).get(b"content-length", b"0").strip()
    if not declared.isdigit() or int(declared[:20]) > max_body:
        raise _make_too_large(max_body)
    if scope.get(HAS_WHOLE_BODY):
        # Nearly every upload arrives in one packet. A timer for each upload would cost more CPU
        # time than the reading.
        return await _read_chunks(receive, allocation, max_body)
    try:
        async with asyncio.timeout(seconds):
            return await _read_chunks(receive, allocation, max_body)
    except TimeoutError:
        raise Problem(
            HTTPStatus.REQUEST_TIMEOUT,
            f"a body must arrive within {seconds:g} seconds",
            headers={"Connection": "close"},
        ) from None


async def _read_chunks(receive: Receive, allocation: BodyAllocation, max_body: int) -> bytes:
    """Read chunks of a body until the body is complete.

    Raises
    ------
    Problem
        413 as soon as the chunks are larger than `max_body` bytes, 400 if the client disconnects,
        503 or 429 if the allocation cannot grow.
    """
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem(HTTPStatus.BAD_REQUEST, "the body must be complete")
        chunk: bytes = message.get("body", b"")
        allocation.grow(len(chunk))
        if allocation.n_bytes > max_body:
            raise _make_too_large(max_body)
        is_complete = not message.get("more_body", False)
        if is_complete and not body:
            return chunk  # the usual case, a body of one chunk, needs no copy
        body += chunk
        if is_complete:
            return bytes(body)


def decompress(body: bytes, encoding: str, allocation: BodyAllocation, *, max_bytes: int) -> bytes:
    """Decompress a body by its Content-Encoding, which is gzip, x-gzip, `identity` or empty.

    A gzip bomb of less than a megabyte unpacks to a gigabyte. The output is therefore limited to
    `max_bytes` and to ten times the size of the body, whichever is smaller. The memory for this
    limit is allocated before anything is unpacked.

    Parameters
    ----------
    body : body as it arrived
    encoding : value of the header Content-Encoding in lower case
    allocation : memory of the request, which grows by the limit of the output
    max_bytes : largest size of the output, in bytes (setting `max_decompressed`)

    Raises
    ------
    Problem
        413 if the output would be larger, 400 if the body is not exactly one gzip stream, 415 for
        another encoding such as `br`, 503 or 429 if the allocation cannot grow.
    """
    if encoding in ("", "identity"):
        return body
    # `x-gzip` is the older name of the same encoding (RFC 9110, section 8.4.1.3).
    if encoding not in ("gzip", "x-gzip"):
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "Content-Encoding must be gzip or absent",
            headers={"Accept-Encoding": "gzip"},
        )
    limit = min(max_bytes, MAX_RATIO * len(body))
    allocation.grow(limit)
    decompressor = zlib.decompressobj(_GZIP)
    try:
        # An output of one byte more than the limit shows that the output is too large. zlib stops
        # there, and the rest of a bomb is never unpacked.
        data = decompressor.decompress(body, limit + 1)
    except zlib.error:
        raise Problem(
            HTTPStatus.BAD_REQUEST, "the body must be gzip, as Content-Encoding says"
        ) from None
    if len(data) > limit:
        if limit == max_bytes:
            raise _make_too_large(max_bytes)
        raise Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"a body must unpack to at most {MAX_RATIO} times its size; send it uncompressed",
        )
    # `eof` is False for a truncated stream. `unused_data` contains a second stream or garbage that
    # follows the first stream. Both would give two readings of one body.
    if not decompressor.eof or decompressor.unused_data:
        raise Problem(HTTPStatus.BAD_REQUEST, "the body must be one whole gzip stream")
    return data


class RateLimit:
    """Limit on the requests of one source in a minute. It stores no address.

    The state is a dict from keyed hash of a source (16 bytes) to its number of requests in this
    minute. The key and the dict are replaced every minute. A later memory dump therefore does not
    reveal which addresses sent, and no hash of one minute can be linked with the next minute.

    Two consequences: a source may send up to twice the rate around a replacement. If there are more
    than `max_sources` sources in a minute, the surplus sources share one count, which bounds the
    memory against a sender with many addresses.
    """

    def __init__(
        self,
        rate: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        new_key: Callable[[], bytes] = lambda: os.urandom(32),
        max_sources: int = 100_000,
        noun: str = "uploads",
    ) -> None:
        """Allow `rate` requests in a minute.

        Parameters
        ----------
        rate : largest number of requests of one source in a minute; 0 means no limit
        clock : returns the time in seconds, from any origin
        new_key : returns a new key of the hash, 32 random bytes
        max_sources : largest number of sources with a count of their own. 100,000 counts use about
            10 MB of memory.
        noun : noun of the counted requests in the message of the problem, such as "uploads"
        """
        self._rate = rate
        self._noun = noun
        self._max_sources = max_sources
        self._clock = clock
        self._new_key = new_key
        self._until = -1.0
        self._key = b""
        self._counts: dict[bytes, int] = {}

    def check(self, address: str) -> None:
        """Count a request of a source; raise Problem 429 if it exceeds the rate."""
        if not self._rate:
            return
        now = self._clock()
        if now >= self._until:
            self._until, self._key, self._counts = now + _PERIOD_SECONDS, self._new_key(), {}
        source = self._hash_source(address)
        if source not in self._counts and len(self._counts) >= self._max_sources:
            source = b""  # the shared count of the surplus sources; no hash is empty
        self._counts[source] = self._counts.get(source, 0) + 1
        if self._counts[source] > self._rate:
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"a source must send at most {self._rate} {self._noun} a minute",
                retry_after=self._until - now,
            )

    def take_back(self, address: str) -> None:
        """Subtract a request that `check` counted in this minute.

        The sign-in of the pages counts every attempt before it knows the result, and takes back a
        successful attempt. An address of many honest people is therefore never locked out.
        """
        # The dict lacks the source in two cases: the minute has ended since `check`, or the source
        # had no count of its own (`max_sources`). The attempt then stays in the shared count.
        if (source := self._hash_source(address)) in self._counts:
            self._counts[source] -= 1

    def _hash_source(self, address: str) -> bytes:
        return hmac.digest(self._key, identify_source(address).encode(), hashlib.sha256)[:16]


def _make_too_large(max_bytes: int) -> Problem:
    """Return the problem 413 for a body above a limit."""
    return Problem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"a body must be at most {max_bytes:,} bytes",
        headers={"Connection": "close"},
    )
