"""The analysts' endpoints: metrics, counts, estimates; each needs a token.

Every answer is made in another process. Who hangs up before it is there frees that process.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable
from http import HTTPStatus
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rappor.registry.metric import Metric
from rappor_server.analysis.candidate_sources import CandidatesFile
from rappor_server.analysis.jobs import Job
from rappor_server.analysis.tasks import (
    JSON,
    CountsTask,
    EstimatesTask,
    MetricOverview,
    OverviewTask,
    Range,
)
from rappor_server.analysis.worker import Task
from rappor_server.collector import Collector
from rappor_server.http.answers import AnalysisAnswer, MetricAnswer, MetricsAnswer
from rappor_server.http.bodies import (
    read_counts_query,
    read_estimate_body,
    read_media_type,
    read_wait,
)
from rappor_server.problems import Problem
from rappor_server.storage import tokens
from rappor_server.storage.tokens import Token

_T = TypeVar("_T")
_TOKEN: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
"""Whatever else was sent never reaches the database."""
_WAIT_SECONDS: Final = 1.0
"""How long a request for estimates waits for a quick answer unless it says otherwise."""
_ASK_AGAIN: Final = {"Retry-After": "1"}


class AnalysisTask(Task, Protocol):
    """What becomes a job: of which metric, and answered in which media type."""

    @property
    def metric(self) -> Metric:
        """The metric."""
        ...

    @property
    def media_type(self) -> str:
        """What the answer is."""
        ...


async def metrics(request: Request) -> Response:
    """GET /v1/metrics: what may be read, how many reports there are, and what was refused."""
    collector: Collector = request.app.state.collector
    token = await _token(request, collector)
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

    An answer that takes longer than the request waits is a job: 202 names its address.
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
            file=candidates_file(collector, metric),
            max_candidates=collector.settings.max_candidates,
        )
        job = start_job(collector, task, token, held)
    wait = read_wait(request, _WAIT_SECONDS)
    await while_connected(request, collector.jobs.wait(job, wait))
    if job.ended is None:
        status = HTTPStatus.ACCEPTED.value
        headers = _ASK_AGAIN | {"Location": _address(job), "Preference-Applied": f"wait={wait:g}"}
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


async def find_token(collector: Collector, given: str) -> Token | None:
    """Return what a token may do, None if it is unknown, expired or revoked."""
    if not _TOKEN.fullmatch(given):
        return None
    return await collector.look_up(tokens.verify, collector.store, given, today=collector.today())


async def _token(request: Request, collector: Collector) -> Token:
    """Return the token of a request, or raise the problem 401."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    token = None
    if scheme.lower() == "bearer":
        token = await find_token(collector, given.strip())
    if token is None:
        raise Problem(
            HTTPStatus.UNAUTHORIZED,
            "reading needs a token that is neither expired nor revoked",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return token


async def _metric(request: Request) -> tuple[Collector, Metric, Token]:
    """Return the metric of a request's path, if its token may read it."""
    collector: Collector = request.app.state.collector
    token = await _token(request, collector)
    name = request.path_params["name"]
    if not token.allows(name):
        raise Problem(HTTPStatus.FORBIDDEN, "the token does not allow this metric")
    return collector, collector.accepted_params.registry.metric(name), token


async def _job(request: Request) -> tuple[Collector, Job]:
    """Return the job of a request's path, if its token has started it."""
    collector: Collector = request.app.state.collector
    token = await _token(request, collector)
    job = collector.jobs.find(request.path_params["id"], token.id)
    if job is None:
        raise Problem(HTTPStatus.NOT_FOUND, "the path must name an analysis that is still kept")
    return collector, job


def start_job(
    collector: Collector, task: AnalysisTask, token: Token, held: contextlib.ExitStack
) -> Job:
    """Start a job, which gives back what is held when it ends.

    The problem is 429 if its token has as many as it may.
    """
    if not collector.jobs.may_start(token.id):
        most = collector.settings.jobs_per_token
        raise Problem(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"a token must have at most {most} analyses at a time: wait for one, or cancel it",
            retry_after=_WAIT_SECONDS,
        )
    return collector.jobs.start(
        task,
        owner=token.id,
        metric=task.metric.name,
        media_type=task.media_type,
        on_end=held.pop_all().close,
    )


async def while_connected(request: Request, answer: Awaitable[_T]) -> _T:
    """Await an answer; cancel it when the asker hangs up."""
    task = asyncio.ensure_future(answer)
    gone = asyncio.create_task(_hang_up(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            raise Problem(HTTPStatus.BAD_REQUEST, "the asker has gone")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone


async def _hang_up(request: Request) -> None:
    """Wait until the other side has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


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
        overfull_cohorts=seen.overfull_cohorts,
    )


def candidates_file(collector: Collector, metric: Metric) -> CandidatesFile | None:
    """Return the file of candidates that a metric names, None if it names none."""
    if metric.candidates is None:
        return None
    path = Path(collector.settings.registry).parent / metric.candidates
    return CandidatesFile(metric=metric.name, name=metric.candidates, path=path)


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
