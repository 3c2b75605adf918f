"""The write-behind buffer of a device: events wait in memory, and the folder's thread commits them.

`record` only appends an event to memory. A commit holds two locks: one between threads, then one
between processes. It releases both while it waits for another process, so that a fork never copies
a half-done commit. Under the locks it reads the state of the device again. If the events change the
state, the order of writes is: the spool, flushed; both copies of the state, flushed; then the
reports that may leave. So no report ever leaves whose privacy cost is not on the disk.

The child of a fork drops the events that its parent has not written: the parent writes them.
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
from rappor_client.budget.admission import Admission, AdmissionRequest, Moment
from rappor_client.budget.identity import Identity
from rappor_client.budget.reservation import Limits, Reserved
from rappor_client.folder import spool
from rappor_client.folder.counters import count
from rappor_client.folder.failures import DamagedError
from rappor_client.folder.folder_thread import FolderThread, is_ending, set_ending
from rappor_client.folder.forking import Shared
from rappor_client.folder.own_folder import BUSY_SECONDS, RETRY_SECONDS, BusyError
from rappor_client.folder.store import Store
from rappor_client.outbox.stops import Stops
from rappor_client.periods import day_of
from rappor_client.settings import Settings

MOST_EVENTS: Final = 1000
"""Largest number of events in memory. Further events are dropped and counted (`dropped_full`)."""
_BUSY_SECONDS: Final = 0.05
"""Time between two attempts to lock the folder, and longest wait for the lock of the database."""
_FAILED_SECONDS: Final = 1.0
"""Seconds that pass between two attempts to write to a disk that fails."""
_EXIT_SECONDS: Final = 0.5
"""Longest time that the end of the program waits for the last writes."""

_Result = TypeVar("_Result")
Action = Callable[[sqlite3.Connection], _Result]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The report of a value, and its tag.

    `mark` names the secret that it was prepared under, `now` is when, in seconds since 1970.
    """

    mark: bytes
    metric: Metric
    offered: AdmissionRequest
    tag: int
    now: float

    @property
    def day(self) -> datetime.date:
        """The day of the event."""
        return day_of(self.now)


class Writer(Shared):
    """Commits the events of one device."""

    def __init__(
        self,
        identity: Identity,
        settings: Settings,
        stops: Stops,
        thread: FolderThread,
        *,
        refused: Collection[str],
        on_commit: Callable[[bool], object],
    ) -> None:
        """Create the buffer of an identity.

        `refused` is the live set of the metrics that the person refuses. `on_commit` is called
        after each commit, with whether the commit had events.
        """
        self._refused = refused
        self.identity = identity
        self._settings = settings
        self._stops = stops
        self._on_commit = on_commit
        self._limits = Limits.of(settings.registry, settings.options.budget_cap)
        self._events = collections.deque[Event]()
        self._counts = collections.Counter[str]()
        self._silent: tuple[Reserved, int, frozenset[str]] | None = None
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
        if len(self._events) >= MOST_EVENTS:
            self._counts["dropped_full"] += 1
            self.wake()
            return False
        self._events.append(event)
        self.wake()
        return True

    def count(self, name: str) -> None:
        """Add one to a counter, with the next commit."""
        self._counts[name] += 1

    def silent(self, reserved: Reserved, year: int) -> frozenset[str]:
        """Return the metrics that do not fit into the budget of a year, from a cache."""
        known = self._silent
        if known is None or known[0] is not reserved or known[1] != year:
            silent = reserved.silent_metrics(self._settings.registry, self._limits, year)
            known = self._silent = (reserved, year, silent)
        return known[2]

    def clear(self) -> None:
        """Drop the events and counts in memory."""
        self._events.clear()
        self._counts.clear()

    def wake(self) -> None:
        """Let the folder's thread commit soon; it may be called in a signal's handler."""
        if is_ending():  # nothing else is to come
            with contextlib.suppress(Exception):
                self.commit(patience=_BUSY_SECONDS)
            return
        try:
            if self._is_awake:
                self._thread.ensure_started()
            else:
                self._is_awake = True
                self._thread.wake()
        except RuntimeError as error:  # no thread can be had: the next call writes what waits
            self._thread.on_failure(error)

    def commit(self, *, patience: float, seconds: float = BUSY_SECONDS) -> None:
        """Write what waits in memory; `patience`, `seconds` and exceptions as in `run`."""
        if self or self._turn.is_taken:  # another thread may have taken them
            self.run(lambda _: None, patience=patience, seconds=seconds)

    def run(
        self,
        action: Action[_Result],
        *,
        patience: float,
        seconds: float = BUSY_SECONDS,
        at: float | None = None,
        synced: bool = False,
        lasting: bool = False,
    ) -> _Result:
        """Write what waits in memory, and then let an action change the spool, under the lock.

        Parameters
        ----------
        patience
            Seconds to wait for the lock of another process.
        seconds
            Seconds to wait for the disk.
        at
            The reports of intervals that are over by this time leave their interval first.
        synced
            Whether the change must survive a loss of power when this method returns.
        lasting
            Whether the change is made later if the disk does not answer in time.

        Raises
        ------
        HungError
            The disk did not answer in time.
        BusyError
            Somebody else keeps a lock.
        GoneError
            Consent was withdrawn.
        sqlite3.Error, OSError, DamagedError
            The disk fails.
        """
        deadline = time.monotonic() + patience

        def run() -> _Result:
            result = self._run(action, deadline, at)
            if synced:
                self.store.sync()
            return result

        return self._thread.ask(run, seconds=seconds, lasting=lasting)

    def change(self, action: Action[_Result], *, seconds: float) -> _Result:
        """Let an action change the spool, now or as soon as the disk answers; it raises as `run`.

        What waits in memory is not written.
        """

        def change() -> _Result:
            with self.store.transaction() as db:
                return action(db)

        return self._thread.ask(change, seconds=seconds, lasting=True)

    def read(self, action: Action[_Result], absent: _Result, *, seconds: float) -> _Result:
        """Write what waits in memory, and let an action read the spool; it raises as `run`.

        Returns `absent` where there is no spool. A failed write does not keep from reading.
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

        return self._thread.ask(read, seconds=seconds)

    def _run(self, action: Action[_Result], deadline: float, at: float | None) -> _Result:
        """Run an action in the folder's thread, once no other process has the lock."""
        try:
            while True:
                with (
                    contextlib.suppress(BusyError),
                    self._turn.taken(deadline - time.monotonic()),
                    self.identity.folder.attempt() as is_inside,
                ):
                    if is_inside:
                        self._thread.is_locked_out = False
                        return self._mended(action, at)
                self._thread.is_locked_out = True
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
        self.identity.look_again()

    def _mended(self, action: Action[_Result], at: float | None) -> _Result:
        """Commit; remove a damaged spool first, and count the loss of its reports."""
        try:
            return self._write(action, at)
        except DamagedError as error:
            self._thread.on_failure(error)
            self.identity.look_again()
            self.store.remove()
            self._counts["spool_lost"] += 1
            return self._write(action, at)

    def _write(self, action: Action[_Result], at: float | None) -> _Result:
        """Commit all events in memory; they stay in memory if the commit fails."""
        self._is_awake = False
        self._refresh()
        events = self._events.copy()
        counts, self._counts = self._counts, collections.Counter()
        is_new = bool(events)
        try:
            result = self._write_all(events, counts, action, at)
        except BaseException:
            self._counts.update(counts)
            raise
        with contextlib.suppress(IndexError):  # a withdrawal forgets them meanwhile
            while events and self._events[0] is events.popleft():
                self._events.popleft()
        self._on_commit(is_new)
        return result

    def _refresh(self) -> None:
        """Read the state again: another process may have replaced the secret or the state."""
        self.identity.refresh()
        if self.identity.spool != self.store.path:
            self.store.close()
            self.store.path = self.identity.spool
        if not self.store.exists():
            self.identity.folder.touch(self.store.path.name)

    def _write_all(
        self,
        events: Sequence[Event],
        counts: collections.Counter[str],
        action: Action[_Result],
        at: float | None,
    ) -> _Result:
        identity, now = self.identity, self._settings.options.clock()
        with self.store.transaction(patience=_BUSY_SECONDS) as db:
            admission.agree(db, identity.number)
            self._stops.recall(db)  # another process may have been asked
            db.execute("SAVEPOINT before")
            reserved = identity.state.reserved.followed(day_of(now).year)
            look = Admission(
                db, identity.state.with_reserved(reserved), self._settings.options.coins
            )
            for event in events:
                self._enter(look, event, now)
            if at is not None:
                look.release(Moment(at, now))
            reserved, state = look.state.reserved, look.state
            is_reserving = reserved is not identity.state.reserved
            if is_reserving:  # before the spool has what needs it: it leaves whoever is killed
                db.execute("ROLLBACK TO before")
                state = identity.state.with_reserved(reserved)
            if state is identity.state:
                return self._finish(db, look, counts, action)
            admission.follow(db, identity.number + 1)
        self.store.sync()
        identity.write(state)
        if is_reserving:
            return self._write_all(events, counts, action, at)
        with self.store.transaction(patience=BUSY_SECONDS) as db:
            return self._finish(db, look, counts, action)

    def _enter(self, look: Admission, event: Event, now: float) -> None:
        """Enter an event, unless the person, the budget or the collector has stopped its metric."""
        name, year = event.metric.name, event.day.year
        if event.mark != look.state.mark or name in self._refused:
            return
        if self._stops.is_stopped(name, event.day):
            return
        reserved = look.state.reserved
        if name in self.silent(reserved, year):
            return
        moment = Moment(event.now, max(event.now, now))
        if not look.offer(event.offered, tag=event.tag, moment=moment):
            return  # what takes no part reserves nothing
        look.state = look.state.with_reserved(reserved.with_metric(event.metric, year))

    def _finish(
        self,
        db: sqlite3.Connection,
        look: Admission,
        counts: collections.Counter[str],
        action: Action[_Result],
    ) -> _Result:
        look.finish(db)
        for name, n in list(counts.items()):  # a signal may still add to them
            count(db, name, n)
        spool.trim(db, self._settings.options.queue_limits)
        return action(db)

    def close(self, *, seconds: float) -> None:
        """Close all files, and end the thread; the next use opens them again.

        Raises HungError where that is not done within some seconds.
        """
        deadline = time.monotonic() + seconds
        self._thread.ask(self.close_files, seconds=seconds, lasting=True)
        self._thread.end(deadline - time.monotonic())

    def end_thread(self, seconds: float) -> None:
        """End the thread, and wait for its end for some seconds at most."""
        self._thread.end(seconds)

    def close_files(self) -> None:
        """Close all files, in the folder's thread; the next use opens them again."""
        with self._turn.taken(BUSY_SECONDS):
            self.store.close()
            self.identity.folder.close()

    def _write_waiting(self) -> float | None:
        """Commit; return the seconds until the next attempt, None if nothing waits any more."""
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
"""All objects whose threads the end of the program ends."""


@atexit.register
def _at_exit() -> None:
    """Write what waits in memory when the program ends, and at once what comes after."""
    deadline = time.monotonic() + _EXIT_SECONDS
    writers = list(_ALL)
    for writer in writers:
        seconds = max(deadline - time.monotonic(), 0.0)
        with contextlib.suppress(Exception):
            writer.commit(patience=seconds, seconds=seconds)
    set_ending()
    for writer in writers:
        writer.end_thread(max(deadline - time.monotonic(), 0.0))
