"""The collector's application with less behind it: what the stack itself costs.

Served by uvicorn as factories: `nothing` answers a POST without looking at it, `validation`
reads and judges an upload and stores nothing, `collector` is the real one.
"""

from __future__ import annotations

import os

from rappor_server.collector import Collector
from rappor_server.http import app, uploads
from rappor_server.http.slow_clients import ENVIRONMENT
from rappor_server.settings import Settings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_ANSWER = b'{"reports":[{"status":"accepted"}]}'


def nothing() -> Starlette:
    """Read the body and answer."""

    async def endpoint(request: Request) -> Response:
        await request.body()
        return Response(_ANSWER, media_type="application/json")

    return Starlette(routes=[Route("/v1/reports", endpoint, methods=["POST"])])


def validation() -> Starlette:
    """Do all that an upload needs but storing it."""

    async def endpoint(request: Request) -> Response:
        collector: Collector = request.app.state.collector
        with collector.bodies.share() as share:
            submission = await uploads.receive(request, collector, share)
        return Response(submission.answer, media_type="application/json")

    made = _real()
    made.router.routes.insert(0, Route("/v1/reports", endpoint, methods=["POST"]))
    return made


def collector() -> Starlette:
    """Be the real one."""
    return _real()


def _real() -> Starlette:
    return app.create(Settings.from_json(os.environ[ENVIRONMENT]))
