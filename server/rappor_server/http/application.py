"""The ASGI application of a collector: routes, middleware, error handlers, start and end.

`create_application` joins the endpoints of this package, and the pages if the settings enable them,
into one Starlette application. Its lifespan (ASGI's word for start and end) opens and closes the
`Collector`, which all endpoints find as `app.state.collector`.
"""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp

from rappor.base.errors import RapporError
from rappor_server.app.collector import Collector
from rappor_server.app.settings import Settings
from rappor_server.base import logs, problems
from rappor_server.base.query_parameters import CheckedRoute
from rappor_server.base.source_quota import SourceQuota
from rappor_server.http.analyst_endpoints import get_counts, get_metrics, post_estimates
from rappor_server.http.bounded_protocol import METRICS, QUOTA, SETTINGS
from rappor_server.http.device_endpoints import (
    UPLOAD_PATH,
    UploadEndpoint,
    UploadShortcut,
    get_registry,
)
from rappor_server.http.middleware import DeviceCors, PublicPathFilter, ResponseMiddleware
from rappor_server.http.openapi import get_openapi
from rappor_server.http.operator_endpoints import (
    get_liveness,
    get_prometheus_metrics,
    get_readiness,
    get_root,
)
from rappor_server.pages import page_routes

_METRIC_PATH: Final = "/v1/metrics/{name}"
_REGISTRY_PATH: Final = "/v1/registry"
# `UploadShortcut` calls this endpoint for POST. The route answers 405 to any other method.
_UPLOAD_ENDPOINT: Final = UploadEndpoint()
ROUTES: Final = (
    CheckedRoute(UPLOAD_PATH, _UPLOAD_ENDPOINT, methods=["POST"]),
    CheckedRoute(_REGISTRY_PATH, get_registry, methods=["GET"]),
    CheckedRoute("/v1/metrics", get_metrics, methods=["GET"]),
    # These two endpoints check their query parameters after the token (`http/analyst_requests.py`).
    Route(f"{_METRIC_PATH}/counts", get_counts, methods=["GET"]),
    Route(f"{_METRIC_PATH}/estimates", post_estimates, methods=["POST"]),
    CheckedRoute("/", get_root, methods=["GET"]),
    CheckedRoute("/healthz", get_liveness, methods=["GET"]),
    CheckedRoute("/readyz", get_readiness, methods=["GET"]),
    CheckedRoute("/metrics", get_prometheus_metrics, methods=["GET"]),
    CheckedRoute("/openapi.json", get_openapi, methods=["GET"]),
)

_DEVICE_PATHS: Final = (UPLOAD_PATH, _REGISTRY_PATH)
"""Paths that web pages of other origins may call if the setting `origins` allows it."""
_PUBLIC_PATHS: Final = ("/", "/healthz", "/openapi.json", *_DEVICE_PATHS)
"""Paths that the public address serves if the settings name a separate admin address."""


class _Application(Starlette):
    """An application that passes every response through `ResponseMiddleware`.

    Starlette puts its own middleware for errors around the middleware of an application. If
    `ResponseMiddleware` were in that list, the response 500 to a fault of the program would lack
    the security headers.
    """

    def build_middleware_stack(self) -> ASGIApp:
        """Wrap the whole stack of Starlette into `ResponseMiddleware`."""
        routes = {route.endpoint: route.path for route in ROUTES}
        routes |= {
            route.endpoint: f"{page_routes.PREFIX}{route.path}" for route in page_routes.ROUTES
        }
        return ResponseMiddleware(super().build_middleware_stack(), state=self.state, routes=routes)


def create_application(
    settings: Settings,
    *,
    open_collector: Callable[[Settings], Collector] = Collector,
    admin_port: int | None = None,
) -> Starlette:
    """Return an application that opens a collector at its start and closes it at its end.

    Parameters
    ----------
    settings : settings of the collector
    open_collector : opens the collector. Tests pass a collector with another clock.
    admin_port : port of the admin address, or None if there is no separate address
    """
    routes: list[BaseRoute] = [*ROUTES]
    pages_app = page_routes.create_pages() if settings.pages else None
    if pages_app is not None:
        routes += [
            CheckedRoute(page_routes.PREFIX, page_routes.redirect_to_home, methods=["GET"]),
            Mount(page_routes.PREFIX, pages_app),
        ]

    @contextlib.asynccontextmanager
    async def run_lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
        with _log_failed_start():
            collector = open_collector(settings)
        app.state.collector = collector
        try:
            with _log_failed_start():
                if pages_app is not None:
                    page_routes.attach_collector(pages_app, collector)
                _freeze_objects()
                logs.log_event("collector started", metrics=len(collector.accepted_params.registry))
                quota = SourceQuota(settings.max_source_connections, proxies=settings.proxies)
            yield {SETTINGS: settings, METRICS: collector.metrics, QUOTA: quota}
        finally:
            await collector.close()
            logs.log_event("collector stopped")

    app = _Application(
        routes=routes,
        lifespan=run_lifespan,
        middleware=_list_middleware(settings, admin_port),
        exception_handlers=problems.make_error_handlers(problems.render_problem),
    )
    # A path with a slash at the end gets the problem 404. With a redirect, a program with such a
    # path would send every request twice without an error.
    app.router.redirect_slashes = False
    return app


def _list_middleware(settings: Settings, admin_port: int | None) -> list[Middleware]:
    """Return the middleware that the settings need, the outermost first."""
    middleware = []
    if settings.admin:
        middleware.append(
            Middleware(PublicPathFilter, public_paths=_PUBLIC_PATHS, admin_port=admin_port)
        )
    if settings.origins:
        middleware.append(Middleware(DeviceCors, paths=_DEVICE_PATHS, origins=settings.origins))
    return [*middleware, Middleware(UploadShortcut, endpoint=_UPLOAD_ENDPOINT)]


@contextlib.contextmanager
def _log_failed_start() -> Iterator[None]:
    """Log why the application cannot start: uvicorn exits with status 3 and writes no reason."""
    try:
        yield
    except RapporError as error:
        logs.log_event("start failed", level=logging.ERROR, reason=str(error))
        raise
    except Exception as error:
        # Another exception comes from a programming error or a broken installation. An operator
        # needs the class of the error and the line of code.
        logs.log_unexpected_error(error)
        raise


def _freeze_objects() -> None:
    """Exclude all objects that exist at the start from Python's garbage collection.

    A full collection visits every object and stops all requests during that time. Measured without
    the exclusion: 50 ms, several times a second under load. The objects of the start live as long
    as the process, so nothing is lost by not visiting them.
    """
    gc.collect()
    gc.freeze()
