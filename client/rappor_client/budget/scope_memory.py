"""What each metric has answered for: a scope's patterns, never its values.

A scope begins with its first report. It answers for as many values as the metric has patterns, one
unless it says more; then it closes and repeats its last report's permanent response. The memory of
an epoch is in force on all days of that epoch, whatever the registry says meanwhile; interval and
patterns stay with it, for the price of the scope counts on them. It is never dropped: a clock that
is set back finds what was answered. The memory of a metric for life is in force whenever its
permanent responses are the same; p and q may change. A value that comes under another scope than
the one in force is not looked at: the last response is repeated.

An epoch keeps p, q and segment of its first report. A segment that the registry lists no more is
not told any more: the device tells none until the epoch ends.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

from rappor.protocol.closing import Answered
from rappor.protocol.loss import epsilon_inf
from rappor.protocol.params import Params
from rappor.protocol.randomizer import Coins
from rappor.protocol.segments import Dimension, is_listed
from rappor.protocol.wire import Report
from rappor.registry.budget import most_reports, scope_price
from rappor.registry.metric import INTERVALS, Metric
from rappor_client.budget import ledger
from rappor_client.budget.prepared import PATTERN_BYTES, Prepared, prepare_again
from rappor_client.folder.state import keep_params, kept_params
from rappor_client.periods import epoch_end, epoch_start

Row = list[Any]
"""One scope as the database keeps it, in the order of the table's columns."""


class Terms(NamedTuple):
    """What the registry says of a metric on the day of an event; a scope that begins keeps to it.

    Days are in ISO form. `parts` are the names of the metric's parts, an empty one if it has none.
    `price` is that of one pattern, in nats; `most` is how many reports the epoch may have, None
    for any number. `segments` are the properties that may be told.
    """

    day: str
    first_day: str
    last_day: str
    parts: tuple[str, ...]
    patterns: int
    interval: str
    price: float
    most: int | None
    segments: tuple[Dimension, ...]

    @staticmethod
    @functools.lru_cache(maxsize=256)
    def of(metric: Metric, day: datetime.date) -> Terms:
        """Return what the registry says now."""
        first_day, last_day = _days(metric, day)
        return Terms(
            day=day.isoformat(),
            first_day=first_day,
            last_day=last_day,
            parts=tuple(part.name for part in metric.parts) or ("",),
            patterns=metric.patterns,
            interval=metric.interval,
            price=scope_price(metric) / metric.patterns,
            most=most_reports(metric),
            segments=metric.segments,
        )

    def to_json(self) -> str:
        """Write it, to wait for the end of an interval."""
        told = [(dimension.name, dimension.values) for dimension in self.segments]
        return json.dumps((*self[:-1], told))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote, earlier versions without segments too.

        Whatever else it is raises what its parts raise.
        """
        given = dict(zip(cls._fields, json.loads(text), strict=False))
        told = tuple(Dimension(name, tuple(values)) for name, values in given.pop("segments", ()))
        return cls(**given, segments=told)


class Memory(NamedTuple):
    """A scope in force: the patterns that it has answered for, and its last report's source.

    At most `patterns` values are answered for, and at most one report is sent in an `interval`.
    Until `last_day` there are at most `most` reports.
    """

    answered: Answered[bytes]
    last: Prepared
    patterns: int
    interval: str
    last_day: str
    most: int | None

    def closed(self) -> Memory:
        """Return the same after a value that is not admitted."""
        return self._replace(answered=self.answered._replace(closed=True))


def answer(db: sqlite3.Connection, terms: Terms, prepared: Prepared, coins: Coins) -> Memory:
    """Return what the scope is after a report of a value; its `last` is the report to send.

    Nothing is written: `remember` does that once the report is sure to leave.
    """
    memory = _recall(db, terms, prepared)
    if memory is None:
        nothing: Answered[bytes] = Answered()
        first = nothing.with_value(prepared.pattern, patterns=terms.patterns)
        return Memory(first, prepared, terms.patterns, terms.interval, terms.last_day, terms.most)
    answered, source, patterns = memory.answered, memory.last, memory.patterns
    if len(answered.admitted) > patterns:  # the registry asks for fewer than before
        answered = answered._replace(closed=True)
    if _is_of(prepared, source):
        answered = answered.with_value(prepared.pattern, patterns=patterns)
    if answered.last == prepared.pattern:
        if prepared.params.fingerprint == source.params.fingerprint:
            return memory._replace(answered=answered, last=prepared)
        source = dataclasses.replace(source, pattern=prepared.pattern, permanent=prepared.permanent)
    return memory._replace(answered=answered, last=prepare_again(source, coins))


def remember(db: sqlite3.Connection, terms: Terms, memory: Memory) -> None:
    """Keep what a scope has answered for."""
    last = memory.last
    key = (last.report.metric, last.epoch, last.params.permanent_fingerprint)
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
    updated = db.execute(
        "UPDATE scope SET params = ?, cohort = ?, permanent = ?, admitted = ?, last = ?, "
        "closed = ?, patterns = ?, interval = ? "
        "WHERE metric = ? AND epoch = ? AND response = ?",
        (*changing, *key),
    )
    if not updated.rowcount:
        _insert(db, (*key, terms.first_day, terms.last_day, *changing, terms.price, terms.most))


def latched_epochs(db: sqlite3.Connection) -> dict[str, str]:
    """Return the last epoch that each metric has answered for; empty for life."""
    return dict(db.execute("SELECT metric, epoch FROM scope ORDER BY metric, last_day"))


def latched_part(db: sqlite3.Connection, metric: Metric, epoch: str) -> str | None:
    """Return the part of a metric that the device has answered for, None if it may choose.

    A part stays over changed shares as long as the registry has one of its name.
    """
    own = {params.part: params.permanent_fingerprint for params in metric.part_sets}
    query = "SELECT params, response FROM scope WHERE metric = ? AND epoch = ?"
    for fingerprint, response in db.execute(query, (metric.name, epoch)).fetchall():
        part = kept_params(db, fingerprint).part
        if own.get(part) == response:
            return part
    return None


def is_begun(db: sqlite3.Connection, name: str, day: datetime.date) -> bool:
    """Return whether a metric has answered in an epoch that holds a day; never for life."""
    query = (
        "SELECT 1 FROM scope WHERE metric = ? AND epoch <> '' AND ? BETWEEN first_day AND last_day"
    )
    return db.execute(query, (name, day.isoformat())).fetchone() is not None


def dump(db: sqlite3.Connection) -> list[Row]:
    """Return all that was answered, in a fixed order."""
    rows = db.execute("SELECT * FROM scope ORDER BY metric, epoch, response")
    return [list(row) for row in rows]


def is_sound(row: Row, params: Params) -> bool:
    """Return whether a row of `dump` is one that `remember` can have written.

    It raises what its parts raise where they are something else altogether.
    """
    metric, epoch, response, first, last_day, fingerprint, cohort, permanent = row[:8]
    admitted, last, closed, patterns, interval, price, most = row[8:]
    named = isinstance(metric, str) and isinstance(epoch, str) and fingerprint == params.fingerprint
    dated = datetime.date.fromisoformat(first) <= datetime.date.fromisoformat(last_day)
    responding = response == params.permanent_fingerprint and 0 <= cohort < params.m
    names = _names(admitted)
    answered = len(permanent) == params.n_bytes and last in names
    answered &= {len(name) for name in names} == {PATTERN_BYTES}
    bounded = closed in (0, 1) and patterns >= 1 and interval in INTERVALS
    return named and dated and responding and answered and bounded and price >= 0 <= (most or 0)


def absorb(db: sqlite3.Connection, rows: Iterable[Row]) -> bool:
    """Bring back what `dump` returned once; tell whether the database had forgotten any of it."""
    query = (
        "SELECT admitted, closed, last, permanent, cohort FROM scope "
        "WHERE metric = ? AND epoch = ? AND response = ?"
    )
    has_forgotten = False
    for row in rows:
        found = db.execute(query, row[:3]).fetchone()
        if found is None or _is_behind(found, row):
            _insert(db, row)
            has_forgotten = True
    return has_forgotten


def admitted_patterns(row: Row) -> list[bytes]:
    """Return the names of the patterns that a row of `dump` has answered for."""
    return _names(row[8])


def take_as_spent(db: sqlite3.Connection, row: Row, n_charged: int) -> None:
    """Charge the patterns of a row all that they can cost: their reports are not known any more.

    They were `n_charged` at least. Where only their number keeps the price below epsilon_inf, it
    counts as reached; so does the one report of an epoch.
    """
    metric, epoch, *_, price, most = row
    is_bounded = most == 1 or price < epsilon_inf(kept_params(db, row[5]))
    n_reports = max(n_charged, most) if is_bounded else n_charged
    for pattern in admitted_patterns(row):
        ledger.take_as_spent(db, metric, epoch, pattern, price, n_reports)


def _is_behind(found: Sequence[Any], row: Row) -> bool:
    """Return whether a scope as it was found has forgotten something, or tells it wrongly."""
    admitted, closed, last, permanent, cohort = found
    if not admitted.startswith(row[8]) or closed < row[10]:
        return True
    return last == row[9] and (permanent, cohort) != (row[7], row[6])


def _is_of(prepared: Prepared, last: Prepared) -> bool:
    """Return whether a report was prepared in the scope that is in force."""
    mine, its = prepared.params, last.params
    return (prepared.epoch, mine.permanent_fingerprint) == (last.epoch, its.permanent_fingerprint)


def _recall(db: sqlite3.Connection, terms: Terms, prepared: Prepared) -> Memory | None:
    """Return the memory that is in force, None if a new scope begins."""
    query = (
        "SELECT epoch, params, cohort, permanent, admitted, last, closed, patterns, interval, "
        "last_day, most FROM scope WHERE metric = ? AND ? BETWEEN first_day AND last_day "
        "ORDER BY last_day, first_day, response"
    )
    name = prepared.report.metric
    for row in db.execute(query, (name, terms.day)).fetchall():
        epoch, fingerprint, cohort, permanent, admitted, last, closed, *its = row
        patterns, interval, last_day, most = its
        kept = kept_params(db, fingerprint)
        if not is_listed(kept.segment, terms.segments):
            kept = kept.unsegmented
        params = kept if epoch else _with_same_response(terms, prepared, kept)
        if params is None:
            continue
        if not epoch:
            patterns, interval, most = terms.patterns, terms.interval, terms.most
        report = Report(metric=name, params=params.fingerprint, cohort=cohort, bits=b"")
        return Memory(
            Answered(tuple(_names(admitted)), last, bool(closed)),
            Prepared(params=params, epoch=epoch, pattern=last, permanent=permanent, report=report),
            min(patterns, terms.patterns),
            interval,
            last_day,
            most,
        )
    return None


def _with_same_response(terms: Terms, prepared: Prepared, params: Params) -> Params | None:
    """Return the metric's own parameters with the permanent responses of these, if there are."""
    if prepared.epoch or params.part not in terms.parts:
        return None
    own = prepared.params
    own = own if own.part == params.part else dataclasses.replace(own, part=params.part)
    return own if own.permanent_fingerprint == params.permanent_fingerprint else None


def _insert(db: sqlite3.Connection, row: Iterable[object]) -> None:
    """Keep a whole scope, in place of one of the same key."""
    values = tuple(row)
    places = ", ".join("?" * len(values))
    db.execute(f"INSERT OR REPLACE INTO scope VALUES ({places})", values)  # noqa: S608 - places


def _days(metric: Metric, day: datetime.date) -> tuple[str, str]:
    """Return the first and the last day of the metric's epoch that holds a day."""
    if metric.epoch == "life":
        return datetime.date.min.isoformat(), datetime.date.max.isoformat()
    first, last = epoch_start(metric.epoch, day), epoch_end(metric.epoch, day)
    return first.isoformat(), last.isoformat()


def _names(joined: bytes) -> list[bytes]:
    """Return the names of patterns that stand one after the other."""
    return [joined[i : i + PATTERN_BYTES] for i in range(0, len(joined), PATTERN_BYTES)]
