"""Web applications of Starlette, FastAPI and Flask: visited routes of accounts that agree."""

from __future__ import annotations

import html
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs import wait_until
from rappor_client.kit.web import Site, telemetry
from rappor_client.testing import FixedClock, MemoryTransport, peek
from starlette.applications import Starlette
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from rappor import ParamsError, Registry

pytestmark = pytest.mark.slow  # only the extra `dev` installs FastAPI and Flask

Get = Callable[[str, str], tuple[int, dict[str, str], bytes]]
"""Type of a function that sends a request. Its arguments are the path, and the account that is
signed in or an empty text. It returns status, headers and body."""

PAGES = [("/", 200), ("/user/secret?secret=1", 200), ("/sub/item/secret", 200), ("/none", 404)]
"""Paths of requests, with the status of their responses."""
COOKIE_KEY = "of the cookies"
CONSENTS: dict[str, Any] = {"anna": True, "ben": False, "carl": "yes", "dora": None}
"""Accounts with their consent in the application's database. Only True is consent."""


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
    app.add_middleware(SessionMiddleware, secret_key=COOKIE_KEY)

    def get(path: str, name: str) -> tuple[int, dict[str, str], bytes]:
        client = TestClient(app, raise_server_exceptions=False)
        response = client.get(path, headers={"x-account": name})
        return response.status_code, dict(response.headers), response.content

    return app, get


def flask_app() -> tuple[Any, Get]:
    """Return an application with a blueprint, and a function that calls it."""
    from flask import Blueprint, Flask  # noqa: PLC0415 - 0.2 s

    app, inner = Flask("mysite"), Blueprint("sub", "sub", url_prefix="/sub")
    app.secret_key = COOKIE_KEY
    app.add_url_rule("/", "home", lambda: "home")
    app.add_url_rule("/user/<name>", "user", lambda name: name)
    app.add_url_rule("/fail", "fail", lambda: str(1 / 0))
    inner.add_url_rule("/item/<name>", "item", lambda name: name)
    app.register_blueprint(inner)

    def get(path: str, name: str) -> tuple[int, dict[str, str], bytes]:
        response = app.test_client().get(path, headers={"x-account": name})
        return response.status_code, dict(response.headers), response.data

    return app, get


WITH_ALL_FRAMEWORKS = pytest.mark.parametrize(
    "make", [starlette_app, fastapi_app, flask_app], ids=["starlette", "fastapi", "flask"]
)


class UseRecorder(Site):
    """A site that stores the uses in a list in place of recording them."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        """Create the list."""
        super().__init__(*arguments, **settings)
        self.uses: list[tuple[str, str]] = []

    def _get_queue(self) -> Any:
        uses = self.uses

        class ListQueue:
            def put_nowait(self, use: tuple[str, str]) -> None:
                uses.append(use)

        return ListQueue()


def account(request: Any) -> tuple[str, Any] | None:
    """Return the account that is signed in and its consent, or None without an account.

    The function also reads the session, as the function of an application does. The account of a
    test is in a header.
    """
    if isinstance(request, Request):
        request.session.get("id")
    else:
        import flask  # noqa: PLC0415 - 0.2 s

        flask.session.get("id")
    name = request.headers.get("x-account")
    return (name, CONSENTS[name]) if name else None


@pytest.fixture
def leave_test_environment(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that removes the environment variables of tests, in which telemetry is off.

    pytest sets PYTEST_CURRENT_TEST before it calls the test, so the test itself must call the
    function.
    """

    def remove_variables() -> None:
        for name in ("CI", "DO_NOT_TRACK", "PYTEST_CURRENT_TEST"):
            monkeypatch.delenv(name, raising=False)

    return remove_variables


@pytest.fixture
def add_telemetry(tmp_path: Path) -> Callable[..., Site]:
    """Return a function that adds telemetry to an application and writes its registry."""

    def add(app: Any, **settings: Any) -> Site:
        defaults: dict[str, Any] = {
            "registry": tmp_path / "routes.toml",
            "collector": None,
            "folder": tmp_path / "devices",
            "account": account,
            "agreed": lambda: [name for name, consent in CONSENTS.items() if consent is True],
            "clock": FixedClock("2026-12-30T12:00:00"),
        }
        site = telemetry(app, "mysite", **defaults | settings)
        assert site.manage(["init", "--owner", "a@example.org"]) == 0
        return site

    return add


@WITH_ALL_FRAMEWORKS
def test_routes_of_agreeing_accounts_are_recorded(
    make: Callable[[], tuple[Any, Get]],
    add_telemetry: Callable[..., Site],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No path, no query, no account without the consent True, and no page without a route."""
    app, get = make()
    monkeypatch.setattr("rappor_client.kit.web.Site", UseRecorder)
    site = add_telemetry(app)
    assert isinstance(site, UseRecorder)
    categories = Registry.load(site.registry)["command"].params.categories
    item = "sub.item" if make is flask_app else "sub:item"
    assert sorted(categories) == sorted(["home", "user", "fail", item])
    for name in ("", *CONSENTS):
        assert [get(path, name)[0] for path, _ in PAGES] == [status for _, status in PAGES]
        assert get("/fail", name)[0] == 500
        get("/health", name), get("/docs", name), get("/static/none", name)
    assert site.uses == [("anna", name) for name in ("home", "user", item, "fail")]


@WITH_ALL_FRAMEWORKS
@pytest.mark.parametrize("is_broken", [False, True])
def test_a_response_is_the_same_with_telemetry(
    make: Callable[[], tuple[Any, Get]],
    add_telemetry: Callable[..., Site],
    is_broken: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Telemetry changes neither status, headers nor body of a response.

    An error of the application's function `account` is logged once, without its message.
    """

    def fail(_: object) -> None:
        raise LookupError("a secret")

    _, get_without_telemetry = make()
    app, get = make()
    add_telemetry(app, **({"account": fail} if is_broken else {}))
    for path, _ in [*PAGES, ("/fail", 500)]:
        assert get(path, "anna") == get_without_telemetry(path, "anna")
    messages = [record.getMessage() for record in caplog.records if record.name == "rappor_client"]
    assert [text.rpartition(": ")[2] for text in messages] == ["LookupError"] * is_broken


class HangingSite(Site):
    """A site whose disk hangs until a test sets `is_thawed`."""

    is_thawed = threading.Event()

    def _make_device(self, folder: str, collector: Any = None) -> Any:
        self.is_thawed.wait(60)
        return super()._make_device(folder, collector)


def test_a_disk_that_hangs_keeps_nobody_waiting(
    add_telemetry: Callable[..., Site],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """1,100 requests get their responses while the disk hangs. The uses beyond 1,000 are lost.

    The function `account` of the application may be asynchronous.
    """
    caplog.set_level(logging.ERROR)
    app, _ = starlette_app()
    monkeypatch.setattr("rappor_client.kit.web.Site", HangingSite)
    site = add_telemetry(app)

    async def account_async(request: Request) -> object:
        return account(request)

    site.account = account_async
    try:
        with TestClient(app) as client:
            for _ in range(1100):
                assert client.get("/", headers={"x-account": "anna"}).text == "home"
    finally:
        HangingSite.is_thawed.set()


def test_the_next_visit_starts_a_thread_that_could_not_start(
    add_telemetry: Callable[..., Site],
    leave_test_environment: Callable[[], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process at its limit of threads loses visits, and records later ones."""
    leave_test_environment()
    app, get = flask_app()
    add_telemetry(app)

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limit:
        limit.setattr(threading.Thread, "start", fail)
        assert get("/", "anna")[0] == 200
    assert get("/", "anna")[0] == 200
    (device,) = wait_until(lambda: list((tmp_path / "devices").glob("*")))
    wait_until(lambda: peek(device).pending_reports)


def test_a_visit_counts_once_in_several_contexts_of_flask(
    add_telemetry: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page with a stream has two contexts, and a test client in a `with` block keeps a third."""
    from flask import stream_with_context  # noqa: PLC0415 - 0.2 s

    app, _ = flask_app()
    app.add_url_rule(
        "/stream", "stream", lambda: app.response_class(stream_with_context(iter("ab")))
    )
    monkeypatch.setattr("rappor_client.kit.web.Site", UseRecorder)
    site = add_telemetry(app)
    assert isinstance(site, UseRecorder)
    with app.test_client() as client:
        for _ in range(2):
            assert client.get("/stream", headers={"x-account": "anna"}).data == b"ab"
    assert site.uses == [("anna", "stream")] * 2


@WITH_ALL_FRAMEWORKS
def test_an_account_is_a_device(
    make: Callable[[], tuple[Any, Get]],
    add_telemetry: Callable[..., Site],
    leave_test_environment: Callable[[], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The thread records a use, the page of the account shows it, and the job sends its report."""
    leave_test_environment()
    app, get = make()
    transport = MemoryTransport()
    site = add_telemetry(app, collector=transport)
    get("/user/secret", "anna")
    (device,) = wait_until(lambda: list((tmp_path / "devices").glob("*")))
    wait_until(lambda: peek(device).pending_reports)
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


@pytest.mark.parametrize("method", ["send", "forget"])
def test_an_account_without_consent_is_erased(
    add_telemetry: Callable[..., Site], leave_test_environment: Callable[[], None], method: str
) -> None:
    """`forget` erases the device of an account at once.

    The next `send` erases the devices of all accounts that have not agreed, and sends nothing of
    them.
    """
    leave_test_environment()
    transport = MemoryTransport()
    site = add_telemetry(starlette_app()[0], collector=transport, agreed=list)
    device = site._make_device(site._locate_account_folder("anna"))
    device.record(["home"])
    assert peek(Path(device.folder)).has_secret
    site.clock.advance(days=1)  # type: ignore[attr-defined]
    if method == "forget":
        assert site.forget("anna")
    else:
        site.send()
    assert not peek(Path(device.folder)).has_secret
    assert not transport.bodies
    # The reserved nats stay, so a second yes does not renew the budget.
    assert peek(Path(device.folder)).spent.reserved


def test_an_account_that_agrees_during_send_keeps_its_device(
    add_telemetry: Callable[..., Site], leave_test_environment: Callable[[], None]
) -> None:
    """`send` erases no device of an account that agrees after the accounts were listed.

    A worker of the server records the first visit of such an account while the job runs.
    """
    leave_test_environment()
    agreed = ["anna"]

    def agree_later() -> list[str]:
        listed = agreed.copy()
        agreed.append("ben")
        device.record(["home"])
        return listed

    site = add_telemetry(starlette_app()[0], agreed=agree_later)
    device = site._make_device(site._locate_account_folder("ben"))
    site.send()
    assert peek(Path(device.folder)).has_secret


def test_environment_of_a_test_disables_telemetry_of_all_accounts(
    add_telemetry: Callable[..., Site], tmp_path: Path
) -> None:
    """In the environment of a test nothing is written, although the account has agreed."""
    site = add_telemetry(starlette_app()[0])
    site._make_device(site._locate_account_folder("anna")).record(["home"])
    assert "is off: the environment has" in site.send()
    assert not (tmp_path / "devices").exists()


def test_any_other_application_is_refused() -> None:
    """The message names the supported libraries."""
    arguments: dict[str, Any] = {"registry": "r", "collector": None, "agreed": list}
    with pytest.raises(ParamsError, match="Starlette, FastAPI or Flask, got builtin_function"):
        telemetry(print, "a", account=account, **arguments)
