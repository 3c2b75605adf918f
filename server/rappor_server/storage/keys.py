"""The keys of uploads of the last 14 days: which of some are known, by one statement.

A statement gets all keys as one string of bytes.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection
from typing import Final

from sqlalchemy import Connection, text

from rappor_server.ingest.retry_keys import KEY_BYTES
from rappor_server.storage import day_tables

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


def known(db: Connection, kind: str, keys: Collection[bytes]) -> set[bytes]:
    """Return those of the keys that are in the tables of a kind."""
    days = day_tables.days_of(db, kind)[:_MOST_TABLES]
    if not keys or not days:
        return set()
    arms = " UNION ALL ".join(
        f"SELECT {_FOUND[db.dialect.name]} FROM given CROSS JOIN {table.name} AS own "  # noqa: S608
        "WHERE own.key = given.key"
        for table in (day_tables.table_of(kind, day) for day in days)
    )
    return {bytes(key) for (key,) in db.execute(text(_GIVEN[db.dialect.name] + arms), _all(keys))}


def keep(db: Connection, kind: str, keys: Collection[bytes], today: datetime.date) -> None:
    """Add keys to the newest table, also those that older ones have: they live on with a retry.

    That is the table of today, or of a later day where a clock was ahead.
    """
    if not keys:
        return
    day = max([today, *day_tables.days_of(db, kind)[:1]])
    day_tables.add(db, kind, day)
    name = day_tables.table_of(kind, day).name
    added = f"INSERT INTO {name} (key) SELECT key FROM given WHERE true ON CONFLICT DO NOTHING"  # noqa: S608
    db.execute(text(_GIVEN[db.dialect.name] + added), _all(keys))


def _all(keys: Collection[bytes]) -> dict[str, object]:
    return {"keys": b"".join(sorted(keys)), "last": len(keys) - 1}
