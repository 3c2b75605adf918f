"""One small SQLite database for all that a device remembers, shared by threads and processes.

The database has a write-ahead log and synchronous = NORMAL: a transaction that has ended survives
the death of the process; a durable one also waits for the disk and survives the loss of power.
Each process has one connection, which is closed before a fork and opened again on either side. It
is opened again, too, when another file has taken the database's name. A damaged database raises
DamagedError; it is set apart under another name, and the next use begins an empty one.
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

from rappor.ground.errors import FileError
from rappor_client.folder.failures import DamagedError, is_busy, is_damage, is_refusal, name_failure
from rappor_client.folder.forking import hold_over_forks

_NAME: Final = "telemetry.sqlite3"
_DAMAGED: Final = "damaged.sqlite3"
_SUFFIXES: Final = ("-wal", "-shm", "")
"""The log and its index go first: SQLite would replay a log that outlives its database."""
_VERSION: Final = 3
BUSY_SECONDS: Final = 2.0
"""How long a lock is waited for, unless a caller has less patience."""
_MAGIC: Final = b"SQLite format 3\0"
_FORMATS: Final = slice(18, 20)
"""The bytes of the header by which a file may say that this SQLite must not write or read it."""
_RETRY_SECONDS: Final = 0.01
_WAY_SECONDS: Final = 0.005
_PRIVATE: Final = 0o600
File = tuple[int, int]
"""What tells one file from any other: its device and its number there."""
_IN_USE: Final[dict[int, File]] = {}
"""The files that stores of this process have open, or are about to open, by store."""
_OF_A_PARENT: Final[list[sqlite3.Connection]] = []
"""Connections that a fork has copied; to close them would be to write."""
_LOOKING: Final = threading.RLock()
"""Held for a look at a file beside SQLite, and before one is opened."""

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
    metric TEXT NOT NULL, epoch TEXT NOT NULL, response TEXT NOT NULL,
    first_day TEXT NOT NULL, last_day TEXT NOT NULL,
    params TEXT NOT NULL, cohort INTEGER NOT NULL, permanent BLOB NOT NULL,
    admitted BLOB NOT NULL, last BLOB NOT NULL, closed INTEGER NOT NULL,
    patterns INTEGER NOT NULL, interval TEXT NOT NULL, price REAL NOT NULL,
    most INTEGER,
    PRIMARY KEY (metric, epoch, response)
) WITHOUT ROWID;
CREATE TABLE reserved (
    year INTEGER NOT NULL, metric TEXT NOT NULL, scopes TEXT NOT NULL, nats REAL NOT NULL,
    PRIMARY KEY (year, metric, scopes)
) WITHOUT ROWID;
CREATE TABLE held (
    metric TEXT NOT NULL, epoch TEXT NOT NULL,
    ends REAL NOT NULL, seconds REAL NOT NULL, events INTEGER NOT NULL,
    terms TEXT, params TEXT, cohort INTEGER, bits BLOB, permanent BLOB, pattern BLOB,
    closed INTEGER,
    PRIMARY KEY (metric, epoch)
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


class BusyError(Exception):
    """Another process holds the database's lock, or this very thread does, further down its stack.

    A signal's handler, or whatever else runs in the middle of a transaction, meets the latter.
    """


class Store:
    """The database of one folder; safe to use from any thread."""

    def __init__(self, folder: Path) -> None:
        """Name the folder; its file is opened when it is first needed."""
        self._path = folder / _NAME
        self._lock = threading.RLock()
        self._open: sqlite3.Connection | None = None
        self._file: File | None = None
        self._is_locked_out = False
        self._inside: int | None = None
        self._outer: int | None = None
        self.hurried: set[int] = set()  # the threads for which senders wait a moment
        self._synchronous = ""
        self.n_opened = 0
        hold_over_forks(self)

    def exists(self) -> bool:
        """Return whether there is a file."""
        return self._path.exists()

    def begin(self) -> None:
        """Create the database if there is none; nothing else does, so what is erased stays so."""
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _PRIVATE))

    def give_way(self) -> None:
        """Wait for a moment if a thread is in a hurry: it needs the lock and the interpreter."""
        if self.hurried:
            time.sleep(_WAY_SECONDS)  # once: each further look would interrupt that thread

    @contextlib.contextmanager
    def transaction(
        self, *, durable: bool = False, patience: float = BUSY_SECONDS
    ) -> Iterator[sqlite3.Connection]:
        """Run the block as one write transaction: all of it is kept, or nothing.

        Raises sqlite3.Error and OSError where the disk does not allow it, DamagedError where the
        file does not hold what it should, and BusyError where somebody else holds a lock for
        longer than `patience`, in seconds.
        """
        with self._held(patience), self._telling_damage():
            connection = self._begun(patience, durable=durable)
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                _roll_back(connection)
                raise

    @contextlib.contextmanager
    def reading(self, *, patience: float = BUSY_SECONDS) -> Iterator[sqlite3.Connection]:
        """Run the block on one unchanging view of the database; it raises as `transaction`."""
        with self._held(patience), self._telling_damage():
            connection = self._connection(patience)
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                _roll_back(connection)

    def stamp(self, db: sqlite3.Connection) -> tuple[int, int, int]:
        """Return what changes whenever anybody changes the database; a look is cheap."""
        (by_others,) = db.execute("PRAGMA data_version").fetchone()
        return self.n_opened, by_others, db.total_changes

    def copy_to(self, other: sqlite3.Connection) -> None:
        """Copy the whole database into another one, in place of what that holds."""
        with self.reading() as db:
            db.backup(other)

    @property
    def file(self) -> File | None:
        """What tells the file that was opened last from any other; None before."""
        return self._file

    def set_apart(self, file: File) -> None:
        """Give a damaged database another name, in place of an earlier one's.

        Nothing happens if another process has done so: its name is that of another file.
        """
        with self._lock:
            self.close()
            if file != _file_at(self._path):
                return
            for suffix in _SUFFIXES:
                with contextlib.suppress(FileNotFoundError):
                    _with_suffix(self._path, suffix).replace(
                        _with_suffix(self._path.with_name(_DAMAGED), suffix)
                    )

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
        self._outer, self._inside = self._inside, threading.get_ident()  # handlers of signals
        with contextlib.suppress(sqlite3.Error):
            self.close()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._inside = self._outer
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Take a new lock: the threads that waited for the old one are not here."""
        self._lock = threading.RLock()
        self._is_locked_out = False
        self._inside = None
        self.hurried = set()
        if self._open is not None:  # a signal kept it from being closed; it is the parent's
            _OF_A_PARENT.append(self._open)
            self._open = None

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        with self._lock:
            opened, self._open = self._open, None
            if opened is not None:
                opened.close()
            _IN_USE.pop(id(self), None)

    def _connection(self, patience: float = BUSY_SECONDS) -> sqlite3.Connection:
        """Return the connection to the file that has the database's name now."""
        now_there = _file_at(self._path)
        if self._open is None or self._file != now_there:
            self.close()
            if now_there is None:
                raise FileNotFoundError(errno.ENOENT, "there is no database")
            self._file = now_there
            self._synchronous = ""
            with _LOOKING:
                _IN_USE[id(self)] = now_there
            self._open = _connect(self._path, patience)
            self.n_opened += 1
        if self._open.in_transaction:  # a signal came before it could be ended
            self._open.execute("ROLLBACK")
        return self._open

    @contextlib.contextmanager
    def _held(self, patience: float) -> Iterator[None]:
        """Hold the lock between threads; BusyError if its owner is locked out, or this thread.

        A signal's handler may raise right after the lock was taken: so only its owner knows.
        """
        me = threading.get_ident()
        if self._inside == me:
            raise BusyError
        deadline = time.monotonic() + patience + BUSY_SECONDS
        try:
            while not self._lock.acquire(timeout=patience):
                if self._is_locked_out or time.monotonic() > deadline:
                    raise BusyError
            self._inside = me
            yield
        finally:
            if self._inside == me:
                self._inside = None
            try:  # noqa: SIM105 - a call before it would be another moment for a signal
                self._lock.release()
            except RuntimeError:  # it was not taken
                pass

    def _begun(self, patience: float, *, durable: bool) -> sqlite3.Connection:
        """Begin a write transaction; BusyError if another process keeps its lock for too long."""
        connection = self._connection(patience)
        synchronous = "FULL" if durable else "NORMAL"
        if self._synchronous != synchronous:
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            self._synchronous = synchronous
        if not _write(connection, 0.0):
            self._is_locked_out = True
            try:
                if not _write(connection, patience):
                    raise BusyError
            finally:
                self._is_locked_out = False
        return connection

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
            if is_damage(error) or (is_refusal(error) and not _has_sound_header(self._path)):
                raise DamagedError(name_failure(error)) from None
            raise


@contextlib.contextmanager
def failing_as_file_error(folder: Path) -> Iterator[None]:
    """Raise FileError for what the disk does not allow when a caller only looks."""
    try:
        yield
    except (sqlite3.Error, OSError, DamagedError, BusyError) as error:
        raise FileError(folder, name_failure(error)) from None


def database_names() -> list[str]:
    """Return the names of all files that a store leaves in its folder."""
    return [name + suffix for name in (_NAME, _DAMAGED) for suffix in (*_SUFFIXES, "-journal")]


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


def _with_suffix(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _has_sound_header(path: Path) -> bool:
    """Return whether a file begins as a database does that may be written; a new one is empty.

    To close a file that is read beside SQLite ends all locks that this process has on it. So it is
    not looked at, and taken for sound, while another store of this process uses it.
    """
    try:
        with _LOOKING:
            if _file_at(path) in list(_IN_USE.values()):
                return True
            with path.open("rb") as file:
                head = file.read(_FORMATS.stop)
    except OSError:
        return True  # the disk's failure, not the file's
    return not head or (head.startswith(_MAGIC) and set(head[_FORMATS]) <= {1, 2})


def _write(connection: sqlite3.Connection, patience: float) -> bool:
    """Begin to write; false if another process keeps its lock for longer than the patience."""
    connection.execute(f"PRAGMA busy_timeout = {1000 * patience:.0f}")
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if is_busy(error):
            return False
        raise
    finally:
        connection.execute(f"PRAGMA busy_timeout = {1000 * BUSY_SECONDS:.0f}")
    return True


def _connect(path: Path, patience: float) -> sqlite3.Connection:
    """Open the file; wait where SQLite does not: while another process creates the log."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return _connect_once(path, patience)
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_SECONDS)


def _connect_once(path: Path, patience: float) -> sqlite3.Connection:
    """Open the file and bring it to this version."""
    connection = sqlite3.connect(
        path, timeout=patience, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA secure_delete = ON")
        if not _version(connection):
            _begin(connection)
        if (version := _version(connection)) != _VERSION:
            raise sqlite3.DatabaseError(f"the store must be of version {_VERSION}, got {version}")
    except BaseException:
        connection.close()
        raise
    return connection


def _begin(connection: sqlite3.Connection) -> None:
    """Create the tables of an empty file, unless another process is faster."""
    connection.execute("BEGIN IMMEDIATE")
    if not _version(connection):
        _create_tables(connection)
        connection.execute(f"PRAGMA user_version = {_VERSION}")
    connection.execute("COMMIT")


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def in_memory() -> sqlite3.Connection:
    """Return an empty database of the same tables that is on no disk."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    _create_tables(connection)
    return connection


def _create_tables(connection: sqlite3.Connection) -> None:
    for statement in _SCHEMA.split(";"):
        connection.execute(statement)
