"""Questions of the pages: answered from the database, else made once, whichever process is asked.

An answer is known by a digest of its question (`PageTask.key`). Whoever asks first makes it; all
others see how far it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import msgspec

from rappor.ground.errors import RapporError
from rappor_server import logs
from rappor_server.analysis import kept_answers
from rappor_server.analysis.jobs import Job, Jobs
from rappor_server.analysis.kept_answers import KeptAnswer
from rappor_server.analysis.page_tasks import PARTS, Drawn, PageTask
from rappor_server.errors import StoreError
from rappor_server.problems import problem_of
from rappor_server.storage.store import Store

NIGHT: Final = ""
"""The owner of answers that nobody has asked for yet."""

_TELL_SECONDS: Final = 1.0
_MOST_AT_NIGHT: Final = 2

LookUp = Callable[..., Awaitable[Any]]


class Answers:
    """The answers of all pages, as one process sees them; for the event loop's thread."""

    def __init__(
        self,
        jobs: Jobs,
        store: Store,
        look_up: LookUp,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Make answers as jobs; `look_up` asks the database in a thread."""
        self._jobs = jobs
        self._store = store
        self._look_up = look_up
        self._clock = clock
        self._made: dict[bytes, tuple[str, str, asyncio.Task[None]]] = {}

    async def find(self, task: PageTask[Any]) -> KeptAnswer | None:
        """Return the answer of a question as it stands, None if nobody has asked it."""
        key = await self._look_up(task.key, self._store)
        found: KeptAnswer | None = await self._find(key)
        return found

    def may_ask(self, owner: str) -> bool:
        """Return whether an owner may ask a new question."""
        return self._jobs.may_start(owner)

    @property
    def is_busy(self) -> bool:
        """Whether as many answers are being made as nobody should add to without being asked."""
        return len(self._made) >= _MOST_AT_NIGHT

    def under_way(self, owner: str) -> list[str]:
        """Return the addresses of the questions whose answers are being made for an owner."""
        return [address for own, address, _ in self._made.values() if own == owner]

    async def ask(
        self, task: PageTask[Any], *, owner: str, address: str = "", wait: float = 0.0
    ) -> KeptAnswer | None:
        """Return an answer; if there is none, begin to make it and wait at most `wait` seconds."""
        key = await self._look_up(task.key, self._store)
        found = await self._find(key)
        if found is not None:
            return found
        claimed = await self._look_up(
            kept_answers.claim, self._store, key, task.metric.name, now=self._clock()
        )
        if claimed:
            making = asyncio.create_task(self._make(key, task, owner))
            self._made[key] = owner, address, making
            making.add_done_callback(lambda _: self._made.pop(key, None))
            await asyncio.wait({making}, timeout=wait)
        return await self._find(key)

    async def files(self, found: KeptAnswer) -> dict[str, bytes]:
        """Return the files of an answer by their names."""
        files: dict[str, bytes] = await self._look_up(kept_answers.files, self._store, found.key)
        return files

    async def cancel(self, task: PageTask[Any]) -> None:
        """Stop making an answer, in whichever process."""
        key = await self._look_up(task.key, self._store)
        await self._look_up(kept_answers.cancel, self._store, key)
        if key in self._made:
            self._made[key][2].cancel()

    async def prepare(self, tasks: Iterable[PageTask[Any]]) -> None:
        """Make answers that nobody has asked for yet, one after another."""
        for task in tasks:
            found = await self.ask(task, owner=NIGHT)
            if found is not None and found.state == "running" and found.key in self._made:
                await asyncio.wait({self._made[found.key][2]})

    async def close(self) -> None:
        """Stop making answers."""
        for _, _, making in list(self._made.values()):
            making.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await making

    async def _find(self, key: bytes) -> KeptAnswer | None:
        found: KeptAnswer | None = await self._look_up(
            kept_answers.find, self._store, key, now=self._clock()
        )
        return found

    async def _make(self, key: bytes, task: PageTask[Any], owner: str) -> None:
        """Make an answer, tell how far it is, and keep it; stop if it is cancelled elsewhere."""
        job = self._jobs.start(task, owner=owner, metric=task.metric.name, media_type=PARTS)
        try:
            while job.ended is None:
                await self._jobs.wait(job, _TELL_SECONDS)
                self._jobs.find(job.id, owner)  # somebody waits for it
                if job.ended is None and not await self._tell(key, job):
                    return
            await self._keep(key, job)
        except StoreError as error:
            logs.event("answer lost", level=logging.WARNING, reason=str(error))
        finally:
            self._jobs.cancel(job)

    async def _tell(self, key: bytes, job: Job) -> bool:
        step = job.step or "waiting for a process"
        known: bool = await self._look_up(
            kept_answers.tell, self._store, key, step, now=self._clock()
        )
        return known

    async def _keep(self, key: bytes, job: Job) -> None:
        if job.result is not None:
            drawn = msgspec.msgpack.decode(job.result, type=Drawn)
            await self._look_up(kept_answers.keep, self._store, key, drawn, now=self._clock())
        else:
            problem = problem_of(job.error or RapporError("the analysis was stopped"))
            await self._look_up(
                kept_answers.fail,
                self._store,
                key,
                problem.detail,
                problem.status.value,
                now=self._clock(),
            )
