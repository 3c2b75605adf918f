"""Blocks: consecutive whole days of one cohort that hold enough reports to be shown together.

Day by day, once it has ended, the counts of a cohort are added to its open block, and the block is
closed as soon as it holds `min_cohort` reports. A closed block never changes. Whatever arrives for
a day that was moved already, because some collector's clock lags, counts on the next day that is
moved. Days are moved in short transactions, so collectors write between them.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Final, NamedTuple

from sqlalchemy import Connection, Engine, delete, insert, select, update

from rappor_server.storage import schema
from rappor_server.storage.bulk import BulkDelete, BulkInsert
from rappor_server.storage.database import failing_as_store_error, wait_alone, writing
from rappor_server.storage.day_tables import as_day
from rappor_server.storage.tallies import Tally

_BLOCKS: Final = BulkInsert(schema.block)
_OPEN: Final = BulkDelete(
    schema.block,
    keys=("metric", "params", "cohort"),
    returning=("params", "cohort", "first", "reports", "ones"),
    only="NOT own.closed",
)
_DAY: Final = datetime.timedelta(days=1)


class _Cohort(NamedTuple):
    """Whose counts a block holds, within a metric."""

    params: str
    cohort: int


class _Open(NamedTuple):
    """A block that does not hold enough yet."""

    first: datetime.date
    tally: Tally


def close_blocks(engine: Engine, metric: str, *, min_cohort: int, today: datetime.date) -> None:
    """Move the counts of all days before today into blocks; those in quarantine stay."""
    with failing_as_store_error(), engine.connect() as db:
        next_day = _through(db, metric) + _DAY
        days = sorted({max(day, next_day) for day in _days_before(db, metric, today)})
    for day in days:
        if day < today:
            with writing(engine) as db:
                wait_alone(db)
                if _through(db, metric) < day:
                    _move(db, metric, day, min_cohort)
                    _note(db, metric, day)


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


def _move(db: Connection, metric: str, day: datetime.date, min_cohort: int) -> None:
    """Move the counts of a day, and those that came late for days before it."""
    added = _take_counts(db, metric, day)
    waiting = _take_open(db, metric, added)
    rows = []
    for own, tally in added.items():
        first, total = day, tally
        if own in waiting:
            first, total = waiting[own].first, waiting[own].tally + tally
        is_closed = total.reports >= min_cohort
        rows.append((metric, *own, day, first, is_closed, total.reports, total.to_bytes()))
    _BLOCKS.run(db, rows)


def _take_counts(db: Connection, metric: str, day: datetime.date) -> dict[_Cohort, Tally]:
    """Delete the counters of all days up to one and return their sums.

    A collector whose clock lags writes before that and is included, or finds its counters gone.
    """
    columns = schema.tally.c
    gone = delete(schema.tally).where(
        columns.metric == metric, columns.day <= day, ~columns.quarantine
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
