"""The database: connections, transactions and locks.

Two databases are supported. SQLite is one file on the collector's machine, and has one writer at a
time. PostgreSQL serves collectors on many hosts. The functions of this module hide the difference:

    open_engine          SQLAlchemy's engine: a pool of connections, each prepared for its database
    write_transaction    a transaction that writes. On SQLite it takes the file's write lock at its
                         beginning
    lock_maintenance     called inside a write transaction whose work must not run twice at a time:
                         merging, closing blocks, deleting, migrating. On PostgreSQL it takes an
                         advisory lock until the transaction ends. On SQLite the write lock is
                         enough
    read_snapshot        a transaction that reads, whose statements all see the same state of the
                         database. A reader of several tables uses it
    translate_errors     turns errors of either driver into a StoreError whose text contains nothing
                         from the database. `write_transaction` and `read_snapshot` include it;
                         readers of one table use it

The tables are described in `schema`, and created and migrated by `schema_versions`.

Example of a reader and of a writer:

    with translate_errors(), engine.connect() as db:
        rows = db.execute(select(...)).all()

    with write_transaction(engine) as db:
        lock_maintenance(db)
        db.execute(delete(...))

Properties of SQLite that this module deals with: a transaction that reads first and writes later
may fail (`_begin_sqlite`), a waiting writer may starve (`_RETRY_SECONDS`), deleted rows stay in the
write-ahead log (`erase_traces`), and a file may be replaced under an open connection
(`_replace_stale_connections`).
"""

from __future__ import annotations

import contextlib
import datetime
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    Connection,
    Date,
    Dialect,
    Engine,
    create_engine,
    event,
    func,
    select,
    text,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from rappor.base.errors import MissingExtraError
from rappor_server.base.errors import ConfigError, DatabaseFileError, SchemaError, StoreError

_WAIT_SECONDS: Final = 5.0
"""Longest time that a transaction waits for a locked database, table or row, in seconds. A larger
value lets a request wait longer before it fails."""
_TCP_TIMEOUT_SECONDS: Final = 10.0
"""Time without a reply after which a connection to PostgreSQL counts as broken, in seconds. With a
larger value, a collector notices later that the network or the host of PostgreSQL has failed."""
_MAX_OVERFLOW_CONNECTIONS: Final = 40
"""Largest number of connections in addition to the pool. The number exceeds the number of threads
that read at the same time, so a writer never waits until a reader returns its connection. A larger
value changes nothing, because connections are opened only when threads need them."""
_LIMIT_IDLE: Final = text("SET LOCAL idle_in_transaction_session_timeout = '10s'")
"""Statement that limits the pauses of a PostgreSQL transaction. A transaction that has the
maintenance lock and sends no statement for 10 seconds is ended. Otherwise, if a process hangs or
its machine loses the network, every merge would wait for the lock. A longer time lets them wait
longer."""
_MAINTENANCE_LOCK: Final = 0x524150504F52
"""Number of PostgreSQL's advisory lock that `lock_maintenance` takes."""
_PRAGMAS: Final = (
    # Size of a page in bytes; SQLite uses it for new files only. A row of the table `block` with 20
    # devices takes 600 bytes at k = 128 bits and 2,600 at k = 1,024, because SQLite stores its
    # primary key twice. Large rows leave much of a smaller page empty. Deduplication keys are
    # random, so a commit writes one whole page for each key, and a larger page writes more bytes.
    "page_size = 4096",
    "synchronous = FULL",  # a commit is on the disk
    "secure_delete = ON",  # deleted rows are overwritten
    # A negative number is a size in KB, here 8 MB. A larger cache is slower, because SQLite walks
    # through all pages of the cache in a commit that has split a page.
    "cache_size = -8192",
    # Number of pages in the write-ahead log after which SQLite copies the log into the file (a
    # checkpoint). A checkpoint delays uploads by a tenth of a second. With 24,000 pages between
    # two checkpoints, a checkpoint delays fewer than 1 in 100 uploads.
    "wal_autocheckpoint = 24000",
)
"""Settings that `_prepare_sqlite` applies to each new connection."""
_SETTINGS: Final = (
    f"SET lock_timeout = '{_WAIT_SECONDS:g}s'",
    "SET default_transaction_isolation = 'read committed'",  # for autocommitted statements too
    # With `off`, a commit returns before it is on the disk. All other values wait for the disk of
    # the server, and stay as they are.
    "SELECT set_config('synchronous_commit', 'on', false)"
    " WHERE current_setting('synchronous_commit') = 'off'",
)
"""Statements that `_prepare_postgresql` executes on each new connection."""
_RETRY_SECONDS: Final = 0.001
"""Pause between two attempts of a waiting SQLite writer to get the lock. SQLite's own busy handler
soon pauses for 0.1 seconds, so a task of many short transactions would take the lock again and
again before the waiting writer notices that the lock was free."""
PAUSE_SECONDS: Final = 0.03
"""Pause between two transactions of background work, in seconds. Uploads are written during the
pause. A larger value leaves more time to uploads, and makes background work slower."""
TODAY: Final = "(clock_timestamp() AT TIME ZONE 'UTC')::date"
"""SQL for the day (UTC) of PostgreSQL's clock. `now()` would be wrong: it is the start of the
transaction, which may have waited since the day before."""
_INSPECT_FILE: Final = "SELECT count(*), max(name IN ('day_table', 'inbox')) FROM sqlite_schema"
"""Query: number of tables of an SQLite file, and whether it has a table of a collector or of an
inbox."""
_NOT_OURS: Final = "the database must be a collector's or empty, got another file"
"""Message for a file that has tables, but no table of a collector."""
_IS_WRITE: Final = "rappor_is_write"
"""Name of SQLAlchemy's execution option that `write_transaction` sets to True. `_begin_sqlite`
recognises by it a transaction that will write."""
_FILE_ID: Final = "rappor_file_id"
"""Key of the file's identity in `Connection.info`. The identity shows whether the file was replaced
by another file of the same name."""


class LockedError(StoreError):
    """Another transaction did not release a lock in time."""


class _SqliteDay(sqlite.DATE):
    """A day, stored as text in SQLite. Reading a damaged day raises StoreError, not ValueError."""

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        parse: Any = super().result_processor(dialect, coltype)

        def process(value: Any) -> Any:
            try:
                return parse(value)
            except (TypeError, ValueError):
                raise StoreError("the database cannot answer: a day in it is damaged") from None

        return process


def sqlite_url(path: Path) -> str:
    """Return the URL of an SQLite file."""
    return URL.create("sqlite", database=str(path)).render_as_string()


def parse_url(text: str) -> URL:
    """Return the URL of a database: sqlite:///FILE or postgresql://...

    Raises
    ------
    ConfigError
        The text is not a URL of SQLite or PostgreSQL. The error does not contain the password.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # e.g. an unescaped password read as the port
        raise ConfigError("database must be sqlite:///FILE or postgresql://...") from None
    if url.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return url.set(drivername="postgresql+psycopg")
    is_file = url.database and url.database != ":memory:"
    if is_file and url == URL.create("sqlite", database=url.database):  # no host, no query
        return url
    raise ConfigError(f"database must be sqlite:///FILE or postgresql://..., got {url.drivername}:")


def open_engine(text: str) -> Engine:
    """Return an engine for a database. The engine connects when it is first used.

    Raises
    ------
    ConfigError
        The text is not a URL of SQLite or PostgreSQL.
    MissingExtraError
        The driver of PostgreSQL is not installed.
    """
    url = parse_url(text)
    if url.drivername == "sqlite":
        engine = create_engine(url, max_overflow=_MAX_OVERFLOW_CONNECTIONS)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        _replace_stale_connections(engine)
        # SQLAlchemy then uses `_SqliteDay` for every column of the type `Date`.
        engine.dialect.colspecs = {**engine.dialect.colspecs, Date: _SqliteDay}
        return engine
    try:
        engine = create_engine(
            url,
            max_overflow=_MAX_OVERFLOW_CONNECTIONS,
            pool_pre_ping=True,
            # After a wait for a lock, a transaction must read the rows that the previous holder of
            # the lock has committed.
            isolation_level="READ COMMITTED",
            connect_args={
                "connect_timeout": 5,
                "tcp_user_timeout": int(_TCP_TIMEOUT_SECONDS * 1000),
                "client_encoding": "UTF8",
            },
        )
    except ModuleNotFoundError:
        raise MissingExtraError("postgres") from None
    event.listen(engine, "connect", _prepare_postgresql)
    return engine


@contextlib.contextmanager
def open_database(text: str) -> Iterator[Engine]:
    """Open an engine for the duration of a block, and close all its connections at the end."""
    engine = open_engine(text)
    try:
        yield engine
    finally:
        engine.dispose()


def ping(engine: Engine) -> None:
    """Raise StoreError unless a database responds to a query."""
    with translate_errors(), engine.connect() as db:
        db.execute(select(1))


@contextlib.contextmanager
def write_transaction(engine: Engine) -> Iterator[Connection]:
    """Open a transaction that writes, commit it at the end of the block, roll back after an error.

    On SQLite, the transaction takes the write lock when it begins. Otherwise a transaction that
    reads first and writes later would fail if another transaction has written in between.

    Raises
    ------
    StoreError
        The database failed, or its file was deleted or replaced while the transaction was open.
        SQLite would commit into the deleted file, and acknowledged uploads would be lost.
    """
    with translate_errors(), engine.connect() as db:
        db.execution_options(**{_IS_WRITE: True})
        with db.begin():
            yield db
        # Only connections to SQLite have the identity of a file.
        if _FILE_ID in db.info and db.info[_FILE_ID] != _read_file_id(engine):
            raise StoreError("the database file has been deleted or replaced")


@contextlib.contextmanager
def read_snapshot(engine: Engine) -> Iterator[Connection]:
    """Open a transaction that reads. All of its statements see the database as of one moment.

    SQLite's transactions have this property by themselves. On PostgreSQL, a statement would also
    see what others have committed since the statement before. Bad case: a reader lists the release
    windows, `forget` deletes the oldest window with its blocks, and the next statement of the
    reader finds no block of this window.

    Raises
    ------
    StoreError
        The database failed.
    """
    with translate_errors(), engine.connect() as db:
        if db.dialect.name == "postgresql":
            # The connection gets the level of the engine back when it returns to the pool.
            db.execution_options(isolation_level="REPEATABLE READ")
        yield db


def lock_maintenance(connection: Connection) -> None:
    """Wait for the maintenance lock, and keep it until the end of the transaction.

    The lock is for transactions that change the schema, merge batches, close blocks, delete sums,
    or rename or drop tables. Only one of them at a time has the lock. On SQLite nothing is done,
    because a write transaction excludes all other writers.
    """
    try_maintenance_lock(connection, wait=True)


def try_maintenance_lock(connection: Connection, *, wait: bool = False) -> bool:
    """Take the maintenance lock; return whether this transaction has the lock.

    With `wait`, wait for another transaction that has the lock. Otherwise return False at once.
    """
    if connection.dialect.name != "postgresql":
        return True
    connection.execute(_LIMIT_IDLE)
    lock = func.pg_advisory_xact_lock if wait else func.pg_try_advisory_xact_lock
    # The function that waits returns nothing, and the function that tries returns True or False.
    return connection.scalar(select(lock(_MAINTENANCE_LOCK))) is not False


def utc_today() -> datetime.date:
    """Return the day (UTC) by the clock of this machine."""
    return datetime.datetime.now(datetime.UTC).date()


def read_today(connection: Connection) -> datetime.date:
    """Return the day (UTC) of the database's clock. SQLite uses the clock of this machine."""
    if connection.dialect.name == "postgresql":
        now = text(f"SELECT {TODAY}").columns(day=Date)
        today: datetime.date = connection.execute(now).scalar_one()
        return today
    return utc_today()


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Raise StoreError for errors of the database driver.

    The message names only the class of the error, and on SQLite its code, such as SQLITE_FULL for a
    full disk. The driver's text may contain uploaded data, and SQLite's text may be no text at all.
    """
    try:
        yield
    except (DBAPIError, sqlite3.Error, UnicodeDecodeError) as error:
        original = getattr(error, "orig", error)
        kind = type(original).__name__
        error_class = LockedError if kind == "LockNotAvailable" else StoreError
        # Errors that Python's module raises by itself have no code.
        code = getattr(original, "sqlite_errorname", None)
        described = f"{kind} ({code})" if code else kind
        raise error_class(f"the database cannot answer: {described}") from None
    except PoolTimeoutError:
        raise StoreError("the database cannot answer: all connections are in use") from None


def erase_traces(path: Path, *, seconds: float = _WAIT_SECONDS) -> bool:
    """Empty the write-ahead log of an SQLite file. Return whether the log is empty.

    SQLite overwrites deleted rows in the file itself, but the log still contains deleted rows and
    earlier values of counters.

    Parameters
    ----------
    path : the SQLite file
    seconds : longest time to wait for readers and writers. Nobody can write during the wait. A
        reader or writer that stays active longer keeps the log as it is.
    """
    # Without mode=rw, SQLite would create a missing file.
    url = f"{path.resolve().as_uri()}?mode=rw"
    with (
        translate_errors(),
        contextlib.closing(sqlite3.connect(url, timeout=seconds, uri=True)) as db,
    ):
        (is_busy, _, _) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not is_busy


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy a consistent state of an SQLite file by the online backup, while others may write."""
    with (
        translate_errors(),
        contextlib.closing(sqlite3.connect(source)) as reader,
        contextlib.closing(sqlite3.connect(target)) as writer,
    ):
        reader.backup(writer)


def _prepare_sqlite(connection: Any, _: object) -> None:
    """Set the pragmas of a new connection, and leave transactions to SQLAlchemy.

    Raises SchemaError for the file of another program, before anything is changed in the file.
    """
    # With None, Python's driver begins no transaction by itself. `_begin_sqlite` begins them.
    connection.isolation_level = None
    try:
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}").close()
        n_tables, is_ours = connection.execute(_INSPECT_FILE).fetchone()
    except sqlite3.DatabaseError as error:
        # Case: a file that is not a database, such as a text. It is treated like a database of
        # another program.
        if error.sqlite_errorcode != sqlite3.SQLITE_NOTADB:
            raise
        n_tables, is_ours = 1, False
    if n_tables and not is_ours:
        connection.close()
        raise SchemaError(_NOT_OURS)
    _execute_when_free(connection, "PRAGMA journal_mode = WAL")  # readers do not block the writer


def _replace_stale_connections(engine: Engine) -> None:
    """Reconnect when another SQLite file has taken the name of the database.

    An operator may restore a backup under a running collector. Pooled connections would continue to
    write to the old file, which no longer has a name. So each connection stores the identity of its
    file, and whenever the pool gives out a connection, the identity is compared with the file that
    has the name now. DisconnectionError makes the pool open a new connection.
    """

    def create_file(*_: object) -> None:
        # The file is created here, so that only its owner can read and write it. SQLite would
        # create it with the permissions of the process.
        path = Path(str(engine.url.database))
        try:
            path.touch(mode=0o600)
        except OSError as error:
            # Cases: the folder does not exist, or another user owns the file. The message of SQLite
            # would not name the path. SQLite decides about a file that can be read.
            if not os.access(path, os.R_OK):
                raise DatabaseFileError(
                    f"the database {path} cannot be opened: {error.strerror}"
                ) from None

    def record_file(_: object, record: Any) -> None:
        record.info[_FILE_ID] = _read_file_id(engine)

    def check_file(_: object, record: Any, __: object) -> None:
        if (file_id := _read_file_id(engine)) is None:
            raise StoreError("the database file has been deleted")
        if record.info[_FILE_ID] != file_id:
            raise DisconnectionError

    event.listen(engine, "do_connect", create_file)
    event.listen(engine, "connect", record_file)
    event.listen(engine, "checkout", check_file)


def _read_file_id(engine: Engine) -> tuple[int, int] | None:
    """Return device and inode of an SQLite file, or None if there is no file.

    Raises StoreError if the folder of the file cannot be read.
    """
    try:
        status = Path(str(engine.url.database)).stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        # Case: a network disk fails, or somebody has changed the permissions of the folder. Callers
        # expect StoreError. The probe of the database would end for good after any other error.
        raise StoreError(f"the database cannot answer: {type(error).__name__}") from None
    return status.st_dev, status.st_ino


def _begin_sqlite(connection: Connection) -> None:
    """Begin a transaction. SQLAlchemy calls the function.

    A transaction of `write_transaction` takes the write lock now, so it can read first and write
    later. Any other transaction takes no write lock.
    """
    db: Any = connection.connection.dbapi_connection
    if connection.get_execution_options().get(_IS_WRITE, False):
        begin_immediate(db)
    else:
        db.execute(f"PRAGMA busy_timeout = {1000 * _WAIT_SECONDS:.0f}").close()
        db.execute("BEGIN").close()


def begin_immediate(db: Any) -> None:
    """Begin a write transaction of SQLite as soon as no other transaction writes."""
    db.execute("PRAGMA busy_timeout = 0").close()
    _execute_when_free(db, "BEGIN IMMEDIATE")


def _execute_when_free(db: Any, statement: str) -> None:
    """Execute a statement of SQLite as soon as nobody else writes or recovers the file."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            db.execute(statement).close()
        except sqlite3.OperationalError as error:
            # The lowest byte of an extended error code is the primary code.
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


def _prepare_postgresql(connection: Any, _: object) -> None:
    """Limit the wait for locks, and make commits durable, whatever the server's defaults are."""
    for statement in _SETTINGS:
        connection.execute(statement)
    connection.commit()
