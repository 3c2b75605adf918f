"""The merge process: its schedule, its replacement, its status."""

from __future__ import annotations

from pathlib import Path

import pytest
from collectors import append, submission_of, total, upload_of
from hypothesis import given
from hypothesis import strategies as st
from programs import become
from rappor_server.operations.health import Health
from rappor_server.storage import schema
from rappor_server.storage.inbox import InboxContents
from rappor_server.storage.merge_process import MergeProcess, MergeSchedule, MergeStatus
from sqlalchemy import Engine, inspect, select, text

LOOK = 0.25


@given(st.lists(st.integers(0, 40), max_size=400), st.integers(0, 4000))
def test_no_batch_waits_long(arrivals: list[int], cells: int) -> None:
    """No batch waits for a minute, or for two seconds after the last upload.

    While batches come, a merge begins when there are eight reports for each counter.
    """
    schedule, now = MergeSchedule(0.0), 0.0
    ages: list[float] = []
    schedule.is_due(InboxContents(0, 0, 0, 0), now)
    schedule.record_merge(cells)
    for n in [*arrivals, *[0] * 8]:
        now += LOOK
        ages += [now] * n
        if schedule.is_due(InboxContents(len(ages), 100 * len(ages), 0, 0), now):
            is_quiet = now - ages[-1] >= 1
            assert is_quiet or now - ages[0] >= 50 or 100 * len(ages) >= max(8 * cells, 4096)
            ages.clear()
            schedule.is_due(InboxContents(0, 0, 0, 0), now)
        assert not ages or now - ages[0] < 60
        assert schedule.compute_oldest_age(now) <= (now - ages[0] if ages else 0) + LOOK
    assert not ages


def test_batches_at_the_start_are_merged_at_once() -> None:
    """A previous merge process may have left them for a minute."""
    assert MergeSchedule(0.0).is_due(InboxContents(1, 1, 1, 0), 0.1)


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_failing_merge_process_reports_its_failure(engine: Engine, database: str) -> None:
    """It continues when the failure ends, and merges all batches when its collector stops."""
    path = Path(str(engine.url.database))
    moved = path.with_name("moved")
    append(engine, [submission_of(upload_of())])
    states: list[MergeStatus] = []
    merge_process = MergeProcess(database, states.append)
    await become(lambda: states and not states[-1].failure)
    path.rename(moved)
    await become(lambda: states[-1].failure)
    moved.rename(path)
    await become(lambda: not states[-1].failure)
    append(engine, [submission_of(upload_of())])
    await merge_process.close()
    assert total(engine) == 2


def measure_leftovers(engine: Engine) -> int:
    """Return the bytes of SQLite's log, or the number of PostgreSQL's merged tables."""
    if engine.dialect.name == "sqlite":
        return Path(f"{engine.url.database}-wal").stat().st_size
    with engine.connect() as db:
        return len(db.execute(select(schema.inbox_number)).all()) - 1


@pytest.mark.slow
@pytest.mark.anyio
async def test_leftovers_are_erased_after_a_reader_ends(engine: Engine, database: str) -> None:
    """They are erased even if no further upload comes."""
    append(engine, [submission_of(upload_of())])
    states: list[MergeStatus] = []
    with engine.connect() as reader:
        for name in inspect(reader).get_table_names():
            reader.execute(text(f"SELECT * FROM {name}")).all()  # noqa: S608
        merge_process = MergeProcess(database, states.append)
        await become(lambda: any(state.merged.uploads for state in states))
        assert measure_leftovers(engine) > 0
    await become(lambda: measure_leftovers(engine) == 0)
    assert total(engine) == 1
    await merge_process.close()


def test_health_reports_failing_merges() -> None:
    """The log has one line for each change. After ten minutes the collector is not ready."""
    told: list[str] = []
    health = Health(write=lambda name, **_: told.append(name))
    for trouble, seconds in (("", 5.0), ("gone", 30.0), ("gone", 599.0), ("gone", 601.0)):
        health.record_merge(trouble, seconds)
    assert health.failure_reason() == "uploads are not counted: gone"
    health.record_merge("", 0.0)
    assert health.failure_reason() is None
    assert told == ["merging failed", "merging recovered"]
