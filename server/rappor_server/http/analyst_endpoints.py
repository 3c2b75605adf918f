"""Endpoints for analysts: metrics, counts, estimates. Each request needs a read token.

| endpoint                           | computed by          | stored as a file |
|------------------------------------|----------------------|------------------|
| GET  /v1/metrics                   | `collector.readers`  | no               |
| GET  /v1/metrics/NAME/counts       | `collector.readers`  | no               |
| POST /v1/metrics/NAME/estimates    | `collector.results`  | yes              |

Worker processes compute all responses, so a long computation stops no upload. A request waits for
its response. If the client disconnects, the computation is cancelled, and its worker is free for
the next request.
"""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rappor.estimator.error_control import ErrorControl
from rappor.registry.metric import Metric
from rappor_server.access import await_while_connected, require_token
from rappor_server.app.collector import Collector
from rappor_server.base.problems import Problem
from rappor_server.http.analyst_requests import (
    choose_media_type,
    parse_counts_query,
    read_estimate_body,
)
from rappor_server.queries.candidate_sources import find_registry_candidates
from rappor_server.queries.counts import JSON, CountsTask, MetricsResponse, MetricsTask
from rappor_server.queries.estimates import EstimatesQuery
from rappor_server.queries.query import Range, Subject
from rappor_server.storage.tokens import Token


async def get_metrics(request: Request) -> Response:
    """GET /v1/metrics: return the readable metrics, their released reports, and the refusals."""
    collector: Collector = request.app.state.collector
    token = await require_token(request, collector)
    registry = collector.accepted_params.registry
    readable = tuple(metric for metric in registry.values() if token.allows(metric.name))
    task = MetricsTask(metrics=readable, today=collector.today())
    result: MetricsResponse = await await_while_connected(request, collector.readers.run(task))
    # A refusal without a metric is a refused upload, or a report whose metric the registry lacks.
    # Every token may see such numbers, because they reveal nothing about a metric.
    refusals = [row for row in result.refusals if not row.metric or token.allows(row.metric)]
    totals = [row for row in result.refusal_totals if not row.metric or token.allows(row.metric)]
    readable_part = MetricsResponse(result.metrics, refusals, totals)
    return Response(msgspec.json.encode(readable_part), media_type=JSON)


async def get_counts(request: Request) -> Response:
    """GET /v1/metrics/NAME/counts: return the released counts of a range of days."""
    collector, metric, _ = await _authorize(request)
    query = parse_counts_query(request)
    media_type = choose_media_type(request)
    task = CountsTask(
        metric=metric,
        range=Range(first=query.first, last=query.last),
        params=query.params,
        media_type=media_type,
        by=query.by,
        segments=query.segments == "true",
        counts_installations=collector.counts_installations(metric),
    )
    body = await await_while_connected(request, collector.readers.run(task))
    return Response(body, media_type=media_type)


async def post_estimates(request: Request) -> Response:
    """POST /v1/metrics/NAME/estimates: return the estimated share of each candidate.

    The request waits for the result, at most `decode_seconds` after the queries before it. If the
    client disconnects, the query is cancelled. The same query about the same counts is computed
    once. Later requests get the stored result.
    """
    collector, metric, token = await _authorize(request)
    # A request with an unsupported Accept header must fail before the computation, which may take a
    # minute.
    media_type = choose_media_type(request)
    # The memory of the body stays allocated until the end, because the query contains the body.
    with collector.allocate_for_analyst() as allocation:
        body, url_query = await read_estimate_body(request, allocation)
        query = EstimatesQuery(
            subject=Subject(
                metric=metric,
                source=find_registry_candidates(metric, registry=collector.settings.registry),
                error_control=ErrorControl(),
            ),
            body=body,
            fields=url_query,
            media_type=media_type,
            max_candidates=collector.settings.max_candidates,
        )
        computation = collector.results.compute(query, owner=token.id)
        files = await await_while_connected(request, computation)
    return Response(files[media_type], media_type=media_type)


async def _authorize(request: Request) -> tuple[Collector, Metric, Token]:
    """Return the collector, the metric in the path, and the token of a request.

    The token is checked before the name is looked up in the registry. The owner of a token for some
    metrics therefore cannot find out which other metrics exist.

    Raises
    ------
    Problem
        401 without a valid token, 403 if the token does not allow the metric
    MetricError
        The registry has no such metric.
    """
    collector: Collector = request.app.state.collector
    token = await require_token(request, collector)
    name = request.path_params["name"]
    if not token.allows(name):
        raise Problem(HTTPStatus.FORBIDDEN, "the token does not allow this metric")
    return collector, collector.accepted_params.registry.metric(name), token
