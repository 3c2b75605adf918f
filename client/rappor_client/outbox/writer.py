"""Puts what was recorded on the disk: the events wait in memory, one thread commits them.

`record` only appends to memory. Whoever commits holds a lock between threads and then one between
processes, and releases both while it waits for another process, so that a fork finds nothing
half done. A commit reads the state again under the lock. If events change the state, the spool has
what goes with it first, then both copies of the state are replaced, and then the reports may leave.

A child of a fork drops what its parent has not written.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import datetime
import queue
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from rappor.base.threads import begin
from rappor.registry.metric import Metric
from rappor_client.budget import admission
from rappor_client.budget.admission import Admission, AdmissionRequest, Moment
from rappor_client.budget.identity import Identity
from rappor_client.budget.reservation import Limits, Reserved
from rappor_client.folder import spool
from rappor_client.folder.counters import count
from rappor_client.folder.failures import DamagedError
from rappor_client.folder.forking import Shared
from rappor_client.folder.own_folder import BUSY_SECONDS, RETRY_SECONDS, BusyError
from rappor_client.folder.store import Store
from rappor_client.outbox.stops import Stops
from rappor_client.periods import day_of
from rappor_client.settings import Settings

MOST_EVENTS: Final = 1000
"""What waits in memory at most."""
_GATHER_SECONDS: Final = 0.02
_BUSY_SECONDS: Final = 0.05
"""How often the thread asks again for a lock; and how long it waits for the database's."""
_FAILED_SECONDS: Final = 1.0
_IDLE_SECONDS: Final = 1.0
_EXIT_SECONDS: Final = 0.5
_LOOK_SECONDS: Final = 0.001

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
        *,
        refused: Collection[str],
        on_commit: Callable[[bool], object],
        on_failure: Callable[[Exception], object],
    ) -> None:
        """Keep what to write to, and whom to tell; `on_commit` hears whether anything is new.

        `refused` are the metrics that the person refuses; they may become more.
        """
        self._refused = refused
        self.identity = identity
        self._settings = settings
        self._stops = stops
        self._on_commit = on_commit
        self._on_failure = on_failure
        self._limits = Limits.of(settings.registry, settings.options.budget_cap)
        self._events = collections.deque[Event]()
        self._counts = collections.Counter[str]()
        self._silent: tuple[Reserved, int, frozenset[str]] | None = None
        self._is_awake = False
        self._begin_anew()
        super().__init__()
        self.store = Store(identity.spool)
        _ALL.add(self)

    def __bool__(self) -> bool:
        """Return whether something waits in memory."""
        return bool(self._events or self._counts)

    def add(self, event: Event) -> bool:
        """Let an event wait to be written; false if too many do: it is dropped and counted."""
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
        """Return the metrics that have no room in a year's budget."""
        known = self._silent
        if known is None or known[0] is not reserved or known[1] != year:
            silent = reserved.silent_metrics(self._settings.registry, self._limits, year)
            known = self._silent = (reserved, year, silent)
        return known[2]

    def clear(self) -> None:
        """Forget what waits in memory."""
        self._events.clear()
        self._counts.clear()

    def wake(self) -> None:
        """Let the thread commit soon; it may be called in a signal's handler."""
        if _ENDED.is_set():  # nothing else is to come
            with contextlib.suppress(Exception):
                self.commit(patience=_BUSY_SECONDS)
            return
        if not self._is_awake:
            self._is_awake = True
            self._tokens.put(None)
        if not self._has_thread():
            self._start()

    def commit(self, *, patience: float) -> None:
        """Write what waits in memory, within some seconds; it raises as `run` does."""
        if self or self._turn.is_taken:  # another thread may have taken them
            self.run(lambda _: None, patience=patience)

    def run(self, action: Action[_Result], *, patience: float, at: float | None = None) -> _Result:
        """Write what waits in memory, and then let an action change the spool, under the lock.

        With `at`, the reports of intervals that are over by then leave their interval first. Raises
        BusyError where somebody else keeps a lock, GoneError once consent was withdrawn, and
        sqlite3.Error, OSError or DamagedError where the disk fails.
        """
        deadline = time.monotonic() + patience
        while True:
            with (
                contextlib.suppress(BusyError),
                self._turn.taken(deadline - time.monotonic()),
                self.identity.folder.attempt() as is_inside,
            ):
                if is_inside:
                    return self._mended(action, at)
            if time.monotonic() >= deadline or self._turn.is_mine:
                raise BusyError
            time.sleep(RETRY_SECONDS)

    def after_fork_in_child(self) -> None:
        """Forget what the parent will write, and take new locks: its threads are not here."""
        self.clear()
        super().after_fork_in_child()
        self._begin_anew()
        self.identity.folder.leave_to_parent()
        self.identity.look_again()

    def _begin_anew(self) -> None:
        self._tokens = queue.SimpleQueue[None]()
        self._hurry = threading.Event()
        self._is_awake = False
        self._is_late = False  # the thread has failed, and tries again
        self._thread: threading.Thread | None = None

    def _mended(self, action: Action[_Result], at: float | None) -> _Result:
        """Write; a damaged spool is removed, and written anew without what it held."""
        try:
            return self._write(action, at)
        except DamagedError as error:
            self._on_failure(error)
            self.identity.look_again()
            self.store.remove()
            self._counts["spool_lost"] += 1
            return self._write(action, at)

    def _write(self, action: Action[_Result], at: float | None) -> _Result:
        """Take all events and write them; they wait on where that fails."""
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
        """Look at the folder again: it may be another device by now, or another year."""
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
        """Enter an event, unless its metric is silent: by person, budget or collector."""
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

    def close(self) -> None:
        """Close all files, which the next use opens again; BusyError where a disk hangs."""
        with self._turn.taken(BUSY_SECONDS):
            self.store.close()
            self.identity.folder.close()

    def finish(self, seconds: float) -> None:
        """Have written what waits in memory, within some seconds; it raises as `run` does.

        The thread writes it, unless there is none or it has failed: whoever writes in its place to
        a disk that hangs waits without end.
        """
        deadline = time.monotonic() + seconds
        self._hurry.set()
        while self._is_writing() and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        self._hurry.clear()
        self.commit(patience=max(deadline - time.monotonic(), 0.0))

    def _is_writing(self) -> bool:
        if not self._has_thread() or self._is_late or self._turn.is_mine:
            return False
        return bool(self or self._turn.is_taken)

    def _has_thread(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _start(self) -> None:
        """Start the thread; where none is to be had, what waits is written by the next call."""
        thread = threading.Thread(target=self._run, name="rappor-writer", daemon=True)
        self._thread = thread
        try:
            begin(thread)
        except RuntimeError as error:
            self._thread = None
            self._on_failure(error)

    def _run(self) -> None:
        """Commit until nothing has come for a while; the next event starts another thread."""
        tokens = self._tokens
        while True:
            try:
                tokens.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                self._thread = None
                if tokens.empty():
                    return
                self._thread = threading.current_thread()
                continue
            self._hurry.wait(_GATHER_SECONDS)
            self._commit_soon()

    def _commit_soon(self) -> None:
        """Commit, however often that must be tried."""
        self._is_awake = False
        while self:
            seconds = _BUSY_SECONDS
            try:
                self.commit(patience=0.0)
                self._is_late = False
            except BusyError:
                self._is_late = True
            except Exception as error:  # noqa: BLE001 - the thread outlives whatever fails
                self._on_failure(error)
                self._is_late, seconds = True, _FAILED_SECONDS
            if self:
                time.sleep(seconds)


_ALL: Final[weakref.WeakSet[Writer]] = weakref.WeakSet()
_ENDED: Final = threading.Event()
"""Whether the program ends: its last writes have been asked for."""


@atexit.register
def _at_exit() -> None:
    """Write what waits in memory when the program ends, and at once what comes after."""
    _ENDED.set()
    for writer in list(_ALL):
        with contextlib.suppress(Exception):
            writer.finish(_EXIT_SECONDS)
