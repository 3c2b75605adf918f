"""The operators' endpoints: alive, ready, metrics, and what this is."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from rappor_server.app.collector import Collector
from rappor_server.base.problems import RETRY_SECONDS, Problem

_JSON: Final = "application/json"


class RootAnswer(msgspec.Struct, frozen=True):
    """The answer of GET /: what this is, and where its description is."""

    service: str
    description: str
    registry: str


_ROOT: Final = RootAnswer("RAPPOR collector", "/openapi.json", "/v1/registry")


async def root(_: Request) -> Response:
    """GET /: what this service is, and the path of its description."""
    return Response(msgspec.json.encode(_ROOT), media_type=_JSON)


async def healthz(_: Request) -> Response:
    """GET /healthz: the process answers."""
    return PlainTextResponse("alive\n")


async def readyz(request: Request) -> Response:
    """GET /readyz: the last commit succeeded, and the database answers; otherwise 503.

    This asks nobody: it tells what commits and probes have found.
    """
    collector: Collector = request.app.state.collector
    if (trouble := collector.health.failure_reason()) is not None:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, trouble, retry_after=RETRY_SECONDS)
    return PlainTextResponse("ready\n")


async def metrics(request: Request) -> Response:
    """GET /metrics: the counters of this collector, for Prometheus."""
    collector: Collector = request.app.state.collector
    return Response(collector.metrics.render(), media_type="text/plain; version=0.0.4")
