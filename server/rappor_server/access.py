"""Who asks: the token that a request carries, and whether its client is still there."""

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
"""Whatever else was sent never reaches the database."""


async def find_token(collector: Collector, given: str) -> Token | None:
    """Return what a token may do, None if it is unknown, expired or revoked."""
    if not _TOKEN.fullmatch(given):
        return None
    return await collector.look_up(tokens.verify, given, today=collector.today())


async def token_of(request: Request, collector: Collector) -> Token:
    """Return the token of a request, or raise the problem 401."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    token = None
    if scheme.lower() == "bearer":
        token = await find_token(collector, given.strip())
    if token is None:
        raise Problem(
            HTTPStatus.UNAUTHORIZED,
            "reading needs a token that is neither expired nor revoked",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return token


async def while_connected(request: Request, answer: Awaitable[_T]) -> _T:
    """Await an answer; cancel it when the client disconnects."""
    task = asyncio.ensure_future(answer)
    gone = asyncio.create_task(_hang_up(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            raise Problem(HTTPStatus.BAD_REQUEST, "the client disconnected")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone


async def _hang_up(request: Request) -> None:
    """Wait until the other side has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
