"""The pool of worker processes: cancelled tasks end, and no other task ends with them."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from rappor_server.base import processes
from rappor_server.queries.worker import Limits, Pool, _serve
from rappor_server.storage.database import sqlite_url
from sleeping import Sleep
from sqlalchemy import Engine

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("database", ["sqlite"], indirect=True)]


@pytest.fixture
async def pool(engine: Engine) -> AsyncIterator[Pool]:
    """A pool of one process."""
    database = sqlite_url(Path(str(engine.url.database)))
    worker_pool = Pool(
        "trial", database=database, size=1, limits=Limits(seconds=60, n_bytes=10**9), max_waiting=9
    )
    yield worker_pool
    worker_pool.close()


@pytest.mark.parametrize("n_tasks", [0, 1])
def test_worker_of_a_killed_parent_logs_no_fault(
    engine: Engine, capfd: pytest.CaptureFixture[str], n_tasks: int
) -> None:
    """A worker whose parent has closed the pipe ends with exit status 0 and logs nothing.

    A parent that is killed closes its end of the pipe. The worker notices this when it reports that
    it is ready, and with a task when it reports a step or the result.
    """
    database = sqlite_url(Path(str(engine.url.database)))
    connection, worker_end = multiprocessing.Pipe()
    limits = Limits(seconds=60, n_bytes=10**9)
    worker = processes.start_child(_serve, worker_end, "trial", database, limits, None)
    worker_end.close()
    for number in range(n_tasks):
        assert connection.recv() == "ready"
        connection.send(Sleep(number, seconds=0.1))
    connection.close()
    worker.join(60)
    assert (worker.exitcode, capfd.readouterr().err) == (0, "")


async def test_all_idle_processes_are_ended(engine: Engine) -> None:
    """`stop_idle` ends every process of the pool, and later tasks start processes again."""
    database = sqlite_url(Path(str(engine.url.database)))
    limits = Limits(seconds=60, n_bytes=10**9)
    pool = Pool("trial", database=database, size=2, limits=limits, max_waiting=9)
    other_processes = set(multiprocessing.active_children())
    for _ in range(2):
        results = await asyncio.gather(*(pool.run(Sleep(i, seconds=0.1)) for i in range(2)))
        assert results == [0, 1]
        assert len(set(multiprocessing.active_children()) - other_processes) == 2
        await pool.stop_idle()
        assert set(multiprocessing.active_children()) <= other_processes
    pool.close()


async def run_loop(n: int) -> None:
    """Run n turns of the event loop."""
    for _ in range(n):
        await asyncio.sleep(0)


@pytest.mark.slow
@pytest.mark.parametrize("n_turns", range(1, 4))
async def test_cancelled_call_ends_no_other_task(pool: Pool, n_turns: int) -> None:
    """A call that is cancelled in any turn of the event loop does not end the next task.

    `Sleep(i)` is a task that returns i. The first task has ended when it is cancelled, and the only
    process may already run the second task.
    """
    await pool.run(Sleep(0))
    first, second = (asyncio.create_task(pool.run(Sleep(i, seconds=0.1 * i))) for i in range(2))
    await run_loop(2)
    time.sleep(0.1)  # the result of the first task arrives while the event loop does not turn
    await run_loop(n_turns)
    first.cancel()
    assert await second == 1


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, 0.1])
async def test_task_cancelled_during_the_start_does_not_run(
    pool: Pool, tmp_path: Path, seconds: float
) -> None:
    """A task that is cancelled while its process starts does not run.

    The process is then free for the next task. A task that runs creates the file.
    """
    path = tmp_path / "begun"
    task = asyncio.create_task(pool.run(Sleep(0, path=path)))
    await asyncio.sleep(seconds)
    task.cancel()
    assert await pool.run(Sleep(1)) == 1
    assert not path.exists()
