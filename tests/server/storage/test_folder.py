"""When a folder folds, and that a collector always has one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from collectors import append, submission_of, total, upload_of
from hypothesis import given
from hypothesis import strategies as st
from rappor_server.health import Health
from rappor_server.storage import schema
from rappor_server.storage.database import migrate, sqlite_url
from rappor_server.storage.folder import Folder, Schedule, State
from rappor_server.storage.inbox import Waiting
from rappor_server.storage.store import Store
from sqlalchemy import inspect, select, text

LOOK = 0.25


@given(st.lists(st.integers(0, 40), max_size=400), st.integers(0, 4000))
def test_no_group_waits_for_long(arrivals: list[int], cells: int) -> None:
    """None waits for a minute, nor two seconds when nothing more comes; few are folded alone.

    While groups come, nothing is folded before it is worth it: eight reports for each counter.
    """
    schedule, now = Schedule(0.0), 0.0
    ages: list[float] = []
    schedule.is_due(Waiting(0, 0, 0, 0), now)
    schedule.folded(cells)
    for n in [*arrivals, *[0] * 8]:
        now += LOOK
        ages += [now] * n
        if schedule.is_due(Waiting(len(ages), 100 * len(ages), 0, 0), now):
            is_quiet = now - ages[-1] >= 1
            assert is_quiet or now - ages[0] >= 50 or 100 * len(ages) >= max(8 * cells, 4096)
            ages.clear()
            schedule.is_due(Waiting(0, 0, 0, 0), now)
        assert not ages or now - ages[0] < 60
        assert schedule.oldest(now) <= (now - ages[0] if ages else 0) + LOOK
    assert not ages


def test_what_a_folder_finds_at_its_start_is_folded_at_once() -> None:
    """Whoever was there before may have left it for a minute."""
    assert Schedule(0.0).is_due(Waiting(1, 1, 1, 0), 0.1)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition comes true."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.05)


@pytest.mark.slow
def test_a_folder_that_cannot_fold_says_so(tmp_path: Path) -> None:
    """It goes on when it can, and folds all that is left when its collector ends."""
    address = sqlite_url(tmp_path / "counts.sqlite3")
    migrate(address)
    store = Store.open(address)
    moved = tmp_path / "moved"
    append(store, [submission_of(upload_of())])
    states: list[State] = []

    async def trial() -> None:
        folder = Folder(address, states.append)
        await until(lambda: bool(states) and not states[-1].trouble)
        (tmp_path / "counts.sqlite3").rename(moved)
        await until(lambda: bool(states[-1].trouble))
        moved.rename(tmp_path / "counts.sqlite3")
        await until(lambda: bool(states) and not states[-1].trouble)
        append(store, [submission_of(upload_of())])
        await folder.close()

    asyncio.run(trial())
    assert total(store) == 2
    store.close()


def leftovers(store: Store) -> int:
    """Return the bytes of SQLite's log, or the number of PostgreSQL's tables that are folded."""
    if store.engine.dialect.name == "sqlite":
        return Path(f"{store.engine.url.database}-wal").stat().st_size
    with store.engine.connect() as db:
        return len(db.execute(select(schema.segment)).all()) - 1


@pytest.mark.slow
def test_what_a_reader_holds_is_erased_when_it_has_ended(store: Store) -> None:
    """Although nothing more comes that would be folded."""
    append(store, [submission_of(upload_of())])
    states: list[State] = []

    async def trial() -> None:
        address = store.engine.url.render_as_string(hide_password=False)
        with store.engine.connect() as reader:
            for name in inspect(reader).get_table_names():
                reader.execute(text(f"SELECT * FROM {name}")).all()  # noqa: S608
            folder = Folder(address, states.append)
            await until(lambda: any(state.folded.uploads for state in states))
            assert leftovers(store) > 0
        await until(lambda: leftovers(store) == 0)
        assert total(store) == 1
        await folder.close()

    asyncio.run(trial())


def test_health_tells_that_nobody_folds() -> None:
    """The log has one line for each change; after ten minutes the collector is not ready."""
    told: list[str] = []
    health = Health(write=lambda name, **_: told.append(name))
    for trouble, seconds in (("", 5.0), ("gone", 30.0), ("gone", 599.0), ("gone", 601.0)):
        health.folded(trouble, seconds)
    assert health.trouble() == "uploads wait to be counted: gone"
    health.folded("", 0.0)
    assert health.trouble() is None
    assert told == ["folding failed", "folding recovered"]
