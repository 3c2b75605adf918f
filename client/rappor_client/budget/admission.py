"""One look at the spool under the lock: events come in, reports go out, the state follows.

At most one report leaves in an interval: a uniform choice among its events. Each event has a
64-bit tag, and the smallest one is held, over restarts, processes and forks. Only what is held when
the interval ends is admitted to its scope, to leave at a random time of the next interval. An event
that was not chosen leaves no trace: no scope answers for it. Where the scope repeats one permanent
response, the interval's first event is as good as any other.

An interval belongs to one epoch and ends with it at the latest; where a registry changes the epoch,
the open interval takes no further event. A clock that is set back does not reopen an interval that
has had its report. Where the held interval begins more than its own length ahead, the clock was
wrong when it began: its report goes at once.

What a scope answers is decided from the state that was read under the lock. A report that was drawn
from another permanent response is drawn again, under a new id, and is on the disk before the state
that goes with it. So the same decision, taken again after a kill, leads to the same bytes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sqlite3
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from rappor.protocol.params import ONE
from rappor.protocol.randomizer import Coins
from rappor.protocol.wire import Report, Upload
from rappor.registry.metric import name_epochs
from rappor_client.budget.prepared import Prepared
from rappor_client.budget.scopes import Answer, Scope, answer
from rappor_client.budget.state import State
from rappor_client.budget.terms import MetricRules
from rappor_client.folder import spool
from rappor_client.folder.spool_tables import (
    add_count,
    load_params,
    read_value,
    store_params,
    write_value,
)
from rappor_client.periods import after_day, day_of, interval_end, interval_seconds, is_far_ahead

TAGS: Final = 1 << 64
_SIGNED: Final = 1 << 63
"""What is taken from a tag, because the database's integers have a sign."""
_NUMBER: Final = "state_number"
_EMPTY: Final = "UPDATE held SET report = NULL"


class Moment(NamedTuple):
    """When intervals are looked at, in seconds since 1970: `at` is as of when, `now` the clock's.

    They differ for an event that is entered after the moment at which it happened.
    """

    at: float
    now: float


class Held(NamedTuple):
    """A metric's open interval: its end, in seconds since 1970, and its pending report.

    `body` is the upload that the report becomes, unless it is drawn again.
    """

    metric: str
    ends: float
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRequest:
    """A report that an event leads to, as it was drawn, with the id of its upload."""

    terms: MetricRules
    prepared: Prepared = field(repr=False)
    upload_id: str

    def to_text(self) -> str:
        """Write it, to wait for the end of an interval."""
        report = self.prepared.report
        data = (report.bits, self.prepared.permanent)
        known = (self.upload_id, self.terms.to_json(), report.params, report.cohort)
        return json.dumps([*known, *(each.hex() for each in data)])

    @classmethod
    def from_text(cls, db: sqlite3.Connection, metric: str, epoch: str, text: str) -> Self:
        """Read what `to_text` wrote; whatever else it is raises what its parts raise."""
        upload_id, terms, fingerprint, cohort, *data = json.loads(text)
        bits, permanent = map(bytes.fromhex, data)
        prepared = Prepared(
            params=load_params(db, fingerprint),
            epoch=epoch,
            permanent=permanent,
            report=Report(metric=metric, params=fingerprint, cohort=cohort, bits=bits),
        )
        return cls(terms=MetricRules.from_json(terms), prepared=prepared, upload_id=upload_id)


class _Interval(NamedTuple):
    """When an interval ends, how long it is, in seconds, and the tag that is held, if any."""

    ends: float
    seconds: float
    tag: int | None


class _Finished(NamedTuple):
    """A report that may leave from one moment on, and only before another."""

    prepared: Prepared
    upload_id: str
    due: float
    leaves_before: float


class Admission:
    """The events of one look; `state` is what the disk must hold before `finish`."""

    def __init__(self, db: sqlite3.Connection, state: State, coins: Coins) -> None:
        """Begin with the state as it was read under the lock, in a transaction of the spool."""
        self.state = state
        self._db = db
        self._coins = coins
        self._finished: list[_Finished] = []
        self._over: set[tuple[str, str, float]] = set()
        self._n_given_up = 0

    def offer(self, offered: AdmissionRequest, *, tag: int, moment: Moment) -> bool:
        """Enter the report of an event; false if it may not enter.

        It goes at once, or into the choice of its interval.
        """
        self.release(moment)
        found = self._answer(offered.terms, offered.prepared)
        interval = self._open_interval(found.scope, moment)
        if interval is None:
            return False
        # The smallest tag wins. A scope that repeats one response needs no further event.
        is_kept = interval.tag is not None and (
            self._is_memoized(found.scope) or tag >= interval.tag
        )
        if not is_kept and not self._is_entered(offered.prepared.report.metric, tag, moment):
            self._hold(offered, found, interval._replace(tag=tag))
        return True

    def release(self, moment: Moment) -> None:
        """Decide the held reports of intervals that have ended, or never were."""
        query = "SELECT * FROM held WHERE report IS NOT NULL ORDER BY metric, ends, epoch"
        for name, epoch, ends, seconds, tag, text in self._db.execute(query).fetchall():
            is_ahead = is_far_ahead(ends, seconds, moment.now)
            if (name, epoch, ends) in self._over or (moment.at < ends and not is_ahead):
                continue
            self._over.add((name, epoch, ends))
            held = AdmissionRequest.from_text(self._db, name, epoch, text)
            found = self._answer(held.terms, held.prepared)
            if not self._may_answer(found.scope, ends, tag + _SIGNED):
                continue
            leaves_before = _end_of_epoch(found.scope)
            if moment.now >= leaves_before:
                # The device was off since. In the next epoch the report would take the turn of that
                # epoch's report, which would be late in its turn.
                self._n_given_up += 1
                continue
            scope = found.scope
            if scope.is_counted:
                scope = dataclasses.replace(scope, answered=(ends, tag + _SIGNED))
            if found.report is not held.prepared:
                held = _drawn_again(held, found.report)
                self._write(held, epoch, ends, seconds, tag)  # over the one that it replaces
            self.state = self.state.with_scope(scope)
            due = min(ends, moment.now) + self._coins(1)[0] / ONE * seconds
            self._finished.append(_Finished(found.report, held.upload_id, due, leaves_before))

    def finish(self, db: sqlite3.Connection) -> None:
        """Let the decided reports wait to be sent; the disk holds the state by now."""
        if self._n_given_up:
            add_count(db, "recorded", self._n_given_up)
            add_count(db, "given_up", self._n_given_up)
        for report, upload_id, due, leaves_before in self._finished:
            store_params(db, report.report.params, report.params)
            spool.add_report(
                db, report.report, upload_id, send_after=due, leaves_before=leaves_before
            )
            add_count(db, "recorded")
        for key in self._over:
            later = "SELECT 1 FROM held WHERE metric = ? AND epoch = ? AND ends > ?"
            action = "DELETE FROM held" if db.execute(later, key).fetchone() else _EMPTY
            db.execute(f"{action} WHERE metric = ? AND epoch = ? AND ends = ?", key)

    def _answer(self, terms: MetricRules, prepared: Prepared) -> Answer:
        return answer(self.state.scopes, terms, prepared, self._coins)

    def _is_memoized(self, scope: Scope) -> bool:
        """Return whether a scope has reported before, so that all of its events are alike."""
        return scope.key in self.state.scopes

    def _may_answer(self, scope: Scope, ends: float, tag: int) -> bool:
        known = self.state.scopes.get(scope.key)
        return known is None or known.may_answer(ends, tag)

    def _open_interval(self, scope: Scope, moment: Moment) -> _Interval | None:
        """Return the interval that an event falls into; None if that has had its report."""
        if self._is_open_elsewhere(scope, moment):
            return None
        seconds = interval_seconds(scope.interval)
        ends = min(interval_end(scope.interval, moment.at), after_day(scope.last_day))
        if scope.interval == "epoch" and ends == after_day(scope.last_day):
            return None  # its report would leave in the next epoch
        query = (
            "SELECT ends, seconds, tag, report IS NULL FROM held WHERE metric = ? AND epoch = ? "
            "ORDER BY ends DESC LIMIT 1"
        )
        row = self._db.execute(query, (scope.metric, scope.epoch)).fetchone()
        open_until, length, tag, is_released = row or (-math.inf, 0.0, 0, True)
        is_released = is_released or (scope.metric, scope.epoch, open_until) in self._over
        if moment.at >= open_until or is_far_ahead(open_until, length, moment.now):
            return _Interval(ends, seconds, None) if self._may_answer(scope, ends, -1) else None
        if is_released:
            return None
        is_of_first_day = scope.interval == "epoch" and ends <= open_until - length
        if is_of_first_day:  # what is held happened after the day that is answered
            query = "DELETE FROM held WHERE metric = ? AND epoch = ? AND ends = ?"
            self._db.execute(query, (scope.metric, scope.epoch, open_until))
            return _Interval(ends, seconds, None)
        return _Interval(open_until, length, tag + _SIGNED)

    def _is_entered(self, name: str, tag: int, moment: Moment) -> bool:
        """Return whether its interval holds this very event: the disk failed after it was entered.

        A later interval may have begun since, which would take it for one of a clock set back.
        """
        query = (
            "SELECT 1 FROM held WHERE metric = ? AND tag = ? AND report IS NOT NULL "
            "AND ends - seconds <= ? AND ends > ?"
        )
        row = self._db.execute(query, (name, tag - _SIGNED, moment.at, moment.at)).fetchone()
        return row is not None

    def _is_open_elsewhere(self, scope: Scope, moment: Moment) -> bool:
        """Return whether an earlier registry's epoch that holds the day has an open interval."""
        epochs = name_epochs(day_of(moment.at)).values()
        query = "SELECT epoch, ends, seconds FROM held WHERE metric = ? AND epoch <> ? AND ends > ?"
        rows = self._db.execute(query, (scope.metric, scope.epoch, moment.at))
        return any(
            epoch in epochs and not is_far_ahead(ends, seconds, moment.now)
            for epoch, ends, seconds in rows
        )

    def _hold(self, offered: AdmissionRequest, found: Answer, interval: _Interval) -> None:
        """Hold an event's report as it was drawn, or as its scope repeats it."""
        is_of_other = found.scope.epoch != offered.prepared.epoch
        if is_of_other or self._is_memoized(found.scope):
            offered = _drawn_again(offered, found.report)
        assert interval.tag is not None
        # A later one was entered by a clock that ran ahead: the open one is the last that is known.
        query = "DELETE FROM held WHERE metric = ? AND epoch = ? AND ends > ?"
        self._db.execute(query, (found.scope.metric, found.scope.epoch, interval.ends))
        tag = interval.tag - _SIGNED
        self._write(offered, found.scope.epoch, interval.ends, interval.seconds, tag)

    def _write(
        self, offered: AdmissionRequest, epoch: str, ends: float, seconds: float, tag: int
    ) -> None:
        prepared = offered.prepared
        store_params(self._db, prepared.report.params, prepared.params)
        row = (prepared.report.metric, epoch, ends, seconds, tag, offered.to_text())
        self._db.execute("INSERT OR REPLACE INTO held VALUES (?, ?, ?, ?, ?, ?)", row)


def _end_of_epoch(scope: Scope) -> float:
    """Return the moment before which a report of a scope leaves, infinite if it may be late."""
    return after_day(scope.last_day) if scope.interval == "epoch" else math.inf


def agree(db: sqlite3.Connection, number: int) -> None:
    """Drop what waits in a spool that is older than the state: it may have left already."""
    known = read_value(db, _NUMBER)
    if known is not None and known < number:
        spool.drop_all(db)
        drop_held(db)
    if known is None or known < number:
        write_value(db, _NUMBER, number)


def follow(db: sqlite3.Connection, number: int) -> None:
    """Note the number of the state that goes with the spool; it is written next."""
    write_value(db, _NUMBER, number)


def forget(db: sqlite3.Connection, name: str) -> None:
    """Drop the held reports of a metric, but not the record that their intervals were entered."""
    db.execute(f"{_EMPTY} WHERE metric = ?", (name,))


def drop_held(db: sqlite3.Connection) -> None:
    """Drop the held reports of all metrics, as `forget` does."""
    if n_held := db.execute(f"{_EMPTY} WHERE report IS NOT NULL").rowcount:
        add_count(db, "dropped_old", n_held)


def held(db: sqlite3.Connection) -> list[Held]:
    """Return every report that is held for its interval, by metric."""
    query = "SELECT * FROM held WHERE report IS NOT NULL ORDER BY metric, ends"
    found = []
    for name, epoch, ends, _, _, text in db.execute(query).fetchall():
        offered = AdmissionRequest.from_text(db, name, epoch, text)
        upload = Upload(id=offered.upload_id, reports=(offered.prepared.report,))
        found.append(Held(name, ends, upload.to_json()))
    return found


def next_end(db: sqlite3.Connection) -> float | None:
    """Return the moment when the next held report may go, None if none is held."""
    (ends,) = db.execute("SELECT MIN(ends) FROM held WHERE report IS NOT NULL").fetchone()
    return None if ends is None else float(ends)


def _drawn_again(offered: AdmissionRequest, report: Prepared) -> AdmissionRequest:
    """Return the same with another report, and its id with it; with its own, the very same."""
    if report is offered.prepared:
        return offered
    return AdmissionRequest(terms=offered.terms, prepared=report, upload_id=Upload.new_id())
