"""The analysts' endpoints: metrics, counts, estimates, frozen ranges; each needs a token."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rappor.protocol.encodings import encoding_of
from rappor.registry.metric import Metric
from rappor_server.analysis import freezes as frozen_ranges
from rappor_server.analysis import releases, warning_signs
from rappor_server.analysis.release_json import write_release
from rappor_server.analysis.releases import Release
from rappor_server.analysis.request import JSON, CandidatesFile, CountsRequest, EstimateRequest
from rappor_server.collector import Collector
from rappor_server.http.answers import FreezeAnswer, FreezesAnswer, MetricAnswer, MetricsAnswer
from rappor_server.http.bodies import (
    EstimateBody,
    check_freeze,
    read_counts_query,
    read_day,
    read_estimate_body,
    read_freeze_body,
    read_media_type,
    unfit,
)
from rappor_server.problems import Problem
from rappor_server.storage import tokens
from rappor_server.storage.store import Store
from rappor_server.storage.tokens import Token

_TOKEN: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
"""Whatever else was sent never reaches the database."""


async def metrics(request: Request) -> Response:
    """GET /v1/metrics: what may be read, how many reports there are, and what was refused."""
    collector: Collector = request.app.state.collector
    token = await _token(request, collector)
    answer = await asyncio.to_thread(_describe, collector, token)
    return Response(msgspec.json.encode(answer), media_type=JSON)


async def counts(request: Request) -> Response:
    """GET /v1/metrics/NAME/counts: the released sums of a range of days."""
    collector, metric = await _metric(request)
    query = read_counts_query(request)
    media_type = read_media_type(request)
    release = await _release(collector, metric, query.first, query.last, query.freeze)
    if query.params is not None:
        release = _only(release, query.params)
    if media_type == JSON:
        return Response(write_release(release), media_type=JSON)
    answer = await collector.analyst.answer(CountsRequest(release=release, media_type=media_type))
    return Response(answer, media_type=media_type)


async def estimates(request: Request) -> Response:
    """POST /v1/metrics/NAME/estimates: how many devices hold each candidate."""
    collector, metric = await _metric(request)
    media_type = read_media_type(request)
    with collector.bodies.share() as share:
        asked = await read_estimate_body(request, share)
    if len(asked.candidates or ()) > collector.settings.max_candidates:
        raise unfit(f"candidates must be at most {collector.settings.max_candidates:,}")
    release = await _release(collector, metric, asked.first, asked.last, asked.freeze)
    candidates = _candidates(collector, metric, asked)
    if not release.collections:
        raise unfit(_no_results(metric))
    releases.check_decodable(release)
    answer = await collector.analyst.answer(
        EstimateRequest(
            release=release,
            media_type=media_type,
            candidates=candidates,
            level=asked.level,
            correction=asked.correction,
            confidence=asked.confidence,
            distribution=asked.distribution,
            everything=asked.everything,
        )
    )
    return Response(answer, media_type=media_type)


async def freezes(request: Request) -> Response:
    """POST /v1/metrics/NAME/freezes: keep what is released of a range under a name."""
    collector, metric = await _metric(request)
    with collector.bodies.share() as share:
        asked = await read_freeze_body(request, share)
    release = await _release(collector, metric, asked.first, asked.last, None)
    name = await asyncio.to_thread(
        frozen_ranges.freeze, collector.store, release, today=collector.today()
    )
    answer = FreezeAnswer(id=name, reports=release.n_reports)
    return Response(
        msgspec.json.encode(answer), status_code=HTTPStatus.CREATED.value, media_type=JSON
    )


async def list_freezes(request: Request) -> Response:
    """GET /v1/metrics/NAME/freezes: the names of frozen ranges, and their days."""
    collector, metric = await _metric(request)
    found = await asyncio.to_thread(frozen_ranges.list_all, collector.store, metric.name)
    return Response(msgspec.json.encode(FreezesAnswer(freezes=found)), media_type=JSON)


async def delete_freeze(request: Request) -> Response:
    """DELETE /v1/metrics/NAME/freezes/ID: forget a frozen range."""
    collector, metric = await _metric(request)
    name = request.path_params["id"]
    if not await asyncio.to_thread(frozen_ranges.delete, collector.store, metric.name, name):
        raise Problem(HTTPStatus.NOT_FOUND, "the path must name a frozen range of this metric")
    return Response(status_code=HTTPStatus.NO_CONTENT.value)


async def _token(request: Request, collector: Collector) -> Token:
    """Return the token of a request, or raise the problem 401."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    token = None
    if scheme.lower() == "bearer" and _TOKEN.fullmatch(given.strip()):
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
    return collector, collector.accepted_params.registry.metric(name)


def _describe(collector: Collector, token: Token) -> MetricsAnswer:
    registry = collector.accepted_params.registry
    return MetricsAnswer(
        metrics=[
            _describe_metric(collector.store, metric, collector.today())
            for metric in registry.values()
            if token.allows(metric.name)
        ],
        refusals=[
            each
            for each in warning_signs.refusals(collector.store)
            if not each.metric or token.allows(each.metric)
        ],
    )


def _describe_metric(store: Store, metric: Metric, today: datetime.date) -> MetricAnswer:
    overview = releases.overview(store, metric, today=today)
    overfull = map(warning_signs.overfull_cohorts, overview.cohorts)
    return MetricAnswer(
        name=metric.name,
        description=metric.description,
        owner=metric.owner,
        expires=metric.expires,
        fingerprints=tuple(metric.accepted),
        min_reports=metric.min_reports,
        min_cohort=metric.min_cohort,
        days=overview.days,
        withheld=overview.withheld,
        quarantine=warning_signs.n_quarantined(store, metric.name),
        overfull_cohorts=tuple(cohort for found in overfull for cohort in found),
    )


async def _release(
    collector: Collector,
    metric: Metric,
    first: str | None,
    last: str | None,
    freeze: str | None,
) -> Release:
    """Return a frozen range, or what is released of a range of days."""
    if freeze is None:
        days = read_day("from", first, datetime.date.min), read_day("to", last, datetime.date.max)
        if days[0] > days[1]:
            raise unfit("from must be a day no later than to")
        return await asyncio.to_thread(
            releases.release, collector.store, metric, *days, today=collector.today()
        )
    if first is not None or last is not None:
        raise unfit("from and to must be absent beside freeze")
    found = await asyncio.to_thread(
        frozen_ranges.frozen, collector.store, metric.name, check_freeze(freeze)
    )
    if found is None:
        raise Problem(HTTPStatus.NOT_FOUND, "freeze must name a frozen range of this metric")
    return found


def _only(release: Release, fingerprint: str) -> Release:
    """Return a release with the counts of one parameter set; its days stay those of all sets."""
    chosen = tuple(c for c in release.collections if c.params.fingerprint == fingerprint)
    if not chosen:
        raise Problem(HTTPStatus.NOT_FOUND, "params must be a fingerprint with reports")
    return dataclasses.replace(release, collections=chosen)


def _no_results(metric: Metric) -> str:
    """Say why a range has no results, without telling how many reports there are."""
    if metric.min_reports:
        reason = (
            f"fewer reports than its min_reports of {metric.min_reports:,} in whole days that have "
            f"ended and hold {metric.min_cohort:,} reports of a cohort"
        )
    else:
        reason = "no reports"
    return f"No results for these dates: {metric.name} has {reason}."


def _candidates(
    collector: Collector, metric: Metric, asked: EstimateBody
) -> Sequence[str] | CandidatesFile | None:
    if not encoding_of(metric.params).hashed:
        if asked.candidates is not None:
            raise unfit(f"candidates must be absent for encoding {metric.params.encoding}")
        return None
    if asked.candidates is not None:
        return asked.candidates
    if (file := collector.candidates_file(metric)) is None:
        raise unfit(f"candidates must be given: {metric.name} names no file of them")
    return file
