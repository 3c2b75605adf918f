"""Recording of a run: names of commands and flags, one use a month, and never a value."""

from __future__ import annotations

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


@pytest.mark.parametrize("tool", [CLICK, TYPER], ids=["click", "typer"], indirect=True)
def test_init_lists_every_command_and_flag(tool: Tool) -> None:
    """With click and with typer; options that end the program, such as --version, are left out."""
    listed = Registry.load(tool.registry)[METRIC].params.categories
    assert sorted(set(listed) - {"--no-verbose"}) == sorted(NAMES)


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
    """The typed command and flags, by their long names; no argument and no value."""
    seen: list[list[str]] = []
    recording = "seen.append(list_uses(click.get_current_context())) or ("
    source = CLICK.replace("click.echo(", recording)
    names: dict[str, Any] = {"seen": seen, "list_uses": list_uses}
    exec(compile(source, str(tmp_path), "exec"), names)  # noqa: S102 - the tool's own source
    names["cli"].main(words, standalone_mode=False)
    assert seen == [uses]


def test_a_name_that_the_group_does_not_list_is_not_recorded() -> None:
    """Case: a group accepts any word as a command, so the word may be a value."""

    class Anything(click.Group):
        def get_command(self, _: click.Context, cmd_name: str) -> click.Command:
            return click.Command(cmd_name, callback=lambda: seen.append(list_uses(own())))

    own = click.get_current_context
    seen: list[list[str]] = []
    Anything("run").main(["secret"], standalone_mode=False)
    assert seen == [[]]


def test_a_program_without_commands_is_refused() -> None:
    """Such a program cannot have the command `telemetry`, and raises at its start."""
    import typer  # noqa: PLC0415  # 50 ms, and for this test only

    app = typer.Typer()
    app.command()(lambda: None)
    own = click.Group("own", commands=[click.Command("telemetry")])
    for program in (app, click.Command("alone"), own, print):
        with pytest.raises(ParamsError, match="must"):
            telemetry(program, registry="metrics.toml", collector=None)


@pytest.mark.parametrize("what", ["list_commands", "get_command"])
def test_a_group_with_methods_of_its_own_still_works(tmp_path: Path, what: str) -> None:
    """A method may raise or not find `telemetry`: both commands run all the same."""
    ran: list[str] = []

    class Odd(click.Group):
        def list_commands(self, ctx: click.Context) -> list[str]:
            if what == "list_commands":
                raise RuntimeError
            return super().list_commands(ctx)

        def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
            own = click.Command("run", callback=lambda: ran.append("run"))
            return own if cmd_name == "run" or what == "list_commands" else None

    cli = telemetry(Odd("odd"), registry="metrics.toml", collector=None, folder=tmp_path / "own")
    cli.main(["run"], standalone_mode=False)
    assert ran == ["run"]
    if what == "get_command":
        assert cli.main(["telemetry", "status"], standalone_mode=False) == 0


class Person:
    """A person with a device, whose clock and transport the test controls."""

    def __init__(self, tool: Tool) -> None:
        self.clock, self.transport = FixedClock("2026-12-01T12:00:00"), MemoryTransport()
        self.host = tool.host(Host, collector=self.transport, clock=self.clock)

    def use(self, *uses: str) -> None:
        """Record uses as the recording process does."""
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
    """One upload a month, without names in it, and 4 nats for each month."""
    for month, days in ((12, 31), (1, 31), (2, 3)):
        for day in range(1, days + 1):
            person.clock.set(f"{2027 if month < 12 else 2026}-{month:02}-{day:02}T12:00:00")
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
    """A run during a cooldown opens neither the device nor the registry."""
    cooldowns = []
    for day in range(1, 32):
        person.clock.set(f"2027-01-{day:02}T12:00:00")
        person.use("build")
        person.host.send()
        person.use("build")
        cooldowns.append((Path(person.host.folder) / "cooldown").exists())
    assert cooldowns.count(False) <= 2  # on the drawn day, and until its report has left


@pytest.mark.parametrize(("later", "n"), [("2026-12-31", 1), ("2027-01-02", 0)])
def test_a_report_leaves_within_its_month_or_never(person: Person, later: str, n: int) -> None:
    """The next month has a report and a drawn day of its own."""
    person.clock.set("2026-12-30T12:00:00")
    person.use("check")
    assert len(read_contents(person.host.folder).pending_reports) == 1
    person.clock.set(f"{later}T12:00:00")
    person.host.send()
    assert len(person.transport.reports) == n
    contents = read_contents(person.host.folder)
    assert not contents.pending_reports
    assert not contents.queued_reports


def test_a_use_of_the_last_day_of_a_month_is_not_recorded(person: Person) -> None:
    """Its report could not leave within the month."""
    person.clock.set("2026-12-31T12:00:00")
    person.use("check")
    contents = read_contents(person.host.folder)
    assert not contents.pending_reports
    assert not contents.queued_reports


@pytest.mark.slow
def test_a_new_metric_needs_a_new_consent(person: Person, tool: Tool) -> None:
    """The person agreed to the described metrics only. `telemetry on` agrees to the new one."""
    text = tool.registry.read_text()
    more = text[text.index("[metrics") :].replace("[metrics.command]", "[metrics.more]")
    tool.registry.write_text(text.replace("total = 48", "total = 96") + more)
    with person.host.open() as client:
        assert str(client.record("more", "build")) == "skipped: the person refuses this metric"
    assert "learnt to report more" in tool.run("telemetry", "status")
    tool.run("telemetry", "on")
    assert "learnt" not in tool.run("telemetry", "status")


class UseCounter(Host):
    """A host that counts uses in place of recording them."""

    used = 0

    def is_on(self) -> bool:
        """Return True, although the environment is that of a test."""
        return True

    def record_and_send(self, use: str) -> None:
        """Count the use."""
        self.used += bool(use)


def test_a_loop_of_runs_is_one_use_in_ten_seconds(tool: Tool) -> None:
    """A loop of a script neither counts many times nor starts many processes."""
    clock = FixedClock("2026-12-01T12:00:00")
    host = tool.host(UseCounter, collector=MemoryTransport(), clock=clock)
    host.agree()
    for seconds, used in ((0, 1), (9, 1), (2, 2), (-200_000, 3), (300_000, 4)):
        clock.advance(seconds=seconds)
        host.record(["build"])
        host.record(["build"])
        assert host.used == used


class Withdrawing(Host):
    """A host whose person withdraws consent while the device opens."""

    n_asked = 0

    def read_consent(self) -> Consent:
        """Return a yes once, then a no."""
        self.n_asked += 1
        return Consent("yes" if self.n_asked == 1 else "no", (20000,), ("command",))


def test_a_no_while_the_device_opens_erases_it(tool: Tool) -> None:
    """Case: a recording process starts before `telemetry off` and opens the device after it."""
    host = tool.host(Withdrawing)
    with host.open() as client:
        assert str(client.record("command", "build")) == "skipped: there is no consent"
    assert not read_contents(host.folder).has_secret


def test_telemetry_is_off_without_a_home(tool: Tool) -> None:
    """Otherwise a folder named ~ would appear in the working folder."""
    host = Host("mytool", registry=tool.registry, collector=None, folder="~nobody.at.all/data")
    assert host.find_obstacle() == "the home of the user is not known"
