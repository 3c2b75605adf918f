"""Programs in client/examples, each run on several days.

`command_line.py` is a tool that asks for consent on a terminal. `web_application.py` is a site
whose signed-in persons are one device each. The report of a day leaves on the next day, so one day
would show nothing.
"""

from __future__ import annotations

import base64
import datetime
import os
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from accepting_collector import AcceptingCollector, run_accepting_collector
from devices import read_secret
from places import ROOT
from programs import shift_clock
from rappor_client.person.contents import Contents
from rappor_client.testing import peek

from rappor import Registry

EXAMPLES = ROOT / "client" / "examples"
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens pages without the proxy that the environment may name."""


@pytest.fixture
def collector() -> Iterator[AcceptingCollector]:
    """A collector for the registry of the examples."""
    with run_accepting_collector(Registry.load(EXAMPLES / "metrics.toml")) as server:
        yield server


def command_on_day(days: int, name: str, *words: str) -> list[str]:
    """Return the command of an example whose clock is ahead by some days."""
    program = "import runpy, sys\ndel sys.argv[0]\nrunpy.run_path(sys.argv[0], run_name='__main__')"
    return [sys.executable, "-c", shift_clock(days, program), str(EXAMPLES / name), *words]


class Tool:
    """The command-line tool, with a home folder and a collector of its own."""

    def __init__(self, home: Path, collector: str) -> None:
        self.home = home
        switches = {"RAPPOR_DISABLED", "DO_NOT_TRACK", "CI"}  # the tool respects them
        env = {name: text for name, text in os.environ.items() if name not in switches}
        self._env = env | {"MYTOOL_HOME": str(home), "MYTOOL_COLLECTOR": collector}

    def run(self, *words: str, day: int = 0, stdin: int = subprocess.DEVNULL) -> str:
        """Run a command some days from now, and return its output."""
        ended = subprocess.run(
            command_on_day(day, "command_line.py", *words),
            stdin=stdin,
            stdout=subprocess.PIPE,
            env=self._env,
            text=True,
            check=True,
        )
        return ended.stdout


def test_tool_without_consent_records_nothing(
    tmp_path: Path, collector: AcceptingCollector
) -> None:
    """Without a terminal the tool does not ask, and records nothing."""
    tool = Tool(tmp_path / "home", collector.url)
    assert tool.run("search", "duckduckgo") == "Searching with duckduckgo ...\n"
    assert not tool.home.exists()
    assert collector.reports == []


@pytest.mark.slow
def test_shipped_tool_reports_once_a_day(tmp_path: Path, collector: AcceptingCollector) -> None:
    """Two uses of the tool on a day lead to one pending report, which leaves when the day is over.

    Midnight may pass during the test. Then the report of the first day may have left.
    """
    tool = Tool(tmp_path / "home", collector.url)
    tool.run("telemetry", "on")
    days = set()
    for _ in range(2):
        days.add(datetime.datetime.now(datetime.UTC).date())
        tool.run("search", "duckduckgo")
        days.add(datetime.datetime.now(datetime.UTC).date())
    (pending,) = peek(tool.home / "telemetry").pending_reports
    assert pending.metric == "search_engine"
    assert len(collector.reports) < len(days)  # fewer than the days that the test has seen


@pytest.mark.slow
def test_tool_records_sends_shows_and_erases(tmp_path: Path, collector: AcceptingCollector) -> None:
    """With consent the report of a day leaves in the run of the next day.

    "telemetry off" leaves only the reserved nats.
    """
    tool = Tool(tmp_path / "home", collector.url)
    assert tool.run("telemetry", "on") == "Telemetry is on.\n"
    for day in range(3):
        tool.run("search", "duckduckgo", day=day)
    assert [report.metric for report in collector.reports] == ["search_engine"] * 2
    assert "search_engine: epsilon = " in tool.run("telemetry", "show", day=2)
    assert tool.run("telemetry", "off", day=2) == "Telemetry is off, and nothing is kept.\n"
    contents = peek(tool.home / "telemetry")
    assert not contents.has_secret
    assert contents.sent_uploads == ()
    assert contents.queued_reports == ()
    assert sum(contents.spent.reserved.values()) > 2
    tool.run("search", "duckduckgo", day=3)
    assert len(collector.reports) == 2


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "openpty"), reason="the system has no terminals")
@pytest.mark.parametrize(("typed", "n_reports"), [(b"y\n", 1), (b"\n", 0)], ids=["yes", "enter"])
def test_tool_asks_on_a_terminal_once(
    typed: bytes, n_reports: int, tmp_path: Path, collector: AcceptingCollector
) -> None:
    """The tool asks once on a terminal. The consent counts from the first value on.

    With "y", the value of the first day is sent in the run of the next day. Enter means no.
    """
    tool = Tool(tmp_path / "home", collector.url)
    terminal, stdin = os.openpty()
    os.write(terminal, typed)
    assert "[y/N]" in tool.run("search", "qwant", stdin=stdin)
    assert "[y/N]" not in tool.run("search", "qwant", day=1, stdin=stdin)
    os.close(terminal)
    os.close(stdin)
    assert len(collector.reports) == n_reports


class Site:
    """The web application in a process of its own."""

    def __init__(self, home: Path, collector: str) -> None:
        self.devices = home / "devices"
        self._env = {**os.environ, "MYSITE_HOME": str(home), "MYSITE_COLLECTOR": collector}
        self._server = subprocess.Popen(
            command_on_day(0, "web_application.py", "serve", "0"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self._env,
            text=True,
        )
        assert self._server.stdout is not None
        self.url = self._server.stdout.readline().split()[-1]

    def visit(self, person: str, **form: str) -> str:
        """Load the page as a signed-in person, or post its form."""
        login = base64.b64encode(f"{person}:any".encode()).decode()
        request = urllib.request.Request(  # noqa: S310 - the test's own server
            self.url,
            data=urllib.parse.urlencode(form).encode() if form else None,
            headers={"Authorization": f"Basic {login}"},
        )
        with DIRECT.open(request, timeout=30) as response:
            return str(response.read().decode())

    def send(self) -> None:
        """Run the sending job on the next day."""
        command = command_on_day(1, "web_application.py", "send")
        subprocess.run(command, env=self._env, check=True)

    def contents(self) -> list[Contents]:
        """Return the contents of all devices."""
        return [peek(folder) for folder in self.devices.glob("*")]

    def close(self) -> None:
        """End the server."""
        self._server.terminate()
        self._server.communicate()


@pytest.fixture
def site(tmp_path: Path, collector: AcceptingCollector) -> Iterator[Site]:
    """A running web application with the collector."""
    site = Site(tmp_path / "site", collector.url)
    yield site
    site.close()


@pytest.mark.slow
def test_every_person_is_a_device(site: Site, collector: AcceptingCollector) -> None:
    """Each person who agreed has a secret, a budget and reports, and no other person has any."""
    for person, consent in (("anna", "yes"), ("ben", "yes"), ("cleo", "no"), ("dan", None)):
        assert "May we count" in site.visit(person)
        if consent is not None:
            assert "May we count" not in site.visit(person, consent=consent)
        for theme in ("dark", "light"):
            site.visit(person, theme=theme)
    contents = site.contents()
    assert [device.has_secret for device in contents] == [True, True]
    assert [len(device.pending_reports) for device in contents] == [1, 1]
    assert collector.reports == []  # a request only records
    site.send()
    assert len(collector.reports) == 2
    contents = site.contents()
    assert len({read_secret(folder) for folder in site.devices.glob("*")}) == 2
    assert [device.spent.metrics["theme"].scopes for device in contents] == [1, 1]
    assert "Somebody who thought it" in site.visit("anna")


def test_person_may_withdraw_and_delete(site: Site) -> None:
    """A withdrawal leaves the reserved nats, and a deleted account leaves nothing."""
    site.visit("anna", consent="yes")
    site.visit("anna", theme="dark")
    site.visit("anna", consent="no")
    (contents,) = site.contents()
    assert not contents.has_secret
    assert contents.queued_reports == ()
    assert sum(contents.spent.reserved.values()) > 0
    site.visit("anna", consent="yes")
    assert "deleted" in site.visit("anna", delete="yes")
    assert site.contents() == []
    assert "May we count" in site.visit("anna")


def test_site_needs_a_login(site: Site) -> None:
    """A visitor who is not signed in gets no page and no device."""
    with pytest.raises(urllib.error.HTTPError, match="401"):
        DIRECT.open(site.url, timeout=30)
    assert not site.devices.exists()
