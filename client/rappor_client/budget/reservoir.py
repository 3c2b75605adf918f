"""At most one report in an interval: a uniform choice among its events, as they come.

Of all events one prepared report is held; the n-th event replaces it with probability 1/n
(Vitter 1985, algorithm R with a reservoir of one). Only what is held when the interval ends is
admitted to its scope, charged and spooled, to leave at a random time of the next interval. An
event that was not chosen leaves no trace: no scope answers for it.

An interval belongs to one epoch and ends with it at the latest. A clock that is set back does not
reopen an interval that has had its report. Where the held interval begins more than its own length
ahead, the clock was wrong when it began: its report goes at once. A scope never has more reports
than its price counts on, however the clock jumps and registries change: a held report that finds
its scope full is dropped.

With `interval = "epoch"` the first day with an event has the report: an event that is stored
after its day takes part in the choice of its own day, not of the day that has begun since.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from rappor.protocol.params import ONE
from rappor.protocol.randomizer import Coins
from rappor.protocol.wire import Report
from rappor_client.budget.ledger import charge, n_charged
from rappor_client.budget.prepared import Prepared
from rappor_client.budget.scope_memory import Memory, Terms, answer, remember
from rappor_client.folder.spool import add
from rappor_client.folder.state import keep_params, kept_params
from rappor_client.periods import after_day, interval_end, interval_seconds

_EMPTY: Final = (
    "UPDATE held SET events = 0, terms = NULL, params = NULL, cohort = NULL, bits = NULL, "
    "permanent = NULL, pattern = NULL, closed = NULL"
)
_NEVER: Final = (-math.inf, 0.0, 0, True)
"""The interval of an epoch that had none."""


class Moment(NamedTuple):
    """When intervals are looked at, in seconds since 1970: `at` is as of when, `now` the clock's.

    They differ for an event that is entered after the day on which it happened.
    """

    at: float
    now: float


class _Interval(NamedTuple):
    """When an interval ends and how long it is, in seconds; and the events that it has met."""

    ends: float
    seconds: float
    n_events: int


class Held(NamedTuple):
    """A metric's open interval: its end in seconds since 1970, and the report held for it.

    `pattern` is the keyed name of the held report's permanent response.
    """

    metric: str
    ends: float
    n_events: int
    pattern: bytes


def settle(db: sqlite3.Connection, terms: Terms, memory: Memory, *, due: float = 0.0) -> None:
    """Remember what a scope has answered for; charge and spool its report, which is sure to go."""
    remember(db, terms, memory)
    add(db, memory.last.report, charge(db, memory.last), due=due)


def offer(
    db: sqlite3.Connection,
    answers: Sequence[tuple[Terms, Memory]],
    *,
    moment: Moment,
    coins: Coins,
) -> bool:
    """Enter the reports of an event into the choice of the open interval, all of them or none.

    False if one of their metrics has had its report. Each memory is what its scope would be after
    this event. Intervals that were over at the moment must have been released. Where the metrics
    have met other numbers of events, because an earlier registry had one of them alone, they begin
    anew with this one: what is held is of one event.
    """
    intervals = []
    for _, memory in answers:
        if (interval := _open_interval(db, memory, moment)) is None:
            return False
        intervals.append(interval)
    met = {interval.n_events for interval in intervals}
    n_events = met.pop() + 1 if len(met) == 1 else 1
    is_chosen = n_events == 1 or coins(1)[0] * n_events < ONE  # probability 1/n, to within 2^-32
    for (terms, memory), interval in zip(answers, intervals, strict=True):
        if is_chosen:
            _hold(db, terms, memory, interval._replace(n_events=n_events))
        else:
            query = "UPDATE held SET events = events + 1 WHERE metric = ? AND epoch = ?"
            db.execute(query, (memory.last.report.metric, memory.last.epoch))
    return True


def release(db: sqlite3.Connection, moment: Moment, coins: Coins) -> None:
    """Settle the held reports of intervals that have ended, or never were."""
    query = (
        "SELECT metric, epoch, ends, seconds, terms, params, cohort, bits, permanent, pattern, "
        "closed FROM held WHERE bits IS NOT NULL ORDER BY metric, ends, epoch"
    )
    for row in db.execute(query).fetchall():
        name, epoch, ends, seconds, terms, *report, is_closed = row
        if moment.at < ends and not _is_far_ahead(ends, seconds, moment):
            continue
        settled = Terms.from_json(terms)
        memory = answer(db, settled, _prepared(db, name, epoch, report), coins)
        if not _is_full(db, memory):
            due = min(ends, moment.now) + coins(1)[0] / ONE * seconds
            settle(db, settled, memory.closed() if is_closed else memory, due=due)
        db.execute(f"{_EMPTY} WHERE metric = ? AND epoch = ?", (name, epoch))


def forget(db: sqlite3.Connection, name: str) -> None:
    """Drop the held reports of a metric, but not the record that their intervals were entered."""
    db.execute(f"{_EMPTY} WHERE metric = ?", (name,))


def drop(db: sqlite3.Connection) -> None:
    """Drop the held reports of all metrics, as `forget` does."""
    db.execute(_EMPTY)


def held(db: sqlite3.Connection) -> list[Held]:
    """Return every report that is held for its interval, by metric."""
    query = (
        "SELECT metric, ends, events, pattern FROM held WHERE bits IS NOT NULL "
        "ORDER BY metric, ends"
    )
    return [
        Held(metric=name, ends=ends, n_events=events, pattern=pattern)
        for name, ends, events, pattern in db.execute(query)
    ]


def next_end(db: sqlite3.Connection) -> float | None:
    """Return the moment when the next held report may go, None if none is held."""
    (ends,) = db.execute("SELECT MIN(ends) FROM held WHERE bits IS NOT NULL").fetchone()
    return None if ends is None else float(ends)


def _open_interval(db: sqlite3.Connection, memory: Memory, moment: Moment) -> _Interval | None:
    """Return the interval that an event falls into; None if that has had its report."""
    seconds = interval_seconds(memory.interval)
    ends = min(interval_end(memory.interval, moment.at), after_day(memory.last_day))
    query = "SELECT ends, seconds, events, bits IS NULL FROM held WHERE metric = ? AND epoch = ?"
    key = memory.last.report.metric, memory.last.epoch
    open_until, length, events, is_released = db.execute(query, key).fetchone() or _NEVER
    if moment.at >= open_until or _is_far_ahead(open_until, length, moment):
        return None if _is_full(db, memory) else _Interval(ends, seconds, 0)
    if is_released:
        return None
    is_of_first_day = memory.interval == "epoch" and ends <= open_until - length
    return _Interval(ends, seconds, 0) if is_of_first_day else _Interval(open_until, length, events)


def _is_full(db: sqlite3.Connection, memory: Memory) -> bool:
    """Return whether a scope has had all reports that its price counts on."""
    key = memory.last.report.metric, memory.last.epoch
    return memory.most is not None and n_charged(db, *key) >= memory.most


def _is_far_ahead(ends: float, seconds: float, moment: Moment) -> bool:
    """Return whether an interval begins so late that the clock must have been wrong."""
    return ends > moment.now + 2 * seconds


def _prepared(db: sqlite3.Connection, metric: str, epoch: str, held: Sequence[Any]) -> Prepared:
    """Return a held report as it was prepared."""
    fingerprint, cohort, bits, permanent, pattern = held
    return Prepared(
        params=kept_params(db, fingerprint),
        epoch=epoch,
        pattern=pattern,
        permanent=permanent,
        report=Report(metric=metric, params=fingerprint, cohort=cohort, bits=bits),
    )


def _hold(db: sqlite3.Connection, terms: Terms, memory: Memory, interval: _Interval) -> None:
    last = memory.last
    keep_params(db, last.report.params, last.params)
    row = (
        last.report.metric,
        last.epoch,
        *interval,
        terms.to_json(),
        last.report.params,
        last.report.cohort,
        last.report.bits,
        last.permanent,
        last.pattern,
        memory.answered.closed,
    )
    db.execute("INSERT OR REPLACE INTO held VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
