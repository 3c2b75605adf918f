"""What is deleted when its time is over, and what is folded together.

All of it goes in short transactions, one after another: collectors write between them.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Delete, Engine, delete, literal_column, select

from rappor_server import schema
from rappor_server.bulk import BulkInsert
from rappor_server.database import erase_traces, failing_as_store_error, wait_alone, writing
from rappor_server.store import Store
from rappor_server.tallies import Tally

ID_DAYS: Final = 14
"""How long upload ids are known; a device gives an upload up after 7 days."""
_FOLDED: Final = 0
_CHUNK: Final = 10_000
_ROW: Final = {"sqlite": "rowid", "postgresql": "ctid"}
_KEYS: Final = ("metric", "params", "day", "apart", "cohort")
_TALLIES: Final = BulkInsert(schema.tally, keys=(*_KEYS, "shard"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """How many rows went: upload ids, raw reports, and counters folded into others."""

    ids: int
    reports: int
    counters: int


def prune(store: Store, *, today: datetime.date, report_days: int) -> Pruned:
    """Delete ids after 14 days and raw reports after `report_days`; fold shards of past days."""
    ids = sum(_delete_ids(store.engine, today - datetime.timedelta(days=ID_DAYS)))
    reports = sum(_delete_reports(store.engine, today - datetime.timedelta(days=report_days)))
    # A collector may still be writing yesterday's last group.
    counters = sum(_fold_all(store.engine, before=today - datetime.timedelta(days=1)))
    erase_traces(store.engine)
    return Pruned(ids=ids, reports=reports, counters=counters)


def _delete_ids(engine: Engine, oldest: datetime.date) -> Iterator[int]:
    """Delete by the first byte of the ids, which are random; yield how many each time."""
    columns = schema.upload.c
    old = delete(schema.upload).where(columns.day < oldest)
    for byte in range(256):
        part = old.where(columns.id >= bytes([byte]))
        if byte < 255:
            part = part.where(columns.id < bytes([byte + 1]))
        yield _run(engine, part)


def _delete_reports(engine: Engine, oldest: datetime.date) -> Iterator[int]:
    """Delete so many rows at a time until none is left; yield how many each time."""
    row: ColumnElement[Any] = literal_column(_ROW[engine.dialect.name])
    old = select(row).select_from(schema.kept).where(schema.kept.c.day < oldest).limit(_CHUNK)
    while n := _run(engine, delete(schema.kept).where(row.in_(old))):
        yield n


def _run(engine: Engine, statement: Delete) -> int:
    with writing(engine) as db:
        return db.execute(statement).rowcount


def _fold_all(engine: Engine, *, before: datetime.date) -> Iterator[int]:
    """Fold every shard of days that are over; yield the rows that each saves."""
    columns = schema.shard.c
    with failing_as_store_error(), engine.connect() as db:
        over = db.scalars(select(columns.id).where(columns.day < before, ~columns.folded)).all()
    for shard in over:
        with writing(engine) as db:
            wait_alone(db)
            yield _fold(db, shard)


def _fold(db: Connection, shard: int) -> int:
    """Add a shard's counters to those that all folded shards share; return the rows saved."""
    columns = schema.shard.c
    mark = schema.shard.update().where(columns.id == shard, ~columns.folded).values(folded=True)
    if not db.execute(mark).rowcount:  # somebody else was first
        return 0
    added = _counters(db, shard)
    known = _counters(db, _FOLDED, days={key[2] for key in added})
    rows = []
    for key, tally in added.items():
        total = known[key] + tally if key in known else tally
        rows.append((*key, _FOLDED, total.reports, total.to_bytes()))
    db.execute(delete(schema.tally).where(schema.tally.c.shard == shard))
    _TALLIES.run(db, rows)
    return len(added.keys() & known.keys())


_Key = tuple[str, str, datetime.date, bool, int]


def _counters(
    db: Connection, shard: int, *, days: set[datetime.date] | None = None
) -> dict[_Key, Tally]:
    """Return the counters of a shard, of all its days or of some."""
    query = select(schema.tally).where(schema.tally.c.shard == shard)
    if days is not None:
        query = query.where(schema.tally.c.day.in_(days))
    return {
        (row.metric, row.params, row.day, row.apart, row.cohort): Tally.from_bytes(
            row.reports, bytes(row.ones)
        )
        for row in db.execute(query)
    }
