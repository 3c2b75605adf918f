"""Jobs of one process: started for an owner, watched, cancelled."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rappor.ground.errors import RapporError
from rappor_server.analysis.worker import Pool, Task
from rappor_server.errors import StoreError


@dataclass(eq=False, kw_only=True)
class Job:
    """One question: who asked it, how far it is, and its result or error once it has ended."""

    id: str
    owner: str
    began: float
    """Seconds since 1970."""
    step: str = ""
    """Empty until a process answers it."""
    result: bytes | None = field(default=None, repr=False)
    error: RapporError | None = None

    def reason(self) -> RapporError:
        """Return why a job that has ended has no result."""
        return (self.error or StoreError("the analysis was stopped")).with_traceback(None)


class Jobs:
    """All jobs of a process; for the event loop's thread."""

    def __init__(self, pool: Pool, *, per_owner: int) -> None:
        """Run jobs in a pool, at most `per_owner` of one owner at a time."""
        self._pool = pool
        self._per_owner = per_owner
        self._running: dict[Job, asyncio.Task[None]] = {}

    def may_start(self, owner: str) -> bool:
        """Return whether an owner may start another job."""
        return sum(job.owner == owner for job in self._running) < self._per_owner

    def start(self, task: Task, *, owner: str, on_end: Callable[[], None] = lambda: None) -> Job:
        """Start a job; `may_start` says whether its owner may. `on_end` is called at any end."""
        job = Job(id=secrets.token_hex(16), owner=owner, began=time.time())
        self._running[job] = running = asyncio.create_task(self._run(job, task))
        running.add_done_callback(lambda _: on_end())
        return job

    async def _run(self, job: Job, task: Task) -> None:
        def tell(step: str) -> None:
            job.step = step

        try:
            job.result = await self._pool.run(task, tell)
        except RapporError as error:
            job.error = error
        finally:
            self._running.pop(job, None)

    async def wait(self, job: Job, seconds: float | None) -> bool:
        """Wait for the end of a job, so long or as long as it takes; return whether it has ended.

        Whoever leaves meanwhile cancels it.
        """
        if (task := self._running.get(job)) is None:
            return True
        try:
            return bool((await asyncio.wait({task}, timeout=seconds))[0])
        except asyncio.CancelledError:
            self.cancel(job)
            raise

    def cancel(self, job: Job) -> None:
        """End a job; its place is free at once."""
        if (task := self._running.pop(job, None)) is not None:
            task.cancel()

    def close(self) -> None:
        """Cancel all jobs."""
        self._pool.close()
        for job in list(self._running):
            self.cancel(job)
