"""Waits after failures: the backoff of an upload, the pause of all uploads, and Retry-After.

The uploader calls `back_off` after a failed attempt, and `clear_failures` after a result. Before
each attempt it calls `find_wait`.

After the n-th attempt of an upload fails, its backoff is uniform on [0, min(5 s * 2^(n - 1), 1 h)].
After the n-th failure in a row, of whichever upload, the pause of all uploads is drawn from the
same distribution. Both begin where the wait that the collector has asked for (Retry-After) ends.

    failure                                       what waits
    no response from the collector                the upload, and all others
    an error as response, the first failure in    the upload: only this upload may be at fault
    a row
    an error as response, a further failure in    the upload, and all others
    a row
    the collector refuses the upload for good     nothing: the collector works

Three values in the table `state` of the spool, absent or 0 if there is no such wait:

    retry_after_until   end of the wait that the collector asked for, in seconds since 1970
    pause_until         end of the pause of all uploads, in seconds since 1970
    failures_in_a_row   failures since the last result of any upload

The table `report` contains `backoff_until` of each upload. It also contains `claimed_until`: a
process *claims* an upload before it sends the upload, so that no other process sends it meanwhile.

Clocks may be wrong. A wait that ends later than the longest possible wait from now was computed
while the clock was ahead. Such a wait is ignored (`_must_wait`). Otherwise a clock that was a year
ahead once would stop all uploads for a year.

Waits are random. A *coin* is a uniform random integer in [0, 2^32), and coin / 2^32 times a limit
is a wait below the limit.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from rappor.protocol.responses.response import Coins
from rappor.protocol.thresholds import ONE
from rappor_client.folder import spool
from rappor_client.folder.spool import CLAIM_SECONDS, QueuedUpload
from rappor_client.folder.spool_tables import read_value, write_value
from rappor_client.network.transport import UploadError
from rappor_client.outbox.flush_result import FlushReason, Step
from rappor_client.periods import DAY, HOUR

_FIRST_BACKOFF_SECONDS: Final = 5.0
"""Largest backoff after the first attempt, in seconds. Every further attempt doubles the limit."""
_MAX_BACKOFF_SECONDS: Final = HOUR
"""Limit of every backoff, in seconds. If this value grows, reports arrive later after an outage of
the collector."""
_MAX_WAIT_SECONDS: Final = DAY
"""Longest wait that this module sets: Retry-After of at most 23 h, plus a backoff of at most 1 h.
In seconds. A longer wait in the spool was set by a wrong clock."""
_RETRY_AFTER: Final = "retry_after_until"
_PAUSE_UNTIL: Final = "pause_until"
_FAILURES: Final = "failures_in_a_row"


def back_off(
    db: sqlite3.Connection,
    upload: QueuedUpload,
    retry_after_until: float,
    coins: Coins,
    *,
    has_response: bool,
) -> float:
    """Set the waits after a failed attempt; return the time of the next attempt of any upload.

    The head of this module lists the cases.

    Parameters
    ----------
    db
        The open transaction.
    upload
        The upload whose attempt has failed, as it was before the attempt.
    retry_after_until
        End of the wait that the collector asked for; the present time if it asked for none.
    coins
        Returns uniform random integers in [0, 2^32). The random waits are computed from them.
    has_response
        Whether the collector has responded, with an error.
    """
    # `attempts` does not count the attempt that has just failed.
    until = retry_after_until + _draw_backoff(upload.attempts, coins)
    spool.postpone(db, upload, until=until)
    failures = int(read_value(db, _FAILURES) or 0) + 1
    write_value(db, _FAILURES, failures)
    write_value(db, _RETRY_AFTER, retry_after_until)
    if has_response and failures == 1:
        return retry_after_until
    pause_until = retry_after_until + _draw_backoff(failures - 1, coins)
    write_value(db, _PAUSE_UNTIL, pause_until)
    return pause_until


def clear_failures(db: sqlite3.Connection) -> None:
    """End the pause and the wait of Retry-After, because the collector has sent a result.

    Backoffs of single uploads stay.
    """
    if read_value(db, _FAILURES):
        for name in (_FAILURES, _PAUSE_UNTIL, _RETRY_AFTER):
            write_value(db, name, 0)


def has_failed(db: sqlite3.Connection) -> bool:
    """Return whether the last attempt of any upload was a failure."""
    return bool(int(read_value(db, _FAILURES) or 0))


def is_backing_off(upload: QueuedUpload, now: float) -> bool:
    """Return whether the backoff of an upload is not over."""
    return _must_wait(upload.backoff_until, now, _MAX_WAIT_SECONDS)


def find_wait(
    db: sqlite3.Connection,
    upload: QueuedUpload,
    now: float,
    *,
    ignore_backoff: bool,
    ignore_pause: bool,
) -> Step | None:
    """Return until when an upload must wait, and why; None if it may be sent now.

    Parameters
    ----------
    db
        The open transaction.
    upload
        The upload to send next.
    now
        The present time.
    ignore_backoff
        Whether the backoff of the upload is ignored.
    ignore_pause
        Whether the pause of all uploads is ignored.

    Returns
    -------
    Step, optional
        The result of a step of the uploader that sends nothing: the time of the next attempt and
        the reason of the wait. If several waits hold, a claim is the reason before Retry-After, and
        Retry-After before backoff and pause.
    """
    retry_after_until = float(read_value(db, _RETRY_AFTER) or 0.0)
    pause_until = 0.0 if ignore_pause else float(read_value(db, _PAUSE_UNTIL) or 0.0)
    backoff_until = 0.0 if ignore_backoff else upload.backoff_until
    # Case: another process is sending this upload, or was killed while it was sending.
    if _must_wait(upload.claimed_until, now, CLAIM_SECONDS):
        return Step(next_at=upload.claimed_until, reason=FlushReason.BUSY)
    # Case: the collector has asked for a wait. The result of `Client.flush` shows this reason, so
    # that a person can distinguish the wait from a failure.
    if _must_wait(retry_after_until, now, _MAX_WAIT_SECONDS):
        return Step(next_at=retry_after_until, reason=FlushReason.ASKED_TO_WAIT)
    # Case: an earlier attempt has failed. Both waits are checked by themselves. One of them may
    # come from a clock that was ahead, and ignoring this wait must not end the other wait.
    waits = [
        until for until in (backoff_until, pause_until) if _must_wait(until, now, _MAX_WAIT_SECONDS)
    ]
    return Step(next_at=max(waits)) if waits else None


def read_retry_after(error: UploadError) -> float:
    """Return the seconds that a collector asked to wait, in [0, 23 h]; 0 without a number.

    A transport of the host may store anything in `retry_after`.
    """
    try:
        seconds = float(error.retry_after or 0.0)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    # A backoff follows. The sum must not exceed the longest wait, or it would be ignored.
    longest = _MAX_WAIT_SECONDS - _MAX_BACKOFF_SECONDS
    return min(max(0.0, seconds), longest)  # `max` returns 0.0 for a NaN


def _must_wait(until: float, now: float, longest: float) -> bool:
    """Return whether a wait holds: its end is in the future, and no further than the longest wait.

    A later end was computed while the clock was ahead. Such a wait is ignored.
    """
    return now < until <= now + longest


def _draw_backoff(n_earlier: int, coins: Coins) -> float:
    """Return the seconds to wait after a failure: exponential backoff with full jitter.

    `n_earlier` is the number of failures before this failure. Full jitter: the wait is uniform
    between 0 and its limit. Otherwise all devices that met one outage of the collector would return
    at the same time.
    """
    # The exponent is limited, because 2.0 ** 1024 raises OverflowError.
    limit = min(_FIRST_BACKOFF_SECONDS * 2.0 ** min(n_earlier, 32), _MAX_BACKOFF_SECONDS)
    # A coin is a uniform integer in [0, 2^32), and ONE is 2^32.
    return coins(1)[0] / ONE * limit
