"""What analysts send: the bodies and query parameters of their requests, read and checked."""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request

from rappor_server.analysis.request import ARROW, CSV, JSON
from rappor_server.problems import Problem
from rappor_server.request_limits import Share, read_body

_MAX_BODY: Final = 64_000_000
_BODY_SECONDS: Final = 60.0

_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOST_NAME: Final = 64
_Share = Annotated[float, Meta(gt=0, lt=1)]
_Record = TypeVar("_Record", bound=msgspec.Struct)


class EstimateBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The body of POST /v1/metrics/NAME/estimates."""

    candidates: list[str] | None = None
    first: str | None = msgspec.field(default=None, name="from")
    last: str | None = msgspec.field(default=None, name="to")
    freeze: str | None = None
    level: _Share = 0.05
    correction: Literal["bh", "adaptive", "bonferroni"] = "bh"
    confidence: _Share = 0.95
    distribution: bool = False
    everything: bool = msgspec.field(default=False, name="all")


class CountsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The query of GET /v1/metrics/NAME/counts; `params` is a fingerprint."""

    first: str | None = msgspec.field(default=None, name="from")
    last: str | None = msgspec.field(default=None, name="to")
    freeze: str | None = None
    params: str | None = None


class FreezeBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The body of POST /v1/metrics/NAME/freezes."""

    first: str = msgspec.field(name="from")
    last: str = msgspec.field(name="to")


async def read_estimate_body(request: Request, share: Share) -> EstimateBody:
    """Read a JSON object, or a list of candidates as text with a query beside it."""
    body = await read_body(request, share, max_body=_MAX_BODY, seconds=_BODY_SECONDS)
    media_type = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if media_type == JSON:
        if request.query_params:
            raise unfit("the query must be empty beside a JSON body: write from and to in the body")
        return _decode(body, EstimateBody)
    if media_type != "text/plain":
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Type must be {JSON} or text/plain"
        )
    asked = _read_query(request.query_params, EstimateBody, without={"candidates"})
    return msgspec.structs.replace(asked, candidates=_lines(body))


async def read_freeze_body(request: Request, share: Share) -> FreezeBody:
    """Read the days of a range to be frozen."""
    body = await read_body(request, share, max_body=10_000, seconds=_BODY_SECONDS)
    return _decode(body, FreezeBody)


def read_counts_query(request: Request) -> CountsQuery:
    """Read which counts are asked for."""
    return _read_query(request.query_params, CountsQuery)


def read_day(name: str, text: str | None, default: datetime.date) -> datetime.date:
    """Read a day as 2026-11-30; the default where there is no text."""
    if text is None:
        return default
    try:
        if _DAY.fullmatch(text):
            return datetime.date.fromisoformat(text)
    except ValueError:
        pass
    raise unfit(f"{name} must be a day as 2026-11-30")


def check_freeze(name: str) -> str:
    """Return the name of a frozen range; 422 for a text that no name has, such as NUL."""
    if not (name.isascii() and name.isprintable() and len(name) <= _MOST_NAME):
        raise unfit("freeze must be the name of a frozen range")
    return name


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


def _decode(body: bytes, kind: type[_Record]) -> _Record:
    """Read a JSON body; 400 if it is no JSON, 422 if it is not of this kind."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise unfit(f"the body must fit its description: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Problem(HTTPStatus.BAD_REQUEST, "the body must be JSON") from None


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
            close = difflib.get_close_matches(name, allowed, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise unfit(f"unknown query parameter {name[:40]!r}; {hint}{listed}")
    try:
        return msgspec.convert(dict(query), kind, strict=False)
    except msgspec.ValidationError as error:
        raise unfit(f"malformed query parameter: {error}; {listed}") from None


def _lines(body: bytes) -> list[str]:
    """Return the lines of a text that are not blank."""
    try:
        lines = [line.rstrip("\r") for line in body.decode("utf-8-sig").split("\n")]
    except UnicodeDecodeError:
        raise unfit("a list of candidates must be UTF-8") from None
    return [line for line in lines if line.strip()]
