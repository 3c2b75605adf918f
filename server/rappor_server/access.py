"""Authentication of analysts by read token, and cancellation of work when a client disconnects.

Both the HTTP interface (`http/`) and the pages (`pages/`) use this module. A program sends its
token in a header:

    Authorization: Bearer rappor.0123456789abcdef.<43 random characters>

`require_token` returns the stored token, which contains the list of metrics that the analyst may
read, or responds with 401. The token itself decides nothing about a metric: the endpoint compares
the list with the metric of the request and responds with 403 or 404.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable
from http import HTTPStatus
from typing import Final, TypeVar

from starlette.requests import Request

from rappor_server.app.collector import Collector
from rappor_server.base.problems import Problem
from rappor_server.storage import tokens
from rappor_server.storage.tokens import Token

_T = TypeVar("_T")
_TOKEN: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
"""Pattern of a token: `storage/tokens.py` creates 67 characters, `rappor.ID.SECRET`. Any other text
is refused without a query to the database, so a flood of megabyte headers costs no query. The
length of 200 leaves room for longer secrets of later versions."""


async def find_token(collector: Collector, text: str) -> Token | None:
    """Return the stored token of a text such as `rappor.ID.SECRET`, or None.

    The result is None if the token is unknown, expired or revoked.
    """
    # The header or form field of a stranger may contain anything, for example a NUL character,
    # which PostgreSQL refuses with an error.
    if not _TOKEN.fullmatch(text):
        return None
    return await collector.look_up(tokens.verify, text, today=collector.today())


async def require_token(request: Request, collector: Collector) -> Token:
    """Return the stored token of the Authorization header of a request.

    Raises
    ------
    Problem
        401 if the header is missing, has another scheme than Bearer, or has no valid token.
    StoreError
        The database does not respond, so the token cannot be checked (503).
    """
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    token = None
    if scheme.lower() == "bearer":  # RFC 9110: names of schemes are case-insensitive
        token = await find_token(collector, text.strip())
    if token is None:
        # One sentence for all cases: a revoked token must not be distinguishable from a guess.
        raise Problem(
            HTTPStatus.UNAUTHORIZED,
            "reading needs a token that is neither expired nor revoked",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return token


async def await_while_connected(request: Request, work: Awaitable[_T]) -> _T:
    """Return the result of an awaitable; cancel the awaitable when the client disconnects.

    A computation for an analyst occupies a worker process for up to `decode_seconds`. Without the
    cancellation, a client that gives up after five seconds and sends the same request again would
    soon occupy every worker process with results that no client reads.

    Raises
    ------
    Problem
        400 if the client disconnected. No client receives the response; Prometheus counts it.
    """
    task = asyncio.ensure_future(work)
    disconnection = asyncio.create_task(_wait_for_disconnection(request))
    try:
        await asyncio.wait({task, disconnection}, return_when=asyncio.FIRST_COMPLETED)
        # If both tasks ended in the same turn of the event loop, the result is used.
        if not task.done():
            task.cancel()
            raise Problem(HTTPStatus.BAD_REQUEST, "the client disconnected")
        return task.result()
    finally:
        # A shutdown of the server cancels this coroutine during `asyncio.wait`, which cancels
        # neither of the two tasks.
        task.cancel()
        disconnection.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await disconnection


async def _wait_for_disconnection(request: Request) -> None:
    """Wait until the client has closed the connection.

    The endpoint has read the whole body already. Any message before the disconnect is the empty
    end of the body.
    """
    while (await request.receive())["type"] != "http.disconnect":
        pass
