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
- At most one report of a metric leaves the device in an interval, also after days without network.
  The collector counts devices by counting reports, so its protection depends on this limit.
- The time of an upload does not reveal the time of its event. A flush is the exception: it ignores
  send_after, because the program may not run again.

Seven waits can delay an upload:

    wait         delays       for                                      ignored by
    send_after   an upload    a random time of the next interval       a flush
    claim        an upload    2 s, in which another process may be     never
                              sending the upload
    backoff      an upload    a random time up to 5, 10, 20, ... s     a flush, for uploads that
                              after a failure, at most 1 h             this flush has not tried
    pause        all uploads  as backoff, by the number of failures    the first attempt of a
                              in a row                                 flush
    Retry-After  all uploads  the time that the collector requests,    never
                              at most 23 h
    cooldown     a metric     the rest of the interval of its last     never
                              attempt
    spread       a metric     after a cooldown, a random part of the   a flush, and reports of an
                              next interval                            earlier run (backlog)

Where the waits are set and read:

    send_after                    `budget/admission.py` draws it, `_choose_upload` reads it
    claim                         `Uploader._claim` sets it, `backoff.find_wait` reads it
    backoff, pause, Retry-After   `outbox/backoff.py`
    cooldown, spread              `outbox/cooldowns.py`

A step in its order:

    1. In one transaction (`_claim`): give up late uploads, choose an upload, claim it. If no upload
       may be sent now, the step ends, and returns the time of the next step.
    2. Outside of all locks (`_send`): send the upload.
    3. In a second transaction: store the result, or the backoff after a failure.

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

Clocks may be wrong. A wait that is longer than the longest possible wait was computed by a clock
that was ahead, so the wait is ignored. An upload whose first attempt was in the future, or more
than a year ago, is not given up: one of the two clock readings is wrong.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from rappor.protocol.thresholds import ONE
from rappor_client.budget import pending_reports
from rappor_client.folder import spool
from rappor_client.folder.forking import Turn
from rappor_client.folder.identity_folder import (
    BusyError,
    GoneError,
    HungError,
    compute_lock_seconds,
)
from rappor_client.folder.spool import CLAIM_SECONDS, GIVE_UP_SECONDS, QueuedUpload
from rappor_client.folder.tracebacks import remove_frames
from rappor_client.network.transport import Transport, UploadError
from rappor_client.outbox import backoff, cooldowns
from rappor_client.outbox.flush_result import FlushReason, Step
from rappor_client.outbox.stops import Stops
from rappor_client.outbox.upload_response import parse_response
from rappor_client.outbox.writer import Action, Writer
from rappor_client.periods import DAY, WEEK, day_of
from rappor_client.settings import Settings

REQUEST_SECONDS: Final = 30.0
"""Longest duration of one request, in seconds. A longer limit reaches slower collectors, and delays
all other uploads longer."""
_MIN_REQUEST_SECONDS: Final = 0.001
"""Shortest timeout of a request, in seconds, also after the deadline of a flush. A socket takes 0
for "do not wait", and refuses negative numbers."""
_IMPLAUSIBLE_SECONDS: Final = 365 * DAY
"""Time between two clock readings, in seconds, from which on one of the two readings is wrong."""
_MAX_TRIED: Final = 20
"""Largest number of uploads that were tried and have no result. While so many wait, no untried
upload is sent: the collector answers each upload with an error, so further reports would only get
errors, too. A larger value sends more reports to such a collector."""
_SEVER_SECONDS: Final = 0.05
"""Seconds between two attempts of `close` to end the exchange of another thread. A larger value
closes the client later if the first attempt came too early."""
_COOLDOWN_DETAIL: Final = "one report of a metric leaves in an interval"


class _Queue(NamedTuple):
    """The queued uploads at the time of a step, as `_claim` reads them in its transaction.

    Attributes
    ----------
    now
        The time, in seconds since 1970.
    tried_by_flush
        Ids of the uploads that this flush has tried. None for a step of the background sender.
    stopped
        Names of the metrics that the collector has stopped.
    untried
        Earliest send_after of the untried uploads, by metric.
    tried
        The uploads that were tried and have no result, the oldest first.
    """

    now: float
    tried_by_flush: Collection[str] | None
    stopped: Collection[str]
    untried: Mapping[str, float]
    tried: Sequence[QueuedUpload]

    @property
    def is_flush(self) -> bool:
        """Whether a flush makes the step."""
        return self.tried_by_flush is not None

    @property
    def sendable(self) -> dict[str, float]:
        """Earliest send_after of the untried uploads, by metric, without the stopped metrics."""
        return {name: after for name, after in self.untried.items() if name not in self.stopped}

    @property
    def is_all_stopped(self) -> bool:
        """Whether uploads wait for the end of a stop, and no untried upload may leave before."""
        has_stopped = any(upload.metric in self.stopped for upload in self.tried)
        return not self.sendable and (bool(self.untried) or has_stopped)

    def has_tried(self, upload: QueuedUpload) -> bool:
        """Return whether this flush has tried an upload; True for the background sender.

        So the background sender waits for every backoff.
        """
        return self.tried_by_flush is None or upload.id in self.tried_by_flush


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
        tried_by_flush: Collection[str] | None = None,
        is_backlog: bool = False,
    ) -> Step:
        """Send one upload if one may be sent now, and return the time of the next step.

        Parameters
        ----------
        timeout
            Longest duration of the step, in seconds.
        tried_by_flush
            Ids of the uploads that this flush has tried, empty at its first step. None stands for
            the background sender.
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
            The disk failed. A failure of the network is not raised. The step contains it.
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
            return self._step(tried_by_flush, deadline, is_backlog=is_backlog)

    def _step(
        self, tried_by_flush: Collection[str] | None, deadline: float, *, is_backlog: bool
    ) -> Step:
        """Claim an upload in a transaction, then send the upload outside of all locks.

        An exchange may take 30 s. Under a lock of the folder, the exchange would delay every
        `record` of another process.
        """
        now = self._clock()
        is_flush = tried_by_flush is not None
        lock_seconds = compute_lock_seconds(deadline)
        # A flush may wait for the disk until its timeout. The background sender tries again later.
        disk_seconds = max(lock_seconds, deadline - time.monotonic()) if is_flush else lock_seconds
        try:
            # The claim reads the clock again. Bad case: `run` waited 3 s for a lock, so a claim of
            # 2 s was over before its upload was sent, and another process sent the upload, too.
            claimed = self._writer.run(
                lambda db: self._claim(db, self._clock(), tried_by_flush, is_backlog=is_backlog),
                lock_seconds=lock_seconds,
                disk_seconds=disk_seconds,
                queue_ended_by=now,
                is_synced=True,
            )
        # Another process has withdrawn consent.
        except GoneError:
            return Step(next_at=None, reason=FlushReason.NO_CONSENT)
        if isinstance(claimed, Step):
            return claimed
        # Consent was withdrawn in another thread while the disk was slow. Nothing may be sent.
        if self._is_closed:
            return Step(next_at=None)
        return self._attempt(claimed, deadline, is_flush=is_flush)

    def draw_delay(self, *, at_most: float = math.inf) -> float:
        """Return a random delay in seconds, which hides the time of the event."""
        return self._coins(1)[0] / ONE * min(self._settings.options.max_delay, at_most)

    def close(self, *, seconds: float) -> bool:
        """Sever the present exchange and begin no other; return whether sending has ended.

        The result is False if the transport does not end its exchange within some seconds, or if
        the call is in a signal's handler that has interrupted a step.
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
        tried_by_flush: Collection[str] | None,
        *,
        is_backlog: bool,
    ) -> QueuedUpload | Step:
        """Choose and claim the upload to send now, or return a step without an attempt.

        The caller has begun a transaction of the spool, so no other process claims the same upload.
        """
        # The person may have refused a metric, or withdrawn consent, in another thread.
        if obstacle := self._find_obstacle(db):
            return Step(next_at=None, reason=obstacle)
        spool.trim_log(db, self._settings.options.queue_limits)
        # The longest interval is a week. A later send_after was computed by a clock that was ahead.
        spool.limit_send_after(db, latest=now + WEEK)
        # Another process may have received a newer response.
        self._stops.reload(db)
        stopped = self._stops.list_stopped(day_of(now))
        untried = self._drop_late(db, now)
        queue = _Queue(now, tried_by_flush, stopped, untried, spool.list_tried_uploads(db))
        ignore_spread = is_backlog or queue.is_flush
        ends = cooldowns.find_cooldowns(db, now, queue.sendable, ignore_spread=ignore_spread)
        cooling = [metric for metric, end in ends.items() if now < end]
        upload = _choose_upload(db, queue, cooling)
        if upload is None:
            return self._plan_next_step(db, queue, ends)
        is_first_of_flush = queue.is_flush and not tried_by_flush
        wait = backoff.find_wait(
            db,
            upload,
            now,
            ignore_backoff=not queue.has_tried(upload),
            ignore_pause=is_first_of_flush,
        )
        if wait is not None:
            return wait
        first = now if upload.first_attempt is None else upload.first_attempt
        # One of the two clock readings is wrong. The upload is given up a week after its first
        # attempt, and this week begins anew.
        if _is_implausible(upload, now):
            first = now
        # The attempt is recorded before it is made. A process that is killed during the exchange
        # leaves an upload that was tried, and a cooldown that has begun.
        spool.claim(db, upload, first_attempt=first, until=now + CLAIM_SECONDS)
        cooldowns.record_attempt(db, upload.metric, now, self._coins)
        return upload

    def _plan_next_step(
        self, db: sqlite3.Connection, queue: _Queue, cooldown_ends: Mapping[str, float]
    ) -> Step:
        """Return the step that waits for the first upload that may be sent later.

        The next step is at the first of these times:

        - the end of an interval with a pending report, which is then queued;
        - for each metric that is not stopped, the end of its cooldown. The background sender waits
          for the send_after of the report, too;
        - the end of the first stop, if all metrics with uploads are stopped.

        Backoffs are not among the times: an upload that was tried would have been chosen, unless
        its metric is stopped.
        """
        times = [pending_reports.find_next_end(db)]
        for metric, send_after in queue.sendable.items():
            earliest = cooldown_ends.get(metric, send_after)
            times.append(earliest if queue.is_flush else max(earliest, send_after))
        if queue.is_all_stopped:
            times.append(self._stops.next_end(day_of(queue.now)))
        return Step(
            next_at=min((timestamp for timestamp in times if timestamp is not None), default=None),
            reason=FlushReason.ASKED_TO_WAIT if queue.is_all_stopped else None,
            detail=_COOLDOWN_DETAIL if cooldown_ends else "",
        )

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

    def _attempt(self, upload: QueuedUpload, deadline: float, *, is_flush: bool) -> Step:
        """Send a claimed upload once, and record the result in the spool."""
        timeout = min(max(deadline - time.monotonic(), _MIN_REQUEST_SECONDS), REQUEST_SECONDS)
        try:
            status, stop = self._send(upload, timeout)
        except UploadError as error:
            # The collector has not failed: the deadline of the flush has ended the attempt.
            is_cut_short = is_flush and error.timed_out and time.monotonic() >= deadline
            return self._record_failure(upload, error, deadline, is_cut_short=is_cut_short)

        def record(db: sqlite3.Connection) -> None:
            spool.record_result(db, upload.id, status)
            self._stops.apply_response(db, stop, day_of(self._clock()))
            backoff.clear_failures(db)

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
        damaged spool may contain any bytes. No exception has frames of the transport, because they
        contain the upload key.
        """
        try:
            spool.read_report(upload.body)
        except (ValueError, TypeError, LookupError):
            raise UploadError("the upload is damaged", retryable=False) from None
        try:
            return parse_response(self._transport.send(upload.body, timeout=timeout))
        except UploadError as error:
            failure: BaseException = error
        except Exception as error:  # noqa: BLE001 - also for a response of any content
            failure = UploadError(f"the transport failed: {type(error).__name__}")
        except BaseException as error:  # noqa: BLE001 - Ctrl-C
            failure = error
        # Inside of a handler, `raise` would store the handled exception and its frames.
        raise remove_frames(failure)

    def _record_failure(
        self, upload: QueuedUpload, error: UploadError, deadline: float, *, is_cut_short: bool
    ) -> Step:
        """Drop an upload that the collector refuses for good, or let it wait; return the step.

        Parameters
        ----------
        upload
            The upload, as it was before the attempt.
        error
            The failure of the attempt.
        deadline
            End of the step, by the monotonic clock.
        is_cut_short
            Whether the deadline of a flush has ended the attempt. Then the collector has not
            failed, so neither this upload nor any other waits for a backoff.
        """
        now = self._clock()
        retry_after_until = now + backoff.read_retry_after(error)
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
                backoff.clear_failures(db)
            elif is_cut_short:
                spool.postpone(db, upload, until=now)
            else:
                next_at = backoff.back_off(
                    db, upload, retry_after_until, self._coins, has_response=has_response
                )

        self._change_spool(record, deadline)
        return Step(
            next_at=next_at,
            reason=reason,
            status=error.status,
            detail=str(error),
            upload_id=upload.id,
        )


def _choose_upload(
    db: sqlite3.Connection, queue: _Queue, cooling: Collection[str]
) -> QueuedUpload | None:
    """Return the next upload to send, or None if no upload may be sent by its metric's rules.

    In this order:

    1. the oldest tried upload whose backoff is over, unless the last attempt failed;
    2. the oldest untried upload, while fewer than `_MAX_TRIED` uploads are tried;
    3. the oldest tried upload whose backoff is over. After a failure it comes behind an untried
       upload, so that uploads that always fail delay no other upload;
    4. in a flush, the oldest tried upload that this flush has not tried;
    5. the tried upload whose backoff ends first. `backoff.find_wait` then returns the wait for it.

    Uploads of stopped metrics are left out, and untried uploads of metrics in their cooldown
    (`cooling`).
    """
    waiting = [upload for upload in queue.tried if upload.metric not in queue.stopped]
    ready = [upload for upload in waiting if not backoff.is_backing_off(upload, queue.now)]
    if ready and not backoff.has_failed(db):
        return ready[0]
    if len(waiting) < _MAX_TRIED:
        # A flush ignores send_after.
        latest = math.inf if queue.is_flush else queue.now
        except_for = [*queue.stopped, *cooling]
        untried = spool.find_untried(db, send_after=latest, except_for=except_for)
        if untried is not None:
            return untried
    if ready:
        return ready[0]
    new = next((upload for upload in waiting if not queue.has_tried(upload)), None)
    if new is not None:
        return new
    return min(waiting, key=lambda upload: upload.backoff_until, default=None)


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
