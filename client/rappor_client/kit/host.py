"""A program with telemetry: whether it is on and who decided, what is recorded, when it is sent.

A program pays at each start for this module and what it imports, two files and an environment.
The device itself works in a process of its own, and then once a day: one that has answered, or
whose day has not come, rests until midnight.
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
_PAUSE: Final = 10
_REST: Final = "rest"
_NOTHING: Final = ""


class Host:
    """A program, its registry, its collector and its folder on this machine.

    `name` is what people type. `registry` is the path of the file that ships with the program.
    `folder` is of the user's data unless given. `variables` disable telemetry as DO_NOT_TRACK does,
    beside NAME_NO_TELEMETRY. `public_page` is the address of what everybody may read. `what` says
    what is recorded. `consents` names a variable with whose value yes the operator of a server
    agrees, while the folder has no answer; never for a program that people start. Where one of the
    files `containers` exists nobody is asked: the answer would be gone with the container. `clock`
    is for tests.
    """

    is_site = False
    """Whether accounts are its devices: they agree on pages of its own, and have no plugins."""

    def __init__(  # noqa: PLR0913 - what surrounds a device
        self,
        name: str,
        *,
        registry: str | os.PathLike[str],
        collector: str | Transport | None,
        folder: str | os.PathLike[str] | None = None,
        variables: Iterable[str] = (),
        public_page: str = "",
        what: str = "commands and options",
        consents: str = "",
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
        self.what = what
        self.consents = consents
        self.containers = tuple(containers)
        self.clock = clock

    @property
    def today(self) -> int:
        """The day of the clock (UTC), in days since 1970."""
        return int(self.clock() // _DAY)

    def answer(self) -> Answer:
        """Return what the person has said."""
        said = answer.read(self.folder)
        if not said.word and os.environ.get(self.consents, "").lower() == "yes":
            return Answer("yes", (self.today,), (answer.EVERY,))
        return said

    def obstacle(self) -> str:
        """Return what keeps telemetry off whatever the person has said, in words, if anything."""
        if self.folder.startswith("~"):
            return "the home of the user is not known"
        if said := switched_off((*self.variables, *_MACHINES)):
            return said
        if not os.path.exists(self.registry):
            return f"{self.name} ships no registry of what it collects"
        return _NOTHING if answer.is_own(self.folder) else "the folder belongs to another user"

    def is_in_container(self) -> bool:
        """Return whether an answer would be gone with the container."""
        return any(map(os.path.exists, self.containers))

    def is_on(self) -> bool:
        """Return whether this run may record: the person agrees, and nothing is against it."""
        return self.answer().word == "yes" and not self.obstacle()

    def listens(self) -> bool:
        """Return whether a run of this moment would be recorded."""
        return not self._rests() and self.is_on()

    def record(self, uses: Sequence[str]) -> None:
        """Record one run, by one of its uses, drawn at random. Nothing is raised.

        A process of its own does the work. Of the runs of ten seconds the first one counts, so
        that a script's loop is one use, and starts one process.
        """
        with contextlib.suppress(Exception):  # nothing of telemetry may stop its host
            if uses and self.listens():
                self._rest(self.clock() + _PAUSE)
                drawn = uses[int.from_bytes(os.urandom(8), "big") % len(uses)]
                if not self._starts_worker(drawn):
                    self.work(drawn)

    def end(self) -> None:
        """Put the one question, if it is time and a person sits there. Nothing is raised."""
        with contextlib.suppress(Exception):
            if self.answer().may_be_asked(self.today):
                self._ask()

    @contextlib.contextmanager
    def run(self, *uses: str) -> Iterator[None]:
        """Record a run of any program: the names of its command, and of `command --flag`.

        The question comes at the end of a run that succeeds, also by `sys.exit(0)`.
        """
        self.record(uses)
        try:
            yield
        except BaseException as error:
            if is_success(error):
                self.end()
            raise
        self.end()

    def work(self, use: str) -> None:
        """Record a use, send what is due, and rest: until midnight (UTC) if the day is over for it.

        What could not be sent waits for an hour.
        """
        if not self.is_on():
            return
        with self.open() as client:
            is_kept = bool(client.record(METRIC, use))
        if self.collector is not None and self.is_due():
            self.send()
            if self.is_due():
                self._rest(self.clock() + _HOUR)
                return
        if not is_kept:
            self._rest((self.today + 1) * _DAY)

    def open(self, collector: str | Transport | None = None) -> Client:
        """Open the device of a person who has said yes; metrics of later registries are refused."""
        import datetime
        import logging

        from rappor.registry.registry import Registry
        from rappor_client.client import Client
        from rappor_client.settings import ClientOptions

        if not (log := logging.getLogger("rappor_client")).handlers:
            log.addHandler(logging.NullHandler())  # not on the terminal
        registry = Registry.load(self.registry, today=datetime.date.max)
        said = self.answer()
        client = Client.open(
            self.folder,
            registry=registry,
            consent=said.word == "yes",
            collector=collector,
            opted_out=said.refused(registry),
            options=ClientOptions(background=False, clock=self.clock),
        )
        if self.answer().word != "yes":  # it was taken back meanwhile
            client.withdraw()
        return client

    def is_due(self) -> bool:
        """Return whether a report waits, or is held and its day is over."""
        from rappor_client.person.contents import read_contents

        contents = read_contents(self.folder)
        over = any(each.ends <= self.clock() for each in contents.pending_reports)
        return over or bool(contents.queued_reports)

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
        self._wake()

    def refuse(self) -> Any:
        """Keep a no, erase the device, and return what was verified; OSError as `agree`."""
        try:
            answer.write(self.folder, Answer("no", (self.today,)))
        finally:
            erased = self.erase()
        return erased

    def erase(self) -> Any:
        """Erase the device and return what was verified; the answer stays."""
        from pathlib import Path

        from rappor_client.folder.failures import Failures
        from rappor_client.folder.folder_thread import FolderThread
        from rappor_client.person.withdrawal import erase_within

        self._wake()
        folder = Path(self.folder)
        thread = FolderThread(Failures(folder).note)
        withdrawal = erase_within(thread, folder, now=self.clock())
        thread.end(0.0)
        return withdrawal

    def _ask(self) -> None:
        if self.obstacle() or self.is_in_container():
            return
        from rappor_client.kit import question

        if not question.is_answerable():
            return
        text = (
            f"May {self.name} learn which of its {self.what} are used? Once a month this "
            "device would send one of them, drawn from one random day, with random noise; never a "
            f"value or an identifier. `{self.name} telemetry preview` shows it."
        )
        is_yes = question.ask(text, self.folder, self.today)
        if is_yes is not None:
            self.agree() if is_yes else self.refuse()

    def _starts_worker(self, use: str) -> bool:
        if not isinstance(self.collector, str | None):
            return False  # a transport of the program's own
        from rappor_client.kit import worker

        paths = (os.path.abspath(self.folder), os.path.abspath(self.registry))
        return worker.start(
            paths[0], [*paths, self.collector or "", self.consents, *self.variables], use
        )

    def _rests(self) -> bool:
        """Return whether a moment that was set, within a day, is to come for this registry."""
        with contextlib.suppress(OSError, ValueError):
            with open(os.path.join(self.folder, _REST), encoding="utf-8") as file:
                until, _, registry = file.read().partition(" ")
            return 0 < float(until) - self.clock() <= _DAY and registry == self._version()
        return False

    def _rest(self, until: float) -> None:
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        with open(os.path.join(self.folder, _REST), "w", encoding="utf-8") as file:
            file.write(f"{until} {self._version()}")

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self.folder, _REST))

    def _version(self) -> str:
        """Return what differs between two registries, for a look that costs nothing."""
        status = os.stat(self.registry)
        return f"{status.st_size} {status.st_mtime_ns}"


def is_success(error: BaseException) -> bool:
    """Return whether an exception ends a program with exit code 0.

    `sys.exit` raises SystemExit, whose code is None, a number, or a text that is printed (exit
    code 1). The Exit of click and typer has an `exit_code`.
    """
    if isinstance(error, SystemExit):
        return error.code is None or (isinstance(error.code, int) and error.code == 0)
    return getattr(error, "exit_code", 1) == 0


def _data_home() -> str:
    """Return where a user's programs keep their data, never one that roams."""
    if sys.platform == "win32":
        return os.environ.get("LOCALAPPDATA", "~")
    if sys.platform == "darwin":
        return "~/Library/Application Support"
    return os.environ.get("XDG_DATA_HOME") or "~/.local/share"
