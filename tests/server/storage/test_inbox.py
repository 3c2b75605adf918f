"""The inbox: a batch survives every failure between its response and its merge.

A collector stores a batch of uploads in the inbox, and then responds to the devices. A merge seals
the inbox (new batches go to a new table), takes the batches of the sealed table, counts them in one
transaction, and clears the sealed table afterwards.

PostgreSQL has tables with the names inbox_1, inbox_2, and so on, in the database of the counters.
With SQLite, the inbox is another file in the folder of the database. If an operator replaces the
SQLite file while a collector runs, nothing may be written to the old file. The tests with `path`
and `local` have an SQLite database.
"""

from __future__ import annotations

import contextlib
import datetime
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from collectors import (
    PARAMS,
    TODAY,
    append,
    build_upload,
    commit,
    count_reports,
    merge_now,
    parse_submission,
)
from databases import ON_BOTH_DATABASES
from rappor_server.base.errors import StoreError
from rappor_server.operations.backup import backup, restore
from rappor_server.storage.database import open_database, sqlite_url, utc_today, write_transaction
from rappor_server.storage.inbox import Batch, InboxContents, SqliteInbox, open_inbox
from rappor_server.storage.merge import merge
from rappor_server.storage.record import encode
from rappor_server.storage.schema_versions import migrate
from sqlalchemy import Engine, event, inspect, text


def make_batch() -> Batch:
    """Return a batch of one upload."""
    return Batch(TODAY, 1, encode([parse_submission(build_upload())], {}))


@ON_BOTH_DATABASES
def test_contents_of_the_inbox(engine: Engine) -> None:
    """The numbers of batches, reports and bytes grow until the merge, and are 0 afterwards.

    The second batch has no report, but a number of refused uploads. A merge does not seal an empty
    inbox again, so three merges leave no more than two tables.
    """
    with contextlib.closing(open_inbox(engine)) as inbox:
        assert inbox.count_contents() == InboxContents(0, 0, 0, 0)
        append(engine, [parse_submission(build_upload()) for _ in range(3)])
        # Refused uploads are counted by metric and reason. A malformed upload names no metric.
        append(engine, [], {("", "malformed"): 1})
        waiting = inbox.count_contents()
        assert (waiting.batches, waiting.reports, waiting.unreadable) == (2, 3, 0)
        assert waiting.n_bytes > 100  # three uploads take more than 30 bytes each
        for _ in range(3):
            merge(engine, inbox, today=TODAY)
        assert inbox.count_contents() == InboxContents(0, 0, 0, 0)
    assert len([name for name in list_tables(engine) if name.startswith("inbox_")]) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)  # SQLite has one table
def test_dropped_table_raises_no_error(engine: Engine, database: str) -> None:
    """`count_contents` returns zeros if another host drops a table that it is about to count.

    `count_contents` reads the numbers of the tables first. The listener `drop` runs after this
    statement, and clears the sealed table by another connection.
    """
    append(engine, [parse_submission(build_upload())])
    with contextlib.closing(open_inbox(engine)) as inbox, open_database(database) as other_engine:
        inbox.seal()
        with write_transaction(engine) as db:
            assert len(inbox.take(db)) == 1

        @event.listens_for(engine, "after_cursor_execute")
        def drop(*args: Any) -> None:
            if "FROM inbox_number" in args[2]:
                open_inbox(other_engine).clear()

        assert inbox.count_contents() == InboxContents(0, 0, 0, 0)
        event.remove(engine, "after_cursor_execute", drop)
        assert "inbox_1" in list_tables(engine)
        inbox.clear()
        assert "inbox_1" not in list_tables(engine)


@ON_BOTH_DATABASES
@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([4, 6, 1], [[4, 6], [1]]),  # the second batch fits exactly
        ([4, 7, 3], [[4], [7, 3]]),
        ([2, 3, 4, 2, 3, 4], [[2, 3, 4], [2, 3, 4]]),
        ([11, 1, 12], [[11], [1], [12]]),  # a batch that is too large alone does not block others
        ([10, 10], [[10], [10]]),
    ],
)
def test_a_transaction_takes_batches_up_to_a_size(
    engine: Engine, sizes: list[int], expected: list[list[int]]
) -> None:
    """A transaction takes the next batches while all of them together have at most 10 bytes.

    It takes at least one batch. Each batch is taken once, in the order of arrival.
    """
    with contextlib.closing(open_inbox(engine, max_merge_bytes=10)) as inbox:
        for size in sizes:
            inbox.append(Batch(TODAY, 0, bytes(size)), {})
        inbox.seal()
        taken_sizes: list[list[int]] = []
        while not taken_sizes or taken_sizes[-1]:
            with write_transaction(engine) as db:
                taken_sizes.append([len(batch.data) for batch in inbox.take(db)])
    assert taken_sizes == [*expected, []]


def list_tables(engine: Engine) -> list[str]:
    """Return the names of the tables of a database."""
    return inspect(engine).get_table_names()


@ON_BOTH_DATABASES
def test_merged_batch_that_was_not_deleted_is_counted_once(engine: Engine) -> None:
    """A merge process is killed after it has counted a batch, and before it deletes the batch.

    The next merge process does not count the batch again.
    """
    append(engine, [parse_submission(build_upload())])

    class KilledError(Exception):
        """Error that ends the merge process."""

    class KilledInbox:
        """An inbox whose `clear` raises, as if the merge process were killed there."""

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
        commit(engine, build_upload())
    assert count_reports(engine) == 3


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)  # SQLite has one writer
def test_commit_order_differs_from_sequence_order(engine: Engine) -> None:
    """A batch is not lost if a batch with a larger number is committed before it.

    PostgreSQL numbers a batch when it is inserted, and others see it when it is committed. A merge
    that took all batches up to the largest number would lose a batch that is committed later. So
    the merge waits for the transaction `late`, and fails after a time limit.
    """
    with engine.connect() as late:
        late.exec_driver_sql("SELECT append_batch(%s, %s, %s)", tuple(make_batch()))
        append(engine, [parse_submission(build_upload())])
        with contextlib.closing(open_inbox(engine)) as inbox:
            with pytest.raises(StoreError):
                merge(engine, inbox, wait=True, today=TODAY)
            assert count_reports(engine) == 0
        late.commit()
    merge_now(engine)
    assert count_reports(engine) == 2


@ON_BOTH_DATABASES
def test_receivers_do_not_wait_for_a_merge(engine: Engine) -> None:
    """A receiver stores a batch while a merge runs, and the batch stays for the next merge.

    If a merge took the batches that come while it runs, it would never end under load.
    """
    append(engine, [parse_submission(build_upload())])
    with contextlib.closing(open_inbox(engine)) as inbox:
        inbox.seal()
        with write_transaction(engine) as db:
            assert len(inbox.take(db)) == 1
            thread = threading.Thread(
                target=append, args=(engine, [parse_submission(build_upload())])
            )
            thread.start()
            thread.join(20)  # seconds
            assert not thread.is_alive()
            assert not inbox.take(db)
            db.get_transaction().rollback()  # type: ignore[union-attr]
    merge_now(engine)
    assert count_reports(engine) == 2


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_dump_delays_neither_uploads_nor_merges(engine: Engine) -> None:
    """A dump of the database, by PostgreSQL's program for dumps, delays no upload and no merge.

    A table that the dump reads cannot be dropped before the dump ends. Merges use new tables
    meanwhile, and drop the old ones later, so two tables remain. SQLite never drops the table of
    its inbox, so the test needs PostgreSQL.
    """
    append(engine, [parse_submission(build_upload())])
    with engine.connect() as dump:
        for name in list_tables(engine):
            dump.execute(text(f'SELECT * FROM "{name}"'))  # noqa: S608
        for n in range(1, 4):
            merge_now(engine)
            assert count_reports(engine) == n
            append(engine, [parse_submission(build_upload())])
    merge_now(engine)
    assert count_reports(engine) == 4
    assert len([name for name in list_tables(engine) if name.startswith("inbox_")]) == 2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of an SQLite database with the schema of this version."""
    path = tmp_path / "counts.sqlite3"
    migrate(sqlite_url(path))
    return path


@pytest.fixture
def local(path: Path) -> Iterator[Engine]:
    """Open the SQLite database at `path`."""
    with open_database(sqlite_url(path)) as engine:
        yield engine


def test_only_the_owner_can_read_the_files(path: Path, local: Engine) -> None:
    """Only the owner can read the database, its inbox, and the logs of both."""
    append(local, [parse_submission(build_upload())])
    files = list(path.parent.glob(f"{path.name}*"))
    assert len(files) > 2
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_a_database_without_its_inbox_is_refused(path: Path, local: Engine) -> None:
    """A database whose inbox file is missing, or is an older copy, is refused.

    Without its inbox, a database would have lost batches silently. It works again with its inbox.
    A restored copy of the database works with a new inbox.
    """
    commit(local, build_upload())
    inbox = path.with_name(f"{path.name}-inbox")
    older = path.with_name("older")
    shutil.copy(inbox, older)
    commit(local, build_upload())
    newer = path.with_name("newer")
    inbox.rename(newer)
    for wrong in (None, older):
        inbox.unlink(missing_ok=True)
        if wrong is not None:
            shutil.copy(wrong, inbox)
        with pytest.raises(StoreError, match="must be the inbox of this database"):
            open_inbox(local)
    restored_path = path.with_name("fresh.sqlite3")
    restore(path, sqlite_url(restored_path), today=utc_today(), is_complete=True)
    with open_database(sqlite_url(restored_path)) as fresh_engine:
        commit(fresh_engine, build_upload())
        assert count_reports(fresh_engine) == 3
    newer.rename(inbox)
    commit(local, build_upload())
    assert count_reports(local) == 3


def test_right_inbox_is_accepted_while_another_collector_merges(
    local: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collector starts while another collector adds and merges a batch.

    At its start, a collector reads the sequence number of the last merged batch from the database.
    It then reads the largest sequence number that the inbox has assigned. An inbox whose number is
    smaller is an older copy, and is refused. The other collector increases both numbers immediately
    before the start reads the number of the database. Bad case: a start that read the inbox first
    would compare the number of the inbox before the merge with the number of the database after it,
    and would refuse the right inbox.
    """
    read_last_merged = SqliteInbox._read_last_merged
    is_merged = False

    def read_after_a_merge(inbox: SqliteInbox) -> int:
        nonlocal is_merged
        if not is_merged:
            # Set first: `commit` opens the inbox as well, and so calls this function again.
            is_merged = True
            commit(local, build_upload())
        return read_last_merged(inbox)

    monkeypatch.setattr(SqliteInbox, "_read_last_merged", read_after_a_merge)
    with contextlib.closing(open_inbox(local)) as inbox:
        assert inbox.count_contents() == InboxContents(0, 0, 0, 0)
    assert is_merged
    assert count_reports(local) == 1


def test_deleted_inbox_accepts_no_upload(path: Path, local: Engine) -> None:
    """A collector acknowledges no upload after its inbox file was deleted.

    SQLite would still write to the deleted file, and the upload would be lost.
    """
    commit(local, build_upload())
    with contextlib.closing(open_inbox(local)) as inbox:
        inbox.append(make_batch(), {})
        for file in path.parent.glob(f"{path.name}-inbox*"):
            file.unlink()
        for _ in range(2):
            with pytest.raises(StoreError) as caught:
                inbox.append(make_batch(), {})
            assert caught.value.retryable


@ON_BOTH_DATABASES
def test_a_batch_of_a_later_day_is_not_written(engine: Engine) -> None:
    """A batch is written only if its day of receipt is allowed.

    PostgreSQL determines the day itself, SQLite gets it.
    """
    given_day = None if engine.dialect.name == "postgresql" else utc_today()
    day, params = datetime.timedelta(days=1), {PARAMS.fingerprint: PARAMS.to_json()}
    batch = make_batch()._replace(day=given_day)
    with contextlib.closing(open_inbox(engine)) as inbox:
        assert not inbox.append(batch, params, through=utc_today() - day)
        assert inbox.count_contents().batches == 0
        # Midnight may pass during the test.
        assert inbox.append(batch, params, through=utc_today() + day)
        assert inbox.count_contents().batches == 1


@ON_BOTH_DATABASES
def test_backup_contains_no_single_report(engine: Engine, database: str, tmp_path: Path) -> None:
    """A backup contains counters and no single report: it merges the inbox before it copies.

    A batch that cannot be read is left out. A newer version of the collector may have written it.
    """
    submissions = [parse_submission(build_upload()) for _ in range(3)]
    append(engine, submissions)
    with contextlib.closing(open_inbox(engine)) as inbox:
        # The first byte of a batch is the version of its format. This collector reads version 1, so
        # a batch of version 9 cannot be read.
        inbox.append(Batch(TODAY, 1, b"\x09telltale"), {})
    backup(database, tmp_path / "copy")
    assert count_reports(engine) == 3
    assert [file.name for file in tmp_path.glob("copy*")] == ["copy"]
    assert b"\x09telltale" not in (tmp_path / "copy").read_bytes()
    with open_database(sqlite_url(tmp_path / "copy")) as copied:
        assert count_reports(copied) == 3
        append(copied, submissions)  # retries, which are not counted again
        append(copied, [parse_submission(build_upload())])
        merge_now(copied)
        assert count_reports(copied) == 4  # three reports before the backup, and one new report


def test_commits_of_sqlite_are_on_the_disk(path: Path, local: Engine) -> None:
    """The inbox of SQLite waits for the disk before it responds, and overwrites deleted batches."""
    assert path.exists()
    with contextlib.closing(open_inbox(local)) as inbox:
        assert isinstance(inbox, SqliteInbox)
        with inbox._inbox.connect() as db:
            values = [db.scalar(text(f"PRAGMA {name}")) for name in PRAGMAS]
    assert dict(zip(PRAGMAS, values, strict=True)) == PRAGMAS


PRAGMAS = {"synchronous": 2, "secure_delete": 1, "journal_mode": "wal"}
"""Pragmas of an inbox file. The value 2 of `synchronous` is FULL: a commit is on the disk."""


def test_uploads_go_to_the_file_at_the_path(path: Path, local: Engine) -> None:
    """Uploads that come after the database was replaced by a backup are counted there, once.

    The backup contains `first`. The second upload is lost with the old file. Then `first` is sent
    again, and two new uploads come.
    """
    commit(local, first := build_upload())
    saved = path.with_name("saved.bak")
    backup(sqlite_url(path), saved)
    commit(local, build_upload())  # lost with the old file
    restored_path = path.with_name("restored.sqlite3")
    restore(saved, sqlite_url(restored_path), today=utc_today(), is_complete=True)
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    restored_path.rename(path)
    bodies = [first, build_upload(), build_upload()]
    for body in bodies:
        assert commit(local, body) == [parse_submission(body).response]
    assert count_reports(local) == 3
    with open_database(sqlite_url(path)) as new_engine:
        assert count_reports(new_engine) == 3


def test_no_upload_is_stored_in_a_moved_file(path: Path, local: Engine) -> None:
    """A collector acknowledges no upload while the file of its database is moved away.

    After the file is back, the retry of the upload is counted.
    """
    commit(local, build_upload())
    moved_path = path.with_name("moved.sqlite3")
    with local.connect() as db:
        # The log stays behind, so its changes go to the file before the file is moved.
        db.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
    path.rename(moved_path)
    body = build_upload()
    with pytest.raises(StoreError) as caught:
        commit(local, body)
    assert caught.value.retryable
    assert not path.exists()
    moved_path.rename(path)
    commit(local, body)
    assert count_reports(local) == 2
