"""The command `telemetry` with its subcommands, and folders that are damaged or incomplete."""

from __future__ import annotations

import calendar
import dataclasses
import re
import time
from pathlib import Path

import pytest
from accepting_collector import accepting
from devices import open_spool
from kit_tools import CLICK, TYPER, Tool
from programs import until
from rappor_client.kit.commands import manage
from rappor_client.kit.consent_file import Consent, read_consent, write_consent
from rappor_client.kit.host import Host
from rappor_client.testing import FixedClock, MemoryTransport, peek

from rappor import Params, Registry
from rappor.protocol.encodings import get_encoder

BOTH = pytest.mark.parametrize("tool", [CLICK, TYPER], ids=["click", "typer"], indirect=True)


def agree(tool: Tool, *, now: str = "") -> Host:
    """Return a host whose person has agreed. `now` is the fixed time of its clock."""
    host = tool.host(Host, clock=FixedClock(now) if now else time.time)
    host.agree()
    return host


def last_day_but_one() -> str:
    """Return noon of this month's last day but one.

    The drawn day of every device has come by then, and a report of that day can still leave
    within the
    month.
    """
    today = time.gmtime()
    n_days = calendar.monthrange(today.tm_year, today.tm_mon)[1]
    return f"{today.tm_year}-{today.tm_mon:02}-{n_days - 1:02}T12:00:00"


@pytest.mark.slow
@BOTH
def test_on_and_off(tool: Tool) -> None:
    """`on` prints the privacy notice; `off` leaves the response and the reserved nats only."""
    assert "Collected by a@example.org" in tool.run("telemetry", "on")
    tool.run("build")
    until(lambda: peek(tool.folder).has_secret)
    assert "off. Erased." in tool.run("telemetry", "off")
    assert not peek(tool.folder).has_secret
    assert {path.name for path in tool.folder.iterdir()} <= {"answer", "budget"}
    assert tool.run("telemetry", "off")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CI", "DO_NOT_TRACK", "MYTOOL_NO_TELEMETRY"])
def test_status_says_what_decided(tool: Tool, name: str) -> None:
    """The environment, or the person with the day of the response."""
    tool.run("telemetry", "on")
    status = tool.run("telemetry", "status", env={name: "true"})
    assert re.match(rf"Telemetry of mytool is off: the environment has {name}=true. .* yes", status)
    assert "is on: you said yes on 2" in tool.run("telemetry", "status", env={name: "0"})


@pytest.mark.slow
def test_status_says_that_nobody_is_asked_in_a_container(tool: Tool) -> None:
    """A developer who works in a container would wait for the question in vain."""
    inside = tool.program.read_text().replace("containers=()", 'containers=["/"]')
    tool.program.write_text(inside)
    assert "Nobody is asked in a container" in tool.run("telemetry", "status")
    tool.run("telemetry", "on")
    assert "Nobody is asked" not in tool.run("telemetry", "status")


@pytest.mark.slow
def test_reset_begins_as_a_new_device(tool: Tool) -> None:
    """The secret is gone, and the response stays."""
    tool.run("telemetry", "on")
    tool.run("build")
    until(lambda: peek(tool.folder).has_secret)  # the recording process has opened the device
    assert "is on" in tool.run("telemetry", "reset")
    assert not peek(tool.folder).has_secret
    assert read_consent(str(tool.folder)).word == "yes"


@pytest.mark.slow
def test_a_report_leaves_in_a_process_of_its_own(tmp_path: Path) -> None:
    """A run starts a process that sends, and does not wait for it. `log` prints the upload."""
    registry = Registry.load(Tool(tmp_path).registry)
    with accepting(registry) as collector:
        tool = Tool(tmp_path, collector=collector.url)
        host = agree(tool, now=last_day_but_one())
        host.record_and_send("build")
        assert len(peek(tool.folder).pending_reports) == 1
        with open_spool(tool.folder) as db:  # the day of the report ended at midnight
            db.execute("UPDATE held SET ends = ?", (time.time() // 86400 * 86400,))
        tool.run("build")
        until(lambda: len(collector.reports) == 1)
        assert [each.metric for each in collector.reports] == ["command"]
        until(lambda: len(peek(tool.folder).sent_uploads) == 1)
        log = tool.run("telemetry", "log")
        assert log.count('"metric":"command') == 1
        assert "Privacy loss so far: epsilon = 4" in log


@pytest.mark.slow
def test_preview_shows_the_bytes_that_are_sent(
    tool: Tool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bytes of a pending report stay the same; a sentence says what they reveal."""
    host = agree(tool, now="2026-12-30T12:00:00")
    host.record_and_send("build")
    assert manage(host, ["status"], []) == 0
    assert "0 waiting, 1 kept until the day is over." in capsys.readouterr().out
    shown = tool.run("telemetry", "preview").splitlines()
    host.clock.advance(days=1)  # type: ignore[attr-defined]
    transport = MemoryTransport()
    host.collector = transport
    host.send()
    sent = [line.encode() for line in shown if line.startswith("{")]
    assert sorted(sent) == sorted(transport.bodies)
    assert shown[-1].startswith("What anybody could learn")


@pytest.mark.slow
def test_view_writes_a_page_that_only_the_user_can_read(tool: Tool) -> None:
    """The page has a section for each kind of data, and its folder is private to the user."""
    tool.run("telemetry", "on")
    tool.run("build")
    page = Path(tool.run("telemetry", "view", "--no-browser").strip())
    text = page.read_text(encoding="utf-8")
    for title in ("Recorded", "Sent", "Would be sent", "Privacy loss", "What is collected"):
        assert f"<h2>{title}</h2>" in text
    assert page.parent.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_init_writes_a_section_for_the_readme(tool: Tool, tmp_path: Path) -> None:
    """A second `init` replaces the section only. A new registry needs an owner."""
    readme = tmp_path / "README.md"
    readme.write_text("# My tool\n\nIt builds.")
    tool.run("telemetry", "init", "--readme", str(readme))
    written = readme.read_text()
    assert written.startswith("# My tool\n\nIt builds.\n\n## Telemetry\n")
    assert "`mytool telemetry off`" in written
    readme.write_text(f"{written}\n## License\n")
    tool.registry.write_text(tool.registry.read_text().replace('  "check",\n', ""))
    assert "lacks check." in tool.run("telemetry", "init", "--readme", str(readme))
    again = readme.read_text()
    assert "check" in written
    assert "check" not in again
    assert again.count("## Telemetry") == 1
    assert again.endswith("\n\n## License\n")
    tool.registry.unlink()
    assert "--owner must be given" in tool.run("telemetry", "init", code=1)
    few = tool.run("telemetry", "init", "--owner", "a@example.org", "--devices", "300")
    assert "Unlisted commands and options are not counted: that needs --devices 12800" in few
    assert Registry.load(tool.registry)["command"].params.encoding == "onehot"


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "cohorts"), [(12_799, 1), (12_800, 64), (10**6, 128)])
def test_init_writes_a_list_for_many_devices(tool: Tool, devices: int, cohorts: int) -> None:
    """12,800 devices a month are the smallest number at which blocks of unlisted names close.

    The list has the names of the program. A device reports any name, also that of a plugin.
    """
    names = Registry.load(tool.registry)["command"].params.categories
    tool.registry.unlink()
    words = ("telemetry", "init", "--owner", "a@example.org", "--devices", str(devices))
    shown = tool.run(*words)
    registry = Registry.load(tool.registry)
    metric = registry["command"]
    assert registry.total == sum(each.total for each in registry.reserved) == 48
    assert metric.params.m == cohorts
    if cohorts == 1:
        assert metric.params.categories == names
        assert "not counted" in shown
        return
    assert metric.listed == names
    assert metric.params == dataclasses.replace(
        Params.profile("once"), m=cohorts, insecure=True, interval="epoch", epoch="month"
    )
    assert [part.name for part in metric.parts] == ["prefix:3", "whole"]
    assert cohorts * 30 <= metric.smallest_part * devices
    assert "not counted" not in shown
    assert get_encoder(metric.params).is_representable("plugin-of-somebody")
    tool.registry.write_text(tool.registry.read_text().replace('  "check",\n', ""))
    assert "lacks check. Add them to its candidates." in tool.run("telemetry", "init")
    assert '"metric":"command"' in tool.run("telemetry", "preview")


@pytest.mark.slow
def test_init_says_which_options_an_existing_registry_contradicts(tool: Tool) -> None:
    """The registry does not change, and options that agree with it are not mentioned."""
    before = tool.registry.read_text()
    shown = tool.run(
        *("telemetry", "init", "--owner", "b@example.org", "--expires", "2040-01-01"),
        *("--devices", "20000"),
    )
    assert "--owner b@example.org is ignored (its owner is a@example.org)" in shown
    assert "--expires 2040-01-01 is ignored (it expires on " in shown
    assert "--devices 20000 is ignored" in shown
    assert tool.registry.read_text() == before
    expires = str(Registry.load(tool.registry)["command"].expires)
    same = ("--owner", "a@example.org", "--expires", expires, "--devices", "9")
    assert "ignored" not in tool.run("telemetry", "init", *same)


@pytest.mark.slow
def test_a_program_without_its_registry_does_nothing(tool: Tool) -> None:
    """The consent of its users stays stored."""
    tool.run("telemetry", "on")
    tool.registry.unlink()
    assert tool.run("build") == "built\n"
    assert "ships no registry" in tool.run("telemetry", "status")
    assert [path.name for path in tool.folder.iterdir()] == ["answer"]


@pytest.mark.slow
def test_a_damaged_folder_does_not_disturb_the_program(tool: Tool) -> None:
    """The command prints its own output only; `status` names the problem."""
    tool.run("telemetry", "on")
    (tool.folder / "device").write_text("a file in the device's place")
    assert tool.run("build") == "built\n"
    assert "It cannot work now" in tool.run("telemetry", "status")


@pytest.mark.slow
def test_a_failing_command_keeps_its_exit_code(tool: Tool) -> None:
    """Telemetry prints nothing and changes no exit code."""
    tool.run("telemetry", "on")
    assert tool.run("fail", code=3) == ""


@pytest.mark.parametrize("text", ["", "yes", "yes 1\x00", "maybe 20000", "\xff", "yes x"])
def test_an_unreadable_response_is_no_consent(tmp_path: Path, text: str) -> None:
    """The question is not shown again: the person may have refused."""
    (tmp_path / "answer").write_text(text, encoding="latin-1")
    consent = read_consent(str(tmp_path))
    assert consent.word != "yes"
    assert not consent.may_ask(30000)


@pytest.mark.parametrize(
    "consent", [Consent("yes", (20000,), ("command", "more")), Consent("asked", (1, 2))]
)
def test_a_consent_is_read_as_it_was_written(tmp_path: Path, consent: Consent) -> None:
    """Also if the folder is created for it, private to the user."""
    folder = tmp_path / "new" / "folder"
    write_consent(str(folder), consent)
    assert read_consent(str(folder)) == consent
    assert folder.stat().st_mode & 0o077 == 0
