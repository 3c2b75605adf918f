"""Programs of client/HOSTS.md: each of them, in its host, loses no report and sends none twice.

A metric has one report a day, however many events. So the programs record one metric after the
other, counted over all processes of a host, and each event has a report of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import plain_http
import pytest
from accepting_collector import AcceptingCollector, run_accepting_collector
from collectors import find_free_port
from devices import get_identity_folder, read_secret
from places import ROOT
from programs import wait_until
from rappor_client import Client, ClientOptions
from rappor_client.testing import peek
from readers import read_blocks
from tools import need

from rappor import Registry

PAGE = ROOT / "client" / "HOSTS.md"
METRICS = next(
    block.text for block in read_blocks(ROOT / "client" / "README.md") if block.language == "toml"
)
HEAD, THEME = METRICS.split("[metrics.theme]")
N_EVENTS = 40
"""Largest number of events of a host. Each event has a metric of its own."""
REGISTRY = HEAD.replace("total = 24", "total = inf") + "".join(
    f"[metrics.theme{i}]{THEME}" for i in range(N_EVENTS)
)
EVENTS = """
import os

def next_theme():
    # The number of an event is the length of a file that all processes append to.
    file = os.open({path!r}, os.O_APPEND | os.O_WRONLY)
    os.write(file, b"x")
    number = os.lseek(file, 0, os.SEEK_CUR)
    os.close(file)
    return f"theme{{number - 1}}"
"""
"""Module that returns the next metric. The number of events is the length of a file."""
PATIENCE = 60.0
"""Longest wait for the end of a host, in seconds. No host takes so long."""
DAY = 86_400.0
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


def read_section(heading: str) -> dict[str, str]:
    """Return the blocks of a section of the page by language."""
    return {
        block.language: block.text
        for block in read_blocks(PAGE)
        if re.findall(r"^## (.+)$", block.before, re.MULTILINE)[-1] == heading
    }


class Host:
    """A folder with the registry and the program of a section, and a collector."""

    def __init__(self, folder: Path, collector: AcceptingCollector, heading: str) -> None:
        self.folder = folder
        self.collector = collector
        self._blocks = read_section(heading)
        self.port = find_free_port()
        (folder / "metrics.toml").write_text(REGISTRY)
        program = self._blocks.get("python", "")
        assert 'record("theme", ' in program or not program
        for old, new in (
            ("https://telemetry.example.org", collector.url),
            ('record("theme", ', "record(events.next_theme(), "),
            ("from rappor_client import", "import events\nfrom rappor_client import"),
        ):
            program = program.replace(old, new)
        (folder / "events").touch()
        (folder / "events").chmod(0o666)  # another user may append, too
        (folder / "events.py").write_text(EVENTS.format(path=str(folder / "events")))
        (folder / "host.py").write_text(program)
        switches = {"RAPPOR_DISABLED", "DO_NOT_TRACK", "CI"}
        self.env = {name: text for name, text in os.environ.items() if name not in switches}

    def run(self, **more: str) -> str:
        """Run the program to its end; return its output."""
        ended = subprocess.run(
            [sys.executable, "host.py"],
            cwd=self.folder,
            env=self.env | more,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def start(self) -> subprocess.Popen[str]:
        """Start the program, with pipes for its input and output."""
        return subprocess.Popen(
            [sys.executable, "host.py"],
            cwd=self.folder,
            env=self.env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def replace_option(self, old: str, new: str) -> None:
        """Replace an option in the command of the section."""
        assert old in self._blocks["sh"]
        self._blocks["sh"] = self._blocks["sh"].replace(old, new)

    @contextlib.contextmanager
    def serving(self, module: str, *, may_hang: bool = False) -> Iterator[None]:
        """Run the command of the section while the block runs, and end it as a host does.

        With `may_hang`, a command that does not end within a minute is killed. Otherwise the test
        fails.
        """
        line = self._blocks["sh"].strip().replace(":8000", f":{self.port}")
        line = line.replace("--port 8000", f"--port {self.port}")
        *before, command = line.split(" && ")
        for setup in before:
            subprocess.run(shlex.split(setup), cwd=self.folder, check=True)
        words = [sys.executable, "-m", module, *shlex.split(command)[1:]]
        with (self.folder / "host.log").open("wb") as log:
            process = subprocess.Popen(words, cwd=self.folder, env=self.env, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                # A process that still ran would fail another test, too, by its ResourceWarning.
                process.kill()
                process.wait()
                if not may_hang:
                    raise

    def visit(self, n: int) -> None:
        """Load the site n times, each time over a connection of its own."""
        wait_until(self._has_recorded)
        for _ in range(n - 1):
            assert self._has_recorded()

    def _has_recorded(self) -> bool:
        """Return whether the site has responded and recorded."""
        with contextlib.suppress(OSError, httpx.TransportError):
            url = f"http://127.0.0.1:{self.port}/"
            return plain_http.get(url, timeout=10).text == "recorded\n"
        return False

    def open_device(self, folder: str = "device") -> Client:
        """Open the device of the host in this process. The clock of the client is a day ahead."""
        return Client.open(
            self.folder / folder,
            registry=self.folder / "metrics.toml",
            consent=True,
            collector=self.collector.url,
            options=ClientOptions(background=False, clock=lambda: time.time() + DAY),
        )

    def count_recorded(self, folder: str = "device") -> int:
        """Send all reports on the next day; return the number of recorded reports.

        Asserts that all of them arrived exactly once. A report whose response was lost with its
        process is sent again under the same id.
        """
        with self.open_device(folder) as client:
            wait_until(lambda: bool(client.flush(timeout=5.0)))
            n_recorded = client.event_counts()["recorded"]
        assert n_recorded == len(self.collector.reports)
        return n_recorded


MakeHost = Callable[[str], Host]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[MakeHost]:
    """A function that creates the host of a section."""
    with run_accepting_collector(Registry.loads(REGISTRY)) as collector:
        yield lambda heading: Host(tmp_path, collector, heading)


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--preload", "--max-requests 3"])
def test_gunicorn(host: MakeHost, option: str) -> None:
    """All workers are one device.

    Some end early, and some are not forked from the process that opened the device.
    """
    need("gunicorn")
    site = host("gunicorn, also with preload")
    site.replace_option("--preload", option)
    with site.serving("gunicorn"):
        site.visit(20)
    assert site.count_recorded() == 20


@pytest.mark.slow
def test_uvicorn_workers(host: MakeHost) -> None:
    """Workers with an event loop, which open the folder themselves, are one device.

    The device exists before. Otherwise one worker would create it under a lock, for which the other
    waits two seconds at most: on a busy machine the other was disabled, and recorded none of its
    visits. Programs that create a device together are in `test_two_instances`.
    """
    site = host("uvicorn workers, and any other event loop")
    site.open_device().close()
    with site.serving("uvicorn"):
        site.visit(20)
    assert site.count_recorded() == 20, (site.folder / "host.log").read_text()


@pytest.mark.slow
def test_celery(host: MakeHost) -> None:
    """The processes of a pool close the client when they end, here each after one task.

    The main process of Celery may hang at its end: it waits for a lock that an ended process of the
    pool held (in the pool of the package billiard). The client has no part in this.
    """
    need("celery")
    site = host("Celery")
    site.replace_option("--loglevel", "--max-tasks-per-child 1 --loglevel")
    with site.serving("celery", may_hang=True):
        wait_until(lambda: "ready." in (site.folder / "host.log").read_text())
        delay = "from host import client, work; [work.delay() for _ in range(8)]; client.close()"
        subprocess.run([sys.executable, "-c", delay], cwd=site.folder, env=site.env, check=True)
        wait_until(lambda: (site.folder / "host.log").read_text().count(" succeeded in ") == 8)
    assert site.count_recorded() == 8


@pytest.mark.slow
def test_frozen_process(host: MakeHost) -> None:
    """A process that is stopped at any time does not delay another process.

    No report is lost or sent twice.
    """
    site = host("A process that is frozen and thawed")
    with site.start() as frozen, site.start() as running:
        for i in range(8):
            for process in (frozen, running):
                assert process.stdin is not None
                process.stdin.write("event\n")
                process.stdin.flush()
            time.sleep(0.002 * i)
            frozen.send_signal(signal.SIGSTOP)
            assert running.stdout is not None
            assert running.stdout.readline() == "done\n"
            frozen.send_signal(signal.SIGCONT)
            assert frozen.stdout is not None
            assert frozen.stdout.readline() == "done\n"
        frozen.communicate()
        running.communicate()
    assert site.count_recorded() == 16


AS_ANOTHER_USER = """
import os
program = compile(open("host.py").read(), "host.py", "exec")
exec(program)  # loads all modules, which another user may not read here
os.setuid({user})
os.environ["STATE_DIRECTORY"] = "state"
exec(program)
"""
"""Runs the program of the host as root. It runs again as another user with another folder."""


@pytest.mark.slow
@pytest.mark.skipif(not IS_ROOT, reason="only root can give a folder to another user")
def test_dynamic_user(host: MakeHost, tmp_path: Path) -> None:
    """The device stays the same under another user id after systemd has changed the owner."""
    site = host("systemd with DynamicUser")
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    # Other users must be able to enter the folders above.
    for path in tmp_path.parents:
        if path.name.startswith(("pytest-", "popen-")):
            path.chmod(path.stat().st_mode | 0o011)
    secrets = set()
    for user in (64001, 64002):
        give(user, tmp_path, state, *state.rglob("*"))
        subprocess.run(
            [sys.executable, "-c", AS_ANOTHER_USER.format(user=user)],
            cwd=tmp_path,
            env=site.env | {"STATE_DIRECTORY": f"as_root_{user}"},
            check=True,
        )
        give(os.geteuid(), tmp_path, state, *state.rglob("*"))
        secrets.add(read_secret(state))
    assert len(secrets) == 1
    assert len(peek(state).pending_reports) == 2


def give(user: int, *paths: Path) -> None:
    """Give files to a user, as systemd does with the StateDirectory of a service."""
    for path in paths:
        os.chown(path, user, user)


def test_read_only_root(host: MakeHost) -> None:
    """On a read-only disk the program goes on, and prints why nothing is recorded."""
    printed = host("A read-only root").run().splitlines()
    assert printed[0] == "skipped: the device is disabled"
    # The reason ends with an error of the system, such as "Read-only file system (EROFS)".
    assert re.fullmatch(r"the folder cannot be used: .+ \(E[A-Z]+\)", printed[1])


@pytest.mark.slow
def test_fs_group(host: MakeHost, tmp_path: Path) -> None:
    """The client takes the permissions away that a mount has given to a group.

    The device stays the same.
    """
    site = host("Two instances of a desktop program")
    site.run()
    device = tmp_path / "device"
    secret = read_secret(device)
    for path in (device, *device.rglob("*")):
        # The mount lets the group read and write. New files of a folder get its group.
        path.chmod(path.stat().st_mode | (0o2070 if path.is_dir() else 0o060))
    site.run()
    assert read_secret(device) == secret
    assert site.count_recorded() == 20
    assert all(path.stat().st_mode & 0o077 == 0 for path in get_identity_folder(device).rglob("*"))


@pytest.mark.slow
def test_two_instances(host: MakeHost) -> None:
    """Two programs that run at once share one device."""
    site = host("Two instances of a desktop program")
    processes = [site.start() for _ in range(2)]
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    assert site.count_recorded() == 20


@pytest.mark.parametrize(("heading", "n"), [("A signal's handler", 20), ("asyncio", 1)])
def test_program_loses_nothing(heading: str, n: int, host: MakeHost) -> None:
    """No event is lost in a signal's handler inside of `record`, or at the end of an event loop."""
    site = host(heading)
    site.run()
    assert site.count_recorded() == n


@pytest.mark.parametrize("switch", ["RAPPOR_DISABLED", "DO_NOT_TRACK", "CI"])
def test_hosts_respect_the_environment(host: MakeHost, switch: str) -> None:
    """The programs of the page run under a disabling variable and record nothing."""
    site = host("Two instances of a desktop program")
    assert site.run(**{switch: "1"}) == f"the environment has {switch}=1\n"
    assert not get_identity_folder(site.folder / "device").exists()


def test_every_program_respects_the_environment() -> None:
    """All programs of the page use `respect_environment`."""
    programs = [block.text for block in read_blocks(PAGE) if block.language == "python"]
    assert len(programs) == 9
    assert all("respect_environment=True" in program for program in programs)
