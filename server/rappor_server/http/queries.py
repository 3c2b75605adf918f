"""The analysts' endpoints: metrics, counts, estimates; each needs a token.

Every answer is made in another process. Who hangs up before it is there frees that process.
"""

from __future__ import annotations

import contextlib
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rappor.registry.metric import Metric
from rappor_server.access import start_job, token_of, while_connected
from rappor_server.analysis.candidate_sources import candidates_file
from rappor_server.analysis.jobs import Job
from rappor_server.analysis.tasks import (
    JSON,
    CountsTask,
    EstimatesTask,
    MetricOverview,
    OverviewTask,
    Range,
)
from rappor_server.collector import Collector
from rappor_server.http.bodies import (
    read_counts_query,
    read_estimate_body,
    read_media_type,
    read_wait,
)
from rappor_server.http.records import AnalysisAnswer, MetricAnswer, MetricsAnswer
from rappor_server.problems import Problem
from rappor_server.storage.tokens import Token

_ASK_AGAIN: Final = {"Retry-After": "1"}


async def metrics(request: Request) -> Response:
    """GET /v1/metrics: what may be read, how many reports there are, and what was refused."""
    collector: Collector = request.app.state.collector
    token = await token_of(request, collector)
    registry = collector.accepted_params.registry
    readable = tuple(metric for metric in registry.values() if token.allows(metric.name))
    task = OverviewTask(metrics=readable)
    overviews, refusals = await while_connected(request, collector.readers.run(task))
    answer = MetricsAnswer(
        metrics=[_describe(metric, overviews[metric.name]) for metric in readable],
        refusals=[each for each in refusals if not each.metric or token.allows(each.metric)],
    )
    return Response(msgspec.json.encode(answer), media_type=JSON)


async def counts(request: Request) -> Response:
    """GET /v1/metrics/NAME/counts: the released sums of a range of days."""
    collector, metric, _ = await _metric(request)
    query = read_counts_query(request)
    media_type = read_media_type(request)
    task = CountsTask(
        metric=metric,
        range=Range(first=query.first, last=query.last),
        params=query.params,
        media_type=media_type,
        by=query.by,
        segments=query.segments == "true",
    )
    answer = await while_connected(request, collector.readers.run(task))
    return Response(answer, media_type=media_type)


async def estimates(request: Request) -> Response:
    """POST /v1/metrics/NAME/estimates: how many devices hold each candidate.

    The request waits for the answer, unless it prefers `respond-async`: then 202 names the address
    of a job.
    """
    collector, metric, token = await _metric(request)
    media_type = read_media_type(request)
    with contextlib.ExitStack() as held:
        share = held.enter_context(collector.share_of_readers())
        body, beside = await read_estimate_body(request, share)
        task = EstimatesTask(
            metric=metric,
            body=body,
            beside=beside,
            media_type=media_type,
            file=candidates_file(metric, registry=collector.settings.registry),
            max_candidates=collector.settings.max_candidates,
        )
        job = start_job(collector, task, token, held)
    wait = read_wait(request)
    await while_connected(request, collector.jobs.wait(job, wait))
    if job.ended is None:
        status = HTTPStatus.ACCEPTED.value
        headers = _ASK_AGAIN | {"Location": _address(job), "Preference-Applied": "respond-async"}
        return Response(_told(collector, job), status, headers, JSON)
    collector.jobs.cancel(job)
    return _result(job)


async def analysis(request: Request) -> Response:
    """GET /v1/analyses/ID: how far a job is."""
    collector, job = await _job(request)
    return Response(_told(collector, job), media_type=JSON)


async def analysis_result(request: Request) -> Response:
    """GET /v1/analyses/ID/result: what a job came to; how far it is while it runs."""
    collector, job = await _job(request)
    if job.ended is None:
        return Response(_told(collector, job), HTTPStatus.ACCEPTED.value, _ASK_AGAIN, JSON)
    return _result(job)


async def cancel_analysis(request: Request) -> Response:
    """DELETE /v1/analyses/ID: end a job, and forget its result."""
    collector, job = await _job(request)
    collector.jobs.cancel(job)
    return Response(status_code=HTTPStatus.NO_CONTENT.value)


async def _metric(request: Request) -> tuple[Collector, Metric, Token]:
    """Return the metric of a request's path, if its token may read it."""
    collector: Collector = request.app.state.collector
    token = await token_of(request, collector)
    name = request.path_params["name"]
    if not token.allows(name):
        raise Problem(HTTPStatus.FORBIDDEN, "the token does not allow this metric")
    return collector, collector.accepted_params.registry.metric(name), token


async def _job(request: Request) -> tuple[Collector, Job]:
    """Return the job of a request's path, if its token has started it."""
    collector: Collector = request.app.state.collector
    token = await token_of(request, collector)
    job = collector.jobs.find(request.path_params["id"], token.id)
    if job is None:
        raise Problem(
            HTTPStatus.NOT_FOUND, "the path must name an analysis that has not been deleted"
        )
    return collector, job


def _describe(metric: Metric, seen: MetricOverview) -> MetricAnswer:
    return MetricAnswer(
        name=metric.name,
        description=metric.description,
        owner=metric.owner,
        expires=metric.expires,
        fingerprints=tuple(metric.accepted),
        min_reports=metric.min_reports,
        min_cohort=metric.min_cohort,
        days=seen.days,
        withheld=seen.withheld,
        quarantine=seen.quarantine,
        small_blocks=seen.small_blocks,
        overfull_cohorts=seen.overfull_cohorts,
    )


def _address(job: Job) -> str:
    return f"/v1/analyses/{job.id}"


def _told(collector: Collector, job: Job) -> bytes:
    """Write how far a job is."""
    answer = AnalysisAnswer(
        id=job.id,
        metric=job.metric,
        state=job.state,
        step=job.step if job.ended is None else "",
        seconds=round(collector.jobs.seconds(job), 3),
        result=f"{_address(job)}/result",
        detail=str(job.error or ""),
    )
    return msgspec.json.encode(answer)


def _result(job: Job) -> Response:
    if job.error is not None:
        raise job.error.with_traceback(None)
    return Response(job.result, media_type=job.media_type)
