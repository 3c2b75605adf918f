"""The command `telemetry` with its subcommands, and folders that are damaged or incomplete."""

from __future__ import annotations

import calendar
import contextlib
import dataclasses
import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from accepting_collector import run_accepting_collector
from devices import open_spool
from kit_tools import CLICK, THEME, TYPER, Tool
from programs import wait_until
from rappor_client.kit.commands import manage
from rappor_client.kit.consent_file import Consent, read_consent, write_consent
from rappor_client.kit.device_page import erase_pages, write_page
from rappor_client.kit.host import Host
from rappor_client.testing import FixedClock, MemoryTransport, peek

from rappor import Params, Registry
from rappor.protocol.encodings import get_encoder
from rappor.protocol.wire import Report, parse_upload

WITH_CLICK_AND_TYPER = pytest.mark.parametrize(
    "tool", [CLICK, TYPER], ids=["click", "typer"], indirect=True
)


def open_host(tool: Tool, *, now: str = "") -> Host:
    """Return a host whose person has agreed. `now` is the fixed time of its clock."""
    host = tool.host(Host, clock=FixedClock(now) if now else time.time)
    host.agree()
    return host


def find_last_day_but_one() -> str:
    """Return noon of the last day but one of the present month.

    A device reports once a month, on or after a day that its secret draws. The drawn day is never
    one of the last eight days, so on the last day but one a new device reports its first event. The
    report leaves on the next day. A report of the last day would leave in the next month, so a
    device records no event on the last day.
    """
    today = time.gmtime()
    n_days = calendar.monthrange(today.tm_year, today.tm_mon)[1]
    return f"{today.tm_year}-{today.tm_mon:02}-{n_days - 1:02}T12:00:00"


@pytest.mark.slow
@WITH_CLICK_AND_TYPER
def test_on_and_off(tool: Tool) -> None:
    """`on` prints the privacy notice, and `off` erases the secret of the device.

    Two files stay: `answer` has the person's response to the consent question, and `budget` has the
    nats that are reserved for the year. A second `off` works, too.
    """
    assert "Collected by a@example.org" in tool.run("telemetry", "on")
    tool.run("build")
    wait_until(lambda: peek(tool.folder).has_secret)
    output = tool.run("telemetry", "off")
    # The device has reserved nothing if the day that it has drawn has not come.
    assert re.search(
        r"off\. Erased\. Only your answer( and the privacy loss .* are| is) kept", output
    )
    assert not peek(tool.folder).has_secret
    assert {path.name for path in tool.folder.iterdir()} <= {"answer", "budget"}
    assert tool.run("telemetry", "off")


@pytest.mark.slow
def test_status_prints_why_telemetry_is_on_or_off(tool: Tool) -> None:
    """The reason is the variable of the environment, or the response of the person with its day."""
    tool.agree()
    for name in ("CI", "DO_NOT_TRACK", "MYTOOL_NO_TELEMETRY"):
        status = tool.run("telemetry", "status", env={name: "true"})
        reason = rf"Telemetry of mytool is off: the environment has {name}=true. .* yes"
        assert re.match(reason, status)
    # The value 0 refuses nothing.
    refuses_nothing = dict.fromkeys(("CI", "DO_NOT_TRACK", "MYTOOL_NO_TELEMETRY"), "0")
    assert "is on: you said yes on 2" in tool.run("telemetry", "status", env=refuses_nothing)


@pytest.mark.slow
def test_status_states_that_nobody_is_asked_in_a_container(tool: Tool) -> None:
    """`status` explains why a developer who works in a container never sees the question."""
    # The path "/" exists, so the program runs in a container for the kit.
    source = tool.program.read_text().replace("containers=()", 'containers=["/"]')
    tool.program.write_text(source)
    assert "Nobody is asked in a container" in tool.run("telemetry", "status")
    tool.agree()
    assert "Nobody is asked" not in tool.run("telemetry", "status")


@pytest.mark.slow
def test_reset_begins_as_a_new_device(tool: Tool) -> None:
    """`reset` erases the secret, and the response to the consent question stays."""
    tool.agree()
    tool.run("build")
    wait_until(lambda: peek(tool.folder).has_secret)  # the recording process has opened the device
    assert "is on" in tool.run("telemetry", "reset")
    assert not peek(tool.folder).has_secret
    assert read_consent(str(tool.folder)).word == "yes"


@pytest.mark.slow
@pytest.mark.parametrize("change", ["reset", "off", "new list"])
def test_status_states_that_the_budget_of_the_year_has_no_room(
    tool: Tool, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    """`status` explains why a device whose budget is reserved records nothing until January.

    A device reserves the budget of the year for its metric: 4 nats in each of 12 months. The
    reservation stays if the device is erased, and if a new version of the program lists other
    names. The device then needs another 48 nats, which the budget does not have. `log` prints the
    reservation, although the device has no record of an upload.
    """
    host = open_host(tool, now="2026-06-22T12:00:00")
    host.record_and_send("build")
    assert manage(host, ["status"], []) == 0
    assert "no room" not in capsys.readouterr().out
    if change == "reset":
        host.erase()
    elif change == "off":
        host.refuse()
        host.agree()
    else:
        text = tool.registry.read_text()
        tool.registry.write_text(text.replace('  "check",\n', '  "check",\n  "deploy",\n'))
    assert manage(host, ["status"], []) == manage(host, ["log"], []) == 0
    output = capsys.readouterr().out
    assert "Nothing more is recorded for command this year: the privacy budget" in output
    assert "The budget has room" not in output  # there is no other metric
    assert "has no record of anything sent" in output
    assert "Reserved for 2026: epsilon = 48.00 at most." in output
    assert "also those sent before an erasure" in output
    host.clock.advance(days=365)  # type: ignore[attr-defined]
    assert manage(host, ["status"], []) == 0
    assert "no room" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_report_leaves_in_a_process_of_its_own(tmp_path: Path) -> None:
    """A run starts a process that sends the report of an earlier day. `log` prints the upload."""
    registry = Registry.load(Tool(tmp_path).registry)
    with run_accepting_collector(registry) as collector:
        tool = Tool(tmp_path, collector=collector.url)
        host = open_host(tool, now=find_last_day_but_one())
        host.record_and_send("build")
        assert len(peek(tool.folder).pending_reports) == 1
        with open_spool(tool.folder) as db:  # the day of the report ended at midnight
            db.execute("UPDATE held SET ends = ?", (time.time() // 86400 * 86400,))
        tool.run("build")
        wait_until(lambda: len(collector.reports) == 1)
        assert [report.metric for report in collector.reports] == ["command"]
        wait_until(lambda: len(peek(tool.folder).sent_uploads) == 1)
        log = tool.run("telemetry", "log")
        assert log.count('"metric":"command') == 1
        assert "Privacy loss so far: epsilon = 4" in log


def test_a_program_records_another_metric_of_its_registry(tool: Tool) -> None:
    """A value is recorded on the device of the program, and a later run sends its report."""
    tool.add_theme()
    transport = MemoryTransport()
    host = open_host(tool, now="2026-12-01T12:00:00")
    host.collector = transport
    with host.open() as client:
        assert client.record("theme", "dark")
        assert client.queued_count() == 0
    host.clock.advance(days=1)  # type: ignore[attr-defined]
    host.record_and_send("build")
    assert "theme" in {report.metric for report in transport.reports}


def test_the_section_names_the_other_metrics_of_the_registry(
    tool: Tool, capsys: pytest.CaptureFixture[str]
) -> None:
    """`init` on a registry with another metric writes a section that names it."""
    sentence = (
        "mytool also reports, with random noise and only if you agree: Light or dark appearance "
        "(at most once a day).\n\n"
    )
    assert manage(open_host(tool), ["init"], ["build"]) == 0
    assert sentence not in capsys.readouterr().out
    tool.add_theme()
    assert manage(open_host(tool), ["init"], ["build"]) == 0
    assert sentence in capsys.readouterr().out


def test_a_folder_that_cannot_be_created_is_named(
    tool: Tool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error of the system is shown as a path and its reason, without a number."""
    (tmp_path / "file").touch()
    host = tool.host(Host, folder=tmp_path / "file" / "telemetry")
    assert manage(host, ["on"], []) == 1
    folder = tmp_path / "file" / "telemetry"
    assert f"mytool telemetry: {folder}: Not a directory\n" == capsys.readouterr().err


@pytest.mark.slow
def test_preview_shows_the_bytes_that_are_sent(
    tool: Tool, capsys: pytest.CaptureFixture[str]
) -> None:
    """`preview` prints the bytes of the pending report, and a sentence about their information."""
    host = open_host(tool, now="2026-12-30T12:00:00")
    host.record_and_send("build")
    assert manage(host, ["status"], []) == 0
    assert "0 waiting, 1 kept until the day is over." in capsys.readouterr().out
    lines = tool.run("telemetry", "preview").splitlines()
    host.clock.advance(days=1)  # type: ignore[attr-defined]
    transport = MemoryTransport()
    host.collector = transport
    host.send()
    previewed_bodies = [line.encode() for line in lines if line.startswith("{")]
    assert sorted(previewed_bodies) == sorted(transport.bodies)
    assert lines[-1].startswith("What anybody could learn")


@pytest.mark.slow
def test_status_says_from_which_day_on_something_can_be_sent(
    tool: Tool, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the yes, `status` has the day before which nothing can be sent, until it has come.

    The device sends one report a month, of the first day with a use from its drawn day on. The
    status once said only that telemetry is on and that nothing waits, for weeks.
    """
    host = open_host(tool, now="2026-06-01T12:00:00")

    def read_status() -> str:
        assert manage(host, ["status"], []) == 0
        return capsys.readouterr().out.splitlines()[-1]

    with host.open() as client:
        days = client.find_next_reports()["command"]
    reasons = {
        True: "nothing is recorded yet, and a report leaves when its day or week is over",
        False: f"this device records nothing before {days.recorded_from}",
    }
    is_today = days.recorded_from == host.compute_date()
    expected = f"Nothing can be sent before {days.leaves_from} (UTC): {reasons[is_today]}."
    assert read_status() == expected
    host.clock.set(f"{days.recorded_from}T12:00:00")  # type: ignore[attr-defined]
    host.record_and_send("build")
    expected = f"{days.leaves_from} (UTC): a report leaves when its day or week is over."
    assert read_status() == f"Nothing can be sent before {expected}"
    host.clock.advance(days=1)  # type: ignore[attr-defined]
    transport = MemoryTransport()
    host.collector = transport
    host.send()
    assert len(transport.bodies) == 1
    # The next report is one of July.
    assert re.match(r"Nothing can be sent before 2026-07-\d\d \(UTC\): this device ", read_status())


MORE_METRICS = """
[metrics.plugins]
description = "Installed plugins."
encoding = "set"
profile = "once"
interval = "epoch"
candidates = ["git", "vim-mode"]
[metrics.start_seconds]
description = "Seconds of a start"
encoding = "buckets"
edges = [0.5, 1]
profile = "strict"
[metrics.dark]
description = "Dark appearance"
encoding = "boolean"
profile = "strict"
[metrics.setup]
description = "Editor and system"
encoding = "onehot"
categories = {editor = ["vim", "code"], system = ["linux", "mac"]}
profile = "strict"
[metrics.word]
description = "Last word"
encoding = "bloom"
profile = "strict"
segments = {version = ["1", "2"]}
[metrics.old]
description = "A question of the past"
encoding = "boolean"
profile = "strict"
expires = 2020-12-31
"""
"""Metrics of all encodings: one without a listed value, and one that has ended."""


def add_metrics(tool: Tool) -> None:
    """Add `MORE_METRICS` to the registry, each with an owner, an epoch and an expiry day."""
    text = tool.registry.read_text(encoding="utf-8").replace("total = 48", "total = 480")
    for entry in MORE_METRICS.split("\n[")[1:]:
        expires = "" if "expires" in entry else "expires = 2099-12-31\n"
        text += f'\n[{entry}\nowner = "a@example.org"\nepoch = "quarter"\n{expires}'
    tool.registry.write_text(text, encoding="utf-8")


@pytest.mark.slow
def test_preview_shows_every_question(tool: Tool, capsys: pytest.CaptureFixture[str]) -> None:
    """`preview` has an example of each metric with its value, or the reason why it has none.

    A person agrees to all metrics. The preview once showed the metric of the commands only. The
    bits of an example are a valid report of the metric.
    """
    add_metrics(tool)
    host = tool.host(Host)
    assert manage(host, ["preview"], []) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Nothing waits. For each question, an example of what a device")
    headings = [line for line in lines[1:-2] if not line.startswith("{")]
    assert headings == [
        'command: Which commands and options of mytool are used. If "--verbose" is recorded:',
        'plugins: Installed plugins. If "git" is recorded:',
        'start_seconds: Seconds of a start. If "0.5" is recorded:',
        'dark: Dark appearance. If "true" is recorded:',
        'setup: Editor and system. If "vim | linux" is recorded:',
        "word: Last word. No example is shown, because the registry lists no value of it.",
        "old: A question of the past. Nothing is sent: the collection ended on 2020-12-31.",
    ]
    registry = Registry.load(tool.registry).in_segment({})
    bodies = [line.encode() for line in lines if line.startswith("{")]
    reports = [report for body in bodies for report in parse_upload(body, registry.lookup)[1]]
    names = ["command", "plugins", "start_seconds", "dark", "setup"]
    assert [report.metric for report in reports if isinstance(report, Report)] == names


@pytest.mark.slow
def test_preview_of_a_waiting_report_shows_the_other_questions(
    tool: Tool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A metric with a waiting report has its bytes, and each of the others has an example."""
    tool.add_theme()
    host = open_host(tool, now="2026-12-30T12:00:00")
    host.record_and_send("build")
    assert manage(host, ["preview"], []) == 0
    first, body, second, heading, example, ids, last = capsys.readouterr().out.splitlines()
    assert first == "This goes to the collector, each line as an upload of its own:"
    assert body.encode() in peek(tool.folder).bodies
    assert second.startswith("Nothing else waits. An example of what a device would send")
    assert heading == 'theme: Light or dark appearance. If "light" is recorded:'
    assert '"metric":"theme"' in example
    assert ids.startswith("The id is random and new for each upload")
    assert last.startswith("What anybody could learn")


@pytest.mark.slow
def test_view_writes_a_page_that_only_the_user_can_read(tool: Tool) -> None:
    """The page has a section for each kind of data, and its folder is private to the user.

    It names the collector, and has the numbers of `status`. Once it named no collector.
    """
    tool.agree()
    tool.run("build")
    page = Path(tool.run("telemetry", "view", "--no-browser").strip())
    text = page.read_text(encoding="utf-8")
    for title in ("Recorded", "Sent", "Would be sent", "Privacy loss", "What is collected"):
        assert f"<h2>{title}</h2>" in text
    assert "http://127.0.0.1:9" in text
    assert "0 reports sent, " in text
    assert page.parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("command", ["off", "reset"])
def test_an_erasure_erases_the_pages_of_view(
    tool: Tool, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """`off` and `reset` erase the page of `view`, and no page of another program.

    Once the page, with all sent uploads, stayed in the folder for temporary files.
    """
    host = open_host(tool)
    mine, other = (write_page(name, "<p>uploads") for name in ("mytool", "mytool-other"))
    try:
        assert manage(host, [command], []) == 0
        assert not mine.parent.exists()
        assert other.exists()
    finally:
        assert erase_pages("mytool-other") == []
    # This device has never reported, so it has reserved nothing.
    assert "Erased. Only your answer is kept." in capsys.readouterr().out


def test_status_names_the_metrics_without_room_and_the_others(
    tool: Tool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A metric without room in the budget is named, and so are those that are still recorded.

    Once the status began with "Nothing more is recorded this year", and another metric was.
    """
    host = open_host(tool, now="2026-06-22T12:00:00")
    host.record_and_send("build")
    # The budget has room for both metrics. A later version changes the categories of the second
    # metric, which then needs another 8 nats.
    text = tool.registry.read_text(encoding="utf-8").replace("total = 48", "total = 56")
    tool.registry.write_text(text + THEME, encoding="utf-8")
    host.agree()
    with host.open() as client:
        client.record("theme", "dark")
    changed = tool.registry.read_text(encoding="utf-8").replace('["light", "dark"]', '["x", "y"]')
    tool.registry.write_text(changed, encoding="utf-8")
    assert manage(host, ["status"], []) == 0
    output = capsys.readouterr().out
    assert "Nothing more is recorded for theme this year" in output
    assert "The budget has room for command." in output


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "cp437", "shift_jis"])
def test_characters_that_a_terminal_lacks_are_escaped(tool: Tool, encoding: str) -> None:
    """A description with a letter that the terminal lacks is printed, with an escape."""
    text = tool.registry.read_text(encoding="utf-8")
    tool.registry.write_text(text.replace("are used", "are used \u0133"), "utf-8")
    output = tool.run("telemetry", "on", env={"PYTHONIOENCODING": encoding})
    assert "\\u0133" in output
    assert read_consent(str(tool.folder)).word == "yes"


@pytest.mark.parametrize("word", ["log", "preview", "on"])
def test_a_reader_that_has_ended_is_no_failure(tool: Tool, word: str) -> None:
    """`telemetry log | head -1` ends without a message, with the exit code that shells expect.

    The reader of the pipe has ended before the command writes.
    """
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = subprocess.run(
        tool.command("telemetry", word),
        stdin=subprocess.DEVNULL,
        stdout=write_end,
        stderr=subprocess.PIPE,
        env=tool.build_environment({}),
        text=True,
        check=False,
    )
    os.close(write_end)
    assert (process.returncode, process.stderr) == (141, "")


def test_a_closed_output_is_no_failure(
    tool: Tool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that has closed its standard output may still call a command."""
    stream = io.StringIO()
    stream.close()
    with monkeypatch.context() as program:
        program.setattr(sys, "stdout", stream)
        assert manage(open_host(tool), ["preview"], []) == 0
        sys.stdout.close()  # the command has put a stream to nowhere in its place
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("n_devices", "has_warning"), [("300", True), ("12800", False)])
def test_init_says_which_total_another_list_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], n_devices: str, has_warning: bool
) -> None:
    """`init` warns that the budget has room for one list of categories, and names the program.

    The release of one more command silenced every device until January. A list of candidates may
    change at any time. Public pages have the name of the program in their titles.
    """
    registry = tmp_path / "metrics.toml"
    host = Host("mytool", registry=registry, collector=None, folder=tmp_path / "device")
    words = ["init", "--owner", "a@example.org", "--devices", n_devices]
    assert manage(host, words, ["build", "check"]) == 0
    warning = "If a later registry has others, give it total = 96, or devices"
    assert (warning in capsys.readouterr().out) is has_warning
    assert Registry.load(registry).program == "mytool"


@pytest.mark.slow
def test_init_writes_a_section_for_the_readme(tool: Tool, tmp_path: Path) -> None:
    """`init` appends a section to the README. A second `init` replaces the section only."""
    readme = tmp_path / "README.md"
    readme.write_text("# My tool\n\nIt builds.")
    tool.run("telemetry", "init", "--readme", str(readme))
    first_text = readme.read_text()
    assert first_text.startswith("# My tool\n\nIt builds.\n\n## Telemetry\n")
    assert "`mytool telemetry off`" in first_text
    readme.write_text(f"{first_text}\n## License\n")
    tool.registry.write_text(tool.registry.read_text().replace('  "check",\n', ""))
    assert "lacks check." in tool.run("telemetry", "init", "--readme", str(readme))
    second_text = readme.read_text()
    assert "check" in first_text
    assert "check" not in second_text
    assert second_text.count("## Telemetry") == 1
    assert second_text.endswith("\n\n## License\n")


def test_init_refuses_a_wrong_address(tool: Tool, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong address of the collector is refused by `init`, because runs print no failure."""
    host = tool.host(Host, collector="telemetry.example.org")
    assert manage(host, ["init", "--owner", "a@example.org"], ["build", "check"]) == 1
    assert "collector must be an https address" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "text", "reason"),
    [
        ("--expires", "2026-06-21", "--expires must be a day that is not over, got 2026-06-21"),
        ("--expires", "2026-06-22", ""),
        ("--devices", "-5", "it must be a number of devices, got '-5'"),
        ("--devices", "9" * 5000, "it must be a number of devices"),
        ("--devices", "12800", ""),
    ],
)
def test_init_refuses_a_registry_that_could_record_nothing(
    tool: Tool, capsys: pytest.CaptureFixture[str], option: str, text: str, reason: str
) -> None:
    """`init` refuses an end in the past and a negative number of devices, and writes no registry.

    It once wrote both. Programs then shipped the registry, asked for consent, and recorded nothing.
    """
    host = open_host(tool, now="2026-06-22T12:00:00")
    tool.registry.unlink()
    words = ["init", "--owner", "a@example.org", f"{option}={text}"]
    # argparse ends the program for a wrong number.
    with contextlib.suppress(SystemExit):
        assert manage(host, words, ["build", "check"]) == (1 if reason else 0)
    assert reason in capsys.readouterr().err
    assert tool.registry.exists() is (not reason)


def test_status_states_that_the_collection_has_ended(
    tool: Tool, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the last day of the metric, `status` and `on` state that nothing is recorded."""
    last_day = Registry.load(tool.registry)["command"].expires
    host = open_host(tool, now=f"{last_day}T12:00:00")
    assert manage(host, ["status"], []) == manage(host, ["on"], []) == 0
    assert "ended" not in capsys.readouterr().out
    host.clock.advance(days=1)  # type: ignore[attr-defined]
    assert manage(host, ["status"], []) == 0
    ended = "Nothing more is recorded for command: the collection has ended."
    assert ended in capsys.readouterr().out
    assert manage(host, ["on"], []) == 0
    assert "It has expired: nothing is collected any more." in capsys.readouterr().out


@pytest.mark.parametrize("command", ["init", "preview", "view"])
@pytest.mark.parametrize(
    ("replaced", "replacement", "reason"),
    [
        ("[metrics.command]", "[metrics.page]", "must have a metric named 'command', got page"),
        ('encoding = "onehot"', 'encoding = "bloom"', "the metric 'command' must list names"),
    ],
)
def test_a_registry_of_other_means_is_refused(
    tool: Tool,
    capsys: pytest.CaptureFixture[str],
    command: str,
    replaced: str,
    replacement: str,
    reason: str,
) -> None:
    """A registry that does not list uses is refused with a message. It once ended in a traceback.

    A maker may write the registry by hand, or pass the registry of another program.
    """
    text = tool.registry.read_text()
    assert replaced in text
    text = re.sub(r"(?s)categories = \[.*?\]\n", "", text) if "bloom" in replacement else text
    tool.registry.write_text(text.replace(replaced, replacement))
    words = [command, "--no-browser"] if command == "view" else [command]
    assert manage(open_host(tool), words, ["build", "check"]) == 1
    assert reason in capsys.readouterr().err


def test_init_keeps_a_readme_that_is_no_text(
    tool: Tool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A README in another encoding than UTF-8 is named, and stays as it is."""
    readme = tmp_path / "README.md"
    readme.write_bytes(b"# \xdcbersicht\n")
    assert manage(open_host(tool), ["init", "--readme", str(readme)], ["build"]) == 1
    assert f"mytool telemetry: {readme}, line 1: " in capsys.readouterr().err
    assert readme.read_bytes() == b"# \xdcbersicht\n"


def test_init_keeps_the_line_ends_of_a_readme(tool: Tool, tmp_path: Path) -> None:
    """A README with the line ends of Windows keeps them, and has one section after two runs."""
    readme = tmp_path / "README.md"
    readme.write_bytes(b"# My tool\r\n\r\nIt builds.\r\n")
    host = open_host(tool)
    for _ in range(2):
        assert manage(host, ["init", "--readme", str(readme)], ["build"]) == 0
    data = readme.read_bytes()
    assert data.startswith(b"# My tool\r\n\r\nIt builds.\r\n\r\n## Telemetry\r\n")
    assert data.count(b"\n") == data.count(b"\r\n")
    assert data.count(b"## Telemetry") == 1


@pytest.mark.slow
def test_init_writes_categories_for_few_devices(tool: Tool) -> None:
    """For 300 devices, `init` writes a metric whose categories are the listed names.

    Other names are not counted, and the output states this. A new registry also needs an owner.
    """
    tool.registry.unlink()
    assert "--owner must be given" in tool.run("telemetry", "init", code=1)
    output = tool.run("telemetry", "init", "--owner", "a@example.org", "--devices", "300")
    assert "Unlisted commands and options are not counted: that needs --devices 12800" in output
    assert Registry.load(tool.registry)["command"].params.encoding == "onehot"


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "cohorts"), [(12_799, 1), (12_800, 64), (10**6, 128)])
def test_init_writes_a_list_for_many_devices(tool: Tool, devices: int, cohorts: int) -> None:
    """From 12,800 devices a month on, `init` writes a metric that also counts unlisted names.

    The names of the program are then a list of candidates, and a device reports any name, also the
    name of a plugin. A fifth of the devices reports the first three letters of a name. A collector
    releases the sum of a cohort only if the cohort has enough reports. 12,800 devices are the
    convention for this: a fifth of them gives 20 reports to each of 128 cohorts.

    The number of cohorts is smaller for fewer devices: each cohort must expect 30 reports, which is
    three times the `min_cohort` of a registry. The margin is for a wrong guess of the devices.
    """
    names = Registry.load(tool.registry)["command"].params.categories
    tool.registry.unlink()
    words = ("telemetry", "init", "--owner", "a@example.org", "--devices", str(devices))
    output = tool.run(*words)
    registry = Registry.load(tool.registry)
    metric = registry["command"]
    assert registry.total == sum(cost.total for cost in registry.reserved) == 48
    assert metric.params.m == cohorts
    if cohorts == 1:
        assert metric.params.categories == names
        assert "not counted" in output
        return
    assert metric.listed == names
    assert metric.params == dataclasses.replace(
        Params.profile("once"), m=cohorts, insecure=True, interval="epoch", epoch="month"
    )
    assert [part.name for part in metric.parts] == ["prefix:3", "whole"]
    assert cohorts * 30 <= metric.smallest_part * devices
    assert "not counted" not in output
    assert get_encoder(metric.params).is_representable("plugin-of-somebody")
    tool.registry.write_text(tool.registry.read_text().replace('  "check",\n', ""))
    assert "lacks check. Add them to its candidates." in tool.run("telemetry", "init")
    assert '"metric":"command"' in tool.run("telemetry", "preview")


@pytest.mark.slow
def test_init_states_which_options_an_existing_registry_contradicts(tool: Tool) -> None:
    """The registry does not change, and options that agree with it are not mentioned."""
    before = tool.registry.read_text()
    output = tool.run(
        *("telemetry", "init", "--owner", "b@example.org", "--expires", "2040-01-01"),
        *("--devices", "20000"),
    )
    assert "--owner b@example.org is ignored (its owner is a@example.org)" in output
    assert "--expires 2040-01-01 is ignored (it expires on " in output
    assert "--devices 20000 is ignored" in output
    assert tool.registry.read_text() == before
    expires = str(Registry.load(tool.registry)["command"].expires)
    # The registry of `tool` was written without --devices, so unlisted names are not counted. The
    # same holds for 9 devices, so the option agrees with the registry.
    equal_options = ("--owner", "a@example.org", "--expires", expires, "--devices", "9")
    assert "ignored" not in tool.run("telemetry", "init", *equal_options)


@pytest.mark.slow
def test_a_program_without_its_registry_does_nothing(tool: Tool) -> None:
    """A program whose registry is missing prints its own output. The person's consent stays."""
    tool.agree()
    tool.registry.unlink()
    assert tool.run("build") == "built\n"
    assert "ships no registry" in tool.run("telemetry", "status")
    assert [path.name for path in tool.folder.iterdir()] == ["answer"]


@pytest.mark.slow
def test_a_damaged_folder_does_not_disturb_the_program(tool: Tool) -> None:
    """The command prints its own output only; `status` names the problem."""
    tool.agree()
    (tool.folder / "device").write_text("a file in the device's place")
    assert tool.run("build") == "built\n"
    assert "It cannot work now" in tool.run("telemetry", "status")


@pytest.mark.slow
def test_a_failing_command_keeps_its_exit_code(tool: Tool) -> None:
    """A command that fails keeps its exit code, and telemetry prints nothing."""
    tool.agree()
    assert tool.run("fail", code=3) == ""


@pytest.mark.parametrize(
    "text",
    ["", "yes", "yes 1\x00", "maybe 20000", "\xff", "yes x", "yes 99999999", "yes " + "9" * 5000],
)
def test_an_unreadable_response_is_no_consent(tmp_path: Path, text: str) -> None:
    """A file that is no valid response is no consent, and the question is not shown again.

    The person may have refused. A valid line has a word and days, as numbers of days since 1970:
    day 20000 is in 2024. On day 30000, in 2052, the question is still not shown.
    """
    (tmp_path / "answer").write_text(text, encoding="latin-1")
    consent = read_consent(str(tmp_path))
    assert consent.word != "yes"
    assert not consent.may_ask(30000)


@pytest.mark.parametrize(
    "consent",
    [
        Consent("yes", days=(20000,), metrics=("command", "more")),
        Consent("asked", days=(1, 2)),
    ],
)
def test_a_consent_is_read_as_it_was_written(tmp_path: Path, consent: Consent) -> None:
    """`read_consent` returns the written response. Its new folder is private to the user."""
    folder = tmp_path / "new" / "folder"
    write_consent(str(folder), consent)
    assert read_consent(str(folder)) == consent
    assert folder.stat().st_mode & 0o077 == 0
