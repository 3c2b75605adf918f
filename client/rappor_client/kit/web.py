"""Telemetry for a web application of Starlette, FastAPI or Flask: names of its visited routes.

    from rappor_client.kit.web import telemetry

    site = telemetry(app, "mysite", registry=..., collector=..., account=..., agreed=...)

Each account that has agreed is a device, with a folder of its own on the server. A visit goes
through these steps:

    1. The application responds to the visitor.
    2. In the same worker: find the name of the route, and the account of the visitor.
    3. If the account has agreed, put (account, name) into a queue of the process.
    4. A thread takes the pair from the queue and records the name in the account's device.
    5. A job of the operator, once a day, calls `site.send()`: it sends the reports of accounts that
       still agree, and erases the devices of all other accounts.

So no visitor waits for telemetry. Path and method of a request choose between routes that share a
function; nothing of a request is stored.

The module imports no library of the application before a request arrives.
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
from rappor_client.kit.consent_file import ALL_METRICS, Consent
from rappor_client.kit.host import Host

_MAX_QUEUED: Final = 1000
"""Largest number of visits that wait for the thread. Further visits are lost. A larger value takes
more memory beside a disk that hangs."""


class _Device(Host):
    """The device of one account that has agreed."""

    def read_consent(self) -> Consent:
        """Return a yes to all metrics: the site has asked the account and stores the response."""
        return Consent("yes", (self.today,), (ALL_METRICS,))

    def _start_process(self, use: str) -> bool:  # noqa: ARG002 - the thread of the site records
        return False


class Site(Host):
    """A web application whose accounts are devices.

    Parameters
    ----------
    name : str
        Name of the site.
    app, account, agreed
        See `telemetry`.
    **settings
        Arguments of `Host`. `folder` contains a folder for each account.
    """

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
        super().__init__(name, **({"what": "pages"} | settings))
        self.account, self._app, self._agreed = account, app, agreed
        self._failures = Failures(Path(self.folder))
        self._routes: list[_NamedRoute] = []
        self._process = 0

    def manage(self, words: Sequence[str]) -> int:
        """Run a command of the site, `init`, `preview` or `send`, and return its exit code."""
        from rappor_client.kit.commands import manage

        try:
            names = [route.name for route in list_routes(self._app)]
        except ParamsError as error:  # a route that was added later has the name of another route
            print(f"{self.name} telemetry: {error}", file=sys.stderr)
            return 1
        return manage(self, words, names)

    def send(self, *, timeout: float = 10.0) -> str:
        """Send the reports of accounts that agree now, and erase the devices of all others.

        Parameters
        ----------
        timeout : float
            Longest duration for each account, in seconds.

        Returns
        -------
        str
            A sentence about the result.
        """
        agreed = set(map(self._account_folder, self._agreed()))
        folders = [str(path) for path in Path(self.folder).glob("?" * 64)]  # 64 digits of SHA-256
        random.SystemRandom().shuffle(folders)  # the order of uploads must not identify accounts
        n_sent = n_waiting = 0
        for folder in folders:
            device = self._make_device(folder, self.collector)
            with self.log_failures():  # a damaged device must not keep the others from sending
                if folder not in agreed:
                    device.erase()
                elif device.has_due_report():
                    result = device.send(timeout=timeout)
                    if result is not None:
                        n_sent, n_waiting = n_sent + result.sent, n_waiting + result.waiting
        if obstacle := self.find_obstacle():
            return f"Telemetry of {self.name} is off: {obstacle}."
        return f"{n_sent} reports sent, {n_waiting} waiting."

    def forget(self, account: str) -> Any:
        """Erase the device of an account that no longer agrees; return the Withdrawal."""
        return self._make_device(self._account_folder(account)).erase()

    def page(self, account: str) -> str:
        """Return an HTML page with the contents of an account's device."""
        from rappor.registry.registry import Registry
        from rappor_client.kit.device_page import render_page

        registry = Registry.load(self.registry)
        folder = Path(self._account_folder(account))
        return render_page(self.name, "For your account.", registry, folder)

    def find_route_name(self, endpoint: object, scope: dict[str, Any] | None = None) -> str:
        """Return the name of the route that sent a request to an endpoint; "" without a route.

        Several routes may share one endpoint. `scope` is the ASGI connection, whose method and path
        choose the route. Without it the result is the first route of the endpoint.
        """
        self._routes = self._routes or list_routes(self._app)
        for route in self._routes:
            if route.endpoint == endpoint and (scope is None or route.is_matched_by(scope)):
                return route.name
        return ""

    def queue_use(self, account: Any, name: str) -> None:
        """Let the thread record the use of a name, if an account has agreed.

        `account` is the result of the function `account` of the application. Only a pair of a text
        and True counts as agreement. Any other result, such as 1 in place of True, records nothing.
        """
        match account:
            case str(account_id), True:
                self._get_queue().put_nowait((account_id, name))

    @contextlib.contextmanager
    def log_failures(self) -> Iterator[None]:
        """Log the kind of a failure in the block, and go on: telemetry never stops its host."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is
            self._failures.note(error)

    def _get_queue(self) -> queue.Queue[tuple[str, str]]:
        """Return the queue of this process, whose thread is running.

        A server forks its workers after the application is made. The child of a fork has no thread
        of its parent, so each process creates a queue and a thread at its first visit.
        """
        if self._process != os.getpid():
            self._queue: queue.Queue[tuple[str, str]] = queue.Queue(_MAX_QUEUED)
            self._process = os.getpid()
            threading.Thread(target=self._record_uses, args=(self._queue,), daemon=True).start()
        return self._queue

    def _record_uses(self, uses: queue.Queue[tuple[str, str]]) -> None:
        """Record the uses of a queue, in the thread, without end."""
        while True:
            account, name = uses.get()
            with self.log_failures():
                self._make_device(self._account_folder(account)).record([name])

    def _account_folder(self, account: str) -> str:
        """Return the folder of an account.

        The name is a hash, because an account may contain slashes or be longer than a file name.
        """
        return os.path.join(self.folder, hashlib.sha256(account.encode()).hexdigest())

    def _make_device(self, folder: str, collector: Any = None) -> _Device:
        return _Device(
            "",
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
    """Give telemetry to an application of Starlette, FastAPI or Flask, before it serves requests.

    Parameters
    ----------
    app : application
        The application.
    name : str
        Name of the site.
    account : callable
        Called with a request after its response. It returns the id of the account and whether the
        account has agreed (True, nothing else), or None if nobody is signed in. For Starlette it
        may be a coroutine function; the request has no body then.
    agreed : callable
        Returns the ids of all accounts that agree now.
    **settings
        Arguments of `Host`. `folder` contains a folder for each account.

    Returns
    -------
    Site
        The site, for the job that sends and for the pages of an account.

    Raises
    ------
    ParamsError
        The application is of another library, or two routes have one name (see `list_routes`).
    """
    site = Site(name, app=app, account=account, agreed=agreed, **settings)
    # Starlette and FastAPI have middleware of ASGI, Flask has hooks after a request.
    if hasattr(app, "add_middleware"):
        app.add_middleware(lambda inner: functools.partial(_serve, inner, site))
    elif hasattr(app, "teardown_request"):
        app.teardown_request(lambda _: _end_in_flask(site))
    else:
        raise ParamsError(f"app must be of Starlette, FastAPI or Flask, got {type(app).__name__}")
    list_routes(app)  # two routes of one name raise at the start, not at the first request
    return site


async def _serve(inner: Any, site: Site, scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Serve a request of ASGI, then queue the use of its route."""
    # Each mount on the way moves the root path. If this application is itself mounted in another
    # one, its own root is known only before the request goes in.
    root = scope["root_path"] if "app_root_path" in scope else None
    try:
        await inner(scope, receive, send)
    finally:
        with site.log_failures():
            if endpoint := scope.get("endpoint"):
                if root is None:
                    root = scope.get("app_root_path", scope.get("root_path", ""))
                name = site.find_route_name(
                    endpoint, {**scope, "root_path": root, "path_params": {}}
                )
                if name:
                    from starlette.requests import Request

                    account = site.account(Request(scope))
                    site.queue_use(await account if inspect.isawaitable(account) else account, name)


def _end_in_flask(site: Site) -> None:
    """Queue the use of the route of Flask's present request."""
    with site.log_failures():
        from flask import request

        if name := site.find_route_name(request.endpoint):
            site.queue_use(site.account(request), name)


@dataclasses.dataclass(frozen=True)
class _NamedRoute:
    """A route and the name under which its visits are recorded.

    Attributes
    ----------
    name
        Recorded name, such as `users:list`.
    address
        Methods and path for an error message, such as `GET /users/{id}`.
    endpoint
        Function that serves the route.
    steps
        The mounts from the application to the route, then the route. Empty for Flask.
    """

    name: str
    address: str
    endpoint: Any
    steps: tuple[Any, ...] = ()

    def is_matched_by(self, scope: dict[str, Any]) -> bool:
        """Return whether the application's router sends a connection to this route."""
        for step in self.steps:
            match, child_scope = step.matches(scope)
            # PARTIAL: the path fits, but the route has other methods. Two routes of one path with
            # different methods are different names.
            if match.name != "FULL":
                return False
            scope = {**scope, **child_scope}
        return True


def list_routes(app: Any) -> list[_NamedRoute]:
    """Return the recorded routes of an application, each with a name of its own.

    A name is the name of the route after the names of its mounts or routers: `users:list`. A mount
    or router without a name is named by its path. In Flask a name is the endpoint:
    `blueprint.view`. Names were once taken from the functions, so visits of two routes of one
    function were counted together.

    Raises
    ------
    ParamsError
        Two routes have one name: their visits would be one category.
    """
    if hasattr(app, "url_map"):
        endpoints = dict.fromkeys(rule.endpoint for rule in app.url_map.iter_rules())
        return [
            _NamedRoute(endpoint, endpoint, endpoint)
            for endpoint in endpoints
            if endpoint.rpartition(".")[2] != "static"  # files, not pages
        ]
    routes: dict[str, _NamedRoute] = {}
    for route in _walk_routes(app.routes, _RoutePosition()):
        first = routes.setdefault(route.name, route)
        if first is not route:
            raise ParamsError(
                f"routes of app must have different names: {first.address} and {route.address} "
                f"are both {route.name!r}; give one of them another `name`"
            )
    return list(routes.values())


@dataclasses.dataclass(frozen=True)
class _RoutePosition:
    """Position of a list of routes in an application: names, path and mounts that lead to it."""

    names: tuple[str, ...] = ()
    path: str = ""
    steps: tuple[Any, ...] = ()

    def enter(self, mount: Any, mount_path: str) -> _RoutePosition:
        """Return the position of the routes of a mount or of a host."""
        name = getattr(mount, "name", None) or mount_path.strip("/")
        path = getattr(mount, "path", mount_path)
        names = (*self.names, name) if name else self.names
        return _RoutePosition(names, self.path + path, (*self.steps, mount))


def _walk_routes(
    routes: Iterable[Any], position: _RoutePosition, router: str = ""
) -> Iterator[_NamedRoute]:
    """Yield the routes of a list, and of its mounts and routers, in the order of matching.

    `router` is the path of the FastAPI router that contains the routes. It serves as its name.
    """
    router_name = router.strip("/")
    names = (*position.names, router_name) if router_name else position.names
    for route in routes:
        if hasattr(route, "effective_candidates"):  # a router that FastAPI's application includes
            path = route.include_context.prefix + route.original_router.prefix
            yield from _walk_routes(route.effective_candidates(), position, path)
            continue
        # FastAPI wraps a plain route or mount of Starlette inside such a router.
        plain = getattr(route, "starlette_route", None) or route
        if hasattr(plain, "include_in_schema") and hasattr(plain, "endpoint"):
            if plain.include_in_schema and plain.endpoint is not None:
                methods = ",".join(sorted(set(plain.methods or ()) - {"HEAD"})) or "any method"
                yield _NamedRoute(
                    ":".join((*names, plain.name)),
                    f"{methods} {position.path}{plain.path}",
                    plain.endpoint,
                    (*position.steps, plain),
                )
        else:
            # The path of a mount inside a router begins with the path of the router. The path of
            # the original mount has no such prefix, so the name contains the router once.
            original = getattr(route, "original_route", None) or plain
            mount_path = str(getattr(original, "path", "") or getattr(original, "host", ""))
            inside = dataclasses.replace(position, names=names).enter(plain, mount_path)
            yield from _walk_routes(getattr(plain, "routes", None) or (), inside)
