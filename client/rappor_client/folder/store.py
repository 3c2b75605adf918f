"""The SQLite database of the spool: connections, transactions, damage, and forks.

The database has a write-ahead log and `synchronous = NORMAL`. A transaction that has ended survives
the death of the process. It survives a loss of power once `sync` has waited for the disk.

Each process has one connection. It is opened at the first use, and opened again after

- `close`, a fork in the parent or in the child, or the removal of a damaged database;
- another file has taken the name of the database, for example after a withdrawal.

Three bad cases decide how this module is written:

- Damage. A file that does not contain what this library wrote raises DamagedError. The writer
  removes it, and the next use begins an empty database. Budget and memoized responses are in the
  state, so the loss costs reports and no privacy.
- Forks. SQLite's locks belong to a process, and closing any handle of a file releases all locks of
  the process on it. A child that closed a connection of its parent would break the parent's
  transaction. So a fork closes the connection before. If another thread is inside the database, the
  child has no database at all, and keeps the copied connection without using it.
- Disks that hang. Closing the last connection writes to the disk, so a fork and the collector of
  garbage close in a thread of their own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rappor.base.threads import start_thread
from rappor_client.folder.failures import DamagedError, is_busy, is_damage, is_refusal, name_failure
from rappor_client.folder.forking import Shared
from rappor_client.folder.identity_folder import BUSY_SECONDS, RETRY_SECONDS, BusyError
from rappor_client.folder.void_log import remove_void_log

SUFFIXES: Final = ("-wal", "-shm", "-journal", "")
"""Endings of the database's files, in the order of their removal. The log and its index go first:
SQLite would replay a log that outlives its database into the next one."""
_VERSION: Final = 1
"""Version of the schema. A database of another version counts as damaged."""
_MAGIC: Final = b"SQLite format 3\0"
"""First bytes of every SQLite database."""
_FORMATS: Final = slice(18, 20)
"""Position of the two bytes of the header that forbid this SQLite to write or to read the file."""
_CLOSE_SECONDS: Final = 0.1
"""Shortest time, in seconds, that a fork waits for the close of a database."""
FileId = tuple[int, int]
"""Device and inode, which are the same for all names of a file."""
_PARENT_CONNECTIONS: Final[list[sqlite3.Connection]] = []
"""Connections that a fork has copied. They are never closed, because closing writes to the file."""
_USED_BY_PARENT: Final[set[FileId]] = set()
"""Databases that another thread of the parent was using during the fork of this process. SQLite
would take the parent's locks for its own."""

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
    held                     pending reports, `budget/admission.py`
    report                   queued reports and the log, `folder/spool.py`

The index `waiting` keeps the queries for queued reports fast beside a long log."""


class Store(Shared):
    """One database. Any thread may use it, one at a time.

    Parameters
    ----------
    path
        Path of the file. It is opened at the first use.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # The open connection, its finalizer, and the file to which it is open.
        self._open: sqlite3.Connection | None = None
        self._at_end: weakref.finalize[..., Store] | None = None
        self._file: FileId | None = None
        # The connection that could not be closed before a fork, because the disk hangs.
        self._unclosed: sqlite3.Connection | None = None
        super().__init__()

    def exists(self) -> bool:
        """Return whether the file exists."""
        return self.path.exists()

    @contextlib.contextmanager
    def transaction(self, *, lock_seconds: float = BUSY_SECONDS) -> Iterator[sqlite3.Connection]:
        """Run the block as one write transaction: all of its changes are stored, or none.

        Parameters
        ----------
        lock_seconds
            Seconds to wait for the lock of another thread or process.

        Raises
        ------
        sqlite3.Error, OSError
            The disk failed.
        DamagedError
            The file does not contain what this library wrote.
        BusyError
            Another thread or process kept a lock.
        """
        with self._turn.acquire(lock_seconds), self._translate_errors():
            connection = self._connect_current(lock_seconds)
            connection.execute(f"PRAGMA busy_timeout = {1000 * lock_seconds:.0f}")
            # IMMEDIATE takes the write lock now. A transaction that reads first and then writes
            # would fail at its first write if another process has written in between.
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                _roll_back(connection)
                raise

    @contextlib.contextmanager
    def reading(self, *, lock_seconds: float = BUSY_SECONDS) -> Iterator[sqlite3.Connection]:
        """Run the block on a snapshot of the database; raises as `transaction`."""
        with self._turn.acquire(lock_seconds), self._translate_errors():
            connection = self._connect_current(lock_seconds)
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                _roll_back(connection)

    def remove(self) -> None:
        """Remove the files of a damaged database."""
        with self._turn.lock:
            self.close()
            for suffix in SUFFIXES:
                with contextlib.suppress(FileNotFoundError):
                    self.path.with_name(self.path.name + suffix).unlink()

    def sync(self) -> None:
        """Flush the log to the disk, so that ended transactions survive a loss of power.

        No lock is held meanwhile, so no other thread waits. Flushing the log is enough: it contains
        every transaction that is not in the database file, and SQLite flushes both files when it
        moves the log into the database.
        """
        with (
            contextlib.suppress(FileNotFoundError),
            self.path.with_name(f"{self.path.name}-wal").open("r+b") as log,
        ):
            os.fsync(log.fileno())

    def before_fork(self, deadline: float) -> None:
        """Lock the database and close the connection, so that the child inherits no handle.

        Closing writes to the disk, which may hang. So another thread closes, until the deadline.
        The child never uses a connection that is still open then.
        """
        super().before_fork(deadline)
        if not self._turn.is_mine or (connection := self._detach_connection()) is None:
            return
        self._unclosed = connection
        if _close_elsewhere(connection, max(deadline - time.monotonic(), _CLOSE_SECONDS)):
            self._unclosed = None

    def after_fork_in_parent(self) -> None:
        """Resume with a new connection."""
        self._unclosed = None
        super().after_fork_in_parent()

    def after_fork_in_child(self) -> None:
        """Create a new lock, and keep the parent's connection unused."""
        # The connection is still open: another thread was inside the database, or the handler of a
        # signal raised before it was closed.
        if self._open is not None:
            self._unclosed = self._detach_connection()
        is_in_use = self._unclosed is not None or not self._turn.is_mine
        if self._file is not None and is_in_use:
            _USED_BY_PARENT.add(self._file)
        super().after_fork_in_child()
        if self._unclosed is not None:
            _PARENT_CONNECTIONS.append(self._unclosed)
            self._unclosed = None

    def close(self) -> None:
        """Close the connection. The next use opens a new one."""
        with self._turn.lock:
            if (connection := self._detach_connection()) is not None:
                _close(connection)

    def _detach_connection(self) -> sqlite3.Connection | None:
        """Remove the connection from the store and return it, None without a connection."""
        connection, self._open = self._open, None
        if self._at_end is not None:
            self._at_end.detach()
        return connection

    def _connect_current(self, lock_seconds: float = BUSY_SECONDS) -> sqlite3.Connection:
        """Return a connection to the file that has the database's name now."""
        current = _identify_file(self.path)
        if current in _USED_BY_PARENT:
            raise OSError(errno.EDEADLK, "another thread used the database during the fork")
        # The collector of garbage runs the finalizer before it calls the `__del__` of an object of
        # the host, and such a `__del__` may record a value.
        is_closed = self._at_end is not None and not self._at_end.alive
        if self._open is None or is_closed or self._file != current:
            self.close()
            if current is None:
                raise FileNotFoundError(errno.ENOENT, "there is no database")
            self._file = current
            opened = _connect(self.path, lock_seconds)
            # A host may never close its clients. The collector of garbage then closes the
            # connection in any thread of the host, so it must not wait for the disk.
            self._at_end = weakref.finalize(self, _close_elsewhere, opened, 0.0)
            self._at_end.atexit = False
            self._open = opened
        # The handler of a signal raised between the beginning of a transaction and its guard.
        if self._open.in_transaction:
            self._open.execute("ROLLBACK")
        return self._open

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise DamagedError for an error of a damaged file, BusyError for a lock."""
        try:
            yield
        except (DamagedError, BusyError):
            raise
        except Exception as error:
            if is_busy(error):
                raise BusyError from None
            self.close()
            if is_damage(error) or (is_refusal(error) and not _has_sound_header(self.path)):
                raise DamagedError(name_failure(error)) from None
            raise


def _has_sound_header(path: Path) -> bool:
    """Return whether a file has the header of a writable database, or is new and empty."""
    try:
        with path.open("rb") as file:
            head = file.read(_FORMATS.stop)
    except OSError:
        return True  # the disk has failed; the file may be sound
    return not head or (head.startswith(_MAGIC) and set(head[_FORMATS]) <= {1, 2})


def _identify_file(path: Path) -> FileId | None:
    """Return device and inode of a file, None without a file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _roll_back(connection: sqlite3.Connection) -> None:
    """Roll a transaction back, unless the handler of a signal has closed the connection."""
    with contextlib.suppress(sqlite3.ProgrammingError):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _close_elsewhere(connection: sqlite3.Connection, seconds: float) -> bool:
    """Close a connection in a thread of its own; return whether it is closed within some seconds.

    Closing the last connection of a database moves the log into the database, so the call does not
    return while the disk hangs.
    """
    thread = threading.Thread(target=_close, args=[connection], name="rappor-closer", daemon=True)
    try:
        start_thread(thread)
    except RuntimeError:  # no thread can start
        _close(connection)
        return True
    thread.join(max(seconds, 0.0))
    return not thread.is_alive()


def _close(connection: sqlite3.Connection) -> None:
    """Close a connection once the disk takes writes. After a failure the log stays in its file."""
    with contextlib.suppress(sqlite3.Error):
        for _, _, path in connection.execute("PRAGMA database_list").fetchall():
            _await_disk(path)
    with contextlib.suppress(sqlite3.Error):
        connection.close()


def _await_disk(path: str | os.PathLike[str]) -> None:
    """Return as soon as the disk of a file takes writes.

    SQLite creates and removes the index of a log under a lock of the whole process. If the disk
    hung at that moment, all other databases of the host would wait. So the thread waits here first.
    """
    with contextlib.suppress(OSError):  # a disk that refuses the write has answered
        os.utime(path)


def _connect(path: Path, lock_seconds: float) -> sqlite3.Connection:
    """Open the file, and retry while another process creates the log.

    SQLite itself does not wait in this case.
    """
    deadline = time.monotonic() + lock_seconds
    _await_disk(path)
    # SQLite would copy memory of this process, and maybe the secret, to the index of such a log.
    remove_void_log(path)
    while True:
        try:
            return _connect_once(path, lock_seconds)
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
        time.sleep(RETRY_SECONDS)


def _connect_once(path: Path, lock_seconds: float) -> sqlite3.Connection:
    """Open an existing file, and create the tables in an empty one."""
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
        # Deleted rows are overwritten by zeros, so a withdrawal leaves no report in the file.
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
