"""Commits of uploads: concurrent uploads share one transaction, a group commit.

No upload gets a response before it is on the disk. A commit costs one flush of the disk, whatever
the number of uploads in it. A commit of a whole batch therefore allows thousands of durable uploads
in a second.

    endpoint --submit--> Writer --commit--> Receiver --append--> inbox (`inbox`)
    endpoint <--deliver-- Writer

The `Writer` has a queue, and a task on the event loop that takes a batch from the queue, waits for
its commit, and delivers the results. The `Receiver` encodes a batch (`record`) on the event loop,
and writes the batch to the inbox in a thread, so that the event loop continues.

A ticket identifies the request that waits for an upload. The caller chooses the type of a ticket.
`deliver` gets each ticket back with its result.

States of an upload:

    queued       in memory. The device waits for its response
      |  `_take_batch`
    committing   one batch at a time
      |             |
    committed    failed      the response is sent: the report statuses, or 503

An upload whose request timed out while it was queued is dropped. An upload whose request timed out
while it was committing may be stored. The device sends it again, and its deduplication key
prevents that it counts twice.
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
from rappor_server.storage.block_rules import Rule
from rappor_server.storage.database import utc_today
from rappor_server.storage.inbox import Batch, Inbox
from rappor_server.storage.record import Refusals, encode

RulesByMetric = Mapping[str, Mapping[str, Rule]]
"""A registry has these rules: the rule of each fingerprint, by the name of the metric."""
Ticket = TypeVar("Ticket")
"""The type of a ticket, which identifies the request that waits for an upload."""
Result = bytes | StoreError
"""Result of an upload. It is the body of the HTTP response, or the error if the commit failed."""

_IDLE_SECONDS: Final = 1.0
"""Longest time in seconds that numbers of refusals wait for a commit if no upload comes. A smaller
value writes to the disk more often while only refused uploads come."""
_GATHER_SECONDS: Final = 0.003
"""Time in seconds that an incomplete batch waits for more uploads. A commit takes as much processor
time as parsing ten uploads. A larger value makes larger batches, which take less processor time,
and delays each upload."""
_MAX_INBOX_BYTES: Final = 2_000_000_000
"""Size of the inbox, in bytes, above which uploads are refused. The inbox becomes so large only if
merging has failed for a long time. A larger value accepts uploads for longer, and uses more of the
disk."""
_MIN_FREE_BYTES: Final = 64_000_000
"""Free disk space, in bytes, that must remain in addition to the space of a merge. Only a merge can
empty the inbox, so uploads must never take the space that a merge needs. A larger value refuses
uploads earlier on a small disk."""


class Receiver:
    """The thread that writes batches to an inbox, so that the event loop continues.

    Attributes
    ----------
    waiting_bytes, waiting_reports : size of the inbox, in bytes and reports. The collector sets
        both from the last status of the merge process.
    """

    def __init__(
        self,
        inbox: Inbox,
        *,
        merge_bytes: Callable[[int, int], int],
        today: Callable[[], datetime.date | None],
        rules: Callable[[], RulesByMetric],
        record_rules: Callable[[RulesByMetric, datetime.date | None], datetime.date],
    ) -> None:
        """Start the thread.

        Parameters
        ----------
        inbox : the inbox, used by the thread only
        merge_bytes : returns the disk space in bytes that a merge needs, from the size of the inbox
            in bytes and in reports
        today : returns the day of receipt, or None if the database determines the day
        rules : returns the rules of the registry in force
        record_rules : stores the minimums of rules for a day, or for the database's present day if
            the day is None; returns the day (`release_windows.record_rules`)
        """
        self._inbox = inbox
        self._merge_bytes = merge_bytes
        self._today = today
        self._rules = rules
        self._record_rules = record_rules
        # The rules whose minimums are stored, and the last day for which they are stored.
        self._recorded_rules: RulesByMetric = {}
        self._recorded_through = datetime.date.min
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rappor-receiver")
        self.waiting_bytes = self.waiting_reports = 0

    async def commit(self, submissions: Sequence[Submission], refusals: Refusals) -> None:
        """Write uploads as one batch; the batch is on the disk on return.

        Raises
        ------
        StoreError
            The commit failed or its outcome is unknown.
        """
        reports = [report for submission in submissions for report in submission.accepted]
        params = {report.fingerprint: report.params for report in reports}
        batch = Batch(self._today(), len(reports), encode(submissions, refusals))
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._append, batch, params, self._rules())

    def _append(self, batch: Batch, params: Mapping[str, Params], rules: RulesByMetric) -> None:
        """Write a batch if the disk has enough space for merging the whole inbox.

        The minimums of the registry in force are stored for the day of receipt before the batch is
        written. Another host may close the blocks of this day, and must then use minimums that are
        at least as large (`release_windows`). Bad case: the background task of a host stored the
        minimums. The task hung, the host accepted uploads all day, and another host released them
        under smaller minimums.
        """
        # Refused uploads do less harm than a full disk. Devices keep their reports and retry, but a
        # full disk would stop the merge, which alone can empty the inbox.
        if self.waiting_bytes > _MAX_INBOX_BYTES:
            raise StoreError("the inbox is full: uploads are not merged")
        needed = self._merge_bytes(self.waiting_bytes, self.waiting_reports) + _MIN_FREE_BYTES
        if self._inbox.free_bytes() < needed:
            raise StoreError("the disk is nearly full")
        documents = {fingerprint: item.to_json() for fingerprint, item in params.items()}
        # Numbers of refusals, and probes, have no report that a minimum could protect.
        if not batch.reports:
            self._inbox.append(batch, documents)
            return
        if rules is not self._recorded_rules:
            self._record(rules, batch.day)
        # The day has changed since the minimums were stored.
        while not self._inbox.append(batch, documents, through=self._recorded_through):
            self._record(rules, batch.day)

    def _record(self, rules: RulesByMetric, day: datetime.date | None) -> None:
        """Store the minimums of rules for a day; None is the database's present day."""
        # Case: an upload of this batch was parsed just before a reload, on a new day. The earlier
        # registry has accepted it, so the earlier minimums hold on this day, too. Rules that were
        # last recorded before yesterday are left out: the host has no upload since, or its reload
        # was longer ago than an upload waits for its commit.
        is_recent = self._recorded_through >= (day or utc_today()) - datetime.timedelta(days=1)
        if is_recent and self._recorded_rules is not rules:
            self._record_rules(self._recorded_rules, day)
        self._recorded_through = self._record_rules(rules, day)
        self._recorded_rules = rules

    async def close(self) -> None:
        """Close the inbox, and end the thread."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._inbox.close)
        self._thread.shutdown()


class Writer(Generic[Ticket]):
    """A bounded queue of uploads, and the task that commits the queue batch by batch.

    Not thread-safe: all methods belong to the event loop in which the object was created.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[Submission], Refusals], Awaitable[None]],
        *,
        deliver: Callable[[Sequence[tuple[Ticket, Result]]], None],
        observe: Callable[[float, Sequence[Submission]], None],
        max_queued: int = 10_000,
        max_uploads: int = 256,
        max_reports: int = 4096,
    ) -> None:
        """Start the task.

        Parameters
        ----------
        commit : writes a batch of uploads, and numbers of refusals by metric and reason
            (`Receiver.commit`)
        deliver : called with the pairs of ticket and result of each batch
        observe : called after each successful commit, with its duration in seconds and its uploads
        max_queued : largest number of queued uploads
        max_uploads : largest number of uploads in a batch
        max_reports : number of reports at which a batch is complete. A larger batch would block the
            event loop for longer while the batch is encoded.
        """
        self._commit_batch = commit
        self._deliver = deliver
        self._observe = observe
        self._max_queued = max_queued
        self._max_uploads = max_uploads
        self._max_reports = max_reports
        self._queue: deque[tuple[Submission, Ticket]] = deque()
        self._refusals: Counter[tuple[str, str]] = Counter()
        self._wake = asyncio.Event()
        self._is_closed = False
        self._is_probe_requested = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    def __len__(self) -> int:
        """Return the number of queued uploads."""
        return len(self._queue)

    def submit(self, uploads: Sequence[tuple[Submission, Ticket]]) -> None:
        """Queue uploads. Each ticket is delivered with the result of its commit.

        Raises
        ------
        StoreError
            The queue is closed or has no room for all uploads. No upload was queued, so the device
            may retry.
        """
        # Without the limit, uploads would fill the memory while the database hangs.
        if self._is_closed or len(self._queue) + len(uploads) > self._max_queued:
            raise StoreError("the queue of uploads is full")
        self._queue.extend(uploads)
        self._wake.set()

    def refuse(self, metric: str, reason: str) -> None:
        """Count an upload that was not parsed; the next commit writes the number."""
        self._refusals[metric, reason] += 1

    def drop(self, is_finished: Callable[[Ticket], bool]) -> None:
        """Remove queued uploads whose tickets are finished, and free their memory.

        While the database hangs, requests time out and their uploads would fill the queue.
        """
        self._queue = deque(
            (submission, ticket) for submission, ticket in self._queue if not is_finished(ticket)
        )

    def probe(self) -> None:
        """Request a commit even if no upload is queued; its success is passed to `observe`.

        The collector calls the method after a failure. Only a commit shows that uploads can be
        stored again, because a full disk can still be read.
        """
        self._is_probe_requested = True
        self._wake.set()

    async def close(self) -> None:
        """Commit or fail all queued uploads, then end the task."""
        self._is_closed = True
        self._wake.set()
        await self._task

    async def _run(self) -> None:
        """Commit batch after batch, until the writer is closed and nothing is queued."""
        while True:
            self._wake.clear()
            if not (self._queue or self._is_probe_requested or self._is_closed):
                # A refusal does not set `_wake`. The timeout lets a commit write them although no
                # upload comes.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_IDLE_SECONDS):
                        await self._wake.wait()
            if len(self._queue) < self._max_uploads and not self._is_closed:
                await asyncio.sleep(_GATHER_SECONDS)
            is_probe, self._is_probe_requested = self._is_probe_requested, False
            batch, refusals = self._take_batch()
            if batch or refusals or is_probe:
                await self._commit(batch, refusals)
            elif self._is_closed:  # the queue is empty and no refusals wait
                return

    def _take_batch(self) -> tuple[list[tuple[Submission, Ticket]], Refusals]:
        """Remove the next batch from the queue, and return it with all numbers of refusals."""
        batch: list[tuple[Submission, Ticket]] = []
        n_reports = 0
        while self._queue and len(batch) < self._max_uploads and n_reports < self._max_reports:
            batch.append(self._queue.popleft())
            n_reports += len(batch[-1][0].accepted)
        refusals, self._refusals = self._refusals, Counter()
        return batch, refusals

    async def _commit(self, batch: list[tuple[Submission, Ticket]], refusals: Refusals) -> None:
        """Commit a batch, and deliver the results.

        No exception ends the task: nothing else would commit the uploads that come later. An
        unexpected exception appears in the log and in the error by the name of its class only,
        because its text may contain a part of an upload.
        """
        start = time.perf_counter()
        submissions = [submission for submission, _ in batch]
        failure: StoreError | None = None
        try:
            await self._commit_batch(submissions, refusals)
        except StoreError as error:
            failure = error
        except Exception as error:  # noqa: BLE001
            kind = type(error).__name__
            logs.log_event("commit failed", level=logging.ERROR, kind=kind)
            failure = StoreError(f"the store failed: {kind}")
        if failure is None:
            self._observe(time.perf_counter() - start, submissions)
        elif not self._is_closed:
            # The next commit writes the refusals again. A closed writer drops them, because its
            # task would otherwise go on for as long as the database fails.
            self._refusals.update(refusals)
        self._deliver([(ticket, failure or submission.response) for submission, ticket in batch])
