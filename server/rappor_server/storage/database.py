"""The database itself: opening it, checking the version of its schema, and migrating it."""

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

_STEPS: Final = resources.files("rappor_server.storage") / "migrations"
_WAIT_SECONDS: Final = 5.0
"""How long a transaction waits for a locked database, table or row."""
_GONE_SECONDS: Final = 10.0
"""After how long a connection to a silent PostgreSQL counts as broken."""
_MORE_CONNECTIONS: Final = 40
"""More than the threads that may read at once, so that the writer never waits for a reader."""
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
TODAY: Final = "(clock_timestamp() AT TIME ZONE 'UTC')::date"
"""The day by PostgreSQL's clock, also for a transaction that has waited since the day before."""
_LOOK_AT_TABLES: Final = "SELECT count(*), max(name IN ('day_table', 'inbox')) FROM sqlite_schema"
"""Whether an SQLite file has tables, and one of a collector or of its inbox."""
_FOREIGN: Final = "the database must be a collector's or empty, got another file"
_WRITES: Final = "rappor_writes"
_FILE: Final = "rappor_file"


class LockedError(StoreError):
    """Another transaction holds a lock for too long."""


class _SqliteDay(sqlite.DATE):
    """A day, which is text in SQLite's file; a damaged one is a StoreError."""

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        read: Any = super().result_processor(dialect, coltype)

        def process(value: Any) -> Any:
            try:
                return read(value)
            except (TypeError, ValueError):
                raise StoreError("the database cannot answer: a day in it is damaged") from None

        return process


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
        engine = create_engine(url, max_overflow=_MORE_CONNECTIONS)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        _follow_name(engine)
        engine.dialect.colspecs = {**engine.dialect.colspecs, Date: _SqliteDay}
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
def opened(text: str) -> Iterator[Engine]:
    """Open an engine, and close all its connections in the end."""
    engine = open_engine(text)
    try:
        yield engine
    finally:
        engine.dispose()


def open_checked(text: str) -> Engine:
    """Open a database; SchemaError unless it has the schema of this program."""
    engine = open_engine(text)
    try:
        check_schema(engine)
    except StoreError:
        engine.dispose()
        raise
    return engine


def ping(engine: Engine) -> None:
    """Raise StoreError unless a database answers a query."""
    with failing_as_store_error(), engine.connect() as db:
        db.execute(select(1))


@contextlib.contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Open a transaction that writes; errors of the database become StoreError.

    On SQLite the transaction takes the write lock when it begins: one that read first and wrote
    later would fail if another one wrote in between.
    """
    with failing_as_store_error(), engine.connect() as db:
        db.execution_options(**{_WRITES: True})
        with db.begin():
            yield db
        if _FILE in db.info and db.info[_FILE] != _file_of(engine):
            raise StoreError("the database file has been deleted or replaced")


def wait_alone(connection: Connection) -> None:
    """Wait until no other transaction is alone, and keep others out.

    Those are alone that change the schema, fold groups of uploads, close blocks, take tables out of
    use, or count rows before they add one.

    SQLite has one writer at a time, so there is nothing to wait for.
    """
    is_alone(connection, waits=True)


def is_alone(connection: Connection, *, waits: bool = False) -> bool:
    """Do what `wait_alone` does, or return False at once if another one is alone."""
    if connection.dialect.name != "postgresql":
        return True
    connection.execute(_HOLD)
    lock = func.pg_advisory_xact_lock if waits else func.pg_try_advisory_xact_lock
    return connection.scalar(select(lock(_MAINTENANCE))) is not False


def utc_today() -> datetime.date:
    """Return the day (UTC) by the clock of this machine."""
    return datetime.datetime.now(datetime.UTC).date()


def today_of(connection: Connection) -> datetime.date:
    """Return the day (UTC) by the database's clock; SQLite has that of this machine."""
    if connection.dialect.name == "postgresql":
        now = text(f"SELECT {TODAY}").columns(day=Date)
        today: datetime.date = connection.execute(now).scalar_one()
        return today
    return utc_today()


@contextlib.contextmanager
def failing_as_store_error() -> Iterator[None]:
    """Turn errors of the database into StoreError, without the driver's messages."""
    try:
        yield
    # their text may hold what was sent, and that of SQLite what is no text
    except (DBAPIError, sqlite3.Error, UnicodeDecodeError) as error:
        kind = type(getattr(error, "orig", error)).__name__
        raised = LockedError if kind == "LockNotAvailable" else StoreError
        raise raised(f"the database cannot answer: {kind}") from None
    except PoolTimeoutError:
        raise StoreError("the database cannot answer: all connections are in use") from None


def check_schema(engine: Engine) -> None:
    """Raise SchemaError unless the database has the schema of this program, or the next one.

    A step of the schema only adds what the version before does not use, and takes away what it did
    not use either, so both versions may run side by side.
    """
    with failing_as_store_error(), engine.connect() as connection:
        have, want = _revision(connection), _revisions(_STEPS)[0]
    _check_own(have)
    if have is not None and int(want) <= int(have) <= int(want) + 1:
        return
    is_older = have is None or have < want
    remedy = "run rappor-server migrate" if is_older else "it belongs to a newer version"
    raise SchemaError(f"the database must have schema {want}, got {have or 'none'}: {remedy}")


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


def migrate(address: str, *, steps: Traversable = _STEPS) -> Path | None:
    """Bring a database to this program's schema; return the backup if an SQLite file was copied.

    `steps` is the folder of Alembic's scripts. Raises SchemaError for a database of a newer version
    or of another program, and StoreError if the database does not answer.
    """
    with opened(address) as engine:
        is_sqlite = engine.dialect.name == "sqlite"
        path, backup = Path(str(engine.url.database)), None
        with writing(engine) as connection:
            wait_alone(connection)
            if not is_sqlite:
                connection.execute(_HOLD_LONG)
            have, (want, *older) = _revision(connection), _revisions(steps)
            _check_own(have)
            if have is None:
                create_tables(connection)
            elif have in older:
                backup = _back_up(path, have) if is_sqlite else None
                command.upgrade(_config(steps, connection), want)
            else:
                check_schema(engine)
        if is_sqlite:
            erase_traces(path)
        return backup


def create_tables(connection: Connection) -> None:
    """Give an empty database the schema of this program."""
    command.upgrade(_config(_STEPS, connection), "head")


def erase_traces(path: Path, *, seconds: float = _WAIT_SECONDS) -> bool:
    """Empty the write-ahead log of an SQLite file, which holds deleted rows and earlier sums.

    The file overwrites what it deletes. Returns whether the log is empty: not if a reader or a
    writer is active for that many seconds, in which others cannot write.
    """
    own = f"{path.resolve().as_uri()}?mode=rw"  # or it would make a file
    with (
        failing_as_store_error(),
        contextlib.closing(sqlite3.connect(own, timeout=seconds, uri=True)) as db,
    ):
        (is_busy, _, _) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not is_busy


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy one state of an SQLite file by its online backup, whatever is written meanwhile."""
    with (
        failing_as_store_error(),
        contextlib.closing(sqlite3.connect(source)) as old,
        contextlib.closing(sqlite3.connect(target)) as new,
    ):
        old.backup(new)


def _prepare_sqlite(connection: Any, _: object) -> None:
    """Leave transactions to SQLAlchemy, and let each one be on the disk when it ends.

    Raises SchemaError for a file of another program, and changes nothing of it.
    """
    connection.isolation_level = None
    try:
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}").close()
        n_tables, is_own = connection.execute(_LOOK_AT_TABLES).fetchone()
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_NOTADB:
            raise
        n_tables, is_own = 1, False
    if n_tables and not is_own:
        connection.close()
        raise SchemaError(_FOREIGN)
    _insist(connection, "PRAGMA journal_mode = WAL")  # readers and the writer work side by side


def _follow_name(engine: Engine) -> None:
    """Let a connection be opened again when another SQLite file has taken the name.

    A new file is for its owner alone.
    """

    def make(*_: object) -> None:
        with contextlib.suppress(OSError):  # SQLite tells it
            Path(str(engine.url.database)).touch(mode=0o600)

    def note(_: object, record: Any) -> None:
        record.info[_FILE] = _file_of(engine)

    def check(_: object, record: Any, __: object) -> None:
        if (file := _file_of(engine)) is None:
            raise StoreError("the database file has been deleted")
        if record.info[_FILE] != file:
            raise DisconnectionError

    event.listen(engine, "do_connect", make)
    event.listen(engine, "connect", note)
    event.listen(engine, "checkout", check)


def _file_of(engine: Engine) -> tuple[int, int] | None:
    """Return what tells an SQLite file from any other of its name, None if there is none."""
    try:
        status = Path(str(engine.url.database)).stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _begin_sqlite(connection: Connection) -> None:
    db: Any = connection.connection.dbapi_connection
    if connection.get_execution_options().get(_WRITES, False):
        begin_immediate(db)
    else:
        db.execute(f"PRAGMA busy_timeout = {1000 * _WAIT_SECONDS:.0f}").close()
        db.execute("BEGIN").close()


def begin_immediate(db: Any) -> None:
    """Begin a transaction of SQLite that writes, as soon as no other one does."""
    db.execute("PRAGMA busy_timeout = 0").close()
    _insist(db, "BEGIN IMMEDIATE")


def _insist(db: Any, statement: str) -> None:
    """Execute a statement of SQLite as soon as nobody else writes, or recovers after a crash."""
    until = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            db.execute(statement).close()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(_LOOK_SECONDS)
        else:
            return


def _prepare_postgresql(connection: Any, _: object) -> None:
    """Bound the wait for locks, and let a commit be on the disk whatever the server's default."""
    for statement in _SETTINGS:
        connection.execute(statement)
    connection.commit()


def _config(steps: Traversable, connection: Connection | None = None) -> Config:
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(steps).replace("%", "%%"))
    return config


def _revisions(steps: Traversable) -> list[str]:
    """Return the schemas that the steps lead to, the newest one first."""
    scripts = ScriptDirectory.from_config(_config(steps))
    return [step.revision for step in scripts.walk_revisions()]


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _back_up(path: Path, revision: str) -> Path:
    """Copy an SQLite file beside itself before its schema changes, for its owner alone."""
    backup = path.with_name(f"{path.name}.schema-{revision}.{utc_today()}.bak")
    backup.touch(mode=0o600)
    copy_sqlite(path, backup)
    return backup
