"""ASGI application of the dashboard: routes, security headers, cookies, and pages for errors.

The application is mounted below /pages of the collector's application (`http/application.py`). An
endpoint that needs a signed-in person is wrapped into `require_sign_in` or `require_form`, so the
list of routes shows which pages a stranger can reach: the sign-in page, links that sign in once,
and static files.
"""

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
from rappor_server.base.query_parameters import CheckedRoute
from rappor_server.pages import metric_pages, result_pages, sessions
from rappor_server.pages.rendering import STATIC_FILES
from rappor_server.pages.sessions import redirect, render_page, require_form, require_sign_in
from rappor_server.storage import visits

PREFIX: Final = "/pages"
"""Path below which all pages are."""

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'"
)
"""Content security policy. A page loads nothing from another site. Inline scripts do not run, so a
candidate such as <script> would do nothing even if a template did not escape it."""
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    # A window that another site has opened cannot reach the page, and no other site can embed it.
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # With `no-referrer`, a browser would send "Origin: null" with a form, and `check_origin` would
    # refuse the form.
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
_CACHE_FOREVER: Final = {"Cache-Control": "public, max-age=31536000, immutable"}
"""Header of a static file, with a year in seconds. The URL contains a digest of the file, so a new
version of the file has another URL."""


async def redirect_to_home(_: Request) -> Response:
    """GET /pages: redirect to the list of metrics."""
    return redirect(sessions.HOME)


async def get_static_file(request: Request) -> Response:
    """GET /pages/static/NAME: return a style sheet or a script."""
    file = STATIC_FILES.get(request.path_params["name"])
    if file is None:
        raise HTTPException(HTTPStatus.NOT_FOUND.value)
    return Response(file.content, media_type=file.media_type, headers=_CACHE_FOREVER)


_RESULT: Final = "/metrics/{name}/{kind}"
"""Path of a result. KIND is a key of `result_pages._KINDS`, such as ranking."""
ROUTES: Final = (
    CheckedRoute("/", require_sign_in(metric_pages.show_metrics), methods=["GET"], query=["page"]),
    CheckedRoute("/sign-in", sessions.show_sign_in, methods=["GET"]),
    CheckedRoute("/sign-in", sessions.sign_in, methods=["POST"]),
    CheckedRoute("/once/{secret}", sessions.sign_in_once, methods=["GET"]),
    CheckedRoute("/sign-out", require_form(sessions.sign_out), methods=["POST"]),
    CheckedRoute("/static/{name}", get_static_file, methods=["GET"], query=["v"]),
    CheckedRoute(
        "/metrics/{name}", require_sign_in(result_pages.redirect_to_overview), methods=["GET"]
    ),
    CheckedRoute(
        "/metrics/{name}/ask",
        require_sign_in(metric_pages.show_ask),
        methods=["GET"],
        query=["question"],
    ),
    CheckedRoute(
        "/metrics/{name}/health", require_sign_in(metric_pages.show_health), methods=["GET"]
    ),
    CheckedRoute(
        "/metrics/{name}/lists",
        require_form(metric_pages.upload_list, max_bytes=metric_pages.MAX_LIST_FORM_BYTES),
        methods=["POST"],
    ),
    CheckedRoute(
        "/metrics/{name}/lists",
        require_sign_in(metric_pages.download_list),
        methods=["GET"],
        query=["list"],
    ),
    # The routes above come first, because {kind} would match their last part, too. The query
    # parameters of a result depend on its kind, so `result_pages` checks them.
    Route(_RESULT, require_sign_in(result_pages.show_result), methods=["GET"]),
    Route(f"{_RESULT}/progress", require_sign_in(result_pages.get_progress), methods=["GET"]),
    Route(f"{_RESULT}/files/{{file}}", require_sign_in(result_pages.download_file),
          methods=["GET"]),
    Route(f"{_RESULT}/cancel", require_form(result_pages.cancel_query), methods=["POST"]),
)  # fmt: skip


class _Sessions:
    """Starlette's sessions, whose cookies no other site can read, set or send with a form.

    Over HTTPS, cookies are "Secure", and the prefix `__Host-` makes browsers refuse a cookie that
    another host of the same domain has set. Over plain HTTP, browsers would ignore such cookies.

    "SameSite" is "lax": a link from another site sends the cookie, a form from another site does
    not. With "strict", a link in a chat would show the sign-in page to a person who is signed in.

    A cookie has no lifetime, so it ends with the browser at the latest. The database ends visits
    earlier.
    """

    def __init__(self, app: ASGIApp, secret_key: str) -> None:
        """Wrap an application.

        Parameters
        ----------
        app : the application
        secret_key : key that signs the cookies
        """
        self._plain = SessionMiddleware(app, secret_key, session_cookie="rappor", max_age=None)
        self._secure = SessionMiddleware(
            app, secret_key, session_cookie="__Host-rappor", max_age=None, https_only=True
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application with the session of the cookie."""
        middleware = self._secure if scope["scheme"] == "https" else self._plain
        await middleware(scope, receive, send)


class _PagesApplication(Starlette):
    """An application whose responses all have the security headers of pages.

    The headers are added outside of Starlette's middleware, which does not see the response 500 to
    a fault of the program.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application with a `send` that adds the headers."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await super().__call__(scope, receive, send_with_headers)


def create_pages() -> Starlette:
    """Return the application of the pages. `attach_collector` completes it."""
    app = _PagesApplication(routes=ROUTES, exception_handlers=make_error_handlers(_render_problem))
    app.router.redirect_slashes = False
    app.state.attempts = sessions.create_attempt_limit()
    return app


def attach_collector(app: Starlette, collector: Collector) -> None:
    """Connect the application of the pages with an open collector, before the first request.

    The key that signs the cookies is in the database, which is open only now.
    """
    app.state.collector = collector
    app.add_middleware(_Sessions, secret_key=visits.cookie_key(collector.engine))


def _render_problem(problem: Problem) -> Response:
    """Return a problem as a page for people.

    The page has no form to sign out, because an error handler has no session.
    """
    response = render_page(
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
