"""The one writer of a collector: concurrent uploads share a commit.

A thread takes a group of the uploads that wait, stores it in one transaction and hands the
results on. No upload is answered before it is on the disk.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from rappor_server import logs
from rappor_server.errors import ConflictError, StoreError
from rappor_server.ingest.validate import Submission
from rappor_server.storage.store import Refusals

Ticket = TypeVar("Ticket")
Result = bytes | ConflictError | StoreError
Day = Callable[[], datetime.date]
"""() -> today (UTC)."""

_IDLE_SECONDS: Final = 1.0
_TRACE_SECONDS: Final = 20.0
"""How long the database's log may hold what was committed: less than a minute, also by retries."""


class Commits(Protocol):
    """What a writer needs of a store."""

    def commit(
        self, submissions: Sequence[Submission], refusals: Refusals, *, today: datetime.date
    ) -> Sequence[bytes | ConflictError]:
        """Store a group, as `Store.commit` does."""

    def erase_traces(self) -> bool:
        """Empty the log, as `Store.erase_traces` does."""


class Writer(Generic[Ticket]):
    """A bounded queue of uploads before one store.

    From the writer's thread, `deliver` is called with the tickets and results of a group, and
    `observe` with the seconds of a commit and its uploads.
    """

    def __init__(
        self,
        store: Commits,
        *,
        deliver: Callable[[Sequence[tuple[Ticket, Result]]], None],
        today: Day,
        observe: Callable[[float, Sequence[Submission]], None] = lambda *_: None,
        max_batch: int = 256,
        linger: float = 0.0,
        max_queue: int = 10_000,
        trace_seconds: float = _TRACE_SECONDS,
    ) -> None:
        """Start the thread; a group waits `linger` seconds for others to join it.

        `trace_seconds` after a commit the database's log is emptied.
        """
        self._store = store
        self._deliver = deliver
        self._today = today
        self._observe = observe
        self._max_batch = max_batch
        self._linger = linger
        self._max_queue = max_queue
        self._trace_seconds = trace_seconds
        self._queue: deque[tuple[Submission, Ticket]] = deque()
        self._refusals: Counter[tuple[str, str]] = Counter()
        self._wake = threading.Condition()
        self._is_closed = False
        self._erase_at = math.inf
        self._thread = threading.Thread(target=self._run, name="rappor-writer")
        self._thread.start()

    def __len__(self) -> int:
        """Return how many uploads wait for a commit."""
        return len(self._queue)

    def submit(self, uploads: Sequence[tuple[Submission, Ticket]]) -> None:
        """Queue uploads; each ticket is delivered with the result of its commit.

        Raises a retryable StoreError if the queue has no room for all of them or is closed.
        """
        with self._wake:
            if self._is_closed or len(self._queue) + len(uploads) > self._max_queue:
                raise StoreError("the queue of uploads is full")
            self._queue.extend(uploads)
            self._wake.notify()

    def refuse(self, metric: str, reason: str) -> None:
        """Count an upload that was refused whole; the number is written with the next group."""
        with self._wake:
            self._refusals[metric, reason] += 1

    def close(self) -> None:
        """Store or fail every upload that is queued, then end the thread."""
        with self._wake:
            self._is_closed = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            group, refusals = self._take()
            if group or refusals:
                self._commit(group, refusals)
            elif self._is_closed:
                return
            self._erase_traces()

    def _erase_traces(self) -> None:
        """Empty the database's log some seconds after a commit; again in a second if it is read."""
        if (now := time.monotonic()) < self._erase_at:
            return
        with contextlib.suppress(StoreError):
            if self._store.erase_traces():
                self._erase_at = math.inf
                return
        self._erase_at = now + _IDLE_SECONDS

    def _take(self) -> tuple[list[tuple[Submission, Ticket]], Refusals]:
        """Wait for uploads, wait a moment longer for others, and take a group."""
        with self._wake:
            if not self._queue and not self._is_closed:
                self._wake.wait(_IDLE_SECONDS)
            self._gather()
            n = min(len(self._queue), self._max_batch)
            group = [self._queue.popleft() for _ in range(n)]
            refusals, self._refusals = self._refusals, Counter()
            return group, refusals

    def _gather(self) -> None:
        """Wait a moment for other uploads to join, while there is room in the group."""
        until = time.monotonic() + self._linger
        while self._queue and len(self._queue) < self._max_batch and not self._is_closed:
            if (left := until - time.monotonic()) <= 0:
                return
            self._wake.wait(left)

    def _commit(self, group: list[tuple[Submission, Ticket]], refusals: Refusals) -> None:
        self._erase_at = min(self._erase_at, time.monotonic() + self._trace_seconds)
        start = time.perf_counter()
        submissions = [submission for submission, _ in group]
        results: Sequence[Result]
        try:
            results = self._try(submissions, refusals)
        except StoreError as error:
            results = [error] * len(group)
            self._put_back(refusals)
        else:
            self._observe(time.perf_counter() - start, submissions)
        tickets = [ticket for _, ticket in group]
        self._deliver(list(zip(tickets, results, strict=True)))

    def _try(self, submissions: Sequence[Submission], refusals: Refusals) -> Sequence[Result]:
        """Commit a group; every failure is a StoreError, because there is no other writer."""
        try:
            return self._store.commit(submissions, refusals, today=self._today())
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - the thread must live
            kind = type(error).__name__
            logs.event("commit failed", level=logging.ERROR, kind=kind)
            raise StoreError(f"the store failed: {kind}") from None

    def _put_back(self, refusals: Refusals) -> None:
        """Keep numbers of refusals for a later commit; wait a moment unless uploads wait."""
        with self._wake:
            self._refusals.update(refusals)
            if not self._queue and not self._is_closed:
                self._wake.wait(_IDLE_SECONDS)
            elif self._is_closed:
                self._refusals.clear()
