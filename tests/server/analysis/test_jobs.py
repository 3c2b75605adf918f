"""Jobs: how far they are, how many an owner may have, and who cancels them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from rappor_server.analysis.jobs import Job, Jobs

from rappor.ground.errors import DecodeError

pytestmark = pytest.mark.anyio


class Pool:
    """Runs a task by calling it; a task that waits does so until it may go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.n_cancelled = 0

    async def run(self, task: Any, tell: Callable[[str], None]) -> Any:
        """Answer with what the task returns."""
        tell("decoding")
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.n_cancelled += 1
            raise
        return task()

    def close(self) -> None:
        """End nothing."""


class Trial:
    """Jobs over a pool."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.n_ended = 0
        self.jobs = Jobs(self.pool, per_owner=1)  # type: ignore[arg-type]

    def start(self, task: Any, owner: str = "a") -> Job:
        """Start a job."""
        return self.jobs.start(
            task, owner=owner, metric="page", media_type="text/csv", on_end=self._end
        )

    def _end(self) -> None:
        self.n_ended += 1


@pytest.fixture
async def made() -> AsyncIterator[Trial]:
    """Jobs, which end with the test."""
    trial = Trial()
    yield trial
    trial.jobs.close()


async def turns() -> None:
    """Let everything that is ready in the event loop go on, several times over."""
    for _ in range(10):
        await asyncio.sleep(0)


def fail() -> bytes:
    """Be a task that has no answer."""
    raise DecodeError("no answer")


async def test_a_job_waits_runs_and_ends(made: Trial) -> None:
    """Its step says how far it is; an error is kept as its end."""
    good, bad = made.start(lambda: b"done"), made.start(fail, "b")
    assert good.step == ""
    assert not await made.jobs.wait(good, 0.0)
    assert (good.step, good.result) == ("decoding", None)
    made.pool.go.set()
    assert await made.jobs.wait(good, 60.0)
    assert await made.jobs.wait(bad, 60.0)
    assert (good.result, good.error) == (b"done", None)
    assert (bad.result, str(bad.error)) == (None, "no answer")
    assert made.n_ended == 2


async def test_an_owner_has_one_job_at_a_time(made: Trial) -> None:
    """Another owner is not held up; a job that nobody waits for any more makes room at once."""
    first = made.start(lambda: b"")
    assert not made.jobs.may_start("a")
    assert made.jobs.may_start("b")
    await turns()
    made.jobs.cancel(first)
    assert made.jobs.may_start("a")
    await turns()
    assert (made.pool.n_cancelled, made.n_ended) == (1, 1)
    waiting = asyncio.create_task(made.jobs.wait(made.start(lambda: b""), 60.0))
    await turns()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await turns()
    assert made.pool.n_cancelled == 2
    assert made.jobs.may_start("a")
