"""A program with telemetry: whether telemetry is on, what a run records, and when reports leave.

Words of this module:

    use       a name that a run may report: a command, `command --flag`, a tool or a page. The
              registry lists the names, and they never contain a value
    device    the folder in which `rappor_client.Client` works, on this machine for this user
    consent   a yes or no of the person, in a file (`kit/consent_file.py`)
    cooldown  a time in which runs record nothing (`_RunCooldown`; in the glossary: run cooldown)

The registry that `telemetry init` writes has one metric with `interval = "epoch"` and
`epoch = "month"`: the secret of the device draws one day of each month, and the device sends one
report a month, of one use of that day.

A run of a program goes through these steps:

    record(uses)        in the program, at the first command of the run
      1. A cooldown is running: nothing happens.
      2. Telemetry is off (no consent, an environment variable, no registry): nothing happens.
      3. Draw one of the uses, and start a process for it.
    start_cooldown      in the process of its own
      4. Start a cooldown of ten seconds. If another run has started one meanwhile: end.
    record_and_send     in the process of its own
      5. Record the use. The device skips the use unless today is the drawn day.
      6. Send the report if it may leave. If it could not be sent, or if the folder of the device
         could not be used: cooldown of an hour.
      7. If nothing more can be recorded today: cooldown until midnight (UTC).
    finish_run()        in the program, after a successful run
      8. Show the consent question if it is time, and a person sits at a terminal.

Example with the drawn day June 10. On June 2 the first run of the day starts a process, which finds
that the drawn day has not come, and starts a cooldown until midnight. All other runs of June 2 end
at step 1. On June 10 the first use is recorded. Each later run of that day starts a process, and
its use may replace the first use. On June 11 the first run sends the report.

Costs: every start of a program imports this module, reads two small files and some environment
variables. So the module imports the device only inside functions. The device works in a process of
its own, because importing it takes longer than a command may be delayed.

Nothing in `record` and `finish_run` raises: telemetry never stops its host. `record` writes nothing
in the program, so a disk that hangs holds only the process of its own. The consent question waits
for two seconds at most for such a disk (`kit/limited_writes.py` states an exception).
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from rappor_client.kit.consent_file import (
    ALL_METRICS,
    Consent,
    is_owned_by_user,
    read_consent,
    write_consent,
)
from rappor_client.switches import find_disabling_variable

if TYPE_CHECKING:
    import datetime

    from rappor_client.client import Client
    from rappor_client.network.transport import Transport

METRIC: Final = "command"
"""Name of the metric under which the kit records every use. The registry of a host must contain
this metric. The maker of a program may add other metrics. The program itself records their values
(`Host.open`). The consent question and the section of the README list them."""

_PERSONAL_SWITCHES: Final = ("DO_NOT_TRACK", "RAPPOR_DISABLED")
"""A person disables telemetry with these environment variables."""
_MACHINE_VARIABLES: Final = (
    "CI",
    "BUILD_NUMBER",
    "CODEBUILD_BUILD_ID",
    "JENKINS_URL",
    "TEAMCITY_VERSION",
    "TF_BUILD",
    "PYTEST_CURRENT_TEST",
)
"""Environment variables of continuous integration and tests, in which telemetry is off: the runs of
a machine would count as the runs of a person."""

_CONTAINER_FILES: Final = ("/.dockerenv", "/run/.containerenv")
"""Docker and Podman create one of these files inside a container."""
_DAY: Final = 86400
"""Seconds of a day. No cooldown is longer."""
_HOUR: Final = 3600
"""Cooldown after the collector was not reached, or the folder was not usable, in seconds. With a
longer cooldown, the report leaves later after an outage. With a shorter cooldown, more processes
start during the outage."""
_SCRIPT_SECONDS: Final = 10
"""Cooldown after a run, in seconds. A script that calls the program in a loop starts one process in
this time, and not one for each call. A longer cooldown loses more uses of a person."""
_COOLDOWN_FILE: Final = "cooldown"
"""The folder of the program contains the end of the cooldown in a file of this name."""
_NOT_DISABLED: Final = ""
"""Result of `find_obstacle` if nothing disables telemetry."""


class Host:
    """A program, its registry, its collector and its folder on this machine.

    Parameters
    ----------
    name : str
        Name of the program as people type it.
    registry : path
        Path of the registry that ships with the program.
    collector : str or Transport, optional
        Address of the collector. With None the program collects and sends nothing.
    folder : path, optional
        Folder of the device. The default is in the data folder of the user.
    variables : iterable of str
        More environment variables that disable telemetry, beside DO_NOT_TRACK, RAPPOR_DISABLED and
        NAME_NO_TELEMETRY.
    public_page : str
        Address of the page with the published results, for the README.
    what : str
        Plural noun for the recorded names, as in "which of its commands and options are used".
    consents : str
        Environment variable with which the operator of a server agrees (value yes), while the
        folder has no response of a person. Never set it for a program that people start.
    containers : iterable of path
        Files whose existence shows that the program runs in a container. There the question is not
        shown: the response would be lost with the container.
    clock : callable
        Returns seconds since 1970; for tests.
    """

    is_site = False
    """Whether accounts of a web application are the devices. Accounts agree on pages of the
    application, and an application has no plugins."""

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
        containers: Iterable[str] = _CONTAINER_FILES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.registry = os.fspath(registry)
        self.collector = collector
        self.folder = os.path.expanduser(
            folder or os.path.join(_find_data_home(), name, "telemetry")
        )
        program_switch = f"{name.upper().replace('-', '_').replace('.', '_')}_NO_TELEMETRY"
        self.variables = (*_PERSONAL_SWITCHES, program_switch, *variables)
        self.public_page = public_page
        self.what = what
        self.consents = consents
        self.containers = tuple(containers)
        self.clock = clock
        self._last_start = -math.inf
        self._cooldown = _RunCooldown(self.folder, self.registry, clock)

    @property
    def today(self) -> int:
        """The day of the clock (UTC), in days since 1970."""
        return int(self.clock() // _DAY)

    def describe_destination(self) -> str:
        """Return the address of the collector, or a noun for a collector without an address."""
        if self.collector is None:
            return "nobody yet"
        return self.collector if isinstance(self.collector, str) else "the collector"

    def compute_date(self) -> datetime.date:
        """Return the day of the clock (UTC) as a date."""
        import datetime

        return datetime.date(1970, 1, 1) + datetime.timedelta(days=self.today)

    def read_consent(self) -> Consent:
        """Return the consent of the person, or of the operator of a server.

        The operator's consent counts only while the folder has no response of a person.
        """
        consent = read_consent(self.folder)
        if not consent.word and os.environ.get(self.consents, "").lower() == "yes":
            return Consent("yes", (self.today,), (ALL_METRICS,))
        return consent

    def find_obstacle(self) -> str:
        """Return the reason why telemetry is off whatever the consent is; "" without a reason."""
        # If `expanduser` found no home, the client would create a folder named "~" in the working
        # folder.
        if self.folder.startswith("~"):
            return "the home of the user is not known"
        if switch := find_disabling_variable((*self.variables, *_MACHINE_VARIABLES)):
            return switch
        if not os.path.exists(self.registry):
            return f"{self.name} ships no registry of what it collects"
        if not is_owned_by_user(self.folder):
            return f"{self.folder}, or the folder above it, belongs to another user"
        return _NOT_DISABLED

    def is_in_container(self) -> bool:
        """Return whether the program runs in a container, which would lose a response."""
        return any(map(os.path.exists, self.containers))

    def is_on(self) -> bool:
        """Return whether the person has agreed and nothing disables telemetry."""
        return self.read_consent().word == "yes" and not self.find_obstacle()

    def is_recording(self) -> bool:
        """Return whether `record` would record a use now."""
        return not self._cooldown.is_running() and self.is_on()

    def record(self, uses: Sequence[str]) -> None:
        """Record one of the uses of a run, drawn at random, in a process of its own.

        Raises nothing. Of the runs within ten seconds only the first run counts. If no process can
        be started, the use is recorded in this process.
        """
        with contextlib.suppress(Exception):  # nothing of telemetry may stop its host
            # A server may call this many times before its process has started the cooldown.
            has_just_started = 0 <= self.clock() - self._last_start < _SCRIPT_SECONDS
            if uses and not has_just_started and self.is_recording():
                self._last_start = self.clock()
                # The random numbers of the system choose one use uniformly. The module `random`
                # would take time to import.
                sampled_use = uses[int.from_bytes(os.urandom(8), "big") % len(uses)]
                # Nothing is written in this process. Bad case: the thread of a write on a frozen
                # file system cannot be killed, so the program printed its output and did not end.
                if not self._start_process(sampled_use) and self.start_cooldown():
                    self.record_and_send(sampled_use)

    def finish_run(self) -> None:
        """Show the consent question if it is time and a person sits at the terminal.

        Raises nothing. Call it after a run that has succeeded, because a question below an error
        message would hide the message.
        """
        with contextlib.suppress(Exception):  # nothing of telemetry may stop its host
            # Reading one small file decides for nearly all runs. The other checks follow in
            # `_ask_for_consent`.
            if self.read_consent().may_ask(self.today):
                # The run has succeeded. Bad case: a Ctrl-C during the write of the response ended
                # the program with a traceback, and the success looked like a failure.
                with contextlib.suppress(KeyboardInterrupt):
                    self._ask_for_consent()

    @contextlib.contextmanager
    def run(self, *uses: str) -> Iterator[None]:
        """Record a run of any program, and show the consent question after its success.

        `uses` are the name of its command, and `command --flag` for each flag. `sys.exit(0)` inside
        the block is a success, too.
        """
        self.record(uses)
        try:
            yield
        except BaseException as error:
            if is_success(error):
                self.finish_run()
            raise
        self.finish_run()

    def start_cooldown(self) -> bool:
        """Start the cooldown of a run; return False if the use must not be recorded.

        Cases: telemetry is off, or another process has started a cooldown. Raises OSError if the
        disk fails or hangs.
        """
        # The person may have refused after the run started this process. Then nothing is written.
        return self.is_on() and self._cooldown.start_first(self.clock() + _SCRIPT_SECONDS)

    def record_and_send(self, use: str) -> None:
        """Record a use, send the reports that may leave, and set the next cooldown."""
        if not self.is_on():
            return
        from rappor_client.outbox.outcome import SkipReason

        with self.open() as client:
            outcome = client.record(METRIC, use)
        # The disk failed, or another process kept the folder locked, so nothing can be sent either.
        # A later run of this day may record a use: with a cooldown until midnight, the day that the
        # device has drawn was lost.
        if outcome.reason is SkipReason.DISABLED:
            self._cooldown.start(self.clock() + _HOUR)
            return
        if self.collector is not None and self.has_due_report():
            self.send()
            # If a report is still due, the collector was not reached. Without a cooldown every run
            # of the program would try again, in a process of its own.
            if self.has_due_report():
                self._cooldown.start(self.clock() + _HOUR)
                return
        # The drawn day has not come, or the report of the month has left. Further runs of this day
        # would find the same, so they need no process.
        if not outcome:
            self._cooldown.start((self.today + 1) * _DAY)

    def open(self, collector: str | Transport | None = None) -> Client:
        """Open the device of a person who has agreed. Call it only while `is_on` returns True.

        A program opens the device to record values of metrics other than its uses. Metrics to which
        the person has not agreed are refused, such as those of a later version of the program.

        Parameters
        ----------
        collector : str or Transport, optional
            Where reports are sent by `flush`. Without a collector nothing is sent, and a later run
            of the program sends what is queued.
        """
        import datetime
        import logging

        from rappor.registry.registry import Registry
        from rappor_client.client import Client
        from rappor_client.settings import ClientOptions

        # Without a handler Python prints warnings of the client to the terminal of the program.
        if not (log := logging.getLogger("rappor_client")).handlers:
            log.addHandler(logging.NullHandler())
        registry = Registry.load(self.registry, today=datetime.date.max)
        consent = self.read_consent()
        # The client needs no background thread, because the recording process ends after one use.
        client = Client.open(
            self.folder,
            registry=registry,
            consent=consent.word == "yes",
            collector=collector,
            opted_out=consent.refused_metrics(registry),
            options=ClientOptions(background=False, clock=self.clock),
        )
        # The person may have run `telemetry off` in another process since `consent` was read. That
        # command has erased the folder; this client must not leave a new one behind.
        if self.read_consent().word != "yes":
            client.withdraw()
        return client

    def has_due_report(self) -> bool:
        """Return whether a report is queued, or pending in an interval that is over.

        The file is read without opening the device, so most recording processes open the device
        once, to record, and not a second time to find that nothing may leave.
        """
        from rappor_client.person.contents import read_contents

        contents = read_contents(self.folder)
        is_over = any(report.interval_end <= self.clock() for report in contents.pending_reports)
        return is_over or bool(contents.queued_reports)

    def send(self, *, timeout: float = 10.0) -> Any:
        """Send the queued reports; return the FlushResult, or None if telemetry is off."""
        if not self.is_on():
            return None
        with self.open(self.collector) as client:
            return client.flush(timeout=timeout)

    def agree(self) -> None:
        """Store a yes to the metrics of the present registry; OSError if the disk fails."""
        from rappor.registry.registry import Registry

        metrics = tuple(Registry.load(self.registry))
        write_consent(self.folder, Consent("yes", (self.today,), metrics))
        self._cooldown.end()

    def refuse(self) -> Any:
        """Store a no, erase the device, and return the Withdrawal; OSError if the disk fails.

        The device is erased also if the no cannot be stored.
        """
        try:
            write_consent(self.folder, Consent("no", (self.today,)))
        finally:
            withdrawal = self.erase()
        return withdrawal

    def erase(self) -> Any:
        """Erase the device and return the Withdrawal. The stored response stays."""
        from pathlib import Path

        from rappor_client.folder.failures import Failures
        from rappor_client.folder.folder_thread import FolderThread
        from rappor_client.person.erasure import erase_within

        # A new device must be able to record at once.
        self._cooldown.end()
        folder = Path(self.folder)
        thread = FolderThread(Failures(folder).note)
        withdrawal = erase_within(thread, folder, now=self.clock())
        thread.end(0.0)
        return withdrawal

    def _ask_for_consent(self) -> None:
        """Show the consent question on a terminal, and store the response."""
        # A response in a container would be lost with it, and the question would come each time.
        if self.find_obstacle() or self.is_in_container():
            return
        from rappor_client.kit import consent_question

        if not consent_question.is_answerable():
            return
        from rappor.registry.registry import Registry

        # A damaged registry raises here. Once the person was asked, and the yes was not stored.
        registry, today = Registry.load(self.registry), self.compute_date()
        if all(today > metric.expires for metric in registry.values()):
            return  # the collection has ended
        text = consent_question.write_question(
            self.name, self.what, registry.metric(METRIC), registry, self.describe_destination()
        )
        is_yes = consent_question.ask_consent(text, self.folder, self.today)
        if is_yes is not None:
            self.agree() if is_yes else self.refuse()

    def _start_process(self, use: str) -> bool:
        """Start the recording process; return False if this process must record."""
        # A transport of the program is an object, which no argument of a process can carry.
        if not isinstance(self.collector, str | None):
            return False
        from rappor_client.kit import recording_process

        # The process works in another folder, where relative paths would change.
        paths = (os.path.abspath(self.folder), os.path.abspath(self.registry))
        args = [*paths, self.collector or "", self.consents, *self.variables]
        return recording_process.start_process(args, use)


class _RunCooldown:
    """The cooldown of one program in one folder: a time in which its runs record nothing.

    A run of the program checks the cooldown first, because most runs end here. The cases that set
    it:

        a run has started a recording process    10 seconds
        the collector was not reached            an hour
        the folder of the device was not usable  an hour
        nothing more can be recorded today       until midnight (UTC)

    The file `cooldown` in the folder of the program has one line: the end of the cooldown in
    seconds since 1970, and the version of the registry (size in bytes, modification time in
    nanoseconds). Example:

        1795046400.0 2144 1795000000123456789

    A new version of the registry ends the cooldown, because it may have other metrics. A cooldown
    of more than a day is ignored, because the clock was wrong when it was set.

    Parameters
    ----------
    folder
        Folder of the program. It is created with the first cooldown.
    registry
        Path of the registry.
    clock
        Returns seconds since 1970.
    """

    def __init__(self, folder: str, registry: str, clock: Callable[[], float]) -> None:
        self._folder = folder
        self._registry = registry
        self._clock = clock

    def is_running(self) -> bool:
        """Return whether a cooldown is running for the present registry.

        No cooldown is running if the file is absent or damaged, or the registry does not exist.
        """
        with contextlib.suppress(OSError, ValueError):
            with open(os.path.join(self._folder, _COOLDOWN_FILE), encoding="utf-8") as file:
                until, _, version = file.read().partition(" ")
            is_ahead = 0 < float(until) - self._clock() <= _DAY
            return is_ahead and version == self._identify_registry_version()
        return False

    def start(self, until: float) -> None:
        """Start a cooldown until a time in seconds since 1970.

        Raises OSError if the disk fails or hangs.
        """
        from rappor_client.kit.limited_writes import write_within_limit

        write_within_limit(lambda: self._write(f"{until} {self._identify_registry_version()}"))

    def start_first(self, until: float) -> bool:
        """Start a cooldown as `start` does; return False if another process has started one.

        Runs of a loop start their processes at the same time. On a disk that hangs, the first
        process holds the lock and waits, and the others end. Otherwise they would pile up.
        """
        from rappor_client.folder.system import SYSTEM

        with contextlib.ExitStack() as stack:
            # The file exists after the first cooldown. Opening it for reading does not wait for a
            # frozen file system, and a lock needs no more.
            with contextlib.suppress(FileNotFoundError):
                file = stack.enter_context(open(os.path.join(self._folder, _COOLDOWN_FILE), "rb"))
                if not SYSTEM.lock_file(file.fileno()):
                    return False
            if self.is_running():
                return False
            self.start(until)
            return True

    def end(self) -> None:
        """End the cooldown. A failure of the disk is ignored."""
        from rappor_client.kit.limited_writes import write_within_limit

        with contextlib.suppress(OSError):
            write_within_limit(lambda: os.unlink(os.path.join(self._folder, _COOLDOWN_FILE)))

    def _write(self, text: str) -> None:
        """Write the file, and create its folder."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        with open(os.path.join(self._folder, _COOLDOWN_FILE), "w", encoding="utf-8") as file:
            file.write(text)

    def _identify_registry_version(self) -> str:
        """Return size and modification time of the registry, which identify its version.

        Parsing the registry would delay every start of the program.
        """
        status = os.stat(self._registry)
        return f"{status.st_size} {status.st_mtime_ns}"


def is_success(error: BaseException) -> bool:
    """Return whether an exception ends a program with exit code 0.

    `sys.exit` raises SystemExit, whose code is None, a number, or a text that is printed (exit
    code 1). The Exit of click and typer has an `exit_code`.
    """
    if isinstance(error, SystemExit):
        return error.code is None or (isinstance(error.code, int) and error.code == 0)
    # Bad case: an error of the program had an attribute `exit_code` of its own, and the question
    # came after its failure. So only the Exit of the libraries counts. Neither is imported here.
    is_exit = any(
        kind.__name__ == "Exit" and kind.__module__.partition(".")[0] in ("click", "typer")
        for kind in type(error).__mro__
    )
    return is_exit and getattr(error, "exit_code", 1) == 0


def _find_data_home() -> str:
    """Return the folder in which programs of a user store data of this machine.

    The folder must not follow the user to other machines, as a roaming profile of Windows does: two
    machines with one secret would be one device.
    """
    if sys.platform == "win32":
        return os.environ.get("LOCALAPPDATA", "~")
    if sys.platform == "darwin":
        return "~/Library/Application Support"
    # By the specification of XDG, a relative path is ignored. Bad case: with such a path every
    # folder in which a person worked had a device of its own, and a question of its own.
    data_home = os.path.expanduser(os.environ.get("XDG_DATA_HOME", ""))
    return data_home if os.path.isabs(data_home) else "~/.local/share"
