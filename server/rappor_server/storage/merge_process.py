"""The merge process of a collector: it merges the inbox when a merge is worth its cost.

A receiver of the collector writes uploads to the inbox (`inbox`). A merge moves all of them into
counters, which are sums by metric, fingerprint (hash of the parameters), day and cohort (`merge`).

When to merge. A merge writes each counter to which it adds a report, so its cost depends on the
number of counters more than on the number of reports. The process looks at the inbox every 0.25
seconds (`_POLL_SECONDS`), and merges if one of these conditions is met (`MergeSchedule`):

    16 reports for each counter that the previous merge wrote, and at least 4,096 reports
    8 MB of batches, which are one transaction
    the oldest batch is 50 seconds old, so no report waits for a minute
    no batch has come for a second, so no report waits long after the last upload

Several collectors may share a database. Each has a merge process, and the first process that finds
a merge due merges for all of them.

Every five seconds the process also erases the batches that are merged (`Inbox.clear`). While
another program reads the database, for example a dump, some of their bytes must stay. A later call
erases these bytes.

States of the process, as its collector sees them:

    running       sends a `MergeStatus` after each look at the inbox
      |  killed, or it failed to start
    restarting    for a second. Uploads go on, because receivers do not need the process
      |  `_start`
    running

The process never ends because of an error. It reports the error as `failure`, opens the inbox
again, and tries again after a second. While merging fails, the collector is not ready, and it
refuses uploads when the inbox or the disk is full. When the collector ends, also if it was killed,
the process merges once more and exits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import multiprocessing
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, Final, NamedTuple

from rappor_server.base import logs, processes
from rappor_server.base.errors import StoreError
from rappor_server.storage.database import LockedError, open_engine
from rappor_server.storage.inbox import MAX_MERGE_BYTES, Inbox, InboxContents, open_inbox
from rappor_server.storage.merge import MergeResult, merge, retry_unreadable

_POLL_SECONDS: Final = 0.25
"""Time between two looks at the inbox. A larger value delays merges."""
_QUIET_SECONDS: Final = 1.0
"""Time without a new batch after which the inbox is merged, however few reports it has. A smaller
value merges more often, and each merge writes more counters than it has reports."""
_MAX_WAIT_SECONDS: Final = 50.0
"""Age of the oldest batch at which the inbox is merged. With the duration of a merge, the value
keeps the documented limit: a single report stays in the inbox for less than a minute."""
_REPORTS_PER_COUNTER: Final = 16
"""Number of reports for each counter of the previous merge that makes a merge worth its cost. A
larger value saves writes, and reports wait longer."""
_MIN_REPORTS: Final = 4096
"""Smallest number of reports that makes a merge worth its cost while more reports come. Without
this number, a collector with ten counters would merge every 160 reports."""
_RESTART_SECONDS: Final = 1.0
"""Pause before an ended process is started again, and before a failed merge is tried again. Without
a pause, a lasting failure would use all of a processor."""
_CLEAN_UP_SECONDS: Final = 5.0
"""Time between two attempts to erase the rows of merged batches. A larger value keeps single
reports on the disk for longer after a dump has ended."""


class MergeSchedule:
    """Decision when to merge, from the contents of the inbox and the size of the last merge.

    The inbox does not store when a batch came. The schedule concludes the age of the oldest batch
    from the number of batches at each look: a new batch is as old as the time since the look
    before. So the age is an upper bound, with two exceptions: a batch of an earlier process, and a
    batch that came while another collector merged.

    The class reads no clock. Every time is an argument, in seconds of one monotonic clock.
    """

    def __init__(self, now: float) -> None:
        """Start with a threshold of 0 reports: batches of an earlier process are merged at once."""
        self._enough_reports = 0
        self._n_batches = 0
        self._last_look = self._last_change = self._oldest_batch = now

    def is_due(self, contents: InboxContents, now: float) -> bool:
        """Return whether to merge now; the call also records the contents."""
        n_batches = contents.batches
        # Case: fewer batches than at the last look, because a process has merged. Case: the inbox
        # was empty at the last look. In both cases all batches have come since the last look, or
        # during the merge of another collector, which takes some seconds.
        if n_batches < self._n_batches or not self._n_batches:
            self._oldest_batch = self._last_look
        self._last_look = now
        if n_batches != self._n_batches:
            self._last_change, self._n_batches = now, n_batches
        if not n_batches:
            # An empty inbox shows that the batches of an earlier process are merged. From now on,
            # the threshold of 0 would merge single reports.
            self._enough_reports = max(self._enough_reports, _MIN_REPORTS)
            return False
        is_quiet = now - self._last_change >= _QUIET_SECONDS
        is_old = now - self._oldest_batch >= _MAX_WAIT_SECONDS
        has_enough_reports = contents.reports >= self._enough_reports
        has_enough_bytes = contents.n_bytes >= MAX_MERGE_BYTES
        return has_enough_reports or has_enough_bytes or is_old or is_quiet

    def record_merge(self, n_counters: int) -> None:
        """Set the threshold of the next merge from the number of counters that a merge wrote."""
        self._enough_reports = max(_REPORTS_PER_COUNTER * n_counters, _MIN_REPORTS)

    def compute_oldest_age(self, now: float) -> float:
        """Return an upper bound on the age of the oldest batch, in seconds."""
        return now - self._oldest_batch if self._n_batches else 0.0


class MergeStatus(NamedTuple):
    """Message of a merge process to its collector.

    Attributes
    ----------
    contents : totals of the inbox before the merge
    oldest_seconds : upper bound on the age of the oldest batch
    merged : result of the merge since the last message
    failure : reason why the last merge failed, empty if it succeeded
    """

    contents: InboxContents
    oldest_seconds: float
    merged: MergeResult
    failure: str


class MergeProcess:
    """The merge process of a collector, restarted whenever it ends.

    All methods belong to the event loop in which the object was created.
    """

    def __init__(self, database: str, handle_status: Callable[[MergeStatus], None]) -> None:
        """Start the process; the event loop calls `handle_status` with every status."""
        self._database = database
        self._handle_status = handle_status
        self._loop = asyncio.get_running_loop()
        self._restart_timer: asyncio.TimerHandle | None = None
        self._start()

    def _start(self) -> None:
        """Start the process, and watch the link on which it sends its statuses."""
        self._link, child_end = multiprocessing.Pipe()
        with child_end:
            self._process: SpawnProcess = processes.start_child(_serve, child_end, self._database)
        self._loop.add_reader(self._link.fileno(), self._receive_status)

    def _receive_status(self) -> None:
        """Pass a status of the process to the collector, or plan its restart if it has ended."""
        try:
            status = self._link.recv()
        except (EOFError, OSError):
            # The process was killed, for example because the machine had no memory left.
            self._close_link()
            self._process.join()  # returns soon: only the end of the process closes the other end
            exit_code = self._process.exitcode
            logs.log_event("merge process ended", level=logging.ERROR, exit_code=exit_code)
            self._restart_timer = self._loop.call_later(_RESTART_SECONDS, self._start)
        else:
            self._handle_status(status)

    def _close_link(self) -> None:
        """Stop watching the link, and close it."""
        self._loop.remove_reader(self._link.fileno())
        self._link.close()

    async def close(self) -> None:
        """Let the process merge once more, and wait for its end."""
        # Otherwise the timer would start a process that outlives the collector.
        if self._restart_timer is not None:
            self._restart_timer.cancel()
        if not self._link.closed:
            self._close_link()
        await asyncio.to_thread(self._process.join)


def _serve(link: Connection[Any, Any], database: str) -> None:
    """Merge whenever a merge is due. At the end of the collector, merge once more and return.

    The collector never sends anything: `poll` returns True only when the collector has closed its
    end of the link, or has been killed.
    """
    processes.set_up_child("rappor-merge")
    # A service manager sends SIGTERM to all processes of the collector at once. The merge process
    # must outlive the collector, which still adds its last batches.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    worker = _MergeWorker(database)
    with contextlib.suppress(OSError):  # the collector ended between `poll` and `send`
        while not link.poll(_RESTART_SECONDS if worker.failure else _POLL_SECONDS):
            link.send(worker.run_once(is_last=False))
    # The collector wrote its last batches before it ended. Without this merge they could stay in
    # the inbox until a collector is started again.
    worker.run_once(is_last=True)


class _MergeWorker:
    """The work of a merge process, one look at the inbox at a time.

    Attributes
    ----------
    failure : reason why the last merge failed, empty if it succeeded
    """

    def __init__(self, database: str) -> None:
        self.failure = ""
        self._engine = open_engine(database)
        self._inbox: Inbox | None = None
        self._schedule = MergeSchedule(time.monotonic())
        self._last_clean_up = -math.inf
        # `_clean_up` retries the unreadable batches once for each opened inbox. The last retry was
        # made with this inbox.
        self._retried_inbox: Inbox | None = None
        # Before the first look: no batches, no reports, no bytes and no unreadable batches.
        self._contents = InboxContents(0, 0, 0, 0)

    def run_once(self, *, is_last: bool) -> MergeStatus:
        """Merge if a merge is due, and return the status. The method raises nothing.

        With `is_last`, the method merges whatever the schedule says, and waits for a merge of
        another process to end.
        """
        merged = MergeResult()
        try:
            merged = self._merge_if_due(is_last=is_last)
            self.failure = ""
        except StoreError as error:
            self.failure = str(error)
        except Exception as error:  # noqa: BLE001 - one bad merge must not end the process
            logs.log_unexpected_error(error)
            self.failure = f"merging failed: {type(error).__name__}"
        if self.failure and self._inbox is not None:
            # The file of the inbox may have been replaced, or its connection may be broken. The
            # next call opens the inbox again.
            self._inbox.close()
            self._inbox = None
        oldest_seconds = self._schedule.compute_oldest_age(time.monotonic())
        return MergeStatus(self._contents, oldest_seconds, merged, self.failure)

    def _merge_if_due(self, *, is_last: bool) -> MergeResult:
        """Open the inbox if necessary, clean it up regularly, and merge it if a merge is due."""
        # At the start of the process the database may not respond yet. So the inbox is opened here,
        # where an error is reported and the next call tries again.
        if self._inbox is None:
            self._inbox = open_inbox(self._engine)
        if time.monotonic() >= self._last_clean_up + _CLEAN_UP_SECONDS:
            self._clean_up(self._inbox)
        self._contents = self._inbox.count_contents()
        if not self._schedule.is_due(self._contents, time.monotonic()) and not is_last:
            return MergeResult()
        merged = merge(self._engine, self._inbox, wait=is_last)
        # Case: another process was merging, so nothing was merged here. The threshold stays.
        if merged.uploads or merged.duplicates:
            self._schedule.record_merge(merged.counters)
        return merged

    def _clean_up(self, inbox: Inbox) -> None:
        """Erase the rows of merged batches, and retry the unreadable batches after the start.

        An unreadable batch was written by a newer version of the program. It becomes readable when
        this program has been updated and started again. So one attempt for each opened inbox is
        enough.
        """
        self._last_clean_up = time.monotonic()
        if self._retried_inbox is not inbox:
            # Case: a dump reads the table of unreadable batches. The next clean-up tries again.
            with contextlib.suppress(LockedError):
                retry_unreadable(self._engine)
                self._retried_inbox = inbox
        inbox.clear()
