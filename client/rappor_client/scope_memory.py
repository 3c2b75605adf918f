"""What each metric has answered for: a scope's patterns, never its values.

A scope answers for as many values as the metric has patterns, one unless it says more; then it
closes and repeats its last report's permanent response. The memory of an epoch is in force until
the epoch's last day is over, whatever the registry says meanwhile and however the clock is set: a
clock that is set back leaves the device in the later epoch. Interval and patterns stay with it,
for the price of the scope counts on them. The memory of a metric for life is in force whenever its
permanent responses are the same; p and q may change. It is never dropped: a registry that changes
and changes back finds what was answered. A value that comes under another scope than the one in
force is not looked at: the last response is repeated.
"""

from __future__ import annotations

import dataclasses
import datetime
import sqlite3
from dataclasses import dataclass

from rappor.protocol.closing import Answered
from rappor.protocol.params import Params
from rappor.protocol.randomizer import Coins
from rappor.protocol.wire import Report
from rappor.registry.metric import Metric
from rappor_client.periods import epoch_end
from rappor_client.prepared import PATTERN_BYTES, Prepared, prepare_again
from rappor_client.state import keep_params, kept_params


@dataclass(frozen=True, slots=True)
class Memory:
    """A scope in force: the patterns that it has answered for, and its last report's source.

    At most `patterns` values are answered for, at most one report is sent in an `interval`.
    """

    answered: Answered[bytes]
    last: Prepared
    patterns: int
    interval: str


def answer(
    db: sqlite3.Connection, metric: Metric, prepared: Prepared, day: datetime.date, coins: Coins
) -> Memory:
    """Return what the scope is after a value; its `last` is the report to send.

    Nothing is written: `remember` does that once the report is safe.
    """
    memory = _recall(db, metric, day)
    if memory is None:
        nothing: Answered[bytes] = Answered()
        first = nothing.with_value(prepared.pattern, patterns=metric.patterns)
        return Memory(first, prepared, metric.patterns, metric.interval)
    answered, source, patterns = memory.answered, memory.last, memory.patterns
    if len(answered.admitted) > patterns:  # the registry asks for fewer than before
        answered = dataclasses.replace(answered, closed=True)
    if _is_of(prepared, source):
        answered = answered.with_value(prepared.pattern, patterns=patterns)
    if answered.last == prepared.pattern:
        if prepared.params.fingerprint == source.params.fingerprint:
            return dataclasses.replace(memory, answered=answered, last=prepared)
        source = dataclasses.replace(source, pattern=prepared.pattern, permanent=prepared.permanent)
    return dataclasses.replace(memory, answered=answered, last=prepare_again(source, coins))


def remember(db: sqlite3.Connection, metric: Metric, memory: Memory, day: datetime.date) -> None:
    """Keep what a scope has answered for."""
    last = memory.last
    key = (metric.name, last.epoch, last.params.permanent_fingerprint)
    is_new = db.execute(
        "SELECT 1 FROM scope WHERE metric = ? AND epoch = ? AND response = ?", key
    ).fetchone()
    keep_params(db, last.report.params, last.params)
    changing = (
        last.report.params,
        last.report.cohort,
        last.permanent,
        b"".join(memory.answered.admitted),
        last.pattern,
        memory.answered.closed,
        memory.patterns,
        memory.interval,
    )
    if is_new is None:
        ends = datetime.date.max if not last.epoch else epoch_end(metric.epoch, day)
        if last.epoch:  # earlier ones are over, and a clock set back stays in this one
            db.execute("DELETE FROM scope WHERE metric = ? AND epoch != ''", (metric.name,))
        row = (*key, ends.isoformat(), *changing)
        db.execute("INSERT INTO scope VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    else:
        db.execute(
            "UPDATE scope SET params = ?, cohort = ?, permanent = ?, admitted = ?, last = ?, "
            "closed = ?, patterns = ?, interval = ? "
            "WHERE metric = ? AND epoch = ? AND response = ?",
            (*changing, *key),
        )


def latched_epochs(db: sqlite3.Connection) -> dict[str, str]:
    """Return the epoch of each metric that has answered in one; empty for life."""
    return dict(db.execute("SELECT metric, epoch FROM scope ORDER BY metric, last_day DESC"))


def _is_of(prepared: Prepared, last: Prepared) -> bool:
    """Tell whether a report was prepared in the scope that is in force."""
    mine, its = prepared.params, last.params
    return (prepared.epoch, mine.permanent_fingerprint) == (last.epoch, its.permanent_fingerprint)


def _recall(db: sqlite3.Connection, metric: Metric, day: datetime.date) -> Memory | None:
    """Return the memory that is in force, None if a new scope begins."""
    query = "SELECT * FROM scope WHERE metric = ? AND last_day >= ? ORDER BY last_day, response"
    for row in db.execute(query, (metric.name, day.isoformat())).fetchall():
        _, epoch, _, _, fingerprint, cohort, permanent, admitted, last, closed, most, interval = row
        params: Params | None = kept_params(db, fingerprint)
        if not epoch:
            params = _with_same_response(metric, params) if metric.epoch == "life" else None
        if params is None:
            continue
        names = (admitted[i : i + PATTERN_BYTES] for i in range(0, len(admitted), PATTERN_BYTES))
        report = Report(metric=metric.name, params=params.fingerprint, cohort=cohort, bits=b"")
        return Memory(
            Answered(tuple(names), last, bool(closed)),
            Prepared(params=params, epoch=epoch, pattern=last, permanent=permanent, report=report),
            patterns=min(most, metric.patterns) if epoch else metric.patterns,
            interval=interval if epoch else metric.interval,
        )
    return None


def _with_same_response(metric: Metric, params: Params | None) -> Params | None:
    """Return the metric's own parameters with the permanent responses of these, if there are."""
    for own in metric.accepted.values():
        if params is not None and own.permanent_fingerprint == params.permanent_fingerprint:
            return own
    return None
