"""The pool of worker processes: cancelled tasks end, and no other task ends with them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from rappor_server.queries.worker import Limits, Pool
from rappor_server.storage.database import sqlite_url
from sleeping import Sleep
from sqlalchemy import Engine

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("database", ["sqlite"], indirect=True)]


@pytest.fixture
async def pool(engine: Engine) -> AsyncIterator[Pool]:
    """A pool of one process."""
    database = sqlite_url(Path(str(engine.url.database)))
    made = Pool(
        "trial", database=database, size=1, limits=Limits(seconds=60, n_bytes=10**9), max_waiting=9
    )
    yield made
    made.close()


async def run_loop(n: int) -> None:
    """Run n turns of the event loop."""
    for _ in range(n):
        await asyncio.sleep(0)


@pytest.mark.slow
@pytest.mark.parametrize("n_turns", range(1, 4))
async def test_cancelled_call_ends_no_other_task(pool: Pool, n_turns: int) -> None:
    """The call is cancelled in different turns of the loop, also after its result has come."""
    await pool.run(Sleep(0))
    first, second = (asyncio.create_task(pool.run(Sleep(i, seconds=0.1 * i))) for i in range(2))
    await run_loop(2)
    time.sleep(0.1)  # the answer comes while the loop does not turn
    await run_loop(n_turns)
    first.cancel()
    assert await second == 1


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, 0.1])
async def test_task_cancelled_during_the_start_does_not_run(
    pool: Pool, tmp_path: Path, seconds: float
) -> None:
    """The process, which is still starting, is free for the next task."""
    path = tmp_path / "begun"
    task = asyncio.create_task(pool.run(Sleep(0, path=path)))
    await asyncio.sleep(seconds)
    task.cancel()
    assert await pool.run(Sleep(1)) == 1
    assert not path.exists()
