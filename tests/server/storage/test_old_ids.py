"""Ids of earlier days in memory: however many are read, none that is stored is taken for new."""

from __future__ import annotations

import contextlib
import datetime
import secrets
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from collectors import TODAY, commit, submission_of, total, upload_of
from rappor_server.errors import StoreError
from rappor_server.storage import day_tables, schema
from rappor_server.storage.database import writing
from rappor_server.storage.old_ids import OldIds, _run_beside
from rappor_server.storage.store import Store
from sqlalchemy import event, select, text

N_DAYS = 3
N_IDS = 7


def day(i: int) -> datetime.date:
    """Return the i-th day after the first one."""
    return TODAY + datetime.timedelta(days=i)


def fill(store: Store) -> list[list[bytes]]:
    """Store uploads on some days; return their bodies by day."""
    bodies = [[upload_of() for _ in range(N_IDS)] for _ in range(N_DAYS)]
    for i, each in enumerate(bodies):
        commit(store, *each, today=day(i))
    return bodies


def ids_of(bodies: list[bytes]) -> set[bytes]:
    """Return the hashes under which uploads are stored."""
    return {submission_of(body).id for body in bodies}


def read(store: Store, known: OldIds) -> None:
    """Read a step of the tables of all days but the newest."""
    with writing(store.engine) as db:
        known.expect(day_tables.days_of(db, day_tables.UPLOAD)[1:])
        known.read_step(db)


def joining(most: int) -> Callable[[Callable[[], None]], None]:
    """Return what joins at once the first few times, and never again: as a thread that is late."""
    left = [None] * most

    def run(work: Callable[[], None]) -> None:
        if left:
            left.pop()
            work()

    return run


@pytest.mark.parametrize("most_joins", [0, 1, 100])
@pytest.mark.parametrize("step", [1, 3, N_IDS, 100])
def test_every_id_that_was_read_is_suspected(store: Store, step: int, most_joins: int) -> None:
    """The newest day comes first, and a day counts as read once all of its ids are known."""
    bodies = fill(store)
    known = OldIds(step=step, run=joining(most_joins))
    assert not known.is_done()
    while not known.is_done():
        read(store, known)
        unread = known.unread()
        assert unread == [day(i) for i in reversed(range(len(unread)))]
        for i in range(len(unread), N_DAYS - 1):
            assert set(known.suspects(ids_of(bodies[i]))) == ids_of(bodies[i])
    assert known.unread() == []


@pytest.mark.parametrize("most_joins", [0, 1, 100])
def test_a_day_that_is_read_again_has_its_new_ids(store: Store, most_joins: int) -> None:
    """What was joined before is not searched once a table was dropped and made anew."""
    fill(store)
    known = OldIds(run=joining(most_joins))
    while not known.is_done():
        read(store, known)
    table = day_tables.table_of(day_tables.UPLOAD, day(0))
    body = upload_of()
    row = {"id": submission_of(body).id, "mac": b"", "answer": b""}
    with writing(store.engine) as db:
        db.execute(table.delete())
        db.execute(table.insert().values(row))
    known.expect([day(1)])
    known.expect([day(1), day(0)])
    while not known.is_done():
        read(store, known)
    assert known.suspects({row["id"]}) == [row["id"]]


def test_ids_that_cannot_be_joined_are_known_all_the_same(store: Store) -> None:
    """A machine that has no thread left costs time, and neither an upload nor the writer."""

    def refuse(work: Callable[[], None]) -> None:
        del work
        raise RuntimeError("can't start new thread")

    bodies = fill(store)
    known = OldIds(run=refuse)
    while not known.is_done():
        read(store, known)
    assert known.unread() == []
    assert set(known.suspects(ids_of(bodies[0]))) == ids_of(bodies[0])


def test_ids_that_no_memory_can_join_stay_apart() -> None:
    """Nobody hears of a thread that finds no memory, and the tables count as read."""
    known = OldIds(run=lambda work: work())
    known._read = {day(0): np.broadcast_to(np.uint32(7), 1 << 45)}
    known.expect([day(0)])
    assert known.is_done()
    assert known.unread() == []


def test_what_was_read_is_searched_at_once_after_the_last_table_only(store: Store) -> None:
    """A search for each table costs a tenth of a commit, and so would a join for each."""
    fill(store)
    works: list[Callable[[], None]] = []
    known = OldIds(run=works.append)
    while not known.is_done():
        assert not works
        read(store, known)
    assert len(known._arrays()) == N_DAYS - 1
    (join,) = works
    join()
    assert len(known._arrays()) == 1


def test_where_memory_is_short_ids_are_looked_up(store: Store) -> None:
    """What cannot be read is left to the database, and neither an upload nor the writer ends."""
    bodies = fill(store)
    name = day_tables.table_of(day_tables.UPLOAD, day(0)).name

    def refuse(*given: Any) -> None:
        if "substr(id" in given[2] and name in given[2]:
            raise MemoryError

    event.listen(store.engine, "before_cursor_execute", refuse)
    with contextlib.closing(Store(store.engine)) as again:
        commit(again, upload_of(), today=day(2))
        while again.read_old_ids():
            pass
        for each in bodies:
            answers = commit(again, *each, today=day(2))
            assert answers == [submission_of(body).answer for body in each]
    assert total(store) == N_DAYS * N_IDS + 1
    with store.engine.connect() as db:
        assert len(db.execute(select(schema.shard)).all()) == N_DAYS + 1


def test_new_ids_are_not_suspected() -> None:
    """Without ids there is no suspect; few ids are taken for others."""
    known = OldIds()
    known.expect([])
    assert known.is_done()
    assert known.suspects({secrets.token_bytes(32)}) == []
    assert known.suspects(set()) == []


def test_ids_are_new_only_where_every_table_was_read(store: Store) -> None:
    """It is never certain of an id that is stored, nor of tables that nobody spoke of."""
    bodies = fill(store)
    known = OldIds(step=N_IDS + 1)
    days, strangers = [day(1), day(0)], {secrets.token_bytes(32)}
    assert not known.are_new([], strangers)
    read(store, known)
    assert not known.are_new(days, strangers)
    while not known.is_done():
        read(store, known)
    suspects = set(known.suspects(strangers))  # hardly ever there
    assert known.are_new(days, strangers - suspects)
    assert not known.are_new(days[:1], strangers)
    assert not known.are_new(days, strangers | {min(ids_of(bodies[0]))})


def test_a_day_that_is_gone_is_forgotten_and_read_again(store: Store) -> None:
    """A table that is dropped and made anew has other ids than the one before."""
    bodies = fill(store)
    known = OldIds()
    while not known.is_done():
        read(store, known)
    known.expect([day(0)])
    assert known.suspects(ids_of(bodies[1])) == []
    assert set(known.suspects(ids_of(bodies[0]))) == ids_of(bodies[0])
    known.expect([day(1), day(0)])
    assert known.unread() == [day(1)]


@pytest.mark.parametrize(("most", "n_read"), [(0, 0), (N_IDS, 1), (2 * N_IDS - 1, 1)])
def test_no_more_ids_are_kept_than_allowed(store: Store, most: int, n_read: int) -> None:
    """A table that would be too much stays unread, and what was read stays known."""
    bodies = fill(store)
    known = OldIds(step=2, most=most)
    while not known.is_done():
        read(store, known)
    assert known.unread() == [day(1), day(0)][n_read:]
    assert len(known.suspects(ids_of(bodies[1]))) == N_IDS * n_read
    assert known.suspects(ids_of(bodies[0])) == []


def test_reading_goes_on_once_the_days_change(store: Store) -> None:
    """A day that was too much has room when another one is gone."""
    bodies = fill(store)
    known = OldIds(most=N_IDS)
    while not known.is_done():
        read(store, known)
    assert known.unread() == [day(0)]
    known.expect([day(0)])
    with writing(store.engine) as db:
        known.read_step(db)
    assert known.unread() == []
    assert set(known.suspects(ids_of(bodies[0]))) == ids_of(bodies[0])


def test_a_join_that_ends_late_hides_nothing(store: Store) -> None:
    """What was joined before the days changed is not taken for what is read now."""
    bodies = fill(store)
    works: list[Callable[[], None]] = []
    known = OldIds(run=works.append)
    known.expect([day(0)])
    with writing(store.engine) as db:
        known.read_step(db)
    known.expect([day(1), day(0)])
    while not known.is_done():
        read(store, known)
    for work in works:
        work()
        for i in range(N_DAYS - 1):
            assert set(known.suspects(ids_of(bodies[i]))) == ids_of(bodies[i])
    assert len(works) == 2


def test_nobody_waits_for_a_join() -> None:
    """It takes place beside the thread that stores uploads."""
    may_end, has_ended = threading.Event(), threading.Event()

    def work() -> None:
        may_end.wait(5)
        has_ended.set()

    _run_beside(work)
    assert not has_ended.is_set()
    may_end.set()
    assert has_ended.wait(5)


def test_retries_count_once_however_much_is_read(store: Store) -> None:
    """An upload of an earlier day has its stored answer before, while and after ids are read."""
    bodies = fill(store)
    with contextlib.closing(Store(store.engine)) as again:  # has read nothing
        for i in range(N_IDS):
            for each in bodies:
                assert commit(again, each[i], today=day(2)) == [submission_of(each[i]).answer]
            again.read_old_ids()
        assert not again.read_old_ids()
    assert total(store) == N_DAYS * N_IDS


def test_new_uploads_are_looked_up_in_no_earlier_table_once_these_are_read(store: Store) -> None:
    """Only an upload that may be a retry costs a look into the tables of earlier days."""
    bodies = fill(store)
    while store.read_old_ids():
        pass
    seen: list[str] = []
    event.listen(store.engine, "before_cursor_execute", lambda *given: seen.append(given[2]))
    old = day_tables.table_of(day_tables.UPLOAD, day(0)).name
    commit(store, *(upload_of() for _ in range(5)), today=day(2))
    assert not any(old in statement for statement in seen)
    commit(store, bodies[0][0], today=day(2))
    assert any(old in statement for statement in seen)


def test_a_retry_is_looked_up_in_all_earlier_tables_by_one_statement(store: Store) -> None:
    """Also where nothing of them was read."""
    bodies = fill(store)
    seen: list[str] = []
    event.listen(store.engine, "before_cursor_execute", lambda *given: seen.append(given[2]))
    old = [day_tables.table_of(day_tables.UPLOAD, day(i)).name for i in range(N_DAYS)]
    with contextlib.closing(Store(store.engine)) as again:
        commit(again, *bodies[0], *bodies[2], today=day(N_DAYS))
    asked = [statement for statement in seen if any(name in statement for name in old)]
    assert len(asked) == 1
    assert all(name in asked[0] for name in old)


def test_a_failed_step_loses_and_doubles_nothing(store: Store) -> None:
    """The store goes on in a new shard, and retries still count once."""
    bodies = fill(store)
    name = day_tables.table_of(day_tables.UPLOAD, day(1)).name
    with contextlib.closing(Store(store.engine)) as again:
        commit(again, upload_of(), today=day(2))
        with writing(store.engine) as db:
            db.execute(text(f"ALTER TABLE {name} RENAME TO elsewhere"))
        with pytest.raises(StoreError):
            again.read_old_ids()
        with writing(store.engine) as db:
            db.execute(text(f"ALTER TABLE elsewhere RENAME TO {name}"))
        answers = commit(again, *bodies[1], today=day(2))
    assert answers == [submission_of(body).answer for body in bodies[1]]
    assert total(store) == N_DAYS * N_IDS + 1
