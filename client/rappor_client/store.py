"""One small SQLite database for all that a device remembers, shared by threads and processes.

The database has a write-ahead log and synchronous = NORMAL: a transaction that has ended survives
the death of the process; a durable one also waits for the disk and survives the loss of power.
Each process has one connection, which is closed before a fork and opened again on either side.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rappor.errors import FileError
from rappor_client.forking import hold_over_forks

_NAME: Final = "telemetry.sqlite3"
_VERSION: Final = 1
_BUSY_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 0.01
_PRIVATE: Final = 0o600

_SCHEMA: Final = """
CREATE TABLE state (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE counter (name TEXT PRIMARY KEY, n INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE params (fingerprint TEXT PRIMARY KEY, document TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE pattern (
    key BLOB PRIMARY KEY, metric TEXT NOT NULL, epoch TEXT NOT NULL,
    reports INTEGER NOT NULL, nats REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE charge (
    pattern BLOB NOT NULL, params TEXT NOT NULL, reports INTEGER NOT NULL,
    PRIMARY KEY (pattern, params)
) WITHOUT ROWID;
CREATE TABLE scope (
    metric TEXT NOT NULL, epoch TEXT NOT NULL, response TEXT NOT NULL, last_day TEXT NOT NULL,
    params TEXT NOT NULL, cohort INTEGER NOT NULL, permanent BLOB NOT NULL,
    admitted BLOB NOT NULL, last BLOB NOT NULL, closed INTEGER NOT NULL,
    patterns INTEGER NOT NULL, interval TEXT NOT NULL,
    PRIMARY KEY (metric, epoch, response)
) WITHOUT ROWID;
CREATE TABLE reserved (
    year INTEGER NOT NULL, metric TEXT NOT NULL, scopes TEXT NOT NULL, nats REAL NOT NULL,
    PRIMARY KEY (year, metric, scopes)
) WITHOUT ROWID;
CREATE TABLE held (
    metric TEXT PRIMARY KEY, ends REAL NOT NULL, seconds REAL NOT NULL, events INTEGER NOT NULL,
    epoch TEXT, params TEXT, cohort INTEGER, bits BLOB, pattern BLOB
) WITHOUT ROWID;
CREATE TABLE report (
    seq INTEGER PRIMARY KEY, metric TEXT NOT NULL, params TEXT NOT NULL,
    cohort INTEGER NOT NULL, bits BLOB NOT NULL, nats REAL NOT NULL, due REAL NOT NULL
);
CREATE TABLE upload (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL, body BLOB NOT NULL,
    reports TEXT NOT NULL, attempts INTEGER NOT NULL DEFAULT 0, first_attempt REAL,
    claimed_until REAL NOT NULL DEFAULT 0, backoff_until REAL NOT NULL DEFAULT 0,
    settled INTEGER NOT NULL DEFAULT 0
);
"""
TABLES: Final = (
    "state",
    "counter",
    "params",
    "pattern",
    "charge",
    "scope",
    "reserved",
    "held",
    "report",
    "upload",
)


class Store:
    """The database of one folder; safe to use from any thread."""

    def __init__(self, folder: Path) -> None:
        """Name the folder; its file is opened when it is first needed."""
        self._path = folder / _NAME
        self._lock = threading.RLock()
        self._open: sqlite3.Connection | None = None
        hold_over_forks(self)

    def exists(self) -> bool:
        """Tell whether there is a file."""
        return self._path.exists()

    @contextlib.contextmanager
    def transaction(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """Run the block as one write transaction: all of it is kept, or nothing.

        Raises sqlite3.Error where the disk, a lock or the file do not allow it.
        """
        with self._lock:
            connection = self._connection()
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Run the block on one unchanging view of the database."""
        with self._lock:
            connection = self._connection()
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("ROLLBACK")

    def shred(self) -> None:
        """Rewrite the files, so that nothing of deleted rows is left in them."""
        with self._lock:
            connection = self._connection()
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def sync(self) -> None:
        """Wait for the disk, so that what has ended survives the loss of power; nobody waits here.

        The log holds what is not in the database yet, and moving it there waits for both files.
        """
        with (
            contextlib.suppress(FileNotFoundError),
            self._path.with_name(f"{_NAME}-wal").open("r+b") as log,
        ):
            os.fsync(log.fileno())

    def before_fork(self) -> None:
        """Lock and close: no thread is inside, and the child inherits no handle."""
        self._lock.acquire()
        with contextlib.suppress(sqlite3.Error):
            self.close()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Take a new lock: the threads that waited for the old one are not here."""
        self._lock = threading.RLock()

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        with self._lock:
            if self._open is not None:
                self._open.close()
                self._open = None

    def _connection(self) -> sqlite3.Connection:
        if self._open is None:
            self._open = _connect(self._path)
        if self._open.in_transaction:  # a signal came before it could be ended
            self._open.execute("ROLLBACK")
        return self._open


@contextlib.contextmanager
def failing_as_file_error(folder: Path) -> Iterator[None]:
    """Raise FileError for what the disk does not allow when a caller looks or erases."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise FileError(folder, name_failure(error)) from None


def name_failure(error: Exception) -> str:
    """Name a failure of the disk in a word; no message of a library is passed on."""
    match error:
        case sqlite3.Error():
            return str(getattr(error, "sqlite_errorname", type(error).__name__))
        case OSError(errno=int() as number):
            return errno.errorcode.get(number, type(error).__name__)
        case FileError():
            return error.reason
        case _:
            return type(error).__name__


def _connect(path: Path) -> sqlite3.Connection:
    """Open the file; wait where SQLite does not: while another process creates the log."""
    patience = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            return _connect_once(path)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > patience:
                raise
        time.sleep(_RETRY_SECONDS)


def _connect_once(path: Path) -> sqlite3.Connection:
    """Open the file, private to the user, and bring it to this version."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _PRIVATE))
    connection = sqlite3.connect(
        path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("BEGIN IMMEDIATE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        elif version != _VERSION:
            raise sqlite3.DatabaseError(f"the store must be of version {_VERSION}, got {version}")
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection
