"""The application: which endpoint answers each path, and what becomes of errors."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp

from rappor.base.errors import RapporError
from rappor_server.app.collector import Collector
from rappor_server.app.settings import Settings
from rappor_server.base import logs, problems
from rappor_server.base.connection_limits import Sources
from rappor_server.http import openapi, operations, queries, uploads
from rappor_server.http.envelope import DevicesCors, Doors, Envelope
from rappor_server.http.slow_clients import METRICS, SETTINGS, SOURCES
from rappor_server.pages import app as pages

_METRIC: Final = "/v1/metrics/{name}"
_UPLOADS: Final = uploads.Uploads()
ROUTES: Final = (
    Route(uploads.UPLOADS, _UPLOADS, methods=["POST"]),
    Route("/v1/registry", uploads.registry, methods=["GET"]),
    Route("/v1/metrics", queries.metrics, methods=["GET"]),
    Route(f"{_METRIC}/counts", queries.counts, methods=["GET"]),
    Route(f"{_METRIC}/estimates", queries.estimates, methods=["POST"]),
    Route("/", operations.root, methods=["GET"]),
    Route("/healthz", operations.healthz, methods=["GET"]),
    Route("/readyz", operations.readyz, methods=["GET"]),
    Route("/metrics", operations.metrics, methods=["GET"]),
    Route("/openapi.json", openapi.openapi, methods=["GET"]),
)

_OF_DEVICES: Final = (uploads.UPLOADS, "/v1/registry")


class _Application(Starlette):
    """An application whose answers all carry the same envelope, those to bugs too."""

    def build_middleware_stack(self) -> ASGIApp:
        """Put the envelope around everything."""
        routes = {route.endpoint: route.path for route in ROUTES}
        routes |= {route.endpoint: f"{pages.PREFIX}{route.path}" for route in pages.ROUTES}
        return Envelope(super().build_middleware_stack(), state=self.state, routes=routes)


_PUBLIC: Final = ("/", "/healthz", "/openapi.json", *_OF_DEVICES)
"""What is answered at the public address where operators have one of their own."""


def create(
    settings: Settings,
    *,
    open_collector: Callable[[Settings], Collector] = Collector,
    admin_port: int | None = None,
) -> Starlette:
    """Return an application that opens its collector when it starts and closes it when it ends.

    With `admin_port`, only who comes through that port reaches more than devices need.
    """
    routes: list[BaseRoute] = [*ROUTES]
    room = pages.create() if settings.pages else None
    if room is not None:
        routes += [Route(pages.PREFIX, pages.entrance), Mount(pages.PREFIX, room)]

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
        try:
            collector = open_collector(settings)
        except RapporError as error:  # the server ends and does not say why
            logs.event("start failed", level=logging.ERROR, reason=str(error))
            raise
        app.state.collector = collector
        if room is not None:
            room.state.collector = collector
        _spare_collections()
        logs.event("collector started", metrics=len(collector.accepted_params.registry))
        try:
            sources = Sources(settings.max_source_connections, proxies=settings.proxies)
            yield {SETTINGS: settings, METRICS: collector.metrics, SOURCES: sources}
        finally:
            await collector.close()
            logs.event("collector stopped")

    app = _Application(
        routes=routes,
        lifespan=lifespan,
        middleware=_middleware(settings, admin_port),
        exception_handlers=problems.handlers(problems.render),
    )
    app.router.redirect_slashes = False  # a path that does not exist is a problem, not a redirect
    return app


def _middleware(settings: Settings, admin_port: int | None) -> list[Middleware]:
    chosen = []
    if settings.admin:
        chosen.append(Middleware(Doors, public=_PUBLIC, admin_port=admin_port))
    if settings.origins:
        chosen.append(Middleware(DevicesCors, paths=_OF_DEVICES, origins=settings.origins))
    return [*chosen, Middleware(uploads.UploadsFirst, uploads=_UPLOADS)]


def _spare_collections() -> None:
    """Keep the objects of the start out of Python's garbage collections.

    A collection walks through all of them and holds up every request meanwhile: 50 ms, several
    times a second under load.
    """
    gc.collect()
    gc.freeze()
