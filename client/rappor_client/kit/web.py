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

So no visitor waits for telemetry. Nothing of a request is stored but the name of its route
(`kit/web_routes.py`).

Classes: `Site` is the whole application, and `_Device` the device of one account. Both are a `Host`
(`kit/host.py`). A `_Device` records in the thread of its site, and never shows a question.

The module imports no library of the application before a request arrives.
"""

from __future__ import annotations

import contextlib
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
from rappor_client.kit.web_routes import NamedRoute, list_routes

_MAX_QUEUED: Final = 1000
"""Largest number of visits that wait for the thread. Further visits are lost. With a larger value,
an application whose disk hangs spends more memory on visits."""


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
        # The routes are listed at the first request, because an application may add routes until
        # then.
        self._routes: list[NamedRoute] = []
        # Id of the process that has created the queue; 0 before the first visit.
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
        # The name of an account's folder has the 64 hex digits of SHA-256
        # (`_locate_account_folder`).
        folders = [str(path) for path in Path(self.folder).glob("?" * 64)]
        # The folders are listed first. In the other order, the device of an account that agrees
        # between the two lines would be erased.
        agreed = set(map(self._locate_account_folder, self._agreed()))
        # The order of uploads must not identify accounts.
        random.SystemRandom().shuffle(folders)
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
        """Erase the device of an account that no longer agrees; return the Withdrawal.

        A visit that is queued at this moment creates the device again. Its report stays on this
        machine: only `send` sends, and it erases the devices of accounts that do not agree.
        """
        return self._make_device(self._locate_account_folder(account)).erase()

    def page(self, account: str) -> str:
        """Return an HTML page with the contents of an account's device."""
        from rappor.registry.registry import Registry
        from rappor_client.kit.device_page import render_page

        registry = Registry.load(self.registry)
        folder = Path(self._locate_account_folder(account))
        return render_page(
            self.name,
            "For your account.",
            registry,
            folder,
            collector=self.collector,
            today=self.compute_date(),
        )

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
            threading.Thread(target=self._record_uses, args=(self._queue,), daemon=True).start()
            # Set last. If no thread can start, the next visit tries again: a queue without a thread
            # would take 1,000 visits, and record none of them.
            self._process = os.getpid()
        return self._queue

    def _record_uses(self, uses: queue.Queue[tuple[str, str]]) -> None:
        """Record the uses of a queue, in the thread, without end."""
        while True:
            account, name = uses.get()
            with self.log_failures():
                self._make_device(self._locate_account_folder(account)).record([name])

    def _locate_account_folder(self, account: str) -> str:
        """Return the folder of an account.

        The name is a hash, because an account may contain slashes or be longer than a file name.
        """
        return os.path.join(self.folder, hashlib.sha256(account.encode()).hexdigest())

    def _make_device(self, folder: str, collector: Any = None) -> _Device:
        """Return the device of an account from its folder."""
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
    """Serve a request of ASGI, then queue the use of its route.

    `inner` is the application below this middleware. The other arguments are those of ASGI.
    """
    # The routes of the application are matched by the path below the application's root. While the
    # request is served, each mount moves the root path of `scope`. So the root is read here if this
    # application is itself mounted in another application, and below otherwise.
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
    """Queue the use of the route of Flask's present request, once for each request."""
    with site.log_failures():
        from flask import request

        # Flask calls this function at the end of each context of a request, and a request may have
        # several. Bad case: `stream_with_context` opens a second one for the stream, and the visit
        # of a page with a stream counted twice.
        key = f"{__name__}.{id(site)}"
        is_first_context = not request.environ.get(key)
        request.environ[key] = True
        name = site.find_route_name(request.endpoint) if is_first_context else ""
        if name:
            site.queue_use(site.account(request), name)
