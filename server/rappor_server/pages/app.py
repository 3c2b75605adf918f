"""The application of the dashboard: its addresses, its headers, and what errors look like."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Final

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rappor_server.app.collector import Collector
from rappor_server.base.problems import Problem, make_error_handlers
from rappor_server.pages import lists, metrics, questions, rendering, signing
from rappor_server.pages.signing import sent, shown, to_page
from rappor_server.storage import visits

PREFIX: Final = "/pages"

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",  # without it a form would not name its origin
    "X-Frame-Options": "DENY",
}
_KEPT: Final = {"Cache-Control": "public, max-age=31536000, immutable"}


async def entrance(_: Request) -> Response:
    """GET /pages: lead to the pages."""
    return signing.to_see(signing.HOME)


async def static(request: Request) -> Response:
    """GET /pages/static/NAME: a style sheet or a script."""
    found = rendering.FILES.get(request.path_params["name"])
    if found is None:
        raise HTTPException(HTTPStatus.NOT_FOUND.value)
    return Response(found.content, media_type=found.media_type, headers=_KEPT)


ROUTES: Final = (
    Route("/", shown(metrics.metrics), methods=["GET"]),
    Route("/sign-in", signing.show_sign_in, methods=["GET"]),
    Route("/sign-in", signing.sign_in, methods=["POST"]),
    Route("/once/{secret}", signing.sign_in_once, methods=["GET"]),
    Route("/sign-out", sent(signing.sign_out), methods=["POST"]),
    Route("/static/{name}", static, methods=["GET"]),
    Route("/metrics/{name}", shown(questions.first), methods=["GET"]),
    Route("/metrics/{name}/ask", shown(metrics.ask), methods=["GET"]),
    Route("/metrics/{name}/health", shown(metrics.health), methods=["GET"]),
    Route("/metrics/{name}/lists", sent(lists.keep, most=lists.MOST_BYTES), methods=["POST"]),
    Route("/metrics/{name}/lists", shown(lists.text), methods=["GET"]),
    Route("/metrics/{name}/{question}", shown(questions.answer), methods=["GET"]),
    Route("/metrics/{name}/{question}/progress", shown(questions.progress), methods=["GET"]),
    Route("/metrics/{name}/{question}/files/{file}", shown(questions.file), methods=["GET"]),
    Route("/metrics/{name}/{question}/cancel", sent(questions.cancel), methods=["POST"]),
)


class _Sessions:
    """Starlette's sessions, with cookies that no other site can read, set or send a form with.

    Behind TLS, cookies are "Secure", and their prefix `__Host-` makes browsers refuse a cookie that
    another host of the same domain has set. Without TLS, browsers would ignore such cookies.
    "SameSite" is "lax": links of other sites bring the cookie along, their forms do not. Without
    it, such a link would lead a person who is signed in to the sign-in page. A cookie has no
    lifetime of its own, so it ends with the browser at the latest. The database ends visits
    earlier.
    """

    def __init__(self, app: ASGIApp, secret_key: str) -> None:
        """Wrap an application; `secret_key` signs the cookies."""
        self._plain = SessionMiddleware(app, secret_key, session_cookie="rappor", max_age=None)
        self._secure = SessionMiddleware(
            app, secret_key, session_cookie="__Host-rappor", max_age=None, https_only=True
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, with the session of its cookie."""
        sessions = self._secure if scope["scheme"] == "https" else self._plain
        await sessions(scope, receive, send)


class _Application(Starlette):
    """An application whose answers all carry the headers of pages, those to bugs too."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its answer back."""

        async def dress(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await super().__call__(scope, receive, dress)


def create() -> Starlette:
    """Return the application of the pages. `serve` must be called before the first request."""
    app = _Application(routes=ROUTES, exception_handlers=make_error_handlers(_render))
    app.router.redirect_slashes = False
    app.state.attempts = signing.attempts()
    return app


def serve(app: Starlette, collector: Collector) -> None:
    """Let the application of the pages serve the data of a collector."""
    app.state.collector = collector
    app.add_middleware(_Sessions, secret_key=visits.cookie_key(collector.engine))


def _render(problem: Problem) -> Response:
    """Show a problem; who is signed in is not known here, so it has no form."""
    response = to_page(
        "problem.html",
        status=problem.status,
        title=problem.status.phrase,
        detail=problem.detail,
        is_signed_in=False,
        form_token="",
    )
    response.headers.update(problem.headers or {})
    if problem.retry_after is not None:
        response.headers["Retry-After"] = f"{math.ceil(problem.retry_after)}"
    return response
