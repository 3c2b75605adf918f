"""The operators' endpoints: alive, ready, metrics, and the description of them all."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from rappor_server.collector import Collector
from rappor_server.http.openapi import DESCRIPTION


async def healthz(_: Request) -> Response:
    """GET /healthz: the process answers."""
    return PlainTextResponse("alive\n")


async def readyz(request: Request) -> Response:
    """GET /readyz: the database answers too; otherwise the problem 503."""
    collector: Collector = request.app.state.collector
    await asyncio.to_thread(collector.store.ping)
    return PlainTextResponse("ready\n")


async def metrics(request: Request) -> Response:
    """GET /metrics: for Prometheus."""
    collector: Collector = request.app.state.collector
    return Response(collector.metrics.render(), media_type="text/plain; version=0.0.4")


async def openapi(_: Request) -> Response:
    """GET /openapi.json."""
    return Response(msgspec.json.encode(DESCRIPTION), media_type="application/json")
