"""What is deleted when its time is over, and what is folded together."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, delete, select

from rappor_server import schema
from rappor_server.database import failing_as_store_error
from rappor_server.store import Store
from rappor_server.tallies import Tally

ID_DAYS: Final = 14
"""How long upload ids are known; a device gives an upload up after 7 days."""
_FOLDED: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """How many rows went: upload ids, raw reports, and counters folded into others."""

    ids: int
    reports: int
    counters: int


def prune(store: Store, *, today: datetime.date, report_days: int) -> Pruned:
    """Delete ids after 14 days and raw reports after `report_days`; fold shards of past days."""
    with failing_as_store_error(), store.engine.begin() as db:
        oldest_id = today - datetime.timedelta(days=ID_DAYS)
        ids = db.execute(delete(schema.upload).where(schema.upload.c.day < oldest_id)).rowcount
        oldest = today - datetime.timedelta(days=report_days)
        reports = db.execute(delete(schema.kept).where(schema.kept.c.day < oldest)).rowcount
        # A collector may still be writing yesterday's last group.
        counters = _fold(db, before=today - datetime.timedelta(days=1))
    return Pruned(ids=ids, reports=reports, counters=counters)


def _fold(db: Connection, *, before: datetime.date) -> int:
    """Add up the shards of days that are over into one row a counter; return the rows saved."""
    columns = schema.tally.c
    query = select(schema.tally).where(columns.day < before, columns.shard != _FOLDED)
    rows = db.execute(query.with_for_update()).all()
    keys = ("metric", "params", "day", "apart", "cohort")
    sums: dict[tuple[Any, ...], Tally] = {}
    for row in rows:
        key = tuple(getattr(row, name) for name in keys)
        tally = Tally.from_bytes(row.reports, bytes(row.ones))
        sums[key] = sums[key] + tally if key in sums else tally
    db.execute(delete(schema.tally).where(columns.day < before, columns.shard != _FOLDED))
    for key, tally in sums.items():
        _add_folded(db, dict(zip(keys, key, strict=True)), tally)
    return len(rows) - len(sums)


def _add_folded(db: Connection, key: dict[str, Any], tally: Tally) -> None:
    columns = schema.tally.c
    same = [columns[name] == value for name, value in key.items()]
    same.append(columns.shard == _FOLDED)
    old = db.execute(select(columns.reports, columns.ones).where(*same)).first()
    if old is None:
        values = {"reports": tally.reports, "ones": tally.to_bytes()}
        db.execute(schema.tally.insert().values(**key, shard=_FOLDED, **values))
        return
    total = tally + Tally.from_bytes(old.reports, bytes(old.ones))
    db.execute(
        schema.tally.update().where(*same).values(reports=total.reports, ones=total.to_bytes())
    )
