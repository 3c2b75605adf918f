"""The version of the schema of a database: its check, the creation of tables, and migrations.

The schema is the set of tables and columns (`schema`). Its version is the number of the newest
script in the folder `migrations/versions` that was applied, such as 0001. Each script changes the
schema by one step, and Alembic runs the scripts. A database has one of these states:

    version                  `check_schema`                   `migrate`
    none, without tables     SchemaError                      creates the tables
    older than the program   SchemaError: run migrate         copies an SQLite file, runs the newer
                                                              scripts
    that of the program      usable                           does nothing
    one newer                usable, so two successive        does nothing
                             versions can run at a time
    two or more newer        SchemaError: use the newer       SchemaError
                             program
    of another program       SchemaError                      SchemaError

`rappor-server serve` creates the tables of an empty database, and otherwise calls `check_schema`
only. An operator migrates by `rappor-server migrate`, because a migration may take long.
"""

from __future__ import annotations

import re
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, text

from rappor_server.base.errors import SchemaError, StoreError
from rappor_server.storage.database import (
    copy_sqlite,
    erase_traces,
    lock_maintenance,
    open_database,
    open_engine,
    translate_errors,
    utc_today,
    write_transaction,
)

_MIGRATIONS: Final = resources.files("rappor_server.storage") / "migrations"
"""Folder of Alembic's scripts, each of which changes the schema by one step."""
_ALLOW_IDLE: Final = text("SET LOCAL idle_in_transaction_session_timeout = 0")
"""Statement that removes the limit of the maintenance lock (`database._LIMIT_IDLE`), which ends a
PostgreSQL transaction after a pause of 10 seconds. A migration may compute for longer between two
of its statements."""


def open_checked(address: str) -> Engine:
    """Return an engine for the database with a URL.

    Raises SchemaError if this program cannot use the schema of the database.
    """
    engine = open_engine(address)
    try:
        check_schema(engine)
    except StoreError:
        engine.dispose()
        raise
    return engine


def check_schema(engine: Engine) -> None:
    """Raise SchemaError unless this program can use the schema of a database.

    This program can use its own version and the next version. Two successive versions of the
    program can therefore run at the same time, for example while hosts are updated one by one. This
    works because a migration only adds or removes tables and columns that the previous version does
    not use.
    """
    with translate_errors(), engine.connect() as connection:
        current, newest = _read_revision(connection), _read_revisions(_MIGRATIONS)[0]
    _check_is_ours(current)
    if current is not None and int(newest) <= int(current) <= int(newest) + 1:
        return
    is_older = current is None or current < newest
    remedy = "run rappor-server migrate" if is_older else "it belongs to a newer version"
    raise SchemaError(f"the database must have schema {newest}, got {current or 'none'}: {remedy}")


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
    """Migrate a database to the schema of this program, as the table of the module describes.

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
            current, (newest, *older) = _read_revision(connection), _read_revisions(steps)
            _check_is_ours(current)
            if current is None:
                create_tables(connection)
            elif current in older:
                backup = _back_up(path, current) if is_sqlite else None
                command.upgrade(_build_config(steps, connection), newest)
            else:
                check_schema(engine)
        if is_sqlite:
            erase_traces(path)
        return backup


def create_tables(connection: Connection) -> None:
    """Give an empty database the schema of this program."""
    command.upgrade(_build_config(_MIGRATIONS, connection), "head")


def _build_config(steps: Traversable, connection: Connection | None = None) -> Config:
    """Return the settings of Alembic for a folder of scripts and a connection."""
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(steps).replace("%", "%%"))
    return config


def _read_revisions(steps: Traversable) -> list[str]:
    """Return the versions of the schema to which the scripts lead, newest first."""
    scripts = ScriptDirectory.from_config(_build_config(steps))
    return [step.revision for step in scripts.walk_revisions()]


def _read_revision(connection: Connection) -> str | None:
    """Return the version of the schema of a database, or None without a schema."""
    return MigrationContext.configure(connection).get_current_revision()


def _back_up(path: Path, revision: str) -> Path:
    """Copy an SQLite file before a migration. Only the owner can read the copy."""
    backup = path.with_name(f"{path.name}.schema-{revision}.{utc_today()}.bak")
    backup.touch(mode=0o600)
    copy_sqlite(path, backup)
    return backup
