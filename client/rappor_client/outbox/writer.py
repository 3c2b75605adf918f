"""The writer: keeps events in memory, and commits them to the disk in the folder's thread.

An event is the noisy report of one recorded value. `Client.record` appends the event to memory and
returns. The life of an event:

    t = 0 ms     `add` appends the event and wakes the folder's thread
    t = 20 ms    the thread commits all events in memory
                 - another process has the folder's lock: next attempt after 50 ms
                 - the disk fails: the failure is counted, next attempt after 1 s
    committed    the event is in the spool, as the pending report of its interval, or it was not
                 chosen and leaves no trace (`budget/admission.py` chooses)

Two things are on the disk, in two files: the spool (an SQLite database with all reports) and the
state (the secret, the memoized responses and the reserved budget; `budget/state.py`).

Three groups of callers use the writer:

    `record`      adds events (`add`), and for a durable metric waits for their commit (`commit`)
    the uploader  commits, and claims an upload in the same transaction (`run`); stores the result
                  of an attempt (`change`)
    the person    reads the spool (`read`), or drops reports of a refused metric (`run`)

Call chain of a commit:

    `run`                    hands a job to the folder's thread, and waits for its end
      `_run`                 acquires the lock between threads, then the lock between processes.
                             While another process has the lock, both are released, so that a fork
                             never copies a commit that is half done
        `_commit_repaired`   removes a damaged spool, and tries a second time
          `_commit`          reads the state again, because another process may have changed it;
                             removes the events from memory after a success
            `_commit_events` writes spool and state, in one of the orders below

What `_commit_events` writes, and in which order:

    case                                    writes
    no event changes the state              the spool, in one transaction
    a scope begins, or a scope with a       1. the spool: pending reports, and the version number
    report limit reports again                 that the state will have. Flushed to the disk
                                            2. the state, flushed
                                            3. the spool: the decided reports are queued
    a metric reserves budget (and           first a round that writes only the version number and
    possibly the case above, too)           the state with the reservation; then the events again,
                                            which is one of the two cases above

Bad cases that the order prevents:

- A report leaves, and the process is killed before its privacy cost is on the disk. So a report is
  queued (3) after the state (2).
- The process is killed between 1 and 2. The next commit reads an older state, decides the same
  intervals again, and leads to the same bytes.
- The process is killed between 1 and 2, and the spool contains a pending report whose reservation
  was lost with the state. The report left later, and after a withdrawal the person's budget was
  renewed. So the reservation has a round of its own before the spool contains the report.
- The spool is older than the state, because the whole machine lost power. The spool would look like
  a copy from a backup (`admission.drop_outdated`), and all of its reports would be dropped. So the
  spool is flushed (1) before the state.

Invariants: memory has at most `MAX_EVENTS` events, also while commits fail. A commit that fails
keeps its events. The same events, committed again, lead to the same bytes.

The child of a fork drops the events of its parent, because the parent writes them.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import datetime
import sqlite3
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from rappor.registry.metric import Metric
from rappor_client.budget import admission
from rappor_client.budget.admission import Admission, AdmissionTime
from rappor_client.budget.identity import Identity
from rappor_client.budget.pending_reports import AdmissionRequest
from rappor_client.budget.reservation import BudgetLimits, Reservations
from rappor_client.folder import spool
from rappor_client.folder.failures import DamagedError, warn
from rappor_client.folder.folder_thread import FolderThread, is_ending, set_ending
from rappor_client.folder.forking import Shared
from rappor_client.folder.identity_folder import BUSY_SECONDS, RETRY_SECONDS, BusyError
from rappor_client.folder.spool_tables import add_count
from rappor_client.folder.store import Store
from rappor_client.outbox.stops import Stops
from rappor_client.periods import day_of
from rappor_client.settings import Settings

MAX_EVENTS: Final = 1000
"""Largest number of events in memory. Further events are dropped and counted (`dropped_full`). With
a larger value, a host whose disk fails spends more memory on events."""
_BUSY_SECONDS: Final = 0.05
"""Time between two attempts of the folder's thread to lock the folder, and longest wait for the
lock of the database, in seconds. With a larger value, events wait longer in memory while another
process has a lock."""
_FAILED_SECONDS: Final = 1.0
"""Time between two attempts to write to a disk that fails, in seconds. A smaller value takes more
CPU. A larger value leaves events longer in memory after the disk has recovered."""
_EXIT_SECONDS: Final = 0.5
"""Longest time that the end of the program waits for the last commits of all writers together, in
seconds. With a larger value, a disk that hangs delays the end of the program longer."""

_Result = TypeVar("_Result")
Action = Callable[[sqlite3.Connection], _Result]
"""A function that reads or changes the spool in an open transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The noisy report of a recorded value, which waits in memory for its commit.

    Attributes
    ----------
    secret_id
        Identifier of the secret from which the report was drawn.
    metric
        Entry of the registry.
    request
        The report, with the rules of the metric on the day of the event.
    tag
        Random number of 64 bits. Among the events of an interval, the event with the smallest tag
        becomes the report of the interval.
    timestamp
        Time of the event, in seconds since 1970.
    """

    secret_id: bytes
    metric: Metric
    request: AdmissionRequest
    tag: int
    timestamp: float

    @property
    def day(self) -> datetime.date:
        """The day of the event (UTC)."""
        return day_of(self.timestamp)


class Writer(Shared):
    """Keeps the events of one device in memory and commits them.

    Parameters
    ----------
    identity
        The device's secret and state.
    settings
        Settings of the client.
    stops
        Metrics that the collector has stopped.
    thread
        Thread that uses the folder.
    opted_out
        The live set of metrics that the person refuses. The client adds to it.
    on_commit
        Called after each commit, with whether the commit had events.
    """

    def __init__(
        self,
        identity: Identity,
        settings: Settings,
        stops: Stops,
        thread: FolderThread,
        *,
        opted_out: Collection[str],
        on_commit: Callable[[bool], object],
    ) -> None:
        self._opted_out = opted_out
        self.identity = identity
        self._settings = settings
        self._stops = stops
        self._on_commit = on_commit
        self._limits = BudgetLimits.combine(settings.registry, settings.options.budget_cap)
        self._events = collections.deque[Event]()
        self._counts = collections.Counter[str]()
        # Cache of `find_unaffordable`: the reservations and the year of the call, and its result.
        self._unaffordable: tuple[Reservations, int, frozenset[str]] | None = None
        self._is_awake = False  # `wake` was called since the last commit began
        self._thread = thread
        thread.write_waiting = self._write_waiting
        super().__init__()
        self.store = Store(identity.spool)
        _ALL.add(self)

    def __bool__(self) -> bool:
        """Return whether events or counts are in memory."""
        return bool(self._events or self._counts)

    def add(self, event: Event) -> bool:
        """Append an event to memory; return False if memory is full and the event was dropped."""
        if len(self._events) >= MAX_EVENTS:
            self._counts["dropped_full"] += 1
            self.wake()
            return False
        self._events.append(event)
        self.wake()
        return True

    def count(self, name: str) -> None:
        """Add one to a counter, with the next commit."""
        self._counts[name] += 1

    def find_unaffordable(self, reservations: Reservations, year: int) -> frozenset[str]:
        """Return the metrics that do not fit into the budget of a year.

        The last result is cached, because every `record` asks for it. A changed reservation is a
        new object, so comparing the objects is enough.
        """
        cached = self._unaffordable
        if cached is None or cached[0] is not reservations or cached[1] != year:
            metrics = reservations.find_unaffordable(self._settings.registry, self._limits, year)
            cached = self._unaffordable = (reservations, year, metrics)
        return cached[2]

    def clear(self) -> None:
        """Drop the events and counts in memory."""
        self._events.clear()
        self._counts.clear()

    def wake(self) -> None:
        """Let the folder's thread commit soon. The handler of a signal may call this method."""
        # At the end of the program no thread may start any more, and nothing calls `commit` later.
        # An event that was recorded after the last commit would be lost, so this call commits.
        if is_ending():
            with contextlib.suppress(Exception):
                self.commit(lock_seconds=_BUSY_SECONDS)
            return
        try:
            if self._is_awake:
                self._thread.ensure_started()
            else:
                self._is_awake = True
                self._thread.wake()
        except RuntimeError as error:  # no thread can start: the next call commits the events
            self._thread.on_failure(error)

    def commit(self, *, lock_seconds: float, disk_seconds: float = BUSY_SECONDS) -> None:
        """Commit the events in memory. Parameters and exceptions are those of `run`."""
        # `is_taken`: another thread is committing, and has taken the counts out of memory. Its
        # commit may still fail and put them back, so this call waits for the end of the commit.
        if self or self._turn.is_taken:
            self.run(lambda _: None, lock_seconds=lock_seconds, disk_seconds=disk_seconds)

    def run(
        self,
        action: Action[_Result],
        *,
        lock_seconds: float,
        disk_seconds: float = BUSY_SECONDS,
        queue_ended_by: float | None = None,
        is_synced: bool = False,
    ) -> _Result:
        """Commit the events in memory, then change the spool by an action, under the locks.

        An action that has not begun when the caller times out is dropped. An action that has begun
        is completed.

        Parameters
        ----------
        action
            Called with the open transaction of the spool.
        lock_seconds
            Seconds that the job waits for the lock of another thread or process.
        disk_seconds
            Seconds that the caller waits for the job. The job takes longer if the disk hangs.
        queue_ended_by
            Time, in seconds since 1970. Pending reports of intervals that have ended by this time
            are decided and queued before the action. None decides only the intervals that are over
            for the events in memory.
        is_synced
            Whether the change must survive a loss of power when this method returns.

        Raises
        ------
        HungError
            The disk did not answer in time.
        BusyError
            Another thread or process keeps a lock.
        GoneError
            Consent was withdrawn.
        sqlite3.Error, OSError, DamagedError
            The disk fails.
        """
        deadline = time.monotonic() + lock_seconds

        def run() -> _Result:
            result = self._run(action, deadline, queue_ended_by)
            if is_synced:
                self.store.sync()
            return result

        return self._thread.run_within(run, seconds=disk_seconds)

    def change(self, action: Action[_Result], *, disk_seconds: float) -> _Result:
        """Change the spool by an action, now or as soon as the disk answers; raises as `run`.

        The events in memory are not committed, and the folder's lock is not acquired: the lock of
        the database is enough, because the action changes no state.
        """

        def change() -> _Result:
            with self.store.transaction() as db:
                return action(db)

        return self._thread.run_within(change, seconds=disk_seconds, is_kept_after_timeout=True)

    def read(self, action: Action[_Result], absent: _Result, *, disk_seconds: float) -> _Result:
        """Commit the events in memory, and read the spool by an action; raises as `run`.

        The result is `absent` if there is no spool. A failed commit does not prevent the reading: a
        full disk can still be read, also beside a process that keeps its lock.
        """
        # The commit waits for a lock for half of the caller's time. Bad case: the commit waited for
        # all of the time. The caller had gone before the reading, and the person saw an empty log.
        lock_seconds = min(disk_seconds, BUSY_SECONDS) / 2

        def read() -> _Result:
            try:
                if self:
                    self._run(lambda _: None, time.monotonic() + lock_seconds, None)
            except Exception as error:  # noqa: BLE001 - nothing of a device may stop its host
                self._thread.on_failure(error)
            if not self.store.exists():
                return absent
            with self.store.reading() as db:
                return action(db)

        return self._thread.run_within(read, seconds=disk_seconds)

    def _run(
        self, action: Action[_Result], deadline: float, queue_ended_by: float | None
    ) -> _Result:
        """Commit and run an action, once no other thread or process has a lock.

        The folder's thread calls this function. Raises BusyError at the deadline.
        """
        try:
            while True:
                with (
                    contextlib.suppress(BusyError),
                    self._turn.acquire(deadline - time.monotonic()),
                    self.identity.folder.try_lock() as is_inside,
                ):
                    if is_inside:
                        self._thread.is_locked_out = False
                        return self._commit_repaired(action, queue_ended_by)
                self._thread.is_locked_out = True
                # `is_mine`: this is the handler of a signal that interrupted a commit of this very
                # thread. Waiting for that commit would never end.
                if time.monotonic() >= deadline or self._turn.is_mine:
                    raise BusyError
                time.sleep(RETRY_SECONDS)
        finally:
            self._thread.is_locked_out = False

    def after_fork_in_child(self) -> None:
        """Drop the events that the parent writes, create new locks, and reopen the folder later."""
        self.clear()
        super().after_fork_in_child()
        self._is_awake = False
        self.identity.folder.leave_to_parent()
        self.identity.invalidate()

    def _commit_repaired(self, action: Action[_Result], queue_ended_by: float | None) -> _Result:
        """Commit. If the spool is damaged, remove the spool, count the loss, and commit once more.

        Budget and memoized responses are in the state, so the loss costs reports and no privacy.
        """
        try:
            return self._commit(action, queue_ended_by)
        except DamagedError as error:
            self._thread.on_failure(error)
            self.identity.invalidate()
            self.store.remove()
            self._counts["spool_lost"] += 1
            return self._commit(action, queue_ended_by)

    def _commit(self, action: Action[_Result], queue_ended_by: float | None) -> _Result:
        """Commit all events in memory. The events stay in memory if the commit fails."""
        self._is_awake = False
        self._refresh()
        events = self._events.copy()
        counts, self._counts = self._counts, collections.Counter()
        has_events = bool(events)
        try:
            result = self._commit_events(events, counts, action, queue_ended_by)
        except BaseException:
            self._counts.update(counts)
            raise
        # While this commit was running, other threads may have appended events, and a withdrawal
        # may have cleared the deque (IndexError). So only the committed events are removed, one by
        # one.
        with contextlib.suppress(IndexError):
            while events and self._events[0] is events.popleft():
                self._events.popleft()
        self._on_commit(has_events)
        return result

    def _refresh(self) -> None:
        """Read the state again: another process may have replaced the secret or the state."""
        self.identity.refresh()
        # `refresh`, or the opening of the identity, has found no valid state.
        if n_lost_states := self.identity.n_lost_states:
            self.identity.n_lost_states = 0
            self._counts["identity_lost"] += n_lost_states
            folder = self._settings.folder
            warn("the state in %s is lost: no metric is recorded until the year is over", folder)
        # The name of the spool contains the identifier of the secret. Another process has lost its
        # state and begun a new identity.
        if self.identity.spool != self.store.path:
            self.store.close()
            self.store.path = self.identity.spool
        if not self.store.exists():
            self.identity.folder.touch(self.store.path.name)

    def _commit_events(
        self,
        events: Sequence[Event],
        counts: collections.Counter[str],
        action: Action[_Result],
        queue_ended_by: float | None,
    ) -> _Result:
        """Commit events and an action, in an order from the table at the head of this module.

        Parameters
        ----------
        events
            Events to enter into their intervals.
        counts
            Numbers to add to the counters of the spool.
        action
            Called in the last transaction, after the decided reports were queued.
        queue_ended_by
            As in `run`.

        Returns
        -------
        object
            The result of the action.
        """
        identity, now = self.identity, self._settings.options.clock()
        with self.store.transaction(lock_seconds=_BUSY_SECONDS) as db:
            # The spool may be a copy from a backup. Its reports may have left already.
            admission.drop_outdated(db, identity.number)
            # Another process may have received a newer response of the collector.
            self._stops.reload(db)
            db.execute("SAVEPOINT before_events")
            # Reservations may be lost until the end of a year (`LostYear`). The clock may have
            # reached the next year since.
            reservations = identity.state.reservations.advance_to(day_of(now).year)
            state = identity.state.with_reservations(reservations)
            entries = Admission(db, state, self._settings.options.coins)
            for event in events:
                self._admit(entries, event, now)
            if queue_ended_by is not None:
                entries.decide_ended(AdmissionTime(queue_ended_by, now))
            # A state or reservations that have not changed are the same object as before.
            reservations, state = entries.state.reservations, entries.state
            is_reserving = reservations is not identity.state.reservations
            # The reservation must be on the disk before the spool contains a report that needs it.
            # So this round takes all events back, and writes the old scopes with the reservation.
            if is_reserving:
                db.execute("ROLLBACK TO before_events")
                state = identity.state.with_reservations(reservations)
            # No decided report changes a scope, so one transaction is enough.
            if state is identity.state:
                return self._finish(db, entries, counts, action)
            admission.note_state_number(db, identity.number + 1)
        # The end of the transaction has written the spool (step 1). This flush keeps a loss of
        # power from leaving a spool that is older than the state.
        self.store.sync()
        # Step 2.
        identity.write(state)
        # The second round reads the reservation in the state, and reserves nothing.
        if is_reserving:
            return self._commit_events(events, counts, action, queue_ended_by)
        # Step 3.
        with self.store.transaction(lock_seconds=BUSY_SECONDS) as db:
            return self._finish(db, entries, counts, action)

    def _admit(self, entries: Admission, event: Event, now: float) -> None:
        """Enter an event into its interval, and reserve the budget of its metric.

        The event is dropped if a condition of `record` no longer holds: the secret is another one,
        the person has refused the metric, the collector has stopped it, or the budget has no room
        for it. An event that takes no part in its interval reserves nothing.
        """
        name, year = event.metric.name, event.day.year
        # Consent was withdrawn and given again, which replaced the secret; or the person has
        # refused the metric.
        if event.secret_id != entries.state.secret_id or name in self._opted_out:
            return
        if self._stops.is_stopped(name, event.day):
            return
        reservations = entries.state.reservations
        if name in self.find_unaffordable(reservations, year):
            return
        # `max`: the clock was set back since the event. By the time `now` alone, the interval of
        # the event would be far in the future, and would be treated as an error of the clock.
        time_of_event = AdmissionTime(event.timestamp, max(event.timestamp, now))
        if not entries.add_event(event.request, tag=event.tag, time=time_of_event):
            return
        entries.state = entries.state.with_reservations(
            reservations.with_metric(event.metric, year)
        )

    def _finish(
        self,
        db: sqlite3.Connection,
        entries: Admission,
        counts: collections.Counter[str],
        action: Action[_Result],
    ) -> _Result:
        """Queue the decided reports, add the counts, and run the action, in one transaction."""
        entries.queue_decided(db)
        for name, n in list(counts.items()):  # the handler of a signal may still add a name
            add_count(db, name, n)
        spool.trim_queue(db, self._settings.options.queue_limits)
        return action(db)

    def close(self, *, seconds: float) -> None:
        """Close all files and end the thread. The next use opens the files again.

        Raises HungError if the files are not closed within some seconds.
        """
        deadline = time.monotonic() + seconds
        self._thread.run_within(self.close_files, seconds=seconds, is_kept_after_timeout=True)
        self._thread.end(deadline - time.monotonic())

    def end_thread(self, seconds: float) -> None:
        """End the thread, and wait for its end for some seconds at most."""
        self._thread.end(seconds)

    def close_files(self) -> None:
        """Close all files, in the folder's thread. The next use opens them again."""
        with self._turn.acquire(BUSY_SECONDS):
            self.store.close()
            self.identity.folder.close()

    def _write_waiting(self) -> float | None:
        """Commit; return the seconds until the next attempt, None if memory is empty."""
        self._is_awake = False
        seconds = _BUSY_SECONDS
        try:
            if self:
                # The deadline is now, so the thread makes one attempt to lock the folder.
                self._run(lambda _: None, time.monotonic(), None)
        except BusyError:
            pass
        except Exception as error:  # noqa: BLE001 - the thread outlives whatever fails
            self._thread.on_failure(error)
            seconds = _FAILED_SECONDS
        return seconds if self else None


_ALL: Final[weakref.WeakSet[Writer]] = weakref.WeakSet()
"""All writers of the process, whose threads end before the interpreter ends."""


@atexit.register
def _end_all() -> None:
    """Commit the events in memory when the program ends, and commit later events at once.

    All writers together wait for `_EXIT_SECONDS` at most. The end of a program once waited without
    end for a disk that hung.
    """
    deadline = time.monotonic() + _EXIT_SECONDS
    writers = list(_ALL)
    for writer in writers:
        seconds = max(deadline - time.monotonic(), 0.0)
        with contextlib.suppress(Exception):
            writer.commit(lock_seconds=seconds, disk_seconds=seconds)
    # From here on `wake` commits in the thread that records: code of the host that runs later at
    # the end of the program may still record values.
    set_ending()
    for writer in writers:
        writer.end_thread(max(deadline - time.monotonic(), 0.0))
