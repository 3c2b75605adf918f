"""One step of sending at a time: which upload is due, what an answer means, when to try again.

A step never sleeps and starts no thread; it says when the next one is due. Ledger and spool are
on the disk before an upload leaves, so that no report ever leaves under two ids.
"""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from collections.abc import Callable
from typing import Final

from rappor.protocol.params import ONE
from rappor.protocol.randomizer import Coins
from rappor_client import reservoir, spool
from rappor_client.errors import UploadError
from rappor_client.flushed import FlushReason, Step
from rappor_client.periods import DAY, HOUR
from rappor_client.remote_params import Offers
from rappor_client.settings import Settings
from rappor_client.spool import GIVE_UP_SECONDS, Pending
from rappor_client.store import Store
from rappor_client.transport import Answer, Transport

REQUEST_SECONDS: Final = 30.0
_LEAST_SECONDS: Final = 0.001  # a socket takes 0 for "do not wait" and refuses less
_CLAIM_SECONDS: Final = 2 * REQUEST_SECONDS
_FIRST_BACKOFF_SECONDS: Final = 5.0
_LONGEST_BACKOFF_SECONDS: Final = HOUR
_LONGEST_WAIT_SECONDS: Final = DAY
_DROPPED: Final = (400, 409, 413, 415, 422)
"""Statuses that no repetition changes; after any other error the upload waits."""
_REASON: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")


class Uploader:
    """Sends the uploads of one store through one transport."""

    def __init__(
        self,
        store: Store,
        transport: Transport,
        settings: Settings,
        offers: Offers,
        obstacle: Callable[[sqlite3.Connection], FlushReason | None],
    ) -> None:
        """Keep the store to send from, the transport to send through, and what bounds both.

        `obstacle` is asked inside each transaction that claims an upload why none may leave.
        """
        self._store = store
        self._transport = transport
        self._settings = settings
        self._offers = offers
        self._obstacle = obstacle
        self._clock = settings.clock
        self._coins = settings.coins
        self._one_step = threading.Lock()

    def step(self, *, timeout: float = REQUEST_SECONDS, is_urgent: bool = False) -> Step:
        """Send the upload that is due, one at most, and say when the next step is.

        An urgent step does not wait for the backoff after a failure; it still waits where the
        collector asked for it. Raises sqlite3.Error and OSError where the disk fails, never for
        the network.
        """
        if not self._one_step.acquire(timeout=max(timeout, 0.0)):
            return Step(due=self._clock(), reason=FlushReason.BUSY)
        try:
            upload = self._claim(is_urgent=is_urgent)
            if isinstance(upload, Step):
                return upload
            return self._attempt(upload, min(max(timeout, _LEAST_SECONDS), REQUEST_SECONDS))
        finally:
            self._one_step.release()

    def delay(self) -> float:
        """Draw a random wait in seconds, so that the moment of sending is not that of the event."""
        return self._coins(1)[0] / ONE * self._settings.max_delay

    def close(self) -> None:
        """Close the transport's connections."""
        self._transport.close()

    def _claim(self, *, is_urgent: bool) -> Pending | Step:
        """Return the upload to send now, claimed on the disk, or the step that says why none is."""
        now = self._clock()
        with self._store.transaction(durable=True) as db:
            if obstacle := self._obstacle(db):
                return Step(due=None, reason=obstacle)
            reservoir.release(db, now)
            spool.trim(db, self._settings.limits)
            spool.trim_log(db, self._settings.limits)
            while upload := spool.next_upload(db):
                if upload.retry_at > now + _LONGEST_WAIT_SECONDS:  # the clock was set back
                    spool.postpone(db, upload, asked_until=now, backoff_until=now)
                elif pause := _pause(upload, now, is_urgent=is_urgent):
                    return pause
                elif _is_too_old(upload, now):
                    spool.settle(db, upload.id, "given_up")
                else:
                    spool.claim(db, upload, now=now, until=now + _CLAIM_SECONDS)
                    return upload
            ends = reservoir.next_end(db)
        return Step(due=None if ends is None else ends + self.delay())

    def _attempt(self, upload: Pending, timeout: float) -> Step:
        """Send an upload once and write down what came of it."""
        try:
            answer = self._send(upload, timeout)
            statuses = _statuses(answer, n_reports=len(json.loads(upload.body)["reports"]))
        except UploadError as error:
            return self._failed(upload, error)
        with self._store.transaction(durable=True) as db:
            spool.settle(db, upload.id, statuses)
        self._offers.refresh(timeout=timeout)
        refused = [status for status in statuses if status != spool.ACCEPTED]
        return Step(
            due=self._clock(),
            reason=FlushReason.REFUSED if refused else FlushReason.SENT,
            detail=f"the collector {refused[0]}" if refused else "",
        )

    def _send(self, upload: Pending, timeout: float) -> Answer:
        try:
            return self._transport.send(upload.body, timeout=timeout)
        except UploadError:
            raise
        except Exception as error:  # noqa: BLE001 - a host's own transport may raise anything
            raise UploadError(f"the transport failed: {type(error).__name__}") from None

    def _failed(self, upload: Pending, error: UploadError) -> Step:
        """Drop an upload that no repetition helps; let any other one wait."""
        now = self._clock()
        if not error.retryable:
            due, reason = now, FlushReason.REFUSED
            with self._store.transaction() as db:
                spool.settle(db, upload.id, f"refused: status {error.status}")
        else:
            longest = _LONGEST_WAIT_SECONDS - _LONGEST_BACKOFF_SECONDS
            asked_until = now + min(max(0.0, error.retry_after or 0.0), longest)  # a NaN is none
            due = asked_until + _backoff(upload.attempts, self._coins)
            answered = error.status is not None
            reason = FlushReason.COLLECTOR_ERROR if answered else FlushReason.UNREACHABLE
            with self._store.transaction() as db:
                spool.postpone(db, upload, asked_until=asked_until, backoff_until=due)
        return Step(due=due, reason=reason, status=error.status, detail=str(error))


def _pause(upload: Pending, now: float, *, is_urgent: bool) -> Step | None:
    """Return the step that waits for an upload, None if it may be sent now."""
    if upload.claimed_until > now:
        return Step(due=upload.claimed_until, reason=FlushReason.BUSY)
    if upload.asked_until > now:
        return Step(due=upload.asked_until, reason=FlushReason.ASKED_TO_WAIT)
    if upload.backoff_until > now and not is_urgent:
        return Step(due=upload.backoff_until)
    return None


def _is_too_old(upload: Pending, now: float) -> bool:
    return upload.first_attempt is not None and now > upload.first_attempt + GIVE_UP_SECONDS


def _backoff(attempts: int, coins: Coins) -> float:
    """Return the seconds to wait after a number of attempts: exponential, with full jitter."""
    ceiling = min(_FIRST_BACKOFF_SECONDS * 2.0 ** min(attempts, 32), _LONGEST_BACKOFF_SECONDS)
    return coins(1)[0] / ONE * ceiling


def _statuses(answer: Answer, n_reports: int) -> list[str]:
    """Read the status of each report, or raise the UploadError that says what to do."""
    if not 200 <= answer.status < 300:
        raise UploadError(
            f"the collector answered with status {answer.status}",
            status=answer.status,
            retryable=answer.status not in _DROPPED,
            retry_after=answer.retry_after,
        )
    try:
        statuses = [_status(entry) for entry in json.loads(answer.body)["reports"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        statuses = []
    if len(statuses) != n_reports:  # cut on the way: asked again, the collector repeats it
        raise UploadError("the collector's answer was not whole", status=answer.status)
    return statuses


def _status(entry: dict[str, object]) -> str:
    if entry["status"] == spool.ACCEPTED:
        return spool.ACCEPTED
    reason = entry.get("reason")
    is_plain = isinstance(reason, str) and _REASON.fullmatch(reason)
    return f"refused: {reason if is_plain else 'no reason given'}"
