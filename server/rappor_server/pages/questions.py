"""Questions as jobs: started by a form, looked at while they run, shown and exported at the end."""

from __future__ import annotations

import contextlib
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rappor.counts.calendar import STRETCHES
from rappor.decoding.detection import CORRECTIONS, Detection
from rappor.registry.metric import Metric
from rappor_server.access import start_job
from rappor_server.analysis.candidate_lists import KeptList
from rappor_server.analysis.candidate_sources import CandidateSource, candidates_file
from rappor_server.analysis.jobs import Job
from rappor_server.analysis.page_tasks import (
    PARTS,
    Asked,
    CompareTask,
    PageAnswer,
    PageTask,
    RankingTask,
    SegmentsTask,
    TrendTask,
)
from rappor_server.analysis.tasks import Range
from rappor_server.pages.forms import Form
from rappor_server.pages.signing import Reader, to_see
from rappor_server.problems import Problem, problem_of

_WAIT_SECONDS: Final = 0.5
"""How long a form waits for a quick answer, before the page with its progress."""
_SURE: Final = Detection()
_MOST_SMOOTHED: Final = 400
_MEDIA_TYPES: Final = {"html": "text/html", "csv": "text/csv", "json": "application/json"}


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job is, for the script of its page."""

    text: str
    is_over: bool


async def rank(request: Request, reader: Reader, form: Form) -> Response:
    """POST /pages/metrics/NAME/ranking: decode a range of days."""
    metric = reader.metric(request)
    task = RankingTask(
        asked=_asked(reader, metric, form),
        range=_range(form, "from", "to"),
        everything=form.text("all") == "yes",
    )
    return await _start(reader, task)


async def run_over_time(request: Request, reader: Reader, form: Form) -> Response:
    """POST /pages/metrics/NAME/trend: decode each day, week or month."""
    metric = reader.metric(request)
    task = TrendTask(
        asked=_asked(reader, metric, form),
        range=_range(form, "from", "to"),
        by=form.choice("by", STRETCHES),
        smooth=form.whole("smooth", 1, most=_MOST_SMOOTHED),
    )
    return await _start(reader, task)


async def compare(request: Request, reader: Reader, form: Form) -> Response:
    """POST /pages/metrics/NAME/comparison: compare two ranges of days."""
    metric = reader.metric(request)
    task = CompareTask(
        asked=_asked(reader, metric, form),
        before=_range(form, "from", "to"),
        after=_range(form, "from_after", "to_after"),
        everything=form.text("all") == "yes",
    )
    return await _start(reader, task)


async def segment(request: Request, reader: Reader, form: Form) -> Response:
    """POST /pages/metrics/NAME/segments: decode each segment."""
    metric = reader.metric(request)
    names = tuple(dimension.name for dimension in metric.segments)
    task = SegmentsTask(
        asked=_asked(reader, metric, form),
        range=_range(form, "from", "to"),
        dimension=form.choice("dimension", names) if form.text("dimension") else None,
    )
    return await _start(reader, task)


async def answer(request: Request, reader: Reader) -> Response:
    """GET /pages/answers/ID: the answer, or how far it is."""
    job = _job(request, reader)
    if job.ended is None:
        return reader.render("waiting.html", job=job, progress=_progress(reader, job))
    if job.error is not None:
        problem = problem_of(job.error)
        return reader.render(
            "problem.html",
            status=problem.status,
            title="No answer",
            detail=problem.detail,
            metric=job.metric,
        )
    found = _answered(job)
    return reader.render("answer.html", job=job, answered=found, html=found.html)


async def progress(request: Request, reader: Reader) -> Response:
    """GET /pages/answers/ID/progress: how far an answer is, for a script."""
    job = _job(request, reader)
    now = Progress(text=_progress(reader, job), is_over=job.ended is not None)
    return Response(msgspec.json.encode(now), media_type=_MEDIA_TYPES["json"])


async def file(request: Request, reader: Reader) -> Response:
    """GET /pages/answers/ID/files/NAME: a file of an answer, to be kept."""
    job = _job(request, reader)
    name = request.path_params["file"]
    if job.result is None or (content := _answered(job).files.get(name)) is None:
        raise _gone()
    return Response(
        content,
        media_type=_MEDIA_TYPES[name.rpartition(".")[2]],
        headers={"Content-Disposition": f'attachment; filename="{job.metric}-{name}"'},
    )


async def cancel(request: Request, reader: Reader, form: Form) -> Response:  # noqa: ARG001
    """POST /pages/answers/ID/cancel: end a job, and forget its answer."""
    job = _job(request, reader)
    reader.collector.jobs.cancel(job)
    return to_see(f"/pages/metrics/{job.metric}")


async def _start(reader: Reader, task: PageTask[Any]) -> Response:
    job = start_job(reader.collector, task, reader.token, contextlib.ExitStack())
    await reader.collector.jobs.wait(job, _WAIT_SECONDS)
    return to_see(f"/pages/answers/{job.id}")


def _asked(reader: Reader, metric: Metric, form: Form) -> Asked:
    return Asked(
        metric=metric,
        source=_source(reader, metric, form.text("list")),
        detection=Detection(
            level=form.share("level", _SURE.level),
            correction=form.choice("correction", CORRECTIONS),
            confidence=form.share("confidence", _SURE.confidence),
        ),
    )


def under_way(reader: Reader) -> list[Job]:
    """Return the answers that are being made for the token, whichever page has asked."""
    jobs = reader.collector.jobs.under_way(reader.token.id)
    return [job for job in jobs if job.media_type == PARTS]


def _source(reader: Reader, metric: Metric, name: str) -> CandidateSource | None:
    """Return the list of a name, or the registry's file where none is named."""
    if name:
        return KeptList(metric=metric.name, name=name)
    return candidates_file(metric, registry=reader.collector.settings.registry)


def _range(form: Form, first: str, last: str) -> Range:
    """Return a range of days; they are read here, so that a wrong one is reported at once."""
    found = Range(first=form.day(first), last=form.day(last))
    found.days()
    return found


def _job(request: Request, reader: Reader) -> Job:
    """Return the job of a request's path, if its token has started it here and may read it yet."""
    job = reader.collector.jobs.find(request.path_params["id"], reader.token.id)
    readable = [metric.name for metric in reader.metrics]
    if job is None or job.media_type != PARTS or job.metric not in readable:
        raise _gone()
    return job


def _gone() -> Problem:
    return Problem(
        HTTPStatus.NOT_FOUND,
        "this answer has been deleted: answers are kept for ten minutes after they were opened",
    )


def _answered(job: Job) -> PageAnswer:
    assert job.result is not None
    return msgspec.msgpack.decode(job.result, type=PageAnswer)


def _progress(reader: Reader, job: Job) -> str:
    seconds = reader.collector.jobs.seconds(job)
    doing = job.step or "waiting for a process"
    return f"{doing}, for {seconds:.0f} seconds"
