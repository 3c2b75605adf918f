"""The database: connections, transactions, the version of the schema, and migrations.

Two databases are supported. SQLite is one file on the collector's machine, and has one writer at a
time. PostgreSQL serves collectors on many hosts. The functions of this module hide the difference:
a writer uses `write_transaction`, and a task that must not run twice at a time uses
`lock_maintenance`. Errors of either driver become a StoreError whose text contains nothing from the
database.
"""

from __future__ import annotations

import contextlib
import datetime
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    Connection,
    Date,
    Dialect,
    Engine,
    create_engine,
    event,
    func,
    inspect,
    select,
    text,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from rappor.base.errors import MissingExtraError
from rappor_server.base.errors import ConfigError, SchemaError, StoreError

_MIGRATIONS: Final = resources.files("rappor_server.storage") / "migrations"
"""Folder of Alembic's scripts, each of which changes the schema by one step."""
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
"""Ends a PostgreSQL transaction that holds the maintenance lock and does nothing. A process may
hang, or its machine may lose the network, and every merge would wait for the lock."""
_ALLOW_IDLE: Final = text("SET LOCAL idle_in_transaction_session_timeout = 0")
"""Removes the limit of `_LIMIT_IDLE`. A migration may compute for longer between two statements."""
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
_SETTINGS: Final = (
    f"SET lock_timeout = '{_WAIT_SECONDS:g}s'",
    "SET default_transaction_isolation = 'read committed'",  # for autocommitted statements too
    "SELECT set_config('synchronous_commit', 'on', false)"
    " WHERE current_setting('synchronous_commit') = 'off'",
)
_RETRY_SECONDS: Final = 0.001
"""Pause between two attempts of a waiting SQLite writer to get the lock. SQLite's own busy handler
soon pauses for 0.1 seconds, so a task of many short transactions would take the lock again and
again before the waiting writer notices that the lock was free."""
PAUSE_SECONDS: Final = 0.03
"""Pause between two transactions of background work. The pause leaves most of the time to uploads;
a larger value makes background work slower."""
TODAY: Final = "(clock_timestamp() AT TIME ZONE 'UTC')::date"
"""SQL for the day (UTC) of PostgreSQL's clock. `now()` would be wrong: it is the start of the
transaction, which may have waited since the day before."""
_INSPECT_FILE: Final = "SELECT count(*), max(name IN ('day_table', 'inbox')) FROM sqlite_schema"
"""Query: number of tables of an SQLite file, and whether it has a table of a collector or of an
inbox."""
_NOT_OURS: Final = "the database must be a collector's or empty, got another file"
"""Message for a file that has no table of a collector."""
_IS_WRITE: Final = "rappor_is_write"
"""SQLAlchemy's execution option, set by `write_transaction`, by which `_begin_sqlite` recognises a
transaction that will write."""
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
        The text is another URL or none. The error does not contain the password.
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
    """Return an engine for a database. The engine connects when it is first used."""
    url = parse_url(text)
    if url.drivername == "sqlite":
        engine = create_engine(url, max_overflow=_MAX_OVERFLOW_CONNECTIONS)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        _replace_stale_connections(engine)
        engine.dialect.colspecs = {**engine.dialect.colspecs, Date: _SqliteDay}
        return engine
    try:
        engine = create_engine(
            url,
            max_overflow=_MAX_OVERFLOW_CONNECTIONS,
            pool_pre_ping=True,
            isolation_level="READ COMMITTED",  # after a wait for a lock, read what its holder wrote
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


def open_checked(text: str) -> Engine:
    """Return an engine for a database; raise SchemaError if its schema is not usable."""
    engine = open_engine(text)
    try:
        check_schema(engine)
    except StoreError:
        engine.dispose()
        raise
    return engine


def ping(engine: Engine) -> None:
    """Raise StoreError unless a database responds to a query."""
    with translate_errors(), engine.connect() as db:
        db.execute(select(1))


@contextlib.contextmanager
def write_transaction(engine: Engine) -> Iterator[Connection]:
    """Open a transaction that writes, and commit it at the end of the block.

    On SQLite, the transaction takes the write lock when it begins. A transaction that reads first
    and writes later fails if another transaction has written in between.

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
        if _FILE_ID in db.info and db.info[_FILE_ID] != _read_file_id(engine):
            raise StoreError("the database file has been deleted or replaced")


def lock_maintenance(connection: Connection) -> None:
    """Wait for the maintenance lock, and hold it until the end of the transaction.

    One transaction at a time may change the schema, merge batches, close blocks, drop tables, or
    count rows before it inserts one. SQLite has one writer at a time, so a write transaction is
    lock enough.
    """
    try_maintenance_lock(connection, wait=True)


def try_maintenance_lock(connection: Connection, *, wait: bool = False) -> bool:
    """Take the maintenance lock; return False if it is taken and `wait` is False."""
    if connection.dialect.name != "postgresql":
        return True
    connection.execute(_LIMIT_IDLE)
    lock = func.pg_advisory_xact_lock if wait else func.pg_try_advisory_xact_lock
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

    The message names only the class of the error. The driver's text may contain uploaded data, and
    SQLite's text may be no text at all.
    """
    try:
        yield
    except (DBAPIError, sqlite3.Error, UnicodeDecodeError) as error:
        kind = type(getattr(error, "orig", error)).__name__
        error_class = LockedError if kind == "LockNotAvailable" else StoreError
        raise error_class(f"the database cannot answer: {kind}") from None
    except PoolTimeoutError:
        raise StoreError("the database cannot answer: all connections are in use") from None


def check_schema(engine: Engine) -> None:
    """Raise SchemaError unless the database has the schema of this program, or the next one.

    A migration adds only tables and columns that the previous version does not use, and removes
    only what the previous version did not use. Two successive versions can therefore run at the
    same time.
    """
    with translate_errors(), engine.connect() as connection:
        current, wanted = _read_revision(connection), _read_revisions(_MIGRATIONS)[0]
    _check_is_ours(current)
    if current is not None and int(wanted) <= int(current) <= int(wanted) + 1:
        return
    is_older = current is None or current < wanted
    remedy = "run rappor-server migrate" if is_older else "it belongs to a newer version"
    raise SchemaError(f"the database must have schema {wanted}, got {current or 'none'}: {remedy}")


def _check_is_ours(revision: str | None) -> None:
    """Raise SchemaError for the schema of another program that uses Alembic."""
    if revision is not None and not re.fullmatch(r"[0-9]{4}", revision):
        raise SchemaError(
            f"the database must be a collector's, got schema {revision} of another program"
        )


def is_empty(engine: Engine) -> bool:
    """Return whether a database has no tables yet."""
    with translate_errors():
        return not inspect(engine).get_table_names()


def migrate(address: str, *, steps: Traversable = _MIGRATIONS) -> Path | None:
    """Migrate a database to the schema of this program.

    Parameters
    ----------
    address : URL of the database
    steps : folder of Alembic's scripts

    Returns
    -------
    Path of the copy that was made of an SQLite file before the migration, or None.

    Raises
    ------
    SchemaError
        The database belongs to a newer version or to another program.
    StoreError
        The database does not respond.
    """
    with open_database(address) as engine:
        is_sqlite = engine.dialect.name == "sqlite"
        path, backup = Path(str(engine.url.database)), None
        with write_transaction(engine) as connection:
            lock_maintenance(connection)
            if not is_sqlite:
                connection.execute(_ALLOW_IDLE)
            current, (wanted, *older) = _read_revision(connection), _read_revisions(steps)
            _check_is_ours(current)
            if current is None:
                create_tables(connection)
            elif current in older:
                backup = _back_up(path, current) if is_sqlite else None
                command.upgrade(_build_config(steps, connection), wanted)
            else:
                check_schema(engine)
        if is_sqlite:
            erase_traces(path)
        return backup


def create_tables(connection: Connection) -> None:
    """Give an empty database the schema of this program."""
    command.upgrade(_build_config(_MIGRATIONS, connection), "head")


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
        contextlib.closing(sqlite3.connect(source)) as old,
        contextlib.closing(sqlite3.connect(target)) as new,
    ):
        old.backup(new)


def _prepare_sqlite(connection: Any, _: object) -> None:
    """Set the pragmas of a new connection, and leave transactions to SQLAlchemy.

    Raises SchemaError for the file of another program, before anything is changed in the file.
    """
    connection.isolation_level = None
    try:
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}").close()
        n_tables, is_ours = connection.execute(_INSPECT_FILE).fetchone()
    except sqlite3.DatabaseError as error:
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
    write to the old file, which no longer has a name. Every checkout of a connection therefore
    compares the identity of the file. A new file is readable and writable by its owner only.
    """

    def create_file(*_: object) -> None:
        with contextlib.suppress(OSError):  # SQLite raises a better error when it opens the file
            Path(str(engine.url.database)).touch(mode=0o600)

    def record_file(_: object, record: Any) -> None:
        record.info[_FILE_ID] = _read_file_id(engine)

    def check_file(_: object, record: Any, __: object) -> None:
        if (file := _read_file_id(engine)) is None:
            raise StoreError("the database file has been deleted")
        if record.info[_FILE_ID] != file:
            raise DisconnectionError

    event.listen(engine, "do_connect", create_file)
    event.listen(engine, "connect", record_file)
    event.listen(engine, "checkout", check_file)


def _read_file_id(engine: Engine) -> tuple[int, int] | None:
    """Return device and inode of an SQLite file, or None if there is no file."""
    try:
        status = Path(str(engine.url.database)).stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _begin_sqlite(connection: Connection) -> None:
    """Begin a transaction: one of `write_transaction` with the write lock, any other without."""
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
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


def _prepare_postgresql(connection: Any, _: object) -> None:
    """Limit the wait for locks, and make commits durable, whatever the server's defaults are."""
    for statement in _SETTINGS:
        connection.execute(statement)
    connection.commit()


def _build_config(steps: Traversable, connection: Connection | None = None) -> Config:
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(steps).replace("%", "%%"))
    return config


def _read_revisions(steps: Traversable) -> list[str]:
    """Return the versions of the schema, the newest first."""
    scripts = ScriptDirectory.from_config(_build_config(steps))
    return [step.revision for step in scripts.walk_revisions()]


def _read_revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _back_up(path: Path, revision: str) -> Path:
    """Copy an SQLite file before a migration. Only the owner can read the copy."""
    backup = path.with_name(f"{path.name}.schema-{revision}.{utc_today()}.bak")
    backup.touch(mode=0o600)
    copy_sqlite(path, backup)
    return backup
