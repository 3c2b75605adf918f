"""What each metric has answered for: a scope's patterns, never its values.

A scope answers for as many values as the metric has patterns, one unless it says more; then it
closes and repeats its last report's permanent response. The memory of an epoch is in force until
the epoch's last day is over, whatever the registry says meanwhile and however the clock is set: a
clock that is set back leaves the device in the later epoch. The memory of a metric for life is in
force as long as its permanent responses are the same; p and q may change. A value that comes
under another scope than the one in force is not looked at: the last response is repeated.
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
    """A scope in force: the patterns that it has answered for, and its last report's source."""

    answered: Answered[bytes]
    last: Prepared


def answer(
    db: sqlite3.Connection, metric: Metric, prepared: Prepared, day: datetime.date, coins: Coins
) -> Memory:
    """Return what the scope is after a value; its `last` is the report to send.

    Nothing is written: `remember` does that once the report is safe.
    """
    memory = _recall(db, metric, day)
    if memory is None:
        first: Answered[bytes] = Answered()
        return Memory(first.with_value(prepared.pattern, patterns=metric.patterns), prepared)
    answered, source = memory.answered, memory.last
    if len(answered.admitted) > metric.patterns:  # the registry asks for fewer than before
        answered = dataclasses.replace(answered, closed=True)
    if _is_of(prepared, source):
        answered = answered.with_value(prepared.pattern, patterns=metric.patterns)
    if answered.last == prepared.pattern:
        if prepared.params.fingerprint == source.params.fingerprint:
            return Memory(answered, prepared)
        source = dataclasses.replace(source, pattern=prepared.pattern, permanent=prepared.permanent)
    return Memory(answered, prepare_again(source, coins))


def remember(db: sqlite3.Connection, metric: Metric, memory: Memory, day: datetime.date) -> None:
    """Keep what a scope has answered for."""
    last = memory.last
    is_new = db.execute(
        "SELECT 1 FROM scope WHERE metric = ? AND epoch = ?", (metric.name, last.epoch)
    ).fetchone()
    keep_params(db, last.report.params, last.params)
    changing = (
        last.report.params,
        last.report.cohort,
        last.permanent,
        b"".join(memory.answered.admitted),
        last.pattern,
        memory.answered.closed,
    )
    if is_new is None:
        ends = datetime.date.max if not last.epoch else epoch_end(metric.epoch, day)
        row = (metric.name, last.epoch, ends.isoformat(), *changing)
        db.execute("INSERT OR REPLACE INTO scope VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    else:
        db.execute(
            "UPDATE scope SET params = ?, cohort = ?, permanent = ?, admitted = ?, last = ?, "
            "closed = ? WHERE metric = ? AND epoch = ?",
            (*changing, metric.name, last.epoch),
        )


def latched_epochs(db: sqlite3.Connection) -> dict[str, str]:
    """Return the epoch of each metric that has answered in one; empty for life."""
    return dict(db.execute("SELECT metric, epoch FROM scope ORDER BY metric"))


def _is_of(prepared: Prepared, last: Prepared) -> bool:
    """Tell whether a report was prepared in the scope that is in force."""
    mine, its = prepared.params, last.params
    return (prepared.epoch, mine.permanent_fingerprint) == (last.epoch, its.permanent_fingerprint)


def _recall(db: sqlite3.Connection, metric: Metric, day: datetime.date) -> Memory | None:
    """Return the memory that is in force, None if a new scope begins."""
    query = (
        "SELECT epoch, params, cohort, permanent, admitted, last, closed FROM scope "
        "WHERE metric = ? AND last_day >= ?"
    )
    row = db.execute(query, (metric.name, day.isoformat())).fetchone()
    if row is None:
        return None
    epoch, fingerprint, cohort, permanent, admitted, last, closed = row
    params: Params | None = kept_params(db, fingerprint)
    if not epoch:
        params = _with_same_response(metric, params) if metric.epoch == "life" else None
    if params is None:
        return None
    names = (admitted[i : i + PATTERN_BYTES] for i in range(0, len(admitted), PATTERN_BYTES))
    return Memory(
        Answered(tuple(names), last, bool(closed)),
        Prepared(
            params=params,
            epoch=epoch,
            pattern=last,
            permanent=permanent,
            report=Report(metric=metric.name, params=params.fingerprint, cohort=cohort, bits=b""),
        ),
    )


def _with_same_response(metric: Metric, params: Params | None) -> Params | None:
    """Return the metric's own parameters with the permanent responses of these, if there are."""
    for own in metric.accepted.values():
        if params is not None and own.permanent_fingerprint == params.permanent_fingerprint:
            return own
    return None
