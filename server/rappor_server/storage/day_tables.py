"""Tables that hold one day each, so that a day is forgotten by dropping its table.

Whoever writes into them, or takes them out of use, is alone (`lock_maintenance`). A statement gets
many keys as one string of bytes.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable
from typing import Final

from sqlalchemy import Connection, Engine, Table, delete, insert, inspect, select, text

from rappor_server.ingest.retry_keys import KEY_BYTES
from rappor_server.storage import schema
from rappor_server.storage.database import (
    LockedError,
    lock_maintenance,
    translate_errors,
    write_transaction,
)

UPLOAD: Final = "upload"
PART: Final = "part"
KEY_DAYS: Final = 14
"""How long the keys of uploads are kept; a device gives up an upload after 7 days."""
_STILL_READ: Final = (
    "a table that is due to be deleted is still read, perhaps for a backup: run prune again later"
)

_MOST_TABLES: Final = 100
"""That are looked at, the newest ones: SQLite joins no more than 500, if `prune` never runs."""
_KEY: Final = f"{KEY_BYTES} * i + 1, {KEY_BYTES}"
_GIVEN: Final = {
    "sqlite": f"""
        WITH RECURSIVE place (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM place WHERE i < :last),
        given (key) AS MATERIALIZED (SELECT substr(:keys, {_KEY}) FROM place)
    """,  # noqa: S608
    "postgresql": f"""
        WITH given (key) AS MATERIALIZED (
            SELECT CAST(encode(substr(CAST(:keys AS bytea), {_KEY}), 'hex') AS uuid)
            FROM generate_series(0, :last) AS place (i)
        )
    """,  # noqa: S608
}
_FOUND: Final = {"sqlite": "given.key", "postgresql": "uuid_send(given.key)"}


def table_of(kind: str, day: datetime.date) -> Table:
    """Return the table of a day, whether it exists or not."""
    return schema.key_table(f"{kind}_{day:%Y%m%d}")


def list_days(db: Connection, *kinds: str) -> list[datetime.date]:
    """Return the days that have a table of one of the kinds, the newest first."""
    columns = schema.day_table.c
    query = select(columns.day).where(columns.kind.in_(kinds)).order_by(columns.day.desc())
    return list(db.execute(query.distinct()).scalars())


def runs(days: Iterable[datetime.date]) -> list[list[datetime.date]]:
    """Return days in order, split where `prune` would have left no keys: at more than 14 days."""
    found: list[list[datetime.date]] = []
    for day in sorted(days):
        if found and (day - found[-1][-1]).days <= KEY_DAYS:
            found[-1].append(day)
        else:
            found.append([day])
    return found


def add(db: Connection, kind: str, day: datetime.date) -> None:
    """Add the table of a day, unless there is one."""
    if day not in list_days(db, kind):
        db.execute(insert(schema.day_table).values(kind=kind, day=day))
        table_of(kind, day).create(db)


def find_known_keys(db: Connection, kind: str, keys: Collection[bytes]) -> set[bytes]:
    """Return those of the keys that are in the tables of a kind."""
    days = list_days(db, kind)[:_MOST_TABLES]
    if not keys or not days:
        return set()
    arms = " UNION ALL ".join(
        f"SELECT {_FOUND[db.dialect.name]} FROM given CROSS JOIN {table.name} AS own "  # noqa: S608
        "WHERE own.key = given.key"
        for table in (table_of(kind, day) for day in days)
    )
    return {bytes(key) for (key,) in db.execute(text(_GIVEN[db.dialect.name] + arms), _all(keys))}


def store_keys(db: Connection, kind: str, keys: Collection[bytes], today: datetime.date) -> None:
    """Add keys to the newest table, also those that older ones have: they live on with a retry.

    That is the table of today, or of a later day where the clock was set back, so that they live
    long enough. It is none that a clock which was far ahead has left: they would live too long.
    """
    if not keys:
        return
    days = list_days(db, UPLOAD, PART)
    own = next(run for run in runs([today, *days]) if today in run)
    day = own[-1] if len(own) > 1 else max([today, *days])
    add(db, kind, day)
    name = table_of(kind, day).name
    added = f"INSERT INTO {name} (key) SELECT key FROM given WHERE true ON CONFLICT DO NOTHING"  # noqa: S608
    db.execute(text(_GIVEN[db.dialect.name] + added), _all(keys))


def _all(keys: Collection[bytes]) -> dict[str, object]:
    return {"keys": b"".join(sorted(keys)), "last": len(keys) - 1}


def forget(engine: Engine, kind: str, *, before: datetime.date) -> int:
    """Forget the tables of days before one; return how many rows they had.

    A table is renamed first, which takes it out of use at once, whatever its size. Raises
    LockedError if others still read a table after some seconds.
    """
    try:
        with write_transaction(engine) as db:
            lock_maintenance(db)
            columns = schema.day_table.c
            gone = delete(schema.day_table).where(columns.kind == kind, columns.day < before)
            for day in db.execute(gone.returning(columns.day)).scalars().all():
                name = table_of(kind, day).name
                db.execute(text(f"ALTER TABLE {name} RENAME TO forgotten_{name}"))
    except LockedError:
        raise LockedError(_STILL_READ) from None
    with translate_errors():  # perhaps those too that an interrupted run has left
        names = inspect(engine).get_table_names()
    n_rows = 0
    for name in names:
        if name.startswith(f"forgotten_{kind}_"):
            with write_transaction(engine) as db:
                n_rows += db.scalar(text(f"SELECT count(*) FROM {name}")) or 0  # noqa: S608
                db.execute(text(f"DROP TABLE {name}"))
    return n_rows
