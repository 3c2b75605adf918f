"""Names of routes: a site records visits by name, so two routes must have different names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rappor_client.kit.web import Site, telemetry
from rappor_client.kit.web_routes import list_routes
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route
from starlette.testclient import TestClient

from rappor import ParamsError

pytestmark = pytest.mark.slow  # only the extra `dev` installs FastAPI and Flask

Visits = list[tuple[str, str, str]]
"""Requests of a test: method, path, and the recorded name. A request with the empty name is not
recorded."""


def page(_: Request) -> PlainTextResponse:
    """Respond on most routes of Starlette."""
    return PlainTextResponse("page")


def second_page(_: Request) -> PlainTextResponse:
    """Respond on routes of Starlette that need another function than `page`."""
    return PlainTextResponse("second page")


def view() -> str:
    """Respond on the routes of FastAPI."""
    return "page"


class Cart(HTTPEndpoint):
    """A class as a view: one route for all of its methods."""

    def get(self, _: Request) -> PlainTextResponse:
        """Serve a request."""
        return PlainTextResponse("cart")

    post = get


def one_function() -> tuple[Any, Visits]:
    """Return routes of one function, also with parameters and below a mount without a name."""
    routes = [
        Route("/", page, name="home"),
        Route("/help", page, name="help"),
        Route("/help/{topic}", page, name="topic"),
        Route("/help/{topic:path}/all", page, name="all"),
        Mount("/sub", routes=[Route("/help", page, name="help")]),
    ]
    return Starlette(routes=routes), [
        ("GET", "/", "home"),
        ("GET", "/help", "help"),
        ("HEAD", "/help", "help"),
        ("GET", "/help/secret", "topic"),
        ("GET", "/help/a/b/all", "all"),
        ("GET", "/sub/help", "sub:help"),
        ("POST", "/help", ""),
        ("GET", "/none", ""),
    ]


def one_path() -> tuple[Any, Visits]:
    """Return routes of one path and different methods, of functions and of a class."""
    routes = [
        Route("/item", page, methods=["GET"], name="read"),
        Route("/item", second_page, methods=["POST"], name="write"),
        Route("/note", page, methods=["GET"], name="read note"),
        Route("/note", page, methods=["PUT", "DELETE"], name="change note"),
        Route("/cart", Cart),
        Route("/basket", Cart, name="basket"),
    ]
    return Starlette(routes=routes), [
        ("GET", "/item", "read"),
        ("POST", "/item", "write"),
        ("GET", "/note", "read note"),
        ("DELETE", "/note", "change note"),
        ("GET", "/cart", "Cart"),
        ("POST", "/cart", "Cart"),
        ("POST", "/basket", "basket"),
        ("PATCH", "/note", ""),
    ]


def nested_mounts() -> tuple[Any, Visits]:
    """Return mounts inside mounts, an application that is mounted twice, and hosts."""
    inner = Starlette(routes=[Route("/", page, name="list"), Route("/{id}", page, name="one")])
    shop = [Mount("/users", inner, name="users"), Mount("/orders", inner)]
    routes = [
        Mount("/v1", routes=shop, name="old"),
        Mount("/v2", routes=shop, name="new"),
        Host("{part}.example.org", inner, name="part"),
        Route("/list", page, name="list"),
    ]
    return Starlette(routes=routes), [
        ("GET", "/v1/users/", "old:users:list"),
        ("GET", "/v1/orders/", "old:orders:list"),
        ("GET", "/v2/users/7", "new:users:one"),
        ("GET", "/v2/orders/7", "new:orders:one"),
        ("GET", "http://a.example.org/7", "part:one"),
        ("GET", "/list", "list"),
    ]


def mounted_itself() -> tuple[Any, Visits]:
    """Return the application of `one_function`, with the paths that it has below a mount.

    The test mounts the application in another application, which has no telemetry.
    """
    app, visits = one_function()
    return app, [(method, f"/outer{path}", name) for method, path, name in visits]


def fastapi_routers() -> tuple[Any, Visits]:
    """Return routers with and without paths: nested, included twice, and with mounts."""
    from fastapi import APIRouter, FastAPI  # noqa: PLC0415 - 0.4 s

    app, twice, inner, plain = FastAPI(), APIRouter(), APIRouter(prefix="/users"), APIRouter()
    inner.add_api_route("/", view, name="read")
    inner.add_api_route("/{id}", view, name="one")
    inner.mount("/files", Starlette(routes=[Route("/{id}", page, name="file")]))
    twice.include_router(inner, prefix="/shop")
    app.include_router(twice, prefix="/v1")
    app.include_router(twice, prefix="/v2")
    plain.add_api_route("/read", view, name="read")
    plain.add_api_route("/read", view, methods=["POST"], name="write")
    app.include_router(plain)
    app.mount("/admin", fastapi_admin())
    return app, [
        ("GET", "/v1/shop/users/", "v1/shop/users:read"),
        ("GET", "/v2/shop/users/", "v2/shop/users:read"),
        ("GET", "/v2/shop/users/7", "v2/shop/users:one"),
        # FastAPI leaves the prefix of the router itself out of the path of a mount.
        ("GET", "/v1/shop/files/7", "v1/shop/users:files:file"),
        ("GET", "/read", "read"),
        ("POST", "/read", "write"),
        ("GET", "/admin/read", "admin:read"),
        ("GET", "/openapi.json", ""),
    ]


def fastapi_admin() -> Any:
    """Return the application of FastAPI that `fastapi_routers` mounts."""
    from fastapi import FastAPI  # noqa: PLC0415 - 0.4 s

    app = FastAPI()
    app.get("/read", name="read")(view)
    return app


def behind_proxy() -> tuple[Any, Visits]:
    """Return an application behind a proxy that removes or keeps the root path."""
    routes = [Route("/read", page, name="read"), Route("/again", page, name="again")]
    return Starlette(routes=routes), [("GET", "/read", "read"), ("GET", "/api/again", "again")]


ASGI_APPLICATIONS = [
    *(one_function, one_path, nested_mounts, mounted_itself, fastapi_routers, behind_proxy),
]


class RecordingSite(Site):
    """A site that stores the names of its visits in a list."""

    names: list[str]

    def queue_use(self, account: Any, name: str) -> None:
        """Store the name."""
        assert account == ("ada", True)
        self.names.append(name)


def add_telemetry(app: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> RecordingSite:
    """Add telemetry to an application; return its site, which stores the recorded names."""
    monkeypatch.setattr("rappor_client.kit.web.Site", RecordingSite)
    site = telemetry(
        app, "site", registry=folder / "r.toml", collector=None, folder=folder / "devices",
        account=lambda _: ("ada", True), agreed=lambda: ["ada"],
    )  # fmt: skip
    assert isinstance(site, RecordingSite)
    site.names = []
    return site


def list_categories(site: Site) -> list[str]:
    """Return the categories that `init` writes: the names of the routes."""
    assert site.manage(["init", "--owner", "me@example.org"]) == 0
    text = Path(site.registry).read_text(encoding="utf-8")
    return list(json.loads(text[text.index("[\n") : text.index(",\n]")] + "]"))


@pytest.mark.parametrize("make", ASGI_APPLICATIONS)
def test_the_route_of_a_request_is_recorded(
    make: Callable[[], tuple[Any, Visits]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A visit is recorded under the name of its route, which `init` lists.

    Routes may share a function or a path.
    """
    app, visits = make()
    site = add_telemetry(app, tmp_path, monkeypatch)
    outer = Starlette(routes=[Mount("/outer", app)]) if make is mounted_itself else app
    client = TestClient(outer, root_path="/api" if make is behind_proxy else "")
    for method, path, name in visits:
        site.names.clear()
        client.request(method, path)
        assert site.names == [name] * bool(name), (method, path)
    names = {name for _, _, name in visits if name}
    assert names <= set(list_categories(site))


def test_an_endpoint_of_flask_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A visit is recorded under its endpoint, which is Flask's name of a route.

    Blueprints have functions of the same name, are registered twice, and are nested. An endpoint
    has two paths.
    """
    from flask import Blueprint, Flask  # noqa: PLC0415 - 0.2 s
    from flask.views import MethodView  # noqa: PLC0415 - likewise

    class Cart(MethodView):
        def get(self) -> str:
            return "cart"

        post = get

    def read() -> str:
        return "read"

    app, users, orders = Flask("site"), Blueprint("users", "u"), Blueprint("orders", "o")
    for blueprint in (users, orders):
        blueprint.add_url_rule("/read", view_func=read)
    outer = Blueprint("outer", "x", url_prefix="/outer")
    outer.register_blueprint(users, url_prefix="/users")
    app.register_blueprint(outer)
    app.register_blueprint(orders, url_prefix="/orders")
    app.register_blueprint(orders, url_prefix="/later", name="later")
    app.add_url_rule("/", "home", read)
    app.add_url_rule("/index", "home", read)  # for Flask one page with two paths
    app.add_url_rule("/help", "help", read)
    app.add_url_rule("/cart", view_func=Cart.as_view("cart"))
    app.add_url_rule("/basket", view_func=Cart.as_view("basket"))
    site = add_telemetry(app, tmp_path, monkeypatch)
    client = app.test_client()
    for path, name in {
        "/outer/users/read": "outer.users.read",
        "/orders/read": "orders.read",
        "/later/read": "later.read",
        "/": "home",
        "/index": "home",
        "/help": "help",
        "/cart": "cart",
        "/basket": "basket",
    }.items():
        client.get(path)
        assert site.names.pop() == name
    client.post("/help")  # another method than the route has
    assert not site.names
    assert len(list_categories(site)) == 7


def fastapi_functions() -> Any:
    """Return two functions of one name in routers without a path."""
    from fastapi import APIRouter, FastAPI  # noqa: PLC0415 - 0.4 s

    app = FastAPI()
    for path in ("/users", "/orders"):
        router = APIRouter()
        router.add_api_route(path, view, name="read")
        app.include_router(router)
    return app


@pytest.mark.parametrize(
    ("make", "addresses"),
    [
        (lambda: [Route("/a", page), Route("/b", page)], ("GET /a", "GET /b")),
        (
            lambda: [Route("/a", page, name="x"),
                     Route("/a", second_page, methods=["POST"], name="x")],
            ("GET /a", "POST /a"),
        ),
        (lambda: [Route("/a", Cart), Route("/b", Cart)], ("any method /a", "any method /b")),
        (
            lambda: [Mount("/a", routes=[Route("/{id}", page)], name="m"),
                     Mount("/b", routes=[Route("/{id}", second_page, name="page")], name="m")],
            ("GET /a/{id}", "GET /b/{id}"),
        ),
        (
            lambda: [Mount("/a", routes=[Route("/b", page, name="b")]),
                     Route("/c", page, name="a:b")],
            ("GET /a/b", "GET /c"),
        ),
        (fastapi_functions, ("GET /users", "GET /orders")),
    ],
    ids=["one-function", "one-path", "class", "mounts", "colon", "routers"],
)  # fmt: skip
def test_two_routes_of_one_name_are_refused(
    make: Callable[[], Any], addresses: tuple[str, str], tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Two routes of one name are refused at the start, or by `init` if they are added later.

    The message has both addresses, so that the developer can find the routes. A late application
    works, and records nothing.
    """
    routes_or_app = make()
    is_list = isinstance(routes_or_app, list)
    app = Starlette(routes=routes_or_app) if is_list else routes_or_app
    with pytest.raises(ParamsError) as caught:
        add_telemetry(app, tmp_path, monkeypatch)
    assert all(address in str(caught.value) for address in addresses)
    late = Starlette()
    site = add_telemetry(late, tmp_path, monkeypatch)
    late.router.routes.extend(app.routes)
    assert site.manage(["init", "--owner", "me@example.org"]) == 1
    assert all(address in capsys.readouterr().err for address in addresses[:1])
    assert TestClient(late).get("/a").status_code in (200, 404)
    assert not site.names


def test_a_hidden_route_is_not_listed() -> None:
    """`list_routes` leaves out a route that the application hides from its schema."""
    hidden = Route("/health", page, include_in_schema=False)
    app = Starlette(routes=[hidden, Route("/", page, name="home"), Route("/x", page, name="x")])
    assert [route.name for route in list_routes(app)] == ["home", "x"]
