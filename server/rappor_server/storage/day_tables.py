"""Tables of deduplication keys, one table for each day.

A deduplication key has 16 bytes, by which a merge recognises a retry of an upload that was counted
before (`ingest/retry_keys.py`). Keys are needed for 14 days. Each day of receipt has tables of its
own, so that the keys of an expired day are deleted by dropping a table, which is quick:

    upload_20261121    keys of uploads of which all reports were accepted
    part_20261121      keys of single reports, from uploads of which some reports were refused

The table `day_table` lists the kind and the day of each of these tables.

A merge adds the uploads of the inbox to the counters. It reads which of its keys the tables contain
(`find_known_keys`), and afterwards stores the keys of its uploads in the table of today
(`store_keys`). `prune` drops the tables of expired days (`drop_days`). Every process that writes to
the tables holds the maintenance lock (`lock_maintenance`), so two processes never write at the same
time.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable
from typing import Final

from sqlalchemy import Connection, Engine, Table, delete, func, insert, inspect, select, text

from rappor_server.ingest.retry_keys import KEY_BYTES
from rappor_server.storage import schema
from rappor_server.storage.database import (
    LockedError,
    lock_maintenance,
    translate_errors,
    write_transaction,
)

UPLOAD: Final = "upload"
"""Kind of the tables that contain keys of uploads."""
PART: Final = "part"
"""Kind of the tables that contain keys of single reports."""
KEY_DAYS: Final = 14
"""Number of days for which a key is stored. A device drops an upload after 7 days, so a retry
always finds its key. A larger value keeps more tables, which every merge searches."""
_STILL_READ: Final = (
    "a table that is due to be deleted is still read, perhaps for a backup: run prune again later"
)
"""Message of the error if a transaction that reads a table keeps `prune` from renaming it."""

_MAX_TABLES: Final = 100
"""Largest number of tables of a kind that a merge searches. It searches the newest tables. With
`prune` every day, a kind has 15 tables. If an operator never runs `prune`, the number grows, and
SQLite allows at most 500 tables in one statement."""
_DROP_LOCK: Final = 0x524150504F57
"""Number of an advisory lock on PostgreSQL. A process holds the lock while it counts the rows of a
renamed table and drops it."""
_SLICE: Final = f"{KEY_BYTES} * i + 1, {KEY_BYTES}"
"""Arguments of `substr` in SQL for key number i, from 0, in a string of joined keys. All keys have
`KEY_BYTES` bytes, and SQL counts the bytes from 1."""
_PASSED_KEYS: Final = {
    "sqlite": f"""
        WITH RECURSIVE number (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM number WHERE i < :last),
        passed (key) AS MATERIALIZED (SELECT substr(:keys, {_SLICE}) FROM number)
    """,  # noqa: S608
    "postgresql": f"""
        WITH passed (key) AS MATERIALIZED (
            SELECT CAST(encode(substr(CAST(:keys AS bytea), {_SLICE}), 'hex') AS uuid)
            FROM generate_series(0, :last) AS number (i)
        )
    """,  # noqa: S608
}
"""Beginning of a statement, by dialect. It defines the table `passed`, which has one row for each
key that the caller passes. The statement has two parameters (`_make_parameters`): `keys` is all
keys joined to one string of bytes, and `last` is the index of the last key. A parameter for each of
some thousand keys would be slow."""
_KEY_AS_BYTES: Final = {"sqlite": "passed.key", "postgresql": "uuid_send(passed.key)"}
"""SQL expression of a key of `passed` as bytes, by dialect. PostgreSQL stores keys as UUIDs."""


def table_of(kind: str, day: datetime.date) -> Table:
    """Return the table of a kind and a day. The table may not exist."""
    return schema.key_table(f"{kind}_{day:%Y%m%d}")


def list_days(db: Connection, *kinds: str) -> list[datetime.date]:
    """Return the days that have a table of one of the kinds, newest first."""
    columns = schema.day_table.c
    query = select(columns.day).where(columns.kind.in_(kinds)).order_by(columns.day.desc())
    return list(db.execute(query.distinct()).scalars())


def split_at_gaps(days: Iterable[datetime.date]) -> list[list[datetime.date]]:
    """Return the days in order, divided into groups at each gap of more than 14 days.

    `prune` deletes tables after 14 days. So all days are in one group, unless the clock was wrong.
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
    # No other transaction can create the table between the two statements, because the caller holds
    # the maintenance lock.
    if day not in list_days(db, kind):
        db.execute(insert(schema.day_table).values(kind=kind, day=day))
        table_of(kind, day).create(db)


def find_known_keys(db: Connection, kind: str, keys: Collection[bytes]) -> set[bytes]:
    """Return the subset of the keys that the tables of a kind contain."""
    days = list_days(db, kind)[:_MAX_TABLES]
    if not keys or not days:
        return set()
    # One statement searches all tables. A statement for each of 14 days would cost 14 round trips.
    dialect = db.dialect.name
    searches = " UNION ALL ".join(
        f"SELECT {_KEY_AS_BYTES[dialect]} FROM passed CROSS JOIN {table.name} AS stored "  # noqa: S608
        "WHERE stored.key = passed.key"
        for table in (table_of(kind, day) for day in days)
    )
    rows = db.execute(text(_PASSED_KEYS[dialect] + searches), _make_parameters(keys))
    return {bytes(key) for (key,) in rows}


def store_keys(db: Connection, kind: str, keys: Collection[bytes], today: datetime.date) -> None:
    """Store keys in the table of today, or of a later day if the clock was set back.

    A key that an older table contains is stored again, so a retry extends the time for which its
    key is stored.

        days that have tables                            day of the table that is used
        none, or only days up to today                   today
        some later days, no gap of more than 14 days     the latest of these days
        later days after a gap of more than 14 days      the latest day before the gap, or today
        only later days, more than 14 days from today    the latest of these days

    Reasons: in the second row the clock was a little ahead and was set back. In the third row the
    clock was far ahead, and a key in a later table would be stored too long. In the last row it is
    unknown which clock is right. If a key were deleted too early, a retry could be counted twice. A
    key that is stored too long does no such harm.
    """
    if not keys:
        return
    # The days of both kinds count. Most days have no table of kind PART, and both kinds depend on
    # the same clock.
    days = list_days(db, UPLOAD, PART)
    days_near_today = next(group for group in split_at_gaps([today, *days]) if today in group)
    # `days_near_today` contains today. Without any other day in it, the last row of the table
    # applies, or the first if there are no tables.
    has_other_day = len(days_near_today) > 1
    day = days_near_today[-1] if has_other_day else max([today, *days])
    create_table(db, kind, day)
    name = table_of(kind, day).name
    insertion = f"INSERT INTO {name} (key) SELECT key FROM passed WHERE true ON CONFLICT DO NOTHING"  # noqa: S608
    db.execute(text(_PASSED_KEYS[db.dialect.name] + insertion), _make_parameters(keys))


def _make_parameters(keys: Collection[bytes]) -> dict[str, object]:
    """Return the parameters of a statement that begins with `_PASSED_KEYS`."""
    # The keys are sorted, so that the order of the rows does not reveal the order of arrival.
    return {"keys": b"".join(sorted(keys)), "last": len(keys) - 1}


def drop_days(engine: Engine, kind: str, *, before: datetime.date) -> int:
    """Drop the tables of the days before a day; return the number of their rows.

    Each table is renamed first, in a short transaction. Merges no longer use a renamed table, so
    counting and dropping its rows delays no merge. If another process drops the same tables at the
    same time, each of the two returns the number of rows of the tables that it has dropped.

    Raises
    ------
    LockedError
        Another transaction still reads a table after some seconds.
    """
    # Counting and dropping two million keys takes seconds, in which uploads would wait. Renaming
    # takes milliseconds.
    try:
        with write_transaction(engine) as db:
            lock_maintenance(db)
            columns = schema.day_table.c
            deletion = delete(schema.day_table).where(columns.kind == kind, columns.day < before)
            for day in db.execute(deletion.returning(columns.day)).scalars().all():
                name = table_of(kind, day).name
                db.execute(text(f"ALTER TABLE {name} RENAME TO forgotten_{name}"))
    except LockedError:  # PostgreSQL renames no table that a dump reads
        raise LockedError(_STILL_READ) from None
    # The tables are found by name, because an earlier run may have been killed after it renamed a
    # table.
    with translate_errors():
        names = inspect(engine).get_table_names()
    n_rows = 0
    for name in names:
        if name.startswith(f"forgotten_{kind}_"):
            with write_transaction(engine) as db:
                # Another process that drops the same table has the lock, or has dropped the table
                # since the names were listed. Case: two hosts run `prune` at the same time.
                if _try_drop_lock(db) and inspect(db).has_table(name):
                    n_rows += db.scalar(text(f"SELECT count(*) FROM {name}")) or 0  # noqa: S608
                    db.execute(text(f"DROP TABLE {name}"))
    return n_rows


def _try_drop_lock(db: Connection) -> bool:
    """Take `_DROP_LOCK` until the transaction ends. Return False if another process has it."""
    if db.dialect.name != "postgresql":
        return True  # SQLite has one writer at a time
    return bool(db.scalar(select(func.pg_try_advisory_xact_lock(_DROP_LOCK))))
