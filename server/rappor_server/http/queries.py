"""The analysts' endpoints: metrics, counts, estimates; each needs a token.

Every answer is made in another process. Who hangs up before it is there frees that process.
"""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rappor.estimator.error_control import ErrorControl
from rappor.registry.metric import Metric
from rappor_server.access import token_of, while_connected
from rappor_server.app.collector import Collector
from rappor_server.base.problems import Problem
from rappor_server.http.bodies import (
    read_counts_query,
    read_estimate_body,
    read_media_type,
)
from rappor_server.queries.candidate_sources import registry_candidates
from rappor_server.queries.counts import JSON, CountsTask, MetricsAnswer, MetricsTask
from rappor_server.queries.estimates import EstimatesQuery
from rappor_server.queries.query import Range, Subject
from rappor_server.storage.tokens import Token


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
    """POST /v1/metrics/NAME/estimates: how many devices have each candidate.

    The request waits for the result; the query is cancelled if the client hangs up.
    """
    collector, metric, token = await _metric(request)
    media_type = read_media_type(request)
    with collector.share_of_readers() as share:
        body, beside = await read_estimate_body(request, share)
        query = EstimatesQuery(
            subject=Subject(
                metric=metric,
                source=registry_candidates(metric, registry=collector.settings.registry),
                detection=ErrorControl(),
            ),
            body=body,
            beside=beside,
            media_type=media_type,
            max_candidates=collector.settings.max_candidates,
        )
        computing = collector.results.compute(query, owner=token.id)
        files = await while_connected(request, computing)
    return Response(files[media_type], media_type=media_type)


async def _metric(request: Request) -> tuple[Collector, Metric, Token]:
    """Return the metric of a request's path, if its token may read it."""
    collector: Collector = request.app.state.collector
    token = await token_of(request, collector)
    name = request.path_params["name"]
    if not token.allows(name):
        raise Problem(HTTPStatus.FORBIDDEN, "the token does not allow this metric")
    return collector, collector.accepted_params.registry.metric(name), token
