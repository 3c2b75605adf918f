"""A backup of the whole database and its restoration: one SQLite file, from either database.

What waits in the inbox is folded first, and a backup has sums only, and no visits. An SQLite
database is copied while collectors run; a PostgreSQL database is read in one snapshot. A backup of
either kind can be restored into the other.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, Engine, Table, delete, insert, select, text, update

from rappor_server.base.errors import StoreError
from rappor_server.storage import schema
from rappor_server.storage.database import (
    check_schema,
    copy_sqlite,
    create_tables,
    erase_traces,
    failing_as_store_error,
    is_empty,
    opened,
    sqlite_url,
    writing,
)
from rappor_server.storage.day_tables import PART, UPLOAD, days_of, table_of
from rappor_server.storage.fold import fold_all


def backup(database: str, path: Path) -> None:
    """Write a backup, which its owner alone may read, where there must be no file yet.

    It has its name once it is whole: what an interrupted run leaves must not pass for a backup.
    """
    if path.exists():
        raise StoreError(f"{path} must be free for the backup, got a file", retryable=False)
    part = path.with_name(f"{path.name}.part")
    try:
        with opened(database) as engine:
            check_schema(engine)
            fold_all(engine)
            _remove(part)
            part.touch(mode=0o600, exist_ok=False)
            with opened(sqlite_url(part)) as copy:
                if engine.dialect.name == "sqlite":
                    copy_sqlite(Path(str(engine.url.database)), part)
                    with writing(copy) as db:  # it is a database of its own, whose inbox is empty
                        db.execute(update(schema.folded).values(seq=0))
                        db.execute(delete(schema.inbox_failed))
                        db.execute(delete(schema.visit))
                    erase_traces(part)
                else:
                    _copy_tables(engine, copy)
        part.rename(path)
    except BaseException:
        _remove(part)
        raise


def _remove(path: Path) -> None:
    """Delete an SQLite file, and what lies beside it while it is written."""
    for kind in ("", "-journal", "-wal", "-shm"):
        Path(f"{path}{kind}").unlink(missing_ok=True)


def restore(path: Path, database: str) -> None:
    """Fill a database, which must be empty, from a backup."""
    if not path.exists():
        raise StoreError(f"{path} must be a backup, got no file", retryable=False)
    with opened(sqlite_url(path)) as source, opened(database) as target:
        check_schema(source)
        if not is_empty(target):
            raise StoreError("the database must be empty to restore, got tables", retryable=False)
        _copy_tables(source, target)


def _copy_tables(source: Engine, target: Engine) -> None:
    """Copy every row of every table into a new schema, or leave the database empty."""
    with failing_as_store_error(), source.connect() as old, writing(target) as new:
        create_tables(new)
        if source.dialect.name == "postgresql":
            old.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        for table in schema.metadata.sorted_tables:
            if table not in schema.NOT_IN_BACKUPS:
                _copy_rows(old, new, table)
        for kind in (UPLOAD, PART):
            for day in days_of(old, kind):
                table = table_of(kind, day)
                table.create(new)
                _copy_rows(old, new, table)


def _copy_rows(old: Connection, new: Connection, table: Table) -> None:
    """Copy the rows of a table in the order of its key, which says nothing of their arrival."""
    query = select(table).order_by(*table.primary_key.columns)
    result = old.execution_options(yield_per=1000).execute(query)
    for rows in result.mappings().partitions():
        new.execute(insert(table), [dict(row) for row in rows])
