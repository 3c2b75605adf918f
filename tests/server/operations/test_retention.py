"""Retention: deletion of the deduplication keys of uploads after 14 days."""

from __future__ import annotations

from pathlib import Path

import pytest
from collectors import (
    TODAY,
    append,
    commit,
    count_group,
    day,
    report_of,
    rows_of,
    submission_of,
    total,
    upload_of,
)
from rappor_server.base.errors import StoreError
from rappor_server.operations.retention import count_overdue_days, prune
from rappor_server.storage import day_tables, schema
from rappor_server.storage.database import write_transaction
from sqlalchemy import Engine, delete, event, inspect, text


def test_keys_of_a_day_are_deleted_after_14_days(engine: Engine) -> None:
    """Keys are deleted with the table of their day. Newer keys and counts stay."""
    commit(engine, *[upload_of(report_of("sound"))] * 3, upload_of(report_of("sound")))
    commit(engine, upload_of(report_of("sound")), today=day(1))
    commit(engine, upload_of(report_of("sound")), today=day(2))
    assert [count_overdue_days(engine, day(on)) for on in (0, 14, 15, 20)] == [0, 0, 1, 6]
    assert prune(engine, today=day(14)) == 0
    assert {row["day"] for row in rows_of(engine, day_tables.UPLOAD)} == {day(0), day(1), day(2)}
    assert prune(engine, today=day(15)) == 2
    assert {row["day"] for row in rows_of(engine, day_tables.UPLOAD)} == {day(1), day(2)}
    tables = inspect(engine).get_table_names()
    assert not [name for name in tables if "upload_20261121" in name]
    assert total(engine, "sound") == 4


def test_retry_renews_its_key(engine: Engine) -> None:
    """A key is stored until 14 days after the latest retry. The upload is counted once."""
    body = upload_of()
    commit(engine, body)
    assert commit(engine, body, today=day(14)) == [submission_of(body).response]
    prune(engine, today=day(15))
    assert commit(engine, body, today=day(28)) == [submission_of(body).response]
    assert total(engine) == 1
    assert {row["day"] for row in rows_of(engine, day_tables.UPLOAD)} == {day(14), day(28)}


def test_prune_completes_a_killed_prune(engine: Engine) -> None:
    """A table that was renamed but not deleted is deleted by the next run."""
    commit(engine, upload_of())
    with write_transaction(engine) as db:
        db.execute(text("ALTER TABLE upload_20261121 RENAME TO forgotten_upload_20261121"))
        db.execute(delete(schema.day_table))
    assert prune(engine, today=day(1)) == 1
    assert "forgotten_upload_20261121" not in inspect(engine).get_table_names()


def test_large_tables_leave_use_without_a_scan(engine: Engine) -> None:
    """The first statement renames the table of an expired day, and reads no row of the table.

    A statement that counted or deleted the rows first would delay uploads for seconds.
    """
    commit(engine, upload_of())
    first_words: list[str] = []  # of the statements that name the table, such as SELECT

    def record_statement(statement: str) -> None:
        if "upload_20261121" in statement:
            first_words.append(statement.split(maxsplit=1)[0])

    event.listen(engine, "before_cursor_execute", lambda *args: record_statement(args[2]))
    assert day_tables.drop_days(engine, day_tables.UPLOAD, before=day(1)) == 1
    assert first_words[0] == "ALTER"


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)  # PostgreSQL vacuums
def test_deleted_keys_leave_no_trace_in_the_files(engine: Engine, tmp_path: Path) -> None:
    """Deleted keys are neither in the SQLite file nor in its write-ahead log."""
    submissions = [submission_of(upload_of()) for _ in range(50)]
    count_group(engine, submissions, today=TODAY)

    def count_traces() -> int:
        """Return the number of keys and of names of deleted tables in the files."""
        data = b"".join(path.read_bytes() for path in tmp_path.glob("counts.sqlite3*"))
        n_keys = sum(submission.key in data for submission in submissions)
        return n_keys + data.count(b"forgotten")

    assert count_traces() == 50
    assert prune(engine, today=day(30)) == 50
    assert count_traces() == 0


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)  # SQLite does not wait
@pytest.mark.slow
def test_prune_fails_while_a_backup_reads_a_table(engine: Engine) -> None:
    """`prune` fails after some seconds, and the next run deletes the table."""
    commit(engine, upload_of())
    with engine.connect() as db:
        db.execute(text("SELECT * FROM upload_20261121"))
        with pytest.raises(StoreError, match="is still read, perhaps for a backup"):
            day_tables.drop_days(engine, day_tables.UPLOAD, before=day(1))
        append(engine, [submission_of(upload_of())])
    assert day_tables.drop_days(engine, day_tables.UPLOAD, before=day(1)) == 1
