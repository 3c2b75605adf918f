"""At most one report in an interval: a uniform choice among its events, made as they come.

Of the events one finished report is held; the n-th replaces it with chance 1/n (Vitter 1985,
algorithm R with a reservoir of one). Only what is held when the interval ends is charged and
spooled. An interval that has had its report is not entered again by a clock that is set back.
"""

from __future__ import annotations

import sqlite3

from rappor.protocol.params import ONE
from rappor.protocol.randomizer import Coins
from rappor.protocol.wire import Report
from rappor_client.errors import BudgetError
from rappor_client.ledger import Caps, charge
from rappor_client.prepared import Made
from rappor_client.spool import add
from rappor_client.state import count, keep_params, kept_params


def offer(db: sqlite3.Connection, made: Made, ends: float, *, now: float, coins: Coins) -> bool:
    """Take part in the choice of the interval that is open; False if it has had its report."""
    name = made.report.metric
    query = "SELECT ends, events, bits IS NULL FROM held WHERE metric = ?"
    open_until, events, is_released = db.execute(query, (name,)).fetchone() or (now, 0, True)
    if now >= open_until:
        _hold(db, made, ends, 1)
    elif is_released:
        return False
    elif coins(1)[0] * (events + 1) < ONE:  # chance 1/n, to within 2^-32
        _hold(db, made, open_until, events + 1)
    else:
        db.execute("UPDATE held SET events = events + 1 WHERE metric = ?", (name,))
    return True


def release(db: sqlite3.Connection, now: float, caps: Caps) -> None:
    """Charge and spool what is held of intervals that have ended."""
    query = (
        "SELECT metric, epoch, params, cohort, bits, pattern FROM held "
        "WHERE ends <= ? AND bits IS NOT NULL"
    )
    for name, epoch, fingerprint, cohort, bits, pattern in db.execute(query, (now,)).fetchall():
        report = Report(metric=name, params=fingerprint, cohort=cohort, bits=bits)
        params = kept_params(db, fingerprint)
        made = Made(params=params, epoch=epoch, pattern=pattern, permanent=b"", report=report)
        try:
            add(db, report, charge(db, made, caps))
        except BudgetError:
            count(db, "over_budget")
        forget(db, name)


def forget(db: sqlite3.Connection, name: str) -> None:
    """Drop what is held of a metric, but not that its interval has been entered."""
    db.execute(
        "UPDATE held SET epoch = NULL, params = NULL, cohort = NULL, bits = NULL, pattern = NULL "
        "WHERE metric = ?",
        (name,),
    )


def next_end(db: sqlite3.Connection) -> float | None:
    """Return the moment when the next held report may go."""
    (ends,) = db.execute("SELECT MIN(ends) FROM held WHERE bits IS NOT NULL").fetchone()
    return None if ends is None else float(ends)


def _hold(db: sqlite3.Connection, made: Made, ends: float, events: int) -> None:
    keep_params(db, made.report.params, made.params)
    row = (
        made.report.metric,
        ends,
        events,
        made.epoch,
        made.report.params,
        made.report.cohort,
        made.report.bits,
        made.pattern,
    )
    db.execute("INSERT OR REPLACE INTO held VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
