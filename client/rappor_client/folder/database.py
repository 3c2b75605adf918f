"""Opening and closing of the spool's database: SQLite settings, schema, and disks that hang.

`Store` (`folder/store.py`) calls these functions. The database has these settings:

    journal_mode = WAL       a transaction appends its pages to a log (`-wal`). SQLite moves the log
                             into the database from time to time, and when the last connection is
                             closed. Readers need no lock
    synchronous = NORMAL     the end of a transaction does not wait for the disk. A transaction
                             survives a kill of the process, and a loss of power after `Store.sync`
    secure_delete = ON       deleted rows are overwritten by zeros, so a withdrawal leaves no report
                             in the file

The files of a database `spool`:

    spool            the database
    spool-wal        the log
    spool-shm        index of the log, in memory that the processes share
    spool-journal    only while the journal mode changes
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from pathlib import Path
from typing import Final

from rappor.base.threads import start_thread
from rappor_client.folder.failures import DamagedError, is_busy
from rappor_client.folder.identity_folder import RETRY_SECONDS
from rappor_client.folder.void_log import remove_void_log

SUFFIXES: Final = ("-wal", "-shm", "-journal", "")
"""Endings of the database's files, in the order of their removal. The log and its index go first:
SQLite would replay a log that outlives its database into the next database of this name."""
_VERSION: Final = 1
"""Version of the schema, which SQLite stores in the file as `user_version`. A database of another
version counts as damaged."""
_MAGIC: Final = b"SQLite format 3\0"
"""Every SQLite database begins with these bytes."""
_FORMAT_BYTES: Final = slice(18, 20)
"""Position in the header of the format versions for writing and for reading. 1 is a database with a
journal, 2 a database with a log. SQLite refuses a file with a larger version."""

_SCHEMA: Final = """
CREATE TABLE state (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE counter (name TEXT PRIMARY KEY, n INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE params (fingerprint TEXT PRIMARY KEY, document TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE held (
    metric TEXT NOT NULL, epoch TEXT NOT NULL,
    ends REAL NOT NULL, seconds REAL NOT NULL, tag INTEGER NOT NULL, report TEXT,
    PRIMARY KEY (metric, epoch, ends)
) WITHOUT ROWID;
CREATE TABLE report (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL, metric TEXT NOT NULL, params TEXT NOT NULL,
    body BLOB NOT NULL, send_after REAL NOT NULL, leaves_before REAL NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0, first_attempt REAL,
    claimed_until REAL NOT NULL DEFAULT 0, backoff_until REAL NOT NULL DEFAULT 0, status TEXT
);
CREATE INDEX waiting ON report (seq) WHERE status IS NULL;
"""
"""Tables of the database, described by the modules that use them:

    state, counter, params   `folder/spool_tables.py`
    held                     pending reports, `budget/pending_reports.py`
    report                   queued reports and the log, `folder/spool.py`

The index `waiting` keeps the queries for queued reports fast beside a long log of sent reports."""


def connect(path: Path, lock_seconds: float) -> sqlite3.Connection:
    """Return a connection to an existing file, which may be empty.

    While another process creates or recovers the log, SQLite raises SQLITE_BUSY at once and ignores
    its timeout. So this function retries for `lock_seconds`. Raises sqlite3.Error, or DamagedError
    for another version.
    """
    deadline = time.monotonic() + lock_seconds
    _await_disk(path)
    # SQLite would copy memory of this process to the index of a log without a valid frame, and this
    # memory may contain the secret.
    remove_void_log(path)
    while True:
        try:
            return _open(path, lock_seconds)
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
        time.sleep(RETRY_SECONDS)


def _open(path: Path, lock_seconds: float) -> sqlite3.Connection:
    """Open a file once, and create the tables in an empty file."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=lock_seconds,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = ON")
        if not _read_version(connection):
            _create_tables(connection)
        if (version := _read_version(connection)) != _VERSION:
            raise DamagedError(f"version {version}")
    except BaseException:
        connection.close()
        raise
    return connection


def _create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables in an empty file, unless another process has created them."""
    connection.execute("BEGIN IMMEDIATE")
    if not _read_version(connection):
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {_VERSION}")
    connection.execute("COMMIT")


def _read_version(connection: sqlite3.Connection) -> int:
    """Return the version of the schema, 0 for an empty file."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def close_elsewhere(connection: sqlite3.Connection, seconds: float) -> bool:
    """Close a connection in a thread of its own; return whether it is closed within `seconds`.

    Closing the last connection of a database moves the log into the database. This does not return
    while the disk hangs, so no thread of the host may do it.
    """
    thread = threading.Thread(target=close, args=[connection], name="rappor-closer", daemon=True)
    try:
        start_thread(thread)
    except RuntimeError:  # no thread can start
        close(connection)
        return True
    thread.join(max(seconds, 0.0))
    return not thread.is_alive()


def close(connection: sqlite3.Connection) -> None:
    """Close a connection once the disk takes writes. After a failure the log stays on the disk."""
    with contextlib.suppress(sqlite3.Error):
        for _, _, path in connection.execute("PRAGMA database_list").fetchall():
            _await_disk(path)
    with contextlib.suppress(sqlite3.Error):
        connection.close()


def _await_disk(path: str | os.PathLike[str]) -> None:
    """Return as soon as the disk of a file takes writes.

    SQLite creates and removes the index of a log under a lock that all databases of a process
    share. If the disk hung at that moment, all other databases of the host would wait. So this
    function writes the file's modification time first, without that lock, and waits for the disk.
    """
    with contextlib.suppress(OSError):  # a disk that refuses the write has answered
        os.utime(path)


def has_sound_header(path: Path) -> bool:
    """Return whether a file has the header of a writable database, or is new and empty."""
    try:
        with path.open("rb") as file:
            head = file.read(_FORMAT_BYTES.stop)
    except OSError:
        # The disk has failed, and the file may be sound. False would remove it with all reports.
        return True
    return not head or (head.startswith(_MAGIC) and set(head[_FORMAT_BYTES]) <= {1, 2})
