"""Web applications of Starlette, FastAPI and Flask: visited routes of accounts that agree."""

from __future__ import annotations

import html
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs import until
from rappor_client.kit.web import Site, telemetry
from rappor_client.testing import FixedClock, MemoryTransport, peek
from starlette.applications import Starlette
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from rappor import ParamsError, Registry

pytestmark = pytest.mark.slow  # FastAPI and Flask are in the extra dev only

Get = Callable[[str, str], tuple[int, dict[str, str], bytes]]
"""Sends a request: (path, account that is signed in) -> status, headers and body."""

PAGES = [("/", 200), ("/user/secret?secret=1", 200), ("/sub/item/secret", 200), ("/none", 404)]
KEY = "of the cookies"
AGREED: dict[str, Any] = {"anna": True, "ben": False, "carl": "yes", "dora": None}


def starlette_app() -> tuple[Any, Get]:
    """Return an application with a mounted application, and a function that calls it."""

    async def home(_: Request) -> PlainTextResponse:
        return PlainTextResponse("home")

    async def fail(_: Request) -> PlainTextResponse:
        raise ZeroDivisionError

    inner = Starlette(routes=[Route("/item/{name}", PlainTextResponse("item"), name="item")])
    routes = [
        Route("/", home),
        Route("/user/{name}", PlainTextResponse("user"), name="user"),
        Route("/fail", fail),
        Route("/health", PlainTextResponse("fine"), name="health", include_in_schema=False),
        Mount("/sub", inner),
    ]
    return asgi(Starlette(routes=routes))


def fastapi_app() -> tuple[Any, Get]:
    """Return an application with a router. FastAPI's pages of documentation are not recorded."""
    from fastapi import APIRouter, FastAPI  # noqa: PLC0415 - 0.4 s

    app, inner = FastAPI(), APIRouter(prefix="/sub")
    app.get("/", name="home")(lambda: "home")
    app.get("/user/{name}", name="user")(lambda name: name)
    app.get("/fail", name="fail")(lambda: 1 / 0)
    inner.get("/item/{name}", name="item")(lambda name: name)
    app.include_router(inner)
    return asgi(app)


def asgi(app: Any) -> tuple[Any, Get]:
    """Add sessions to an application; return the application and a function that calls it."""
    app.add_middleware(SessionMiddleware, secret_key=KEY)

    def get(path: str, who: str) -> tuple[int, dict[str, str], bytes]:
        client = TestClient(app, raise_server_exceptions=False)
        answer = client.get(path, headers={"x-who": who})
        return answer.status_code, dict(answer.headers), answer.content

    return app, get


def flask_app() -> tuple[Any, Get]:
    """Return an application with a blueprint, and a function that calls it."""
    from flask import Blueprint, Flask  # noqa: PLC0415 - 0.2 s

    app, inner = Flask("mysite"), Blueprint("sub", "sub", url_prefix="/sub")
    app.secret_key = KEY
    app.add_url_rule("/", "home", lambda: "home")
    app.add_url_rule("/user/<name>", "user", lambda name: name)
    app.add_url_rule("/fail", "fail", lambda: str(1 / 0))
    inner.add_url_rule("/item/<name>", "item", lambda name: name)
    app.register_blueprint(inner)

    def get(path: str, who: str) -> tuple[int, dict[str, str], bytes]:
        answer = app.test_client().get(path, headers={"x-who": who})
        return answer.status_code, dict(answer.headers), answer.data

    return app, get


FRAMEWORKS = pytest.mark.parametrize(
    "make", [starlette_app, fastapi_app, flask_app], ids=["starlette", "fastapi", "flask"]
)


class Seen(Site):
    """A site that stores the uses in a list in place of recording them."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        """Create the list."""
        super().__init__(*given, **settings)
        self.uses: list[tuple[str, str]] = []

    def _get_queue(self) -> Any:
        seen = self

        class Waiting:
            def put_nowait(self, use: tuple[str, str]) -> None:
                seen.uses.append(use)

        return Waiting()


def account(request: Any) -> tuple[str, Any] | None:
    """Return the account that is signed in and its consent, as an application reads its session."""
    if isinstance(request, Request):
        request.session.get("id")
    else:
        import flask  # noqa: PLC0415 - 0.2 s

        flask.session.get("id")
    who = request.headers.get("x-who")
    return (who, AGREED[who]) if who else None


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that removes the variables of tests; call it in the test itself."""

    def leave() -> None:
        for name in ("CI", "DO_NOT_TRACK", "PYTEST_CURRENT_TEST"):
            monkeypatch.delenv(name, raising=False)

    return leave


@pytest.fixture
def give(tmp_path: Path) -> Callable[..., Site]:
    """Return a function that adds telemetry to an application and writes its registry."""

    def give(app: Any, **settings: Any) -> Site:
        given: dict[str, Any] = {
            "registry": tmp_path / "routes.toml",
            "collector": None,
            "folder": tmp_path / "devices",
            "account": account,
            "agreed": lambda: [who for who, yes in AGREED.items() if yes is True],
            "clock": FixedClock("2026-12-30T12:00:00"),
        }
        site = telemetry(app, "mysite", **given | settings)
        assert site.manage(["init", "--owner", "a@example.org"]) == 0
        return site

    return give


@FRAMEWORKS
def test_routes_of_agreeing_accounts_are_recorded(
    make: Callable[[], tuple[Any, Get]], give: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No path, no query, no account without the consent True, and no page without a route."""
    app, get = make()
    monkeypatch.setattr("rappor_client.kit.web.Site", Seen)
    site = give(app)
    assert isinstance(site, Seen)
    listed = Registry.load(site.registry)["command"].params.categories
    item = "sub.item" if make is flask_app else "sub:item"
    assert sorted(listed) == sorted(["home", "user", "fail", item])
    for who in ("", *AGREED):
        assert [get(path, who)[0] for path, _ in PAGES] == [status for _, status in PAGES]
        assert get("/fail", who)[0] == 500
        get("/health", who), get("/docs", who), get("/static/none", who)
    assert site.uses == [("anna", name) for name in ("home", "user", item, "fail")]


@FRAMEWORKS
@pytest.mark.parametrize("is_broken", [False, True])
def test_a_response_is_the_same_with_telemetry(
    make: Callable[[], tuple[Any, Get]],
    give: Callable[..., Site],
    is_broken: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Status, headers and body, also if a function of the host raises, which is logged."""

    def fails(_: object) -> None:
        raise LookupError("a secret")

    _, bare = make()
    app, get = make()
    give(app, **({"account": fails} if is_broken else {}))
    for path, _ in [*PAGES, ("/fail", 500)]:
        assert get(path, "anna") == bare(path, "anna")
    told = [each.getMessage() for each in caplog.records if each.name == "rappor_client"]
    assert [each.rpartition(": ")[2] for each in told] == ["LookupError"] * is_broken


class Stuck(Site):
    """A site whose disk hangs."""

    free = threading.Event()

    def _make_device(self, folder: str, collector: Any = None) -> Any:
        self.free.wait(60)
        return super()._make_device(folder, collector)


def test_a_disk_that_hangs_keeps_nobody_waiting(
    give: Callable[..., Site], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """1,100 requests get their responses meanwhile. The uses beyond 1,000 are lost."""
    caplog.set_level(logging.ERROR)
    app, _ = starlette_app()
    monkeypatch.setattr("rappor_client.kit.web.Site", Stuck)
    site = give(app)

    async def later(request: Request) -> object:
        return account(request)

    site.account = later
    try:
        with TestClient(app) as client:
            for _ in range(1100):
                assert client.get("/", headers={"x-who": "anna"}).text == "home"
    finally:
        Stuck.free.set()


@FRAMEWORKS
def test_an_account_is_a_device(
    make: Callable[[], tuple[Any, Get]],
    give: Callable[..., Site],
    person: Callable[[], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The thread records a use, the page of the account shows it, and the job sends its report."""
    person()
    app, get = make()
    transport = MemoryTransport()
    site = give(app, collector=transport)
    get("/user/secret", "anna")
    (device,) = until(lambda: list((tmp_path / "devices").glob("*")))
    until(lambda: peek(device).pending_reports)
    page = site.page("anna")
    assert "command: one report, kept until its day is over" in page
    assert site.manage(["send"]) == 0
    assert not transport.bodies
    site.clock.advance(days=1)  # type: ignore[attr-defined]
    assert site.manage(["send"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 reports sent, 0 waiting."
    (body,) = transport.bodies
    assert html.escape(body.decode()) in page
    assert peek(device).has_secret


@pytest.mark.parametrize("ends", ["job", "forget"])
def test_an_account_without_consent_is_erased(
    give: Callable[..., Site], person: Callable[[], None], ends: str
) -> None:
    """`forget` erases at once, the next job erases all others; nothing of them is sent."""
    person()
    transport = MemoryTransport()
    site = give(starlette_app()[0], collector=transport, agreed=list)
    device = site._make_device(site._account_folder("anna"))
    device.record(["home"])
    assert peek(Path(device.folder)).has_secret
    site.clock.advance(days=1)  # type: ignore[attr-defined]
    if ends == "forget":
        assert site.forget("anna")
    else:
        site.send()
    assert not peek(Path(device.folder)).has_secret
    assert not transport.bodies
    assert peek(Path(device.folder)).spent.reserved  # a second yes does not renew the budget


def test_only_the_environment_and_the_registry_are_above_an_account(
    give: Callable[..., Site], tmp_path: Path
) -> None:
    """In the environment of a test nothing is written, although the account has agreed."""
    site = give(starlette_app()[0])
    site._make_device(site._account_folder("anna")).record(["home"])
    assert "is off: the environment has" in site.send()
    assert not (tmp_path / "devices").exists()


def test_any_other_application_is_refused() -> None:
    """The message names the supported libraries."""
    given: dict[str, Any] = {"registry": "r", "collector": None, "agreed": list}
    with pytest.raises(ParamsError, match="Starlette, FastAPI or Flask, got builtin_function"):
        telemetry(print, "a", account=account, **given)
