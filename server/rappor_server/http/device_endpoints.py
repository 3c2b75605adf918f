"""Endpoints for devices: POST /v1/reports (uploads) and GET /v1/registry.

An upload is one HTTP request with a JSON body. Devices put one report into each upload. An upload
is checked in this order, from cheap to expensive checks. The first failure ends the request. Only a
report that fails its own checks does not: it is refused alone, and the other reports go on.

| check                                          | status | reason in the counts of refusals    |
|------------------------------------------------|--------|-------------------------------------|
| upload key, if the collector has keys          | 401    | `no-key`                            |
| query: an upload has no query parameters       | 422    | `unprocessable-entity`              |
| rate of the source                             | 429    | `too-many-requests`                 |
| media type is JSON                             | 415    | `unsupported-media-type`            |
| declared length is a number, and allowed       | 413    | `request-entity-too-large`          |
| time in which the body arrives                 | 408    | `request-timeout`                   |
| the client does not disconnect before the end  | 400    | `bad-request`                       |
| memory for all bodies of the collector         | 503    | `service-unavailable`               |
| memory for the bodies of the source            | 429    | `too-many-requests`                 |
| length of the body that arrives                | 413    | `request-entity-too-large`          |
| content encoding is gzip, or absent            | 415    | `unsupported-media-type`            |
| memory for the decompressed body, as above     | 503    | `service-unavailable`               |
|                                                | 429    | `too-many-requests`                 |
| the body is one whole gzip stream              | 400    | `bad-request`                       |
| length of the decompressed body                | 413    | `request-entity-too-large`          |
| JSON of an upload                              | 400    | code of the error, e.g. `malformed` |
| each report by itself: parameters, cohort,     | 200    | reason of the report, by metric     |
| length, last day, stop, popcount               |        |                                     |
| queue of uploads, and commit to the inbox      | 503    | none: the device retries            |

The response is sent after the upload is on the disk:

    200 {"reports":[{"status":"accepted"}]}
    200 {"reports":[{"status":"refused","reason":"expired"}]}

Nearly all requests are uploads. Their endpoint is therefore an ASGI application without Starlette's
`Request` and `Response`, which would cost more CPU time than the upload itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rappor.base.errors import RapporError, ReportError
from rappor_server.app.collector import Collector
from rappor_server.base.problems import Problem, convert_error, render_problem
from rappor_server.base.query_parameters import check_names
from rappor_server.base.request_limits import BodyAllocation, decompress, read_body
from rappor_server.ingest.validate import Submission

UPLOAD_PATH: Final = "/v1/reports"
_JSON: Final = b"application/json"
_REASONS: Final = {
    HTTPStatus.BAD_REQUEST: "bad-request",
    HTTPStatus.REQUEST_TIMEOUT: "request-timeout",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request-entity-too-large",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "unsupported-media-type",
    HTTPStatus.UNPROCESSABLE_ENTITY: "unprocessable-entity",
    HTTPStatus.TOO_MANY_REQUESTS: "too-many-requests",
    HTTPStatus.SERVICE_UNAVAILABLE: "service-unavailable",
}
"""Reason in the counts of refusals, by status of the problem that refuses an upload. Python cannot
provide the names: those of 413 and 422 differ between its versions, and the counts of one database
would have two reasons for one problem."""


class UploadEndpoint:
    """POST /v1/reports: store an upload, and respond after the upload is on the disk.

    The method of the request is not checked here, because only POST requests reach the endpoint.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Store the upload in the body of a request, or respond with a problem."""
        collector: Collector = scope["app"].state.collector
        try:
            # The bytes of the body stay allocated until the commit, because the queue contains
            # the reports of the upload.
            with collector.body_budget.allocate(_get_address(scope)) as allocation:
                submission = await _parse_request(scope, receive, collector, allocation)
                response_body = await collector.enqueue(submission)
        except (Problem, RapporError) as error:
            await _refuse(collector, error)(scope, receive, send)
            return
        # `response_body` has the status of each report, as the registry at the time of parsing
        # decided. The stops are added now, because a reload may have changed them during the
        # commit.
        body = collector.accepted_params.stops.attach(response_body, today=collector.today())
        headers = [(b"content-type", _JSON), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class UploadShortcut:
    """Middleware that sends uploads directly to their endpoint, before Starlette's router."""

    def __init__(self, app: ASGIApp, *, endpoint: UploadEndpoint) -> None:
        self._app = app
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the endpoint for an upload, and the application for any other request."""
        if scope["type"] == "http" and scope["path"] == UPLOAD_PATH and scope["method"] == "POST":
            # Starlette's router sets this key for all other requests. The middleware that measures
            # response times finds the path of the endpoint by it.
            scope["endpoint"] = self._endpoint
            await self._endpoint(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _refuse(collector: Collector, error: Problem | RapporError) -> Response:
    """Count a refused upload by its status, and return the response.

    `problem` is a local variable of this function, and not of `UploadEndpoint.__call__`. The
    traceback of an error references the frame of `__call__`, which contains the body. If a variable
    of that frame referenced the error, error and frame would form a cycle, and only the garbage
    collector would free the body. (Python deletes the name `error` at the end of its `except`.) A
    flood of refused uploads once used a hundred megabytes in this way.
    """
    problem = error if isinstance(error, Problem) else convert_error(error)
    collector.metrics.uploads.labels(problem.status.value).inc()
    return render_problem(problem)


async def get_registry(request: Request) -> Response:
    """GET /v1/registry: return the text of the registry, or 304 if the client has it already."""
    collector: Collector = request.app.state.collector
    current = collector.accepted_params
    # "no-cache" allows a cache to store the text, but before each use the cache must ask the
    # collector with the ETag. A reload therefore reaches every client at its next request.
    headers = {"ETag": f'"{current.digest}"', "Cache-Control": "no-cache"}
    if _matches_digest(request.headers.get("if-none-match", ""), current.digest):
        return Response(status_code=HTTPStatus.NOT_MODIFIED.value, headers=headers)
    return Response(current.text, media_type="application/toml", headers=headers)


def _matches_digest(if_none_match: str, digest: str) -> bool:
    """Return whether an If-None-Match header lists a digest.

    The header is a list of ETags in quotes, or "*". A proxy that compresses responses changes the
    tag "..." into the weak tag W/"...".
    """
    tags = (tag.strip().removeprefix("W/") for tag in if_none_match.split(","))
    return any(tag in ("*", f'"{digest}"') for tag in tags)


async def _parse_request(
    scope: Scope, receive: Receive, collector: Collector, allocation: BodyAllocation
) -> Submission:
    """Read and parse an upload within all limits, and count an upload that is refused as a whole.

    Raises
    ------
    Problem
        401 without an upload key, 422 with a query, 429 beyond the rate limit, and the problems of
        `read_body` and `decompress`
    ReportError
        The body is not an upload (400).
    """
    # Of two headers with one name, the first one counts.
    headers = dict(reversed(scope["headers"]))
    _check_key(collector, headers)
    try:
        # The router, which checks the queries of other requests, sees no upload.
        if scope["query_string"]:
            check_names(QueryParams(scope["query_string"]), ())
        collector.rate_limit.check(_get_address(scope))
        return collector.parse_upload(
            await _read_upload(scope, receive, headers, collector, allocation)
        )
    except ReportError as error:
        collector.count_refusal(error.code)
        raise
    except Problem as error:
        collector.count_refusal(_REASONS[error.status])
        raise


def _get_address(scope: Scope) -> str:
    """Return the address of the client, or an empty text for a Unix socket.

    Behind a trusted proxy, `ForwardedHeaders` has replaced the address of the proxy.
    """
    return scope["client"][0] if scope["client"] else ""


def _check_key(collector: Collector, headers: Mapping[bytes, bytes]) -> None:
    """Count the upload by the name of its upload key; raise Problem 401 without a valid key."""
    # Headers are bytes without an encoding. Latin-1 decodes all bytes, and never fails.
    name = collector.find_upload_key(headers.get(b"authorization", b"").decode("latin-1"))
    if name is None:
        collector.count_refusal("no-key")
        raise Problem(
            HTTPStatus.UNAUTHORIZED,
            "uploading needs the upload key of this collector",
            headers={"WWW-Authenticate": "Bearer"},
        )
    # The name is empty if the collector has no upload keys. Then there is nothing to count by key.
    if name:
        collector.metrics.key_uploads.labels(name).inc()


async def _read_upload(
    scope: Scope,
    receive: Receive,
    headers: Mapping[bytes, bytes],
    collector: Collector,
    allocation: BodyAllocation,
) -> bytes:
    """Read and decompress the body of an upload.

    Raises
    ------
    Problem
        415 for another media type than JSON, and the problems of `read_body` and `decompress`
    """
    settings = collector.settings
    # A web page of any origin can send text/plain without asking the collector (CORS). It cannot
    # send application/json, unless the setting `origins` allows it.
    if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != _JSON:
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Type must be application/json")
    body = await read_body(
        scope, receive, allocation, max_body=settings.max_body, seconds=settings.body_seconds
    )
    encoding = headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
    return decompress(body, encoding, allocation, max_bytes=settings.max_decompressed)
