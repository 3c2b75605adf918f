"""Backup and restoration of a whole database, as one SQLite file.

`backup` first merges the inbox, so a backup contains sums and no single report. A backup contains
no sessions of signed-in people either. Collectors may run meanwhile: an SQLite database is copied
by its online backup, and a PostgreSQL database is read in one snapshot. A backup of one kind of
database can be restored into the other kind.

A backup also contains reports that wait: counters of its day, and blocks in no window. If a night
has passed since the backup, the original may have released them together with later reports. The
restored database would release them in another window, without these reports or with others:

    Mon 18:00    backup, with 120 reports of Monday in counters
    Mon 23:00    one more report comes
    Tue 00:00    the original releases a window of 121 reports, dated Monday. Its disk fails
    Wed          the restored database would release a window of 120 reports, dated Monday

The difference of both windows is the report of 23:00, and an analyst could compute it. So `restore`
sets such reports aside. Two cases are exempt: a backup of the same day, and a backup after which no
collector has run, as the operator states.
"""

from __future__ import annotations

import datetime
import secrets
from pathlib import Path

from sqlalchemy import Connection, Engine, Table, delete, func, insert, select, update

from rappor_server.base.errors import StoreError
from rappor_server.storage import schema
from rappor_server.storage.database import (
    copy_sqlite,
    erase_traces,
    lock_maintenance,
    open_database,
    read_snapshot,
    sqlite_url,
    write_transaction,
)
from rappor_server.storage.day_tables import PART, UPLOAD, list_days, table_of
from rappor_server.storage.forgetting import set_aside_waiting
from rappor_server.storage.merge import merge_all
from rappor_server.storage.schema_versions import check_schema, create_tables, is_empty


def backup(database: str, path: Path) -> None:
    """Write a backup that only its owner can read.

    The file gets its final name when it is complete. An interrupted run leaves a file whose name
    ends in .part, which nobody can mistake for a backup.

    Parameters
    ----------
    database : URL of the database
    path : path of the backup

    Raises
    ------
    StoreError
        The path exists already, or the database failed.
    """
    if path.exists():
        raise StoreError(f"{path} must be free for the backup, got a file", retryable=False)
    part = path.with_name(f"{path.name}.part")
    try:
        with open_database(database) as engine:
            check_schema(engine)
            merge_all(engine)
            _remove(part)  # of a run that was killed
            # Created before SQLite opens it, which would let everybody read it.
            part.touch(mode=0o600, exist_ok=False)
            with open_database(sqlite_url(part)) as copy:
                if engine.dialect.name == "sqlite":
                    copy_sqlite(Path(str(engine.url.database)), part)
                    with write_transaction(copy) as db:
                        # The batches of an inbox file have rising numbers, and `last_merged` is the
                        # number of the last batch that was added to the sums. The copy gets an
                        # inbox file of its own, which is empty and begins with batch 1. An older
                        # number would make the copy reject that file as outdated.
                        db.execute(update(schema.last_merged).values(seq=0))
                        # Such batches contain single reports, and a backup contains only sums.
                        db.execute(delete(schema.unreadable_batch))
                        # Sessions, and the key that signs their cookies: whoever has the backup
                        # must not be able to sign in to the original. `_copy_tables` leaves both
                        # out, and its new schema draws a key of its own (`_create_cookie_key`).
                        db.execute(delete(schema.visit))
                        key = secrets.token_bytes(32)
                        db.execute(update(schema.cookie_key).values(secret=key))
                    # The write-ahead log of the copy still contains the deleted rows.
                    erase_traces(part)
                else:
                    with write_transaction(copy) as db:
                        _copy_tables(engine, db)
        # Only a complete file gets the name of a backup.
        part.rename(path)
    except BaseException:
        _remove(part)
        raise


def _remove(path: Path) -> None:
    """Delete an SQLite file, its journal and its write-ahead log."""
    for kind in ("", "-journal", "-wal", "-shm"):
        Path(f"{path}{kind}").unlink(missing_ok=True)


def restore(path: Path, database: str, *, today: datetime.date, is_complete: bool = False) -> int:
    """Fill an empty database from a backup; return the number of reports that were set aside.

    Parameters
    ----------
    path : path of the backup
    database : URL of the empty database
    today : the present day (UTC). If the backup is of an earlier day, the reports that wait in it
        are set aside (see the opening of the module)
    is_complete : whether no collector ran after the backup. Then no report is set aside

    Raises
    ------
    StoreError
        The database is not empty, or the file is no backup.
    """
    if not path.exists():
        raise StoreError(f"{path} must be a backup, got no file", retryable=False)
    with open_database(sqlite_url(path)) as source, open_database(database) as target:
        check_schema(source)  # before the target is changed: the file may be no backup
        if not is_empty(target):
            remedy = "name another database with --database"
            if target.dialect.name == "sqlite":
                file = target.url.database
                remedy += f", or move {file} and {file}-inbox away"
            raise StoreError(
                f"the database must be empty to restore, got tables: {remedy}", retryable=False
            )
        # One transaction: a run that is killed leaves the database empty, and never filled with
        # reports that should have been set aside.
        with write_transaction(target) as db:
            _copy_tables(source, db)
            # The heartbeat has the last days on which a collector, or `backup` itself, merged.
            last_day = db.execute(select(func.max(schema.heartbeat.c.day))).scalar()
            if is_complete or last_day is None or last_day >= today:
                return 0
            lock_maintenance(db)
            return set_aside_waiting(db, today)


def _copy_tables(source: Engine, writer: Connection) -> None:
    """Copy every row of every table of a database into a new schema."""
    # The backup reads all tables as of one moment. Otherwise a day might be counted twice: the
    # backup reads its sums in the counters of the day (`tally`), a collector then moves them into
    # the sums of several days (`block`), and the backup reads them there again.
    with read_snapshot(source) as reader:
        create_tables(writer)
        for table in schema.metadata.sorted_tables:
            if table not in schema.NOT_IN_BACKUPS:
                _copy_rows(reader, writer, table)
        # Tables of each day with the deduplication keys of its uploads and of single reports. They
        # are not in `schema.metadata`, because their names contain the day.
        for kind in (UPLOAD, PART):
            for day in list_days(reader, kind):
                table = table_of(kind, day)
                table.create(writer)
                _copy_rows(reader, writer, table)


def _copy_rows(reader: Connection, writer: Connection, table: Table) -> None:
    """Copy the rows of a table in the order of its key, which hides their order of arrival."""
    query = select(table).order_by(*table.primary_key.columns)
    result = reader.execution_options(yield_per=1000).execute(query)
    for rows in result.mappings().partitions():
        writer.execute(insert(table), [dict(row) for row in rows])
