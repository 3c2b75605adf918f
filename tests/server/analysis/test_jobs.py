"""Jobs: how far they are, how many an owner may have, and who cancels them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from rappor_server.analysis.jobs import Job, Jobs

from rappor.ground.errors import DecodeError


class Pool:
    """Runs a task by calling it; a task that waits does so until it is let go."""

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

    def start(self, task: Callable[[], Any], owner: str = "a") -> Job:
        """Start a job."""
        started: Any = task
        return self.jobs.start(
            started, owner=owner, metric="page", media_type="text/csv", on_end=self._end
        )

    def _end(self) -> None:
        self.n_ended += 1


def run(trial: Callable[[Trial], Awaitable[None]]) -> None:
    """Run a trial in an event loop of its own."""

    async def main() -> None:
        made = Trial()
        try:
            await trial(made)
        finally:
            made.jobs.close()

    asyncio.run(main())


async def turns() -> None:
    """Let everything that is ready in the event loop go on, several times over."""
    for _ in range(10):
        await asyncio.sleep(0)


def fail() -> bytes:
    """Be a task that has no answer."""
    raise DecodeError("no answer")


def test_a_job_waits_runs_and_ends() -> None:
    """Its step says how far it is; an error is kept as its end."""

    async def trial(made: Trial) -> None:
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

    run(trial)


def test_an_owner_has_one_job_at_a_time() -> None:
    """Another owner is not held up; a cancelled job makes room at once."""

    async def trial(made: Trial) -> None:
        first = made.start(lambda: b"")
        assert not made.jobs.may_start("a")
        assert made.jobs.may_start("b")
        await turns()
        made.jobs.cancel(first)
        assert made.jobs.may_start("a")
        await turns()
        assert (made.pool.n_cancelled, made.n_ended) == (1, 1)

    run(trial)


def test_who_stops_waiting_cancels_the_job() -> None:
    """The place is free as soon as the asker has hung up."""

    async def trial(made: Trial) -> None:
        job = made.start(lambda: b"")
        waiting = asyncio.create_task(made.jobs.wait(job, 60.0))
        await turns()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await turns()
        assert made.pool.n_cancelled == 1
        assert made.jobs.may_start("a")

    run(trial)
