"""Answers that this process makes, while the database says to all others how far they are."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from rappor_server import logs
from rappor_server.analysis import kept_answers
from rappor_server.analysis.jobs import Job, Jobs
from rappor_server.analysis.page_tasks import PARTS, Drawn
from rappor_server.errors import StoreError
from rappor_server.problems import problem_of
from rappor_server.storage.store import Store

_TELL_SECONDS: Final = 1.0

LookUp = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderWay:
    """An answer that is being made: for whom, where a page of it is, and the task."""

    owner: str
    address: str
    task: asyncio.Task[None]


class Making:
    """The answers that a process makes, by their keys; for the event loop's thread."""

    def __init__(self, jobs: Jobs, store: Store, look_up: LookUp) -> None:
        """Make nothing yet; `look_up` asks the database in a thread."""
        self.jobs = jobs
        self._store = store
        self._look_up = look_up
        self.under_way: dict[bytes, UnderWay] = {}

    async def ask(self, ask: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        """Ask the database about its answers as they stand now."""
        return await self._look_up(ask, self._store, *arguments, now=time.time(), **more)

    async def store(self, ask: Callable[..., Any], *arguments: Any) -> Any:
        """Ask the database what does not depend on the time."""
        return await self._look_up(ask, self._store, *arguments)

    def follow(self, key: bytes, job: Job, *, address: str = "") -> asyncio.Task[None]:
        """Tell the database about a job, whose row was claimed, and keep what it comes to."""
        task = asyncio.create_task(self._follow(key, job))
        self.under_way[key] = UnderWay(owner=job.owner, address=address, task=task)
        task.add_done_callback(lambda _: self.under_way.pop(key, None))
        return task

    def stop(self, key: bytes) -> None:
        """Stop making an answer, if this process does."""
        if key in self.under_way:
            self.under_way[key].task.cancel()

    async def close(self) -> None:
        """Stop making answers."""
        for each in list(self.under_way.values()):
            each.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await each.task

    async def _follow(self, key: bytes, job: Job) -> None:
        """Tell how far a job is until it ends, or its row is gone; then keep its end."""
        try:
            while not await self.jobs.wait(job, _TELL_SECONDS):
                if not await self.ask(kept_answers.tell, key, job.step):
                    return
            await self._keep(key, job)
        except StoreError as error:
            logs.event("answer lost", level=logging.WARNING, reason=str(error))
        finally:
            self.jobs.cancel(job)

    async def _keep(self, key: bytes, job: Job) -> None:
        if job.result is not None:
            await self.ask(kept_answers.keep, key, _drawn(job.media_type, job.result))
        else:
            problem = problem_of(job.reason())
            await self.ask(kept_answers.fail, key, problem.detail, problem.status.value)


def _drawn(media_type: str, result: bytes) -> Drawn:
    """Return a result as a page; else as a file, which its media type names."""
    if media_type == PARTS:
        return msgspec.msgpack.decode(result, type=Drawn)
    return Drawn(page=b"", files={media_type: result})
