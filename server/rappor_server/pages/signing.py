"""Signing in and out, and the check before every page: a visit, its token, and its forms."""

from __future__ import annotations

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
    cookie: str
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
            if not visits.is_form_token(reader.cookie, form.text(FORM_TOKEN)):
                raise Problem(HTTPStatus.FORBIDDEN, _OUT_OF_DATE)
            return await act(request, reader, form)

    return answer


async def show_sign_in(request: Request) -> Response:
    """GET /pages/sign-in: the form, for this browser alone."""
    if await _reader(request) is not None:
        return to_see(HOME)
    cookie = _cookie(request) or visits.new_cookie()
    return _sign_in_page(request, cookie)


async def sign_in(request: Request) -> Response:
    """POST /pages/sign-in: begin a visit with a token."""
    collector, tried = _collector(request), request.app.state.attempts
    check_origin(request)
    tried.check(_address(request))
    with collector.share_of_readers() as share:
        form = await read_form(request, share)
    cookie = _cookie(request)
    if not cookie or not visits.is_form_token(cookie, form.text(FORM_TOKEN)):
        if await _reader(request) is not None:  # another page of this browser has signed in
            return to_see(HOME)
        fresh = visits.new_cookie()
        return _sign_in_page(request, fresh, _OUT_OF_DATE, HTTPStatus.FORBIDDEN)
    token = await find_token(collector, form.text("token"))
    if token is None:
        return _sign_in_page(request, cookie, _REFUSED, HTTPStatus.UNAUTHORIZED)
    tried.take_back(_address(request))
    await collector.look_up(visits.end, cookie)
    return await _begin(request, token.id)


async def sign_in_once(request: Request) -> Response:
    """GET /pages/once/SECRET: begin a visit by a link that works once."""
    collector, tried = _collector(request), request.app.state.attempts
    tried.check(_address(request))
    secret = request.path_params["secret"]
    known = visits.is_cookie(secret)
    token_id = await collector.look_up(visits.open_link, secret) if known else None
    if token_id is None:
        return to_see(SIGN_IN)
    tried.take_back(_address(request))
    return await _begin(request, token_id)


async def _begin(request: Request, token_id: str) -> Response:
    collector = _collector(request)
    response = to_see(HOME)
    cookie = await collector.look_up(visits.begin, token_id)
    _set_cookie(request, response, cookie)
    return response


async def sign_out(request: Request, reader: Reader, form: Form) -> Response:  # noqa: ARG001
    """POST /pages/sign-out: end the visit."""
    collector = reader.collector
    await collector.look_up(visits.end, reader.cookie)
    response = to_see(SIGN_IN)
    response.delete_cookie(
        _cookie_name(request), httponly=True, samesite="lax", secure=_is_secure(request)
    )
    return response


def to_see(address: str) -> RedirectResponse:
    """Lead to a page, which is asked for by GET whatever was sent here."""
    return RedirectResponse(address, HTTPStatus.SEE_OTHER.value)


def to_page(template: str, *, status: HTTPStatus = HTTPStatus.OK, **values: Any) -> Response:
    """Answer with a page."""
    page = rendering.render(template, **values)
    return Response(page, status.value, media_type="text/html")


def _sign_in_page(
    request: Request, cookie: str, problem: str = "", status: HTTPStatus = HTTPStatus.OK
) -> Response:
    form_token = visits.form_token(cookie)
    response = to_page(
        "sign_in.html", status=status, form_token=form_token, is_signed_in=False, problem=problem
    )
    _set_cookie(request, response, cookie)
    return response


async def _reader(request: Request) -> Reader | None:
    """Return who is signed in, None if nobody is; a token that was revoked ends the visit."""
    cookie, collector = _cookie(request), _collector(request)
    if not cookie:
        return None
    token_id = await collector.look_up(visits.find, cookie)
    if token_id is None:
        return None
    token = await collector.look_up(tokens.find, token_id, today=collector.today())
    if token is None:
        await collector.look_up(visits.end, cookie)
        return None
    return Reader(
        collector=collector, token=token, cookie=cookie, form_token=visits.form_token(cookie)
    )


def _cookie(request: Request) -> str:
    """Return the cookie of a request, nothing if it has none of ours."""
    found = request.cookies.get(_cookie_name(request), "")
    return found if visits.is_cookie(found) else ""


def _set_cookie(request: Request, response: Response, cookie: str) -> None:
    """Set the cookie; it comes along with links of other sites (`lax`), not with their forms.

    Without it such a link would lead to the page to sign in, which sets another one over it.
    """
    response.set_cookie(
        _cookie_name(request),
        cookie,
        httponly=True,
        samesite="lax",
        secure=_is_secure(request),
    )


def _cookie_name(request: Request) -> str:
    """Return a name under which browsers take only what this site has set, where TLS says so."""
    return "__Host-rappor" if _is_secure(request) else "rappor"


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _is_secure(request: Request) -> bool:
    return request.url.scheme == "https"


def _collector(request: Request) -> Collector:
    collector: Collector = request.app.state.collector
    return collector
