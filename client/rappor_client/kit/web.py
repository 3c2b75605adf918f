"""Telemetry for a web application of Starlette, FastAPI or Flask: which of its pages are used.

    from rappor_client.kit.web import telemetry

    site = telemetry(app, "mysite", registry=..., collector=..., account=..., agreed=...)

Each account that has agreed is a device, with a folder on the server. A visitor has their response
before the route's name goes to a thread that records it, and a job sends. No library is imported
here. Of a request the kit reads which route answered it: path and method choose one, and are not
kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import os
import queue
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from rappor.base.errors import ParamsError
from rappor_client.folder.failures import Failures
from rappor_client.kit.answer import EVERY, Answer
from rappor_client.kit.host import Host

_MOST: Final = 1000
"""Uses that wait for the thread; more are lost."""


class _Device(Host):
    """The device of one account, which has agreed."""

    def answer(self) -> Answer:
        """Say yes: the site has asked, and answers for it."""
        return Answer("yes", (self.today,), (EVERY,))

    def _starts_worker(self, use: str) -> bool:  # noqa: ARG002 - a thread is here already
        return False


class Site(Host):
    """A web application; `account`, `agreed` and `app` are those of `telemetry`."""

    is_site = True

    def __init__(
        self,
        name: str,
        *,
        app: Any,
        account: Callable[[Any], Any],
        agreed: Callable[[], Iterable[str]],
        **settings: Any,
    ) -> None:
        """Keep what is given; nothing is read."""
        super().__init__(name, **({"what": "pages"} | settings))
        self.account, self._app, self._agreed = account, app, agreed
        self._failures = Failures(Path(self.folder))
        self._routes: list[_NamedRoute] = []
        self._pid = 0

    def manage(self, words: Sequence[str]) -> int:
        """Run one of the site's commands, as `send`, and return its exit code."""
        from rappor_client.kit.commands import manage

        try:
            names = [route.name for route in list_routes(self._app)]
        except ParamsError as error:  # a route that was added later has the name of another one
            print(f"{self.name} telemetry: {error}", file=sys.stderr)
            return 1
        return manage(self, words, names)

    def send(self, *, timeout: float = 10.0) -> str:
        """Send what is due of accounts that agree now; erase the devices of all others."""
        agreed = set(map(self._folder, self._agreed()))
        found = [str(path) for path in Path(self.folder).glob("?" * 64)]
        random.SystemRandom().shuffle(found)  # the order of uploads says nothing
        n_sent = n_waiting = 0
        for folder in found:
            device = self._device(folder, self.collector)
            with self.safely():  # a damaged device keeps no other one waiting
                if folder not in agreed:
                    device.erase()
                elif device.is_due() and (flushed := device.send(timeout=timeout)) is not None:
                    n_sent, n_waiting = n_sent + flushed.sent, n_waiting + flushed.waiting
        if off := self.obstacle():
            return f"Telemetry of {self.name} is off: {off}."
        return f"{n_sent} reports sent, {n_waiting} waiting."

    def forget(self, account: str) -> Any:
        """Erase the device of an account that no longer agrees; return what was verified."""
        return self._device(self._folder(account)).erase()

    def page(self, account: str) -> str:
        """Return an HTML page of what an account's device keeps, sent and would send."""
        from rappor.registry.registry import Registry
        from rappor_client.kit.page import html

        registry = Registry.load(self.registry)
        return html(self.name, "For your account.", registry, Path(self._folder(account)))

    def name_of(self, endpoint: object, scope: dict[str, Any] | None = None) -> str:
        """Return the name of the route that sent a request to an endpoint; "" if it has none.

        Several routes may share one endpoint. `scope` is the ASGI connection, whose method and
        path tell them apart. Without it the first route of the endpoint is named.
        """
        self._routes = self._routes or list_routes(self._app)
        for route in self._routes:
            if route.endpoint == endpoint and (scope is None or route.is_matched_by(scope)):
                return route.name
        return ""

    def used(self, answer: Any, name: str) -> None:
        """Let the thread record that an account, if it has agreed, used what has a name."""
        match answer:
            case str(account), True:
                self._waiting().put_nowait((account, name))

    @contextlib.contextmanager
    def safely(self) -> Iterator[None]:
        """Log the kind of what fails, and go on: nothing of telemetry may stop its host."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is
            self._failures.note(error)

    def _waiting(self) -> queue.Queue[tuple[str, str]]:
        """Return what waits for the thread of this process, which a fork has not taken along."""
        if self._pid != os.getpid():
            self._queue: queue.Queue[tuple[str, str]] = queue.Queue(_MOST)
            self._pid = os.getpid()
            threading.Thread(target=self._work, args=(self._queue,), daemon=True).start()
        return self._queue

    def _work(self, waiting: queue.Queue[tuple[str, str]]) -> None:
        while True:
            account, name = waiting.get()
            with self.safely():
                self._device(self._folder(account)).record([name])

    def _folder(self, account: str) -> str:
        """Return an account's folder, whatever letters its name has."""
        return os.path.join(self.folder, hashlib.sha256(account.encode()).hexdigest())

    def _device(self, folder: str, collector: Any = None) -> _Device:
        return _Device(
            self.name,
            registry=self.registry,
            collector=collector,
            folder=folder,
            variables=self.variables,
            clock=self.clock,
        )


def telemetry(
    app: Any, name: str, *, account: Callable[[Any], Any], agreed: Callable[[], Iterable[str]],
    **settings: Any,
) -> Site:  # fmt: skip
    """Give an application of Starlette, FastAPI or Flask telemetry; call it before it serves.

    `account` is called with a request after its response: it returns the account's id and whether
    it has agreed (True, nothing else), or None if nobody is signed in; of Starlette it may be a
    coroutine, and gets a connection, without a body. `agreed` returns the ids of all accounts that
    agree now. `settings` are those of `Host`; its `folder` has a folder for each account.
    Raises ParamsError for any other application, and for two routes of one name (`list_routes`).
    """
    site = Site(name, app=app, account=account, agreed=agreed, **settings)
    if hasattr(app, "add_middleware"):
        app.add_middleware(lambda inner: functools.partial(_watched, inner, site))
    elif hasattr(app, "teardown_request"):
        app.teardown_request(lambda _: _end_in_flask(site))
    else:
        raise ParamsError(f"app must be of Starlette, FastAPI or Flask, got {type(app).__name__}")
    list_routes(app)  # a collision of names is refused at the start, not at the first request
    return site


async def _watched(inner: Any, site: Site, scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer a request by ASGI, then let the site see it."""
    # Each mount on the way moves the root path. Where this application itself is mounted in
    # another one, its own root is known only before the request goes in.
    root = scope["root_path"] if "app_root_path" in scope else None
    try:
        await inner(scope, receive, send)
    finally:
        with site.safely():
            if endpoint := scope.get("endpoint"):
                if root is None:
                    root = scope.get("app_root_path", scope.get("root_path", ""))
                if name := site.name_of(endpoint, {**scope, "root_path": root, "path_params": {}}):
                    from starlette.requests import Request

                    answer = site.account(Request(scope))
                    site.used(await answer if inspect.isawaitable(answer) else answer, name)


def _end_in_flask(site: Site) -> None:
    with site.safely():
        from flask import request

        if name := site.name_of(request.endpoint):
            site.used(site.account(request), name)


@dataclasses.dataclass(frozen=True)
class _NamedRoute:
    """A route, the name under which its visits are recorded, and the mounts that lead to it."""

    name: str
    address: str
    """Methods and path as an error message names the route, as `GET /users/{id}`."""
    endpoint: Any
    steps: tuple[Any, ...] = ()
    """The mounts, from the application on, and at last the route. Flask needs none."""

    def is_matched_by(self, scope: dict[str, Any]) -> bool:
        """Return whether the application's router sends this connection to the route."""
        for step in self.steps:
            match, child_scope = step.matches(scope)
            if match.name != "FULL":  # PARTIAL: the path fits, but another method was asked for
                return False
            scope = {**scope, **child_scope}
        return True


def list_routes(app: Any) -> list[_NamedRoute]:
    """Return the routes of an application that are recorded, each with a name of its own.

    A name is the route's own, after that of its mounts or routers, as `users:list`. A mount or a
    router without a name has its path. In Flask a name is the endpoint: `blueprint.view`.
    Raises ParamsError if two routes have one name, since their visits would be one category.
    """
    if hasattr(app, "url_map"):
        endpoints = dict.fromkeys(rule.endpoint for rule in app.url_map.iter_rules())
        return [
            _NamedRoute(endpoint, endpoint, endpoint)
            for endpoint in endpoints
            if endpoint.rpartition(".")[2] != "static"
        ]
    routes: dict[str, _NamedRoute] = {}
    for route in _walk(app.routes, _Place()):
        first = routes.setdefault(route.name, route)
        if first is not route:
            raise ParamsError(
                f"routes of app must have different names: {first.address} and {route.address} "
                f"are both {route.name!r}; give one of them another `name`"
            )
    return list(routes.values())


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a list of routes is in an application: what leads to it."""

    names: tuple[str, ...] = ()
    path: str = ""
    steps: tuple[Any, ...] = ()

    def enter(self, mount: Any, own_path: str) -> _Place:
        """Return the place of the routes of a mount or of a host, whose own path is given."""
        name = getattr(mount, "name", None) or own_path.strip("/")
        path = getattr(mount, "path", own_path)
        return _Place(
            (*self.names, name) if name else self.names, self.path + path, (*self.steps, mount)
        )


def _walk(routes: Iterable[Any], place: _Place, router: str = "") -> Iterator[_NamedRoute]:
    """Yield the routes in a list, and those of its mounts and routers, in the order of matching.

    `router` is the path of FastAPI's router that contains them. Its name is that path.
    """
    names = (*place.names, router.strip("/")) if router.strip("/") else place.names
    for route in routes:
        if hasattr(route, "effective_candidates"):  # a router that FastAPI's application includes
            path = route.include_context.prefix + route.original_router.prefix
            yield from _walk(route.effective_candidates(), place, path)
            continue
        # In such a router a plain route or mount of Starlette stands beside what is read here.
        plain = getattr(route, "starlette_route", None) or route
        if hasattr(plain, "include_in_schema") and hasattr(plain, "endpoint"):
            if plain.include_in_schema and plain.endpoint is not None:
                methods = ",".join(sorted(set(plain.methods or ()) - {"HEAD"})) or "any method"
                yield _NamedRoute(
                    ":".join((*names, plain.name)),
                    f"{methods} {place.path}{plain.path}",
                    plain.endpoint,
                    (*place.steps, plain),
                )
        else:
            # A mount in a router has the router's path before its own; the name has it once.
            original = getattr(route, "original_route", None) or plain
            own_path = str(getattr(original, "path", "") or getattr(original, "host", ""))
            inside = dataclasses.replace(place, names=names).enter(plain, own_path)
            yield from _walk(getattr(plain, "routes", None) or (), inside)
