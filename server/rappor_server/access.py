"""Access of analysts: the token of a request, and the end of work whose client has gone."""

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
"""Form of a token. A text of any other form is refused before the database is asked."""


async def find_token(collector: Collector, text: str) -> Token | None:
    """Return the token of a text; None if the token is unknown, expired or revoked."""
    if not _TOKEN.fullmatch(text):
        return None
    return await collector.look_up(tokens.verify, text, today=collector.today())


async def require_token(request: Request, collector: Collector) -> Token:
    """Return the token in the Authorization header of a request, or raise the problem 401."""
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    token = None
    if scheme.lower() == "bearer":
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
    """Return the result of some work; cancel the work when the client disconnects.

    Work of an analyst occupies a process. Without the cancellation, clients that give up and ask
    again would occupy all processes with results that nobody reads.
    """
    task = asyncio.ensure_future(work)
    disconnection = asyncio.create_task(_wait_for_disconnection(request))
    try:
        await asyncio.wait({task, disconnection}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            raise Problem(HTTPStatus.BAD_REQUEST, "the client disconnected")
        return task.result()
    finally:
        # The request itself may be cancelled, too. Then both tasks would go on.
        task.cancel()
        disconnection.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await disconnection


async def _wait_for_disconnection(request: Request) -> None:
    """Wait until the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
