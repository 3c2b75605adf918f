"""The list of metrics, each with what it says now; and of one, its health and what can be asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from rappor.protocol.encodings import encoding_of
from rappor.protocol.loss import epsilon_1
from rappor.registry.budget import scope_loss
from rappor.registry.metric import Metric
from rappor_server.access import await_while_connected
from rappor_server.operations.metric_health import HealthReport, HealthTask
from rappor_server.pages import questions
from rappor_server.pages.forms import Form
from rappor_server.pages.questions import read_page
from rappor_server.pages.signing import Reader
from rappor_server.queries import candidate_lists

_CARDS: Final = 24
"""Metrics that one page of the list shows."""


async def metrics(request: Request, reader: Reader) -> Response:
    """GET /pages/?page=: metrics that may be read: what each says now, and how it is."""
    readable = reader.metrics
    starts = [each.name for each in readable[::_CARDS]]
    page = Form(dict(request.query_params), {}).whole("page", 1, most=max(len(starts), 1))
    health = await _health(request, reader, readable[_CARDS * (page - 1) : _CARDS * page])
    cards = [await questions.card(reader, each) for each in health.metrics]
    shown = [
        (each, reason, found, read_page(found).card if found and found.page else "")
        for each, (reason, found) in zip(health.metrics, cards, strict=True)
    ]
    is_waiting = any(found is not None and found.state == "running" for _, _, found, _ in shown)
    return reader.render(
        "metrics.html", health=health, shown=shown, starts=starts, page=page, is_waiting=is_waiting
    )


async def ask(request: Request, reader: Reader) -> Response:
    """GET /pages/metrics/NAME/ask: questions of one's own, and lists of candidates."""
    found, collector = reader.metric(request), reader.collector
    return reader.render(
        "ask.html",
        metric=found,
        now="ask",
        is_hashed=encoding_of(found.params).hashed,
        lists=await asyncio.to_thread(collector.lists.list_all, found.name),
        most_lists=candidate_lists.MOST_LISTS,
        list_days=collector.settings.list_days,
    )


async def health(request: Request, reader: Reader) -> Response:
    """GET /pages/metrics/NAME/health: what arrives, what is refused, and the promise."""
    found = reader.metric(request)
    seen = await _health(request, reader, [found])
    return reader.render(
        "health.html",
        metric=found,
        now="health",
        health=seen.metrics[0],
        epsilon_1=epsilon_1(found.params),
        epsilon_all=scope_loss(found),
    )


async def _health(request: Request, reader: Reader, some: Sequence[Metric]) -> HealthReport:
    task = HealthTask(metrics=some, today=reader.collector.today())
    found: HealthReport = await await_while_connected(request, reader.collector.readers.run(task))
    return found
