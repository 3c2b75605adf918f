"""Databases for the tests of the server: SQLite files, and a real PostgreSQL server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from databases import DATABASES
from postgres import (
    EMPTY,
    build_address,
    create_database,
    has_database,
    hold_file_lock,
    new_database,
)
from rappor_server.storage.database import open_database
from rappor_server.storage.schema_versions import migrate
from sqlalchemy import Engine


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of an empty database: an SQLite file, or a database of the PostgreSQL server."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'counts.sqlite3'}"
        return
    # A test with the fixture `migrated_database` gets a copy of a database with the schema, which
    # takes a tenth of the time of a migration.
    is_migrated = "migrated_database" in request.fixturenames
    template = request.getfixturevalue("migrated_template") if is_migrated else EMPTY
    with new_database(request.getfixturevalue("postgres"), copy_of=template) as address:
        yield address


@pytest.fixture
def anyio_backend() -> str:
    """Event loop of tests that are coroutines. It is the loop of the collector."""
    return "asyncio"


@pytest.fixture(scope="session")
def migrated_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the SQLite files of a database without rows, with the schema of this version.

    A migration takes longer than most tests that need its result, so it runs once.
    """
    path = tmp_path_factory.mktemp("schema") / "counts.sqlite3"
    migrate(f"sqlite:///{path}")
    return sorted(path.parent.iterdir())


@pytest.fixture(scope="session")
def migrated_template(postgres: str, shared_folder: Path) -> str:
    """Return the name of a PostgreSQL database without rows, with the schema of this version.

    All workers copy the same database. Only the first worker makes it.
    """
    name = "migrated"
    with hold_file_lock(shared_folder / "template.lock"):
        if not has_database(postgres, name):
            create_database(postgres, name)
            migrate(build_address(postgres, name))
    return name


@pytest.fixture
def migrated_database(request: pytest.FixtureRequest, database: str) -> str:
    """Return the address of a database without rows, with the schema of this version."""
    if database.startswith("sqlite:///"):
        folder = Path(database.removeprefix("sqlite:///")).parent
        for path in request.getfixturevalue("migrated_files"):
            shutil.copy(path, folder)
    return database


@pytest.fixture
def engine(migrated_database: str) -> Iterator[Engine]:
    """Open a database without rows, with the schema of this version."""
    with open_database(migrated_database) as opened:
        yield opened
