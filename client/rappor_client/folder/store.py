"""The spool's SQLite database: reports on their way, and nothing that a device must not forget.

The database has a write-ahead log and synchronous = NORMAL: a transaction that has ended survives
the death of the process, and the loss of power once `sync` has waited for the disk.
Each process has one connection, which is closed before a fork and opened again on either side; a
child of a fork that could not wait so long has no database, because SQLite would take the parent's
locks for its own. It is opened again, too, when another file has taken the database's name. A
damaged database raises DamagedError; it is removed, and the next use begins an empty one. The
budget does not depend on it.
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
from rappor_client.folder.own_folder import BUSY_SECONDS, RETRY_SECONDS, BusyError

SUFFIXES: Final = ("-wal", "-shm", "-journal", "")
"""The log and its index go first: SQLite would replay a log that outlives its database."""
_VERSION: Final = 1
"""Version of the schema. A database of another version counts as damaged."""
_MAGIC: Final = b"SQLite format 3\0"
"""First bytes of every SQLite database."""
_FORMATS: Final = slice(18, 20)
"""The bytes of the header by which a file may say that this SQLite must not write or read it."""
_CLOSE_SECONDS: Final = 0.1
"""Time that a fork gives to the close of a database, also if all of its time has gone elsewhere."""
File = tuple[int, int]
"""What tells one file from any other: its device and its number there."""
_OF_A_PARENT: Final[list[sqlite3.Connection]] = []
"""Connections that a fork has copied; to close them would be to write."""
_HELD_BY_A_PARENT: Final[set[File]] = set()
"""Databases that another thread used during the fork that this process began with."""

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
    body BLOB NOT NULL, due REAL NOT NULL, leaves_before REAL NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0, first_attempt REAL,
    claimed_until REAL NOT NULL DEFAULT 0, backoff_until REAL NOT NULL DEFAULT 0, status TEXT
);
CREATE INDEX waiting ON report (seq) WHERE status IS NULL;
"""


class Store(Shared):
    """One database; safe to use from any thread."""

    def __init__(self, path: Path) -> None:
        """Name the file, which is opened when it is first needed."""
        self.path = path
        self._open: sqlite3.Connection | None = None
        self._at_end: weakref.finalize[..., Store] | None = None
        self._file: File | None = None
        self._unclosed: sqlite3.Connection | None = None  # during a fork, where the disk hangs
        super().__init__()

    def exists(self) -> bool:
        """Return whether there is a file."""
        return self.path.exists()

    @contextlib.contextmanager
    def transaction(self, *, patience: float = BUSY_SECONDS) -> Iterator[sqlite3.Connection]:
        """Run the block as one write transaction: all of it is kept, or nothing.

        Raises sqlite3.Error and OSError where the disk does not allow it, DamagedError where the
        file does not hold what it should, and BusyError where somebody else holds a lock for
        longer than `patience`, in seconds.
        """
        with self._turn.taken(patience), self._telling_damage():
            connection = self._connection(patience)
            connection.execute(f"PRAGMA busy_timeout = {1000 * patience:.0f}")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                _roll_back(connection)
                raise

    @contextlib.contextmanager
    def reading(self, *, patience: float = BUSY_SECONDS) -> Iterator[sqlite3.Connection]:
        """Run the block on one unchanging view of the database; it raises as `transaction`."""
        with self._turn.taken(patience), self._telling_damage():
            connection = self._connection(patience)
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                _roll_back(connection)

    def remove(self) -> None:
        """Remove a database that is damaged."""
        with self._turn.lock:
            self.close()
            for suffix in SUFFIXES:
                with contextlib.suppress(FileNotFoundError):
                    self.path.with_name(self.path.name + suffix).unlink()

    def sync(self) -> None:
        """Wait for the disk, so that what has ended survives the loss of power; nobody waits here.

        The log holds what is not in the database yet, and moving it there waits for both files.
        """
        with (
            contextlib.suppress(FileNotFoundError),
            self.path.with_name(f"{self.path.name}-wal").open("r+b") as log,
        ):
            os.fsync(log.fileno())

    def before_fork(self, deadline: float) -> None:
        """Lock and close: no thread is inside, and the child inherits no handle.

        Closing writes to the disk, which may hang. So another thread closes, until the deadline;
        a connection that is still open then is the parent's for good.
        """
        super().before_fork(deadline)
        if not self._turn.is_mine or (connection := self._detached()) is None:
            return
        self._unclosed = connection
        if _close_elsewhere(connection, max(deadline - time.monotonic(), _CLOSE_SECONDS)):
            self._unclosed = None

    def after_fork_in_parent(self) -> None:
        """Go on with another connection."""
        self._unclosed = None
        super().after_fork_in_parent()

    def after_fork_in_child(self) -> None:
        """Take a new lock and open a connection of its own."""
        if self._open is not None:  # another thread was inside, or a signal kept it from closing
            self._unclosed = self._detached()
        is_in_use = self._unclosed is not None or not self._turn.is_mine
        if self._file is not None and is_in_use:
            _HELD_BY_A_PARENT.add(self._file)
        super().after_fork_in_child()
        if self._unclosed is not None:
            _OF_A_PARENT.append(self._unclosed)
            self._unclosed = None

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        with self._turn.lock:
            if (connection := self._detached()) is not None:
                _close(connection)

    def _detached(self) -> sqlite3.Connection | None:
        """Take the connection away from the store, None if there is none."""
        connection, self._open = self._open, None
        if self._at_end is not None:
            self._at_end.detach()
        return connection

    def _connection(self, patience: float = BUSY_SECONDS) -> sqlite3.Connection:
        """Return the connection to the file that has the database's name now."""
        now_there = _file_at(self.path)
        if now_there in _HELD_BY_A_PARENT:
            raise OSError(errno.EDEADLK, "another thread used the database during the fork")
        # The collector of garbage closes before it calls a `__del__` of the host that records.
        is_closed = self._at_end is not None and not self._at_end.alive
        if self._open is None or is_closed or self._file != now_there:
            self.close()
            if now_there is None:
                raise FileNotFoundError(errno.ENOENT, "there is no database")
            self._file = now_there
            opened = _connect(self.path, patience)
            # A host may close nothing, and the collector of garbage may run in any of its threads.
            self._at_end = weakref.finalize(self, _close_elsewhere, opened, 0.0)
            self._at_end.atexit = False
            self._open = opened
        if self._open.in_transaction:  # a signal came before it could be ended
            self._open.execute("ROLLBACK")
        return self._open

    @contextlib.contextmanager
    def _telling_damage(self) -> Iterator[None]:
        """Raise DamagedError for what only a damaged file explains, BusyError for a lock."""
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
    """Return whether a file begins as a database does that may be written; a new one is empty."""
    try:
        with path.open("rb") as file:
            head = file.read(_FORMATS.stop)
    except OSError:
        return True  # the disk's failure, not the file's
    return not head or (head.startswith(_MAGIC) and set(head[_FORMATS]) <= {1, 2})


def _file_at(path: Path) -> File | None:
    """Return what tells the file of this name from any other, None if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _roll_back(connection: sqlite3.Connection) -> None:
    """End a transaction, unless the handler of a signal has closed the connection meanwhile."""
    with contextlib.suppress(sqlite3.ProgrammingError):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _close_elsewhere(connection: sqlite3.Connection, seconds: float) -> bool:
    """Close a connection in a thread of its own; return whether that was done within some seconds.

    The last connection of a database moves the log into it and removes the log, so a disk that
    hangs holds whoever closes.
    """
    thread = threading.Thread(target=_close, args=[connection], name="rappor-closer", daemon=True)
    try:
        start_thread(thread)
    except RuntimeError:  # no thread can be had
        _close(connection)
        return True
    thread.join(max(seconds, 0.0))
    return not thread.is_alive()


def _close(connection: sqlite3.Connection) -> None:
    """Close a connection, once the disk takes writes; a failure leaves the log for the next one."""
    with contextlib.suppress(sqlite3.Error):
        for _, _, path in connection.execute("PRAGMA database_list").fetchall():
            _await_disk(path)
    with contextlib.suppress(sqlite3.Error):
        connection.close()


def _await_disk(path: str | os.PathLike[str]) -> None:
    """Return as soon as the disk of a file takes writes.

    SQLite creates and removes the index of a log while it holds a lock of the whole process. There
    a disk that hangs would hold every other database of the host. So the thread waits here first.
    """
    with contextlib.suppress(OSError):  # a disk that refuses has answered
        os.utime(path)


def _connect(path: Path, patience: float) -> sqlite3.Connection:
    """Open the file; wait where SQLite does not: while another process creates the log."""
    deadline = time.monotonic() + patience
    _await_disk(path)
    while True:
        try:
            return _connect_once(path, patience)
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
        time.sleep(RETRY_SECONDS)


def _connect_once(path: Path, patience: float) -> sqlite3.Connection:
    """Open the file, which must be there, and create its tables if it is empty."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=patience,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = ON")
        if not _version(connection):
            _begin(connection)
        if (version := _version(connection)) != _VERSION:
            raise DamagedError(f"version {version}")
    except BaseException:
        connection.close()
        raise
    return connection


def _begin(connection: sqlite3.Connection) -> None:
    """Create the tables of an empty file, unless another process is faster."""
    connection.execute("BEGIN IMMEDIATE")
    if not _version(connection):
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {_VERSION}")
    connection.execute("COMMIT")


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)
