"""An SQLite file that is replaced under a running collector: nothing is written to the old one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from collectors import commit, submission_of, total, upload_of
from rappor_server.errors import StoreError
from rappor_server.storage.backup import backup, restore
from rappor_server.storage.database import migrate, sqlite_url
from rappor_server.storage.store import Store
from sqlalchemy import text


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a database with the schema of this version."""
    path = tmp_path / "counts.sqlite3"
    migrate(sqlite_url(path))
    return path


@pytest.fixture
def open_store(path: Path) -> Iterator[Store]:
    """A store that is open while its file is replaced."""
    with contextlib.closing(Store.open(sqlite_url(path))) as store:
        yield store


def remove(path: Path) -> None:
    """Remove a database with its log."""
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def restore_over(path: Path, saved: Path) -> None:
    """Put the state of a backup in the place of a database."""
    fresh = path.with_name("restored.sqlite3")
    restore(saved, sqlite_url(fresh))
    remove(path)
    fresh.rename(path)


def test_uploads_go_to_the_file_that_has_the_name(path: Path, open_store: Store) -> None:
    """A group that comes after another file has taken the name is stored there, once."""
    commit(open_store, first := upload_of())
    saved = path.with_name("saved.bak")
    backup(sqlite_url(path), saved)
    commit(open_store, upload_of())  # lost with the old file
    restore_over(path, saved)
    bodies = [first, upload_of(), upload_of()]
    for body in bodies:
        assert commit(open_store, body) == [submission_of(body).answer]
    assert total(open_store) == 3
    with contextlib.closing(Store.open(sqlite_url(path))) as other:
        assert total(other) == 3


def test_a_file_without_a_name_is_not_written(path: Path, open_store: Store) -> None:
    """While the file is gone no upload is acknowledged; under its name again it gets them all."""
    commit(open_store, upload_of())
    moved = path.with_name("moved.sqlite3")
    with open_store.engine.connect() as db:
        db.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
    path.rename(moved)
    body = upload_of()
    with pytest.raises(StoreError) as caught:
        commit(open_store, body)
    assert caught.value.retryable
    assert not path.exists()
    moved.rename(path)
    commit(open_store, body)
    assert total(open_store) == 2
