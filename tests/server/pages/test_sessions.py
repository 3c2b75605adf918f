"""Sessions of the pages: signing in and out, ends of visits, forms of other sites, stolen cookies.

A visitor (`dashboards.Visitor`) is a browser without scripts: it has cookies and an address of its
own. `reader` is a visitor who is signed in. A redirect (303) to the sign-in page means that a
request was not accepted as signed in.
"""

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
from dashboards import Visitor, find_form_token
from itsdangerous import TimestampSigner
from rappor_server.pages.page_routes import ROUTES
from rappor_server.storage import schema, tokens, visits
from rappor_server.storage.database import open_database, write_transaction
from sqlalchemy import select, update

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'"
)
"""The content security policy that every page must have."""

SIGNED = r"[\w+/=]+\.[\w-]+\.[\w-]+"
"""Pattern that the value of a cookie matches: content, time of the signature, and signature."""


def decode_session(cookie: str) -> dict[str, str]:
    """Return the content of a cookie without a check of its signature."""
    session: dict[str, str] = json.loads(base64.b64decode(cookie.split(".", maxsplit=1)[0]))
    return session


def encode_session(session: dict[str, str]) -> str:
    """Return a session as the content of a cookie, without a signature."""
    return base64.b64encode(json.dumps(session).encode()).decode()


def create_signer(dashboard: Running) -> TimestampSigner:
    """Return the signer of the cookies of a collector."""
    with open_database(dashboard.database) as engine:
        return TimestampSigner(visits.cookie_key(engine))


def test_pages_are_at_the_admin_address_only(dashboard: Running) -> None:
    """The public address responds with 404."""
    for path in ("/pages", "/pages/", "/pages/sign-in", "/pages/static/report.css"):
        assert dashboard.get(path).status_code == 404
    assert plain_http.get(f"{dashboard.admin_url}/pages").headers["location"] == "/pages/"


def test_pages_redirect_to_the_sign_in_page(new_visitor: Callable[[], Visitor]) -> None:
    """Every page redirects a visitor without a session to the sign-in page.

    The sign-in page and static files are the exceptions.
    """
    visitor = new_visitor()
    for route in ROUTES:
        if route.path in ("/sign-in", "/static/{name}"):
            continue
        # An unknown link that signs in once redirects, too.
        path = "/pages" + re.sub(r"\{\w+\}", "home_page", route.path)
        (method,) = set(route.methods or ()) - {"HEAD"}
        response = visitor.http.request(method, path)
        assert (response.status_code, response.headers["location"]) == (303, "/pages/sign-in"), path


def test_token_signs_in(new_visitor: Callable[[], Visitor], token: str) -> None:
    """The new cookie is invisible to scripts and to other sites, and does not contain the token.

    Before, the session has the entry of forms only.
    """
    visitor = new_visitor()
    before = visitor.get("/pages/sign-in").cookies["rappor"]
    response = visitor.sign_in(token)
    assert (response.status_code, response.headers["location"]) == (303, "/pages/")
    cookie = response.headers["set-cookie"]
    assert re.fullmatch(rf"rappor={SIGNED}; path=/; httponly; samesite=lax", cookie)
    assert decode_session(response.cookies["rappor"]).keys() == {"visit", "form"}
    assert decode_session(before).keys() == {"form"}
    assert token not in cookie
    page = visitor.get("/pages/")
    assert page.status_code == 200
    assert "home_page" in page.text
    assert token not in page.text


def test_cookie_is_secure_behind_tls(new_visitor: Callable[[], Visitor]) -> None:
    """A trusted proxy that ends TLS sends X-Forwarded-Proto. The cookie is then for HTTPS only."""
    response = new_visitor().get("/pages/sign-in", **{"X-Forwarded-Proto": "https"})
    cookie = response.headers["set-cookie"]
    assert re.fullmatch(rf"__Host-rappor={SIGNED}; path=/; httponly; samesite=lax; secure", cookie)


def test_every_response_has_the_headers_of_pages(reader: Visitor) -> None:
    """Every response has the security headers of pages.

    The paths are a page, a file, a missing page, and the page of an unknown metric.
    """
    for path in ("/pages/", "/pages/static/pages.js", "/pages/none", "/pages/metrics/none"):
        headers = reader.get(path).headers
        assert headers.get_list("content-security-policy") == [POLICY]
        assert headers.get_list("referrer-policy") == ["same-origin"]
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
    assert reader.get("/pages/").headers["cache-control"] == "no-store"
    assert "immutable" in reader.get("/pages/static/pages.js").headers["cache-control"]


@pytest.mark.parametrize("invalid_token", ["", "wrong", "rappor.0.x", "\x00", "é" * 300])
def test_invalid_token_does_not_sign_in(
    new_visitor: Callable[[], Visitor], invalid_token: str
) -> None:
    """Each invalid token gets the same sentence, and no visit begins."""
    visitor = new_visitor()
    response = visitor.sign_in(invalid_token)
    assert response.status_code == 401
    assert "neither expired nor revoked" in response.text
    assert visitor.get("/pages/").status_code == 303


def test_attempts_of_an_address_are_limited(new_visitor: Callable[[], Visitor]) -> None:
    """An address may fail ten times in a minute. Another address may still try."""
    visitor = new_visitor()
    # 21 attempts contain eleven attempts of one minute, even if a minute ends among them.
    responses = [visitor.sign_in("wrong") for _ in range(21)]
    statuses = [response.status_code for response in responses]
    assert statuses[:10] == [401] * 10
    refused = responses[statuses.index(429)]
    assert 0 < int(refused.headers["retry-after"]) <= 60
    assert "at most 10 attempts to sign in a minute" in refused.text
    assert new_visitor().sign_in("wrong").status_code == 401


def test_successful_attempts_do_not_count(new_visitor: Callable[[], Visitor], token: str) -> None:
    """Only attempts that fail count towards the limit of ten a minute.

    Eleven people of a team behind one address can sign in, after nine mistakes.
    """
    visitor = new_visitor()
    for sent_token in ["wrong"] * 9 + [token] * 11:
        visitor.http.cookies.clear()  # each attempt is of another person behind the address
        assert visitor.sign_in(sent_token).status_code == (303 if sent_token == token else 401)


def test_forms_of_other_sites_are_no_attempts(
    new_visitor: Callable[[], Visitor], token: str
) -> None:
    """A page of another site cannot use up the attempts of its visitor's address."""
    visitor = new_visitor()
    for _ in range(11):
        response = visitor.http.post("/pages/sign-in", headers={"Sec-Fetch-Site": "cross-site"})
        assert response.status_code == 403
        assert "set-cookie" not in response.headers
    assert visitor.sign_in(token).status_code == 303


def test_old_sign_in_form_keeps_the_visit(new_visitor: Callable[[], Visitor], token: str) -> None:
    """A form that was open in another tab before signing in redirects to the list of metrics."""
    visitor = new_visitor()
    old = find_form_token(visitor.get("/pages/sign-in").text)
    visitor.sign_in(token)
    response = visitor.http.post("/pages/sign-in", data={"form": old, "token": token})
    assert (response.status_code, response.headers["location"]) == (303, "/pages/")
    assert visitor.get("/pages/").status_code == 200


def test_signing_out_ends_the_visit(reader: Visitor) -> None:
    """After signing out, a copy of the cookie is invalid, too."""
    cookie = reader.http.cookies["rappor"]
    assert reader.post("/pages/sign-out", at="/pages/").headers["location"] == "/pages/sign-in"
    reader.http.cookies.set("rappor", cookie)
    assert reader.get("/pages/").status_code == 303


@pytest.mark.parametrize("has_link", [False, True])
def test_signing_in_again_ends_the_previous_visit(
    dashboard: Running, reader: Visitor, token: str, has_link: bool
) -> None:
    """A copy of the previous cookie is invalid after signing in by token, or by a link."""
    cookie = reader.http.cookies["rappor"]
    if has_link:
        with open_database(dashboard.database) as engine:
            secret = visits.begin(engine, token.split(".")[1], is_link=True)
        assert reader.get(f"/pages/once/{secret}").headers["location"] == "/pages/"
    else:
        assert reader.post("/pages/sign-in", at="/pages/", token=token).status_code == 303
    assert reader.get("/pages/").status_code == 200
    reader.http.cookies.clear()
    assert reader.get("/pages/", Cookie=f"rappor={cookie}").status_code == 303


@pytest.mark.parametrize(
    "path", ["sign-out", "metrics/home_page/lists", "metrics/home_page/ranking/cancel"]
)
def test_form_needs_the_token_of_its_session(
    reader: Visitor, new_visitor: Callable[[], Visitor], token: str, path: str
) -> None:
    """A missing token, the token of another session, and a form of another site are refused."""
    other_visitor = new_visitor()
    other_visitor.sign_in(token)
    for form in ("", "ä", find_form_token(other_visitor.get("/pages/").text)):
        response = reader.http.post(f"/pages/{path}", data={"form": form})
        assert response.status_code == 403
        assert "Load the page again" in response.text
    valid = {"form": find_form_token(reader.get("/pages/").text)}
    origin = {"Origin": "http://evil.example"}
    assert reader.http.post(f"/pages/{path}", data=valid, headers=origin).status_code == 403
    assert reader.get("/pages/").status_code == 200


def test_sign_in_form_is_bound_to_its_browser(
    new_visitor: Callable[[], Visitor], token: str
) -> None:
    """A sign-in form that another browser received does not sign in.

    Otherwise another site could sign a visitor in with a token of its choice.
    """
    other_visitor, visitor = new_visitor(), new_visitor()
    form_of_other = find_form_token(other_visitor.get("/pages/sign-in").text)
    visitor.get("/pages/sign-in")
    response = visitor.http.post("/pages/sign-in", data={"form": form_of_other, "token": token})
    assert response.status_code == 403
    assert visitor.get("/pages/").status_code == 303


def test_revoked_token_ends_its_visits(
    dashboard: Running, new_visitor: Callable[[], Visitor]
) -> None:
    """After its token is revoked, the next request of a visit is redirected to the sign-in page."""
    visitor = new_visitor()
    token = make_token(dashboard.database)
    visitor.sign_in(token)
    assert visitor.get("/pages/").status_code == 200
    with open_database(dashboard.database) as engine:
        tokens.revoke(engine, token.split(".")[1], today=datetime.date(2026, 11, 22))
    assert visitor.get("/pages/").status_code == 303


def test_forged_cookie_is_refused(dashboard: Running, reader: Visitor) -> None:
    """A cookie with the secret of a visit needs the signature of the collector, too."""
    cookie = reader.http.cookies["rappor"]
    content, time_of_signature, signature = cookie.split(".")
    session, signer = decode_session(cookie), create_signer(dashboard)
    forgeries = (
        content,  # without a signature
        f"{content}.{time_of_signature}.{signature[::-1]}",  # with a wrong signature
        f"{encode_session({})}.{time_of_signature}.{signature}",  # of another content
        TimestampSigner("00" * 32).sign(content).decode(),  # signed with another key
        # Signed with the key of the collector, without a visit and with an unknown visit.
        signer.sign(encode_session({"form": session["form"]})).decode(),
        signer.sign(encode_session(session | {"visit": "0" * 43})).decode(),
    )
    reader.http.cookies.clear()
    for forged in forgeries:
        response = reader.get("/pages/", Cookie=f"rappor={forged}")
        assert (response.status_code, response.headers["location"]) == (303, "/pages/sign-in")
    assert reader.get("/pages/", Cookie=f"rappor={cookie}").status_code == 200


def test_expired_visit_is_refused(
    dashboard: Running, new_visitor: Callable[[], Visitor], token: str
) -> None:
    """A visit ends half an hour after its last request, although its cookie is still signed."""
    visitor = new_visitor()
    visitor.sign_in(token)
    assert visitor.get("/pages/").status_code == 200
    secret = decode_session(visitor.http.cookies["rappor"])["visit"]
    is_same = schema.visit.c.digest == hashlib.sha256(secret.encode()).digest()
    end_visit = (
        update(schema.visit).where(is_same).values(seen=time.time() - visits.IDLE_SECONDS - 1)
    )
    with open_database(dashboard.database) as engine, write_transaction(engine) as db:
        assert db.execute(end_visit).rowcount == 1
    assert visitor.get("/pages/").headers["location"] == "/pages/sign-in"


def test_stolen_database_opens_no_page(
    dashboard: Running, reader: Visitor, new_visitor: Callable[[], Visitor]
) -> None:
    """A thief with a copy of the database cannot forge the cookie of a visit.

    The database contains the key that signs cookies, and the hashes of the secrets of visits. A
    cookie needs the secret.
    """
    session = decode_session(reader.http.cookies["rappor"])
    with open_database(dashboard.database) as engine, engine.connect() as db:
        digests = db.execute(select(schema.visit.c.digest)).scalars().all()
    assert hashlib.sha256(session["visit"].encode()).digest() in digests
    # The thief signs a cookie with the stolen key, and uses each stolen hash as the secret.
    signer, thief = create_signer(dashboard), new_visitor()
    for digest in digests:
        for secret in (digest.hex(), base64.urlsafe_b64encode(digest).decode().rstrip("=")):
            forged = signer.sign(encode_session(session | {"visit": secret})).decode()
            assert thief.get("/pages/", Cookie=f"rappor={forged}").status_code == 303


def test_token_shows_its_own_metrics_only(
    dashboard: Running, new_visitor: Callable[[], Visitor], reader: Visitor
) -> None:
    """A visitor sees only the metrics of the token. Other metrics are not listed or named."""
    visitor = new_visitor()
    # The URL of another person's result, which the visitor's token does not allow.
    url = reader.request_result("/pages/metrics/home_page/ranking").url
    assert visitor.http.get(url).headers["location"] == "/pages/sign-in"
    visitor.sign_in(make_token(dashboard.database, "theme"))
    page = visitor.get("/pages/").text
    assert "theme" in page
    assert "home_page" not in page
    fields = {"form": find_form_token(page)}
    for path in ("ranking/cancel", "lists", "lists/delete"):
        response = visitor.http.post(f"/pages/metrics/home_page/{path}", data=fields)
        assert response.status_code == 404
    query = url.query.decode()
    parts = [f"home_page/ranking{part}?{query}" for part in ("", "/progress", "/files/report.html")]
    for path in (*parts, "home_page", "home_page/lists?list=x", "nobody"):
        response = visitor.get(f"/pages/metrics/{path}")
        assert (response.status_code, "no metric of this name" in response.text) == (404, True)
