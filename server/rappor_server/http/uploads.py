"""The devices' endpoints: uploads, and the registry."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from rappor.errors import RapporError, ReportError
from rappor_server.collector import Collector
from rappor_server.ingest.validate import Submission
from rappor_server.problems import Problem, problem_of, render
from rappor_server.request_limits import Share, decompress, read_body

_JSON: Final = "application/json"


async def upload(request: Request) -> Response:
    """POST /v1/reports: answer once the upload is on the disk."""
    collector: Collector = request.app.state.collector
    try:
        with collector.bodies.share() as share:
            submission = await receive(request, collector, share)
            answer = await collector.store_upload(submission)
    except (Problem, RapporError) as error:
        return _refuse(collector, error)
    stops = collector.accepted_params.stops
    return Response(stops.attach(answer, today=collector.today()), media_type=_JSON)


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
    """Tell whether a condition names a digest, as a weak tag too, which proxies make."""
    tags = (tag.strip().removeprefix("W/") for tag in if_none_match.split(","))
    return any(tag in ("*", f'"{digest}"') for tag in tags)


async def receive(request: Request, collector: Collector, share: Share) -> Submission:
    """Read an upload within all limits; count it if it is refused whole."""
    sender = collector.sender(request.headers.get("authorization", ""))
    if sender is None:
        collector.refuse("no-key")
        raise Problem(
            HTTPStatus.UNAUTHORIZED,
            "sending needs the key of this collector",
            headers={"WWW-Authenticate": "Bearer"},
        )
    if sender:
        collector.metrics.key_uploads.labels(sender).inc()
    try:
        collector.rate.check(request.client.host if request.client else "")
        return collector.read(await _body(request, collector, share))
    except ReportError as error:
        collector.refuse(error.code)
        raise
    except Problem as problem:
        collector.refuse(problem.status.name.lower().replace("_", "-"))
        raise


async def _body(request: Request, collector: Collector, share: Share) -> bytes:
    settings = collector.settings
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != _JSON:
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Type must be {_JSON}")
    body = await read_body(
        request, share, max_body=settings.max_body, seconds=settings.body_seconds
    )
    encoding = request.headers.get("content-encoding", "").strip().lower()
    return decompress(body, encoding, share, max_bytes=settings.max_decompressed)
