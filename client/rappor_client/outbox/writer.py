"""The writer: keeps events in memory, and commits them to the disk in the folder's thread.

`record` appends an event to memory and returns. The life of an event:

    t = 0 ms     `add` appends the event and wakes the folder's thread
    t = 20 ms    the thread commits all events in memory, in one transaction
                 - another process has the folder's lock: next attempt after 50 ms
                 - the disk fails: the failure is counted, next attempt after 1 s
    committed    the event is in the spool, as the pending report of its interval, or it was not
                 chosen and leaves no trace

A commit holds two locks: one between threads, then one between processes. It releases both while
it waits for another process, so that a fork never copies a commit that is half done. Under the
locks it reads the state again, because another process may have changed it.

Order of the writes, if the events change the state:

    1. the spool, flushed to the disk, with the number of the state that will follow
    2. both copies of the state, flushed
    3. the spool: reports that may leave

So no report leaves whose privacy cost is not on the disk. A reservation of budget goes before all
of this, in a round of its own: `_commit_events` rolls the spool back, writes the state with the
reservation, and starts again. Without this round, a process that was killed between 1 and 2 left a
pending report in the spool without its reservation. The report left later, and a withdrawal then
renewed the budget.

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
from rappor_client.budget.admission import Admission, AdmissionRequest, AdmissionTime
from rappor_client.budget.identity import Identity
from rappor_client.budget.reservation import BudgetLimits, Reservations
from rappor_client.folder import spool
from rappor_client.folder.failures import DamagedError
from rappor_client.folder.folder_thread import FolderThread, is_ending, set_ending
from rappor_client.folder.forking import Shared
from rappor_client.folder.identity_folder import BUSY_SECONDS, RETRY_SECONDS, BusyError
from rappor_client.folder.spool_tables import add_count
from rappor_client.folder.store import Store
from rappor_client.outbox.stops import Stops
from rappor_client.periods import day_of
from rappor_client.settings import Settings

MAX_EVENTS: Final = 1000
"""Largest number of events in memory. Further events are dropped and counted (`dropped_full`). A
larger value takes more memory beside a disk that fails."""
_BUSY_SECONDS: Final = 0.05
"""Time between two attempts to lock the folder, and longest wait for the lock of the database, in
seconds. A larger value writes later beside another process."""
_FAILED_SECONDS: Final = 1.0
"""Time between two attempts to write to a disk that fails, in seconds. A smaller value takes more
CPU and logs nothing more."""
_EXIT_SECONDS: Final = 0.5
"""Longest time that the end of the program waits for the last writes."""

_Result = TypeVar("_Result")
Action = Callable[[sqlite3.Connection], _Result]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The report of a value that waits in memory.

    Attributes
    ----------
    secret_id
        Identifier of the secret under which the report was drawn.
    metric
        Entry of the registry.
    request
        The report, with the rules of the metric.
    tag
        Random tag. The event with the smallest tag becomes the report of its interval.
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
        self._unaffordable: tuple[Reservations, int, frozenset[str]] | None = None
        self._is_awake = False  # the thread has been woken since it last took the events
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
        """Return the metrics that do not fit into the budget of a year, from a cache."""
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
        # An event that was recorded after the last commit would be lost.
        if is_ending():
            with contextlib.suppress(Exception):
                self.commit(patience=_BUSY_SECONDS)
            return
        try:
            if self._is_awake:
                self._thread.ensure_started()
            else:
                self._is_awake = True
                self._thread.wake()
        except RuntimeError as error:  # no thread can start: the next call commits the events
            self._thread.on_failure(error)

    def commit(self, *, patience: float, seconds: float = BUSY_SECONDS) -> None:
        """Commit the events in memory; `patience`, `seconds` and exceptions as in `run`."""
        # Another thread may have taken the events and not committed them yet. Then this call waits
        # for that commit, so that a durable event is on the disk when `record` returns.
        if self or self._turn.is_taken:
            self.run(lambda _: None, patience=patience, seconds=seconds)

    def run(
        self,
        action: Action[_Result],
        *,
        patience: float,
        seconds: float = BUSY_SECONDS,
        release_until: float | None = None,
        synced: bool = False,
        lasting: bool = False,
    ) -> _Result:
        """Commit the events in memory, then change the spool by an action, under the lock.

        Parameters
        ----------
        action
            Called with the open transaction of the spool.
        patience
            Seconds to wait for the lock of another process.
        seconds
            Seconds to wait for the disk.
        release_until
            Time, in seconds since 1970. Pending reports of intervals that have ended by this time
            are queued first.
        synced
            Whether the change must survive a loss of power when this method returns.
        lasting
            Whether the change is made later if the disk does not answer in time.

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
        deadline = time.monotonic() + patience

        def run() -> _Result:
            result = self._run(action, deadline, release_until)
            if synced:
                self.store.sync()
            return result

        return self._thread.run_within(run, seconds=seconds, lasting=lasting)

    def change(self, action: Action[_Result], *, seconds: float) -> _Result:
        """Change the spool by an action, now or as soon as the disk answers; raises as `run`.

        The events in memory are not committed.
        """

        def change() -> _Result:
            with self.store.transaction() as db:
                return action(db)

        return self._thread.run_within(change, seconds=seconds, lasting=True)

    def read(self, action: Action[_Result], absent: _Result, *, seconds: float) -> _Result:
        """Commit the events in memory, and read the spool by an action; raises as `run`.

        Returns `absent` without a spool. A failed commit does not prevent the reading: a full disk
        can still be read.
        """

        def read() -> _Result:
            try:
                if self:
                    self._run(lambda _: None, time.monotonic() + seconds, None)
            except Exception as error:  # noqa: BLE001 - nothing of a device may stop its host
                self._thread.on_failure(error)
            if not self.store.exists():
                return absent
            with self.store.reading() as db:
                return action(db)

        return self._thread.run_within(read, seconds=seconds)

    def _run(
        self, action: Action[_Result], deadline: float, release_until: float | None
    ) -> _Result:
        """Commit and run an action in the folder's thread, once no other process has the lock."""
        try:
            while True:
                with (
                    contextlib.suppress(BusyError),
                    self._turn.acquire(deadline - time.monotonic()),
                    self.identity.folder.try_lock() as is_inside,
                ):
                    if is_inside:
                        self._thread.is_locked_out = False
                        return self._commit_repaired(action, release_until)
                self._thread.is_locked_out = True
                # `is_mine`: this is the handler of a signal that interrupted a commit of this very
                # thread. Waiting for that commit would never end.
                if time.monotonic() >= deadline or self._turn.is_mine:
                    raise BusyError
                time.sleep(RETRY_SECONDS)
        finally:
            self._thread.is_locked_out = False

    def after_fork_in_child(self) -> None:
        """Drop the events that the parent writes, create new locks and reopen the folder."""
        self.clear()
        super().after_fork_in_child()
        self._is_awake = False
        self.identity.folder.leave_to_parent()
        self.identity.invalidate()

    def _commit_repaired(self, action: Action[_Result], release_until: float | None) -> _Result:
        """Commit. A damaged spool is removed first, and the loss of its reports is counted.

        Budget and memoized responses are in the state, so the loss costs no privacy.
        """
        try:
            return self._commit(action, release_until)
        except DamagedError as error:
            self._thread.on_failure(error)
            self.identity.invalidate()
            self.store.remove()
            self._counts["spool_lost"] += 1
            return self._commit(action, release_until)

    def _commit(self, action: Action[_Result], release_until: float | None) -> _Result:
        """Commit all events in memory. The events stay in memory if the commit fails."""
        self._is_awake = False
        self._refresh()
        events = self._events.copy()
        counts, self._counts = self._counts, collections.Counter()
        has_events = bool(events)
        try:
            result = self._commit_events(events, counts, action, release_until)
        except BaseException:
            self._counts.update(counts)
            raise
        # Other threads may have appended events, and a withdrawal may have cleared the deque, while
        # this commit was running. So only its own events are removed, one by one.
        with contextlib.suppress(IndexError):
            while events and self._events[0] is events.popleft():
                self._events.popleft()
        self._on_commit(has_events)
        return result

    def _refresh(self) -> None:
        """Read the state again: another process may have replaced the secret or the state."""
        self.identity.refresh()
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
        release_until: float | None,
    ) -> _Result:
        """Commit events and an action, in the order that the head of this module describes."""
        identity, now = self.identity, self._settings.options.clock()
        with self.store.transaction(patience=_BUSY_SECONDS) as db:
            # The spool may be a copy from a backup. Its reports may have left already.
            admission.drop_outdated(db, identity.number)
            # Another process may have received a newer response of the collector.
            self._stops.reload(db)
            db.execute("SAVEPOINT before")
            # The clock may have reached another year, which ends a lost year.
            reservations = identity.state.reservations.advance_to(day_of(now).year)
            state = identity.state.with_reservations(reservations)
            entries = Admission(db, state, self._settings.options.coins)
            for event in events:
                self._admit(entries, event, now)
            if release_until is not None:
                entries.decide_ended(AdmissionTime(release_until, now))
            reservations, state = entries.state.reservations, entries.state
            is_reserving = reservations is not identity.state.reservations
            # The reservation must be on the disk before the spool contains a report that needs it.
            # A process that is killed in between would leave such a report without a reservation.
            if is_reserving:
                db.execute("ROLLBACK TO before")
                state = identity.state.with_reservations(reservations)
            # Nothing needs the state: no scope has begun, so one transaction is enough.
            if state is identity.state:
                return self._finish(db, entries, counts, action)
            admission.note_state_number(db, identity.number + 1)
        # Steps 1 to 3 of the order at the head of this module. Without this flush, a loss of power
        # could leave a spool that is older than the state. It would look like a copy from a backup,
        # and all of its reports would be dropped.
        self.store.sync()
        identity.write(state)
        # The reservation is on the disk now. The second round finds it there, and reserves nothing.
        if is_reserving:
            return self._commit_events(events, counts, action, release_until)
        with self.store.transaction(patience=BUSY_SECONDS) as db:
            return self._finish(db, entries, counts, action)

    def _admit(self, entries: Admission, event: Event, now: float) -> None:
        """Offer an event to its interval, and reserve the budget of its metric.

        The event is dropped if anything has changed since it was recorded: another secret, a metric
        that the person or the collector has stopped, or a budget that is used up. An event whose
        interval takes no further event reserves nothing.
        """
        name, year = event.metric.name, event.day.year
        # The report was drawn under a secret that is gone, or the person has refused the metric.
        if event.secret_id != entries.state.secret_id or name in self._opted_out:
            return
        if self._stops.is_stopped(name, event.day):
            return
        reservations = entries.state.reservations
        if name in self.find_unaffordable(reservations, year):
            return
        # `max`: a clock that was set back since must not make this event's interval far ahead.
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
        self._thread.run_within(self.close_files, seconds=seconds, lasting=True)
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

    Half a second is the longest wait in all, however many devices a program has: the end of a
    program once waited without end for a disk that hung.
    """
    deadline = time.monotonic() + _EXIT_SECONDS
    writers = list(_ALL)
    for writer in writers:
        seconds = max(deadline - time.monotonic(), 0.0)
        with contextlib.suppress(Exception):
            writer.commit(patience=seconds, seconds=seconds)
    set_ending()
    for writer in writers:
        writer.end_thread(max(deadline - time.monotonic(), 0.0))
