"""Pages with results: the overview of a metric, and the questions under Ask.

How to think about a result. The URL of a page determines its result: metric, kind of the query,
days, and the digest of an uploaded list. The last day in the URL is closed (its reports were moved
into blocks), so the URL shows the same result at any time, also to a colleague. A request whose URL
lacks a part, such as the last day, is redirected to the complete URL:

    /pages/metrics/search_engine/ranking?from=2026-11-01
    /pages/metrics/search_engine/ranking?from=2026-11-01&to=2026-11-28

A result is in one of these states:

    absent     Nobody has requested the result since its files were last deleted. A request starts
               the query, unless the token has too many queries in progress (429).
    running    A worker process computes the result. The page waits for half a second, then shows
               the present step and looks again every second (`static/pages.js`, or a refresh of the
               page without scripts).
    failed     The page shows the reason, for example too few reports.
    done       The page and its files are in the folder of results (`queries/result_files.py`).
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rappor.base.errors import ParamsError
from rappor.base.sentence_numbers import format_count, format_plural
from rappor.counts.calendar_periods import PERIOD_KINDS
from rappor.estimator.error_control import CORRECTIONS, ErrorControl
from rappor.protocol.encodings import get_encoding
from rappor.registry.metric import Metric
from rappor_server.access import await_while_connected
from rappor_server.base.problems import RETRY_SECONDS, Problem
from rappor_server.base.query_parameters import check_names
from rappor_server.operations.metric_health import MetricHealth
from rappor_server.pages.forms import Form
from rappor_server.pages.sessions import Analyst, redirect
from rappor_server.queries.candidate_sources import UploadedList
from rappor_server.queries.page_queries import (
    OVERVIEW_DAYS,
    AssociationQuery,
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

_NO_STEP: Final = "waiting for a process"
"""Progress of a query that has not begun, because all worker processes are busy."""
_WAIT_SECONDS: Final = 0.5
"""Longest time in seconds that a page waits for a result before it shows the progress. A larger
value shows fewer pages of progress, and keeps the browser waiting."""
_DEFAULT_ERROR_CONTROL: Final = ErrorControl()
"""Error rate, method and confidence level of a query whose form leaves them empty."""
_MAX_SMOOTHED: Final = 400
"""Largest number of periods that each point of a trend adds up. A larger number would change
nothing, because a trend has at most 400 periods."""
_MEDIA_TYPES: Final = {
    "html": "text/html", "csv": "text/csv", "json": "application/json",
    "svg": "image/svg+xml", "png": "image/png",
}  # fmt: skip
"""Maps the extension of a file to the media type of its response."""
_DEFAULTS: Final = {"smooth": "1", "level": "5", "correction": "bh", "confidence": "95"}
"""Default values of fields by name, level and confidence in per cent. A complete URL leaves out a
field that has its default, so that one result has one URL."""
_FIELDS: Final = ("from", "to", "from_after", "to_after", "by", "dimension", "rows", "columns",
                  "list", "all", "forged", *_DEFAULTS)  # fmt: skip
"""Names of the fields of all URLs. A complete URL has its fields in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRequest:
    """A parsed request for a result.

    Attributes
    ----------
    metric : the metric
    query : the query that computes the result
    path : path of the URL, such as /pages/metrics/search_engine/ranking
    url_query : query string of the complete URL, such as from=2026-11-01&to=2026-11-28
    last_day : last day of the result, such as 2026-11-28
    """

    metric: Metric
    query: PageQuery[Any]
    path: str
    url_query: str
    last_day: str

    @property
    def kind(self) -> str:
        """Kind of the query, the last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def url(self) -> str:
        """The complete URL of the result."""
        return f"{self.path}?{self.url_query}"


async def redirect_to_overview(request: Request, analyst: Analyst) -> Response:
    """GET /pages/metrics/NAME: redirect to the overview of the metric."""
    return redirect(f"/pages/metrics/{analyst.find_metric(request).name}/overview")


async def show_result(request: Request, analyst: Analyst) -> Response:
    """GET /pages/metrics/NAME/KIND: show a result, or the progress of its query."""
    parsed = await _parse_request(request, analyst)
    if f"{request.url.query}" != parsed.url_query:
        return redirect(parsed.url)
    results, owner = analyst.collector.results, analyst.token.id
    result = await results.find(parsed.query)
    if result is None:
        if not results.may_start(owner):
            return _render_busy(analyst, parsed, owner)
        result = await results.find_or_start(
            parsed.query, owner=owner, address=parsed.url, wait=_WAIT_SECONDS
        )
        # Another request of the token may have started a query while this request computed the
        # key of its query.
        if result is None and not results.may_start(owner):
            return _render_busy(analyst, parsed, owner)
    return await _render_result(analyst, parsed, result)


async def get_progress(request: Request, analyst: Analyst) -> Response:
    """GET /pages/metrics/NAME/KIND/progress: return the present step for a script.

    The response is {"text": "decoding, for 3 seconds", "is_over": false}. With `is_over` the script
    loads the page again.
    """
    parsed = await _parse_request(request, analyst)
    result = await analyst.collector.results.find(parsed.query)
    is_over = result is None or result.state != "running"
    return JSONResponse({"text": _format_progress(result), "is_over": is_over})


async def download_file(request: Request, analyst: Analyst) -> Response:
    """GET /pages/metrics/NAME/KIND/files/FILE: return a file of a result that is done.

    A PNG image is not stored. It is rendered from the SVG file of the same name.
    """
    parsed = await _parse_request(request, analyst)
    result = await analyst.collector.results.find(parsed.query)
    name = request.path_params["file"]
    files = {} if result is None else await analyst.collector.results.read_files(result)
    stem, _, suffix = name.rpartition(".")
    stored_name = f"{stem}.svg" if suffix == "png" else name
    if stored_name not in files:
        raise Problem(HTTPStatus.NOT_FOUND, "there is no such file: open the result first")
    if suffix == "png":
        # A worker process renders the image on request, because few people download images.
        task = PngTask(svg=files[stored_name])
        files[name] = await await_while_connected(request, analyst.collector.readers.run(task))
    return Response(
        files[name],
        media_type=_MEDIA_TYPES[suffix],
        headers={"Content-Disposition": f'attachment; filename="{parsed.metric.name}-{name}"'},
    )


async def cancel_query(request: Request, analyst: Analyst, form: Form) -> Response:  # noqa: ARG001
    """POST /pages/metrics/NAME/KIND/cancel: cancel the query of a result."""
    parsed = await _parse_request(request, analyst)
    await analyst.collector.results.cancel(parsed.query)
    return redirect(f"/pages/metrics/{parsed.metric.name}/ask")


async def find_overview(analyst: Analyst, health: MetricHealth) -> tuple[str, ResultState | None]:
    """Return the overview of a metric for the list of metrics; start its query if it is absent.

    Returns
    -------
    reason : why there can be no overview, or an empty text
    result : the result, or None if its query has not been started
    """
    if not health.days:
        return "Nothing to show yet: send reports, and results appear the day after.", None
    query = await analyst.collector.make_overview_query(health.metric)
    if not query.subject.has_candidates:
        values = format_plural(get_encoding(health.metric.params).value_noun)
        reason = f"No candidates yet: add a list under Ask, and its most common {values} appear."
        return reason, None
    results = analyst.collector.results
    result = await results.find(query)
    # Queries of people come first. While many queries are in progress, the list starts no overview;
    # the next view of the list tries again.
    if result is None and not results.is_busy:
        result = await results.find_or_start(query, owner=BACKGROUND)
    return "", result


def decode_page(result: ResultState) -> ResultPage:
    """Return the page of a result that is done."""
    return msgspec.msgpack.decode(result.page, type=ResultPage)


async def _render_result(
    analyst: Analyst, parsed: ResultRequest, result: ResultState | None
) -> Response:
    """Return the page of a result that is running, failed or done.

    `result` is None if the query was stopped just now. The page then shows the progress, and starts
    the query again when it loads itself.
    """
    collector, metric = analyst.collector, parsed.metric
    values = {"metric": metric, "parsed": parsed, "tab": parsed.kind}
    if result is None or result.state == "running":
        return analyst.render("waiting.html", progress=_format_progress(result), **values)
    if result.state == "failed":
        return analyst.render(
            "no_result.html",
            status=HTTPStatus(result.status),
            detail=result.step,
            needs_list=not parsed.query.subject.has_candidates,
            value_noun=get_encoding(metric.params).value_noun,
            running_urls=(),
            **values,
        )
    latest = await collector.look_up(find_last_day, metric, today=collector.today())
    return analyst.render("result.html", page=decode_page(result), latest=f"{latest}", **values)


def _render_busy(analyst: Analyst, parsed: ResultRequest, owner: str) -> Response:
    """Return the problem 429 as a page, with links to the queries of the token in progress."""
    limit = analyst.collector.settings.queries_per_token
    page = analyst.render(
        "no_result.html",
        status=HTTPStatus.TOO_MANY_REQUESTS,
        metric=parsed.metric,
        parsed=parsed,
        tab=parsed.kind,
        needs_list=False,
        value_noun="",
        detail=f"A token must have at most {format_count(limit, 'question')} in progress.",
        running_urls=analyst.collector.results.list_addresses(owner),
    )
    page.headers["Retry-After"] = f"{RETRY_SECONDS}"
    return page


async def _parse_request(request: Request, analyst: Analyst) -> ResultRequest:
    """Return the metric, the query and the complete URL of a request.

    The complete URL has the last day, the digest of an uploaded list, no empty field, no field with
    its default, and a fixed order of fields. Two URLs of one result are therefore equal.

    Raises
    ------
    Problem
        404 for an unknown metric or kind of query, 422 for an unknown or repeated field
    ParamsError
        A field is out of range.
    """
    metric, collector = analyst.find_metric(request), analyst.collector
    name = request.path_params["kind"]
    if (kind := _KINDS.get(name)) is None:
        raise Problem(HTTPStatus.NOT_FOUND, "there is no such question")
    check_names(request.query_params, (*kind.fields, *_COMMON_FIELDS))
    latest = await collector.look_up(find_last_day, metric, today=collector.today())
    raw = Form.parse_query(request)
    fields = {name: raw.get_text(name) for name in _FIELDS if raw.get_text(name)}
    fields = {name: text for name, text in fields.items() if _DEFAULTS.get(name) != text}
    ends = ("to", "to_after") if name == "comparison" else ("to",)
    for end in ends:
        # Reports of a day that is not closed yet may still come, so its result would change. A
        # later day is replaced by the latest closed day.
        fields[end] = f"{min(parse_day(end, fields.get(end), latest), latest)}"
    source = await collector.find_candidates(metric, fields.get("list", ""))
    if isinstance(source, UploadedList):
        # Without a digest the newest list is used. A colleague may upload another list tomorrow,
        # and the same URL would show another result. The URL therefore names the digest.
        fields["list"] = source.digest
    ordered = {name: fields[name] for name in _FIELDS if name in fields}
    form = Form(ordered, {})
    subject = Subject(
        metric=metric,
        source=source,
        error_control=_read_error_control(form),
        counts_installations=collector.counts_installations(metric),
    )
    return ResultRequest(
        metric=metric,
        query=kind.make_query(subject, form),
        path=f"/pages/metrics/{metric.name}/{name}",
        url_query=urlencode(ordered),
        last_day=fields[ends[-1]],
    )


def _make_overview(subject: Subject, form: Form) -> PageQuery[Any]:
    """Return the query of the overview; raise ParamsError for a day without weeks before it."""
    through = datetime.date.fromisoformat(form.get_text("to"))
    # Python's calendar has no days before 0001-01-01, so the weeks of the overview must not begin
    # earlier.
    if through - datetime.date.min < datetime.timedelta(days=OVERVIEW_DAYS):
        raise ParamsError("to must be a day of this collection")
    return OverviewQuery(subject=subject, through=through)


def _make_ranking(subject: Subject, form: Form) -> PageQuery[Any]:
    """Return the query of the most common strings in a range of days."""
    return RankingQuery(
        subject=subject,
        range=_parse_range(form, "from", "to"),
        include_all=form.get_text("all") == "yes",
        forged=form.get_text("forged") == "yes",
    )


def _make_trend(subject: Subject, form: Form) -> PageQuery[Any]:
    """Return the query of a trend over periods."""
    return TrendQuery(
        subject=subject,
        range=_parse_range(form, "from", "to"),
        by=form.get_choice("by", PERIOD_KINDS),
        smooth=form.get_whole_number("smooth", 1, largest=_MAX_SMOOTHED),
    )


def _make_comparison(subject: Subject, form: Form) -> PageQuery[Any]:
    """Return the query that compares two ranges of days."""
    return CompareQuery(
        subject=subject,
        before=_parse_range(form, "from", "to"),
        after=_parse_range(form, "from_after", "to_after"),
        include_all=form.get_text("all") == "yes",
    )


def _make_segments(subject: Subject, form: Form) -> PageQuery[Any]:
    """Return the query that compares the segments of devices; ParamsError if there are none."""
    names = tuple(dimension.name for dimension in subject.metric.segments)
    if not names:
        raise ParamsError(
            f"a comparison of segments needs a metric with segments, and {subject.metric.name} "
            "has none"
        )
    return SegmentsQuery(
        subject=subject,
        range=_parse_range(form, "from", "to"),
        dimension=form.get_choice("dimension", names) if form.get_text("dimension") else None,
    )


def _make_association(subject: Subject, form: Form) -> PageQuery[Any]:
    """Return the query of the association of two fields; raise ParamsError for wrong fields."""
    names = subject.metric.params.field_names
    if not names:
        raise ParamsError(
            f"an association needs a metric with fields, and {subject.metric.name} has none"
        )
    # Without fields in the URL, the first field has the rows and the second field the columns.
    rows = form.get_choice("rows", names)
    columns = form.get_choice("columns", (*names[1:], names[0]))
    if rows == columns:
        raise ParamsError("columns must be another field than rows")
    return AssociationQuery(
        subject=subject, range=_parse_range(form, "from", "to"), fields=(rows, columns)
    )


class _Kind(NamedTuple):
    """A kind of query.

    Attributes
    ----------
    make_query : makes a query from the fields of a URL
    fields : names of the fields that only some kinds have. Every kind has `_COMMON_FIELDS`
    """

    make_query: Callable[[Subject, Form], PageQuery[Any]]
    fields: tuple[str, ...] = ()


_COMMON_FIELDS: Final = ("to", "list", "level", "correction", "confidence")
"""Names of the fields that a URL of any kind may have."""
_KINDS: Final[Mapping[str, _Kind]] = {
    "overview": _Kind(_make_overview),
    "ranking": _Kind(_make_ranking, ("from", "all", "forged")),
    "trend": _Kind(_make_trend, ("from", "by", "smooth")),
    "comparison": _Kind(_make_comparison, ("from", "from_after", "to_after", "all")),
    "segments": _Kind(_make_segments, ("from", "dimension")),
    "association": _Kind(_make_association, ("from", "rows", "columns")),
}
"""The kinds of queries, by the last part of the path (KIND)."""


def _read_error_control(form: Form) -> ErrorControl:
    """Return the error rate, its method and the confidence level of a form."""
    return ErrorControl(
        alpha=form.get_share("level", _DEFAULT_ERROR_CONTROL.alpha),
        method=form.get_choice("correction", CORRECTIONS),
        confidence=form.get_share("confidence", _DEFAULT_ERROR_CONTROL.confidence),
    )


def _parse_range(form: Form, first: str, last: str) -> Range:
    """Return the range of days in the fields with the names `first` and `last`.

    An invalid day raises ParamsError here, before a query is started. The form then shows the
    reason at once, and no failed query is stored.
    """
    days = Range(first=form.get_text(first) or None, last=form.get_text(last) or None)
    days.parse((first, last))
    return days


def _format_progress(result: ResultState | None) -> str:
    """Return the present step of a query and its duration, such as "decoding, for 3 seconds"."""
    if result is None:
        return _NO_STEP
    return f"{result.step or _NO_STEP}, for {max(time.time() - result.began, 0):.0f} seconds"
