"""One step of sending at a time: which upload is due, what an answer means, when to try again.

A step never sleeps and starts no thread; it says when the next one is due. Ledger and spool
are on the disk before an upload leaves, so that what left is never sent again as another.
"""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from typing import Final

from rappor.protocol.params import ONE
from rappor.protocol.randomizer import Coins
from rappor_client import reservoir, spool
from rappor_client.errors import UploadError
from rappor_client.ledger import Caps
from rappor_client.periods import DAY, HOUR, Clock
from rappor_client.remote_params import Offers
from rappor_client.spool import GIVE_UP_SECONDS, Pending, SpoolLimits
from rappor_client.store import Store
from rappor_client.transport import Answer, Transport

REQUEST_SECONDS: Final = 30.0
_CLAIM_SECONDS: Final = 2 * REQUEST_SECONDS
_FIRST_BACKOFF_SECONDS: Final = 5.0
_LONGEST_BACKOFF_SECONDS: Final = HOUR
_LONGEST_WAIT_SECONDS: Final = DAY
_DROPPED: Final = (400, 409, 413, 415, 422)
"""Statuses that no repetition changes; all others but 2xx wait."""
_REASON: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")


class Delivery:
    """Carries the spool of one store to one transport."""

    def __init__(
        self,
        store: Store,
        transport: Transport,
        *,
        caps: Caps,
        limits: SpoolLimits,
        offers: Offers | None,
        max_delay: float,
        clock: Clock,
        coins: Coins,
    ) -> None:
        """Take all that a step needs; `max_delay` in seconds."""
        self._store = store
        self._transport = transport
        self._caps = caps
        self._limits = limits
        self._offers = offers
        self._max_delay = max_delay
        self._clock = clock
        self._coins = coins
        self._one_step = threading.Lock()

    def step(self, *, timeout: float = REQUEST_SECONDS) -> float | None:
        """Send what is due, one upload at most, and return when the next step is (None: idle).

        Raises sqlite3.Error and OSError where the disk fails, never for the network.
        """
        if not self._one_step.acquire(timeout=max(timeout, 0.0)):
            return self._clock()  # another thread is at it
        try:
            upload = self._take()
            if upload is None:
                return self._next_end()
            if upload.retry_at <= self._clock():
                self._attempt(upload, min(timeout, REQUEST_SECONDS))
                return self._clock()
            return upload.retry_at
        finally:
            self._one_step.release()

    def delay(self) -> float:
        """Draw the seconds to wait before sending: when it is sent tells not when it happened."""
        return self._coins(1)[0] / ONE * self._max_delay

    def close(self) -> None:
        """Let go of the transport's connections."""
        self._transport.close()

    def _take(self) -> Pending | None:
        """Return the pending upload, claimed if it is due; on the disk before it leaves."""
        now = self._clock()
        with self._store.transaction(durable=True) as db:
            reservoir.release(db, now, self._caps)
            spool.trim(db, self._limits)
            spool.trim_log(db, self._limits)
            while upload := spool.pending(db):
                if upload.retry_at > now + _LONGEST_WAIT_SECONDS:  # the clock was set back
                    spool.postpone(db, upload, now)
                elif upload.retry_at > now:
                    return upload
                elif _is_too_old(upload, now):
                    spool.settle(db, upload, "given_up")
                else:
                    spool.claim(db, upload, now=now, until=now + _CLAIM_SECONDS)
                    return upload
        return None

    def _attempt(self, upload: Pending, timeout: float) -> None:
        """Send an upload once and write down what came of it."""
        try:
            answer = self._send(upload, timeout)
            statuses = _statuses(answer, n_reports=len(json.loads(upload.body)["reports"]))
        except UploadError as error:
            with self._store.transaction() as db:
                self._fail(db, upload, error)
            return
        with self._store.transaction(durable=True) as db:
            spool.settle(db, upload, statuses)
        if self._offers is not None:
            self._offers.refresh(timeout=timeout)

    def _send(self, upload: Pending, timeout: float) -> Answer:
        try:
            return self._transport.send(upload.body, timeout=timeout)
        except UploadError:
            raise
        except Exception as error:  # noqa: BLE001 - a host's own transport may raise anything
            raise UploadError(f"the transport failed: {type(error).__name__}") from None

    def _fail(self, db: sqlite3.Connection, upload: Pending, error: UploadError) -> None:
        if not error.retryable:
            spool.settle(db, upload, f"refused: status {error.status}")
            return
        wait = _backoff(upload.attempts, self._coins)
        wait += min(error.retry_after or 0.0, _LONGEST_WAIT_SECONDS - _LONGEST_BACKOFF_SECONDS)
        spool.postpone(db, upload, self._clock() + wait)

    def _next_end(self) -> float | None:
        with self._store.reading() as db:
            ends = reservoir.next_end(db)
        return None if ends is None else ends + self.delay()


def _is_too_old(upload: Pending, now: float) -> bool:
    return upload.first_attempt is not None and now > upload.first_attempt + GIVE_UP_SECONDS


def _backoff(attempts: int, coins: Coins) -> float:
    """Return seconds to wait after so many attempts: exponential, with full jitter."""
    ceiling = min(_FIRST_BACKOFF_SECONDS * 2.0 ** min(attempts, 32), _LONGEST_BACKOFF_SECONDS)
    return coins(1)[0] / ONE * ceiling


def _statuses(answer: Answer, n_reports: int) -> list[str]:
    """Read the status of each report, or raise UploadError with what to do."""
    if not 200 <= answer.status < 300:
        raise UploadError(
            f"the collector answered {answer.status}",
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
    if entry["status"] == "accepted":
        return "accepted"
    reason = entry.get("reason")
    known = isinstance(reason, str) and _REASON.fullmatch(reason)
    return f"refused: {reason if known else 'no reason given'}"
