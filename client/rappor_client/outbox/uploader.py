"""The uploader: chooses a queued upload that may be sent now, sends it once, records the result.

An upload contains one report. `Uploader.step` makes one step, with one attempt at most. A step
never sleeps and starts no thread. It returns the time of the next step. Two callers wait for this
time and make the steps: the background sender, and a flush (`Client.flush`).

States of an upload in the spool:

    untried --claim--> claimed --response--> accepted, or refused: REASON        (for good)
                          |
                          +--failure--> waits for its backoff --claim--> claimed --> ...
                          |
                          +--the process is killed: the claim ends after 2 s, next attempt
    untried or tried --too late--> given_up                                      (for good)

Invariants:

- State and spool are on the disk before an upload leaves. So no report leaves under two ids, and a
  retry sends the same bytes. A collector that gets an upload twice counts it once.
- At most one report of a metric leaves the device in an interval. Blocks of the collector depend on
  this limit. So days without network do not end in several reports of one device on one day.
- The time of an upload does not reveal the time of its event.

Seven waits can hold an upload up:

    wait         holds up     for                                      ignored by
    send_after   an upload    a random time of the next interval       a flush
    claim        an upload    2 s, in which another process may be     never
                              sending the upload
    backoff      an upload    a random time up to 5, 10, 20, ... s     a flush, for uploads that
                              after a failure, at most 1 h             it has not tried
    pause        all uploads  as backoff, by the number of failures    the first attempt of a
                              in a row                                 flush
    Retry-After  all uploads  the time that the collector requests,    never
                              at most 23 h
    cooldown     a metric     the rest of the interval of its last     never
                              attempt
    spread       a metric     after a cooldown, a random part of the   a flush, and reports of an
                              next interval                            earlier run (backlog)

The collector can also stop a metric for some days (`outbox/stops.py`).

Example: a daily metric, and a device that was offline from October 3 to 5.

    Oct 2            an event. Its report gets send_after = Oct 3, 14:00
    Oct 3, 4         events. Their reports get send_after = Oct 4, 09:00 and Oct 5, 20:00
    Oct 5, 08:00     online. The report of Oct 2 leaves. The cooldown ends on Oct 6, 00:00
    Oct 6, 06:00     the report of Oct 3 leaves. Its send_after passed during the cooldown, so the
                     background sender spreads it over Oct 6 (here by a quarter of the day). A flush
                     would have sent it at 00:00
    Oct 7, ...       the report of Oct 4
    Oct 12, 20:00    a report with send_after = Oct 5, 20:00 that is still untried is given up,
                     unless it is the newest report of its metric

Clocks may be wrong. A wait that is longer than the longest wait that this module sets was computed
by a clock that was ahead, so the wait is ignored. An upload whose first attempt was in the future,
or more than a year ago, is not given up: one of the two clock readings is wrong.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from rappor.protocol.params import INTERVALS
from rappor.protocol.responses.response import Coins
from rappor.protocol.thresholds import ONE
from rappor.registry.metric import name_epochs
from rappor_client.budget import admission
from rappor_client.folder import spool
from rappor_client.folder.forking import Turn
from rappor_client.folder.identity_folder import (
    BusyError,
    GoneError,
    HungError,
    compute_lock_seconds,
)
from rappor_client.folder.spool import CLAIM_SECONDS, GIVE_UP_SECONDS, QueuedUpload
from rappor_client.folder.spool_tables import read_value, write_value
from rappor_client.network.transport import Transport, TransportResponse, UploadError
from rappor_client.outbox.flush_result import FlushReason, Step
from rappor_client.outbox.stops import Stops
from rappor_client.outbox.writer import Action, Writer
from rappor_client.periods import (
    DAY,
    HOUR,
    WEEK,
    day_of,
    find_interval_end,
    get_interval_seconds,
    is_far_ahead,
)
from rappor_client.settings import Settings

REQUEST_SECONDS: Final = 30.0
"""Longest duration of one request, in seconds. A longer limit reaches slower collectors, and holds
up all other uploads longer."""
_MIN_REQUEST_SECONDS: Final = 0.001
"""Shortest timeout of a request, in seconds. A socket takes 0 for "do not wait", and refuses
negative numbers."""
_FIRST_BACKOFF_SECONDS: Final = 5.0
"""Largest backoff after the first attempt, in seconds. Every further attempt doubles the limit."""
_MAX_BACKOFF_SECONDS: Final = HOUR
"""Largest backoff, in seconds. A larger value sends later after an outage of the collector."""
_MAX_WAIT_SECONDS: Final = DAY
"""Largest wait that this module sets, in seconds. A longer wait was set by a wrong clock."""
_IMPLAUSIBLE_SECONDS: Final = 365 * DAY
"""Time between two attempts, in seconds, from which on one of the two clock readings is wrong."""
_MAX_TRIED: Final = 20
"""Largest number of tried uploads. While so many wait, no untried upload is sent. A larger value
sends more reports to a collector that refuses some of them by mistake."""
_SEVER_SECONDS: Final = 0.05
"""Seconds between two attempts to sever the exchange of another thread, while a client closes."""
_RETRY_AFTER: Final = "retry_after_until"
"""Name under which the spool stores the end of a requested wait, in seconds since 1970."""
_PAUSE_UNTIL: Final = "pause_until"
"""Name under which the spool stores the end of the pause of all uploads, in seconds since 1970."""
_FAILURES: Final = "failures_in_a_row"
"""Name under which the spool stores the number of failures since the last result of an upload."""
_LAST_ATTEMPT: Final = "last_attempt"
"""Name, continued by the name of a metric, under which the spool stores the time of the metric's
last attempt and a random part of an interval, in [0, 1)."""
_COOLDOWN_DETAIL: Final = "one report of a metric leaves in an interval"
_PERMANENT_STATUSES: Final = (400, 409, 413, 415, 422)
"""Statuses of HTTP that no repetition changes. The report of the upload is dropped; after any other
error the upload waits."""
_PLAIN_REASON: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")
"""Form of a collector's reason that may be shown to people: no control characters, no markup."""


class Uploader:
    """Sends the uploads of one device through one transport.

    Parameters
    ----------
    writer
        Writer of the spool.
    transport
        Transport to the collector.
    settings
        Settings of the client.
    find_obstacle
        Returns a reason why nothing may be sent, or None. Called inside each transaction that
        claims an upload.
    stops
        Metrics that the collector has stopped. Each response updates them.
    """

    def __init__(
        self,
        writer: Writer,
        transport: Transport,
        settings: Settings,
        find_obstacle: Callable[[sqlite3.Connection], FlushReason | None],
        stops: Stops,
    ) -> None:
        self._writer = writer
        self._transport = transport
        self._settings = settings
        self._find_obstacle = find_obstacle
        self._stops = stops
        self._clock = settings.options.clock
        self._coins = settings.options.coins
        self._turn = Turn()
        self._is_closed = False

    def step(
        self,
        *,
        timeout: float = REQUEST_SECONDS,
        tried: Collection[str] | None = None,
        is_backlog: bool = False,
    ) -> Step:
        """Send one upload if one may be sent now, and return the time of the next step.

        Parameters
        ----------
        timeout
            Longest duration of the step, in seconds.
        tried
            Ids of the uploads that this flush has tried. None stands for the background sender.
        is_backlog
            Whether an earlier run of the program has left the queue. Then the spread is ignored,
            because the program may end before the spread does.

        Raises
        ------
        BusyError
            Another process keeps its lock.
        HungError
            The disk did not answer in time.
        sqlite3.Error, OSError
            The disk failed. A failure of the network is not raised; the step contains it.
        """
        deadline = time.monotonic() + max(timeout, 0.0)
        with contextlib.ExitStack() as inside:
            try:
                inside.enter_context(self._turn.acquire(timeout))
            except BusyError:
                # Another thread is sending. Or this is the handler of a signal that interrupted a
                # step of this thread: waiting for that step would never end.
                return Step(next_at=self._clock(), reason=FlushReason.BUSY)
            if self._is_closed:
                return Step(next_at=None)
            return self._step(tried, deadline, is_backlog=is_backlog)

    def _step(self, tried: Collection[str] | None, deadline: float, *, is_backlog: bool) -> Step:
        """Claim an upload in a transaction, then send the upload outside of all locks.

        An exchange may take 30 s. Under a lock of the folder it would hold up every `record` of
        another process.
        """
        now = self._clock()
        seconds = compute_lock_seconds(deadline)
        # A flush may wait for the disk until its timeout. The background sender tries again later.
        if tried is not None:
            seconds = max(seconds, deadline - time.monotonic())
        try:
            upload = self._writer.run(
                lambda db: self._claim(db, now, tried, is_backlog=is_backlog),
                lock_seconds=compute_lock_seconds(deadline),
                disk_seconds=seconds,
                queue_ended_by=now,
                is_synced=True,
            )
        # Another process has withdrawn consent.
        except GoneError:
            return Step(next_at=None, reason=FlushReason.NO_CONSENT)
        if isinstance(upload, Step):
            return upload
        # Consent was withdrawn in another thread while the disk was slow. Nothing may be sent.
        if self._is_closed:
            return Step(next_at=None)
        return self._attempt(upload, deadline, is_flush=tried is not None)

    def draw_delay(self, *, at_most: float = math.inf) -> float:
        """Return a random delay in seconds, which hides the time of the event."""
        return self._coins(1)[0] / ONE * min(self._settings.options.max_delay, at_most)

    def close(self, *, seconds: float) -> bool:
        """Sever the present exchange and begin no other; return whether sending has ended.

        Returns False if the transport does not end its exchange within some seconds, or if the call
        is in a signal's handler that has interrupted a step.
        """
        self._is_closed = True
        deadline = time.monotonic() + seconds
        while True:
            self._transport.close()
            with contextlib.suppress(BusyError), self._turn.acquire(_SEVER_SECONDS):
                return True
            if time.monotonic() > deadline or self._turn.is_mine:
                return False

    def _claim(
        self,
        db: sqlite3.Connection,
        now: float,
        tried: Collection[str] | None,
        *,
        is_backlog: bool,
    ) -> QueuedUpload | Step:
        """Choose and claim the upload to send now, or return the step that waits for an upload.

        Runs in a transaction of the spool, so no other process claims the same upload.
        """
        # Refusals and withdrawals of the person count until the last moment.
        if obstacle := self._find_obstacle(db):
            return Step(next_at=None, reason=obstacle)
        spool.trim_log(db, self._settings.options.queue_limits)
        # The longest interval is a week. A later send_after was computed by a clock that was ahead.
        spool.limit_send_after(db, latest=now + WEEK)
        # Another process may have received a newer response.
        self._stops.reload(db)
        stopped = self._stops.list_stopped(day_of(now))
        untried = self._drop_late(db, now)
        # Earliest send_after of the untried uploads, by metric, without the stopped metrics.
        sendable = {name: after for name, after in untried.items() if name not in stopped}
        ignore_spread = is_backlog or tried is not None
        cooldowns = self._find_cooldowns(db, now, sendable, ignore_spread=ignore_spread)
        cooling = [name for name, until in cooldowns.items() if now < until]
        upload = _choose_upload(db, now, tried, stopped, cooling)
        if upload is None:
            return self._plan_next_step(db, now, tried, stopped, untried, cooldowns)
        is_first_of_flush = tried is not None and not tried
        is_untried_by_flush = tried is not None and upload.id not in tried
        backoff_until = 0.0 if is_untried_by_flush else upload.backoff_until
        pause = _find_pause(db, upload, now, backoff_until, ignore_failures=is_first_of_flush)
        if pause is not None:
            return pause
        # One of the two clock readings is wrong, so the week until the upload is given up begins
        # anew.
        first = now if _is_implausible(upload, now) else upload.first_attempt
        until = now + CLAIM_SECONDS
        # The attempt is recorded before it is made. A process that is killed during the exchange
        # leaves an upload that was tried, and a cooldown that has begun.
        spool.claim(db, upload, first_attempt=now if first is None else first, until=until)
        self._record_attempt(db, upload.metric, now)
        return upload

    def _plan_next_step(
        self,
        db: sqlite3.Connection,
        now: float,
        tried: Collection[str] | None,
        stopped: Collection[str],
        untried: Mapping[str, float],
        cooldowns: Mapping[str, float],
    ) -> Step:
        """Return the step that waits for the first upload that may be sent later.

        Parameters
        ----------
        db
            The open transaction.
        now
            The time, in seconds since 1970.
        tried
            As in `step`.
        stopped
            Names of the stopped metrics.
        untried
            Earliest send_after of the untried uploads, by metric.
        cooldowns
            End of the cooldown by metric, as `_find_cooldowns` returns it.

        Returns
        -------
        Step
            Its time is the first of: the end of an interval with a pending report, a send_after,
            and the end of a cooldown. If all metrics with uploads are stopped, the end of the first
            stop counts, too.
        """
        times = [admission.find_next_end(db)]
        sendable = {name: after for name, after in untried.items() if name not in stopped}
        for name, send_after in sendable.items():
            earliest = send_after if tried is None else 0.0
            times.append(max(cooldowns.get(name, send_after), earliest))
        tried_uploads = spool.list_tried_uploads(db)
        is_all_stopped = not sendable and bool(
            untried or any(upload.metric in stopped for upload in tried_uploads)
        )
        if is_all_stopped:
            times.append(self._stops.next_end(day_of(now)))
        return Step(
            next_at=min((timestamp for timestamp in times if timestamp is not None), default=None),
            reason=FlushReason.ASKED_TO_WAIT if is_all_stopped else None,
            detail=_COOLDOWN_DETAIL if cooldowns else "",
        )

    def _record_attempt(self, db: sqlite3.Connection, name: str, now: float) -> None:
        """Store the time of a metric's attempt, which begins its cooldown.

        A clock that was set back makes the last attempt no earlier: a retry by such a clock once
        ended the cooldown, and two reports left in one week. A last attempt that lies too far ahead
        was stored by a clock that was wrong then, so it is replaced.
        """
        interval = self._find_interval(db, name)
        last, _ = self._read_last_attempt(db, name)
        is_wrong = is_far_ahead(
            find_interval_end(interval, last), get_interval_seconds(interval), now
        )
        last = now if is_wrong else max(last, now)
        write_value(db, f"{_LAST_ATTEMPT} {name}", json.dumps((last, self._coins(1)[0] / ONE)))

    def _read_last_attempt(self, db: sqlite3.Connection, name: str) -> tuple[float, float]:
        """Return the time of a metric's last attempt, and a random part of an interval in [0, 1).

        The time is -1 before the first attempt. The part was drawn at the attempt. A part that each
        step drew anew would be the smallest of many, so late reports would leave soon after
        midnight.
        """
        last, part = json.loads(read_value(db, f"{_LAST_ATTEMPT} {name}") or "[-1, 0]")
        return last, part

    def _find_interval(self, db: sqlite3.Connection, name: str) -> str:
        """Return the longest interval among the queued reports of a metric.

        A collector judges a report by the interval in the report's own fingerprint. An earlier
        registry may have had another interval than the present one.
        """
        intervals = {params.interval for params in spool.list_queued_params(db, name)}
        return max(intervals, key=INTERVALS.index)

    def _is_same_epoch(self, db: sqlite3.Connection, name: str, one: float, other: float) -> bool:
        """Return whether two times lie in one epoch of a metric's queued reports."""
        epochs = {params.epoch for params in spool.list_queued_params(db, name)}
        before, after = name_epochs(day_of(one)), name_epochs(day_of(other))
        return any(before[epoch] == after[epoch] for epoch in epochs)

    def _drop_late(self, db: sqlite3.Connection, now: float) -> dict[str, float]:
        """Give up late uploads; return the earliest send_after of the untried uploads by metric.

        Three kinds of uploads are late:

        - the last time at which the report may leave has passed, for example the end of its epoch;
        - the first attempt was more than a week ago, by a plausible clock;
        - the upload is untried, and its send_after was more than a week ago. The newest report of
          each metric is kept: a program that starts once a month has no other report. A send_after
          of more than a year ago was set by a wrong clock, and is kept.
        """
        spool.drop_expired(db, now=now)
        for upload in spool.list_tried_uploads(db):
            if _is_too_old(upload, now):
                spool.record_result(db, upload.id, "given_up")
        untried, before = spool.read_send_after(db), now - GIVE_UP_SECONDS
        late = [name for name, send_after in untried.items() if send_after < before]
        for name in late:
            spool.drop_late(db, name, since=now - _IMPLAUSIBLE_SECONDS, before=before)
        return spool.read_send_after(db) if late else untried

    def _find_cooldowns(
        self,
        db: sqlite3.Connection,
        now: float,
        sendable: Mapping[str, float],
        *,
        ignore_spread: bool,
    ) -> dict[str, float]:
        """Return the end of each metric's cooldown and spread, in seconds since 1970.

        Metrics without a cooldown are absent. Before the end a metric sends no other report.

        Parameters
        ----------
        db
            The open transaction.
        now
            The time, in seconds since 1970.
        sendable
            Earliest send_after of the untried uploads, by metric.
        ignore_spread
            Whether the result is the end of the cooldown, without the spread.

        Returns
        -------
        dict of str to float
            The cooldown ends when the last upload of the metric has a result and the interval of
            its last attempt is over. With `interval = "epoch"` it ends with the epoch.
        """
        cooldowns = {}
        unanswered = {upload.metric for upload in spool.list_tried_uploads(db)}
        for name, send_after in sendable.items():
            interval = self._find_interval(db, name)
            last, part = self._read_last_attempt(db, name)
            # The metric has never sent a report.
            if last < 0 and name not in unanswered:
                continue
            # A report of last month that leaves this month takes this month's turn, or the
            # collector would get two reports of one device in one epoch. `last = now` makes the
            # cooldown end tomorrow, when this function looks again.
            if interval == "epoch" and self._is_same_epoch(db, name, last, now):
                last = now
            # An upload without a result may have reached the collector. A second report of the
            # metric in the same interval must not follow it.
            if name in unanswered:
                cooldowns[name] = math.inf
                continue
            end, seconds = find_interval_end(interval, last), get_interval_seconds(interval)
            # The clock was ahead at the last attempt.
            if is_far_ahead(end, seconds, now):
                continue
            # A report that could have been sent before the cooldown ended would otherwise leave at
            # midnight, with the late reports of all other devices. So it waits for a random part of
            # the next interval, but not beyond the time at which it is given up.
            spread = min(seconds, max(send_after + GIVE_UP_SECONDS - end, 0.0))
            is_spread = send_after < end and not ignore_spread
            cooldowns[name] = end + part * spread if is_spread else end
        return cooldowns

    def _attempt(self, upload: QueuedUpload, deadline: float, *, is_flush: bool) -> Step:
        """Send a claimed upload once, and record the result in the spool."""
        timeout = min(max(deadline - time.monotonic(), _MIN_REQUEST_SECONDS), REQUEST_SECONDS)
        try:
            status, stop = self._send(upload, timeout)
        except UploadError as error:
            # The timeout of the flush was shorter than the time that the collector had.
            is_cut_short = is_flush and error.timed_out and time.monotonic() >= deadline
            return self._record_failure(upload, error, deadline, is_cut_short=is_cut_short)

        def record(db: sqlite3.Connection) -> None:
            spool.record_result(db, upload.id, status)
            self._stops.apply_response(db, stop, day_of(self._clock()))
            _clear_failures(db)

        self._change_spool(record, deadline)
        is_refused = status != spool.ACCEPTED
        return Step(
            next_at=self._clock(),
            reason=FlushReason.REFUSED if is_refused else FlushReason.SENT,
            detail=f"the collector {status}" if is_refused else "",
            upload_id=upload.id,
        )

    def _change_spool(self, action: Action[None], deadline: float) -> None:
        """Record the result of an attempt, now or as soon as the disk answers.

        If the process ends before the disk answers, the upload is sent once more under the same id,
        and the collector counts it once.
        """
        with contextlib.suppress(HungError):
            self._writer.change(action, disk_seconds=compute_lock_seconds(deadline))

    def _send(self, upload: QueuedUpload, timeout: float) -> tuple[str, object]:
        """Send an upload; return the status of its report and the stops in the response.

        Raises UploadError for every failure. A transport of the host may raise anything, and a
        damaged spool may contain any bytes.
        """
        try:
            spool.read_report(upload.body)
        except (ValueError, TypeError, LookupError):
            raise UploadError("the upload is damaged", retryable=False) from None
        try:
            return _parse_response(self._transport.send(upload.body, timeout=timeout))
        except UploadError:
            raise
        except Exception as error:  # noqa: BLE001 - also for a response of any content
            raise UploadError(f"the transport failed: {type(error).__name__}") from None

    def _record_failure(
        self, upload: QueuedUpload, error: UploadError, deadline: float, *, is_cut_short: bool
    ) -> Step:
        """Drop an upload that no repetition helps, or let it wait; return the step.

        `is_cut_short` means that the deadline of a flush ended the attempt. Then the collector has
        not failed, so neither this upload nor any other waits for a backoff.
        """
        now = self._clock()
        retry_after = _read_retry_after(error)
        has_response = error.status is not None
        reason = FlushReason.COLLECTOR_ERROR if has_response else FlushReason.UNREACHABLE
        if not error.retryable:
            reason = FlushReason.REFUSED
        next_at = now

        def record(db: sqlite3.Connection) -> None:
            nonlocal next_at
            if not error.retryable:
                # The collector works and refuses this upload, so the others need not wait.
                spool.record_result(db, upload.id, f"refused: status {error.status}")
                _clear_failures(db)
            elif is_cut_short:
                spool.postpone(db, upload, until=now)
            else:
                next_at = self._back_off(db, upload, now + retry_after, has_response=has_response)

        self._change_spool(record, deadline)
        return Step(
            next_at=next_at,
            reason=reason,
            status=error.status,
            detail=str(error),
            upload_id=upload.id,
        )

    def _back_off(
        self,
        db: sqlite3.Connection,
        upload: QueuedUpload,
        earliest: float,
        *,
        has_response: bool,
    ) -> float:
        """Set the backoff of an upload that has failed; return when the next upload may be sent.

        `earliest` is the end of the wait that the collector asked for. After one failure with a
        response the other uploads go on: only this upload may be at fault. They wait as well if the
        collector was not reached, or after a second failure in a row.
        """
        until = earliest + _draw_backoff(upload.attempts, self._coins)
        spool.postpone(db, upload, until=until)
        failures = int(read_value(db, _FAILURES) or 0) + 1
        write_value(db, _FAILURES, failures)
        write_value(db, _RETRY_AFTER, earliest)
        # The collector was reached and has failed once: perhaps for this upload only.
        if has_response and failures == 1:
            return earliest
        pause_until = earliest + _draw_backoff(failures - 1, self._coins)
        write_value(db, _PAUSE_UNTIL, pause_until)
        return pause_until


def _choose_upload(
    db: sqlite3.Connection,
    now: float,
    tried: Collection[str] | None,
    stopped: Collection[str],
    cooling: Collection[str],
) -> QueuedUpload | None:
    """Return the next upload to send, or None if all queued uploads must wait.

    In this order:

    1. the oldest tried upload whose backoff is over, unless the last attempt failed;
    2. the oldest untried upload, while fewer than `_MAX_TRIED` uploads are tried;
    3. the oldest tried upload whose backoff is over. After a failure it comes behind an untried
       upload, so that uploads that always fail hold up no other upload;
    4. in a flush, the oldest tried upload that this flush has not tried;
    5. the tried upload whose backoff ends first.

    Uploads of stopped metrics are left out, and untried uploads of metrics in their cooldown.
    """
    waiting = [upload for upload in spool.list_tried_uploads(db) if upload.metric not in stopped]
    ready = [
        upload for upload in waiting if not _is_ahead(upload.backoff_until, now, _MAX_WAIT_SECONDS)
    ]
    has_failed = bool(int(read_value(db, _FAILURES) or 0))
    if ready and not has_failed:
        return ready[0]
    if len(waiting) < _MAX_TRIED:
        latest = now if tried is None else math.inf
        untried = spool.find_untried(db, send_after=latest, except_for=[*stopped, *cooling])
        if untried is not None:
            return untried
    if ready:
        return ready[0]
    if tried is not None:
        new = next((upload for upload in waiting if upload.id not in tried), None)
        if new is not None:
            return new
    return min(waiting, key=lambda upload: upload.backoff_until, default=None)


def _find_pause(
    db: sqlite3.Connection,
    upload: QueuedUpload,
    now: float,
    backoff_until: float,
    *,
    ignore_failures: bool,
) -> Step | None:
    """Return the step that waits until an upload may be sent, None if it may be sent now.

    `ignore_failures` ignores the pause after failures in a row.
    """
    retry_after = float(read_value(db, _RETRY_AFTER) or 0.0)
    pause_until = float(read_value(db, _PAUSE_UNTIL) or 0.0)
    # Another process is sending this upload, or was killed while it did.
    if _is_ahead(upload.claimed_until, now, CLAIM_SECONDS):
        return Step(next_at=upload.claimed_until, reason=FlushReason.BUSY)
    if _is_ahead(retry_after, now, _MAX_WAIT_SECONDS):
        return Step(next_at=retry_after, reason=FlushReason.ASKED_TO_WAIT)
    until = max(backoff_until, 0.0 if ignore_failures else pause_until)
    if _is_ahead(until, now, _MAX_WAIT_SECONDS):
        return Step(next_at=until)
    return None


def _clear_failures(db: sqlite3.Connection) -> None:
    """End all waits that failures have set, because the collector has responded with a result."""
    if read_value(db, _FAILURES):
        for name in (_FAILURES, _PAUSE_UNTIL, _RETRY_AFTER):
            write_value(db, name, 0)


def _read_retry_after(error: UploadError) -> float:
    """Return the seconds that a collector asked to wait, limited to what `_find_pause` accepts.

    A transport of the host may store anything in `retry_after`.
    """
    try:
        seconds = float(error.retry_after or 0.0)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    longest = _MAX_WAIT_SECONDS - _MAX_BACKOFF_SECONDS
    return min(max(0.0, seconds), longest)  # `max` returns 0.0 for a NaN


def _is_ahead(timestamp: float, now: float, longest: float) -> bool:
    """Return whether a time is in the future, and not by more than the longest possible wait.

    A time that is further ahead was stored before the clock was set back.
    """
    return now < timestamp <= now + longest


def _is_too_old(upload: QueuedUpload, now: float) -> bool:
    """Return whether the first attempt was more than a week ago, by a plausible clock."""
    if upload.first_attempt is None or _is_implausible(upload, now):
        return False
    return now > upload.first_attempt + GIVE_UP_SECONDS


def _is_implausible(upload: QueuedUpload, now: float) -> bool:
    """Return whether the clock was wrong at the first attempt, or is wrong now.

    The week until an upload is given up starts again then.
    """
    first = upload.first_attempt
    return first is not None and not 0 <= now - first <= _IMPLAUSIBLE_SECONDS


def _draw_backoff(n_earlier: int, coins: Coins) -> float:
    """Return the seconds to wait after a failure: exponential backoff with full jitter.

    `n_earlier` is the number of failures before this one. Without jitter all devices that met one
    outage of the collector would return together.
    """
    ceiling = min(_FIRST_BACKOFF_SECONDS * 2.0 ** min(n_earlier, 32), _MAX_BACKOFF_SECONDS)
    return coins(1)[0] / ONE * ceiling


def read_status(response: TransportResponse) -> str:
    """Return the status of the report in a collector's response; UploadError as for a device."""
    status, _ = _parse_response(response)
    return status


def _parse_response(response: TransportResponse) -> tuple[str, object]:
    """Return the status of the report and the stops in a collector's response.

    Raises UploadError for another HTTP status than 2xx, and for a response that is not complete.
    """
    if not 200 <= response.status < 300:
        raise UploadError(
            f"the collector answered with status {response.status}",
            status=response.status,
            retryable=response.status not in _PERMANENT_STATUSES,
            retry_after=response.retry_after,
        )
    try:
        document = json.loads(response.body)
        (entry,) = document["reports"]
        return _parse_entry(entry), document.get("stop")
    except (ValueError, TypeError, KeyError, RecursionError):
        # The upload may have been accepted. It is sent again under the same id, and the collector
        # repeats its response.
        raise UploadError("the collector's answer was not whole", status=response.status) from None


def _parse_entry(entry: dict[str, object]) -> str:
    """Return the status of a report: `accepted`, or `refused: REASON`."""
    if entry["status"] == spool.ACCEPTED:
        return spool.ACCEPTED
    reason = entry.get("reason")
    is_plain = isinstance(reason, str) and _PLAIN_REASON.fullmatch(reason)
    return f"refused: {reason if is_plain else 'no reason given'}"
