"""Estimates that take their time: started, looked at, cancelled, and kept for a while."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from rappor.ground.errors import RapporError
from rappor_server.analysis.worker import Pool, Task

State = Literal["waiting", "running", "done", "failed"]

_SWEEP_SECONDS: Final = 5.0
_KEPT_SECONDS: Final = 600.0
_FORGOTTEN_SECONDS: Final = 300.0
"""After how long a job that nobody asks about is cancelled."""
_KEPT_BYTES: Final = 64_000_000


@dataclass(eq=False, kw_only=True)
class Job:
    """One question: who asked it, how far it is, and its result or error once it has ended."""

    id: str
    owner: str
    metric: str
    media_type: str
    began: float
    asked: float
    step: str = ""
    ended: float | None = None
    result: bytes | None = field(default=None, repr=False)
    error: RapporError | None = None
    on_end: Callable[[], None] = field(default=lambda: None, repr=False)
    """Called once the job has ended, however it did."""

    @property
    def state(self) -> State:
        """How far the job is."""
        if self.ended is not None:
            return "done" if self.error is None else "failed"
        return "running" if self.step else "waiting"


class Jobs:
    """All jobs of a collector; for the event loop's thread."""

    def __init__(
        self, pool: Pool, *, per_owner: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Run jobs in a pool, at most `per_owner` of one owner at a time."""
        self._pool = pool
        self._per_owner = per_owner
        self._clock = clock
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._sweeper = asyncio.create_task(self._keep_sweeping())

    def may_start(self, owner: str) -> bool:
        """Return whether an owner may start another job."""
        return len(self.under_way(owner)) < self._per_owner

    def under_way(self, owner: str) -> list[Job]:
        """Return the jobs of an owner that have not ended."""
        return [self._jobs[each] for each in self._tasks if self._jobs[each].owner == owner]

    def start(
        self,
        task: Task,
        *,
        owner: str,
        metric: str,
        media_type: str,
        on_end: Callable[[], None] = lambda: None,
    ) -> Job:
        """Start a job; `may_start` says whether its owner may."""
        now = self._clock()
        job = Job(
            id=secrets.token_hex(16),
            owner=owner,
            metric=metric,
            media_type=media_type,
            began=now,
            asked=now,
            on_end=on_end,
        )
        self._jobs[job.id] = job
        self._tasks[job.id] = running = asyncio.create_task(self._run(job, task))
        running.add_done_callback(lambda _: job.on_end())
        return job

    async def _run(self, job: Job, task: Task) -> None:
        def tell(step: str) -> None:
            job.step = step

        try:
            job.result = await self._pool.run(task, tell)
        except RapporError as error:
            job.error = error.with_traceback(None)
        finally:
            job.ended = self._clock()
            self._tasks.pop(job.id, None)

    async def wait(self, job: Job, seconds: float | None) -> None:
        """Wait for the end of a job, so long or as long as it takes; whoever leaves cancels it."""
        if (task := self._tasks.get(job.id)) is None:
            return
        try:
            await asyncio.wait({task}, timeout=seconds)
        except asyncio.CancelledError:
            self.cancel(job)
            raise

    def find(self, job_id: str, owner: str) -> Job | None:
        """Return an owner's job, which counts as asked about."""
        job = self._jobs.get(job_id)
        if job is None or job.owner != owner:
            return None
        job.asked = self._clock()
        return job

    def seconds(self, job: Job) -> float:
        """Return for how long a job has run, or how long it took."""
        return (self._clock() if job.ended is None else job.ended) - job.began

    def cancel(self, job: Job) -> None:
        """End a job and forget it; its place is free at once."""
        self._jobs.pop(job.id, None)
        if (task := self._tasks.pop(job.id, None)) is not None:
            task.cancel()

    def close(self) -> None:
        """Cancel all jobs."""
        self._sweeper.cancel()
        self._pool.close()
        for job in list(self._jobs.values()):
            self.cancel(job)

    def sweep(self) -> None:
        """Cancel what nobody asks about, and forget old results, and the oldest of too many."""
        now = self._clock()
        for job in list(self._jobs.values()):
            idle = now - job.asked
            if idle > (_FORGOTTEN_SECONDS if job.ended is None else _KEPT_SECONDS):
                self.cancel(job)
        for job in list(self._superfluous()):
            self.cancel(job)

    def _superfluous(self) -> Iterator[Job]:
        """Yield the ended jobs beyond the bytes that are kept, the oldest first."""
        ended = [job for job in self._jobs.values() if job.result is not None]
        n_bytes = sum(len(job.result or b"") for job in ended)
        for job in ended[:-1]:
            if n_bytes <= _KEPT_BYTES:
                return
            n_bytes -= len(job.result or b"")
            yield job

    async def _keep_sweeping(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(_SWEEP_SECONDS)
                self.sweep()
