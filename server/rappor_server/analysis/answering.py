"""Questions of the pages: answered from the database, else made once, whichever process is asked.

An answer is known by a digest of its question (`PageTask.key`). Whoever asks first makes it; all
others see how far it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from rappor_server.analysis import kept_answers
from rappor_server.analysis.kept_answers import KeptAnswer
from rappor_server.analysis.making import Making
from rappor_server.analysis.page_tasks import PARTS, PageTask

NIGHT: Final = ""
"""The owner of answers that nobody has asked for yet."""

_MOST_AT_NIGHT: Final = 2
_UNAVAILABLE: Final = 500
"""From this status on a failure says nothing about the question."""


class Answers:
    """The answers of all pages, as one process sees them; for the event loop's thread."""

    def __init__(self, making: Making) -> None:
        """Make answers as others of this process are made."""
        self._making = making
        self._prepared: dict[str, str] = {}

    async def find(self, task: PageTask[Any]) -> KeptAnswer | None:
        """Return the answer of a question as it stands, None if nobody has asked it."""
        return await self._find(await self._making.store(task.key))

    def may_ask(self, owner: str) -> bool:
        """Return whether an owner may ask a new question."""
        return self._making.jobs.may_start(owner)

    @property
    def is_busy(self) -> bool:
        """Whether as many answers are being made as nobody should add to without being asked."""
        return len(self._making.under_way) >= _MOST_AT_NIGHT

    def under_way(self, owner: str) -> list[str]:
        """Return the addresses of the questions whose answers are being made for an owner."""
        every = self._making.under_way.values()
        return [each.address for each in every if each.owner == owner and each.address]

    async def ask(
        self, task: PageTask[Any], *, owner: str, address: str = "", wait: float = 0.0
    ) -> KeptAnswer | None:
        """Return an answer; if there is none, begin to make it and wait at most `wait` seconds.

        At night nothing is asked again that has failed lately.
        """
        key = await self._making.store(task.key)
        found = await self._find(key, is_night=owner == NIGHT)
        if found is not None:
            return found
        if await self._making.ask(kept_answers.claim, key, task.metric.name):
            job = self._making.jobs.start(
                task, owner=owner, metric=task.metric.name, media_type=PARTS
            )
            await asyncio.wait({self._making.follow(key, job, address=address)}, timeout=wait)
        return await self._find(key)

    async def files(self, found: KeptAnswer) -> dict[str, bytes]:
        """Return the files of an answer by their names."""
        files: dict[str, bytes] = await self._making.store(kept_answers.files, found.key)
        return files

    async def cancel(self, task: PageTask[Any]) -> None:
        """Stop making an answer, in whichever process."""
        key = await self._making.store(task.key)
        await self._making.store(kept_answers.cancel, key)
        self._making.stop(key)

    async def prepare(self, tasks: Iterable[PageTask[Any]]) -> None:
        """Make answers that nobody has asked for yet, one after another.

        What was prepared is not looked up again until its question changes.
        """
        for task in tasks:
            name, question = task.metric.name, repr(task)
            if self._prepared.get(name) == question:
                continue
            found = await self.ask(task, owner=NIGHT)
            if found is not None and found.key in self._making.under_way:
                await asyncio.wait({self._making.under_way[found.key].task})
                found = await self._find(found.key, is_night=True)
            if found is not None and found.state != "running" and found.status < _UNAVAILABLE:
                self._prepared[name] = question

    async def _find(self, key: bytes, *, is_night: bool = False) -> KeptAnswer | None:
        limit = kept_answers.KNOWN_SECONDS if is_night else kept_answers.FAILED_SECONDS
        found: KeptAnswer | None = await self._making.ask(
            kept_answers.find, key, failed_seconds=limit
        )
        return found
