"""Endpoints for operators: name of the service, liveness, readiness, metrics for Prometheus.

These endpoints need no token. With the setting `admin`, only `/` and `/healthz` are at the public
address, and the other paths are at the admin address. A supervisor requests `/healthz`, and
restarts a dead process. A load balancer requests `/readyz`, and chooses a process that is ready. If
the database does not respond, the process is not ready. It stays alive, because a restart would not
help.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from rappor_server.app.collector import Collector
from rappor_server.base.problems import RETRY_SECONDS, Problem

_JSON: Final = "application/json"


class RootResponse(msgspec.Struct, frozen=True):
    """Response of GET /.

    Attributes
    ----------
    service : name of the service
    description : path of the OpenAPI description
    registry : path of the registry
    """

    service: str
    description: str
    registry: str


_ROOT: Final = RootResponse("RAPPOR collector", "/openapi.json", "/v1/registry")


async def get_root(_: Request) -> Response:
    """GET /: return the name of the service, and the paths of its description and registry."""
    return Response(msgspec.json.encode(_ROOT), media_type=_JSON)


async def get_liveness(_: Request) -> Response:
    """GET /healthz: return 200 while the process responds."""
    return PlainTextResponse("alive\n")


async def get_readiness(request: Request) -> Response:
    """GET /readyz: return 200 if uploads are stored and counted, else the problem 503.

    The endpoint reads the results of the last commits, probes and merges (`operations/health.py`).
    It sends no query of its own, because a query to a hanging database would hang, too.
    """
    collector: Collector = request.app.state.collector
    if (reason := collector.health.failure_reason()) is not None:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, reason, retry_after=RETRY_SECONDS)
    return PlainTextResponse("ready\n")


async def get_prometheus_metrics(request: Request) -> Response:
    """GET /metrics: return the counters and gauges of this process in Prometheus' text format."""
    collector: Collector = request.app.state.collector
    return Response(collector.metrics.render(), media_type="text/plain; version=0.0.4")
