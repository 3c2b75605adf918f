"""When a folder folds, and that a collector always has one."""

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
def test_no_group_waits_for_long(arrivals: list[int], cells: int) -> None:
    """None waits for a minute, nor two seconds when nothing more comes; few are folded alone.

    While groups come, nothing is folded before it is worth it: eight reports for each counter.
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


def test_what_a_folder_finds_at_its_start_is_folded_at_once() -> None:
    """Whoever was there before may have left it for a minute."""
    assert MergeSchedule(0.0).is_due(InboxContents(1, 1, 1, 0), 0.1)


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_folder_that_cannot_fold_says_so(engine: Engine, database: str) -> None:
    """It goes on when it can, and folds all that is left when its collector ends."""
    path = Path(str(engine.url.database))
    moved = path.with_name("moved")
    append(engine, [submission_of(upload_of())])
    states: list[MergeStatus] = []
    folder = MergeProcess(database, states.append)
    await become(lambda: states and not states[-1].failure)
    path.rename(moved)
    await become(lambda: states[-1].failure)
    moved.rename(path)
    await become(lambda: not states[-1].failure)
    append(engine, [submission_of(upload_of())])
    await folder.close()
    assert total(engine) == 2


def leftovers(engine: Engine) -> int:
    """Return the bytes of SQLite's log, or the number of PostgreSQL's tables that are folded."""
    if engine.dialect.name == "sqlite":
        return Path(f"{engine.url.database}-wal").stat().st_size
    with engine.connect() as db:
        return len(db.execute(select(schema.inbox_number)).all()) - 1


@pytest.mark.slow
@pytest.mark.anyio
async def test_what_a_reader_holds_is_erased_when_it_has_ended(
    engine: Engine, database: str
) -> None:
    """Although nothing more comes that would be folded."""
    append(engine, [submission_of(upload_of())])
    states: list[MergeStatus] = []
    with engine.connect() as reader:
        for name in inspect(reader).get_table_names():
            reader.execute(text(f"SELECT * FROM {name}")).all()  # noqa: S608
        folder = MergeProcess(database, states.append)
        await become(lambda: any(state.merged.uploads for state in states))
        assert leftovers(engine) > 0
    await become(lambda: leftovers(engine) == 0)
    assert total(engine) == 1
    await folder.close()


def test_health_tells_that_nobody_folds() -> None:
    """The log has one line for each change; after ten minutes the collector is not ready."""
    told: list[str] = []
    health = Health(write=lambda name, **_: told.append(name))
    for trouble, seconds in (("", 5.0), ("gone", 30.0), ("gone", 599.0), ("gone", 601.0)):
        health.record_merge(trouble, seconds)
    assert health.failure_reason() == "uploads are not counted: gone"
    health.record_merge("", 0.0)
    assert health.failure_reason() is None
    assert told == ["merging failed", "merging recovered"]
