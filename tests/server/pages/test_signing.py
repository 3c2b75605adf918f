"""Who may see pages: signing in and out, visits that end, forms of other sites."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import re
import time
from collections.abc import Callable

import plain_http
import pytest
from collectors import Running, make_token
from dashboards import Visitor, form_token
from itsdangerous import TimestampSigner
from rappor_server.pages.app import ROUTES
from rappor_server.storage import schema, tokens, visits
from rappor_server.storage.database import open_database, write_transaction
from sqlalchemy import select, update

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'"
)


SIGNED = r"[\w+/=]+\.[\w-]+\.[\w-]+"
"""The value of a cookie: its content, the time of its signature, and the signature."""


def session_of(cookie: str) -> dict[str, str]:
    """Return what a cookie contains, without looking at its signature."""
    session: dict[str, str] = json.loads(base64.b64decode(cookie.split(".", maxsplit=1)[0]))
    return session


def encode_session(session: dict[str, str]) -> str:
    """Return the content of a cookie."""
    return base64.b64encode(json.dumps(session).encode()).decode()


def signer_of(dashboard: Running) -> TimestampSigner:
    """Return the signer of the cookies of a collector."""
    with open_database(dashboard.database) as engine:
        return TimestampSigner(visits.cookie_key(engine))


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
    assert re.fullmatch(rf"rappor={SIGNED}; path=/; httponly; samesite=lax", cookie)
    assert session_of(answer.cookies["rappor"]).keys() == {"visit", "form"}
    assert session_of(before).keys() == {"form"}
    assert token not in cookie
    page = visitor.get("/pages/")
    assert page.status_code == 200
    assert "home_page" in page.text
    assert token not in page.text


def test_behind_tls_the_cookie_is_secure(new_visitor: Callable[[], Visitor]) -> None:
    """A proxy that is believed says that it ends TLS."""
    answer = new_visitor().get("/pages/sign-in", **{"X-Forwarded-Proto": "https"})
    cookie = answer.headers["set-cookie"]
    assert re.fullmatch(rf"__Host-rappor={SIGNED}; path=/; httponly; samesite=lax; secure", cookie)


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


def test_a_forged_cookie_opens_nothing(dashboard: Running, reader: Visitor) -> None:
    """Not even a cookie that has the secret of a visit, unless the collector has signed it."""
    cookie = reader.http.cookies["rappor"]
    content, time_of_signature, signature = cookie.split(".")
    session, own = session_of(cookie), signer_of(dashboard)
    forgeries = (
        content,
        f"{content}.{time_of_signature}.{signature[::-1]}",
        f"{encode_session({})}.{time_of_signature}.{signature}",
        TimestampSigner("00" * 32).sign(content).decode(),
        own.sign(encode_session({"form": session["form"]})).decode(),
        own.sign(encode_session(session | {"visit": "0" * 43})).decode(),
    )
    reader.http.cookies.clear()
    for forged in forgeries:
        answer = reader.get("/pages/", Cookie=f"rappor={forged}")
        assert (answer.status_code, answer.headers["location"]) == (303, "/pages/sign-in")
    assert reader.get("/pages/", Cookie=f"rappor={cookie}").status_code == 200


def test_an_expired_visit_opens_nothing(
    dashboard: Running, new_visitor: Callable[[], Visitor], token: str
) -> None:
    """The signature of its cookie is still right; the database decides."""
    visitor = new_visitor()
    visitor.sign_in(token)
    assert visitor.get("/pages/").status_code == 200
    secret = session_of(visitor.http.cookies["rappor"])["visit"]
    is_same = schema.visit.c.digest == hashlib.sha256(secret.encode()).digest()
    late = update(schema.visit).where(is_same).values(seen=time.time() - visits.IDLE_SECONDS - 1)
    with open_database(dashboard.database) as engine, write_transaction(engine) as db:
        assert db.execute(late).rowcount == 1
    assert visitor.get("/pages/").headers["location"] == "/pages/sign-in"


def test_a_stolen_database_opens_nothing(
    dashboard: Running, reader: Visitor, new_visitor: Callable[[], Visitor]
) -> None:
    """It has the key of the cookies, but only hashes of the secrets of visits."""
    own = session_of(reader.http.cookies["rappor"])
    with open_database(dashboard.database) as engine, engine.connect() as db:
        digests = db.execute(select(schema.visit.c.digest)).scalars().all()
    assert hashlib.sha256(own["visit"].encode()).digest() in digests
    signer, thief = signer_of(dashboard), new_visitor()
    for digest in digests:
        for secret in (digest.hex(), base64.urlsafe_b64encode(digest).decode().rstrip("=")):
            forged = signer.sign(encode_session(own | {"visit": secret})).decode()
            assert thief.get("/pages/", Cookie=f"rappor={forged}").status_code == 303


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
