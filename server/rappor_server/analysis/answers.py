"""Answers: each is made once, while the database tells every process how far it is.

A page's answer is known by a digest of its question (`PageTask.key`), a program's by the id of its
job and the token that has started it. Whoever asks first makes it; all others see how far it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import msgspec

from rappor_server import logs
from rappor_server.analysis import kept_answers
from rappor_server.analysis.answer_cache import key_of
from rappor_server.analysis.jobs import Job, Jobs
from rappor_server.analysis.kept_answers import KeptAnswer
from rappor_server.analysis.page_tasks import Drawn, PageTask
from rappor_server.errors import StoreError
from rappor_server.problems import problem_of

NIGHT: Final = ""
"""The owner of answers that nobody has asked for yet."""

_MOST_AT_NIGHT: Final = 2
_TELL_SECONDS: Final = 1.0

LookUp = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnderWay:
    """An answer that this process makes: for whom, where a page of it is, and the task."""

    owner: str
    address: str
    task: asyncio.Task[None]


class Answers:
    """The answers of pages and programs, as one process sees them; for the event loop's thread."""

    def __init__(self, jobs: Jobs, look_up: LookUp) -> None:
        """Make nothing yet; `look_up` asks the database in a thread."""
        self._jobs = jobs
        self._look_up = look_up
        self._under_way: dict[bytes, _UnderWay] = {}
        self._prepared: dict[str, str] = {}

    async def find(self, task: PageTask[Any]) -> KeptAnswer | None:
        """Return the answer of a page as it stands, None if nobody has asked it."""
        return await self._find(await self._look_up(task.key))

    @property
    def is_busy(self) -> bool:
        """Whether as many answers are being made as nobody should add to without being asked."""
        return len(self._under_way) >= _MOST_AT_NIGHT

    def under_way(self, owner: str) -> list[str]:
        """Return the addresses of the pages whose answers are being made for an owner."""
        every = self._under_way.values()
        return [each.address for each in every if each.owner == owner and each.address]

    async def ask(
        self, task: PageTask[Any], *, owner: str, address: str = "", wait: float = 0.0
    ) -> KeptAnswer | None:
        """Return a page's answer; if there is none, begin it and wait at most `wait` seconds.

        None if its owner has as many jobs as it may. At night nothing is asked again that has
        failed lately.
        """
        key = await self._look_up(task.key)
        found = await self._find(key, is_night=owner == NIGHT)
        if found is not None:
            return found
        began = time.time()
        if await self._ask(kept_answers.claim, key, task.metric.name, began=began):
            if owner != NIGHT and not self._jobs.may_start(owner):  # it has started one meanwhile
                await self._look_up(kept_answers.cancel, key)
                return None
            job = self._jobs.start(task, owner=owner)
            await asyncio.wait({self._follow(key, job, began, task, address)}, timeout=wait)
        return await self._find(key)

    async def cancel(self, task: PageTask[Any]) -> None:
        """Stop making a page's answer, in whichever process."""
        key = await self._look_up(task.key)
        await self._look_up(kept_answers.cancel, key)
        self._stop(key)

    async def prepare(self, tasks: Iterable[PageTask[Any]]) -> None:
        """Make answers of pages that nobody has asked for yet, one after another.

        What was prepared is not looked up again until its question changes.
        """
        for task in tasks:
            name, question = task.metric.name, repr(task)
            if self._prepared.get(name) == question:
                continue
            found = await self.ask(task, owner=NIGHT)
            if found is not None and found.key in self._under_way:
                await asyncio.wait({self._under_way[found.key].task})
                found = await self._find(found.key, is_night=True)
            if found is None or found.state == "running":
                continue
            if found.status < HTTPStatus.INTERNAL_SERVER_ERROR:  # else it may be another time
                self._prepared[name] = question

    async def hand_over(self, job: Job, *, metric: str, media_type: str) -> KeptAnswer:
        """Let every process see a program's job; its request does not wait any more."""
        key, now = _key_of_job(job.id, job.owner), time.time()
        try:
            await self._ask(kept_answers.claim, key, metric, began=job.began, is_programs=True)
        except StoreError:
            self._jobs.cancel(job)
            raise
        self._follow(key, job, job.began, media_type)
        return KeptAnswer(
            key=key, metric=metric, state="running", step=job.step, status=HTTPStatus.OK,
            began=job.began, seen=now, asked=now, page=None,
        )  # fmt: skip

    async def find_job(self, job_id: str, owner: str) -> KeptAnswer | None:
        """Return how far an owner's job is, None if there is none of this id any more."""
        found: KeptAnswer | None = await self._ask(
            kept_answers.find_asked, _key_of_job(job_id, owner)
        )
        return found

    async def forget(self, found: KeptAnswer) -> None:
        """Forget an answer; whichever process makes it stops."""
        self._stop(found.key)
        await self._look_up(kept_answers.forget, found.key)

    async def files(self, found: KeptAnswer) -> dict[str, bytes]:
        """Return the files of a page by their names, or a program's result by its media type."""
        files: dict[str, bytes] = await self._look_up(kept_answers.files, found.key)
        return files

    async def close(self) -> None:
        """Stop making answers."""
        for each in list(self._under_way.values()):
            each.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await each.task

    async def _ask(self, ask: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        """Ask the database about its answers as they stand now."""
        return await self._look_up(ask, *arguments, now=time.time(), **more)

    async def _find(self, key: bytes, *, is_night: bool = False) -> KeptAnswer | None:
        limit = kept_answers.KNOWN_SECONDS if is_night else kept_answers.FAILED_SECONDS
        found: KeptAnswer | None = await self._ask(kept_answers.find, key, failed_seconds=limit)
        return found

    def _follow(
        self, key: bytes, job: Job, began: float, what: PageTask[Any] | str, address: str = ""
    ) -> asyncio.Task[None]:
        """Tell the database about a job, whose row was claimed, and keep what it comes to.

        That is a page, or a program's result of this media type.
        """
        task = asyncio.create_task(self._tell(key, job, began, what))
        self._under_way[key] = _UnderWay(owner=job.owner, address=address, task=task)
        task.add_done_callback(lambda _: self._under_way.pop(key, None))
        return task

    async def _tell(self, key: bytes, job: Job, began: float, what: PageTask[Any] | str) -> None:
        """Tell how far a job is until it ends, or its row is gone; then keep its end.

        A page whose candidates were edited since its key was made is not kept.
        """
        try:
            while not await self._jobs.wait(job, _TELL_SECONDS):
                if not await self._ask(kept_answers.tell, key, job.step, began=began):
                    return
            if not (isinstance(what, str) or await self._look_up(what.has_key, key)):
                await self._look_up(kept_answers.cancel, key)
            elif job.result is not None:
                await self._ask(kept_answers.keep, key, _drawn(what, job.result))
            else:
                problem = problem_of(job.reason())
                reason = problem.detail, problem.status.value
                await self._ask(kept_answers.fail, key, *reason, began=began)
        except StoreError as error:
            logs.event("answer lost", level=logging.WARNING, reason=str(error))
        finally:
            self._jobs.cancel(job)

    def _stop(self, key: bytes) -> None:
        """Stop making an answer, if this process does."""
        if key in self._under_way:
            self._under_way[key].task.cancel()


def _key_of_job(job_id: str, owner: str) -> bytes:
    return key_of([b"analysis", job_id.encode(), owner.encode()])


def _drawn(what: PageTask[Any] | str, result: bytes) -> Drawn:
    """Return a result as a page; else as a file, which its media type names."""
    if isinstance(what, str):
        return Drawn(page=b"", files={what: result})
    return msgspec.msgpack.decode(result, type=Drawn)
