"""Middleware around all endpoints: security headers, response times, admin address, CORS.

A middleware is an ASGI application that calls another application and changes its requests or
responses. Requests pass through the middleware in this order (`app/serving.py`,
`http/application.py`):

    ForwardedHeaders     always (`http/forwarded.py`). Finds the client behind a trusted proxy
    ResponseMiddleware   always. Adds headers, and measures times for Prometheus
    PublicPathFilter     if the setting `admin` is set. Hides paths from the public address
    DeviceCors           if the setting `origins` is set. Allows web pages to upload
    UploadShortcut       always (`http/device_endpoints.py`). Sends uploads past the router
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rappor_server.base.problems import Problem, render_problem
from rappor_server.operations.prometheus import Metrics

_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),  # no browser guesses that JSON is HTML
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),  # a URL of a result contains the name of a metric
    (b"cache-control", b"no-store"),  # counts of a metric must not stay in a shared cache
)
"""Headers of each response that does not set them itself, as (name in lower case, value). The pages
set a content security policy of their own."""
_HTTPS_HEADER: Final = (b"strict-transport-security", b"max-age=31536000")
"""Further header of a response over HTTPS. A browser that has received it uses only HTTPS for a
year. Preload lists of browsers accept no shorter time."""
_HIDDEN: Final = (
    "This address receives uploads only. Counts, estimates and pages are at the operators' "
    "address, which `rappor-server serve --admin` sets"
)
"""Detail of the response for every hidden path, whether it exists or not. With the general text for
404, an analyst who used the address of the devices searched for a mistake in a metric's name."""


class ResponseMiddleware:
    """Adds security headers to each response, and measures the time of the response by route."""

    def __init__(self, app: ASGIApp, *, state: Any, routes: Mapping[Any, str]) -> None:
        """Wrap an application.

        Parameters
        ----------
        app : the application
        state : state of the application. The lifespan sets `state.collector` before the first
            request.
        routes : path pattern of each endpoint, for example "/v1/metrics/{name}/counts"
        """
        self._app = app
        self._state = state
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application with a `send` that adds headers."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # The status stays 500 if the application raises before it starts a response.
        start, status = time.perf_counter(), HTTPStatus.INTERNAL_SERVER_ERROR.value

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                missing = list_missing_headers(
                    message["headers"], is_secure=scope["scheme"] == "https"
                )
                message["headers"] = [*message["headers"], *missing]
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        finally:
            # The label is the pattern of a route. The requested path may contain anything, for
            # example a token, and each new path would be a new time series.
            route = self._routes.get(scope.get("endpoint"), "other")
            metrics: Metrics = self._state.collector.metrics
            metrics.observe_request(route, status, time.perf_counter() - start)


class PublicPathFilter:
    """Hides all paths that devices do not need from requests to the public address."""

    def __init__(
        self, app: ASGIApp, *, public_paths: Collection[str], admin_port: int | None
    ) -> None:
        """Wrap an application.

        Parameters
        ----------
        app : the application
        public_paths : paths that the public address serves
        admin_port : port of the admin address, which serves all paths
        """
        self._app = app
        self._public_paths = public_paths
        self._admin_port = admin_port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond with 404 to a request for another path, unless it came to the admin port."""
        if scope["type"] == "http" and scope["path"] not in self._public_paths:
            # The port is a property of the socket. The header Host comes from the client, and could
            # contain the admin address.
            _, port = scope.get("server") or ("", None)
            if port != self._admin_port:
                response = render_problem(Problem(HTTPStatus.NOT_FOUND, _HIDDEN))
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


class DeviceCors:
    """Allows web pages of other origins to call the endpoints for devices, and no others.

    With the headers of CORS, a response permits that a page of another origin reads it.
    """

    def __init__(self, app: ASGIApp, *, paths: Collection[str], origins: Sequence[str]) -> None:
        """Wrap an application.

        Parameters
        ----------
        app : the application
        paths : paths of the endpoints for devices
        origins : allowed origins such as "https://www.example.org", or "*"
        """
        self._app = app
        self._paths = paths
        self._cors = CORSMiddleware(
            app,
            allow_origins=origins,
            allow_methods=["POST", "GET"],
            allow_headers=["Authorization", "Content-Type", "Content-Encoding"],
            expose_headers=["Retry-After"],  # a script sees no other header of a refusal
            max_age=86_400,  # seconds for which a browser remembers the permission: a day
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the CORS headers of allowed origins to responses of the endpoints for devices."""
        is_for_devices = scope["type"] == "http" and scope["path"] in self._paths
        await (self._cors if is_for_devices else self._app)(scope, receive, send)


def list_missing_headers(
    headers: Sequence[tuple[bytes, bytes]], *, is_secure: bool
) -> Sequence[tuple[bytes, bytes]]:
    """Return the default headers that a response does not set itself.

    Parameters
    ----------
    headers : headers that the response has, with names in lower case
    is_secure : whether the request came by HTTPS
    """
    present = {name for name, _ in headers}
    defaults = (*_HEADERS, _HTTPS_HEADER) if is_secure else _HEADERS
    return [(name, value) for name, value in defaults if name not in present]
