"""Signing in and out, and the check before every page: a visit, its token, and its forms.

Starlette's sessions are in a signed cookie, which has two entries:

- `visit`, after signing in: the secret by which the database knows the visit (`storage.visits`);
- `form`: a random text that all forms of this browser repeat. Another site can send a form with
  the cookie, but cannot read the text. Before a person signs in, the text binds the sign-in form
  to the browser.

Every request looks up the visit and its token, so signing out or revoking the token ends the visit
at once, also for copies of the cookie.
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
from rappor_server.pages import rendering
from rappor_server.pages.forms import MOST_BYTES, Form, check_origin, read_form
from rappor_server.storage import tokens, visits
from rappor_server.storage.tokens import Token

HOME: Final = "/pages/"
SIGN_IN: Final = "/pages/sign-in"
FORM_TOKEN: Final = "form"  # noqa: S105 - the name of a field
"""The field of every form that says which visit it was made for."""

_VISIT: Final = "visit"
"""The entry of a session that has the secret of its visit."""

_ATTEMPTS: Final = 10
"""Failed attempts to sign in that one address may make in a minute."""
_REFUSED: Final = "Signing in needs a token that is neither expired nor revoked."
_OUT_OF_DATE: Final = "This form was made for another visit. Load the page again."


def attempts() -> RateLimit:
    """Return the limit of attempts to sign in, as one process counts them.

    There is no bound on all addresses together: nobody can guess a token, and whoever reached the
    bound would keep everybody out.
    """
    return RateLimit(_ATTEMPTS, what="attempts to sign in")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Somebody who is signed in."""

    collector: Collector
    token: Token
    visit: str
    form_token: str

    @property
    def metrics(self) -> list[Metric]:
        """The metrics that may be read."""
        registry = self.collector.accepted_params.registry
        return [metric for metric in registry.values() if self.token.allows(metric.name)]

    def metric(self, request: Request) -> Metric:
        """Return the metric of a request's path; the problem 404 unless it may be read."""
        name = request.path_params["name"]
        for metric in self.metrics:
            if metric.name == name:
                return metric
        raise Problem(HTTPStatus.NOT_FOUND, "there is no metric of this name that you may read")

    def render(self, template: str, **values: Any) -> Response:
        """Answer with a page of this visit."""
        return to_page(template, form_token=self.form_token, is_signed_in=True, **values)


Endpoint = Callable[[Request], Awaitable[Response]]


def shown(page: Callable[[Request, Reader], Awaitable[Response]]) -> Endpoint:
    """Return the endpoint of a page: who is not signed in is led to where they sign in."""

    async def answer(request: Request) -> Response:
        reader = await _reader(request)
        return to_see(SIGN_IN) if reader is None else await page(request, reader)

    return answer


def sent(
    act: Callable[[Request, Reader, Form], Awaitable[Response]], *, most: int = MOST_BYTES
) -> Endpoint:
    """Return the endpoint of a form, which must be from a page of the same visit."""

    async def answer(request: Request) -> Response:
        check_origin(request)
        reader = await _reader(request)
        if reader is None:
            return to_see(SIGN_IN)
        with reader.collector.share_of_readers() as share:
            form = await read_form(request, share, most=most)
            if not _is_form_token(request, form):
                raise Problem(HTTPStatus.FORBIDDEN, _OUT_OF_DATE)
            return await act(request, reader, form)

    return answer


async def show_sign_in(request: Request) -> Response:
    """GET /pages/sign-in: the form, for this browser alone."""
    if await _reader(request) is not None:
        return to_see(HOME)
    return _sign_in_page(request)


async def sign_in(request: Request) -> Response:
    """POST /pages/sign-in: begin a visit with a token."""
    collector, tried = _collector(request), request.app.state.attempts
    check_origin(request)
    tried.check(_address(request))
    with collector.share_of_readers() as share:
        form = await read_form(request, share)
    if not _is_form_token(request, form):
        if await _reader(request) is not None:  # another page of this browser has signed in
            return to_see(HOME)
        request.session.clear()
        return _sign_in_page(request, _OUT_OF_DATE, HTTPStatus.FORBIDDEN)
    token = await find_token(collector, form.text("token"))
    if token is None:
        return _sign_in_page(request, _REFUSED, HTTPStatus.UNAUTHORIZED)
    tried.take_back(_address(request))
    await collector.look_up(visits.end, request.session.get(_VISIT, ""))
    return await _begin(request, token.id)


async def sign_in_once(request: Request) -> Response:
    """GET /pages/once/SECRET: begin a visit by a link that works once."""
    collector, tried = _collector(request), request.app.state.attempts
    tried.check(_address(request))
    token_id = await collector.look_up(visits.open_link, request.path_params["secret"])
    if token_id is None:
        return to_see(SIGN_IN)
    tried.take_back(_address(request))
    return await _begin(request, token_id)


async def _begin(request: Request, token_id: str) -> Response:
    """Begin a visit in a new session: nothing that was known before signing in stays valid."""
    visit = await _collector(request).look_up(visits.begin, token_id)
    request.session.clear()
    request.session.update({_VISIT: visit, FORM_TOKEN: secrets.token_hex(32)})
    return to_see(HOME)


async def sign_out(request: Request, reader: Reader, form: Form) -> Response:  # noqa: ARG001
    """POST /pages/sign-out: end the visit."""
    await reader.collector.look_up(visits.end, reader.visit)
    request.session.clear()
    return to_see(SIGN_IN)


def to_see(address: str) -> RedirectResponse:
    """Lead to a page, which is asked for by GET whatever was sent here."""
    return RedirectResponse(address, HTTPStatus.SEE_OTHER.value)


def to_page(template: str, *, status: HTTPStatus = HTTPStatus.OK, **values: Any) -> Response:
    """Answer with a page."""
    page = rendering.render(template, **values)
    return Response(page, status.value, media_type="text/html")


def _sign_in_page(
    request: Request, problem: str = "", status: HTTPStatus = HTTPStatus.OK
) -> Response:
    return to_page(
        "sign_in.html",
        status=status,
        # Several tabs of a browser share the text, so each of their forms stays valid.
        form_token=request.session.setdefault(FORM_TOKEN, secrets.token_hex(32)),
        is_signed_in=False,
        problem=problem,
    )


async def _reader(request: Request) -> Reader | None:
    """Return who is signed in, None if nobody is; a token that was revoked ends the visit."""
    visit, collector = request.session.get(_VISIT), _collector(request)
    if visit is None:
        return None
    token_id = await collector.look_up(visits.find, visit)
    if token_id is None:
        return None
    token = await collector.look_up(tokens.find, token_id, today=collector.today())
    if token is None:
        await collector.look_up(visits.end, visit)
        return None
    form_token = request.session[FORM_TOKEN]
    return Reader(collector=collector, token=token, visit=visit, form_token=form_token)


def _is_form_token(request: Request, form: Form) -> bool:
    """Return whether a page of the same session sent a form."""
    expected: str = request.session.get(FORM_TOKEN, "")
    sent = form.text(FORM_TOKEN)
    return bool(expected) and hmac.compare_digest(expected.encode(), sent.encode())


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _collector(request: Request) -> Collector:
    collector: Collector = request.app.state.collector
    return collector
