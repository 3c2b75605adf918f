"""Errors over HTTP: one table of status codes, and one format, the problem document (RFC 9457)."""

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
"""Seconds that a client waits after an overload or a failure of the database. A larger value
spreads the retries of many devices, and delays their reports."""
_QUERY_RETRY_SECONDS: Final = 1.0
"""Seconds that an analyst waits for the end of a previous query. A larger value sends fewer
retries."""
MEDIA_TYPE: Final = "application/problem+json"


@dataclass
class Problem(Exception):  # noqa: N818 - named after the problem document that is sent
    """A response that reports an error.

    Attributes
    ----------
    status : status code
    detail : one sentence for the client
    retry_after : seconds to wait before a retry, or None
    headers : further headers of the response
    """

    status: HTTPStatus
    detail: str
    retry_after: float | None = None
    headers: dict[str, str] | None = None


class ProblemDocument(msgspec.Struct, frozen=True):
    """The JSON object of a problem (RFC 9457)."""

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
"""Status of each class of errors. Every class that a request can raise has an entry."""


def convert_error(error: RapporError) -> Problem:
    """Return the problem of an error, with the message of the error as `detail`."""
    status = next(status for error_class, status in _STATUS if isinstance(error, error_class))
    retry_after: float | None = None
    if isinstance(error, StoreError) and error.retryable:
        retry_after = RETRY_SECONDS
    elif isinstance(error, LimitError):
        retry_after = _QUERY_RETRY_SECONDS
    return Problem(status, str(error), retry_after=retry_after)


def render_problem(problem: Problem) -> Response:
    """Return the HTTP response of a problem."""
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


def make_error_handlers(render: Callable[[Problem], Response]) -> dict[Any, Handler]:
    """Return the error handlers of an application.

    Each handler converts errors of one class into a problem, which `render` turns into a response:
    a problem document for programs, or a page for people.
    """

    async def handle_problem(_: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return render(error)

    async def handle_rappor_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, RapporError)
        return render(convert_error(error))

    async def handle_http_exception(_: Request, error: Exception) -> Response:
        """Respond with a status that the framework chose: 404 or 405."""
        assert isinstance(error, HTTPException)
        status = HTTPStatus(error.status_code)
        return render(Problem(status, status.description, headers=dict(error.headers or {})))

    async def handle_bug(_: Request, __: Exception) -> Response:
        """Respond without the message of the error, which may contain uploaded data."""
        return render(Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "the collector has failed"))

    return {
        Problem: handle_problem,
        RapporError: handle_rappor_error,
        HTTPException: handle_http_exception,
        Exception: handle_bug,
    }
