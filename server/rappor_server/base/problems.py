"""Error responses over HTTP: one table of status codes, and one format, the problem document.

Code below the endpoints does not depend on HTTP, and raises a `RapporError`. The endpoints, and the
limits of requests, raise a `Problem`, which has a status code. `make_error_handlers` converts both
into responses for Starlette. A program receives a problem document (RFC 9457), a person receives a
page with the same sentence:

    HTTP/1.1 429 Too Many Requests
    Content-Type: application/problem+json
    Retry-After: 1

    {"type": "about:blank", "title": "Too Many Requests", "status": 429,
     "detail": "a token must have at most 1 requests for estimates in progress: wait for one"}
"""

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
"""Error handler of Starlette. It returns the response to a request that raised an exception."""

RETRY_SECONDS: Final = 5
"""Value of `Retry-After` after an overload or a failure of the database, in seconds. It is a
convention: a restart of PostgreSQL takes a few seconds. A larger value spreads the retries of many
devices, and delays their reports."""
_QUERY_RETRY_SECONDS: Final = 1.0
"""Value of `Retry-After` while a token has a query in progress, in seconds. It is a convention:
many queries take about a second. A larger value sends fewer retries, and delays the next query of
the analyst."""
MEDIA_TYPE: Final = "application/problem+json"
"""Media type of a problem document. RFC 9457 determines the value."""


@dataclass
class Problem(Exception):  # noqa: N818 - named after the problem document that is sent
    """An error response, raised as an exception by endpoints and by limits of requests.

    Attributes
    ----------
    status : status code
    detail : one sentence for the client, without data of other clients
    retry_after : seconds to wait before a retry. None if a retry of the same request fails again.
    headers : further headers of the response, values by name
    """

    status: HTTPStatus
    detail: str
    retry_after: float | None = None
    headers: dict[str, str] | None = None


class ProblemDocument(msgspec.Struct, frozen=True):
    """The JSON object of a problem (RFC 9457).

    Attributes
    ----------
    type : always "about:blank". By RFC 9457, the problem then means no more than its status code.
    title : standard phrase of the status code
    status : status code
    detail : one sentence for the person who reads the response
    """

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
"""Status code of each class of exceptions; the first entry that matches decides.

Every class that a request can raise has an entry. `ConfigError` has none, because only commands
raise it. ParamsError, DecodeError and FileError are 422, not 400: the request is well-formed but
does not fit the metric, its data or its files."""


def convert_error(error: RapporError) -> Problem:
    """Return the problem of an exception. Its `detail` is the message of the exception."""
    status = next(status for error_class, status in _STATUS if isinstance(error, error_class))
    retry_after: float | None = None
    # A schema of another version is not retryable. A client that retried every five seconds until
    # somebody migrates the database would only add load.
    if isinstance(error, StoreError) and error.retryable:
        retry_after = RETRY_SECONDS
    elif isinstance(error, LimitError):
        retry_after = _QUERY_RETRY_SECONDS
    return Problem(status, str(error), retry_after=retry_after)


def render_problem(problem: Problem) -> Response:
    """Return the HTTP response of a problem, with a problem document as body."""
    document = ProblemDocument(
        "about:blank", problem.status.phrase, problem.status.value, problem.detail
    )
    headers = dict(problem.headers or {})
    if problem.retry_after is not None:
        # RFC 9110 allows whole seconds only. Rounding down would send the retry too early.
        headers["Retry-After"] = str(math.ceil(problem.retry_after))
    return Response(
        msgspec.json.encode(document),
        status_code=problem.status.value,
        media_type=MEDIA_TYPE,
        headers=headers,
    )


def make_error_handlers(render: Callable[[Problem], Response]) -> dict[Any, Handler]:
    """Return the error handlers of a Starlette application, by class of exception.

    Parameters
    ----------
    render : returns the response of a problem. The HTTP interface renders a problem document for
        programs (`render_problem`), the pages render HTML for people.
    """

    async def handle_problem(_: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return render(error)

    async def handle_rappor_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, RapporError)
        return render(convert_error(error))

    async def handle_http_exception(_: Request, error: Exception) -> Response:
        """Respond with a status that Starlette chose: 404 (no route) or 405 (no such method)."""
        assert isinstance(error, HTTPException)
        status = HTTPStatus(error.status_code)
        return render(Problem(status, status.description, headers=dict(error.headers or {})))

    async def handle_bug(_: Request, __: Exception) -> Response:
        """Respond to a fault of the program without its message, which may contain uploads."""
        return render(Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "the collector has failed"))

    return {
        Problem: handle_problem,
        RapporError: handle_rappor_error,
        HTTPException: handle_http_exception,
        Exception: handle_bug,
    }
