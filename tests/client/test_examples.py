"""The programs in client/examples do what they say: a day's report leaves on the next day.

So the tests run them on several days.
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
from accepting_collector import AcceptingCollector, accepting
from devices import read_secret
from places import ROOT
from programs import on_day
from rappor_client.person.contents import Contents
from rappor_client.testing import peek

from rappor import Registry

EXAMPLES = ROOT / "client" / "examples"
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens pages without the proxy that the environment may name."""


@pytest.fixture
def collector() -> Iterator[AcceptingCollector]:
    """A collector for the examples' registry."""
    with accepting(Registry.load(EXAMPLES / "metrics.toml")) as server:
        yield server


def command_on_day(days: int, name: str, *words: str) -> list[str]:
    """Return the command of an example whose clock is ahead by some days."""
    program = "import runpy, sys\ndel sys.argv[0]\nrunpy.run_path(sys.argv[0], run_name='__main__')"
    return [sys.executable, "-c", on_day(days, program), str(EXAMPLES / name), *words]


class Tool:
    """The command-line tool, at a home and a collector of its own."""

    def __init__(self, home: Path, collector: str) -> None:
        self.home = home
        switches = {"RAPPOR_DISABLED", "DO_NOT_TRACK", "CI"}  # the tool respects them
        env = {name: text for name, text in os.environ.items() if name not in switches}
        self._env = env | {"MYTOOL_HOME": str(home), "MYTOOL_COLLECTOR": collector}

    def run(self, *words: str, day: int = 0, stdin: int = subprocess.DEVNULL) -> str:
        """Run one command some days from now, and return what it prints."""
        ended = subprocess.run(
            command_on_day(day, "command_line.py", *words),
            stdin=stdin,
            stdout=subprocess.PIPE,
            env=self._env,
            text=True,
            check=True,
        )
        return ended.stdout


def test_tool_without_an_answer_keeps_nothing(
    tmp_path: Path, collector: AcceptingCollector
) -> None:
    """A script is not asked, and what is not answered is a no."""
    tool = Tool(tmp_path / "home", collector.url)
    assert tool.run("search", "duckduckgo") == "Searching with duckduckgo ...\n"
    assert not tool.home.exists()
    assert collector.reports == []


def test_shipped_tool_reports_once_a_day(tmp_path: Path, collector: AcceptingCollector) -> None:
    """However often it is used: one report is held, and leaves when the day is over."""
    tool = Tool(tmp_path / "home", collector.url)
    tool.run("telemetry", "on")
    days = set()
    for _ in range(2):
        days.add(datetime.datetime.now(datetime.UTC).date())
        tool.run("search", "duckduckgo")
        days.add(datetime.datetime.now(datetime.UTC).date())
    (held,) = peek(tool.home / "telemetry").pending_reports
    assert held.metric == "search_engine"
    assert len(collector.reports) < len(days)  # two, if this test met midnight


def test_tool_records_sends_shows_and_erases(tmp_path: Path, collector: AcceptingCollector) -> None:
    """With consent, a day's report has left when the next day's run ends; "off" leaves a number."""
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


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="the system has no terminals")
@pytest.mark.parametrize(("typed", "n_reports"), [(b"y\n", 1), (b"\n", 0)], ids=["yes", "enter"])
def test_tool_asks_on_a_terminal_once(
    typed: bytes, n_reports: int, tmp_path: Path, collector: AcceptingCollector
) -> None:
    """The answer counts from the first value on, and is not asked for again."""
    tool = Tool(tmp_path / "home", collector.url)
    terminal, stdin = os.openpty()
    os.write(terminal, typed)
    assert "[y/N]" in tool.run("search", "qwant", stdin=stdin)
    assert "[y/N]" not in tool.run("search", "qwant", day=1, stdin=stdin)
    os.close(terminal)
    os.close(stdin)
    assert len(collector.reports) == n_reports


class Site:
    """The web application, served by a process of its own."""

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
        with DIRECT.open(request, timeout=30) as answer:
            return str(answer.read().decode())

    def send(self) -> None:
        """Run the sending job on the next day."""
        command = command_on_day(1, "web_application.py", "send")
        subprocess.run(command, env=self._env, check=True)

    def contents(self) -> list[Contents]:
        """Return what the people's devices hold."""
        return [peek(folder) for folder in self.devices.glob("*")]

    def close(self) -> None:
        """End the server."""
        self._server.terminate()
        self._server.communicate()


@pytest.fixture
def site(tmp_path: Path, collector: AcceptingCollector) -> Iterator[Site]:
    """The web application, with the collector above."""
    site = Site(tmp_path / "site", collector.url)
    yield site
    site.close()


def test_every_person_is_a_device(site: Site, collector: AcceptingCollector) -> None:
    """Who agreed has a secret, a ledger and reports of their own; who did not has nothing."""
    for person, consent in (("anna", "yes"), ("ben", "yes"), ("cleo", "no"), ("dan", None)):
        assert "May we count" in site.visit(person)
        if consent is not None:
            assert "May we count" not in site.visit(person, consent=consent)
        for theme in ("dark", "light"):
            site.visit(person, theme=theme)
    contents = site.contents()
    assert [one.has_secret for one in contents] == [True, True]
    assert [len(one.pending_reports) for one in contents] == [1, 1]
    assert collector.reports == []  # a request only records
    site.send()
    assert len(collector.reports) == 2
    contents = site.contents()
    assert len({read_secret(folder) for folder in site.devices.glob("*")}) == 2
    assert [one.spent.metrics["theme"].scopes for one in contents] == [1, 1]
    assert "Somebody who thought it" in site.visit("anna")


def test_person_may_withdraw_and_delete(site: Site) -> None:
    """A withdrawal leaves the loss already spent, the end of the account nothing at all."""
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


def test_nobody_is_served_without_signing_in(site: Site) -> None:
    """There is no device for a visitor whom nobody knows."""
    with pytest.raises(urllib.error.HTTPError, match="401"):
        DIRECT.open(site.url, timeout=30)
    assert not site.devices.exists()
