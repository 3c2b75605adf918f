"""What a run records: names of commands and flags, one of them, and never a value."""

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
    """Whatever library made the program, and no option that ends it, as --version."""
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
def test_a_run_uses_names(tmp_path: Path, words: list[str], uses: list[str]) -> None:
    """The command and the flags that were typed, by their long names; no argument, no value."""
    seen: list[list[str]] = []
    recording = "seen.append(list_uses(click.get_current_context())) or ("
    source = CLICK.replace("click.echo(", recording)
    names: dict[str, Any] = {"seen": seen, "list_uses": list_uses}
    exec(compile(source, str(tmp_path), "exec"), names)  # noqa: S102 - the tool's own source
    names["cli"].main(words, standalone_mode=False)
    assert seen == [uses]


def test_a_name_that_the_group_does_not_list_is_not_recorded() -> None:
    """A group that takes any word as a command may have been given a value."""

    class Anything(click.Group):
        def get_command(self, _: click.Context, cmd_name: str) -> click.Command:
            return click.Command(cmd_name, callback=lambda: seen.append(list_uses(own())))

    own = click.get_current_context
    seen: list[list[str]] = []
    Anything("run").main(["secret"], standalone_mode=False)
    assert seen == [[]]


def test_a_program_without_commands_is_refused() -> None:
    """One that cannot have the command `telemetry` is told so at its start."""
    import typer  # noqa: PLC0415  # 50 ms, and for this test only

    app = typer.Typer()
    app.command()(lambda: None)
    own = click.Group("own", commands=[click.Command("telemetry")])
    for program in (app, click.Command("alone"), own, print):
        with pytest.raises(ParamsError, match="must"):
            telemetry(program, registry="metrics.toml", collector=None)


@pytest.mark.parametrize("what", ["list_commands", "get_command"])
def test_a_group_with_ways_of_its_own_works_as_before(tmp_path: Path, what: str) -> None:
    """Whatever telemetry stumbles over, the command runs; and `telemetry` is found."""
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
    """Somebody who has agreed, on a device whose clock is ours."""

    def __init__(self, tool: Tool) -> None:
        self.clock, self.transport = FixedClock("2026-12-01T12:00:00"), MemoryTransport()
        self.host = tool.host(Host, collector=self.transport, clock=self.clock)

    def use(self, *uses: str) -> None:
        """Run the program, without the process of its own."""
        for use in uses:
            self.host.record_and_send(use)


@pytest.fixture
def person(tool: Tool) -> Person:
    """Somebody who has agreed."""
    person = Person(tool)
    person.host.agree()
    return person


def test_a_device_answers_once_a_month(person: Person) -> None:
    """One upload a month, and rest on most days."""
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


def test_a_device_that_has_reported_cools_down_until_midnight(person: Person) -> None:
    """Most runs of a month open nothing: neither folder nor registry."""
    cooldowns = []
    for day in range(1, 32):
        person.clock.set(f"2027-01-{day:02}T12:00:00")
        person.use("build")
        person.host.send()
        person.use("build")
        cooldowns.append((Path(person.host.folder) / "cooldown").exists())
    assert cooldowns.count(False) <= 2  # before its own day; until the report of that day has left


@pytest.mark.parametrize(("later", "n"), [("2026-12-31", 1), ("2027-01-02", 0)])
def test_what_waits_leaves_within_its_month_or_never(person: Person, later: str, n: int) -> None:
    """The next month has its own report, on its own day."""
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


def test_metrics_of_a_later_registry_are_off_until_they_are_agreed_to(
    person: Person, tool: Tool
) -> None:
    """A yes is to what was described; new names of commands are no new metric."""
    text = tool.registry.read_text()
    more = text[text.index("[metrics") :].replace("[metrics.command]", "[metrics.more]")
    tool.registry.write_text(text.replace("total = 48", "total = 96") + more)
    with person.host.open() as client:
        assert str(client.record("more", "build")) == "skipped: the person refuses this metric"
    assert "learnt to report more" in tool.run("telemetry", "status")
    tool.run("telemetry", "on")
    assert "learnt" not in tool.run("telemetry", "status")


class Counting(Host):
    """A host that is on, and counts what it works for."""

    used = 0

    def is_on(self) -> bool:
        """Be on, in a test too."""
        return True

    def record_and_send(self, use: str) -> None:
        """Count a use."""
        self.used += bool(use)


def test_a_loop_of_runs_is_one_use_in_ten_seconds(tool: Tool) -> None:
    """A script that calls a tool a thousand times is no thousand uses, nor processes."""
    clock = FixedClock("2026-12-01T12:00:00")
    host = tool.host(Counting, collector=MemoryTransport(), clock=clock)
    host.agree()
    for seconds, used in ((0, 1), (9, 1), (2, 2), (-200_000, 3), (300_000, 4)):
        clock.advance(seconds=seconds)
        host.record(["build"])
        host.record(["build"])
        assert host.used == used


class TakenBack(Host):
    """A host whose person says no while the device opens."""

    n_asked = 0

    def read_consent(self) -> Consent:
        """Return a yes once, then a no."""
        self.n_asked += 1
        return Consent("yes" if self.n_asked == 1 else "no", (20000,), ("command",))


def test_a_no_while_the_device_opens_erases_it(tool: Tool) -> None:
    """A process that began before `telemetry off` leaves nothing behind it."""
    host = tool.host(TakenBack)
    with host.open() as client:
        assert str(client.record("command", "build")) == "skipped: there is no consent"
    assert not read_contents(host.folder).has_secret


def test_without_a_home_it_is_off(tool: Tool) -> None:
    """No folder of the name ~ appears where the person works."""
    host = Host("mytool", registry=tool.registry, collector=None, folder="~nobody.at.all/data")
    assert host.find_obstacle() == "the home of the user is not known"
