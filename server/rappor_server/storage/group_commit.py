"""The one writer of a collector: concurrent uploads share a commit.

A task takes a group of the uploads that wait, adds it to the inbox and hands the results on. No
upload is answered before it is on the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, TypeVar

from rappor.protocol.params import Params
from rappor_server.base import logs
from rappor_server.base.errors import StoreError
from rappor_server.ingest.validate import Submission
from rappor_server.storage.inbox import Group, Inbox
from rappor_server.storage.record import Refusals, encode

Ticket = TypeVar("Ticket")
Result = bytes | StoreError

_IDLE_SECONDS: Final = 1.0
_GATHER_SECONDS: Final = 0.003
"""For which a group waits for more: a commit costs as much as reading ten uploads."""
_MOST_BYTES: Final = 2_000_000_000
"""What may wait in an inbox before uploads are turned away."""
_FREE_BYTES: Final = 64_000_000
"""Free beside what a fold needs, so that a full disk can be emptied."""


class Receiver:
    """Adds groups to an inbox by a thread of its own: the event loop goes on meanwhile.

    `waiting_bytes` and `waiting_reports` are what waits, as far as it is known.
    """

    def __init__(
        self,
        inbox: Inbox,
        *,
        fold_bytes: Callable[[int, int], int],
        today: Callable[[], datetime.date | None],
    ) -> None:
        """Turn uploads away while less is free than a fold of such bytes and reports takes."""
        self._inbox = inbox
        self._fold_bytes = fold_bytes
        self._today = today
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rappor-receiver")
        self.waiting_bytes = self.waiting_reports = 0

    async def commit(self, submissions: Sequence[Submission], refusals: Refusals) -> None:
        """Keep a group, on the disk when this returns; StoreError if that is not certain."""
        reports = [report for each in submissions for report in each.accepted]
        params = {each.fingerprint: each.params for each in reports}
        group = Group(self._today(), len(reports), encode(submissions, refusals))
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._append, group, params)

    def _append(self, group: Group, params: Mapping[str, Params]) -> None:
        """Add a group if a fold of all that waits still has room."""
        if self.waiting_bytes > _MOST_BYTES:
            raise StoreError("the inbox is full: uploads are not folded")
        needed = self._fold_bytes(self.waiting_bytes, self.waiting_reports) + _FREE_BYTES
        if self._inbox.free_bytes() < needed:
            raise StoreError("the disk is nearly full")
        self._inbox.append(group, {name: each.to_json() for name, each in params.items()})

    async def close(self) -> None:
        """Close the inbox."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._inbox.close)
        self._thread.shutdown()


class Writer(Generic[Ticket]):
    """A bounded queue of uploads before one store, in the event loop that it is made in.

    `commit` keeps a group of uploads with refusals of others. `deliver` is called with the tickets
    and results of a group, and `observe` with the seconds of a commit and its uploads.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[Submission], Refusals], Awaitable[None]],
        *,
        deliver: Callable[[Sequence[tuple[Ticket, Result]]], None],
        observe: Callable[[float, Sequence[Submission]], None],
        queue: int = 10_000,
        batch: int = 256,
        reports: int = 4096,
    ) -> None:
        """Start the task, with at most these uploads in the queue and in a group.

        None joins a group that has these reports: handing it over holds up the event loop.
        """
        self._store = commit
        self._deliver = deliver
        self._observe = observe
        self._most, self._batch, self._reports = queue, batch, reports
        self._queue: deque[tuple[Submission, Ticket]] = deque()
        self._refusals: Counter[tuple[str, str]] = Counter()
        self._wake = asyncio.Event()
        self._is_closed = False
        self._is_checked = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    def __len__(self) -> int:
        """Return how many uploads wait for a commit."""
        return len(self._queue)

    def submit(self, uploads: Sequence[tuple[Submission, Ticket]]) -> None:
        """Queue uploads; each ticket is delivered with the result of its commit.

        Raises a retryable StoreError if the queue has no room for all of them or is closed.
        """
        if self._is_closed or len(self._queue) + len(uploads) > self._most:
            raise StoreError("the queue of uploads is full")
        self._queue.extend(uploads)
        self._wake.set()

    def refuse(self, metric: str, reason: str) -> None:
        """Count an upload that was refused whole; the number is written with the next group."""
        self._refusals[metric, reason] += 1

    def drop(self, is_over: Callable[[Ticket], bool]) -> None:
        """Forget the queued uploads whose tickets nobody waits for: they would take memory."""
        self._queue = deque(each for each in self._queue if not is_over(each[1]))

    def check(self) -> None:
        """Commit soon, even if no upload waits: `observe` tells if that works."""
        self._is_checked = True
        self._wake.set()

    async def close(self) -> None:
        """Store or fail every upload that is queued, then end the task."""
        self._is_closed = True
        self._wake.set()
        await self._task

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            if not (self._queue or self._is_checked or self._is_closed):
                with contextlib.suppress(TimeoutError):  # refusals are to be written too
                    async with asyncio.timeout(_IDLE_SECONDS):
                        await self._wake.wait()
            if len(self._queue) < self._batch and not self._is_closed:
                await asyncio.sleep(_GATHER_SECONDS)
            is_checked, self._is_checked = self._is_checked, False
            group, refusals = self._take()
            if group or refusals or is_checked:
                await self._commit(group, refusals)
            elif self._is_closed:
                return

    def _take(self) -> tuple[list[tuple[Submission, Ticket]], Refusals]:
        group: list[tuple[Submission, Ticket]] = []
        n_reports = 0
        while self._queue and len(group) < self._batch and n_reports < self._reports:
            group.append(self._queue.popleft())
            n_reports += len(group[-1][0].accepted)
        refusals, self._refusals = self._refusals, Counter()
        return group, refusals

    async def _commit(self, group: list[tuple[Submission, Ticket]], refusals: Refusals) -> None:
        """Commit a group; no failure ends the task, because there is no other writer.

        A log or an error has the kind of what nobody has foreseen: its text may hold what was sent.
        """
        start = time.perf_counter()
        submissions = [submission for submission, _ in group]
        failure: StoreError | None = None
        try:
            await self._store(submissions, refusals)
        except StoreError as error:
            failure = error
        except Exception as error:  # noqa: BLE001
            kind = type(error).__name__
            logs.event("commit failed", level=logging.ERROR, kind=kind)
            failure = StoreError(f"the store failed: {kind}")
        if failure is None:
            self._observe(time.perf_counter() - start, submissions)
        elif not self._is_closed:  # a later commit writes them
            self._refusals.update(refusals)
        self._deliver([(ticket, failure or each.answer) for each, ticket in group])
