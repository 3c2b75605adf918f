"""A backup of the whole database and its restoration: one SQLite file, from either database.

What waits in the inbox is folded first, and a backup has sums only. An SQLite database is copied
while collectors run; a PostgreSQL database is read in one snapshot. A backup of either kind can be
restored into the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Engine, Table, delete, insert, select, text, update

from rappor_server.errors import StoreError
from rappor_server.storage import schema
from rappor_server.storage.database import (
    check_schema,
    copy_sqlite,
    erase_traces,
    failing_as_store_error,
    is_empty,
    migrate,
    open_engine,
    parse_url,
    sqlite_url,
    writing,
)
from rappor_server.storage.day_tables import KEPT, PART, UPLOAD, days_of, table_of
from rappor_server.storage.fold import fold_all

_ROWS: Final = 1000


def backup(database: str, path: Path) -> None:
    """Write a backup, which its owner alone may read, where there must be no file yet.

    It has its name once it is whole: what an interrupted run leaves must not pass for a backup.
    """
    _check_free(path)
    part = path.with_name(f"{path.name}.part")
    engine = open_engine(database)
    try:
        check_schema(engine)
        fold_all(engine)
        _remove(part)
        part.touch(mode=0o600, exist_ok=False)
        if engine.dialect.name == "sqlite":
            copy_sqlite(Path(str(parse_url(database).database)), part)
            _leave_inbox(part)
        else:
            _copy_tables(engine, sqlite_url(part))
        part.rename(path)
    except BaseException:
        _remove(part)
        raise
    finally:
        engine.dispose()


def _remove(path: Path) -> None:
    """Delete an SQLite file, and what lies beside it while it is written."""
    for kind in ("", "-journal", "-wal", "-shm"):
        Path(f"{path}{kind}").unlink(missing_ok=True)


def _leave_inbox(path: Path) -> None:
    """Let a copy be a database of its own, whose inbox is empty."""
    engine = open_engine(sqlite_url(path))
    try:
        with writing(engine) as db:
            db.execute(update(schema.folded).values(seq=0))
            db.execute(delete(schema.inbox_failed))
        erase_traces(path)
    finally:
        engine.dispose()


def restore(path: Path, database: str) -> None:
    """Fill a database, which must be empty, from a backup."""
    if not path.exists():
        raise StoreError(f"{path} must be a backup, got no file", retryable=False)
    source = open_engine(sqlite_url(path))
    try:
        check_schema(source)
        target = open_engine(database)
        is_free = is_empty(target)
        target.dispose()
        if not is_free:
            raise StoreError(
                "the database must be empty before a backup is restored", retryable=False
            )
        _copy_tables(source, database)
    finally:
        source.dispose()


def _check_free(path: Path) -> None:
    if path.exists():
        raise StoreError(f"{path} must be free for the backup, got a file", retryable=False)


def _copy_tables(source: Engine, target: str) -> None:
    """Copy every row of every table into a new schema."""
    migrate(target)
    engine = open_engine(target)
    try:
        with failing_as_store_error(), source.connect() as old, writing(engine) as new:
            if source.dialect.name == "postgresql":
                old.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
            for table in schema.metadata.sorted_tables:
                if table not in schema.OF_INBOX:
                    _copy_rows(old, new, table)
            for kind in (UPLOAD, PART, KEPT):
                for day in days_of(old, kind):
                    table = table_of(kind, day)
                    table.create(new)
                    _copy_rows(old, new, table)
    finally:
        engine.dispose()


def _copy_rows(old: Connection, new: Connection, table: Table) -> None:
    """Copy the rows of a table in the order of its key, which says nothing of their arrival."""
    query = select(table).order_by(*table.primary_key.columns)
    result = old.execution_options(yield_per=_ROWS).execute(query)
    for rows in result.mappings().partitions():
        new.execute(insert(table), [dict(row) for row in rows])
