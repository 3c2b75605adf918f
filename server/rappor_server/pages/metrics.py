"""The list of metrics with their health, and one metric with what can be asked about it."""

from __future__ import annotations

import datetime

from starlette.requests import Request
from starlette.responses import Response

from rappor.protocol.encodings import encoding_of
from rappor.protocol.loss import epsilon_1
from rappor.registry.budget import scope_loss
from rappor_server.access import while_connected
from rappor_server.analysis import candidate_lists
from rappor_server.analysis.metric_health import HealthReport, HealthTask
from rappor_server.pages.questions import under_way
from rappor_server.pages.signing import Reader


async def metrics(request: Request, reader: Reader) -> Response:
    """GET /pages/: all metrics that may be read, and how they are."""
    health = await _health(request, reader, HealthTask(metrics=reader.metrics, today=_day(reader)))
    return reader.render("metrics.html", health=health)


async def metric(request: Request, reader: Reader) -> Response:
    """GET /pages/metrics/NAME: how a metric is, and the questions that can be asked about it."""
    found = reader.metric(request)
    health = await _health(request, reader, HealthTask(metrics=[found], today=_day(reader)))
    params, collector = found.params, reader.collector
    return reader.render(
        "metric.html",
        metric=found,
        health=health.metrics[0],
        is_hashed=encoding_of(params).hashed,
        epsilon_1=epsilon_1(params),
        epsilon_all=scope_loss(found),
        lists=await collector.look_up(candidate_lists.list_all, collector.store, found.name),
        most_lists=candidate_lists.MOST_LISTS,
        under_way=under_way(reader),
    )


async def _health(request: Request, reader: Reader, task: HealthTask) -> HealthReport:
    found: HealthReport = await while_connected(request, reader.collector.readers.run(task))
    return found


def _day(reader: Reader) -> datetime.date:
    return reader.collector.today()
