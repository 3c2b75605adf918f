"""Blocks: consecutive whole days of one cohort that hold enough reports to be shown together.

Day by day, once it has ended, the counts of a cohort are added to its open block, and the block is
closed as soon as it holds `min_cohort` reports. A closed block never changes. Whatever arrives for
a day that was moved already, because some collector's clock lags, counts on the next day that is
moved. Days are moved in short transactions, so collectors write between them, and one that is
interrupted goes on where it was.
"""

from __future__ import annotations

import datetime
import math
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

from sqlalchemy import Connection, Engine, delete, func, insert, or_, select, update

from rappor_server.storage import schema
from rappor_server.storage.bulk import BulkDelete, BulkInsert
from rappor_server.storage.database import (
    PAUSE_SECONDS,
    as_day,
    failing_as_store_error,
    wait_alone,
    writing,
)
from rappor_server.storage.tallies import Tally

_BLOCKS: Final = BulkInsert(schema.block)
_OPEN: Final = BulkDelete(
    schema.block,
    keys=("metric", "params", "cohort"),
    returning=("params", "cohort", "first", "reports", "ones"),
    only="own.closed = false",  # an equality, or SQLite would look at all blocks of the metric
)
_DAY: Final = datetime.timedelta(days=1)
_COHORTS: Final = 4096
"""Those of a day that are moved at once."""
_TRANSACTION_SECONDS: Final = 0.02
"""How long a transaction goes on taking pieces, while uploads wait."""


class _Piece(NamedTuple):
    """Some cohorts of a day, from `start` on."""

    day: datetime.date
    start: int
    is_last: bool


class _Cohort(NamedTuple):
    """Whose counts a block holds, within a metric."""

    params: str
    cohort: int


class _Open(NamedTuple):
    """A block that does not hold enough yet."""

    first: datetime.date
    tally: Tally


def due(engine: Engine, metrics: Collection[str], *, today: datetime.date) -> list[str]:
    """Return which of the metrics have counts of days before today that no block holds."""
    tally, blocked = schema.tally.c, schema.blocked
    is_open = or_(blocked.c.through.is_(None), blocked.c.through < today - _DAY)
    query = (
        select(tally.metric)
        .outerjoin(blocked, blocked.c.metric == tally.metric)
        .where(tally.metric.in_(metrics), tally.day < today, ~tally.quarantine, is_open)
    )
    with failing_as_store_error(), engine.connect() as db:
        return sorted(db.execute(query.distinct()).scalars())


def close_blocks(
    engine: Engine,
    metric: str,
    *,
    min_cohort: int,
    today: datetime.date,
    until: float = math.inf,
) -> bool:
    """Move the counts of all days before today into blocks; those in quarantine stay.

    No transaction begins after `until`, a time of `time.monotonic`, but the first one always does.
    Returns whether all counts were moved.
    """
    with failing_as_store_error(), engine.connect() as db:
        pieces = deque(_pieces(db, metric, today))
    while pieces:
        with writing(engine) as db:
            wait_alone(db)
            enough = time.monotonic() + _TRANSACTION_SECONDS
            while pieces:
                _move_piece(db, metric, pieces.popleft(), min_cohort)
                if time.monotonic() > enough:
                    break
        if time.monotonic() > until:
            break
        time.sleep(PAUSE_SECONDS)
    return not pieces


def _pieces(db: Connection, metric: str, today: datetime.date) -> Iterator[_Piece]:
    """Yield what is to be moved, day by day."""
    columns = schema.tally.c
    next_day = _through(db, metric) + _DAY
    days = sorted({max(day, next_day) for day in _days_before(db, metric, today)})
    if not days:
        return
    ends = select(func.min(columns.cohort), func.max(columns.cohort))
    first, last = db.execute(ends.where(columns.metric == metric)).one()
    if first is None:  # another one has moved all of it meanwhile
        return
    for day in days:
        if day < today:
            for start in range(first, last + 1, _COHORTS):
                yield _Piece(day, start, is_last=start + _COHORTS > last)


def _move_piece(db: Connection, metric: str, piece: _Piece, min_cohort: int) -> None:
    """Move a piece, unless another one has moved its day meanwhile."""
    if _through(db, metric) >= piece.day:
        return
    _move(db, metric, piece, min_cohort)
    if piece.is_last:
        _note(db, metric, piece.day)


def _through(db: Connection, metric: str) -> datetime.date:
    """Return the last day that was moved."""
    columns = schema.blocked.c
    found = db.execute(select(columns.through).where(columns.metric == metric)).scalar()
    return datetime.date.min if found is None else found


def _note(db: Connection, metric: str, day: datetime.date) -> None:
    columns = schema.blocked.c
    changed = update(schema.blocked).where(columns.metric == metric).values(through=day)
    if not db.execute(changed).rowcount:
        db.execute(insert(schema.blocked).values(metric=metric, through=day))


def _days_before(db: Connection, metric: str, today: datetime.date) -> Iterable[datetime.date]:
    columns = schema.tally.c
    query = select(columns.day).where(
        columns.metric == metric, columns.day < today, ~columns.quarantine
    )
    return db.execute(query.distinct()).scalars()


def _move(db: Connection, metric: str, piece: _Piece, min_cohort: int) -> None:
    """Move the counts of a piece, and those that came late for days before it."""
    added = _take_counts(db, metric, piece)
    waiting = _take_open(db, metric, added)
    rows = []
    for own, tally in added.items():
        first, total = piece.day, tally
        if own in waiting:
            first, total = waiting[own].first, waiting[own].tally + tally
        is_closed = total.reports >= min_cohort
        rows.append((metric, *own, piece.day, first, is_closed, total.reports, total.to_bytes()))
    _BLOCKS.run(db, rows)


def _take_counts(db: Connection, metric: str, piece: _Piece) -> dict[_Cohort, Tally]:
    """Delete the counters of some cohorts, of all days up to one, and return their sums.

    A collector whose clock lags writes before that and is included, or finds its counters gone.
    Where an interrupted run has closed the block of this day already, they stay for the next day.
    """
    columns, block = schema.tally.c, schema.block.c
    is_closed = select(block.metric).where(
        block.metric == columns.metric,
        block.params == columns.params,
        block.cohort == columns.cohort,
        block.last == piece.day,
        block.closed,
    )
    gone = delete(schema.tally).where(
        columns.metric == metric,
        columns.day <= piece.day,
        columns.cohort >= piece.start,
        columns.cohort < piece.start + _COHORTS,
        ~columns.quarantine,
        ~is_closed.exists(),
    )
    returned = gone.returning(columns.params, columns.cohort, columns.reports, columns.ones)
    sums: dict[_Cohort, Tally] = {}
    for params, cohort, reports, ones in db.execute(returned):
        own, tally = _Cohort(params, cohort), Tally.from_bytes(reports, bytes(ones))
        sums[own] = sums[own] + tally if own in sums else tally
    return sums


def _take_open(db: Connection, metric: str, cohorts: Iterable[_Cohort]) -> dict[_Cohort, _Open]:
    """Delete the open blocks of cohorts and return what they held."""
    found = _OPEN.run(db, [(metric, *own) for own in cohorts])
    return {
        _Cohort(params, cohort): _Open(as_day(first), Tally.from_bytes(reports, bytes(ones)))
        for params, cohort, first, reports, ones in found
    }
