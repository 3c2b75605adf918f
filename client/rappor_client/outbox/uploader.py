"""One step of sending at a time: which upload is due, what an answer means, when to try again.

A step never sleeps and starts no thread; it says when the next one is due. State and spool are
on the disk before an upload leaves, so that no report ever leaves under two ids.

An upload that fails waits while others go: longer after each failure, up to an hour. When the
collector is not reached at all, or has failed twice in a row, the others wait as well. A claim
keeps two processes from sending the same upload; it is short, so that a process that is killed
holds nobody up, and where an exchange outlasts it the collector gets the same upload twice and
counts it once.

A metric rests after each attempt until the interval is over, so that a device that comes back after
days lets what waits follow one by one. Then the background sender goes on at a random time of the
next interval, a flush at once. What would follow after more than seven days is given up.
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

from rappor.protocol.params import INTERVALS, ONE
from rappor.protocol.randomizer import Coins
from rappor.registry.metric import name_epochs
from rappor_client.budget import admission
from rappor_client.folder import spool
from rappor_client.folder.counters import read_state, write_state
from rappor_client.folder.forking import Turn
from rappor_client.folder.own_folder import (
    BusyError,
    GoneError,
    HungError,
    patience_until,
)
from rappor_client.folder.spool import CLAIM_SECONDS, GIVE_UP_SECONDS, QueuedUpload
from rappor_client.network.transport import Transport, TransportResponse, UploadError
from rappor_client.outbox.flushed import FlushReason, Step
from rappor_client.outbox.stops import Stops
from rappor_client.outbox.writer import Action, Writer
from rappor_client.periods import (
    DAY,
    HOUR,
    WEEK,
    day_of,
    interval_end,
    interval_seconds,
    is_far_ahead,
)
from rappor_client.settings import Settings

REQUEST_SECONDS: Final = 30.0
_LEAST_SECONDS: Final = 0.001  # a socket takes 0 for "do not wait" and refuses less
_FIRST_BACKOFF_SECONDS: Final = 5.0
_LONGEST_BACKOFF_SECONDS: Final = HOUR
_LONGEST_WAIT_SECONDS: Final = DAY
_IMPLAUSIBLE_SECONDS: Final = 365 * DAY  # between two attempts: the clock was set
_MOST_PENDING: Final = 20
_SEVER_SECONDS: Final = 0.05
_ASKED_UNTIL: Final = "asked_until"
_PAUSE_UNTIL: Final = "pause_until"
_FAILURES: Final = "failures_in_a_row"
_LAST: Final = "last"
"""Before a metric's name: its last attempt, and which part of an interval goes by after a rest."""
_RESTS: Final = "one report of a metric leaves in an interval"
_DROPPED: Final = (400, 409, 413, 415, 422)
"""Statuses that no repetition changes; after any other error the upload waits."""
_REASON: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")


class Uploader:
    """Sends the uploads of one device through one transport."""

    def __init__(
        self,
        writer: Writer,
        transport: Transport,
        settings: Settings,
        obstacle: Callable[[sqlite3.Connection], FlushReason | None],
        stops: Stops,
    ) -> None:
        """Keep the writer of the spool, the transport to send through, and what bounds both.

        `obstacle` is asked inside each transaction that claims an upload why none may leave.
        `stops` follows what the collector's answers ask for.
        """
        self._writer = writer
        self._transport = transport
        self._settings = settings
        self._obstacle = obstacle
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
        """Send the upload that is due, one at most, and say when the next step is.

        A flush names the uploads that it has `tried`. It waits for no random time, and not for
        the backoff of any other upload; before its first attempt, not for what the failures in a
        row have set either. It still waits where the collector asked for it. What an earlier run
        has left (`is_backlog`) waits for no random time of an interval: the program may end
        before. Raises BusyError where another process keeps its lock, sqlite3.Error and OSError
        where the disk fails, nothing for the network.
        """
        deadline = time.monotonic() + max(timeout, 0.0)
        with contextlib.ExitStack() as inside:
            try:
                inside.enter_context(self._turn.taken(timeout))
            except BusyError:  # another thread; or a signal's handler, in the middle of a step
                return Step(due=self._clock(), reason=FlushReason.BUSY)
            if self._is_closed:
                return Step(due=None)
            return self._step(tried, deadline, is_backlog=is_backlog)

    def _step(self, tried: Collection[str] | None, deadline: float, *, is_backlog: bool) -> Step:
        now = self._clock()
        seconds = patience_until(deadline)
        if tried is not None:  # a flush may wait for its whole time, the background for less
            seconds = max(seconds, deadline - time.monotonic())
        try:
            upload = self._writer.run(
                lambda db: self._claim(db, now, tried, is_backlog=is_backlog),
                patience=patience_until(deadline),
                seconds=seconds,
                at=now,
                synced=True,
            )
        except GoneError:
            return Step(due=None, reason=FlushReason.NO_CONSENT)
        if isinstance(upload, Step):
            return upload
        if self._is_closed:  # a withdrawal came while the disk was slow
            return Step(due=None)
        return self._attempt(upload, deadline, is_flush=tried is not None)

    def delay(self, *, at_most: float = math.inf) -> float:
        """Draw a random wait in seconds, so that the moment of sending is not that of the event."""
        return self._coins(1)[0] / ONE * min(self._settings.options.max_delay, at_most)

    def close(self, *, seconds: float) -> bool:
        """Sever the exchange under way and make no other; true if nothing can be sent any more."""
        self._is_closed = True
        deadline = time.monotonic() + seconds
        while True:
            self._transport.close()
            with contextlib.suppress(BusyError), self._turn.taken(_SEVER_SECONDS):
                return True
            if time.monotonic() > deadline or self._turn.is_mine:  # in a signal's handler
                return False

    def _claim(
        self,
        db: sqlite3.Connection,
        now: float,
        tried: Collection[str] | None,
        *,
        is_backlog: bool,
    ) -> QueuedUpload | Step:
        """Return the upload to send now, claimed in the spool, or the step that says why none."""
        if obstacle := self._obstacle(db):
            return Step(due=None, reason=obstacle)
        spool.trim_log(db, self._settings.options.queue_limits)
        spool.hasten(db, latest=now + WEEK)
        self._stops.recall(db)  # another process may have had the newest answer
        stopped = self._stops.names(day_of(now))
        waiting = self._dues(db, now)
        dues = {name: due for name, due in waiting.items() if name not in stopped}
        rests = self._rests(db, now, dues, is_hurried=is_backlog or tried is not None)
        resting = [name for name, until in rests.items() if now < until]
        upload = _next(db, now, tried, stopped, resting)
        if upload is None:
            moments = [admission.next_end(db)]
            for name, due in dues.items():
                moments.append(max(rests.get(name, due), due if tried is None else 0.0))
            is_all_stopped = not dues and bool(
                waiting or any(each.metric in stopped for each in spool.pending(db))
            )
            if is_all_stopped:
                moments.append(self._stops.next_end(day_of(now)))
            return Step(
                due=min((each for each in moments if each is not None), default=None),
                reason=FlushReason.ASKED_TO_WAIT if is_all_stopped else None,
                detail=_RESTS if rests else "",
            )
        is_untried = tried is not None and upload.id not in tried
        backoff_until = 0.0 if is_untried else upload.backoff_until
        is_urgent = tried is not None and not tried
        if (pause := _pause(db, upload, now, backoff_until, is_urgent=is_urgent)) is not None:
            return pause
        first = now if _is_implausible(upload, now) else upload.first_attempt
        until = now + CLAIM_SECONDS
        spool.claim(db, upload, first_attempt=now if first is None else first, until=until)
        self._note_attempt(db, upload.metric, now)
        return upload

    def _note_attempt(self, db: sqlite3.Connection, name: str, now: float) -> None:
        """Keep when a metric let a report leave; a clock that is set back makes it no earlier."""
        interval = self._interval(db, name)
        at, _ = self._last(db, name)
        is_wrong = is_far_ahead(interval_end(interval, at), interval_seconds(interval), now)
        at = now if is_wrong else max(at, now)
        write_state(db, f"{_LAST} {name}", json.dumps((at, self._coins(1)[0] / ONE)))

    def _last(self, db: sqlite3.Connection, name: str) -> tuple[float, float]:
        """Return when a metric let its last report leave, and which part of an interval it rests.

        It is before 1970 where none has left.
        """
        at, part = json.loads(read_state(db, f"{_LAST} {name}") or "[-1, 0]")
        return at, part

    def _interval(self, db: sqlite3.Connection, name: str) -> str:
        """Return the longest interval of the waiting reports of a metric.

        A collector judges a report by the interval in its own fingerprint, which an earlier
        registry may have set.
        """
        intervals = {params.interval for params in spool.waiting_params(db, name)}
        return max(intervals, key=INTERVALS.index)

    def _is_same_epoch(self, db: sqlite3.Connection, name: str, one: float, other: float) -> bool:
        epochs = {params.epoch for params in spool.waiting_params(db, name)}
        before, after = name_epochs(day_of(one)), name_epochs(day_of(other))
        return any(before[epoch] == after[epoch] for epoch in epochs)

    def _dues(self, db: sqlite3.Connection, now: float) -> dict[str, float]:
        """Return when the first untried upload of each metric is due.

        Before, what was tried, or was due, more than a week ago by a sound clock is given up, but
        not the last report that waits: of a program that is seldom used it is the only one.
        """
        spool.give_up_late(db, now=now)
        for upload in spool.pending(db):
            if _is_too_old(upload, now):
                spool.settle(db, upload.id, "given_up")
        dues, before = spool.dues(db), now - GIVE_UP_SECONDS
        late = [name for name, due in dues.items() if due < before]
        for name in late:
            spool.give_up(db, name, since=now - _IMPLAUSIBLE_SECONDS, before=before)
        return spool.dues(db) if late else dues

    def _rests(
        self, db: sqlite3.Connection, now: float, dues: Mapping[str, float], *, is_hurried: bool
    ) -> dict[str, float]:
        """Return until when metrics let no other report leave; those absent are free to.

        They rest until the last one is answered and the interval of its last attempt is over, an
        epoch where one a day is drawn. For what has waited meanwhile the background sender draws a
        time of the next interval.
        """
        rests = {}
        unanswered = {each.metric for each in spool.pending(db)}
        for name, due in dues.items():
            interval = self._interval(db, name)
            at, part = self._last(db, name)
            if at < 0 and name not in unanswered:
                continue
            if interval == "epoch" and self._is_same_epoch(db, name, at, now):
                at = now  # tomorrow it is looked at again
            if name in unanswered:
                rests[name] = math.inf
                continue
            end, seconds = interval_end(interval, at), interval_seconds(interval)
            if not is_far_ahead(end, seconds, now):
                left = min(seconds, max(due + GIVE_UP_SECONDS - end, 0.0))
                is_late = due < end and not is_hurried
                rests[name] = end + part * left if is_late else end
        return rests

    def _attempt(self, upload: QueuedUpload, deadline: float, *, is_flush: bool) -> Step:
        """Send an upload once and write down what came of it."""
        timeout = min(max(deadline - time.monotonic(), _LEAST_SECONDS), REQUEST_SECONDS)
        try:
            status, stop = self._send(upload, timeout)
        except UploadError as error:
            is_cut_short = is_flush and error.timed_out and time.monotonic() >= deadline
            return self._failed(upload, error, deadline, is_cut_short=is_cut_short)

        def settle(db: sqlite3.Connection) -> None:
            spool.settle(db, upload.id, status)
            self._stops.follow(db, stop, day_of(self._clock()))
            _forgive(db)

        self._write_down(settle, deadline)
        is_refused = status != spool.ACCEPTED
        return Step(
            due=self._clock(),
            reason=FlushReason.REFUSED if is_refused else FlushReason.SENT,
            detail=f"the collector {status}" if is_refused else "",
            upload_id=upload.id,
        )

    def _write_down(self, action: Action[None], deadline: float) -> None:
        """Write down what came of an attempt, now or as soon as the disk answers.

        Where the process ends before, the upload leaves once more under the same id, and the
        collector counts it once.
        """
        with contextlib.suppress(HungError):
            self._writer.change(action, seconds=patience_until(deadline))

    def _send(self, upload: QueuedUpload, timeout: float) -> tuple[str, object]:
        """Return the report's status and what is to stop, or raise the UploadError that says why.

        A host's own transport may raise anything.
        """
        try:
            spool.read_report(upload.body)
        except (ValueError, TypeError, LookupError):
            raise UploadError("the upload is damaged", retryable=False) from None
        try:
            return _read(self._transport.send(upload.body, timeout=timeout))
        except UploadError:
            raise
        except Exception as error:  # noqa: BLE001 - also for an answer of any content
            raise UploadError(f"the transport failed: {type(error).__name__}") from None

    def _failed(
        self, upload: QueuedUpload, error: UploadError, deadline: float, *, is_cut_short: bool
    ) -> Step:
        """Drop an upload that no repetition helps; let any other one wait.

        Where the caller's own deadline cut the attempt short, the collector has not failed.
        """
        now = self._clock()
        wait = _wait_asked_for(error)
        answered = error.status is not None
        reason = FlushReason.COLLECTOR_ERROR if answered else FlushReason.UNREACHABLE
        due = now
        if not error.retryable:
            reason = FlushReason.REFUSED

        def note(db: sqlite3.Connection) -> None:
            nonlocal due
            if not error.retryable:
                spool.settle(db, upload.id, f"refused: status {error.status}")
                _forgive(db)
            elif is_cut_short:
                spool.postpone(db, upload, until=now)
            else:
                due = self._postpone(db, upload, now + wait, answered=answered)

        self._write_down(note, deadline)
        return Step(
            due=due, reason=reason, status=error.status, detail=str(error), upload_id=upload.id
        )

    def _postpone(
        self, db: sqlite3.Connection, upload: QueuedUpload, asked_until: float, *, answered: bool
    ) -> float:
        """Let an upload wait, and the others where they would fail too; say when one may go."""
        until = asked_until + _backoff(upload.attempts, self._coins)
        spool.postpone(db, upload, until=until)
        failures = int(read_state(db, _FAILURES) or 0) + 1
        write_state(db, _FAILURES, failures)
        write_state(db, _ASKED_UNTIL, asked_until)
        if answered and failures == 1:
            return asked_until
        pause_until = asked_until + _backoff(failures - 1, self._coins)
        write_state(db, _PAUSE_UNTIL, pause_until)
        return pause_until


def _next(
    db: sqlite3.Connection,
    now: float,
    tried: Collection[str] | None,
    stopped: Collection[str],
    resting: Collection[str],
) -> QueuedUpload | None:
    """Return the oldest upload that is due again, else an untried one, else one new to a flush.

    Else it is the one that is due next. After a failure an untried one goes first, so that those
    that always fail hold up no other. Those of stopped metrics wait, and untried ones of resting
    metrics.
    """
    waiting = [each for each in spool.pending(db) if each.metric not in stopped]
    again = (e for e in waiting if not _is_ahead(e.backoff_until, now, _LONGEST_WAIT_SECONDS))
    due = next(again, None)
    if due is not None and not int(read_state(db, _FAILURES) or 0):
        return due
    if len(waiting) < _MOST_PENDING:
        due_by = now if tried is None else math.inf
        untried = spool.oldest(db, due_by=due_by, stopped=[*stopped, *resting])
        if untried is not None:
            return untried
    if due is not None:
        return due
    if tried is not None:
        new = next((each for each in waiting if each.id not in tried), None)
        if new is not None:
            return new
    return min(waiting, key=lambda upload: upload.backoff_until, default=None)


def _pause(
    db: sqlite3.Connection,
    upload: QueuedUpload,
    now: float,
    backoff_until: float,
    *,
    is_urgent: bool,
) -> Step | None:
    """Return the step that waits for an upload, None if it may be sent now."""
    asked_until = float(read_state(db, _ASKED_UNTIL) or 0.0)
    pause_until = float(read_state(db, _PAUSE_UNTIL) or 0.0)
    if _is_ahead(upload.claimed_until, now, CLAIM_SECONDS):
        return Step(due=upload.claimed_until, reason=FlushReason.BUSY)
    if _is_ahead(asked_until, now, _LONGEST_WAIT_SECONDS):
        return Step(due=asked_until, reason=FlushReason.ASKED_TO_WAIT)
    until = max(backoff_until, 0.0 if is_urgent else pause_until)
    if _is_ahead(until, now, _LONGEST_WAIT_SECONDS):
        return Step(due=until)
    return None


def _forgive(db: sqlite3.Connection) -> None:
    """Forget the collector's failures: it has answered."""
    if read_state(db, _FAILURES):
        for name in (_FAILURES, _PAUSE_UNTIL, _ASKED_UNTIL):
            write_state(db, name, 0)


def _wait_asked_for(error: UploadError) -> float:
    """Return the seconds that a collector asked for; a host's transport may tell it anything."""
    try:
        seconds = float(error.retry_after or 0.0)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    longest = _LONGEST_WAIT_SECONDS - _LONGEST_BACKOFF_SECONDS
    return min(max(0.0, seconds), longest)  # a NaN is none


def _is_ahead(moment: float, now: float, longest: float) -> bool:
    """Return whether a moment is to come; one beyond the longest wait is of a clock set back."""
    return now < moment <= now + longest


def _is_too_old(upload: QueuedUpload, now: float) -> bool:
    """Return whether an upload is given up: a week after its first attempt, by a sound clock."""
    if upload.first_attempt is None or _is_implausible(upload, now):
        return False
    return now > upload.first_attempt + GIVE_UP_SECONDS


def _is_implausible(upload: QueuedUpload, now: float) -> bool:
    """Return whether the clock was wrong at the first attempt, or is now: the week starts again."""
    first = upload.first_attempt
    return first is not None and not 0 <= now - first <= _IMPLAUSIBLE_SECONDS


def _backoff(attempts: int, coins: Coins) -> float:
    """Return the seconds to wait after a number of attempts: exponential, with full jitter."""
    ceiling = min(_FIRST_BACKOFF_SECONDS * 2.0 ** min(attempts, 32), _LONGEST_BACKOFF_SECONDS)
    return coins(1)[0] / ONE * ceiling


def read_status(answer: TransportResponse) -> str:
    """Return the report's status in a collector's answer; UploadError as for a device."""
    status, _ = _read(answer)
    return status


def _read(answer: TransportResponse) -> tuple[str, object]:
    """Read the report's status and what is to stop, or raise the UploadError that says why."""
    if not 200 <= answer.status < 300:
        raise UploadError(
            f"the collector answered with status {answer.status}",
            status=answer.status,
            retryable=answer.status not in _DROPPED,
            retry_after=answer.retry_after,
        )
    try:
        document = json.loads(answer.body)
        (entry,) = document["reports"]
        return _status(entry), document.get("stop")
    except (ValueError, TypeError, KeyError, RecursionError):  # asked again, it is repeated
        raise UploadError("the collector's answer was not whole", status=answer.status) from None


def _status(entry: dict[str, object]) -> str:
    if entry["status"] == spool.ACCEPTED:
        return spool.ACCEPTED
    reason = entry.get("reason")
    is_plain = isinstance(reason, str) and _REASON.fullmatch(reason)
    return f"refused: {reason if is_plain else 'no reason given'}"
