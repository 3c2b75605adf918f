"""Signing in and out, and the checks before every page and every form.

A person signs in once with a read token. A visit is the time from signing in to signing out, stored
as a row of the database. How to think about a session: Starlette stores the session of a browser, a
dict, in a signed cookie. The session has two entries:

- `form` is a random text. Every form of the browser repeats it in a hidden field. A page of another
  site can send a form with the cookie, but cannot read the text.
- `visit` is the secret by which the database finds the visit (`storage/visits.py`). The entry
  exists after the person has signed in.

The states of a browser, and what changes them:

    new          no entry. The sign-in page adds `form`.
    anonymous    `form` only. A valid read token, or a one-time link, begins a visit: the session
                 is cleared and gets a new `form` and a `visit`.
    signed in    both entries, and the database has the visit and a valid token.

A visit ends when the person signs out, after half an hour without a request, after twelve hours,
or when its token expires or is revoked. Every request looks up the visit in the database. A visit
therefore ends at once, also for copies of the cookie.

| attack                                    | defence                                      |
|-------------------------------------------|----------------------------------------------|
| a page of another site sends a form       | `check_origin`, and `form` in a hidden field |
| an attacker plants a session in a browser | signing in clears the session                |
| a cookie is copied                        | the copy ends with the visit                 |
| tokens are tried                          | 256 random bits, and 10 failures a minute    |
| the database is stolen                    | it has hashes of secrets only                |
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from rappor.registry.metric import Metric
from rappor_server.access import find_token
from rappor_server.app.collector import Collector
from rappor_server.base.problems import Problem
from rappor_server.base.request_limits import RateLimit
from rappor_server.pages.forms import MAX_FORM_BYTES, Form, check_origin, read_form
from rappor_server.pages.rendering import render_template
from rappor_server.storage import tokens, visits
from rappor_server.storage.tokens import Token

HOME: Final = "/pages/"
"""Path of the list of metrics, which a person sees after signing in."""
SIGN_IN: Final = "/pages/sign-in"
"""Path of the page to sign in, to which every other page redirects a stranger."""
FORM_TOKEN: Final = "form"  # noqa: S105 - the name of a field
"""Name of an entry of the session, and of a hidden field in every form. A form is refused if its
hidden field differs from the entry, so that a page of another site cannot send a form in the name
of the person."""

_VISIT: Final = "visit"
"""Name of the entry of the session that contains the secret of the visit."""
_MAX_ATTEMPTS: Final = 10
"""Largest number of failed attempts to sign in from one address in a minute. A convention, because
people mistype a token a few times. Each attempt is a query to the database. A larger value lets a
stranger delay the queries of other people for longer."""
_REFUSED: Final = "Signing in needs a token that is neither expired nor revoked."
"""Sentence for every invalid token. It does not reveal whether the token was valid before."""
_OUT_OF_DATE: Final = "This form belongs to another visit. Load the page again."
"""Sentence for a form whose hidden field differs from the session, for example after signing in
again on another tab."""


def create_attempt_limit() -> RateLimit:
    """Return the limit of attempts to sign in, for one process.

    All addresses together have no limit. A token has 256 random bits, so nobody can guess a token,
    and a stranger who reached a common limit would lock everybody out.
    """
    return RateLimit(_MAX_ATTEMPTS, noun="attempts to sign in")


@dataclass(frozen=True, slots=True, kw_only=True)
class Analyst:
    """A person who is signed in. Each request of the person has an object of its own.

    Attributes
    ----------
    collector : the running server, which has the database, the registry and the results
    token : the read token with which the person signed in
    visit : secret of the visit
    form_token : text that the forms of the page must repeat
    """

    collector: Collector
    token: Token
    visit: str
    form_token: str

    @property
    def metrics(self) -> list[Metric]:
        """The metrics of the present registry that the token allows."""
        registry = self.collector.accepted_params.registry
        return [metric for metric in registry.values() if self.token.allows(metric.name)]

    def find_metric(self, request: Request) -> Metric:
        """Return the metric in the path of a request; raise Problem 404 if it is not allowed."""
        name = request.path_params["name"]
        for metric in self.metrics:
            if metric.name == name:
                return metric
        # A metric that does not exist, and a metric that the token does not allow, have the same
        # problem. Nobody learns the names of other metrics.
        raise Problem(HTTPStatus.NOT_FOUND, "there is no metric of this name that you may read")

    def render(self, template: str, **values: Any) -> Response:
        """Return a page with the form token of this session."""
        return render_page(template, form_token=self.form_token, is_signed_in=True, **values)


Endpoint = Callable[[Request], Awaitable[Response]]
"""Starlette calls such a function for each request."""


def require_sign_in(show: Callable[[Request, Analyst], Awaitable[Response]]) -> Endpoint:
    """Return the endpoint of a page that only signed-in people see.

    The endpoint redirects everybody else to the sign-in page.

    Parameters
    ----------
    show : returns the page of a signed-in person
    """

    async def respond(request: Request) -> Response:
        analyst = await _find_analyst(request)
        return redirect(SIGN_IN) if analyst is None else await show(request, analyst)

    return respond


def require_form(
    handle: Callable[[Request, Analyst, Form], Awaitable[Response]],
    *,
    max_bytes: int = MAX_FORM_BYTES,
) -> Endpoint:
    """Return the endpoint of a form that only signed-in people may send.

    The endpoint redirects everybody else to the sign-in page. It raises Problem 403 if
    the form comes from another site or another session.

    Parameters
    ----------
    handle : does the work of the form, and returns the response
    max_bytes : largest size of the form in bytes. A form that uploads a file needs a larger value
        than the default.
    """

    async def respond(request: Request) -> Response:
        check_origin(request)
        analyst = await _find_analyst(request)
        if analyst is None:
            return redirect(SIGN_IN)
        # `allocation` counts the bytes of the form in the memory that all requests share.
        with analyst.collector.allocate_for_analyst() as allocation:
            form = await read_form(request, allocation, max_bytes=max_bytes)
            if not _has_form_token(request, form):
                raise Problem(HTTPStatus.FORBIDDEN, _OUT_OF_DATE)
            return await handle(request, analyst, form)

    return respond


async def show_sign_in(request: Request) -> Response:
    """GET /pages/sign-in: show the form to sign in, or redirect if signed in already."""
    if await _find_analyst(request) is not None:
        return redirect(HOME)
    return _render_sign_in(request)


async def sign_in(request: Request) -> Response:
    """POST /pages/sign-in: begin a visit with a read token."""
    collector, attempts = _get_collector(request), request.app.state.attempts
    check_origin(request)
    # The attempt is counted before its result is known. Otherwise a stranger could send many
    # attempts at the same time, before the first of them has failed.
    attempts.check(_get_address(request))
    # The person has not signed in yet. The form still counts as a request of an analyst, and not as
    # an upload: it may not use the half of the memory that is reserved for uploads.
    with collector.allocate_for_analyst() as allocation:
        form = await read_form(request, allocation)
    if not _has_form_token(request, form):
        # The person has signed in on another tab, which replaced the session.
        if await _find_analyst(request) is not None:
            return redirect(HOME)
        # The cookie is missing or was replaced. The page gets a new session.
        request.session.clear()
        return _render_sign_in(request, _OUT_OF_DATE, HTTPStatus.FORBIDDEN)
    token = await find_token(collector, form.get_text("token"))
    if token is None:
        return _render_sign_in(request, _REFUSED, HTTPStatus.UNAUTHORIZED)
    attempts.take_back(_get_address(request))
    return await _begin_visit(request, token.id)


async def sign_in_once(request: Request) -> Response:
    """GET /pages/once/SECRET: begin a visit by a link that works once.

    `rappor-server demo` prints such a link. A link that was used redirects to the sign-in page.
    """
    collector, attempts = _get_collector(request), request.app.state.attempts
    attempts.check(_get_address(request))
    # `look_up` calls a short function with the database in a thread. This function reads the token
    # of the link and deletes the link, so that nobody can use the link again.
    token_id = await collector.look_up(visits.open_link, request.path_params["secret"])
    if token_id is None:
        return redirect(SIGN_IN)
    attempts.take_back(_get_address(request))
    return await _begin_visit(request, token_id)


async def _begin_visit(request: Request, token_id: str) -> Response:
    """Begin a visit in a new session.

    The session is cleared first. An attacker may have planted a session in the browser whose form
    token the attacker knows (session fixation).
    """
    collector = _get_collector(request)
    # A person may sign in again without signing out, perhaps with another token. The first call
    # deletes the earlier visit from the database, and the second call stores the new visit.
    await collector.look_up(visits.end, request.session.get(_VISIT, ""))
    visit = await collector.look_up(visits.begin, token_id)
    request.session.clear()
    request.session.update({_VISIT: visit, FORM_TOKEN: secrets.token_hex(32)})
    return redirect(HOME)


async def sign_out(request: Request, analyst: Analyst, form: Form) -> Response:  # noqa: ARG001
    """POST /pages/sign-out: end the visit."""
    await analyst.collector.look_up(visits.end, analyst.visit)
    request.session.clear()
    return redirect(SIGN_IN)


def redirect(url: str) -> RedirectResponse:
    """Return a redirect (303). The browser follows it with GET, also after a form."""
    return RedirectResponse(url, HTTPStatus.SEE_OTHER.value)


def render_page(template: str, *, status: HTTPStatus = HTTPStatus.OK, **values: Any) -> Response:
    """Return a page as an HTTP response."""
    page = render_template(template, **values)
    return Response(page, status.value, media_type="text/html")


def _render_sign_in(
    request: Request, problem: str = "", status: HTTPStatus = HTTPStatus.OK
) -> Response:
    """Return the page to sign in, with a sentence about a failed attempt, or an empty text."""
    return render_page(
        "sign_in.html",
        status=status,
        # Several tabs of a browser share the text, so each of their forms stays valid.
        form_token=request.session.setdefault(FORM_TOKEN, secrets.token_hex(32)),
        is_signed_in=False,
        problem=problem,
    )


async def _find_analyst(request: Request) -> Analyst | None:
    """Return the signed-in sender of a request, or None for anybody else."""
    visit, collector = request.session.get(_VISIT), _get_collector(request)
    if visit is None:  # the browser is new or anonymous
        return None
    token_id = await collector.look_up(visits.find, visit)
    if token_id is None:  # the visit has ended: signed out, idle for too long, or too old
        return None
    token = await collector.look_up(tokens.find, token_id, today=collector.today())
    if token is None:
        # The token has expired or was revoked since the person signed in.
        await collector.look_up(visits.end, visit)
        return None
    form_token = request.session[FORM_TOKEN]
    return Analyst(collector=collector, token=token, visit=visit, form_token=form_token)


def _has_form_token(request: Request, form: Form) -> bool:
    """Return whether the hidden field of a form repeats the text of the session."""
    # A browser without a session has an empty text. An empty field must not match it.
    expected: str = request.session.get(FORM_TOKEN, "")
    field = form.get_text(FORM_TOKEN)
    return bool(expected) and hmac.compare_digest(expected.encode(), field.encode())


def _get_address(request: Request) -> str:
    """Return the address of the client, or an empty text for a Unix socket."""
    return request.client.host if request.client else ""


def _get_collector(request: Request) -> Collector:
    """Return the running collector."""
    collector: Collector = request.app.state.collector
    return collector
