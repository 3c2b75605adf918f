"""The analysts' endpoints: metrics, counts, estimates, frozen ranges; each needs a token."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rappor.protocol.encodings import encoding_of
from rappor.registry.metric import Metric
from rappor_server.analysis import releases
from rappor_server.analysis.question import ARROW, CSV, JSON, Question
from rappor_server.analysis.releases import Release
from rappor_server.collector import Collector
from rappor_server.problems import Problem
from rappor_server.request_limits import read_body
from rappor_server.storage import tokens
from rappor_server.storage.tokens import Token

_MAX_BODY: Final = 64_000_000
_BODY_SECONDS: Final = 60.0

Body = TypeVar("Body")


class Asked(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/metrics/NAME/estimates."""

    candidates: list[str] | None = None
    from_: str | None = msgspec.field(default=None, name="from")
    to: str | None = None
    freeze: str | None = None
    level: float = 0.05
    correction: str = "bh"
    confidence: float = 0.95
    distribution: bool = False
    all: bool = False


class Range(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/metrics/NAME/freezes."""

    from_: str = msgspec.field(name="from")
    to: str


async def metrics(request: Request) -> Response:
    """GET /v1/metrics: what may be read, how many reports there are, and what was refused."""
    collector: Collector = request.app.state.collector
    token = await _token(request, collector)
    allowed = [m for m in collector.known.registry.values() if token.allows(m.name)]
    document = await asyncio.to_thread(_describe, collector, allowed, token)
    return Response(msgspec.json.encode(document), media_type=JSON)


async def counts(request: Request) -> Response:
    """GET /v1/metrics/NAME/counts: the released sums of a range of days."""
    collector, metric = await _metric(request)
    query = request.query_params
    media_type = _media_type(request)
    released = await _release(
        collector, metric, query.get("from"), query.get("to"), query.get("freeze")
    )
    if (fingerprint := query.get("params")) is not None:
        released = _only(released, fingerprint)
    if media_type == JSON:
        return Response(msgspec.json.encode(released.to_json()), media_type=JSON)
    question = Question(what="counts", release=released, media_type=media_type)
    answer = await collector.analyst.answer(question)
    return Response(answer, media_type=media_type)


async def estimates(request: Request) -> Response:
    """POST /v1/metrics/NAME/estimates: how many devices hold each candidate."""
    collector, metric = await _metric(request)
    media_type = _media_type(request)
    body = await read_body(request, max_body=_MAX_BODY, seconds=_BODY_SECONDS)
    asked = _asked(request, body)
    if len(asked.candidates or ()) > collector.settings.max_candidates:
        raise _unfit(f"candidates must be at most {collector.settings.max_candidates:,}")
    released = await _release(collector, metric, asked.from_, asked.to, asked.freeze)
    question = Question(
        what="estimates",
        release=released,
        media_type=media_type,
        candidates=_candidates(collector, metric, asked),
        level=asked.level,
        correction=asked.correction,
        confidence=asked.confidence,
        distribution=asked.distribution,
        everything=asked.all,
    )
    answer = await collector.analyst.answer(question)
    return Response(answer, media_type=media_type)


async def freezes(request: Request) -> Response:
    """POST /v1/metrics/NAME/freezes: keep what is released of a range under a name."""
    collector, metric = await _metric(request)
    body = await read_body(request, max_body=10_000, seconds=_BODY_SECONDS)
    asked = _decode(body, Range)
    released = await _release(collector, metric, asked.from_, asked.to, None)
    name = await asyncio.to_thread(
        releases.freeze, collector.store, released, today=collector.today()
    )
    document = {"id": name, "reports": sum(c.total for c in released.collections)}
    return Response(
        msgspec.json.encode(document), status_code=HTTPStatus.CREATED.value, media_type=JSON
    )


async def _token(request: Request, collector: Collector) -> Token:
    """Return the token of a request, or raise the problem 401."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    token = None
    if scheme.lower() == "bearer" and given:
        token = await asyncio.to_thread(
            tokens.verify, collector.store, given.strip(), today=collector.today()
        )
    if token is None:
        raise Problem(
            HTTPStatus.UNAUTHORIZED,
            "reading needs a token that is neither expired nor revoked",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return token


async def _metric(request: Request) -> tuple[Collector, Metric]:
    """Return the metric of a request's path, if its token may read it."""
    collector: Collector = request.app.state.collector
    token = await _token(request, collector)
    name = request.path_params["name"]
    if not token.allows(name):
        raise Problem(HTTPStatus.FORBIDDEN, "the token does not allow this metric")
    metric = collector.known.registry.get(name)
    if metric is None:
        raise Problem(HTTPStatus.NOT_FOUND, "the metric must be one of the registry")
    return collector, metric


def _describe(collector: Collector, allowed: list[Metric], token: Token) -> dict[str, object]:
    listed = []
    for metric in allowed:
        released = releases.release(collector.store, metric, datetime.date.min, datetime.date.max)
        listed.append(
            {
                "name": metric.name,
                "description": metric.description,
                "owner": metric.owner,
                "expires": metric.expires.isoformat(),
                "fingerprint": metric.fingerprint,
                "min_reports": metric.min_reports,
                "days": [{"day": day.isoformat(), "reports": n} for day, n in released.days],
                "withheld": [day.isoformat() for day in released.withheld],
                "apart": releases.apart(collector.store, metric.name),
                "cohort_excess": [
                    {"fingerprint": sums.params.fingerprint, **excess}
                    for sums in released.collections
                    for excess in releases.cohort_excess(sums)
                ],
            }
        )
    refused = [
        row
        for row in releases.refusals(collector.store)
        if not row["metric"] or token.allows(row["metric"])
    ]
    return {"metrics": listed, "refusals": refused}


async def _release(
    collector: Collector,
    metric: Metric,
    first: str | None,
    last: str | None,
    frozen: str | None,
) -> Release:
    """Return a frozen range, or what is released of a range of days."""
    if frozen is None:
        days = _day("from", first, datetime.date.min), _day("to", last, datetime.date.max)
        if days[0] > days[1]:
            raise _unfit("from must be a day no later than to")
        return await asyncio.to_thread(releases.release, collector.store, metric, *days)
    if first is not None or last is not None:
        raise _unfit("from and to must be absent beside freeze")
    found = await asyncio.to_thread(releases.frozen, collector.store, metric.name, frozen)
    if found is None:
        raise Problem(HTTPStatus.NOT_FOUND, "freeze must name a frozen range of this metric")
    return found


def _day(name: str, text: str | None, default: datetime.date) -> datetime.date:
    if text is None:
        return default
    try:
        if len(text) == len("2026-11-30"):
            return datetime.date.fromisoformat(text)
    except ValueError:
        pass
    raise _unfit(f"{name} must be a day as 2026-11-30")


def _only(released: Release, fingerprint: str) -> Release:
    chosen = [c for c in released.collections if c.params.fingerprint == fingerprint]
    if not chosen:
        raise Problem(HTTPStatus.NOT_FOUND, "params must be a fingerprint with reports")
    return Release(
        metric=released.metric,
        first=released.first,
        last=released.last,
        collections=tuple(chosen),
        days=released.days,
        withheld=released.withheld,
    )


def _media_type(request: Request) -> str:
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


def _asked(request: Request, body: bytes) -> Asked:
    """Read the question: a JSON object, or a list of candidates as text with a query beside it."""
    media_type = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if media_type == JSON:
        return _decode(body, Asked)
    if media_type != "text/plain":
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Type must be {JSON} or text/plain"
        )
    try:
        lines = [line.rstrip("\r") for line in body.decode("utf-8-sig").split("\n")]
    except UnicodeDecodeError:
        raise _unfit("a list of candidates must be UTF-8") from None
    return _query(request.query_params, [line for line in lines if line.strip()])


def _query(query: Mapping[str, str], candidates: list[str]) -> Asked:
    numbers = ("level", "confidence", "distribution", "all")
    try:
        values = {k: json.loads(v) if k in numbers else v for k, v in query.items()}
        return msgspec.convert(values | {"candidates": candidates}, Asked)
    except (msgspec.ValidationError, ValueError, RecursionError):
        raise _unfit("the query must hold from, to, level, correction and the like") from None


def _decode(body: bytes, kind: type[Body]) -> Body:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _unfit(f"the body must fit its description: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Problem(HTTPStatus.BAD_REQUEST, "the body must be JSON") from None


def _candidates(collector: Collector, metric: Metric, asked: Asked) -> list[str] | str | None:
    if not encoding_of(metric.params).hashed:
        if asked.candidates is not None:
            raise _unfit(f"candidates must be absent for encoding {metric.params.encoding}")
        return None
    if asked.candidates is not None:
        return asked.candidates
    if (path := collector.candidates_file(metric.name)) is None:
        raise _unfit("candidates must be given: the metric names no file of them")
    return path


def _unfit(detail: str) -> Problem:
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail)
