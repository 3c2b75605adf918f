"""The spool's database as one object: transactions, damage, forks, and its one connection.

A client stores its finished reports in a database of SQLite, the spool. Its reads and writes go
through a `Store`:

    store = Store(path)
    with store.transaction() as db:     all changes of the block are stored, or none
        spool.add_report(db, ...)
    with store.reading() as db:         the block reads one state of the database
        spool.count_queued(db)

A transaction takes these steps: wait for the other threads, open the connection if there is none,
run the block, commit. If the block raises, the changes are rolled back. `folder/database.py` opens
and closes connections, and the comment of its schema lists the modules with the queries.

A process has one connection to a database:

    event                                        connection
    first use                                    is opened
    `close`                                      is closed; the next use opens another one
    another file has the name of the database,   is closed; the next use opens another one
    for example after a withdrawal
    the collector of garbage deletes the store   is closed by a thread of its own
    the program ends                             is left open, as after a kill
    fork                                         is closed before the fork; parent and child open
                                                 their own

The host program may fork at any time, and its disk may hang. Both are dangerous for an open
connection:

- A fork copies an open connection into the child. SQLite's locks belong to a process, and closing
  any handle of a file releases all locks of the process on the file. A child that closed a
  connection of its parent would break the parent's transaction. A child that opened the file again
  would take the parent's locks for its own.
- On a disk that hangs, closing a connection may take minutes, because closing the last connection
  writes to the disk. A fork and the collector of garbage must not wait so long, so they close in a
  thread of their own.

Both cases together: if the disk hangs during a fork, or another thread is inside a transaction, the
connection cannot be closed before the fork. The parent goes on with its connection or opens another
one. The child has a copy of the connection. It neither uses nor closes the copy, and it never opens
the file: its transactions raise OSError (EDEADLK).

Damage: a file that does not contain what this library wrote raises DamagedError. The writer
(`outbox/writer.py`) removes the file, and the next use begins an empty database. The queued reports
are lost, but no privacy: the budget and the memoized responses are in other files, the state of the
device (`budget/state.py`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rappor_client.folder.database import (
    SUFFIXES,
    close,
    close_elsewhere,
    connect,
    has_sound_header,
)
from rappor_client.folder.failures import DamagedError, is_busy, is_damage, is_refusal, name_failure
from rappor_client.folder.forking import Shared
from rappor_client.folder.identity_folder import BUSY_SECONDS, BusyError

_CLOSE_SECONDS: Final = 0.1
"""Shortest time, in seconds, that a fork waits for the close of a database, also if its deadline
has passed. If the connection is not closed in this time, the child never opens the database. With a
smaller value, a slow disk would have this effect as well as a disk that hangs."""
FileId = tuple[int, int]
"""Device and inode, which are the same for all names of a file."""
_PARENT_CONNECTIONS: Final[list[sqlite3.Connection]] = []
"""Connections that a fork has copied into this process. The list keeps them from being closed by
the collector of garbage, because closing writes to the file."""
_USED_BY_PARENT: Final[set[FileId]] = set()
"""Databases whose connection was copied into this process, or that another thread of the parent was
using during the fork. This process never opens these files."""


class Store(Shared):
    """The database of one device. Any thread may use it, one at a time.

    Parameters
    ----------
    path
        Path of the file. It is opened at the first use.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # The open connection, the finalizer that closes it if the store is deleted, and the file to
        # which it is open.
        self._open: sqlite3.Connection | None = None
        self._finalizer: weakref.finalize[..., Store] | None = None
        self._file: FileId | None = None
        # The connection that `before_fork` could not close in time, because the disk hangs.
        self._unclosed: sqlite3.Connection | None = None
        super().__init__()

    def exists(self) -> bool:
        """Return whether the file exists. `transaction` and `reading` do not create it."""
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
        # A thread that is inside a transaction may remove the files, too. `_turn.acquire` would
        # raise BusyError there, because the thread has the lock already. The lock itself may be
        # acquired again by its owner.
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

        Another thread closes the connection, because the disk may hang. The fork waits for that
        thread until the deadline.
        """
        super().before_fork(deadline)
        # `is_mine` is false if this thread did not get the lock: another thread was inside a
        # transaction until the deadline, and still uses the connection.
        if not self._turn.is_mine or (connection := self._detach_connection()) is None:
            return
        self._unclosed = connection
        if close_elsewhere(connection, max(deadline - time.monotonic(), _CLOSE_SECONDS)):
            self._unclosed = None

    def after_fork_in_parent(self) -> None:
        """Release the lock. The next use opens a new connection."""
        self._unclosed = None
        super().after_fork_in_parent()

    def after_fork_in_child(self) -> None:
        """Create a new lock. Keep a copied connection unused, and never open its file."""
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
                close(connection)

    def _detach_connection(self) -> sqlite3.Connection | None:
        """Remove the connection from the store and return it. Return None if there is none."""
        connection, self._open = self._open, None
        if self._finalizer is not None:
            self._finalizer.detach()
        return connection

    def _connect_current(self, lock_seconds: float = BUSY_SECONDS) -> sqlite3.Connection:
        """Return a connection to the file that has the database's name now."""
        current = _identify_file(self.path)
        if current in _USED_BY_PARENT:
            raise OSError(errno.EDEADLK, "another thread used the database during the fork")
        # Case: the host has lost its last reference to this store, and an object of the host with
        # a `__del__` is deleted together with the store. The collector of garbage runs finalizers
        # first, and the finalizer closes the connection. Then the `__del__` records a value.
        is_closed = self._finalizer is not None and not self._finalizer.alive
        if self._open is None or is_closed or self._file != current:
            self.close()
            if current is None:
                raise FileNotFoundError(errno.ENOENT, "there is no database")
            self._file = current
            opened = connect(self.path, lock_seconds)
            # A host may never close its clients. The collector of garbage then closes the
            # connection. It runs in any thread of the host, so it waits 0 s for the disk.
            self._finalizer = weakref.finalize(self, close_elsewhere, opened, 0.0)
            # The finalizer does not run at the end of the program, which would wait for a disk that
            # hangs. At the next use SQLite reads the log of a database that was left open.
            self._finalizer.atexit = False
            self._open = opened
        # Case: the handler of a signal has raised an exception between BEGIN and the `try` of
        # `transaction`, so nothing has ended that transaction.
        if self._open.in_transaction:
            self._open.execute("ROLLBACK")
        return self._open

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise DamagedError for an error of a damaged file, BusyError for a lock.

        Any other exception passes through. After an error of SQLite, of the disk or of the block
        the connection is closed, because its file may be the cause. It stays open after BusyError,
        and after a DamagedError of the block: the caller then removes the file, which closes it.
        """
        try:
            yield
        except (DamagedError, BusyError):
            raise
        except Exception as error:
            if is_busy(error):
                raise BusyError from None
            self.close()
            # SQLite refuses to open or write a file in two cases: the header of the file is
            # damaged, or the system denies the access. Only the header shows which case it is.
            if is_damage(error) or (is_refusal(error) and not has_sound_header(self.path)):
                raise DamagedError(name_failure(error)) from None
            raise


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
