"""Errors over HTTP: one table of statuses, and one shape, the problem document (RFC 9457)."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from rappor.base.errors import (
    DecodeError,
    FileError,
    MetricError,
    MissingExtraError,
    ParamsError,
    RapporError,
    ReportError,
)
from rappor_server.base.errors import LimitError, NotFoundError, StoreError

Handler = Callable[[Request, Exception], Awaitable[Response]]

RETRY_SECONDS: Final = 5
_LIMIT_SECONDS: Final = 1.0
MEDIA_TYPE: Final = "application/problem+json"


@dataclass
class Problem(Exception):  # noqa: N818 - a problem document is what it becomes
    """An answer other than success: status, a sentence, and seconds to wait before a retry."""

    status: HTTPStatus
    detail: str
    retry_after: float | None = None
    headers: dict[str, str] | None = None


class ProblemDocument(msgspec.Struct, frozen=True):
    """The JSON object of a problem."""

    type: str
    title: str
    status: int
    detail: str


_STATUS: Final[tuple[tuple[type[RapporError], HTTPStatus], ...]] = (
    (ReportError, HTTPStatus.BAD_REQUEST),
    (LimitError, HTTPStatus.TOO_MANY_REQUESTS),
    (StoreError, HTTPStatus.SERVICE_UNAVAILABLE),
    (MetricError, HTTPStatus.NOT_FOUND),
    (NotFoundError, HTTPStatus.NOT_FOUND),
    (ParamsError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (DecodeError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (FileError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (MissingExtraError, HTTPStatus.NOT_ACCEPTABLE),
)


def problem_of(error: RapporError) -> Problem:
    """Return the problem that an error becomes, with the error's own sentence."""
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    retry_after: float | None = None
    if isinstance(error, StoreError) and error.retryable:
        retry_after = RETRY_SECONDS
    elif isinstance(error, LimitError):
        retry_after = _LIMIT_SECONDS
    return Problem(status, str(error), retry_after=retry_after)


def render(problem: Problem) -> Response:
    """Answer with a problem document."""
    document = ProblemDocument(
        "about:blank", problem.status.phrase, problem.status.value, problem.detail
    )
    headers = dict(problem.headers or {})
    if problem.retry_after is not None:
        headers["Retry-After"] = str(math.ceil(problem.retry_after))
    return Response(
        msgspec.json.encode(document),
        status_code=problem.status.value,
        media_type=MEDIA_TYPE,
        headers=headers,
    )


def handlers(render: Callable[[Problem], Response]) -> dict[Any, Handler]:
    """Return what an application does about errors: each becomes a problem, shown by `render`."""

    async def on_problem(_: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return render(error)

    async def on_rappor_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, RapporError)
        return render(problem_of(error))

    async def on_http_exception(_: Request, error: Exception) -> Response:
        """Show the problem behind a status that the framework chose: 404, 405."""
        assert isinstance(error, HTTPException)
        status = HTTPStatus(error.status_code)
        return render(Problem(status, status.description, headers=dict(error.headers or {})))

    async def on_bug(_: Request, __: Exception) -> Response:
        """Show nothing of what has failed inside."""
        return render(Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "the collector has failed"))

    return {
        Problem: on_problem,
        RapporError: on_rappor_error,
        HTTPException: on_http_exception,
        Exception: on_bug,
    }
