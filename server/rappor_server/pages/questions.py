"""Results by their addresses: computed for the first reader, kept as files, shown to all.

An address names the metric, the question, the last day, which is closed, and the digest of an
uploaded list, so it shows the same to everybody at any time. An incomplete address leads to the
complete one.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rappor.base.sentence_numbers import format_count
from rappor.counts.calendar import STRETCHES
from rappor.estimator.error_control import CORRECTIONS, ErrorControl
from rappor.registry.metric import Metric
from rappor_server.access import await_while_connected
from rappor_server.base.problems import Problem
from rappor_server.operations.metric_health import MetricHealth
from rappor_server.pages.forms import Form
from rappor_server.pages.signing import Reader, to_see
from rappor_server.queries.candidate_sources import CandidateSource, UploadedList
from rappor_server.queries.page_queries import (
    CompareQuery,
    OverviewQuery,
    PageQuery,
    PngTask,
    RankingQuery,
    ResultPage,
    SegmentsQuery,
    TrendQuery,
)
from rappor_server.queries.query import Range, Subject, parse_day
from rappor_server.queries.results import BACKGROUND, ResultState
from rappor_server.storage.blocks import find_last_day

_WAITING: Final = "waiting for a process"
_WAIT_SECONDS: Final = 0.5
"""How long a page waits for a quick answer, before it shows how far it is."""
_SURE: Final = ErrorControl()
_MOST_SMOOTHED: Final = 400
_MEDIA_TYPES: Final = {
    "html": "text/html", "csv": "text/csv", "json": "application/json",
    "svg": "image/svg+xml", "png": "image/png",
}  # fmt: skip
_DEFAULTS: Final = {"smooth": "1", "level": "5", "correction": "bh", "confidence": "95"}
_FIELDS: Final = ("from", "to", "from_after", "to_after", "by", "dimension", "list", "all",
                  "forged", *_DEFAULTS)  # fmt: skip
"""What an address may say, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A query of a request, with the path and the fields of its address, and its last day."""

    metric: Metric
    query: PageQuery[Any]
    path: str
    fields: str
    last: str

    @property
    def address(self) -> str:
        """The address of the result."""
        return f"{self.path}?{self.fields}"


async def first(request: Request, reader: Reader) -> Response:
    """GET /pages/metrics/NAME: lead to what the metric says now."""
    return to_see(f"/pages/metrics/{reader.metric(request).name}/overview")


async def answer(request: Request, reader: Reader) -> Response:
    """GET /pages/metrics/NAME/QUESTION: the answer, or how far it is."""
    asked = await _question(request, reader)
    if f"{request.url.query}" != asked.fields:
        return to_see(asked.address)
    results, owner = reader.collector.results, reader.token.id
    found = await results.find(asked.query)
    if found is None:
        if not reader.collector.results.may_start(owner):
            return _busy(reader, asked, owner)
        found = await results.find_or_start(
            asked.query, owner=owner, address=asked.address, wait=_WAIT_SECONDS
        )
        if found is None and not reader.collector.results.may_start(owner):
            return _busy(reader, asked, owner)
    return await _shown(reader, asked, found)


async def progress(request: Request, reader: Reader) -> Response:
    """GET /pages/metrics/NAME/QUESTION/progress: how far an answer is, for a script."""
    asked = await _question(request, reader)
    found = await reader.collector.results.find(asked.query)
    is_over = found is None or found.state != "running"
    return JSONResponse({"text": _progress(found), "is_over": is_over})


async def file(request: Request, reader: Reader) -> Response:
    """GET /pages/metrics/NAME/QUESTION/files/FILE: a file of an answer, to be kept."""
    asked = await _question(request, reader)
    found = await reader.collector.results.find(asked.query)
    name = request.path_params["file"]
    files = {} if found is None else await reader.collector.results.read_files(found)
    stem, _, kind = name.rpartition(".")
    if (f"{stem}.svg" if kind == "png" else name) not in files:
        raise Problem(HTTPStatus.NOT_FOUND, "there is no such file: open the answer first")
    if kind == "png":
        pixels = PngTask(svg=files[f"{stem}.svg"])
        files[name] = await await_while_connected(request, reader.collector.readers.run(pixels))
    return Response(
        files[name],
        media_type=_MEDIA_TYPES[kind],
        headers={"Content-Disposition": f'attachment; filename="{asked.metric.name}-{name}"'},
    )


async def cancel(request: Request, reader: Reader, form: Form) -> Response:  # noqa: ARG001
    """POST /pages/metrics/NAME/QUESTION/cancel: stop making an answer."""
    asked = await _question(request, reader)
    await reader.collector.results.cancel(asked.query)
    return to_see(f"/pages/metrics/{asked.metric.name}/ask")


async def card(reader: Reader, health: MetricHealth) -> tuple[str, ResultState | None]:
    """Return what the list of metrics shows of one; it is made if there is none yet.

    The text says why there is none and none can be made.
    """
    if not health.days:
        return "Nothing to show yet: send reports, and the answer appears the day after.", None
    query = await reader.collector.overview(health.metric)
    if not query.subject.has_candidates:
        return "No candidates yet: add a list under Ask, and its most common strings appear.", None
    results = reader.collector.results
    found = await results.find(query)
    if found is None and not results.is_busy:
        found = await results.find_or_start(query, owner=BACKGROUND)
    return "", found


async def _shown(reader: Reader, asked: Question, found: ResultState | None) -> Response:
    collector, metric = reader.collector, asked.metric
    more = {"metric": metric, "asked": asked, "now": asked.path.rpartition("/")[2]}
    if found is None or found.state == "running":
        return reader.render("waiting.html", progress=_progress(found), **more)
    if found.state == "failed":
        status = HTTPStatus(found.status)
        needs_list = not asked.query.subject.has_candidates
        more |= {"status": status, "detail": found.step, "needs_list": needs_list, "others": ()}
        return reader.render("unanswered.html", **more)
    latest = await collector.look_up(find_last_day, metric, today=collector.today())
    return reader.render("answer.html", page=read_page(found), latest=f"{latest}", **more)


def read_page(found: ResultState) -> ResultPage:
    """Return the page of a result that is done."""
    return msgspec.msgpack.decode(found.page, type=ResultPage)


def _busy(reader: Reader, asked: Question, owner: str) -> Response:
    """Show which other question of the same token must be answered first."""
    most = reader.collector.settings.queries_per_token
    page = reader.render(
        "unanswered.html",
        status=HTTPStatus.TOO_MANY_REQUESTS,
        metric=asked.metric,
        asked=asked,
        now=asked.path.rpartition("/")[2],
        needs_list=False,
        detail=f"A token must have at most {format_count(most, 'question')} in progress.",
        others=reader.collector.results.list_addresses(owner),
    )
    page.headers["Retry-After"] = "5"
    return page


async def _question(request: Request, reader: Reader) -> Question:
    """Read a question; its days end with the last one that is closed."""
    metric, collector = reader.metric(request), reader.collector
    kind = request.path_params["question"]
    if kind not in _QUERIES:
        raise Problem(HTTPStatus.NOT_FOUND, "there is no such question")
    latest = await collector.look_up(find_last_day, metric, today=collector.today())
    given = Form(dict(request.query_params), {})
    fields = {name: given.text(name) for name in _FIELDS if given.text(name)}
    fields = {name: text for name, text in fields.items() if _DEFAULTS.get(name) != text}
    ends = ("to", "to_after") if kind == "comparison" else ("to",)
    for end in ends:  # a day that is not closed yet would not show the same at any time
        fields[end] = f"{min(parse_day(end, fields.get(end), latest), latest)}"
    source = await collector.find_candidates(metric, fields.get("list", ""))
    if isinstance(source, UploadedList):  # the newest list may be another one tomorrow
        fields["list"] = source.digest
    ordered = {name: fields[name] for name in _FIELDS if name in fields}
    form = Form(ordered, {})
    return Question(
        metric=metric,
        query=_QUERIES[kind](_subject(metric, source, form), form),
        path=f"/pages/metrics/{metric.name}/{kind}",
        fields=urlencode(ordered),
        last=fields[ends[-1]],
    )


def _overview(subject: Subject, form: Form) -> PageQuery[Any]:
    return OverviewQuery(subject=subject, through=datetime.date.fromisoformat(form.text("to")))


def _rank(subject: Subject, form: Form) -> PageQuery[Any]:
    return RankingQuery(
        subject=subject,
        range=_range(form, "from", "to"),
        everything=form.text("all") == "yes",
        forged=form.text("forged") == "yes",
    )


def _run_over_time(subject: Subject, form: Form) -> PageQuery[Any]:
    return TrendQuery(
        subject=subject,
        range=_range(form, "from", "to"),
        by=form.choice("by", STRETCHES),
        smooth=form.whole("smooth", 1, most=_MOST_SMOOTHED),
    )


def _compare(subject: Subject, form: Form) -> PageQuery[Any]:
    return CompareQuery(
        subject=subject,
        before=_range(form, "from", "to"),
        after=_range(form, "from_after", "to_after"),
        everything=form.text("all") == "yes",
    )


def _segment(subject: Subject, form: Form) -> PageQuery[Any]:
    names = tuple(dimension.name for dimension in subject.metric.segments)
    return SegmentsQuery(
        subject=subject,
        range=_range(form, "from", "to"),
        dimension=form.choice("dimension", names) if form.text("dimension") else None,
    )


_QUERIES: Final[Mapping[str, Callable[[Subject, Form], PageQuery[Any]]]] = {
    "overview": _overview,
    "ranking": _rank,
    "trend": _run_over_time,
    "comparison": _compare,
    "segments": _segment,
}


def _subject(metric: Metric, source: CandidateSource | None, form: Form) -> Subject:
    return Subject(
        metric=metric,
        source=source,
        error_control=ErrorControl(
            alpha=form.share("level", _SURE.alpha),
            method=form.choice("correction", CORRECTIONS),
            confidence=form.share("confidence", _SURE.confidence),
        ),
    )


def _range(form: Form, first: str, last: str) -> Range:
    """Return a range of days; they are read here, so that a wrong one is reported at once."""
    found = Range(first=form.text(first) or None, last=form.text(last) or None)
    found.parse()
    return found


def _progress(found: ResultState | None) -> str:
    if found is None:
        return _WAITING
    return f"{found.step or _WAITING}, for {max(time.time() - found.began, 0):.0f} seconds"
