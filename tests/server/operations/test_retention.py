"""What is deleted when its time is over."""

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
from rappor_server.operations.retention import prune
from rappor_server.storage import day_tables, schema
from rappor_server.storage.database import write_transaction
from sqlalchemy import Engine, delete, event, inspect, text


def test_keys_of_a_day_are_deleted_after_14_days(engine: Engine) -> None:
    """Keys are deleted with their day's table, and no younger ones; counts stay."""
    commit(engine, *[upload_of(report_of("sound"))] * 3, upload_of(report_of("sound")))
    commit(engine, upload_of(report_of("sound")), today=day(1))
    commit(engine, upload_of(report_of("sound")), today=day(2))
    assert prune(engine, today=day(14)) == 0
    assert {row["day"] for row in rows_of(engine, day_tables.UPLOAD)} == {day(0), day(1), day(2)}
    assert prune(engine, today=day(15)) == 2
    assert {row["day"] for row in rows_of(engine, day_tables.UPLOAD)} == {day(1), day(2)}
    tables = inspect(engine).get_table_names()
    assert not [name for name in tables if "upload_20261121" in name]
    assert total(engine, "sound") == 4


def test_a_retry_renews_the_day_of_its_id(engine: Engine) -> None:
    """An id is known for 14 days after its latest retry, and still counts once."""
    body = upload_of()
    commit(engine, body)
    assert commit(engine, body, today=day(14)) == [submission_of(body).response]
    prune(engine, today=day(15))
    assert commit(engine, body, today=day(28)) == [submission_of(body).response]
    assert total(engine) == 1
    assert {row["day"] for row in rows_of(engine, day_tables.UPLOAD)} == {day(14), day(28)}


def test_tables_left_by_a_killed_prune_are_deleted_by_the_next(engine: Engine) -> None:
    """A table that was taken out of use, but not yet deleted, goes with the next run."""
    commit(engine, upload_of())
    with write_transaction(engine) as db:
        db.execute(text("ALTER TABLE upload_20261121 RENAME TO forgotten_upload_20261121"))
        db.execute(delete(schema.day_table))
    assert prune(engine, today=day(1)) == 1
    assert "forgotten_upload_20261121" not in inspect(engine).get_table_names()


def test_ids_are_forgotten_before_their_table_is_read(engine: Engine) -> None:
    """However large a table is, it is out of use after a step that looks at none of its rows."""
    commit(engine, upload_of())
    seen: list[str] = []

    def note(statement: str) -> None:
        if "upload_20261121" in statement:
            seen.append(statement.split(maxsplit=1)[0])

    event.listen(engine, "before_cursor_execute", lambda *given: note(given[2]))
    assert day_tables.drop_days(engine, day_tables.UPLOAD, before=day(1)) == 1
    assert seen[0] == "ALTER"


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)  # PostgreSQL vacuums
def test_forgotten_ids_leave_no_trace_in_the_files(engine: Engine, tmp_path: Path) -> None:
    """Deleted ids are neither in SQLite's file nor in its log."""
    ids = [submission_of(upload_of()) for _ in range(50)]
    count_group(engine, ids, today=TODAY)

    def found() -> int:
        data = b"".join(path.read_bytes() for path in tmp_path.glob("counts.sqlite3*"))
        return sum(submission.key in data for submission in ids) + data.count(b"forgotten")

    assert found() == 50
    assert prune(engine, today=day(30)) == 50
    assert found() == 0


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)  # SQLite does not wait
@pytest.mark.slow
def test_a_table_that_is_still_read_is_deleted_by_the_next_run(engine: Engine) -> None:
    """While a backup reads a table that is due, `prune` fails after some seconds, and says so."""
    commit(engine, upload_of())
    with engine.connect() as db:
        db.execute(text("SELECT * FROM upload_20261121"))
        with pytest.raises(StoreError, match="is still read, perhaps for a backup"):
            day_tables.drop_days(engine, day_tables.UPLOAD, before=day(1))
        append(engine, [submission_of(upload_of())])
    assert day_tables.drop_days(engine, day_tables.UPLOAD, before=day(1)) == 1
