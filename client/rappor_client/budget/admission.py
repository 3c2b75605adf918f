"""Admission: which event of an interval becomes the report of the interval, and when it may leave.

At most one report of a metric leaves a device in an interval (a day or a week, or one day of an
epoch). It is the report of one event, chosen uniformly among the events of the interval:

    event ----> pending ----> decided ----> queued in the spool
                the event     the interval  from a random time of the next interval on, the
                is the first, is over       uploader may send the report
                or has the
                smallest tag

The choice needs no counter of events. Each event has a random tag of 64 bits, and the event with
the smallest tag is the pending report, also over restarts, other processes and forks. An event that
is not chosen leaves no trace: no scope is memoized for it, and no budget is used. If a scope is
memoized already, all of its events lead to the same permanent response, so the first event of an
interval stays.

The table `held` of the spool has one row for each interval that may still take an event:

    metric, epoch    epoch of the scope to which the report belongs
    ends, seconds    end of the interval (seconds since 1970), and its length
    tag              tag of the pending event, minus 2^63
    report           the pending report (`AdmissionRequest.to_text`), NULL after the decision

A row without a report stays until a later interval of the epoch has a row. It remembers that the
interval has had its report.

An interval is "far ahead" if it begins more than its own length after the present time. Then the
clock was wrong when the interval began, or is wrong now.

An event is entered into an interval by these rules (`_find_interval`):

    case                                              the event
    a registry has changed `epoch`, and an interval   takes no part: the two epochs would have two
    of the other epoch is open on the same day        reports in one interval
    `interval = "epoch"`, last day of the epoch       takes no part: its report would leave in the
                                                      next epoch
    no row, or the interval of the newest row is      begins an interval, if the scope allows it
    over
    the interval of the newest row is far ahead       the same: the clock was wrong when it began
    the interval is open, its report is pending       competes by its tag
    the interval is open, its report is decided       takes no part (a clock was set back)
    `interval = "epoch"`, and a later day than the    replaces the pending report: the first day
    event's has the pending report                    with an event counts

A pending report is decided by these rules (`decide_ended`):

    case                                              the report
    the interval is not over                          stays pending
    the interval is far ahead                         is decided now: the clock was wrong
    the scope has had its report in this interval     is dropped
    `interval = "epoch"`, and the epoch is over       is given up, and counted
    it was drawn from another permanent response      is drawn again from the memoized response,
    than the scope's                                  with a new id
    otherwise                                         is queued as it is

Decisions survive a kill at any moment. A report that is drawn again is on the disk before the state
that memoizes it (the order is in `outbox/writer.py`), and `LastReport.tag` identifies a report that
was decided before. So the same decision, taken again after a kill, leads to the same bytes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sqlite3
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from rappor.protocol.responses.response import Coins
from rappor.protocol.thresholds import ONE
from rappor.protocol.wire import Report, Upload
from rappor.registry.metric import name_epochs
from rappor_client.budget.metric_rules import MetricRules
from rappor_client.budget.prepared_report import PreparedReport
from rappor_client.budget.scopes import LastReport, Scope, ScopedReport, assign_scope
from rappor_client.budget.state import State
from rappor_client.folder import spool
from rappor_client.folder.spool_tables import (
    add_count,
    load_params,
    read_value,
    store_params,
    write_value,
)
from rappor_client.periods import (
    day_of,
    find_day_end,
    find_interval_end,
    get_interval_seconds,
    is_far_ahead,
)

N_TAGS: Final = 1 << 64
"""Number of tags. A tag is an integer in [0, 2^64). Two events of an interval have the same tag
with a negligible probability."""
_TAG_OFFSET: Final = 1 << 63
"""Number that is subtracted from a stored tag, because the integers of SQLite have a sign."""
_STATE_NUMBER: Final = "state_number"
"""Name of a value of the spool: version number of the state that goes with the spool."""
_EMPTY_ROW: Final = "UPDATE held SET report = NULL"


class AdmissionTime(NamedTuple):
    """Two times, in seconds since 1970. They differ for an event that waited in memory.

    Attributes
    ----------
    as_of
        Time as of which intervals are over or open: the time of the event.
    now
        Time of the clock, from which wrong clocks are recognized.
    """

    as_of: float
    now: float


class PendingReport(NamedTuple):
    """The pending report of an open interval.

    Attributes
    ----------
    metric
        Name of the metric.
    interval_end
        End of the interval, in seconds since 1970.
    body
        The upload that the report becomes, unless the report is drawn again.
    """

    metric: str
    interval_end: float
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRequest:
    """The report of an event, as it was drawn when the event happened.

    Attributes
    ----------
    rules
        Rules of the metric on the day of the event.
    prepared
        The report.
    upload_id
        Id of the upload that the report becomes.
    """

    rules: MetricRules
    prepared: PreparedReport = field(repr=False)
    upload_id: str

    def to_text(self) -> str:
        """Return the request as a JSON list, for a row of the table `held`."""
        report = self.prepared.report
        fields = (self.upload_id, self.rules.to_json(), report.params, report.cohort)
        return json.dumps([*fields, report.bits.hex(), self.prepared.permanent.hex()])

    @classmethod
    def from_text(cls, db: sqlite3.Connection, metric: str, epoch: str, text: str) -> Self:
        """Read a request that `to_text` has written, and its parameters from the spool.

        Raises ValueError, TypeError, LookupError or DamagedError for another text, which only a
        damaged spool contains.
        """
        upload_id, rules, fingerprint, cohort, *data = json.loads(text)
        bits, permanent = map(bytes.fromhex, data)
        prepared = PreparedReport(
            params=load_params(db, fingerprint),
            epoch=epoch,
            permanent=permanent,
            report=Report(metric=metric, params=fingerprint, cohort=cohort, bits=bits),
        )
        return cls(rules=MetricRules.from_json(rules), prepared=prepared, upload_id=upload_id)


class _Interval(NamedTuple):
    """The interval of an event.

    Attributes
    ----------
    end
        End, in seconds since 1970.
    seconds
        Length, in seconds.
    tag
        Tag of the pending report, None without a pending report.
    """

    end: float
    seconds: float
    tag: int | None


class _DecidedReport(NamedTuple):
    """A report that may leave.

    Attributes
    ----------
    prepared
        The report.
    upload_id
        Id of its upload.
    send_after
        Time from which the background sender may send it, in seconds since 1970.
    leaves_before
        Time at which the report is given up, in seconds since 1970; infinity if it may be late.
    """

    prepared: PreparedReport
    upload_id: str
    send_after: float
    leaves_before: float


class Admission:
    """Admission of events and decision of intervals, in one transaction of the spool.

    The caller adds events and decides intervals, then writes `state` to the disk, and then calls
    `queue_decided`.

    Parameters
    ----------
    db
        The open transaction.
    state
        State of the device, as it was read under the lock.
    coins
        Source of the coins for reports that are drawn again and for random times.

    Attributes
    ----------
    state
        State that must be on the disk before `queue_decided`.
    """

    def __init__(self, db: sqlite3.Connection, state: State, coins: Coins) -> None:
        self.state = state
        self._db = db
        self._coins = coins
        self._decided: list[_DecidedReport] = []
        # Keys (metric, epoch, end) of the intervals that are decided in this transaction. Their
        # rows change in `queue_decided` only, so that a kill before it repeats the decision.
        self._decided_keys: set[tuple[str, str, float]] = set()
        self._n_given_up = 0

    def add_event(self, request: AdmissionRequest, *, tag: int, time: AdmissionTime) -> bool:
        """Enter the report of an event into its interval; return False if it takes no part.

        True does not mean that the report is chosen.
        """
        self.decide_ended(time)
        scoped = self._assign_scope(request.rules, request.prepared)
        interval = self._find_interval(scoped.scope, time)
        if interval is None:
            return False
        # A memoized scope repeats one response, so a second event changes nothing.
        if interval.tag is not None and (self._is_memoized(scoped.scope) or tag >= interval.tag):
            return True
        if not self._is_pending(request.prepared.report.metric, tag, time):
            self._store_pending(request, scoped, interval._replace(tag=tag))
        return True

    def decide_ended(self, time: AdmissionTime) -> None:
        """Decide the pending reports of all intervals that are over.

        The head of this module lists the cases.
        """
        query = "SELECT * FROM held WHERE report IS NOT NULL ORDER BY metric, ends, epoch"
        for name, epoch, end, seconds, stored_tag, text in self._db.execute(query).fetchall():
            is_ahead = is_far_ahead(end, seconds, time.now)
            is_open = time.as_of < end and not is_ahead
            if is_open or (name, epoch, end) in self._decided_keys:
                continue
            self._decided_keys.add((name, epoch, end))
            tag = stored_tag + _TAG_OFFSET
            request = AdmissionRequest.from_text(self._db, name, epoch, text)
            scope, report = self._assign_scope(request.rules, request.prepared)
            # Registries with other epochs or intervals, or a clock that was set back, have begun a
            # second interval for the same time. Its report is dropped: it would exceed the number
            # of reports that the cost assumes.
            if not self._allows_report(scope, end, tag):
                continue
            # The device was off until its epoch was over. A report that leaves in the next epoch
            # would displace the report of that epoch, which would then be late in its turn.
            leaves_before = _find_last_time(scope)
            if time.now >= leaves_before:
                self._n_given_up += 1
                continue
            if scope.has_report_limit:
                scope = dataclasses.replace(scope, last_report=LastReport(end, tag))
            # The scope has begun with another value since the report was drawn. The new bits go
            # over the old row, so that a kill leads to the same bytes.
            if report is not request.prepared:
                request = _replace_report(request, report)
                self._write_row(request, epoch, _Interval(end, seconds, tag))
            self.state = self.state.with_scope(scope)
            # A random time of the next interval hides the time of the event. After a clock that was
            # ahead, `end` is in the future, and the random time begins now.
            send_after = min(end, time.now) + self._coins(1)[0] / ONE * seconds
            self._decided.append(
                _DecidedReport(report, request.upload_id, send_after, leaves_before)
            )

    def queue_decided(self, db: sqlite3.Connection) -> None:
        """Queue the decided reports. `state` must be on the disk."""
        if self._n_given_up:
            add_count(db, "recorded", self._n_given_up)
            add_count(db, "given_up", self._n_given_up)
        for report, upload_id, send_after, leaves_before in self._decided:
            store_params(db, report.report.params, report.params)
            spool.add_report(
                db, report.report, upload_id, send_after=send_after, leaves_before=leaves_before
            )
            add_count(db, "recorded")
        for key in self._decided_keys:
            # The newest row of an epoch stays, without its report: a clock that is set back into
            # this interval must find that the interval has had its report.
            later = "SELECT 1 FROM held WHERE metric = ? AND epoch = ? AND ends > ?"
            action = "DELETE FROM held" if db.execute(later, key).fetchone() else _EMPTY_ROW
            db.execute(f"{action} WHERE metric = ? AND epoch = ? AND ends = ?", key)

    def _assign_scope(self, rules: MetricRules, prepared: PreparedReport) -> ScopedReport:
        """Return the scope of a report, and the report drawn from the scope's response."""
        return assign_scope(self.state.scopes, rules, prepared, self._coins)

    def _is_memoized(self, scope: Scope) -> bool:
        """Return whether a scope has reported before."""
        return scope.key in self.state.scopes

    def _allows_report(self, scope: Scope, interval_end: float, tag: int) -> bool:
        """Return whether a report may leave in an interval, by the scope's memory."""
        memoized = self.state.scopes.get(scope.key)
        return memoized is None or memoized.allows_report(interval_end, tag)

    def _find_interval(self, scope: Scope, time: AdmissionTime) -> _Interval | None:
        """Return the interval of an event, None if the event takes no part.

        The head of this module lists the cases.
        """
        if self._is_open_in_other_epoch(scope, time):
            return None
        seconds = get_interval_seconds(scope.interval)
        end_of_epoch = find_day_end(scope.last_day)
        end = min(find_interval_end(scope.interval, time.as_of), end_of_epoch)
        # The report of the last day would leave in the next epoch.
        if scope.interval == "epoch" and end == end_of_epoch:
            return None
        query = (
            "SELECT ends, seconds, tag, report IS NULL FROM held WHERE metric = ? AND epoch = ? "
            "ORDER BY ends DESC LIMIT 1"
        )
        row = self._db.execute(query, (scope.metric, scope.epoch)).fetchone()
        row_end, row_seconds, row_tag, is_decided = row or (-math.inf, 0.0, 0, True)
        is_decided = is_decided or (scope.metric, scope.epoch, row_end) in self._decided_keys
        if time.as_of >= row_end or is_far_ahead(row_end, row_seconds, time.now):
            # A new interval. No tag is -1, so the scope cannot take this event for the report that
            # it has decided before.
            allows_report = self._allows_report(scope, end, -1)
            return _Interval(end, seconds, None) if allows_report else None
        # The clock was set back into an interval that has had its report.
        if is_decided:
            return None
        # The pending report is from a later day: this event waited in memory, or the clock was set
        # back. The first day with an event counts, so the later day's report is dropped.
        is_of_earlier_day = scope.interval == "epoch" and end <= row_end - row_seconds
        if is_of_earlier_day:
            query = "DELETE FROM held WHERE metric = ? AND epoch = ? AND ends = ?"
            self._db.execute(query, (scope.metric, scope.epoch, row_end))
            return _Interval(end, seconds, None)
        return _Interval(row_end, row_seconds, row_tag + _TAG_OFFSET)

    def _is_pending(self, name: str, tag: int, time: AdmissionTime) -> bool:
        """Return whether this very event is the pending report of its interval already.

        Bad case: two events of two intervals waited in memory and were entered. Then the disk
        failed, so the writer could not remove them from memory, and enters them again. The newest
        row is now the row of the second interval. The first event looked like an event of a clock
        that was set back, was entered into that row, too, and left twice under one id.
        """
        query = (
            "SELECT 1 FROM held WHERE metric = ? AND tag = ? AND report IS NOT NULL "
            "AND ends - seconds <= ? AND ends > ?"
        )
        row = self._db.execute(query, (name, tag - _TAG_OFFSET, time.as_of, time.as_of)).fetchone()
        return row is not None

    def _is_open_in_other_epoch(self, scope: Scope, time: AdmissionTime) -> bool:
        """Return whether another epoch that contains the day has an open interval of the metric.

        Bad case: a registry changes `epoch` from month to year within a week. Both epochs contain
        the day, and without this check the week had two reports.
        """
        epochs = name_epochs(day_of(time.as_of)).values()
        query = "SELECT epoch, ends, seconds FROM held WHERE metric = ? AND epoch <> ? AND ends > ?"
        rows = self._db.execute(query, (scope.metric, scope.epoch, time.as_of))
        return any(
            epoch in epochs and not is_far_ahead(end, seconds, time.now)
            for epoch, end, seconds in rows
        )

    def _store_pending(
        self, request: AdmissionRequest, scoped: ScopedReport, interval: _Interval
    ) -> None:
        """Store the report of an event as the pending report of an interval."""
        scope, report = scoped
        # A report in a new scope is stored as it was drawn. In a memoized scope, and in a scope of
        # another epoch than the registry's, only the report of that scope may leave.
        is_of_other_epoch = scope.epoch != request.prepared.epoch
        if is_of_other_epoch or self._is_memoized(scope):
            request = _replace_report(request, report)
        # A later row was entered by a clock that was ahead. From now on the open interval is the
        # newest one.
        query = "DELETE FROM held WHERE metric = ? AND epoch = ? AND ends > ?"
        self._db.execute(query, (scope.metric, scope.epoch, interval.end))
        self._write_row(request, scope.epoch, interval)

    def _write_row(self, request: AdmissionRequest, epoch: str, interval: _Interval) -> None:
        """Write the row of an interval, in place of an earlier row of the same interval."""
        assert interval.tag is not None
        prepared, stored_tag = request.prepared, interval.tag - _TAG_OFFSET
        store_params(self._db, prepared.report.params, prepared.params)
        row = (
            prepared.report.metric,
            epoch,
            interval.end,
            interval.seconds,
            stored_tag,
            request.to_text(),
        )
        self._db.execute("INSERT OR REPLACE INTO held VALUES (?, ?, ?, ?, ?, ?)", row)


def _find_last_time(scope: Scope) -> float:
    """Return the time before which a report of a scope must leave, in seconds since 1970.

    Infinity unless `interval = "epoch"`: a daily or weekly report may leave after its epoch.
    """
    return find_day_end(scope.last_day) if scope.interval == "epoch" else math.inf


def _replace_report(request: AdmissionRequest, report: PreparedReport) -> AdmissionRequest:
    """Return a request with another report and a new id; the same request for the same report.

    Two different reports must not have one id: the collector counts an id once.
    """
    if report is request.prepared:
        return request
    return AdmissionRequest(rules=request.rules, prepared=report, upload_id=Upload.new_id())


def drop_outdated(db: sqlite3.Connection, state_number: int) -> None:
    """Drop all reports of a spool that is older than the state, and note the state's number.

    A spool from a backup may contain reports that have left already. The version number of the
    state only grows, so a smaller number in the spool shows the backup. A larger number is no
    error: it is noted before the state is written, and the process was killed in between.
    """
    noted = read_value(db, _STATE_NUMBER)
    if noted is not None and noted < state_number:
        spool.drop_all(db)
        drop_all_pending(db)
    if noted is None or noted < state_number:
        write_value(db, _STATE_NUMBER, state_number)


def note_state_number(db: sqlite3.Connection, number: int) -> None:
    """Note the version number of the state that is written next."""
    write_value(db, _STATE_NUMBER, number)


def drop_pending(db: sqlite3.Connection, name: str) -> None:
    """Drop the pending reports of a metric. Their intervals stay used, and take no other event."""
    db.execute(f"{_EMPTY_ROW} WHERE metric = ?", (name,))


def drop_all_pending(db: sqlite3.Connection) -> None:
    """Drop and count the pending reports of all metrics. Their intervals stay used."""
    if n_pending := db.execute(f"{_EMPTY_ROW} WHERE report IS NOT NULL").rowcount:
        add_count(db, "dropped_old", n_pending)


def list_pending(db: sqlite3.Connection) -> list[PendingReport]:
    """Return all pending reports, by metric and end of the interval."""
    query = "SELECT * FROM held WHERE report IS NOT NULL ORDER BY metric, ends"
    pending = []
    for name, epoch, end, _, _, text in db.execute(query).fetchall():
        request = AdmissionRequest.from_text(db, name, epoch, text)
        upload = Upload(id=request.upload_id, reports=(request.prepared.report,))
        pending.append(PendingReport(name, end, upload.to_json()))
    return pending


def find_next_end(db: sqlite3.Connection) -> float | None:
    """Return the end of the first interval with a pending report, None without pending reports."""
    (end,) = db.execute("SELECT MIN(ends) FROM held WHERE report IS NOT NULL").fetchone()
    return None if end is None else float(end)
