"""The merge process: when it merges, how it reports failures, and what it erases."""

from __future__ import annotations

from pathlib import Path

import pytest
from collectors import append, build_upload, count_reports, parse_submission
from databases import ON_BOTH_DATABASES
from hypothesis import given
from hypothesis import strategies as st
from programs import wait_in_event_loop
from rappor_server.operations.health import Health
from rappor_server.storage import schema
from rappor_server.storage.inbox import InboxContents
from rappor_server.storage.merge_process import MergeProcess, MergeSchedule, MergeStatus
from sqlalchemy import Engine, inspect, select, text

POLL_SECONDS = 0.25
"""Separates two looks at the inbox, in seconds. The merge process uses the same value."""


@given(st.lists(st.integers(0, 40), max_size=400), st.integers(0, 4000))
def test_no_batch_waits_long(arrivals: list[int], n_counters: int) -> None:
    """No batch waits for a minute, or for two seconds after the last batch.

    `arrivals` has the number of batches that come between two looks at the inbox. They come
    directly after the first of the two looks, and each has 100 reports. While batches come, a merge
    begins when the inbox has 16 reports for each counter, and at least 4,096 reports. It begins
    with fewer reports if no batch has come for a second, or if the oldest batch is 50 seconds old.

    The age that the schedule computes is an upper bound. It exceeds the age of the oldest batch by
    less than the time between two looks.
    """
    schedule, now = MergeSchedule(0.0), 0.0
    times: list[float] = []  # when each batch of the inbox came, in seconds
    schedule.is_due(InboxContents(0, 0, 0, 0), now)
    schedule.record_merge(n_counters)
    # Eight looks without a batch are two seconds.
    for n_batches in [*arrivals, *[0] * 8]:
        times += [now + POLL_SECONDS / 8] * n_batches
        now += POLL_SECONDS
        n_reports = 100 * len(times)
        has_enough_reports = n_reports >= max(16 * n_counters, 4096)
        if schedule.is_due(InboxContents(len(times), n_reports, 0, 0), now):
            is_quiet = now - times[-1] >= 1
            assert is_quiet or now - times[0] >= 50 or has_enough_reports
            times.clear()
            schedule.is_due(InboxContents(0, 0, 0, 0), now)
        else:
            assert not has_enough_reports
        assert not times or now - times[0] < 60
        age = now - times[0] if times else 0.0
        assert age <= schedule.compute_oldest_age(now) <= age + POLL_SECONDS
    assert not times


def test_batches_at_the_start_are_merged_at_once() -> None:
    """Batches that are in the inbox at the start are merged at once, because they may be old."""
    assert MergeSchedule(0.0).is_due(InboxContents(1, 1, 1, 0), 0.1)


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_failing_merge_process_reports_its_failure(engine: Engine, database: str) -> None:
    """The merge process reports a missing database, and continues when the database is back.

    It merges all batches before it ends.
    """
    path = Path(str(engine.url.database))
    moved_path = path.with_name("moved")
    append(engine, [parse_submission(build_upload())])
    states: list[MergeStatus] = []
    merge_process = MergeProcess(database, states.append)
    await wait_in_event_loop(lambda: states and not states[-1].failure)
    path.rename(moved_path)
    await wait_in_event_loop(lambda: states[-1].failure)
    moved_path.rename(path)
    await wait_in_event_loop(lambda: not states[-1].failure)
    append(engine, [parse_submission(build_upload())])
    await merge_process.close()
    assert count_reports(engine) == 2


def measure_leftovers(engine: Engine) -> int:
    """Return the bytes of SQLite's log, or the number of PostgreSQL's merged tables."""
    if engine.dialect.name == "sqlite":
        return Path(f"{engine.url.database}-wal").stat().st_size
    with engine.connect() as db:
        return len(db.execute(select(schema.inbox_number)).all()) - 1


@ON_BOTH_DATABASES
@pytest.mark.slow
@pytest.mark.anyio
async def test_leftovers_are_erased_after_a_reader_ends(engine: Engine, database: str) -> None:
    """Merged reports in SQLite's log or PostgreSQL's tables are erased when no reader needs them.

    They are erased even if no further upload comes.
    """
    append(engine, [parse_submission(build_upload())])
    states: list[MergeStatus] = []
    with engine.connect() as reader:
        for name in inspect(reader).get_table_names():
            reader.execute(text(f"SELECT * FROM {name}")).all()  # noqa: S608
        merge_process = MergeProcess(database, states.append)
        await wait_in_event_loop(lambda: any(state.merged.uploads for state in states))
        assert measure_leftovers(engine) > 0
    await wait_in_event_loop(lambda: measure_leftovers(engine) == 0)
    assert count_reports(engine) == 1
    await merge_process.close()


def test_health_reports_failing_merges() -> None:
    """The collector is not ready if merges fail, and the oldest batch is older than ten minutes.

    The log has one line when merges begin to fail, and one when they work again.
    """
    log_lines: list[str] = []
    health = Health(write=lambda name, **_: log_lines.append(name))
    for failure, oldest_seconds in (("", 5.0), ("gone", 30.0), ("gone", 600.0)):
        health.record_merge(failure, oldest_seconds)
        assert health.failure_reason() is None
    health.record_merge("gone", 601.0)
    assert health.failure_reason() == "uploads are not counted: gone"
    health.record_merge("", 0.0)
    assert health.failure_reason() is None
    assert log_lines == ["merging failed", "merging recovered"]
