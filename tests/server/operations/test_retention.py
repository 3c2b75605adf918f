"""Retention: deletion of the deduplication keys of uploads after 14 days."""

from __future__ import annotations

from pathlib import Path

import pytest
from collectors import (
    TODAY,
    append,
    build_report,
    build_upload,
    commit,
    count_reports,
    day,
    parse_submission,
    read_day_rows,
    store_and_merge,
)
from databases import ON_BOTH_DATABASES
from rappor_server.base.errors import StoreError
from rappor_server.operations.retention import count_overdue_days, prune
from rappor_server.storage import day_tables, schema
from rappor_server.storage.database import open_database, write_transaction
from sqlalchemy import Connection, Engine, delete, event, inspect, text


@ON_BOTH_DATABASES
def test_keys_of_a_day_are_deleted_after_14_days(engine: Engine) -> None:
    """The deduplication keys of a day are deleted when they are more than 14 days old.

    A device gives up an upload after 7 days, so no retry needs an older key, and a key that is kept
    longer would only help to recognise an upload. The keys of a day are one table, which is deleted
    as a whole. Keys of later days and the counted reports stay. On day 0 one upload arrives three
    times and is counted once, so the day has two keys.
    """
    commit(engine, *[build_upload(build_report("sound"))] * 3, build_upload(build_report("sound")))
    commit(engine, build_upload(build_report("sound")), today=day(1))
    commit(engine, build_upload(build_report("sound")), today=day(2))
    assert [count_overdue_days(engine, day(on)) for on in (0, 14, 15, 20)] == [0, 0, 1, 6]
    assert prune(engine, today=day(14)) == 0
    assert {row["day"] for row in read_day_rows(engine, day_tables.UPLOAD)} == {
        day(0),
        day(1),
        day(2),
    }
    assert prune(engine, today=day(15)) == 2
    assert {row["day"] for row in read_day_rows(engine, day_tables.UPLOAD)} == {day(1), day(2)}
    tables = inspect(engine).get_table_names()
    assert not [name for name in tables if "upload_20261121" in name]
    assert count_reports(engine, "sound") == 4


def test_retry_renews_its_key(engine: Engine) -> None:
    """A retry stores the key again with its own day, so that a chain of retries is counted once.

    The response to a retry is the response to the first attempt.
    """
    body = build_upload()
    commit(engine, body)
    assert commit(engine, body, today=day(14)) == [parse_submission(body).response]
    prune(engine, today=day(15))
    assert commit(engine, body, today=day(28)) == [parse_submission(body).response]
    assert count_reports(engine) == 1
    assert {row["day"] for row in read_day_rows(engine, day_tables.UPLOAD)} == {day(14), day(28)}


@ON_BOTH_DATABASES
def test_prune_completes_a_killed_prune(engine: Engine) -> None:
    """A table that a killed `prune` has renamed but not deleted is deleted by the next run.

    `prune` renames the table of an expired day first, and removes its row from the list of tables.
    A process that is killed between the two steps leaves a table that no list names.
    """
    commit(engine, build_upload())
    with write_transaction(engine) as db:
        db.execute(text("ALTER TABLE upload_20261121 RENAME TO forgotten_upload_20261121"))
        db.execute(delete(schema.day_table))
    assert prune(engine, today=day(1)) == 1
    assert "forgotten_upload_20261121" not in inspect(engine).get_table_names()


@ON_BOTH_DATABASES
def test_two_processes_drop_the_same_table(engine: Engine, database: str) -> None:
    """A table that another process drops at the same time is no error, and is counted once.

    Case: two hosts run `prune` at the same minute. Both find the renamed table. Directly before the
    first process begins to drop the table, the second process drops it.
    """
    commit(engine, build_upload())
    n_connections, n_dropped = 0, 0

    def drop_before(_: Connection) -> None:
        nonlocal n_connections, n_dropped
        n_connections += 1
        # The first connection renames the table, the next two list the tables, and the fourth one
        # drops the table.
        if n_connections == 4:
            with open_database(database) as other:
                n_dropped += day_tables.drop_days(other, day_tables.UPLOAD, before=day(1))

    event.listen(engine, "engine_connect", drop_before)
    assert day_tables.drop_days(engine, day_tables.UPLOAD, before=day(1)) == 0
    assert (n_connections, n_dropped) == (4, 1)
    assert "forgotten_upload_20261121" not in inspect(engine).get_table_names()


def test_large_tables_leave_use_without_a_scan(engine: Engine) -> None:
    """The first statement renames the table of an expired day, and reads no row of the table.

    A statement that counted or deleted the rows first would delay uploads for seconds.
    """
    commit(engine, build_upload())
    first_words: list[str] = []  # of the statements that name the table, such as SELECT

    def record_statement(statement: str) -> None:
        if "upload_20261121" in statement:
            first_words.append(statement.split(maxsplit=1)[0])

    event.listen(engine, "before_cursor_execute", lambda *args: record_statement(args[2]))
    assert day_tables.drop_days(engine, day_tables.UPLOAD, before=day(1)) == 1
    assert first_words[0] == "ALTER"


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)  # PostgreSQL vacuums
def test_deleted_keys_leave_no_trace_in_the_files(engine: Engine, tmp_path: Path) -> None:
    """Deleted keys are neither in the SQLite file nor in its write-ahead log.

    SQLite usually marks deleted rows as free and leaves their bytes. A thief of the file could then
    test whether a certain upload was counted.
    """
    submissions = [parse_submission(build_upload()) for _ in range(50)]
    store_and_merge(engine, submissions, today=TODAY)

    def count_traces() -> int:
        """Return the number of keys and of names of deleted tables in the files."""
        data = b"".join(path.read_bytes() for path in tmp_path.glob("counts.sqlite3*"))
        n_keys = sum(submission.key in data for submission in submissions)
        # Deleted tables were renamed before: "forgotten_" and their name. The table of blocks has a
        # column "forgotten".
        return n_keys + data.count(b"forgotten_")

    assert count_traces() == 50
    assert prune(engine, today=day(30)) == 50
    assert count_traces() == 0


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)  # SQLite does not wait
@pytest.mark.slow
def test_prune_fails_while_a_backup_reads_a_table(engine: Engine) -> None:
    """`prune` fails after some seconds while a backup reads a table, and the next run deletes it.

    PostgreSQL renames a table only when no transaction reads the table, and merges would queue
    behind a `prune` that waits for a backup of hours. Uploads are still stored after the failure.
    """
    commit(engine, build_upload())
    with engine.connect() as db:
        db.execute(text("SELECT * FROM upload_20261121"))
        with pytest.raises(StoreError, match="is still read, perhaps for a backup"):
            day_tables.drop_days(engine, day_tables.UPLOAD, before=day(1))
        append(engine, [parse_submission(build_upload())])
    assert day_tables.drop_days(engine, day_tables.UPLOAD, before=day(1)) == 1
