"""The devices' endpoints: uploads, and the registry.

Nearly all requests are uploads, so theirs is an ASGI application of its own: what a framework does
for any request would cost more than all that an upload needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rappor.base.errors import RapporError, ReportError
from rappor_server.app.collector import Collector
from rappor_server.base.problems import Problem, problem_of, render
from rappor_server.base.request_limits import AddressShare, decompress, read_body
from rappor_server.ingest.validate import Submission

UPLOADS: Final = "/v1/reports"
_JSON: Final = b"application/json"


class Uploads:
    """POST /v1/reports: answer once the upload is on the disk."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Store the upload in a request, or answer why not."""
        collector: Collector = scope["app"].state.collector
        try:
            with collector.bodies.share(_address(scope)) as share:
                submission = await _read_upload(scope, receive, collector, share)
                stored = await collector.enqueue(submission)
        except (Problem, RapporError) as error:
            await _refuse(collector, error)(scope, receive, send)
            return
        answer = collector.accepted_params.stops.attach(stored, today=collector.today())
        headers = [(b"content-type", _JSON), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


class UploadsFirst:
    """Leads uploads past the framework's routes, and everything else to them."""

    def __init__(self, app: ASGIApp, *, uploads: Uploads) -> None:
        self._app = app
        self._uploads = uploads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an upload, or pass a request on."""
        if scope["type"] == "http" and scope["path"] == UPLOADS and scope["method"] == "POST":
            scope["endpoint"] = self._uploads
            await self._uploads(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _refuse(collector: Collector, error: Problem | RapporError) -> Response:
    """Answer an error here, so that its traceback, which holds the body, is freed at once.

    Caught in a frame that it passed through, it would wait with the body for the garbage
    collector: a flood of refused uploads would cost a hundred megabytes.
    """
    problem = error if isinstance(error, Problem) else problem_of(error)
    collector.metrics.uploads.labels(problem.status.value).inc()
    return render(problem)


async def registry(request: Request) -> Response:
    """GET /v1/registry: the text of the registry; 304 to who names the one in force."""
    collector: Collector = request.app.state.collector
    known = collector.accepted_params
    headers = {"ETag": f'"{known.digest}"', "Cache-Control": "no-cache"}
    if _names(request.headers.get("if-none-match", ""), known.digest):
        return Response(status_code=HTTPStatus.NOT_MODIFIED.value, headers=headers)
    return Response(known.text, media_type="application/toml", headers=headers)


def _names(if_none_match: str, digest: str) -> bool:
    """Return whether a condition names a digest, as a weak tag too, which proxies make."""
    tags = (tag.strip().removeprefix("W/") for tag in if_none_match.split(","))
    return any(tag in ("*", f'"{digest}"') for tag in tags)


async def _read_upload(
    scope: Scope, receive: Receive, collector: Collector, share: AddressShare
) -> Submission:
    """Read an upload within all limits; count it if it is refused whole."""
    headers = dict(reversed(scope["headers"]))  # the first one of a name counts
    _check_key(collector, headers)
    try:
        collector.rate.check(_address(scope))
        return collector.read(await _body(scope, receive, headers, collector, share))
    except ReportError as error:
        collector.refuse(error.code)
        raise
    except Problem as error:
        collector.refuse(error.status.name.lower().replace("_", "-"))
        raise


def _address(scope: Scope) -> str:
    """Return where a request comes from, as a trusted proxy says."""
    return scope["client"][0] if scope["client"] else ""


def _check_key(collector: Collector, headers: Mapping[bytes, bytes]) -> None:
    sender = collector.sender(headers.get(b"authorization", b"").decode("latin-1"))
    if sender is None:
        collector.refuse("no-key")
        raise Problem(
            HTTPStatus.UNAUTHORIZED,
            "uploading needs the upload key of this collector",
            headers={"WWW-Authenticate": "Bearer"},
        )
    if sender:
        collector.metrics.key_uploads.labels(sender).inc()


async def _body(
    scope: Scope,
    receive: Receive,
    headers: Mapping[bytes, bytes],
    collector: Collector,
    share: AddressShare,
) -> bytes:
    settings = collector.settings
    if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != _JSON:
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Type must be application/json")
    body = await read_body(
        scope, receive, share, max_body=settings.max_body, seconds=settings.body_seconds
    )
    encoding = headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
    return decompress(body, encoding, share, max_bytes=settings.max_decompressed)
