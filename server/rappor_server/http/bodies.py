"""What analysts send: the bodies and query parameters of their requests, read and checked."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Final, Literal, TypeVar

import msgspec
from starlette.requests import Request

from rappor_server.base.problems import Problem
from rappor_server.base.request_limits import AddressShare, read_body
from rappor_server.queries.counts import ARROW, CSV, JSON, TEXT
from rappor_server.queries.estimates import EstimateBody

_MAX_BODY: Final = 64_000_000
_BODY_SECONDS: Final = 60.0

_Record = TypeVar("_Record", bound=msgspec.Struct)


class CountsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The query of GET /v1/metrics/NAME/counts; `params` is a fingerprint."""

    first: str | None = msgspec.field(default=None, name="from")
    last: str | None = msgspec.field(default=None, name="to")
    by: Literal["day", "week", "month"] | None = None
    params: str | None = None
    segments: Literal["true", "false"] = "false"


async def read_estimate_body(
    request: Request, share: AddressShare
) -> tuple[bytes, EstimateBody | None]:
    """Read the bytes of a JSON object, or of a list of candidates with a query beside it.

    They are not decoded here: a list may be long.
    """
    body = await read_body(
        request.scope, request.receive, share, max_body=_MAX_BODY, seconds=_BODY_SECONDS
    )
    media_type = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if media_type == JSON:
        if request.query_params:
            raise unfit("the query must be empty with a JSON body: write from and to in the body")
        return body, None
    if media_type != TEXT:
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Type must be {JSON} or {TEXT}")
    return body, _read_query(request.query_params, EstimateBody, without={"candidates"})


def read_counts_query(request: Request) -> CountsQuery:
    """Read which counts are asked for."""
    return _read_query(request.query_params, CountsQuery)


def read_media_type(request: Request) -> str:
    """Choose JSON, CSV or Arrow by the request's Accept; JSON where it takes anything."""
    accepted = [
        part.partition(";")[0].strip().lower()
        for part in request.headers.get("accept", "*/*").split(",")
    ]
    for media_type in accepted:
        if media_type in (JSON, CSV, ARROW):
            return media_type
        if media_type in ("*/*", "application/*"):
            return JSON
    raise Problem(HTTPStatus.NOT_ACCEPTABLE, f"Accept must be {JSON}, {CSV} or {ARROW}")


def unfit(detail: str) -> Problem:
    """Return the problem 422."""
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail)


def _read_query(
    query: Mapping[str, str], kind: type[_Record], *, without: Collection[str] = ()
) -> _Record:
    """Read query parameters; 422 names the first one that is unknown or malformed."""
    allowed = [
        field.encode_name
        for field in msgspec.structs.fields(kind)
        if field.encode_name not in without
    ]
    listed = f"allowed: {', '.join(allowed)}"
    for name in query:
        if name not in allowed:
            close = difflib.get_close_matches(name[:40], allowed, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise unfit(f"unknown query parameter {name[:40]!r}; {hint}{listed}")
    try:
        return msgspec.convert(dict(query), kind, strict=False)
    except msgspec.ValidationError as error:
        raise unfit(f"malformed query parameter: {error}; {listed}") from None
