"""Recording of a run: names of commands and flags, one use a month, and never a value."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import click
import pytest
from kit_tools import CLICK, TYPER, Tool
from rappor_client.kit.click import list_uses, telemetry
from rappor_client.kit.consent_file import Consent
from rappor_client.kit.host import METRIC, Host
from rappor_client.person.contents import read_contents
from rappor_client.testing import FixedClock, MemoryTransport

from rappor import ParamsError, Registry

NAMES = [
    *("--verbose", "build", "build --release", "build --debug", "build --target", "check"),
    *("db wipe", "db wipe --force", "fail"),
]
"""The programs `CLICK` and `TYPER` have these uses."""


@pytest.mark.parametrize("tool", [CLICK, TYPER], ids=["click", "typer"], indirect=True)
def test_init_lists_every_command_and_flag(tool: Tool) -> None:
    """`init` lists commands and flags, without options that end the program, such as --version.

    Typer adds the flag --no-verbose, which the program of click does not have.
    """
    categories = Registry.load(tool.registry)[METRIC].params.categories
    assert sorted(set(categories) - {"--no-verbose"}) == sorted(NAMES)


@pytest.mark.parametrize(
    ("words", "uses"),
    [
        (["build"], ["build"]),
        (["build", "--release", "--target", "secret"], ["build --release", "build --target"]),
        (["build", "--debug"], ["build --debug"]),
        (["check", "secret"], ["check"]),
        (["--verbose", "check", "secret"], ["--verbose", "check"]),
        (["db", "wipe", "-f"], ["db wipe --force"]),
    ],
)
def test_uses_of_a_run(tmp_path: Path, words: list[str], uses: list[str]) -> None:
    """`list_uses` returns the typed command and flags by their long names, and no argument.

    The commands of the program store their uses in place of printing.
    """
    uses_of_runs: list[list[str]] = []
    store_uses = "uses_of_runs.append(list_uses(click.get_current_context())) or ("
    source = CLICK.replace("click.echo(", store_uses)
    names: dict[str, Any] = {"uses_of_runs": uses_of_runs, "list_uses": list_uses}
    exec(compile(source, str(tmp_path), "exec"), names)  # noqa: S102 - the source of this test
    names["cli"].main(words, standalone_mode=False)
    assert uses_of_runs == [uses]


def test_a_name_that_the_group_does_not_list_is_not_recorded() -> None:
    """A group that accepts any word as a command has no uses, because the word may be a value."""
    uses_of_runs: list[list[str]] = []

    def store_uses() -> None:
        uses_of_runs.append(list_uses(click.get_current_context()))

    class AnyWordGroup(click.Group):
        def get_command(self, _: click.Context, cmd_name: str) -> click.Command:
            return click.Command(cmd_name, callback=store_uses)

    AnyWordGroup("run").main(["secret"], standalone_mode=False)
    assert uses_of_runs == [[]]


def test_a_program_without_commands_is_refused() -> None:
    """A program without subcommands is refused at its start."""
    import typer  # noqa: PLC0415  # 50 ms, and for this test only

    app = typer.Typer()
    app.command()(lambda: None)
    for program in (app, click.Command("single"), print):
        with pytest.raises(ParamsError, match="must"):
            telemetry(program, registry="metrics.toml", collector=None)


def test_a_program_with_a_command_telemetry_is_refused() -> None:
    """A program with a command or group `telemetry` is refused, whichever way it gets its name.

    Otherwise the added command would replace the command of the program. Typer names a command
    after its function, and a group after its own app. A group without a name gives its commands to
    the app.
    """
    import typer  # noqa: PLC0415  # 50 ms, and for these two tests only

    def telemetry_() -> None:
        """Do nothing."""

    telemetry_.__name__ = "telemetry"

    def make_app(**settings: Any) -> typer.Typer:
        app = typer.Typer(**settings)
        for name in ("build", "check"):
            app.command(name)(lambda: None)
        return app

    with_function, with_group, with_named_app, with_commands = (make_app() for _ in range(4))
    with_function.command()(telemetry_)
    with_group.add_typer(make_app(), name="telemetry")
    with_named_app.add_typer(make_app(name="telemetry"))
    with_commands.add_typer(with_function)
    group = click.Group("group", commands=[click.Command("telemetry")])
    for program in (group, with_function, with_group, with_named_app, with_commands):
        with pytest.raises(ParamsError, match="cli must have no command telemetry of its own"):
            telemetry(program, registry="metrics.toml", collector=None)


@pytest.mark.parametrize("method", ["list_commands", "get_command"])
def test_a_group_with_methods_of_its_own_still_works(tmp_path: Path, method: str) -> None:
    """A command runs although `list_commands` raises, or `get_command` does not know `telemetry`.

    In the second case the command `telemetry` works, too.
    """
    run_names: list[str] = []

    class OddGroup(click.Group):
        def list_commands(self, ctx: click.Context) -> list[str]:
            if method == "list_commands":
                raise RuntimeError
            return super().list_commands(ctx)

        def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
            command = click.Command("run", callback=lambda: run_names.append("run"))
            return command if cmd_name == "run" or method == "list_commands" else None

    group = OddGroup("odd")
    cli = telemetry(group, registry="metrics.toml", collector=None, folder=tmp_path / "device")
    cli.main(["run"], standalone_mode=False)
    assert run_names == ["run"]
    if method == "get_command":
        assert cli.main(["telemetry", "status"], standalone_mode=False) == 0


class Person:
    """A person with a device, whose clock and transport the test controls."""

    def __init__(self, tool: Tool) -> None:
        self.clock, self.transport = FixedClock("2026-12-01T12:00:00"), MemoryTransport()
        self.host = tool.host(Host, collector=self.transport, clock=self.clock)

    def use(self, *uses: str) -> None:
        """Record uses, and send a report that may leave, as the recording process does."""
        for use in uses:
            self.host.record_and_send(use)


@pytest.fixture
def person(tool: Tool) -> Person:
    """A person who has agreed."""
    person = Person(tool)
    person.host.agree()
    return person


@pytest.mark.slow
def test_a_device_reports_once_a_month(person: Person) -> None:
    """A device sends one upload a month, without names of uses, and spends 4 nats a month.

    The days are December, January and the first three days of February. The drawn day of February
    may be among them.
    """
    for year, month, n_days in ((2026, 12, 31), (2027, 1, 31), (2027, 2, 3)):
        for day in range(1, n_days + 1):
            person.clock.set(f"{year}-{month:02}-{day:02}T12:00:00")
            person.use("build", "build --release")
            person.host.send()
    names = [report.metric for report in person.transport.reports]
    assert set(names) == {"command"}
    assert len(names) in (2, 3)
    for body in person.transport.bodies:
        assert "build" not in body.decode()
    assert read_contents(person.host.folder).spent.nats <= 3 * 4


@pytest.mark.slow
def test_a_device_that_has_reported_cools_down_until_midnight(person: Person) -> None:
    """A device on which nothing more can be recorded today cools down until midnight.

    A run during a cooldown opens neither the device nor the registry.
    """
    has_cooldown = []
    for day in range(1, 32):
        person.clock.set(f"2027-01-{day:02}T12:00:00")
        person.use("build")
        person.host.send()
        person.use("build")
        has_cooldown.append((Path(person.host.folder) / "cooldown").exists())
    assert has_cooldown.count(False) <= 2  # on the drawn day, and until its report has left


def test_a_folder_that_was_not_usable_is_tried_again_after_an_hour(person: Person) -> None:
    """After a failure of the disk or a lock, a later run of the same day records its use.

    By December 30 the drawn day of every device has come.
    """
    person.clock.set("2026-12-30T12:00:00")
    device = Path(person.host.folder) / "device"
    device.write_text("a file in the device's place")
    person.use("build")
    device.unlink()
    is_recording = []
    for _ in range(2):
        is_recording.append(person.host.is_recording())
        person.clock.advance(minutes=61)
    assert is_recording == [False, True]
    person.use("build")
    assert len(read_contents(person.host.folder).pending_reports) == 1


@pytest.mark.parametrize(("send_day", "n_reports"), [("2026-12-31", 1), ("2027-01-02", 0)])
def test_a_report_leaves_within_its_month_or_never(
    person: Person, send_day: str, n_reports: int
) -> None:
    """A report that did not leave within its month is dropped.

    The next month has a report and a drawn day of its own. By December 30 the drawn day of every
    device has come.
    """
    person.clock.set("2026-12-30T12:00:00")
    person.use("check")
    assert len(read_contents(person.host.folder).pending_reports) == 1
    person.clock.set(f"{send_day}T12:00:00")
    person.host.send()
    assert len(person.transport.reports) == n_reports
    contents = read_contents(person.host.folder)
    assert not contents.pending_reports
    assert not contents.queued_reports


def test_a_use_of_the_last_day_of_a_month_is_not_recorded(person: Person) -> None:
    """A use of the last day has no report, which could not leave within the month."""
    person.clock.set("2026-12-31T12:00:00")
    person.use("check")
    contents = read_contents(person.host.folder)
    assert not contents.pending_reports
    assert not contents.queued_reports


@pytest.mark.slow
def test_a_new_metric_needs_a_new_consent(person: Person, tool: Tool) -> None:
    """A metric of a later version is skipped until the person agrees to it by `telemetry on`."""
    text = tool.registry.read_text()
    new_metric = text[text.index("[metrics") :].replace("[metrics.command]", "[metrics.more]")
    tool.registry.write_text(text.replace("total = 48", "total = 96") + new_metric)
    with person.host.open() as client:
        assert str(client.record("more", "build")) == "skipped: the person refuses this metric"
    assert "learnt to report more" in tool.run("telemetry", "status")
    tool.run("telemetry", "on")
    assert "learnt" not in tool.run("telemetry", "status")


class UseCounter(Host):
    """A host that counts uses in place of recording them."""

    n_uses = 0

    def is_on(self) -> bool:
        """Return True, also in the environment of a test."""
        return True

    def record_and_send(self, use: str) -> None:
        """Count the use."""
        self.n_uses += bool(use)


def test_a_loop_of_runs_is_one_use_in_ten_seconds(tool: Tool) -> None:
    """A script that runs the program in a loop records one use in ten seconds.

    A clock that was set back by days does not extend the cooldown.
    """
    clock = FixedClock("2026-12-01T12:00:00")
    host = tool.host(UseCounter, collector=MemoryTransport(), clock=clock)
    host.agree()
    for seconds, n_uses in ((0, 1), (9, 1), (2, 2), (-200_000, 3), (300_000, 4)):
        clock.advance(seconds=seconds)
        host.record(["build"])
        host.record(["build"])
        assert host.n_uses == n_uses


def test_only_the_first_process_starts_the_cooldown(tool: Tool) -> None:
    """A process that finds the lock of another process, or its cooldown, records nothing.

    On a disk that hangs, the first process holds the lock. The processes of later runs end.
    """
    clock = FixedClock("2026-12-01T12:00:00")
    host = tool.host(UseCounter, clock=clock)
    assert host.start_cooldown()
    assert not host.start_cooldown()
    clock.advance(seconds=11)
    with (tool.folder / "cooldown").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert not host.start_cooldown()
    assert host.start_cooldown()


class WithdrawingHost(Host):
    """A host whose person withdraws consent while the device opens."""

    n_reads = 0

    def read_consent(self) -> Consent:
        """Return a yes at the first call, then a no."""
        self.n_reads += 1
        return Consent("yes" if self.n_reads == 1 else "no", (20000,), ("command",))


def test_a_no_while_the_device_opens_erases_the_device(tool: Tool) -> None:
    """A withdrawal during the opening erases the device, and its client has no consent.

    A recording process may start before `telemetry off` and open the device after it.
    """
    host = tool.host(WithdrawingHost)
    with host.open() as client:
        assert str(client.record("command", "build")) == "skipped: there is no consent"
    assert not read_contents(host.folder).has_secret


def test_telemetry_is_off_without_a_home(tool: Tool) -> None:
    """Without a home the host has no folder. A path with ~ does not become a folder named ~."""
    host = Host("mytool", registry=tool.registry, collector=None, folder="~nobody.at.all/data")
    assert host.find_obstacle() == "the home of the user is not known"


@pytest.mark.parametrize("path", ["", "data", "./data"])
def test_a_relative_data_folder_is_ignored(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device of a person does not depend on the folder in which the person works."""
    monkeypatch.setenv("XDG_DATA_HOME", path)
    folder = Path("~/.local/share/mytool/telemetry").expanduser()
    assert Host("mytool", registry="metrics.toml", collector=None).folder == str(folder)
