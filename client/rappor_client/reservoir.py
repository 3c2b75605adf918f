"""At most one report in an interval: a uniform choice among its events, as they come.

Of all events one prepared report is held; the n-th event replaces it with probability 1/n
(Vitter 1985, algorithm R with a reservoir of one). Only what is held when the interval ends is
charged and spooled, to leave at a random time of the next interval.

A clock that is set back does not reopen an interval that has had its report. Where the held
interval begins more than its own length ahead, the clock was wrong when it began: its report goes
at once, and the true interval begins. An epoch never has more reports than its price counts on,
however the clock jumps.
"""

from __future__ import annotations

import math
import sqlite3
from dataclasses import dataclass
from typing import Final

from rappor.protocol.params import ONE
from rappor.protocol.randomizer import Coins
from rappor.protocol.wire import Report
from rappor_client.ledger import charge, n_charged
from rappor_client.prepared import Prepared
from rappor_client.spool import add
from rappor_client.state import keep_params, kept_params

_EMPTY: Final = (
    "UPDATE held SET epoch = NULL, params = NULL, cohort = NULL, bits = NULL, pattern = NULL"
)
_NEVER: Final = (-math.inf, 0.0, 0, True)
"""The interval of a metric that had none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A metric's open interval: its end in seconds since 1970, and the report held for it.

    `pattern` is the keyed name of the held report's permanent response.
    """

    metric: str
    ends: float
    n_events: int
    pattern: bytes


def offer(
    db: sqlite3.Connection,
    prepared: Prepared,
    ends: float,
    seconds: float,
    *,
    now: float,
    most: int | None,
    coins: Coins,
) -> bool:
    """Enter a report into the choice of the open interval; False if that has had its report.

    The present interval `ends` at a moment and is `seconds` long. `most` is how many reports the
    epoch may have, None for any number. Intervals that are over must have been released.
    """
    name = prepared.report.metric
    query = "SELECT ends, seconds, events, bits IS NULL FROM held WHERE metric = ?"
    open_until, length, events, is_released = db.execute(query, (name,)).fetchone() or _NEVER
    if now >= open_until or _is_far_ahead(open_until, length, now):
        if most is not None and n_charged(db, name, prepared.epoch) >= most:
            return False
        _hold(db, prepared, ends, seconds, 1)
    elif is_released:
        return False
    elif coins(1)[0] * (events + 1) < ONE:  # probability 1/n, to within 2^-32
        _hold(db, prepared, open_until, length, events + 1)
    else:
        db.execute("UPDATE held SET events = events + 1 WHERE metric = ?", (name,))
    return True


def release(db: sqlite3.Connection, now: float, coins: Coins) -> None:
    """Charge and spool the held reports of intervals that have ended, or never were."""
    query = (
        "SELECT metric, ends, seconds, epoch, params, cohort, bits, pattern FROM held "
        "WHERE bits IS NOT NULL"
    )
    for row in db.execute(query).fetchall():
        name, ends, seconds, epoch, fingerprint, cohort, bits, pattern = row
        if now < ends and not _is_far_ahead(ends, seconds, now):
            continue
        report = Report(metric=name, params=fingerprint, cohort=cohort, bits=bits)
        params = kept_params(db, fingerprint)
        prepared = Prepared(
            params=params, epoch=epoch, pattern=pattern, permanent=b"", report=report
        )
        due = min(ends, now) + coins(1)[0] / ONE * seconds
        add(db, report, charge(db, prepared), due=due)
        forget(db, name)


def forget(db: sqlite3.Connection, name: str) -> None:
    """Drop the held report of a metric, but not the record that its interval was entered."""
    db.execute(f"{_EMPTY} WHERE metric = ?", (name,))


def drop(db: sqlite3.Connection) -> None:
    """Drop the held reports of all metrics, as `forget` does."""
    db.execute(_EMPTY)


def held(db: sqlite3.Connection) -> list[Held]:
    """Return every report that is held for its interval, by metric."""
    query = "SELECT metric, ends, events, pattern FROM held WHERE bits IS NOT NULL ORDER BY metric"
    return [
        Held(metric=name, ends=ends, n_events=events, pattern=pattern)
        for name, ends, events, pattern in db.execute(query)
    ]


def next_end(db: sqlite3.Connection) -> float | None:
    """Return the moment when the next held report may go, None if none is held."""
    (ends,) = db.execute("SELECT MIN(ends) FROM held WHERE bits IS NOT NULL").fetchone()
    return None if ends is None else float(ends)


def _is_far_ahead(ends: float, seconds: float, now: float) -> bool:
    """Tell whether an interval begins so late that the clock must have been wrong."""
    return ends > now + 2 * seconds


def _hold(
    db: sqlite3.Connection, prepared: Prepared, ends: float, seconds: float, events: int
) -> None:
    keep_params(db, prepared.report.params, prepared.params)
    row = (
        prepared.report.metric,
        ends,
        seconds,
        events,
        prepared.epoch,
        prepared.report.params,
        prepared.report.cohort,
        prepared.report.bits,
        prepared.pattern,
    )
    db.execute("INSERT OR REPLACE INTO held VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
