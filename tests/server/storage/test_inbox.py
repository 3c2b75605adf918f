"""The inbox: batches survive every failure between their response and their merge.

When an SQLite file is replaced under a running collector, nothing is written to the old file.
"""

from __future__ import annotations

import contextlib
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from collectors import TODAY, append, commit, merge_now, submission_of, total, upload_of
from rappor_server.base.errors import StoreError
from rappor_server.operations.backup import backup, restore
from rappor_server.storage.database import open_database, sqlite_url, write_transaction
from rappor_server.storage.inbox import Batch, InboxContents, SqliteInbox, open_inbox
from rappor_server.storage.merge import merge
from rappor_server.storage.record import encode
from rappor_server.storage.schema_versions import migrate
from sqlalchemy import Engine, event, inspect, text


def make_batch() -> Batch:
    """Return a batch of one upload."""
    return Batch(TODAY, 1, encode([submission_of(upload_of())], {}))


def test_contents_of_the_inbox(engine: Engine) -> None:
    """Batches, reports and bytes are counted until the merge.

    An empty inbox is not sealed again.
    """
    with contextlib.closing(open_inbox(engine)) as inbox:
        assert inbox.count_contents() == InboxContents(0, 0, 0, 0)
        append(engine, [submission_of(upload_of()) for _ in range(3)])
        append(engine, [], {("", "malformed"): 1})
        waiting = inbox.count_contents()
        assert (waiting.batches, waiting.reports, waiting.unreadable) == (2, 3, 0)
        assert waiting.n_bytes > 100
        for _ in range(3):
            merge(engine, inbox, today=TODAY)
        assert inbox.count_contents() == InboxContents(0, 0, 0, 0)
    assert len([name for name in list_tables(engine) if name.startswith("inbox_")]) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)  # SQLite has one table
def test_dropped_table_raises_no_error(engine: Engine, database: str) -> None:
    """Another host may drop a table after its number was read and before its rows are counted."""
    append(engine, [submission_of(upload_of())])
    with contextlib.closing(open_inbox(engine)) as inbox, open_database(database) as other:
        inbox.seal()
        with write_transaction(engine) as db:
            assert len(inbox.take(db)) == 1

        @event.listens_for(engine, "after_cursor_execute")
        def drop(*args: Any) -> None:
            if "FROM inbox_number" in args[2]:
                open_inbox(other).clear()

        assert inbox.count_contents() == InboxContents(0, 0, 0, 0)
        event.remove(engine, "after_cursor_execute", drop)
        assert "inbox_1" in list_tables(engine)
        inbox.clear()
        assert "inbox_1" not in list_tables(engine)


def list_tables(engine: Engine) -> list[str]:
    """Return the names of the tables of a database."""
    return inspect(engine).get_table_names()


def test_merged_batch_that_was_not_deleted_is_counted_once(engine: Engine) -> None:
    """A merge process is killed after it has counted a batch, and before it deletes the batch.

    The next merge process does not count the batch again.
    """
    append(engine, [submission_of(upload_of())])

    class KilledError(Exception):
        """Error that ends the merge process."""

    class KilledInbox:
        """An inbox whose merge process is killed before it deletes merged batches."""

        def __init__(self) -> None:
            self._inbox = open_inbox(engine)

        def __getattr__(self, name: str) -> object:
            return getattr(self._inbox, name)

        def clear(self) -> None:
            raise KilledError

    inbox = KilledInbox()
    with contextlib.closing(inbox), pytest.raises(KilledError):  # type: ignore[type-var]
        merge(engine, inbox, wait=True, today=TODAY)  # type: ignore[arg-type]
    for _ in range(2):
        commit(engine, upload_of())
    assert total(engine) == 3


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)  # SQLite has one writer
def test_commit_order_differs_from_sequence_order(engine: Engine) -> None:
    """A batch with a smaller number that is committed later is not lost."""
    with engine.connect() as late:
        late.exec_driver_sql("SELECT append_batch(%s, %s, %s)", tuple(make_batch()))
        append(engine, [submission_of(upload_of())])
        with contextlib.closing(open_inbox(engine)) as inbox:
            with pytest.raises(StoreError):
                merge(engine, inbox, wait=True, today=TODAY)
            assert total(engine) == 0
        late.commit()
    merge_now(engine)
    assert total(engine) == 2


def test_receivers_do_not_wait_for_a_merge(engine: Engine) -> None:
    """Batches that come during a merge stay for the next merge.

    If the merge took them, too, it would never end under load.
    """
    append(engine, [submission_of(upload_of())])
    with contextlib.closing(open_inbox(engine)) as inbox:
        inbox.seal()
        with write_transaction(engine) as db:
            assert len(inbox.take(db)) == 1
            thread = threading.Thread(target=append, args=(engine, [submission_of(upload_of())]))
            thread.start()
            thread.join(20)
            assert not thread.is_alive()
            assert not inbox.take(db)
            db.get_transaction().rollback()  # type: ignore[union-attr]
    merge_now(engine)
    assert total(engine) == 2


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)  # SQLite does not wait
def test_dump_delays_neither_uploads_nor_merges(engine: Engine) -> None:
    """The tables that a dump reads are dropped after the dump."""
    append(engine, [submission_of(upload_of())])
    with engine.connect() as dump:
        for name in list_tables(engine):
            dump.execute(text(f'SELECT * FROM "{name}"'))  # noqa: S608
        for n in range(1, 4):
            merge_now(engine)
            assert total(engine) == n
            append(engine, [submission_of(upload_of())])
    merge_now(engine)
    assert total(engine) == 4
    assert len([name for name in list_tables(engine) if name.startswith("inbox_")]) == 2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Path of an SQLite database with the schema of this version."""
    path = tmp_path / "counts.sqlite3"
    migrate(sqlite_url(path))
    return path


@pytest.fixture
def local(path: Path) -> Iterator[Engine]:
    """The SQLite database at `path`."""
    with open_database(sqlite_url(path)) as engine:
        yield engine


def test_only_the_owner_can_read_the_files(path: Path, local: Engine) -> None:
    """The files are the database, its inbox, and their logs."""
    append(local, [submission_of(upload_of())])
    files = list(path.parent.glob(f"{path.name}*"))
    assert len(files) > 2
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_a_database_without_its_inbox_is_refused(path: Path, local: Engine) -> None:
    """The inbox may be missing or older.

    The database works again with its inbox, or after a restore.
    """
    commit(local, upload_of())
    inbox = path.with_name(f"{path.name}-inbox")
    older = path.with_name("older")
    shutil.copy(inbox, older)
    commit(local, upload_of())
    newer = path.with_name("newer")
    inbox.rename(newer)
    for wrong in (None, older):
        inbox.unlink(missing_ok=True)
        if wrong is not None:
            shutil.copy(wrong, inbox)
        with pytest.raises(StoreError, match="must be the inbox of this database"):
            open_inbox(local)
    fresh = path.with_name("fresh.sqlite3")
    restore(path, sqlite_url(fresh))
    with open_database(sqlite_url(fresh)) as other:
        commit(other, upload_of())
        assert total(other) == 3
    newer.rename(inbox)
    commit(local, upload_of())
    assert total(local) == 3


def test_deleted_inbox_accepts_no_upload(path: Path, local: Engine) -> None:
    """No upload is acknowledged into a deleted file."""
    commit(local, upload_of())
    with contextlib.closing(open_inbox(local)) as inbox:
        inbox.append(make_batch(), {})
        for file in path.parent.glob(f"{path.name}-inbox*"):
            file.unlink()
        for _ in range(2):
            with pytest.raises(StoreError) as caught:
                inbox.append(make_batch(), {})
            assert caught.value.retryable


def test_backup_contains_no_single_report(engine: Engine, database: str, tmp_path: Path) -> None:
    """A backup merges the inbox first, and leaves unreadable batches out."""
    submissions = [submission_of(upload_of()) for _ in range(3)]
    append(engine, submissions)
    with contextlib.closing(open_inbox(engine)) as inbox:
        inbox.append(Batch(TODAY, 1, b"\x09telltale"), {})
    backup(database, tmp_path / "copy")
    assert total(engine) == 3
    assert [file.name for file in tmp_path.glob("copy*")] == ["copy"]
    assert b"\x09telltale" not in (tmp_path / "copy").read_bytes()
    with open_database(sqlite_url(tmp_path / "copy")) as copied:
        assert total(copied) == 3
        append(copied, submissions)  # retries, which are not counted again
        append(copied, [submission_of(upload_of())])
        merge_now(copied)
        assert total(copied) == 4


def test_commits_of_sqlite_are_on_the_disk(path: Path, local: Engine) -> None:
    """A batch is flushed before its response. Deleted batches are overwritten."""
    assert path.exists()
    with contextlib.closing(open_inbox(local)) as inbox:
        assert isinstance(inbox, SqliteInbox)
        with inbox._inbox.connect() as db:
            values = [db.scalar(text(f"PRAGMA {name}")) for name in PRAGMAS]
    assert dict(zip(PRAGMAS, values, strict=True)) == PRAGMAS


PRAGMAS = {"synchronous": 2, "secure_delete": 1, "journal_mode": "wal"}
"""Pragmas of an inbox file. The value 2 of `synchronous` is FULL: a commit is on the disk."""


def test_uploads_go_to_the_file_at_the_path(path: Path, local: Engine) -> None:
    """A batch that comes after the file was replaced is stored in the new file, once."""
    commit(local, first := upload_of())
    saved = path.with_name("saved.bak")
    backup(sqlite_url(path), saved)
    commit(local, upload_of())  # lost with the old file
    fresh = path.with_name("restored.sqlite3")
    restore(saved, sqlite_url(fresh))
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    fresh.rename(path)
    bodies = [first, upload_of(), upload_of()]
    for body in bodies:
        assert commit(local, body) == [submission_of(body).response]
    assert total(local) == 3
    with open_database(sqlite_url(path)) as other:
        assert total(other) == 3


def test_no_upload_is_stored_in_a_moved_file(path: Path, local: Engine) -> None:
    """While the file is moved no upload is acknowledged.

    After it is back all uploads are stored.
    """
    commit(local, upload_of())
    moved = path.with_name("moved.sqlite3")
    with local.connect() as db:
        db.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
    path.rename(moved)
    body = upload_of()
    with pytest.raises(StoreError) as caught:
        commit(local, body)
    assert caught.value.retryable
    assert not path.exists()
    moved.rename(path)
    commit(local, body)
    assert total(local) == 2
