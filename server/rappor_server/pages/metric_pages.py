"""Pages about metrics: the list of all metrics, and the pages Ask and Health of one metric.

| page                           | shows                                                       |
|--------------------------------|-------------------------------------------------------------|
| /pages/                        | for each metric its latest result, as a card, and its state |
| /pages/metrics/NAME/ask        | the form of one query, and uploaded lists of candidates     |
| /pages/metrics/NAME/health     | reports by day, refusals, overfull cohorts, privacy         |

The health of metrics is read by a worker process, because it may take a second for many metrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from rappor.base.errors import ParamsError
from rappor.protocol.encodings import get_encoding
from rappor.protocol.loss import epsilon_1
from rappor.registry.budget import scope_loss
from rappor.registry.metric import Metric
from rappor.reporting.installations import build_installations
from rappor.reporting.reports_chart import draw_reports_by_day
from rappor_server.access import await_while_connected
from rappor_server.base.problems import Problem
from rappor_server.operations.metric_health import HealthReport, HealthTask
from rappor_server.pages.forms import Form
from rappor_server.pages.result_pages import decode_page, find_overview
from rappor_server.pages.sessions import Analyst, redirect
from rappor_server.queries import candidate_lists

_METRICS_PER_PAGE: Final = 16
"""Number of metrics on one page of the list. The card of a metric has about 10 kB, so a page has at
most 200 kB. With a year of data, the health of a metric takes 5 ms. A larger value reads and
computes more for one page."""
MAX_LIST_FORM_BYTES: Final = 2 * candidate_lists.MAX_LIST_BYTES
"""Largest size of the form that uploads a list, in bytes: twice the longest list. The form has a
field for a file and a field for text, and an encoding around them. A larger value lets a form use
more memory."""


async def show_metrics(request: Request, analyst: Analyst) -> Response:
    """GET /pages/?page=: show the readable metrics with their latest results and states."""
    readable = analyst.metrics
    starts = [metric.name for metric in readable[::_METRICS_PER_PAGE]]
    query = Form.parse_query(request)
    page = query.get_whole_number("page", 1, largest=max(len(starts), 1))
    end = _METRICS_PER_PAGE * page
    page_metrics = readable[end - _METRICS_PER_PAGE : end]
    # The number of devices belongs to the whole program, so every page of the list begins with it.
    counting_metrics = filter(analyst.collector.counts_installations, readable)
    report = await _read_health(request, analyst, page_metrics, next(counting_metrics, None))
    # Each row is (health, reason why there is no overview, state of the overview, HTML of the
    # card). An overview that is still computed has no card; the page then loads itself again.
    cards = []
    for health in report.metrics:
        reason, result = await find_overview(analyst, health)
        card = decode_page(result).card if result is not None and result.page else ""
        cards.append((health, reason, result, card))
    is_waiting = any(result is not None and result.state == "running" for _, _, result, _ in cards)
    return analyst.render(
        "metrics.html",
        health=report,
        installations=build_installations(report.installations),
        program=analyst.collector.accepted_params.registry.program,
        cards=cards,
        starts=starts,
        page=page,
        is_waiting=is_waiting,
    )


async def show_ask(request: Request, analyst: Analyst) -> Response:
    """GET /pages/metrics/NAME/ask?question=: show the form of a query, and the lists of candidates.

    A question is the last part of the address of its results, such as "trend". The page shows one
    form, and links to the other questions that the metric has.
    """
    metric, collector = analyst.find_metric(request), analyst.collector
    questions = ["ranking", "trend", "comparison"]
    if metric.segments:
        questions.append("segments")
    if metric.params.field_names:
        questions.append("association")
    return analyst.render(
        "ask.html",
        metric=metric,
        tab="ask",
        questions=questions,
        question=Form.parse_query(request).get_choice("question", tuple(questions)),
        is_hashed=get_encoding(metric.params).is_hashed,
        value_noun=get_encoding(metric.params).value_noun,
        lists=await asyncio.to_thread(collector.lists.list_all, metric.name),
        max_lists=candidate_lists.MAX_LISTS,
        list_days=collector.settings.list_days,
    )


async def show_health(request: Request, analyst: Analyst) -> Response:
    """GET /pages/metrics/NAME/health: show reports, refusals and privacy loss of a metric."""
    metric = analyst.find_metric(request)
    report = await _read_health(request, analyst, [metric])
    health = report.metrics[0]
    days = [(day.day, day.reports) for day in health.days]
    chart = draw_reports_by_day("Released reports by day", days).figure() if days else ""
    return analyst.render(
        "health.html",
        metric=metric,
        tab="health",
        health=health,
        chart=chart,
        epsilon_1=epsilon_1(metric.params),
        epsilon_all=scope_loss(metric),
    )


async def upload_list(request: Request, analyst: Analyst, form: Form) -> Response:
    """POST /pages/metrics/NAME/lists: store a list of candidates from a file or a text field."""
    metric, collector = analyst.find_metric(request), analyst.collector
    # The form has a field for a file and a field for text. If both are filled, the file is used.
    text = form.files.get("file") or form.fields.get("text", "").encode()
    if len(text) > candidate_lists.MAX_LIST_BYTES:
        raise ParamsError(f"a list must have at most {candidate_lists.MAX_LIST_BYTES:,} bytes")
    await asyncio.to_thread(
        collector.lists.save,
        metric.name,
        text,
        max_candidates=collector.settings.max_candidates,
        field_names=metric.params.field_names,
    )
    return redirect(f"/pages/metrics/{metric.name}/ask#lists")


async def download_list(request: Request, analyst: Analyst) -> Response:
    """GET /pages/metrics/NAME/lists?list=: return the list of candidates with a digest."""
    metric, collector = analyst.find_metric(request), analyst.collector
    digest = Form.parse_query(request).get_text("list")
    content = await asyncio.to_thread(collector.lists.read, metric.name, digest)
    if content is None:
        raise Problem(HTTPStatus.NOT_FOUND, "the metric has no list with this digest")
    headers = {"Content-Disposition": f'attachment; filename="{metric.name}-candidates.txt"'}
    return Response(content, media_type="text/plain", headers=headers)


async def _read_health(
    request: Request,
    analyst: Analyst,
    metrics: Sequence[Metric],
    counting_metric: Metric | None = None,
) -> HealthReport:
    """Return the health of metrics, which a worker process reads from the database.

    `counting_metric` is the metric whose devices the page shows as active installations, or None.
    """
    collector = analyst.collector
    task = HealthTask(metrics=metrics, today=collector.today(), counting_metric=counting_metric)
    report: HealthReport = await await_while_connected(request, collector.readers.run(task))
    return report
