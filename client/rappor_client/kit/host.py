"""A program with telemetry: whether it is on and who decided, what is recorded, when it is sent.

A program pays at each start for this module and what it imports, two files and an environment.
Everything else is imported where a person has said yes, and then once a day, because a device that
has answered, or whose day has not come, rests until midnight.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from rappor_client.kit import answer
from rappor_client.kit.answer import Answer
from rappor_client.switches import switched_off

if TYPE_CHECKING:
    from rappor_client.client import Client
    from rappor_client.network.transport import Transport

METRIC: Final = "command"
"""The one metric that the kit records."""

_PEOPLE: Final = ("DO_NOT_TRACK", "RAPPOR_DISABLED")
_MACHINES: Final = (
    "CI",
    "BUILD_NUMBER",
    "CODEBUILD_BUILD_ID",
    "JENKINS_URL",
    "TEAMCITY_VERSION",
    "TF_BUILD",
    "PYTEST_CURRENT_TEST",
)
"""What says that no person is there: continuous integration, and tests."""

_CONTAINERS: Final = ("/.dockerenv", "/run/.containerenv")
_DAY: Final = 86400
_HOUR: Final = 3600
_NOTHING: Final = ""


class Host:
    """A program, its registry, its collector and its folder on this machine.

    `name` is what people type. `registry` is the path of the file that ships with the program.
    `folder` is of the user's data unless given. `variables` disable telemetry as DO_NOT_TRACK does,
    beside NAME_NO_TELEMETRY. `public_page` is the address of what everybody may read. Where one of
    the files `containers` exists nobody is asked: the answer would be gone with the container.
    `clock` is for tests.
    """

    def __init__(  # noqa: PLR0913 - what surrounds a device
        self,
        name: str,
        *,
        registry: str | os.PathLike[str],
        collector: str | Transport | None,
        folder: str | os.PathLike[str] | None = None,
        variables: Iterable[str] = (),
        public_page: str = "",
        containers: Iterable[str] = _CONTAINERS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Keep what is given; nothing is read."""
        self.name = name
        self.registry = os.fspath(registry)
        self.collector = collector
        self.folder = os.path.expanduser(folder or os.path.join(_data_home(), name, "telemetry"))
        own = f"{name.upper().replace('-', '_').replace('.', '_')}_NO_TELEMETRY"
        self.variables = (*_PEOPLE, own, *variables)
        self.public_page = public_page
        self.containers = tuple(containers)
        self.clock = clock
        self._client: Client | None = None
        self._is_silent = True

    @property
    def today(self) -> int:
        """The day of the clock (UTC), in days since 1970."""
        return int(self.clock() // _DAY)

    def answer(self) -> Answer:
        """Return what the person has said."""
        return answer.read(self.folder)

    def obstacle(self) -> str:
        """Return what keeps telemetry off whatever the person has said, in words, if anything."""
        if said := switched_off((*self.variables, *_MACHINES)):
            return said
        if not os.path.exists(self.registry):
            return f"{self.name} ships no registry of what it collects"
        return _NOTHING if answer.is_own(self.folder) else "the folder belongs to another user"

    def is_on(self) -> bool:
        """Return whether this run may record: the person agrees, and nothing is against it."""
        return self.answer().word == "yes" and not self.obstacle()

    def record(self, uses: Sequence[str]) -> None:
        """Record one run: one of its uses, drawn at random. Nothing is raised."""
        with contextlib.suppress(Exception):  # nothing of telemetry may stop its host
            if uses and not self._rests() and self.is_on():
                if self._client is None:
                    self._client = self.open()
                drawn = uses[int.from_bytes(os.urandom(8), "big") % len(uses)]
                is_kept = self._client.record(METRIC, drawn).word == "kept"
                self._is_silent = self._is_silent and not is_kept

    def end(self, *, asks: bool = True) -> None:
        """End a run: close what was opened, let others send, put the one question if it is time."""
        with contextlib.suppress(Exception):
            if self._client is not None:
                self._leave(self._client)
            elif asks and self.answer().may_be_asked(self.today):
                self._ask()

    @contextlib.contextmanager
    def run(self, *uses: str) -> Iterator[None]:
        """Record a run of a program that is no click: its command and `command --flag` names."""
        self.record(uses)
        try:
            yield
        except BaseException:
            self.end(asks=False)
            raise
        self.end()

    def open(self, collector: str | Transport | None = None) -> Client:
        """Open the device of a person who has said yes; metrics of later registries are refused."""
        import datetime
        import logging

        from rappor.registry.registry import Registry
        from rappor_client.client import Client
        from rappor_client.settings import Policy

        logging.getLogger("rappor_client").addHandler(logging.NullHandler())  # not on the terminal
        registry = Registry.load(self.registry, today=datetime.date.max)
        said = self.answer()
        return Client.open(
            self.folder,
            registry=registry,
            consent=said.word == "yes",
            collector=collector,
            opted_out=set(registry) - set(said.metrics),
            policy=Policy(background=False, clock=self.clock),
        )

    def send(self, *, timeout: float = 10.0) -> Any:
        """Send what waits, if telemetry is on; return what `Client.flush` returns, else None."""
        if not self.is_on():
            return None
        with self.open(self.collector) as client:
            return client.flush(timeout=timeout)

    def agree(self) -> None:
        """Keep a yes to what the registry says now; OSError if the disk does not take it."""
        from rappor.registry.registry import Registry

        metrics = tuple(Registry.load(self.registry))
        answer.write(self.folder, Answer("yes", (self.today,), metrics))
        self._unlink("rest")

    def refuse(self) -> Any:
        """Keep a no, erase the device, and return what was verified; OSError as `agree`."""
        answer.write(self.folder, Answer("no", (self.today,)))
        return self.erase()

    def erase(self) -> Any:
        """Erase the device and return what was verified; the answer stays."""
        from pathlib import Path

        from rappor_client.person.withdrawal import erase

        for mark in ("rest", "sending"):
            self._unlink(mark)
        return erase(Path(self.folder), now=self.clock())

    def _ask(self) -> None:
        if self.obstacle() or any(map(os.path.exists, self.containers)):
            return
        from rappor_client.kit import question

        if not question.is_answerable():
            return
        text = (
            f"May {self.name} learn which of its commands and options are used? Once a month this "
            "device would send one of them, drawn from one random day, with random noise; never a "
            f"value or an identifier. `{self.name} telemetry preview` shows it."
        )
        is_yes = question.ask(text, self.folder, self.today)
        if is_yes is not None:
            self.agree() if is_yes else self.refuse()

    def _leave(self, client: Client) -> None:
        """Close the device; rest until midnight (UTC) if nothing can happen before."""
        from rappor_client.person.contents import read_contents

        client.close()
        is_silent, self._is_silent, self._client = self._is_silent, True, None
        contents = read_contents(self.folder)
        if contents.waiting or any(each.ends <= self.clock() for each in contents.held):
            self._start_sending()
        elif is_silent:
            self._mark("rest", (self.today + 1) * _DAY)

    def _start_sending(self) -> None:
        """Let a process of its own send, at most once an hour, so that nobody waits for it."""
        if self._is_marked("sending") or not isinstance(self.collector, str):
            return
        self._mark("sending", self.clock() + _HOUR)
        from rappor_client.kit.sending import start

        start(self.folder, self.registry, self.collector, self.variables)

    def _rests(self) -> bool:
        return self._client is None and self._is_marked("rest")

    def _is_marked(self, name: str) -> bool:
        """Return whether a moment that was set, within a day, is to come for this registry."""
        with contextlib.suppress(OSError, ValueError):
            with open(os.path.join(self.folder, name), encoding="utf-8") as file:
                until, _, registry = file.read().partition(" ")
            return 0 < float(until) - self.clock() <= _DAY and registry == self._version()
        return False

    def _mark(self, name: str, until: float) -> None:
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(f"{until} {self._version()}")

    def _unlink(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self.folder, name))

    def _version(self) -> str:
        """Return what differs between two registries, for a look that costs nothing."""
        status = os.stat(self.registry)
        return f"{status.st_size} {status.st_mtime_ns}"


def _data_home() -> str:
    """Return where a user's programs keep their data, never one that roams."""
    if os.name == "nt":
        return os.environ.get("LOCALAPPDATA", "~")
    if sys.platform == "darwin":
        return "~/Library/Application Support"
    return os.environ.get("XDG_DATA_HOME") or "~/.local/share"
