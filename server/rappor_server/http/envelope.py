"""What surrounds every answer: who may ask for it where, its headers, and the time it took."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rappor_server.base.problems import Problem, render
from rappor_server.operations.prometheus import Metrics

_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)
_NOT_STORED: Final = (b"cache-control", b"no-store")
_SECURE: Final = (b"strict-transport-security", b"max-age=31536000")


class Envelope:
    """Adds headers to the answers of an application, and measures them by their route."""

    def __init__(self, app: ASGIApp, *, state: Any, routes: Mapping[Any, str]) -> None:
        """Name the routes by their endpoints; `state.collector` counts, once it is open."""
        self._app = app
        self._state = state
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its answer back."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), HTTPStatus.INTERNAL_SERVER_ERROR.value

        async def dress(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = added_headers(message["headers"], is_secure=scope["scheme"] == "https")
                message["headers"] = [*message["headers"], *added]
            await send(message)

        try:
            await self._app(scope, receive, dress)
        finally:
            route = self._routes.get(scope.get("endpoint"), "other")  # nothing that was sent
            metrics: Metrics = self._state.collector.metrics
            metrics.observe_request(route, status, time.perf_counter() - start)


class Doors:
    """Keeps what is not for devices off the address that devices reach."""

    def __init__(self, app: ASGIApp, *, public: Collection[str], admin_port: int | None) -> None:
        """Answer only the public paths, except to who comes through the operators' port."""
        self._app = app
        self._public = public
        self._admin_port = admin_port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer that there is nothing at its path."""
        if scope["type"] == "http" and scope["path"] not in self._public:
            _, port = scope.get("server") or ("", None)
            if port != self._admin_port:
                status = HTTPStatus.NOT_FOUND
                await render(Problem(status, status.description))(scope, receive, send)
                return
        await self._app(scope, receive, send)


class DevicesCors:
    """Lets pages of other origins use the endpoints of devices, and no others."""

    def __init__(self, app: ASGIApp, *, paths: Collection[str], origins: Sequence[str]) -> None:
        self._app = app
        self._paths = paths
        self._cors = CORSMiddleware(
            app,
            allow_origins=origins,
            allow_methods=["POST", "GET"],
            allow_headers=["Authorization", "Content-Type", "Content-Encoding"],
            expose_headers=["Retry-After"],
            max_age=86_400,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, with the headers of its origin where that is allowed."""
        is_open = scope["type"] == "http" and scope["path"] in self._paths
        await (self._cors if is_open else self._app)(scope, receive, send)


def added_headers(
    headers: Sequence[tuple[bytes, bytes]], *, is_secure: bool
) -> Sequence[tuple[bytes, bytes]]:
    """Return the headers that an answer gets beside its own, which come first."""
    own = {name for name, _ in headers}
    added = (*_HEADERS, _NOT_STORED, _SECURE) if is_secure else (*_HEADERS, _NOT_STORED)
    return [each for each in added if each[0] not in own]
