"""The process that writes: it stores what a store does, whatever ends it, and ends by itself."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from collectors import TODAY, report_of, submission_of, total, upload_of
from rappor_server.errors import ConflictError, StoreError
from rappor_server.storage.database import migrate
from rappor_server.storage.store import Store
from rappor_server.storage.store_process import StoreProcess

from rappor.protocol.wire import Upload

_PARENT = """
import multiprocessing, sys
from rappor_server.storage.store_process import StoreProcess
store = StoreProcess(sys.argv[1])
print(multiprocessing.active_children()[0].pid, store.erase_traces(), flush=True)
input()
"""


@pytest.fixture
def address(tmp_path: Path) -> str:
    """The address of an empty SQLite database."""
    address = f"sqlite:///{tmp_path / 'counts.sqlite3'}"
    migrate(address)
    return address


@pytest.fixture
def store(address: str) -> Iterator[Store]:
    """A store in this process, to look at what was written."""
    with contextlib.closing(Store.open(address)) as opened:
        yield opened


@pytest.fixture
def apart(address: str) -> Iterator[StoreProcess]:
    """A process that writes into the store's database."""
    with contextlib.closing(StoreProcess(address)) as process:
        yield process


def commit(apart: StoreProcess, *bodies: bytes) -> list[bytes | ConflictError]:
    """Store uploads as one group."""
    return apart.commit([submission_of(body) for body in bodies], {}, today=TODAY)


def child() -> BaseProcess:
    """Return the process that writes."""
    (process,) = multiprocessing.active_children()
    return process


def end(process: BaseProcess, *, by: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal that ends a process, and wait for its end."""
    assert process.pid is not None
    os.kill(process.pid, by)
    until = time.monotonic() + 30
    while process.exitcode is None:  # the writer's thread may wait for it too
        assert time.monotonic() < until
        time.sleep(0.001)
    assert process.exitcode == -by


def test_answers_are_those_of_a_store(database: str) -> None:
    """New, repeated and contradicting uploads have the same answers; counts are in the database."""
    name = Upload.new_id()
    first, second = upload_of(upload_id=name), upload_of()
    other = upload_of(report_of(), report_of(), upload_id=name)
    answers = [submission_of(body).answer for body in (first, second)]
    migrate(database)
    with (
        contextlib.closing(StoreProcess(database)) as apart,
        contextlib.closing(Store.open(database)) as store,
    ):
        assert commit(apart, first, second) == answers
        again, conflict = commit(apart, first, other)
        assert total(store) == 2
    assert again == answers[0]
    assert isinstance(conflict, ConflictError)
    assert not conflict.retryable


def test_log_is_emptied_by_it(apart: StoreProcess, store: Store) -> None:
    """What was committed can be erased from the log as soon as nobody reads."""
    commit(apart, upload_of())
    assert apart.erase_traces()
    assert total(store) == 1


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
def test_another_one_goes_on(
    apart: StoreProcess, store: Store, by: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    """After its end the next group is stored by a new process, and a retry still counts once."""
    body = upload_of()
    first = commit(apart, body)
    before = child()
    end(before, by=by)
    assert commit(apart, body) == first
    commit(apart, upload_of())
    assert child().pid != before.pid
    assert total(store) == 2
    assert "writer ended" in caplog.messages


def test_group_under_way_is_stored_once(apart: StoreProcess, store: Store) -> None:
    """A process that is killed in the middle of a group leaves it to the next one."""
    commit(apart, upload_of())
    body = upload_of()
    answers: list[object] = []
    stored = threading.Thread(target=lambda: answers.extend(commit(apart, body)))
    before = child()
    assert before.pid is not None
    os.kill(before.pid, signal.SIGSTOP)
    stored.start()
    time.sleep(0.2)
    end(before)
    stored.join(60)
    assert answers == [submission_of(body).answer]
    assert total(store) == 2


def test_interrupt_is_left_to_the_parent(apart: StoreProcess, store: Store) -> None:
    """Ctrl-C reaches all processes of a terminal; the writer still stores what waits."""
    commit(apart, upload_of())
    process = child()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    commit(apart, upload_of())
    assert child().pid == process.pid
    assert total(store) == 2


def test_failures_are_store_errors(tmp_path: Path) -> None:
    """A database that is not there is an error that names its kind, and no file is made."""
    with contextlib.closing(StoreProcess(f"sqlite:///{tmp_path / 'none.sqlite3'}")) as apart:
        for _ in range(2):
            with pytest.raises(StoreError, match="schema"):
                commit(apart, upload_of())


def test_it_ends_with_its_parent(address: str) -> None:
    """Killing the parent leaves no process behind."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as parent:
        assert parent.stdout is not None
        pid, was_erased = parent.stdout.readline().split()
        assert was_erased == "True"
        parent.kill()
    until = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
