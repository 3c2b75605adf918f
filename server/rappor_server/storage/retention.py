"""What is deleted when its time is over, and what is folded together.

The work is done in short transactions, one after another, so that collectors write between them.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine, Result, delete, select

from rappor_server.storage import schema
from rappor_server.storage.bulk import BulkInsert
from rappor_server.storage.database import (
    UndoneError,
    erase_traces,
    failing_as_store_error,
    wait_alone,
    writing,
)
from rappor_server.storage.day_tables import KEPT, UPLOAD, forget, shuffle_days
from rappor_server.storage.store import Store
from rappor_server.storage.tallies import Tally

ID_DAYS: Final = 14
"""How long upload ids are kept; a device gives up an upload after 7 days."""
_FOLDED: Final = 0
_TRIES: Final = 10
_KEYS: Final = ("metric", "params", "day", "quarantine", "cohort")
_TALLIES: Final = BulkInsert(schema.tally, keys=(*_KEYS, "shard"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """How many rows were removed: upload ids, raw reports, and counters folded into others."""

    ids: int
    reports: int
    counters: int


def prune(store: Store, *, today: datetime.date, report_days: int) -> Pruned:
    """Delete ids after 14 days and raw reports after `report_days`; fold shards of past days."""
    ids = forget(store.engine, UPLOAD, before=today - datetime.timedelta(days=ID_DAYS))
    reports = forget(store.engine, KEPT, before=today - datetime.timedelta(days=report_days))
    shuffle_days(store.engine, before=today)
    # A collector may still be writing yesterday's last group.
    counters = sum(_fold_all(store.engine, before=today - datetime.timedelta(days=1)))
    erase_traces(store.engine)
    return Pruned(ids=ids, reports=reports, counters=counters)


def _fold_all(engine: Engine, *, before: datetime.date) -> Iterator[int]:
    """Fold every shard of every day that is over; yield how many rows each one saves."""
    columns = schema.tally.c
    over = select(columns.day, columns.shard).distinct()
    with failing_as_store_error(), engine.connect() as db:
        found = db.execute(over.where(columns.day < before, columns.shard != _FOLDED)).all()
    for day, shard in found:
        yield _fold_alone(engine, day, shard)


def _fold_alone(engine: Engine, day: datetime.date, shard: int, *, tries: int = _TRIES) -> int:
    """Fold a shard in a transaction of its own; again if it is undone for a collector's."""
    try:
        with writing(engine) as db:
            wait_alone(db)
            return _fold(db, day, shard)
    except UndoneError:
        if tries == 1:
            raise
    return _fold_alone(engine, day, shard, tries=tries - 1)


def _fold(db: Connection, day: datetime.date, shard: int) -> int:
    """Add a shard's counters of a day to those that are folded already; return the rows saved.

    One statement deletes the counters and returns them to be added. A collector whose clock lags
    may still write them: it writes before that and is included, or finds its counters gone. It may
    also take over what is folded already: before that is locked, or not at all.
    """
    columns = schema.tally.c
    gone = delete(schema.tally).where(columns.day == day, columns.shard == shard)
    added = _tallies(db.execute(gone.returning(*columns)))
    kept = select(schema.tally).where(columns.day == day, columns.shard == _FOLDED)
    folded = _tallies(db.execute(kept.with_for_update()))
    rows = []
    for key, tally in added.items():
        total = folded[key] + tally if key in folded else tally
        rows.append((*key, _FOLDED, total.reports, total.to_bytes()))
    _TALLIES.run(db, rows)
    return len(added.keys() & folded.keys())


def _tallies(rows: Result[Any]) -> dict[tuple[Any, ...], Tally]:
    return {
        (row.metric, row.params, row.day, row.quarantine, row.cohort): Tally.from_bytes(
            row.reports, bytes(row.ones)
        )
        for row in rows
    }
