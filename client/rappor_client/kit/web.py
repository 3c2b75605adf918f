"""Telemetry for a web application of Starlette, FastAPI or Flask: which of its pages are used.

    from rappor_client.kit.web import telemetry

    site = telemetry(app, "mysite", registry=..., collector=..., account=..., agreed=...)

Each account that has agreed is a device, with a folder on the server. A visitor has their response
before the route's name goes to a thread that records it, and a job sends. No library is imported
here; of a request nothing is read but the function that answered it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import queue
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from rappor.ground.errors import ParamsError
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
        self._names: dict[Any, str] = {}
        self._pid = 0

    def manage(self, words: Sequence[str]) -> int:
        """Run one of the site's commands, as `send`, and return its exit code."""
        from rappor_client.kit.commands import manage

        return manage(self, words, list(dict.fromkeys(_names(self._app).values())))

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

    def name_of(self, endpoint: object) -> str:
        """Return the name of the route that something answers; empty for what is not recorded."""
        self._names = self._names or _names(self._app)
        return self._names.get(endpoint, "")

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
    Raises ParamsError for any other application.
    """
    site = Site(name, app=app, account=account, agreed=agreed, **settings)
    if hasattr(app, "add_middleware"):
        app.add_middleware(lambda inner: functools.partial(_watched, inner, site))
    elif hasattr(app, "teardown_request"):
        app.teardown_request(lambda _: _end_in_flask(site))
    else:
        raise ParamsError(f"app must be of Starlette, FastAPI or Flask, got {type(app).__name__}")
    return site


async def _watched(inner: Any, site: Site, scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer a request by ASGI, then let the site see it."""
    try:
        await inner(scope, receive, send)
    finally:
        with site.safely():
            if name := site.name_of(scope.get("endpoint")):
                from starlette.requests import Request

                answer = site.account(Request(scope))
                site.used(await answer if inspect.isawaitable(answer) else answer, name)


def _end_in_flask(site: Site) -> None:
    with site.safely():
        from flask import request

        if name := site.name_of(request.endpoint):
            site.used(site.account(request), name)


def _names(app: Any) -> dict[Any, str]:
    """Return the names of an application's routes by what answers them: one name for each."""
    if hasattr(app, "url_map"):
        known = [rule.endpoint for rule in app.url_map.iter_rules()]
        return {each: each for each in known if each.rpartition(".")[2] != "static"}
    return {each.endpoint: each.name for each in _routes(app) if each.include_in_schema}


def _routes(parent: Any) -> Iterator[Any]:
    """Yield the routes of an application, those of applications and routers in it, too."""
    for each in getattr(parent, "routes", None) or ():
        if hasattr(each, "include_in_schema") and hasattr(each, "endpoint"):
            yield each
        else:
            yield from _routes(getattr(each, "original_router", each))  # FastAPI's
