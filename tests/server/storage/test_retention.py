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
from rappor_server.errors import StoreError
from rappor_server.storage import day_tables, schema
from rappor_server.storage.database import writing
from rappor_server.storage.retention import prune
from sqlalchemy import Engine, delete, event, inspect, text


@pytest.mark.parametrize(("kind", "days"), [(day_tables.UPLOAD, 14), (day_tables.KEPT, 30)])
def test_a_day_is_forgotten_after_its_window(engine: Engine, kind: str, days: int) -> None:
    """Keys and raw reports are deleted with their day's table, no younger one; counts stay."""
    commit(engine, *[upload_of(report_of("sound"))] * 3, upload_of(report_of("sound")))
    commit(engine, upload_of(report_of("sound")), today=day(1))
    commit(engine, upload_of(report_of("sound")), today=day(2))
    prune(engine, today=day(days), report_days=30)
    assert {row["day"] for row in rows_of(engine, kind)} == {day(0), day(1), day(2)}
    pruned = prune(engine, today=day(days + 1), report_days=30)
    assert (pruned.keys if kind == day_tables.UPLOAD else pruned.reports) == 2
    assert {row["day"] for row in rows_of(engine, kind)} == {day(1), day(2)}
    tables = inspect(engine).get_table_names()
    assert not [name for name in tables if f"{kind}_20261121" in name]
    assert total(engine, "sound") == 4


def test_a_retry_renews_the_day_of_its_id(engine: Engine) -> None:
    """An id is known for 14 days after its latest retry, and still counts once."""
    body = upload_of()
    commit(engine, body)
    assert commit(engine, body, today=day(14)) == [submission_of(body).answer]
    prune(engine, today=day(15), report_days=90)
    assert commit(engine, body, today=day(28)) == [submission_of(body).answer]
    assert total(engine) == 1
    assert {row["day"] for row in rows_of(engine, day_tables.UPLOAD)} == {day(14), day(28)}


def test_tables_left_by_a_killed_prune_are_deleted_by_the_next(engine: Engine) -> None:
    """A table that was taken out of use, but not yet deleted, goes with the next run."""
    commit(engine, upload_of())
    with writing(engine) as db:
        db.execute(text("ALTER TABLE upload_20261121 RENAME TO forgotten_upload_20261121"))
        db.execute(delete(schema.day_table))
    assert prune(engine, today=day(1), report_days=90).keys == 1
    assert "forgotten_upload_20261121" not in inspect(engine).get_table_names()


def test_ids_are_forgotten_before_their_table_is_read(engine: Engine) -> None:
    """However large a table is, it is out of use after a step that looks at none of its rows."""
    commit(engine, upload_of())
    seen: list[str] = []

    def note(statement: str) -> None:
        if "upload_20261121" in statement:
            seen.append(statement.split(maxsplit=1)[0])

    event.listen(engine, "before_cursor_execute", lambda *given: note(given[2]))
    assert day_tables.forget(engine, day_tables.UPLOAD, before=day(1)) == 1
    assert seen[0] == "ALTER"


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)  # SQLite sorts by keys
def test_kept_reports_of_a_finished_day_are_written_by_one_transaction(engine: Engine) -> None:
    """On PostgreSQL no row tells any more which others were written with it, or in what order."""
    for i in range(20):
        commit(engine, upload_of(report_of("sound", bits=i % 2)))
    for today in (day(1), day(2)):  # the second time there is nothing to do
        prune(engine, today=today, report_days=90)
        query = text("SELECT COUNT(DISTINCT xmin::text), array_agg(key ORDER BY ctid) FROM {}")
        with engine.connect() as db:
            writers, keys = db.execute(text(query.text.format("kept_20261121"))).one()
        assert writers == 1
        assert keys == sorted(keys)
        assert len(keys) == 20
    for _ in range(2):  # clocks that lag
        commit(engine, upload_of(report_of("sound")))
    assert len(rows_of(engine, day_tables.KEPT)) == 22
    prune(engine, today=day(3), report_days=90)
    with engine.connect() as db:
        writers, keys = db.execute(text(query.text.format("kept_20261121"))).one()
    assert (writers, len(keys)) == (1, 22)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)  # PostgreSQL vacuums
def test_forgotten_ids_leave_no_trace_in_the_files(engine: Engine, tmp_path: Path) -> None:
    """Deleted ids are neither in SQLite's file nor in its log."""
    ids = [submission_of(upload_of()) for _ in range(50)]
    count_group(engine, ids, today=TODAY)

    def found() -> int:
        data = b"".join(path.read_bytes() for path in tmp_path.glob("counts.sqlite3*"))
        return sum(submission.key in data for submission in ids) + data.count(b"forgotten")

    assert found() == 50
    assert prune(engine, today=day(30), report_days=90).keys == 50
    assert found() == 0


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)  # SQLite does not wait
@pytest.mark.slow
def test_a_table_that_is_still_read_is_deleted_by_the_next_run(engine: Engine) -> None:
    """While a backup reads a table that is due, `prune` fails after some seconds, and says so."""
    commit(engine, upload_of())
    with engine.connect() as db:
        db.execute(text("SELECT * FROM upload_20261121"))
        with pytest.raises(StoreError, match="is still read, perhaps for a backup"):
            day_tables.forget(engine, day_tables.UPLOAD, before=day(1))
        append(engine, [submission_of(upload_of())])
    assert day_tables.forget(engine, day_tables.UPLOAD, before=day(1)) == 1
