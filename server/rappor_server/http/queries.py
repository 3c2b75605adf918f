"""The analysts' endpoints: metrics, counts, estimates; each needs a token.

Every answer is made in another process. Who hangs up before it is there frees that process.
"""

from __future__ import annotations

import contextlib
import time
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rappor.registry.metric import Metric
from rappor_server.access import token_of, while_connected
from rappor_server.analysis.candidate_sources import registry_candidates
from rappor_server.analysis.kept_answers import WAITING, KeptAnswer
from rappor_server.analysis.tasks import (
    JSON,
    CountsTask,
    EstimatesTask,
    MetricsAnswer,
    MetricsTask,
    Range,
)
from rappor_server.collector import Collector
from rappor_server.http.bodies import (
    read_counts_query,
    read_estimate_body,
    read_media_type,
    read_wait,
)
from rappor_server.problems import RETRY_SECONDS, Problem
from rappor_server.storage.tokens import Token

_ASK_AGAIN: Final = {"Retry-After": "1"}


class AnalysisAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /v1/analyses/ID; `detail` says why an analysis has failed."""

    id: str
    metric: str
    state: str
    step: str
    seconds: float
    result: str
    detail: str


async def metrics(request: Request) -> Response:
    """GET /v1/metrics: what may be read, how many reports there are, and what was refused."""
    collector: Collector = request.app.state.collector
    token = await token_of(request, collector)
    registry = collector.accepted_params.registry
    readable = tuple(metric for metric in registry.values() if token.allows(metric.name))
    task = MetricsTask(metrics=readable)
    found: MetricsAnswer = await while_connected(request, collector.readers.run(task))
    refusals = [each for each in found.refusals if not each.metric or token.allows(each.metric)]
    return Response(msgspec.json.encode(MetricsAnswer(found.metrics, refusals)), media_type=JSON)


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
            file=registry_candidates(metric, registry=collector.settings.registry),
            max_candidates=collector.settings.max_candidates,
        )
        if not collector.jobs.may_start(token.id):
            most = collector.settings.jobs_per_token
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"a token must have at most {most} analyses at a time: wait for one, or cancel it",
                retry_after=1,
            )
        job = collector.jobs.start(task, owner=token.id, on_end=held.pop_all().close)
    wait = read_wait(request)
    if not await while_connected(request, collector.jobs.wait(job, wait)):
        found = await collector.answers.hand_over(job, metric=metric.name, media_type=media_type)
        status = HTTPStatus.ACCEPTED.value
        headers = _ASK_AGAIN | {"Location": _address(job.id), "Preference-Applied": "respond-async"}
        return Response(_told(job.id, found), status, headers, JSON)
    if job.result is None:
        raise job.reason()
    return Response(job.result, media_type=media_type)


async def analysis(request: Request) -> Response:
    """GET /v1/analyses/ID: how far a job is, in whichever process."""
    _, found = await _readable_analysis(request)
    return Response(_told(request.path_params["id"], found), media_type=JSON)


async def analysis_result(request: Request) -> Response:
    """GET /v1/analyses/ID/result: what a job came to; how far it is while it runs."""
    collector, found = await _readable_analysis(request)
    if found.state == "running":
        body = _told(request.path_params["id"], found)
        return Response(body, HTTPStatus.ACCEPTED.value, _ASK_AGAIN, JSON)
    if found.state == "failed":
        status = HTTPStatus(found.status)
        again = RETRY_SECONDS if status == HTTPStatus.SERVICE_UNAVAILABLE else None
        raise Problem(status, found.step, retry_after=again)
    for media_type, result in (await collector.answers.files(found)).items():
        return Response(result, media_type=media_type)
    raise _no_analysis()


async def cancel_analysis(request: Request) -> Response:
    """DELETE /v1/analyses/ID: end a job, and forget its result."""
    collector, found = await _analysis(request)
    await collector.answers.forget(found)
    return Response(status_code=HTTPStatus.NO_CONTENT.value)


async def _metric(request: Request) -> tuple[Collector, Metric, Token]:
    """Return the metric of a request's path, if its token may read it."""
    collector: Collector = request.app.state.collector
    token = await token_of(request, collector)
    name = request.path_params["name"]
    if not token.allows(name):
        raise Problem(HTTPStatus.FORBIDDEN, "the token does not allow this metric")
    return collector, collector.accepted_params.registry.metric(name), token


async def _analysis(request: Request) -> tuple[Collector, KeptAnswer]:
    """Return the analysis of a request's path, if its token has started it."""
    collector: Collector = request.app.state.collector
    token = await token_of(request, collector)
    found = await collector.answers.find_job(request.path_params["id"], token.id)
    if found is None:
        raise _no_analysis()
    return collector, found


async def _readable_analysis(request: Request) -> tuple[Collector, KeptAnswer]:
    """Return the same; MetricError if the registry has lost its metric meanwhile."""
    collector, found = await _analysis(request)
    collector.accepted_params.registry.metric(found.metric)
    return collector, found


def _no_analysis() -> Problem:
    detail = "the path must name an analysis that has not been deleted"
    return Problem(HTTPStatus.NOT_FOUND, detail)


def _address(job_id: str) -> str:
    return f"/v1/analyses/{job_id}"


def _told(job_id: str, found: KeptAnswer) -> bytes:
    """Write how far an analysis is."""
    is_running, is_waiting = found.state == "running", found.step == WAITING
    answer = AnalysisAnswer(
        id=job_id,
        metric=found.metric,
        state="waiting" if is_running and is_waiting else found.state,
        step=found.step if is_running else "",
        seconds=round((time.time() if is_running else found.seen) - found.began, 3),
        result=f"{_address(job_id)}/result",
        detail=found.step if found.state == "failed" else "",
    )
    return msgspec.json.encode(answer)
