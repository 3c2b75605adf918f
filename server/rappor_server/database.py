"""The database itself: opening it, its schema's version, and the way from one to the next."""

from __future__ import annotations

import contextlib
import datetime
import shutil
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, event, inspect
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from rappor_server.errors import ConfigError, SchemaError, StoreError

_BUSY_SECONDS: Final = 5.0
_PRAGMAS: Final = (
    "page_size = 2048",  # of a new file; ids are random, so a commit touches a page for each
    "journal_mode = WAL",
    "synchronous = FULL",
    "secure_delete = ON",
    "cache_size = -65536",  # KB: ids are random, so every page of their tree is met again
    "wal_autocheckpoint = 8000",  # pages: the fewer checkpoints, the fewer pages written twice
)


def sqlite_url(path: Path) -> str:
    """Return the address of an SQLite file."""
    return URL.create("sqlite", database=str(path)).render_as_string()


def parse_url(text: str) -> URL:
    """Read a database's address: sqlite:///FILE or postgresql://...; ConfigError for others."""
    try:
        url = make_url(text)
    except ArgumentError:
        raise ConfigError("database must be sqlite:///FILE or postgresql://...") from None
    if url.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return url.set(drivername="postgresql+psycopg")
    if url.drivername == "sqlite" and url.database:
        return url
    raise ConfigError(f"database must be sqlite:///FILE or postgresql://..., got {url.drivername}:")


def open_engine(text: str) -> Engine:
    """Return an engine; nothing is connected yet."""
    url = parse_url(text)
    if url.drivername == "sqlite":
        engine = create_engine(url, connect_args={"timeout": _BUSY_SECONDS})
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        return engine
    try:
        return create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": 5})
    except ModuleNotFoundError:
        raise ConfigError(
            "PostgreSQL needs the extra 'postgres'; install it with: pip install 'rappor[postgres]'"
        ) from None


@contextlib.contextmanager
def failing_as_store_error() -> Iterator[None]:
    """Turn what the database refuses into StoreError; its messages stay inside."""
    try:
        yield
    except DBAPIError as error:
        kind = type(error.orig).__name__
        raise StoreError(f"the database cannot answer: {kind}") from None


def check_schema(engine: Engine) -> None:
    """Raise SchemaError unless the schema is the one of this program."""
    with failing_as_store_error():
        have, want = _revision(engine), _head()
    if have == want:
        return
    if have is None or have < want:
        raise SchemaError(
            f"the database must have schema {want}, got {have or 'none'}: run rappor-server migrate"
        )
    raise SchemaError(
        f"the database must have schema {want}, got {have}: it belongs to a newer version"
    )


def is_empty(engine: Engine) -> bool:
    """Tell whether a database has no tables yet."""
    with failing_as_store_error():
        return not inspect(engine).get_table_names()


def migrate(text: str) -> Path | None:
    """Bring a database to this program's schema; return the backup of an SQLite file, if made.

    Raises SchemaError for a database of a newer version, and StoreError where it cannot answer.
    """
    engine = open_engine(text)
    try:
        with failing_as_store_error():
            have, want = _revision(engine), _head()
            if have is not None and have > want:
                check_schema(engine)
            backup = _back_up(engine, have) if have not in (None, want) else None
            with engine.begin() as connection:
                config = _config()
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        return backup
    finally:
        engine.dispose()


def _prepare_sqlite(connection: Any, _: object) -> None:
    """Let SQLAlchemy's own transactions be the only ones, each on the disk when it ends."""
    connection.isolation_level = None
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}").close()


def _config() -> Config:
    config = Config()
    folder = resources.files("rappor_server") / "migrations"
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    return config


def _head() -> str:
    return str(ScriptDirectory.from_config(_config()).get_current_head())


def _revision(engine: Engine) -> str | None:
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def _back_up(engine: Engine, revision: str | None) -> Path | None:
    """Copy an SQLite file beside itself before its schema changes."""
    if engine.dialect.name != "sqlite":
        return None
    path = Path(str(engine.url.database))
    day = datetime.datetime.now(datetime.UTC).date()
    backup = path.with_name(f"{path.name}.schema-{revision}.{day}.bak")
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copyfile(path, backup)
    return backup
