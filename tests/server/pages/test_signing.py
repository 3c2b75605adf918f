"""Who may see pages: signing in and out, visits that end, forms of other sites."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable

import plain_http
import pytest
from collectors import Running, make_token
from dashboards import Visitor, form_token
from rappor_server.pages.app import ROUTES
from rappor_server.storage import tokens
from rappor_server.storage.database import open_database

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'"
)


def test_pages_are_at_the_operators_address_only(dashboard: Running) -> None:
    """At the other one there is nothing, whatever is asked for."""
    for path in ("/pages", "/pages/", "/pages/sign-in", "/pages/static/report.css"):
        assert dashboard.get(path).status_code == 404
    assert plain_http.get(f"{dashboard.admin_url}/pages").headers["location"] == "/pages/"


def test_nobody_sees_a_page_without_signing_in(new_visitor: Callable[[], Visitor]) -> None:
    """Every page but that to sign in, and the files of pages, leads there."""
    visitor = new_visitor()
    for route in ROUTES:
        if route.path in ("/sign-in", "/static/{name}"):  # /once leads there if it is not known
            continue
        path = "/pages" + re.sub(r"\{\w+\}", "home_page", route.path)
        (method,) = set(route.methods or ()) - {"HEAD"}
        answer = visitor.http.request(method, path)
        assert (answer.status_code, answer.headers["location"]) == (303, "/pages/sign-in"), path


def test_a_token_signs_in_and_the_cookie_is_closed_to_others(
    new_visitor: Callable[[], Visitor], token: str
) -> None:
    """The cookie is for HTTP alone and this site alone, and is not the one from before."""
    visitor = new_visitor()
    before = visitor.get("/pages/sign-in").cookies["rappor"]
    answer = visitor.sign_in(token)
    assert (answer.status_code, answer.headers["location"]) == (303, "/pages/")
    cookie = answer.headers["set-cookie"]
    assert re.fullmatch(r"rappor=[\w-]{43}; HttpOnly; Path=/; SameSite=lax", cookie)
    assert before not in cookie
    assert token not in cookie
    page = visitor.get("/pages/")
    assert page.status_code == 200
    assert "home_page" in page.text
    assert token not in page.text


def test_behind_tls_the_cookie_is_secure(new_visitor: Callable[[], Visitor]) -> None:
    """A proxy that is believed says that it ends TLS."""
    answer = new_visitor().get("/pages/sign-in", **{"X-Forwarded-Proto": "https"})
    cookie = answer.headers["set-cookie"]
    assert re.fullmatch(r"__Host-rappor=[\w-]{43}; HttpOnly; Path=/; SameSite=lax; Secure", cookie)


def test_every_answer_has_the_headers_of_pages(reader: Visitor) -> None:
    """Pages, files, refusals and what is not there."""
    for path in ("/pages/", "/pages/static/pages.js", "/pages/none", "/pages/metrics/none"):
        headers = reader.get(path).headers
        assert headers.get_list("content-security-policy") == [POLICY]
        assert headers.get_list("referrer-policy") == ["same-origin"]
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
    assert reader.get("/pages/").headers["cache-control"] == "no-store"
    assert "immutable" in reader.get("/pages/static/pages.js").headers["cache-control"]


@pytest.mark.parametrize("given", ["", "wrong", "rappor.0.x", "\x00", "é" * 300])
def test_another_word_does_not_sign_in(new_visitor: Callable[[], Visitor], given: str) -> None:
    """One sentence, the same for all, and no visit."""
    visitor = new_visitor()
    answer = visitor.sign_in(given)
    assert answer.status_code == 401
    assert "neither expired nor revoked" in answer.text
    assert visitor.get("/pages/").status_code == 303


def test_attempts_of_an_address_are_limited(new_visitor: Callable[[], Visitor]) -> None:
    """The eleventh wrong one in a minute is refused; another address goes on.

    A minute may end meanwhile, and another one does not.
    """
    visitor = new_visitor()
    answers = [visitor.sign_in("wrong") for _ in range(21)]
    statuses = [answer.status_code for answer in answers]
    assert statuses[:10] == [401] * 10
    refused = answers[statuses.index(429)]
    assert 0 < int(refused.headers["retry-after"]) <= 60
    assert "at most 10 attempts to sign in a minute" in refused.text
    assert new_visitor().sign_in("wrong").status_code == 401


def test_attempts_that_succeed_do_not_count(new_visitor: Callable[[], Visitor], token: str) -> None:
    """A team behind one address signs in, and so does who was mistaken a few times."""
    visitor = new_visitor()
    for given in ["wrong"] * 9 + [token] * 11:
        visitor.http.cookies.clear()
        assert visitor.sign_in(given).status_code == (303 if given == token else 401)


def test_forms_of_other_sites_are_no_attempts(
    new_visitor: Callable[[], Visitor], token: str
) -> None:
    """A page elsewhere cannot use up those of its visitor's address."""
    visitor = new_visitor()
    for _ in range(11):
        answer = visitor.http.post("/pages/sign-in", headers={"Sec-Fetch-Site": "cross-site"})
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers
    assert visitor.sign_in(token).status_code == 303


def test_an_old_form_to_sign_in_does_not_end_a_visit(
    new_visitor: Callable[[], Visitor], token: str
) -> None:
    """It was left open in another tab, which leads to the visit instead."""
    visitor = new_visitor()
    old = form_token(visitor.get("/pages/sign-in").text)
    visitor.sign_in(token)
    answer = visitor.http.post("/pages/sign-in", data={"form": old, "token": token})
    assert (answer.status_code, answer.headers["location"]) == (303, "/pages/")
    assert visitor.get("/pages/").status_code == 200


def test_signing_out_ends_the_visit(reader: Visitor) -> None:
    """Its cookie is worth nothing any more, also where it was kept."""
    cookie = reader.http.cookies["rappor"]
    assert reader.post("/pages/sign-out", at="/pages/").headers["location"] == "/pages/sign-in"
    reader.http.cookies.set("rappor", cookie)
    assert reader.get("/pages/").status_code == 303


def test_signing_in_again_ends_the_visit_before(reader: Visitor, token: str) -> None:
    """Who kept its cookie has nothing of it."""
    cookie = reader.http.cookies["rappor"]
    assert reader.post("/pages/sign-in", at="/pages/", token=token).status_code == 303
    assert reader.get("/pages/").status_code == 200
    reader.http.cookies.clear()
    assert reader.get("/pages/", Cookie=f"rappor={cookie}").status_code == 303


@pytest.mark.parametrize(
    "path", ["sign-out", "metrics/home_page/lists", "metrics/home_page/ranking/cancel"]
)
def test_a_form_needs_the_token_of_its_own_visit(
    reader: Visitor, new_visitor: Callable[[], Visitor], token: str, path: str
) -> None:
    """None, and that of somebody else who is signed in, are refused; and so is another site."""
    other = new_visitor()
    other.sign_in(token)
    for given in ("", "ä", form_token(other.get("/pages/").text)):
        answer = reader.http.post(f"/pages/{path}", data={"form": given})
        assert answer.status_code == 403
        assert "Load the page again" in answer.text
    own = {"form": form_token(reader.get("/pages/").text)}
    elsewhere = {"Origin": "http://evil.example"}
    assert reader.http.post(f"/pages/{path}", data=own, headers=elsewhere).status_code == 403
    assert reader.get("/pages/").status_code == 200


def test_the_form_to_sign_in_is_bound_to_its_browser(
    new_visitor: Callable[[], Visitor], token: str
) -> None:
    """Nobody is signed in by a form that another browser got."""
    stranger, visitor = new_visitor(), new_visitor()
    strange = form_token(stranger.get("/pages/sign-in").text)
    visitor.get("/pages/sign-in")
    answer = visitor.http.post("/pages/sign-in", data={"form": strange, "token": token})
    assert answer.status_code == 403
    assert visitor.get("/pages/").status_code == 303


def test_a_revoked_token_ends_its_visits_at_once(
    dashboard: Running, new_visitor: Callable[[], Visitor]
) -> None:
    """The next request leads to where one signs in."""
    visitor = new_visitor()
    own = make_token(dashboard.database)
    visitor.sign_in(own)
    assert visitor.get("/pages/").status_code == 200
    with open_database(dashboard.database) as engine:
        tokens.revoke(engine, own.split(".")[1], today=datetime.date(2026, 11, 22))
    assert visitor.get("/pages/").status_code == 303


def test_a_token_shows_its_own_metrics_only(
    dashboard: Running, new_visitor: Callable[[], Visitor], reader: Visitor
) -> None:
    """Others are neither listed, nor shown, nor asked about, nor named; nor are their answers."""
    visitor = new_visitor()
    answered = reader.answer("/pages/metrics/home_page/ranking").url
    assert visitor.http.get(answered).headers["location"] == "/pages/sign-in"
    visitor.sign_in(make_token(dashboard.database, "theme"))
    page = visitor.get("/pages/").text
    assert "theme" in page
    assert "home_page" not in page
    fields = {"form": form_token(page)}
    for path in ("ranking/cancel", "lists", "lists/delete"):
        answer = visitor.http.post(f"/pages/metrics/home_page/{path}", data=fields)
        assert answer.status_code == 404
    query = answered.query.decode()
    parts = [f"home_page/ranking{part}?{query}" for part in ("", "/progress", "/files/report.html")]
    for path in (*parts, "home_page", "home_page/lists?list=x", "nobody"):
        answer = visitor.get(f"/pages/metrics/{path}")
        assert (answer.status_code, "no metric of this name" in answer.text) == (404, True)
