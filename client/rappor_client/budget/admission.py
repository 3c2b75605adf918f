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

How the writer uses this module, in a transaction of the spool:

    admission = Admission(db, state, coins)
    admission.add_event(...)             for each event in memory; decides older intervals first
    admission.decide_ended(...)          if reports should leave now
    (write `admission.state` to the disk, unless it is still the object `state`)
    admission.queue_decided(db)          decided reports become uploads

What changes where:

    `add_event`       a row of the table of pending reports (`budget/pending_reports.py`), which has
                      one row for each interval
    `decide_ended`    `Admission.state`, in memory: the scope begins, or gets its last report. The
                      row changes only if the report is drawn again
    `queue_decided`   the spool: the upload is queued, and the row is deleted or loses its report

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
    the interval is open, its report is decided       takes no part: a clock was set back, or the
    or dropped                                        person had refused the metric
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
import math
import sqlite3
from typing import Final, NamedTuple

from rappor.protocol.responses.response import Coins
from rappor.protocol.thresholds import ONE
from rappor.protocol.wire import Upload
from rappor.registry.metric import name_epochs
from rappor_client.budget import pending_reports
from rappor_client.budget.metric_rules import MetricRules
from rappor_client.budget.pending_reports import AdmissionRequest, IntervalRow, RowKey
from rappor_client.budget.prepared_report import PreparedReport
from rappor_client.budget.scopes import LastReport, Scope, ScopedReport, assign_scope
from rappor_client.budget.state import State
from rappor_client.folder import spool
from rappor_client.folder.spool_tables import add_count, read_value, store_params, write_value
from rappor_client.periods import (
    day_of,
    find_day_end,
    find_interval_end,
    get_interval_seconds,
    is_far_ahead,
)

_STATE_NUMBER: Final = "state_number"
"""Name of a value of the spool: version number of the state that goes with the spool."""


class AdmissionTime(NamedTuple):
    """Two times, in seconds since 1970. They differ for an event that waited in memory.

    Attributes
    ----------
    as_of
        Time at which intervals are over or open. For an event, the time of the event. For a
        decision without an event, the time that the caller passes.
    now
        Time of the clock, from which wrong clocks are recognized.
    """

    as_of: float
    now: float


class _Interval(NamedTuple):
    """The interval of an event.

    Attributes
    ----------
    end
        End, in seconds since 1970.
    seconds
        Length, in seconds.
    tag
        Tag of the pending event, None if the interval has no event yet.
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
        # The intervals that are decided in this transaction. Their rows change in `queue_decided`
        # only, so that a kill before it repeats the decision.
        self._decided_keys: set[RowKey] = set()
        # Number of decided reports that are too late for their epoch.
        self._n_given_up = 0

    def add_event(self, request: AdmissionRequest, *, tag: int, time: AdmissionTime) -> bool:
        """Enter the report of an event into its interval; return False if it takes no part.

        True does not mean that the report is chosen. The head of this module lists the cases.

        Parameters
        ----------
        request
            The report.
        tag
            Tag of the event, in [0, 2^64).
        time
            Time of the event, and time of the clock.
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
        """Decide the pending reports of all intervals that are over."""
        for row in pending_reports.list_undecided(self._db):
            is_ahead = is_far_ahead(row.end, row.seconds, time.now)
            is_open = time.as_of < row.end and not is_ahead
            if not is_open and row.key not in self._decided_keys:
                self._decided_keys.add(row.key)
                self._decide(row, time)

    def _decide(self, row: IntervalRow, time: AdmissionTime) -> None:
        """Decide the pending report of an interval. The head of this module lists the cases."""
        request = row.read_request(self._db)
        scope, report = self._assign_scope(request.rules, request.prepared)
        # Registries with other epochs or intervals, or a clock that was set back, have begun a
        # second interval for the same time. Its report is dropped: it would exceed the number of
        # reports that the cost assumes.
        if not self._allows_report(scope, row.end, row.tag):
            return
        # The device was off until its epoch was over. One report leaves in an epoch. So a report
        # that leaves in the next epoch would delay that epoch's own report beyond its end.
        leaves_before = _find_last_time(scope)
        if time.now >= leaves_before:
            self._n_given_up += 1
            return
        if scope.has_report_limit:
            scope = dataclasses.replace(scope, last_report=LastReport(row.end, row.tag))
        # The scope has begun with another value since the report was drawn. The new bits go over
        # the old row, so that a kill leads to the same bytes.
        if report is not request.prepared:
            request = _replace_report(request, report)
            interval = _Interval(row.end, row.seconds, row.tag)
            self._write_row(request, row.epoch, interval)
        self.state = self.state.with_scope(scope)
        # A random time of the next interval hides the time of the event. After a clock that was
        # ahead, `row.end` is in the future, and the random time begins now.
        send_after = min(row.end, time.now) + self._coins(1)[0] / ONE * row.seconds
        self._decided.append(_DecidedReport(report, request.upload_id, send_after, leaves_before))

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
            pending_reports.finish_row(db, key)

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
        row = pending_reports.find_newest(self._db, scope.metric, scope.epoch)
        if row is None or time.as_of >= row.end or is_far_ahead(row.end, row.seconds, time.now):
            # The event opens a new interval. `allows_report` accepts the tag of the last report,
            # so that a decision may be repeated after a kill. A new event must not pass by this
            # rule. No tag is -1, so the rule does not apply.
            allows_report = self._allows_report(scope, end, -1)
            return _Interval(end, seconds, None) if allows_report else None
        # The clock was set back into an interval that has had its report.
        if row.report is None or row.key in self._decided_keys:
            return None
        # The pending report is from a later day: this event waited in memory, or the clock was set
        # back. The first day with an event counts, so the later day's report is dropped.
        is_of_earlier_day = scope.interval == "epoch" and end <= row.end - row.seconds
        if is_of_earlier_day:
            pending_reports.delete_row(self._db, row.key)
            return _Interval(end, seconds, None)
        return _Interval(row.end, row.seconds, row.tag)

    def _is_pending(self, metric: str, tag: int, time: AdmissionTime) -> bool:
        """Return whether this very event is the pending report of its interval already.

        Bad case: two events of two intervals waited in memory and were entered. Then the disk
        failed, so the writer could not remove them from memory, and enters them again. The newest
        row is now the row of the second interval. The first event looked like an event of a clock
        that was set back, was entered into that row, too, and left twice under one id.
        """
        return pending_reports.is_pending(self._db, metric, tag, time.as_of)

    def _is_open_in_other_epoch(self, scope: Scope, time: AdmissionTime) -> bool:
        """Return whether another epoch that contains the day has an open interval of the metric.

        Bad case: a registry changes `epoch` from month to year within a week. Both epochs contain
        the day, and without this check the week had two reports.
        """
        epochs = name_epochs(day_of(time.as_of)).values()
        rows = pending_reports.list_of_other_epochs(
            self._db, scope.metric, scope.epoch, end_after=time.as_of
        )
        return any(
            row.epoch in epochs and not is_far_ahead(row.end, row.seconds, time.now) for row in rows
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
        key = (scope.metric, scope.epoch, interval.end)
        pending_reports.delete_later_rows(self._db, key)
        self._write_row(request, scope.epoch, interval)

    def _write_row(self, request: AdmissionRequest, epoch: str, interval: _Interval) -> None:
        """Write the row of an interval with a pending report."""
        end, seconds, tag = interval
        assert tag is not None
        pending_reports.write_row(self._db, request, epoch=epoch, end=end, seconds=seconds, tag=tag)


def _find_last_time(scope: Scope) -> float:
    """Return the time before which a report of a scope must leave, in seconds since 1970.

    The time is infinite unless `interval = "epoch"`, because a daily or weekly report may leave
    after its epoch.
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

    The spool notes the version number of the state with which it was written last. The number only
    grows. The cases:

        number in the spool    cause                                         reports
        none                   the spool is new                              stay
        as that of the state   nothing has happened                          stay
        larger                 a kill between the note and the write of      stay
                               the state
        smaller                the spool is a copy from a backup; its        are dropped
                               reports may have left already
    """
    noted = read_value(db, _STATE_NUMBER)
    if noted is not None and noted < state_number:
        spool.drop_all(db)
        pending_reports.drop_all_pending(db)
    if noted is None or noted < state_number:
        write_value(db, _STATE_NUMBER, state_number)


def note_state_number(db: sqlite3.Connection, number: int) -> None:
    """Note the version number of the state that is written next."""
    write_value(db, _STATE_NUMBER, number)
