"""The process that writes: it stores what a store does, whatever ends it, and ends by itself."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from collectors import TODAY, report_of, submission_of, total, upload_of
from rappor_server.errors import ConflictError, StoreError
from rappor_server.storage.database import migrate
from rappor_server.storage.store import Store
from rappor_server.storage.store_process import StoreProcess
from sqlalchemy import text

from rappor.protocol.wire import Upload

_SECONDS = 60
_PARENT = """
import asyncio, datetime, multiprocessing, sys
from rappor_server.storage.store_process import StoreProcess

async def main():
    store = StoreProcess(sys.argv[1])
    await store.commit([], {}, today=datetime.date(2026, 11, 21))
    print(multiprocessing.active_children()[0].pid, flush=True)
    input()

asyncio.run(main())
"""


@pytest.fixture
def address(tmp_path: Path) -> str:
    """The address of an empty SQLite database."""
    address = f"sqlite:///{tmp_path / 'counts.sqlite3'}"
    migrate(address)
    return address


def run(address: str, trial: Callable[[StoreProcess], Awaitable[None]], **settings: Any) -> int:
    """Try a process that writes into a database; return how many reports are counted there.

    The event loop is of the kind that a collector has; others fail in other ways.
    """

    async def whole() -> None:
        process = StoreProcess(address, **settings)
        try:
            async with asyncio.timeout(_SECONDS):
                await trial(process)
        finally:
            await process.close()

    with asyncio.Runner(loop_factory=uvicorn.Config("").get_loop_factory()) as runner:
        runner.run(whole())
    with contextlib.closing(Store.open(address)) as store:
        return total(store)


async def commit(apart: StoreProcess, *bodies: bytes) -> list[bytes | ConflictError]:
    """Store uploads as one group."""
    return await apart.commit([submission_of(body) for body in bodies], {}, today=TODAY)


def child() -> BaseProcess:
    """Return the process that writes."""
    (process,) = multiprocessing.active_children()
    return process


def send(process: BaseProcess, number: signal.Signals) -> None:
    """Send a signal to a process."""
    assert process.pid is not None
    os.kill(process.pid, number)


async def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition comes true."""
    while not condition():
        await asyncio.sleep(0.005)


def test_answers_are_those_of_a_store(database: str) -> None:
    """New, repeated and contradicting uploads have the same answers; counts are in the database."""
    name = Upload.new_id()
    first, second = upload_of(upload_id=name), upload_of()
    other = upload_of(report_of(), report_of(), upload_id=name)
    answers = [submission_of(body).answer for body in (first, second)]
    migrate(database)

    async def trial(apart: StoreProcess) -> None:
        assert await commit(apart, first, second) == answers
        again, conflict = await commit(apart, first, other)
        assert again == answers[0]
        assert isinstance(conflict, ConflictError)
        assert not conflict.retryable

    assert run(database, trial) == 2


def test_log_of_sqlite_holds_nothing_after_a_moment(address: str, tmp_path: Path) -> None:
    """Once the readers of an earlier state have gone, the log is an empty file; again each time."""
    log = tmp_path / "counts.sqlite3-wal"

    async def trial(apart: StoreProcess) -> None:
        with contextlib.closing(Store.open(address)) as store:
            for _ in range(2):
                with store.engine.connect() as reader:
                    reader.execute(text("SELECT COUNT(*) FROM tally"))
                    await commit(apart, upload_of())
                    await asyncio.sleep(0.1)
                    assert log.stat().st_size > 0
                await wait_for(lambda: log.stat().st_size == 0)

    assert run(address, trial, trace_seconds=0.01) == 2


def test_log_of_sqlite_is_emptied_whoever_has_written(address: str, tmp_path: Path) -> None:
    """Who closes blocks or deletes what is old writes too, when perhaps no upload comes."""
    log = tmp_path / "counts.sqlite3-wal"

    async def trial(_apart: StoreProcess) -> None:
        with contextlib.closing(Store.open(address)) as other:
            for _ in range(3):
                other.commit([submission_of(upload_of())], {}, today=TODAY)
                await wait_for(lambda: log.stat().st_size == 0)

    assert run(address, trial, trace_seconds=0.01) == 3


def test_a_file_that_is_gone_is_not_made_anew(address: str, tmp_path: Path) -> None:
    """An empty file in its place would look like a database of nobody."""
    path = tmp_path / "counts.sqlite3"

    async def trial(apart: StoreProcess) -> None:
        await commit(apart, upload_of())
        await wait_for(lambda: Path(f"{path}-wal").stat().st_size == 0)
        path.rename(tmp_path / "moved")
        await asyncio.sleep(0.2)
        assert not path.exists()
        (tmp_path / "moved").rename(path)

    assert run(address, trial, trace_seconds=0.01) == 1


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
def test_another_one_goes_on(
    address: str, by: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    """After its end the next group is stored by a new process, and a retry still counts once."""
    body = upload_of()

    async def trial(apart: StoreProcess) -> None:
        first = await commit(apart, body)
        before = child()
        send(before, by)
        await wait_for(lambda: before.exitcode is not None)
        assert await commit(apart, body) == first
        await commit(apart, upload_of())
        assert child().pid != before.pid

    assert run(address, trial) == 2
    assert "writer ended" in caplog.messages


def test_group_under_way_is_stored_once(address: str) -> None:
    """A process that is killed in the middle of a group leaves it to the next one."""
    body = upload_of()

    async def trial(apart: StoreProcess) -> None:
        await commit(apart, upload_of())
        send(child(), signal.SIGSTOP)
        stored = asyncio.create_task(commit(apart, body))
        await asyncio.sleep(0.1)
        assert not stored.done()
        send(child(), signal.SIGKILL)
        assert await stored == [submission_of(body).answer]

    assert run(address, trial) == 2


def test_two_that_end_are_an_error(address: str, tmp_path: Path) -> None:
    """A group that two processes have not survived is given up; the next one is stored."""

    async def trial(apart: StoreProcess) -> None:
        await commit(apart, upload_of())
        with contextlib.closing(sqlite3.connect(tmp_path / "counts.sqlite3")) as other:
            other.execute("BEGIN IMMEDIATE")
            stored = asyncio.create_task(commit(apart, upload_of()))
            await asyncio.sleep(0)
            first = child()
            send(first, signal.SIGKILL)
            await wait_for(
                lambda: any(p.pid != first.pid for p in multiprocessing.active_children())
            )
            send(child(), signal.SIGKILL)
            with pytest.raises(StoreError, match="has ended") as caught:
                await stored
        assert caught.value.retryable
        await commit(apart, upload_of())

    assert run(address, trial) == 2


@contextlib.contextmanager
def many_descriptors(number: int) -> Iterator[None]:
    """Hold this many descriptors, as a collector does whose devices are connected."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2 * number), before[1]))
    with contextlib.ExitStack() as stack, Path(os.devnull).open() as nothing:
        for _ in range(number):
            stack.callback(os.close, os.dup(nothing.fileno()))
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_another_one_goes_on_beside_many_connections(address: str) -> None:
    """However large the number of its descriptor is."""

    async def trial(apart: StoreProcess) -> None:
        await commit(apart, upload_of())
        with many_descriptors(1100):
            send(child(), signal.SIGKILL)
            await commit(apart, upload_of())
            await commit(apart, upload_of())

    assert run(address, trial) == 3


def test_one_that_ends_while_nothing_comes_is_replaced(address: str, tmp_path: Path) -> None:
    """The next one empties the log that it has left, although no upload comes."""
    log = tmp_path / "counts.sqlite3-wal"

    async def trial(apart: StoreProcess) -> None:
        with contextlib.closing(Store.open(address)) as store:
            with store.engine.connect() as reader:
                reader.execute(text("SELECT COUNT(*) FROM tally"))
                await commit(apart, upload_of())
                before = child()
                send(before, signal.SIGKILL)
                await wait_for(lambda: before.exitcode is not None)
            assert log.stat().st_size > 0
            await apart.rest()
            assert child().pid != before.pid
            await wait_for(lambda: log.stat().st_size == 0)

    assert run(address, trial, trace_seconds=0.01) == 1


def test_one_that_ends_when_it_starts_waits_for_an_upload(address: str) -> None:
    """A process that cannot start is not started again and again while nothing comes."""

    async def trial(apart: StoreProcess) -> None:
        send(child(), signal.SIGKILL)
        await apart.ready()
        assert not multiprocessing.active_children()
        await apart.rest()
        assert not multiprocessing.active_children()
        await commit(apart, upload_of())

    assert run(address, trial) == 1


def test_interrupt_is_left_to_the_parent(address: str) -> None:
    """Ctrl-C reaches all processes of a terminal; the writer still stores what waits."""

    async def trial(apart: StoreProcess) -> None:
        await commit(apart, upload_of())
        process = child()
        send(process, signal.SIGINT)
        await commit(apart, upload_of())
        assert child().pid == process.pid

    assert run(address, trial) == 2


def test_failures_are_store_errors(tmp_path: Path) -> None:
    """A database without its tables is an error each time, until it has them."""
    address = f"sqlite:///{tmp_path / 'none.sqlite3'}"

    async def trial(apart: StoreProcess) -> None:
        for _ in range(2):
            with pytest.raises(StoreError, match="schema"):
                await commit(apart, upload_of())
        migrate(address)
        await commit(apart, upload_of())

    assert run(address, trial) == 1


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
        pid = parent.stdout.readline().strip()
        parent.kill()
    until = time.monotonic() + _SECONDS
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
