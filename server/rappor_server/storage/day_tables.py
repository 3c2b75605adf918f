"""Tables of the keys of uploads, one for each day. An expired day is deleted by dropping its table.

Writers of the tables hold the maintenance lock (`lock_maintenance`). A statement gets many keys as
one string of bytes, because a parameter for each key would be slow.
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
"""Days for which keys of uploads are stored. A device drops an upload after 7 days, so a retry
always meets its key."""
_STILL_READ: Final = (
    "a table that is due to be deleted is still read, perhaps for a backup: run prune again later"
)

_MAX_TABLES: Final = 100
"""Number of newest tables that are searched. SQLite allows 500 in one statement, and an operator
may never run `prune`."""
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
    """Return the table of a day. The table may not exist."""
    return schema.key_table(f"{kind}_{day:%Y%m%d}")


def list_days(db: Connection, *kinds: str) -> list[datetime.date]:
    """Return the days that have a table of one of the kinds, newest first."""
    columns = schema.day_table.c
    query = select(columns.day).where(columns.kind.in_(kinds)).order_by(columns.day.desc())
    return list(db.execute(query.distinct()).scalars())


def split_at_gaps(days: Iterable[datetime.date]) -> list[list[datetime.date]]:
    """Return days in order, split at gaps of more than 14 days.

    `prune` deletes keys after 14 days, so a correct clock never leaves such a gap.
    """
    groups: list[list[datetime.date]] = []
    for day in sorted(days):
        if groups and (day - groups[-1][-1]).days <= KEY_DAYS:
            groups[-1].append(day)
        else:
            groups.append([day])
    return groups


def create_table(db: Connection, kind: str, day: datetime.date) -> None:
    """Create the table of a day unless it exists."""
    # No race: whoever writes has the maintenance lock.
    if day not in list_days(db, kind):
        db.execute(insert(schema.day_table).values(kind=kind, day=day))
        table_of(kind, day).create(db)


def find_known_keys(db: Connection, kind: str, keys: Collection[bytes]) -> set[bytes]:
    """Return the subset of the keys that the tables of a kind contain."""
    # All tables in one statement: a statement for each of 14 days would be 14 journeys to the
    # database.
    days = list_days(db, kind)[:_MAX_TABLES]
    if not keys or not days:
        return set()
    arms = " UNION ALL ".join(
        f"SELECT {_FOUND[db.dialect.name]} FROM given CROSS JOIN {table.name} AS own "  # noqa: S608
        "WHERE own.key = given.key"
        for table in (table_of(kind, day) for day in days)
    )
    return {bytes(key) for (key,) in db.execute(text(_GIVEN[db.dialect.name] + arms), _all(keys))}


def store_keys(db: Connection, kind: str, keys: Collection[bytes], today: datetime.date) -> None:
    """Store keys in the newest table. A key of an older table is stored again: a retry renews it.

    The newest table is the table of today. After a clock was set back, it is the table of a later
    day, so that keys live long enough. A table more than 14 days after the others comes from a
    clock that was far ahead. Keys in such a table would live too long, so it is not used.
    """
    if not keys:
        return
    # Days of both kinds: most days have no partial upload, and the clock is the same for both.
    days = list_days(db, UPLOAD, PART)
    days_of_clock = next(run for run in split_at_gaps([today, *days]) if today in run)
    day = days_of_clock[-1] if len(days_of_clock) > 1 else max([today, *days])
    create_table(db, kind, day)
    name = table_of(kind, day).name
    added = f"INSERT INTO {name} (key) SELECT key FROM given WHERE true ON CONFLICT DO NOTHING"  # noqa: S608
    db.execute(text(_GIVEN[db.dialect.name] + added), _all(keys))


def _all(keys: Collection[bytes]) -> dict[str, object]:
    # Sorted: the order of the rows must reveal nothing about the order of arrival.
    return {"keys": b"".join(sorted(keys)), "last": len(keys) - 1}


def drop_days(engine: Engine, kind: str, *, before: datetime.date) -> int:
    """Drop the tables of the days before a day; return the number of their rows.

    Each table is renamed first, in a short transaction that takes the table out of use whatever its
    size. Counting and dropping the rows then blocks nobody.

    Raises
    ------
    LockedError
        Another transaction still reads a table after some seconds.
    """
    # Two million keys took seconds to count and drop, and uploads waited. Renaming takes
    # milliseconds.
    try:
        with write_transaction(engine) as db:
            lock_maintenance(db)
            columns = schema.day_table.c
            gone = delete(schema.day_table).where(columns.kind == kind, columns.day < before)
            for day in db.execute(gone.returning(columns.day)).scalars().all():
                name = table_of(kind, day).name
                db.execute(text(f"ALTER TABLE {name} RENAME TO forgotten_{name}"))
    except LockedError:  # PostgreSQL renames no table that a dump reads
        raise LockedError(_STILL_READ) from None
    with translate_errors():  # includes tables that an interrupted run has renamed but not dropped
        names = inspect(engine).get_table_names()
    n_rows = 0
    for name in names:
        if name.startswith(f"forgotten_{kind}_"):
            with write_transaction(engine) as db:
                n_rows += db.scalar(text(f"SELECT count(*) FROM {name}")) or 0  # noqa: S608
                db.execute(text(f"DROP TABLE {name}"))
    return n_rows
