"""The parent of several workers: what it notes down of them, without any process."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, cast

import pytest
from collectors import REGISTRY
from rappor_server.input_files import InputFiles
from rappor_server.prometheus import shared_by_workers
from rappor_server.serving import Sockets
from rappor_server.settings import Settings
from rappor_server.storage.database import utc_today
from rappor_server.supervisor import Supervisor, _Worker

FAR = 1e9
"""Seconds: later than any test."""


class Stuck:
    """A process that goes on until it is killed."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def terminate(self) -> None:
        """Ignore the signal."""
        self.told.append("terminate")

    def join(self, timeout: float | None = None) -> None:
        """Wait, but not here."""
        assert timeout is not None or "kill" in self.told

    def is_alive(self) -> bool:
        """Return whether nobody has killed it yet."""
        return "kill" not in self.told

    def kill(self) -> None:
        """End."""
        self.told.append("kill")


class Ended(Stuck):
    """A process that has ended by itself."""

    exitcode = 1

    def join(self, timeout: float | None = None) -> None:
        """Be there already."""

    def is_alive(self) -> bool:
        """Tell that it is not."""
        return False


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    """One of two workers, neither of which is started."""
    path = tmp_path / "metrics.toml"
    path.write_text(REGISTRY)
    (tmp_path / "pages.txt").write_text("a\n")
    settings = Settings(
        registry=str(path), workers=2, admin="127.0.0.1:1", database="postgresql://nobody@nowhere/x"
    )
    with socket.socket() as public, socket.socket() as admin:
        inputs = InputFiles.read(settings, today=utc_today())
        found = Supervisor(settings, inputs, Sockets(public=public, admin=admin))
        for worker in found._workers:
            worker.not_before = time.monotonic() + FAR
        yield found


def link(worker: _Worker) -> Connection[Any, Any]:
    """Give a worker its end of a pipe, and return the other one."""
    worker.link, other = Pipe()
    return other


def end(worker: _Worker) -> None:
    """Let a worker's process have ended, and take it away."""
    link(worker).close()
    worker.process = cast("SpawnProcess", Ended())
    assert worker.clear() == 1


def test_who_ends_before_it_is_ready_waits_longer_each_time() -> None:
    """At most half a minute; one that was ready begins anew."""
    worker = _Worker(0)
    for pause in (0.5, 1, 2, 4, 8, 16, 30, 30):
        before = time.monotonic()
        end(worker)
        assert before + pause <= worker.not_before <= time.monotonic() + pause
    assert worker.n_failures == 8
    worker.is_ready = True
    end(worker)
    assert worker.n_failures == 0


def test_a_worker_that_is_heard_has_failed_no_time_in_a_row(supervisor: Supervisor) -> None:
    """All are ready when the last one has told it."""
    first, second = supervisor._workers
    for worker, is_all in ((first, False), (second, True)):
        worker.n_failures = 4
        link(worker).send(supervisor._inputs.digest)
        supervisor._hear(worker)
        assert (worker.n_failures, worker.is_ready) == (0, True)
        assert supervisor._was_ready is is_all


def test_a_collector_fails_when_no_worker_starts_and_not_before(supervisor: Supervisor) -> None:
    """One that still may start keeps the others' failures from ending all."""
    read, write = socket.socketpair()
    first, second = supervisor._workers
    with read, write:
        write.send(b"\0")  # as a signal does: the first look is at once
        first.n_failures = 5
        timer = threading.Timer(0.2, lambda: supervisor._wanted.append(signal.SIGTERM))
        timer.start()
        assert supervisor._watch(read.fileno()) == 0
        timer.join()
        second.n_failures = 5
        assert supervisor._watch(read.fileno()) == 1


def test_a_reload_reaches_every_worker_or_none(
    supervisor: Supervisor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Files that are wrong are sent to nobody; who does not confirm good ones in time is named."""
    others = [link(worker) for worker in supervisor._workers]
    before = supervisor._inputs
    (tmp_path / "metrics.toml").write_text("nonsense [")
    supervisor._reload()
    assert supervisor._inputs is before
    assert not any(other.poll() for other in others)
    (tmp_path / "metrics.toml").write_text(REGISTRY.replace("[metrics.old]", "[metrics.new]"))
    supervisor._reload()
    assert [other.recv() for other in others] == [supervisor._inputs] * 2
    assert supervisor._inputs.digest != before.digest
    first, second = supervisor._workers
    others[0].send(supervisor._inputs.digest)
    others[1].send(before.digest)
    supervisor._hear(first)
    supervisor._hear(second)
    assert (first.told_at, second.told_at is None) == (None, False)
    supervisor._check_reload()
    assert second.told_at is not None
    second.told_at -= 31
    supervisor._check_reload()
    (told,) = [each for each in caplog.records if each.message == "reload incomplete"]
    assert told.__dict__["fields"] == {"workers": [1]}
    assert second.told_at is None


def test_the_operators_address_is_answered_by_one_worker(supervisor: Supervisor) -> None:
    """It knows all estimates under way."""
    found = [supervisor._own_sockets(worker).admin for worker in supervisor._workers]
    assert [each is None for each in found] == [False, True]


def test_a_worker_that_does_not_end_is_killed(supervisor: Supervisor) -> None:
    """It was asked to end before."""
    stuck = [Stuck() for _ in supervisor._workers]
    for worker, process in zip(supervisor._workers, stuck, strict=True):
        worker.process = cast("SpawnProcess", process)
    supervisor._end()
    assert [each.told for each in stuck] == [["terminate", "kill"]] * 2


MEMORY = Path("/dev/shm")  # noqa: S108 - looked at only


@pytest.mark.skipif(not MEMORY.exists(), reason="needs files in memory")
def test_counters_of_workers_need_no_disk() -> None:
    """A full disk would end every process that counts."""
    with shared_by_workers():
        assert Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]).parent == MEMORY
