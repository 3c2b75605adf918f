"""The database itself: opening it, checking the version of its schema, and migrating it."""

from __future__ import annotations

import contextlib
import datetime
import re
import sqlite3
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, func, inspect, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from rappor.ground.errors import MissingExtraError
from rappor_server.errors import ConfigError, SchemaError, StoreError

_WAIT_SECONDS: Final = 5.0
"""How long a transaction waits for a locked database, table or row."""
_GONE_SECONDS: Final = 10.0
"""After how long a connection to a silent PostgreSQL counts as broken."""
_MORE_CONNECTIONS: Final = 40
"""More than the threads that may read at once, so that the writer never waits for a reader."""
_PREPARED_STATEMENTS: Final = 512
"""Of a connection to SQLite: those of a group commit, for any number of rows."""
_HOLD: Final = text("SET LOCAL idle_in_transaction_session_timeout = '10s'")
"""Whoever is alone on PostgreSQL and hangs, perhaps with its machine, is alone no longer."""
_HOLD_LONG: Final = text("SET LOCAL idle_in_transaction_session_timeout = 0")
_MAINTENANCE: Final = 0x524150504F52
"""The advisory lock on PostgreSQL of whoever is alone."""
_PRAGMAS: Final = (
    "page_size = 2048",  # in a new file; ids are random, so a commit writes a page for each one
    "synchronous = FULL",
    "secure_delete = ON",
    # KB; more costs time: after a page is split, a commit walks through every page of the cache
    "cache_size = -8192",
    # pages: a checkpoint holds uploads up for a tenth of a second, so fewer than 1 in 100 meet one
    "wal_autocheckpoint = 24000",
)
_SETTINGS: Final = (
    f"SET lock_timeout = '{_WAIT_SECONDS:g}s'",
    "SET default_transaction_isolation = 'read committed'",  # of single statements too
    "SELECT set_config('synchronous_commit', 'on', false)"
    " WHERE current_setting('synchronous_commit') = 'off'",
)
_LOOK_SECONDS: Final = 0.001
"""How often a writer of SQLite that waits looks again; SQLite itself soon looks ten times a second,
so that whoever writes in steps would keep it waiting for all of them."""
PAUSE_SECONDS: Final = 0.03
"""Between two transactions of work that can wait, so that most of the time is left to uploads."""
_WRITES: Final = "rappor_writes"
_BUSY_SECONDS: Final = "rappor_busy_seconds"
_FILE: Final = "rappor_file"


class LockedError(StoreError):
    """Another transaction holds a lock for too long."""


def sqlite_url(path: Path) -> str:
    """Return the address of an SQLite file."""
    return URL.create("sqlite", database=str(path)).render_as_string()


def parse_url(text: str) -> URL:
    """Read a database's address: sqlite:///FILE or postgresql://...; ConfigError for others."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # a port that is no number, perhaps of a password
        raise ConfigError("database must be sqlite:///FILE or postgresql://...") from None
    if url.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return url.set(drivername="postgresql+psycopg")
    is_file = url.database and url.database != ":memory:"
    if is_file and url == URL.create("sqlite", database=url.database):  # no host, no query
        return url
    raise ConfigError(f"database must be sqlite:///FILE or postgresql://..., got {url.drivername}:")


def open_engine(text: str) -> Engine:
    """Return an engine for a database; it does not connect yet."""
    url = parse_url(text)
    if url.drivername == "sqlite":
        engine = create_engine(
            url,
            max_overflow=_MORE_CONNECTIONS,
            connect_args={"timeout": _WAIT_SECONDS, "cached_statements": _PREPARED_STATEMENTS},
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        _follow_name(engine)
        return engine
    try:
        engine = create_engine(
            url,
            max_overflow=_MORE_CONNECTIONS,
            pool_pre_ping=True,
            isolation_level="READ COMMITTED",  # whoever waited for a lock must see what was done
            connect_args={
                "connect_timeout": 5,
                "tcp_user_timeout": int(_GONE_SECONDS * 1000),
                "client_encoding": "UTF8",
            },
        )
    except ModuleNotFoundError:
        raise MissingExtraError("postgres") from None
    event.listen(engine, "connect", _prepare_postgresql)
    return engine


@contextlib.contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Open a transaction that writes; errors of the database become StoreError.

    On SQLite the transaction takes the write lock when it begins: one that read first and wrote
    later would fail if another one wrote in between.
    """
    with failing_as_store_error(), open_to_write(engine) as connection, connection.begin():
        yield connection


def open_to_write(engine: Engine) -> Connection:
    """Return a connection whose transactions write; see `writing`."""
    return engine.connect().execution_options(**{_WRITES: True})


def wait_alone(connection: Connection) -> None:
    """Wait until no other transaction is alone, and keep others out.

    Those are alone that change the schema, fold groups of uploads, close blocks, take tables out of
    use, or count rows before they add one.

    SQLite has one writer at a time, so there is nothing to wait for.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(_HOLD)
        connection.execute(select(func.pg_advisory_xact_lock(_MAINTENANCE)))


def is_alone(connection: Connection) -> bool:
    """Do what `wait_alone` does, without waiting; return False if another one is alone."""
    if connection.dialect.name != "postgresql":
        return True
    connection.execute(_HOLD)
    return bool(connection.scalar(select(func.pg_try_advisory_xact_lock(_MAINTENANCE))))


def today_of(connection: Connection) -> datetime.date:
    """Return the day (UTC) by the database's clock; SQLite has that of this machine."""
    if connection.dialect.name == "postgresql":
        now = connection.execute(text("SELECT (now() AT TIME ZONE 'UTC')::date"))
        return as_day(now.scalar_one())
    return datetime.datetime.now(datetime.UTC).date()


def as_day(day: datetime.date | str) -> datetime.date:
    """Return a day as a driver returns it; SQLite's is a text."""
    return datetime.date.fromisoformat(day) if isinstance(day, str) else day


@contextlib.contextmanager
def failing_as_store_error() -> Iterator[None]:
    """Turn errors of the database into StoreError, without the driver's messages."""
    try:
        yield
    except DBAPIError as error:
        raise _store_error(error.orig) from None
    except sqlite3.Error as error:
        raise _store_error(error) from None
    except PoolTimeoutError:
        raise StoreError("the database cannot answer: all connections are in use") from None


def _store_error(error: BaseException | None) -> StoreError:
    """Return the error for one of a driver, whose text may hold what was sent."""
    kind = type(error).__name__
    raised = LockedError if kind == "LockNotAvailable" else StoreError
    return raised(f"the database cannot answer: {kind}")


def check_schema(engine: Engine) -> None:
    """Raise SchemaError unless the database has the schema of this program, or the next one.

    A step of the schema only adds what the version before does not use, and takes away what it did
    not use either, so both versions may run side by side.
    """
    with failing_as_store_error(), engine.connect() as connection:
        have, want = _revision(connection), _head()
    _check_own(have)
    if have is not None and int(want) <= int(have) <= int(want) + 1:
        return
    if have is None or have < want:
        raise SchemaError(
            f"the database must have schema {want}, got {have or 'none'}: run rappor-server migrate"
        )
    raise SchemaError(
        f"the database must have schema {want}, got {have}: it belongs to a newer version"
    )


def _check_own(revision: str | None) -> None:
    """Raise SchemaError for the schema of another program that uses the same migrations."""
    if revision is not None and not re.fullmatch(r"[0-9]{4}", revision):
        raise SchemaError(
            f"the database must be a collector's, got schema {revision} of another program"
        )


def is_empty(engine: Engine) -> bool:
    """Return whether a database has no tables yet."""
    with failing_as_store_error():
        return not inspect(engine).get_table_names()


def migrate(address: str) -> Path | None:
    """Bring a database to this program's schema; return the backup if an SQLite file was copied.

    Raises SchemaError for a database of a newer version, and StoreError if it cannot answer.
    """
    engine = open_engine(address)
    is_sqlite = engine.dialect.name == "sqlite"
    path = Path(str(engine.url.database))
    try:
        if is_sqlite:
            path.touch(mode=0o600)
        with writing(engine) as connection:
            wait_alone(connection)
            if not is_sqlite:
                connection.execute(_HOLD_LONG)
            have, want = _revision(connection), _head()
            _check_own(have)
            if have is None and is_sqlite and not is_empty(engine):
                raise SchemaError("the database must be a collector's or empty, got another file")
            if have is not None and have > want:
                check_schema(engine)
                return None
            backup = _back_up(engine, have) if have not in (None, want) else None
            config = _config()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
        if is_sqlite:
            erase_traces(path)
        return backup
    finally:
        engine.dispose()


def erase_traces(path: Path) -> bool:
    """Empty the write-ahead log of an SQLite file, which holds deleted rows and earlier sums.

    The file overwrites what it deletes. Returns whether the log is empty: not while a reader, or
    for some seconds a writer, is active.
    """
    own = f"{path.resolve().as_uri()}?mode=rw"  # or it would make a file
    with (
        failing_as_store_error(),
        contextlib.closing(sqlite3.connect(own, timeout=_WAIT_SECONDS, uri=True)) as db,
    ):
        (is_busy, _, _) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not is_busy


def connect_sqlite(path: Path) -> sqlite3.Connection:
    """Open an SQLite file for its owner alone, for `begin_immediate`; any thread may use it."""
    path.touch(mode=0o600)
    db = sqlite3.connect(path, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
    _prepare_sqlite(db, None)
    _set_busy_timeout(db, 0)
    return db


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy one state of an SQLite file by its online backup, whatever is written meanwhile."""
    with (
        failing_as_store_error(),
        contextlib.closing(sqlite3.connect(source)) as old,
        contextlib.closing(sqlite3.connect(target)) as new,
    ):
        old.backup(new)


def _prepare_sqlite(connection: Any, _: object) -> None:
    """Leave transactions to SQLAlchemy, and let each one be on the disk when it ends."""
    connection.isolation_level = None
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}").close()
    _switch_to_wal(connection)


def _follow_name(engine: Engine) -> None:
    """Let a connection be opened again when another SQLite file has taken the name."""
    path = Path(str(engine.url.database))

    def note(_: object, record: Any) -> None:
        record.info[_FILE] = file_of(path)

    def check(_: object, record: Any, __: object) -> None:
        if (file := file_of(path)) is None:
            raise StoreError("the database file has been deleted")
        if record.info[_FILE] != file:
            raise DisconnectionError

    event.listen(engine, "connect", note)
    event.listen(engine, "checkout", check)


def file_of(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from any other of its name, None if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Let readers and the writer work side by side; retried, as SQLite does not wait for this."""
    until = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").close()
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    db = connection.connection.dbapi_connection
    assert db is not None
    seconds = 0.0 if writes else _WAIT_SECONDS
    if connection.info.get(_BUSY_SECONDS, _WAIT_SECONDS) != seconds:
        _set_busy_timeout(db, seconds)
        connection.info[_BUSY_SECONDS] = seconds
    if writes:
        begin_immediate(db)
    else:
        connection.exec_driver_sql("BEGIN")


def _set_busy_timeout(db: Any, seconds: float) -> None:
    """Choose how long SQLite itself waits for a lock."""
    db.execute(f"PRAGMA busy_timeout = {1000 * seconds:.0f}").close()


def begin_immediate(db: Any) -> None:
    """Begin a transaction of SQLite that writes, as soon as no other one does.

    The connection must have no timeout of its own for a lock.
    """
    until = time.monotonic() + _WAIT_SECONDS
    while not _has_begun(db, is_last=time.monotonic() > until):
        time.sleep(_LOOK_SECONDS)


def _has_begun(db: Any, *, is_last: bool) -> bool:
    """Try to begin a transaction; False while another one writes, or recovers after a crash."""
    try:
        db.execute("BEGIN IMMEDIATE").close()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or is_last:
            raise
        return False
    return True


def _prepare_postgresql(connection: Any, _: object) -> None:
    """Bound the wait for locks, and let a commit be on the disk whatever the server's default."""
    for statement in _SETTINGS:
        connection.execute(statement)
    connection.commit()


def _config() -> Config:
    config = Config()
    folder = resources.files("rappor_server.storage") / "migrations"
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    return config


def _head() -> str:
    return str(ScriptDirectory.from_config(_config()).get_current_head())


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _back_up(engine: Engine, revision: str | None) -> Path | None:
    """Copy an SQLite file beside itself before its schema changes, for its owner alone."""
    if engine.dialect.name != "sqlite":
        return None
    path = Path(str(engine.url.database))
    day = datetime.datetime.now(datetime.UTC).date()
    backup = path.with_name(f"{path.name}.schema-{revision}.{day}.bak")
    backup.touch(mode=0o600)
    copy_sqlite(path, backup)
    return backup
