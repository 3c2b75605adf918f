"""The application: which endpoint answers each path, and what becomes of errors."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from rappor.errors import RapporError
from rappor_server import logs, problems
from rappor_server.collector import Collector
from rappor_server.http import operations, queries, uploads
from rappor_server.http.slow_clients import ENVIRONMENT
from rappor_server.settings import Settings

_METRIC: Final = "/v1/metrics/{name}"
ROUTES: Final = (
    Route("/v1/reports", uploads.upload, methods=["POST"]),
    Route("/v1/registry", uploads.registry, methods=["GET"]),
    Route("/v1/metrics", queries.metrics, methods=["GET"]),
    Route(f"{_METRIC}/counts", queries.counts, methods=["GET"]),
    Route(f"{_METRIC}/estimates", queries.estimates, methods=["POST"]),
    Route(f"{_METRIC}/freezes", queries.freezes, methods=["POST"]),
    Route(f"{_METRIC}/freezes", queries.list_freezes, methods=["GET"]),
    Route(f"{_METRIC}/freezes/{{id}}", queries.delete_freeze, methods=["DELETE"]),
    Route("/", operations.root, methods=["GET"]),
    Route("/healthz", operations.healthz, methods=["GET"]),
    Route("/readyz", operations.readyz, methods=["GET"]),
    Route("/metrics", operations.metrics, methods=["GET"]),
    Route("/openapi.json", operations.openapi, methods=["GET"]),
)


def create(
    settings: Settings, *, open_collector: Callable[[Settings], Collector] = Collector
) -> Starlette:
    """Return an application that opens its collector when it starts and closes it when it ends."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        collector = open_collector(settings)
        app.state.collector = collector
        _reload_on_hangup(collector)
        _spare_collections()
        logs.event("collector started", metrics=len(collector.accepted_params.registry))
        try:
            yield
        finally:
            await asyncio.to_thread(collector.close)
            logs.event("collector stopped")

    app = Starlette(
        routes=ROUTES,
        lifespan=lifespan,
        middleware=_middleware(settings),
        exception_handlers={
            problems.Problem: problems.on_problem,
            RapporError: problems.on_rappor_error,
            HTTPException: problems.on_http_exception,
            Exception: problems.on_bug,
        },
    )
    app.router.redirect_slashes = False  # a path that does not exist is a problem, not a redirect
    return app


def from_environment() -> Starlette:
    """Return the application of a worker process."""
    logs.configure()
    return create(Settings.from_json(os.environ[ENVIRONMENT]))


def _middleware(settings: Settings) -> list[Middleware]:
    if not settings.origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=list(settings.origins),
            allow_methods=["POST", "GET"],
            allow_headers=["Authorization", "Content-Type", "Content-Encoding"],
            expose_headers=["Retry-After"],
            max_age=86_400,
        )
    ]


def _spare_collections() -> None:
    """Keep the objects of the start out of Python's garbage collections.

    A collection walks through all of them and holds up every request meanwhile: 50 ms, several
    times a second under load.
    """
    gc.collect()
    gc.freeze()


def _reload_on_hangup(collector: Collector) -> None:
    """Read the registry again on SIGHUP, if there is such a signal and this is the main thread."""
    if hasattr(signal, "SIGHUP"):
        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, collector.reload)
