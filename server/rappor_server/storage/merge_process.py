"""The merge process of a collector: it merges the inbox when a merge is worth its cost.

A merge writes each counter that its reports touch, so its cost depends on the number of counters
more than on the number of reports. The schedule therefore waits until there are several reports for
each counter. Two limits bound the wait: no report waits for a minute, and no report waits long
after the last upload has come. Several collectors may share a database; whichever process sees
first that a merge is due merges. After the end of its collector, for whatever reason, the process
merges once more and exits. A reader may delay that merged rows are erased; they are erased seconds
after the reader's end.

States of the process, as its collector sees them:

    running       sends a `MergeStatus` after each look at the inbox
      |  killed, or it failed to start
    restarting    for a second. Uploads go on: receivers do not need the process
      |  `_start`
    running

The process itself never ends because of an error. It reports the error as `failure`, opens the
inbox anew, and tries again after a second. While merging fails, the collector is not ready, and it
refuses uploads when the inbox or the disk is full.
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
"""Time without a new batch after which the inbox is merged, however few reports it has."""
_MAX_WAIT_SECONDS: Final = 50.0
"""Age of the oldest batch at which the inbox is merged. With the duration of a merge, the value
keeps the documented limit: a single report stays in the inbox for less than a minute."""
_REPORTS_PER_COUNTER: Final = 16
"""Number of reports for each counter of the previous merge that makes a merge worth its cost."""
_MIN_REPORTS: Final = 4096
"""Smallest number of reports that makes a merge worth its cost while more reports come."""
_RESTART_SECONDS: Final = 1.0
"""Pause before an ended process is started again, and before a failed merge is tried again."""
_CLEAN_UP_SECONDS: Final = 5.0
"""Time between two attempts to erase merged rows that a reader may have kept."""


class MergeSchedule:
    """Decision when to merge, from the contents of the inbox and the size of the last merge.

    The class reads no clock. Every time is an argument, in seconds of one monotonic clock.
    """

    def __init__(self, now: float) -> None:
        """Start with thresholds of 0: batches that an earlier process left are merged at once."""
        self._enough_reports = 0
        self._n_batches = 0
        self._last_change = self._oldest_batch = now

    def is_due(self, contents: InboxContents, now: float) -> bool:
        """Return whether to merge now; the call also records the contents."""
        n_batches = contents.batches
        # Fewer batches than before: another process has merged. No batches before: the inbox was
        # empty. In both cases all batches arrived after the last look.
        if n_batches < self._n_batches or not self._n_batches:
            self._oldest_batch = now
        if n_batches != self._n_batches:
            self._last_change, self._n_batches = now, n_batches
        if not n_batches:
            # The backlog of an earlier process is merged. From now on wait for more reports.
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
    """The merge process of a collector, restarted whenever it ends. For one event loop."""

    def __init__(self, database: str, handle_status: Callable[[MergeStatus], None]) -> None:
        """Start the process; the event loop calls `handle_status` with every status."""
        self._database = database
        self._handle_status = handle_status
        self._loop = asyncio.get_running_loop()
        self._restart_timer: asyncio.TimerHandle | None = None
        self._start()

    def _start(self) -> None:
        self._link, child_end = multiprocessing.Pipe()
        with child_end:
            self._process: SpawnProcess = processes.start(_serve, child_end, self._database)
        self._loop.add_reader(self._link.fileno(), self._receive_status)

    def _receive_status(self) -> None:
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
    processes.begin("rappor-merge")
    # A service manager sends SIGTERM to all processes of the collector at once. The merge process
    # must outlive the collector, which still adds its last batches.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    worker = _MergeWorker(database)
    with contextlib.suppress(OSError):  # the collector ended between `poll` and `send`
        while not link.poll(_RESTART_SECONDS if worker.failure else _POLL_SECONDS):
            link.send(worker.run_once(is_last=False))
    # The collector has ended and has written its last batches before. Nobody else may be left to
    # merge them.
    worker.run_once(is_last=True)


class _MergeWorker:
    """The work of a merge process, one look at the inbox at a time."""

    def __init__(self, database: str) -> None:
        self.failure = ""
        self._engine = open_engine(database)
        self._inbox: Inbox | None = None
        self._schedule = MergeSchedule(time.monotonic())
        self._last_clean_up = -math.inf
        self._retried_inbox: Inbox | None = None
        self._contents = InboxContents(0, 0, 0, 0)

    def run_once(self, *, is_last: bool) -> MergeStatus:
        """Merge if a merge is due, and return the status. The method raises nothing.

        The last run merges whatever the schedule says, and waits for merges of other processes.
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
            # The inbox may have been replaced or its connection may be broken: open it anew.
            self._inbox.close()
            self._inbox = None
        oldest_seconds = self._schedule.compute_oldest_age(time.monotonic())
        return MergeStatus(self._contents, oldest_seconds, merged, self.failure)

    def _merge_if_due(self, *, is_last: bool) -> MergeResult:
        # Opened here, and not at the start: the database may not answer yet.
        if self._inbox is None:
            self._inbox = open_inbox(self._engine)
        if time.monotonic() >= self._last_clean_up + _CLEAN_UP_SECONDS:
            self._clean_up(self._inbox)
        self._contents = self._inbox.count_contents()
        if not self._schedule.is_due(self._contents, time.monotonic()) and not is_last:
            return MergeResult()
        merged = merge(self._engine, self._inbox, wait=is_last)
        # If another process was merging, nothing was merged here, and the threshold stays.
        if merged.uploads or merged.duplicates:
            self._schedule.record_merge(merged.counters)
        return merged

    def _clean_up(self, inbox: Inbox) -> None:
        """Retry the unreadable batches once for each opened inbox, and erase merged rows.

        An unreadable batch was written by a newer version. It becomes readable only when this
        program has been updated and started again.
        """
        self._last_clean_up = time.monotonic()
        if self._retried_inbox is not inbox:
            # A dump reads the table of unreadable batches. Try again with the next clean-up.
            with contextlib.suppress(LockedError):
                retry_unreadable(self._engine)
                self._retried_inbox = inbox
        inbox.clear()
