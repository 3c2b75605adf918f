"""The store on both databases: every upload counts once, whoever writes and whatever fails."""

from __future__ import annotations

import contextlib
import datetime
import threading
from typing import Any

import pytest
from collectors import (
    ACCEPTED,
    REGISTRY,
    TODAY,
    commit,
    released,
    report_of,
    rows_of,
    submission_of,
    total,
    upload_of,
)
from rappor_server.analysis import releases
from rappor_server.analysis.warning_signs import Refusals, refusals
from rappor_server.errors import ConflictError, StoreError
from rappor_server.storage import day_tables, schema
from rappor_server.storage.database import open_engine, writing
from rappor_server.storage.retention import prune
from rappor_server.storage.store import Store
from sqlalchemy import create_engine, event, select, text
from sqlalchemy.exc import OperationalError

from rappor import Population, Registry
from rappor.protocol.wire import Report, Upload, encode_base64url
from rappor.simulation import SCENARIOS, simulate_scenario

YESTERDAY = TODAY - datetime.timedelta(days=1)
TOMORROW = TODAY + datetime.timedelta(days=1)
PAGE = Registry.loads(REGISTRY)["page"]
NEWEST = day_tables.table_of(day_tables.UPLOAD, TODAY).name


def test_counts_are_the_sums_of_bits(store: Store) -> None:
    """Counts are the sums of bits by cohort, over groups and within them."""
    commit(store, upload_of(report_of(bits=0b0011, cohort=0), report_of(bits=0b0110, cohort=2)))
    commit(store, upload_of(report_of(bits=0b0001, cohort=2)), upload_of(report_of(bits=0b1000)))
    (counts,) = released(store).collections
    assert counts.reports.tolist() == [1, 1, 2, 0]
    assert counts.ones[0].tolist() == [1, 1] + [0] * 14
    assert counts.ones[1].tolist() == [0, 0, 0, 1] + [0] * 12
    assert counts.ones[2].tolist() == [1, 1, 1] + [0] * 13
    assert counts.params == PAGE.params


@pytest.mark.parametrize("name", ["lost uploads", "repeated uploads", "forged uploads"])
def test_a_scenario_is_counted_once_an_upload(store: Store, name: str) -> None:
    """Whatever arrives, and however often, the counts are those of the simulation."""
    population = Population(["a.example", "b.example"], [2, 1])
    (day,) = simulate_scenario(SCENARIOS[name], population, PAGE.params, n_devices=300, seed=1)
    bodies = [
        upload_of(
            Report(
                metric="page",
                params=PAGE.fingerprint,
                cohort=int(cohort),
                bits=packed.tobytes(),
            ),
            upload_id=encode_base64url(int(number).to_bytes(16, "big")),
        )
        for number, packed, cohort in zip(day.ids, day.packed, day.cohorts, strict=True)
    ]
    commit(store, *bodies[:200])
    commit(store, *bodies[200:])
    (counts,) = released(store).collections
    assert counts.ones.tolist() == day.counts.ones.tolist()
    assert counts.reports.tolist() == day.counts.reports.tolist()


def test_replay_has_the_same_answer_and_counts_nothing(store: Store) -> None:
    """A repeated upload has the same answer in a later group, in the same one, and elsewhere."""
    body = upload_of(report_of(), report_of(cohort=2))
    answer = submission_of(body).answer
    assert commit(store, body, body) == [answer, answer]
    assert commit(store, body, today=TOMORROW) == [answer]
    other = Store(store.engine)
    assert commit(other, body, upload_of()) == [answer, submission_of(upload_of()).answer]
    assert total(store) == 3


def test_replay_has_the_answer_of_its_first_time(store: Store) -> None:
    """A repeated upload has its first answer even if the registry has changed."""
    body = upload_of()
    first = submission_of(body)
    store.commit([first], {}, today=TODAY)
    later = submission_of(body, today=datetime.date(2200, 1, 1))
    assert later.answer != first.answer
    assert store.commit([later], {}, today=TODAY) == [first.answer]


def test_a_retry_among_new_uploads_counts_once(store: Store) -> None:
    """Whatever else a group holds, a retry in it has its first answer and others are counted."""
    before = [upload_of(), upload_of()]
    commit(store, *before)
    group = [upload_of(), before[1], upload_of(), upload_of(report_of(cohort=2)), before[0]]
    for _ in range(2):
        assert commit(store, *group) == [submission_of(body).answer for body in group]
        assert total(store) == 5
    assert len(rows_of(store, day_tables.UPLOAD)) == 5


def test_a_retry_of_an_earlier_day_among_new_uploads_counts_once(store: Store) -> None:
    """Its first answer comes from the table of that day, whose ids are read or not."""
    old = [upload_of() for _ in range(4)]
    commit(store, *old, today=YESTERDAY)
    commit(store, upload_of())
    for before in (old[:2], old[2:]):
        group = [upload_of(), *before, upload_of()]
        assert commit(store, *group) == [submission_of(body).answer for body in group]
        while store.read_old_ids():
            pass
    assert total(store) == 9
    assert len(rows_of(store, day_tables.UPLOAD)) == 13


def test_a_group_that_is_all_new_is_one_journey(store: Store) -> None:
    """PostgreSQL gets all its statements at once, so none by the common road, on every day."""
    commit(Store(store.engine), upload_of(), today=YESTERDAY)
    commit(store, upload_of(), today=YESTERDAY)
    commit(Store(store.engine), upload_of())
    commit(store, upload_of(), today=YESTERDAY)
    while store.read_old_ids():
        pass
    seen: list[str] = []
    event.listen(store.engine, "before_cursor_execute", lambda *given: seen.append(given[2]))
    commit(store, upload_of(), upload_of(), today=YESTERDAY)
    assert bool(seen) == (store.engine.dialect.name == "sqlite")
    assert total(store) == 6


def test_after_a_retry_groups_are_not_taken_for_new_for_a_while(store: Store) -> None:
    """Who sends retries without end has few groups stored twice."""
    body = upload_of()
    commit(store, body)
    commit(store, body)
    seen: list[str] = []
    event.listen(store.engine, "before_cursor_execute", lambda *given: seen.append(given[2]))
    n_common = 0
    for _ in range(70):
        seen.clear()
        commit(store, upload_of())
        n_common += bool(seen)
    assert n_common == (70 if store.engine.dialect.name == "sqlite" else 64)
    assert total(store) == 71


def test_a_cohort_that_is_new_to_the_day_needs_no_new_shard(store: Store) -> None:
    """A counter is added to the shard that there is, among others that it has."""
    commit(store, upload_of())
    for cohort in range(5):
        commit(store, upload_of(), upload_of(report_of(cohort=cohort)))
    assert total(store) == 11
    with store.engine.connect() as db:
        assert len(db.execute(select(schema.shard)).all()) == 1


def test_another_body_under_a_known_id_is_a_conflict(store: Store) -> None:
    """Another body under a stored id is a conflict, and nothing of it is counted."""
    upload_id = Upload.new_id()
    first = upload_of(report_of(), upload_id=upload_id)
    second = upload_of(report_of(cohort=2), upload_id=upload_id)
    good, bad = commit(store, first, second)
    assert good == submission_of(first).answer
    assert isinstance(bad, ConflictError)
    (bad,) = commit(store, second)
    assert isinstance(bad, ConflictError)
    assert not bad.retryable
    assert total(store) == 1


def test_two_collectors_share_one_database(store: Store) -> None:
    """Two collectors write rows of their own; what is read is the sum.

    SQLite is for one; there each takes over the other's rows, and still nothing is lost.
    """
    other = Store(store.engine)
    for _ in range(3):
        commit(store, upload_of())
        commit(other, upload_of())
    assert total(store) == 6
    with store.engine.connect() as db:
        shards = set(db.execute(select(schema.tally.c.shard)).scalars())
    assert len(shards) == (2 if store.engine.dialect.name == "postgresql" else 1)


def test_a_restart_leaves_no_row_of_few_reports(store: Store) -> None:
    """A new run takes over the counters of one that has ended, so that rows are sums."""
    for run in range(5):
        collector = Store(store.engine)
        bodies = [
            upload_of(report_of(cohort=j, bits=i + run))
            for i in range(10 - 2 * run)
            for j in (0, 1)
        ]
        commit(collector, *bodies)
        collector._drop()
    assert total(store) == 60
    with store.engine.connect() as db:
        rows = db.execute(select(schema.tally.c.cohort, schema.tally.c.reports)).all()
    assert sorted(rows) == [(0, 30), (1, 30)]


def test_a_run_that_lives_keeps_its_counters(store: Store) -> None:
    """On PostgreSQL a new run takes nothing from one that still writes."""
    if store.engine.dialect.name != "postgresql":
        pytest.skip("SQLite is for one collector")
    others = [Store(store.engine) for _ in range(3)]
    for _ in range(3):
        for which in (store, *others):
            commit(which, upload_of())
    with store.engine.connect() as db:
        rows = list(db.execute(select(schema.tally.c.reports)).scalars())
    assert rows == [3, 3, 3, 3]
    for each in others:
        each._drop()


def test_one_upload_sent_to_two_collectors_at_once_counts_once(store: Store) -> None:
    """Uploads that two collectors store at the same moment count once, also around midnight."""
    other = Store(store.engine)
    for attempt in range(20):
        bodies = [upload_of() for _ in range(5)]
        answers: list[Any] = [None, None]
        start = threading.Barrier(2)

        def send(i: int, which: Store) -> None:
            today = TODAY + datetime.timedelta(days=i * (attempt // 4))  # noqa: B023
            start.wait()  # noqa: B023 - joined below
            answers[i] = commit(which, *bodies, today=today)  # noqa: B023

        threads = [
            threading.Thread(target=send, args=(i, which)) for i, which in enumerate((store, other))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers[0] == answers[1] == [submission_of(body).answer for body in bodies]
    assert total(store) == 100


def test_a_new_day_waits_for_those_who_write_ids(store: Store) -> None:
    """No table becomes the newest while a transaction writes into the one before."""
    if store.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    commit(store, upload_of())
    waiting = text("SELECT COUNT(*) FROM pg_locks WHERE NOT granted")
    opening = threading.Thread(target=day_tables.open_day, args=(store.engine, TOMORROW))
    with writing(store.engine) as db:
        assert day_tables.days_to_write(db) == [TODAY]
        opening.start()
        while opening.is_alive() and not db.scalar(waiting):
            opening.join(0.01)
        is_waiting = opening.is_alive()
    opening.join()
    assert is_waiting
    with writing(store.engine) as db:
        assert day_tables.days_to_write(db) == [TOMORROW, TODAY]


def days_of(store: Store) -> list[tuple[datetime.date, int]]:
    """Return the days of the metric `page`, with their numbers of reports."""
    return [(each.day, each.reports) for each in released(store).days]


def test_each_day_has_counts_of_its_own(store: Store) -> None:
    """A report counts on its day of receipt, also when a collector runs over midnight."""
    commit(store, upload_of())
    commit(store, upload_of(), upload_of(), today=TOMORROW)
    assert days_of(store) == [(TODAY, 1), (TOMORROW, 2)]
    assert releases.release(store, PAGE, TODAY, TODAY).n_reports == 1


def test_clock_that_goes_back_over_midnight_loses_nothing(store: Store) -> None:
    """A day that is entered again keeps what was counted before."""
    commit(store, *(upload_of() for _ in range(10)))
    commit(store, upload_of(), today=TOMORROW)
    commit(store, upload_of())
    assert days_of(store) == [(TODAY, 11), (TOMORROW, 1)]


def test_ids_go_to_the_newest_table_that_another_collector_has_added(store: Store) -> None:
    """A collector that knew the table before it finds out, and a retry counts once anywhere."""
    commit(store, upload_of())
    commit(store, upload_of())
    other = Store(store.engine)
    commit(other, upload_of(), today=TOMORROW)
    body = upload_of()
    answer = commit(store, body)
    newest = day_tables.table_of(day_tables.UPLOAD, TOMORROW)
    with store.engine.connect() as db:
        assert submission_of(body).id in set(db.execute(select(newest.c.id)).scalars())
    assert commit(other, body, today=TOMORROW) == commit(store, body) == answer
    assert days_of(store) == [(TODAY, 3), (TOMORROW, 1)]


def test_a_day_that_was_folded_goes_on_in_a_new_shard(store: Store) -> None:
    """A collector whose clock lags does not write again what was folded."""
    commit(store, upload_of())
    prune(store, today=TODAY + datetime.timedelta(days=2), report_days=90)
    commit(store, upload_of())
    assert total(store) == 2
    prune(store, today=TODAY + datetime.timedelta(days=3), report_days=90)
    commit(store, upload_of(), upload_of())
    assert total(store) == 4


def test_readers_do_not_keep_the_writer_waiting(store: Store) -> None:
    """There are connections for all threads that may read, and one more."""
    with contextlib.ExitStack() as readers:
        for _ in range(32):
            readers.enter_context(store.engine.connect()).execute(select(1))
        commit(store, upload_of())
    assert total(store) == 1


def test_too_many_connections_are_a_store_error(store: Store) -> None:
    """A pool without a free connection raises a retryable StoreError."""
    small = create_engine(store.engine.url, pool_size=1, max_overflow=0, pool_timeout=0.05)
    with small.connect(), pytest.raises(StoreError, match="all connections are in use") as caught:
        Store(small).ping()
    small.dispose()
    assert caught.value.retryable


def test_commits_are_durable_whatever_the_default(store: Store) -> None:
    """A commit waits for the disk even where the database would answer before."""
    if store.engine.dialect.name == "sqlite":
        with store.engine.connect() as db:
            assert db.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2  # FULL
        return
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        db.execute(text(f"ALTER DATABASE {store.engine.url.database} SET synchronous_commit = off"))
    store.engine.dispose()
    with store.engine.connect() as db:
        assert db.execute(text("SHOW synchronous_commit")).scalar_one() == "on"


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_transactions_see_what_others_have_done_whatever_the_default(
    store: Store, level: str
) -> None:
    """Whoever has waited for a new day's table must see it, or ids go to the one before."""
    if store.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    name = store.engine.url.database
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        db.execute(text(f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'"))
    store.engine.dispose()
    with writing(store.engine) as db:
        assert db.execute(text("SHOW transaction_isolation")).scalar_one() == "read committed"


def test_a_group_that_gave_way_to_another_transaction_is_stored(store: Store) -> None:
    """PostgreSQL undoes one of two transactions that wait for each other; it is tried again."""
    if store.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    failures = ["BEGIN RAISE EXCEPTION USING ERRCODE = 'deadlock_detected'; END"]

    def spoil(*given: Any) -> tuple[str, Any]:
        _, _, statement, parameters, _, _ = given
        if statement.startswith("INSERT INTO tally") and failures:
            return f"DO $$ {failures.pop()} $$", ()
        return statement, parameters

    event.listen(store.engine, "before_cursor_execute", spoil, retval=True)
    body = upload_of()
    assert commit(store, body) == [submission_of(body).answer]
    assert not failures
    assert total(store) == 1


def test_tables_that_a_wrong_clock_has_deleted_are_added_again(store: Store) -> None:
    """A running collector goes on, also with the raw reports of a day whose table is gone."""
    commit(store, upload_of(), upload_of(report_of("sound")))
    prune(store, today=TODAY + datetime.timedelta(days=100), report_days=90)
    commit(store, upload_of(), upload_of(report_of("sound")))
    prune(store, today=TODAY + datetime.timedelta(days=1), report_days=0)
    commit(store, upload_of(report_of("sound")))
    assert (total(store), total(store, "sound")) == (2, 3)
    assert len(rows_of(store, day_tables.KEPT)) == 1


def test_locked_table_is_told_in_time(store: Store) -> None:
    """A group fails after some seconds of a lock, and is stored when it is sent again."""
    other = open_engine(store.engine.url.render_as_string(hide_password=False))
    body = upload_of()
    with writing(other) as db:
        if other.dialect.name == "postgresql":
            db.execute(text("LOCK TABLE tally IN EXCLUSIVE MODE"))
        with pytest.raises(StoreError, match=r"OperationalError|LockNotAvailable"):
            commit(store, body)
    other.dispose()
    commit(store, body)
    assert total(store) == 1


def test_refusals_are_counted_by_reason(store: Store) -> None:
    """Refused reports and uploads are counted by reason; a repeated upload is not counted again."""
    body = upload_of(report_of(), report_of("old"))
    commit(store, body)
    commit(store, body)
    store.commit([], {("", "malformed"): 2}, today=TODAY)
    store.commit([], {("", "malformed"): 1}, today=TODAY)
    assert refusals(store) == [
        Refusals(TODAY, "", "malformed", 3),
        Refusals(TODAY, "old", "expired", 1),
    ]


def test_raw_reports_are_kept_only_where_a_metric_says_so(store: Store) -> None:
    """Only a metric with keep_reports keeps its reports, without their upload."""
    commit(store, upload_of(report_of("page"), report_of("sound", bits=1)))
    (row,) = rows_of(store, day_tables.KEPT)
    assert len(row.pop("key")) == 16
    assert [row] == [
        {
            "metric": "sound",
            "params": ACCEPTED.registry["sound"].fingerprint,
            "day": TODAY,
            "cohort": 0,
            "bits": b"\x01",
        }
    ]
    assert total(store, "sound") == 1


def refuse_rows(store: Store, verb: str, table: str) -> str:
    """Make the database refuse to write rows of a table; return the statement that ends this."""
    refusal, undo = "BEGIN SELECT RAISE(ABORT, 'it refuses'); END", "DROP TRIGGER refuse"
    with writing(store.engine) as db:
        if store.engine.dialect.name == "postgresql":
            body = "BEGIN RAISE 'it refuses'; END"
            db.execute(text(f"CREATE FUNCTION no() RETURNS trigger AS $${body}$$ LANGUAGE plpgsql"))
            refusal, undo = "EXECUTE FUNCTION no()", f"{undo} ON {table}"
        trigger = f"CREATE TRIGGER refuse BEFORE {verb} ON {table} FOR EACH ROW {refusal}"
        db.execute(text(trigger))
    return undo


@pytest.mark.parametrize(("verb", "table"), [("INSERT", NEWEST), ("UPDATE", "tally")])
def test_failed_commit_counts_nothing_and_the_next_one_all(
    store: Store, verb: str, table: str
) -> None:
    """A failed group is not counted; sent again to the same store, it is counted once."""
    commit(store, upload_of())
    bodies = [upload_of(), upload_of()]
    undo = refuse_rows(store, verb, table)
    with pytest.raises(StoreError) as caught:
        commit(store, *bodies)
    assert caught.value.retryable
    assert "refuses" not in str(caught.value)
    with writing(store.engine) as db:
        db.execute(text(undo))
    assert total(store) == 1
    assert commit(store, *bodies) == [submission_of(body).answer for body in bodies]
    assert total(store) == 3
    assert len(rows_of(store, day_tables.UPLOAD)) == 3


def test_full_disk_is_told_and_survived(store: Store) -> None:
    """SQLite reaches its largest size, PostgreSQL has its connections cut; both go on."""
    commit(store, upload_of())
    bodies = [upload_of(*[report_of()] * 50) for _ in range(200)]
    if store.engine.dialect.name == "postgresql":
        with store.engine.connect() as db:
            others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "
            db.execute(text(others + "pid <> pg_backend_pid() AND datname = current_database()"))
        assert len(commit(store, *bodies)) == 200  # the pool notices
    else:
        pages = [1]

        def limit(connection: Any) -> None:
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages[0]}")

        event.listen(store.engine, "begin", limit)
        with pytest.raises(StoreError, match="OperationalError"):
            commit(store, *bodies)
        pages[0] = 1_000_000
        assert total(store) == 1
        assert len(commit(store, *bodies)) == 200
    assert total(store) == 1 + 200 * 50


def test_lost_answer_of_a_commit_is_harmless(store: Store) -> None:
    """A group that was stored although its commit failed counts once when it is sent again."""
    commit(store, upload_of())
    body = upload_of()

    def store_and_fail(connection: Any) -> None:
        connection.connection.dbapi_connection.commit()
        raise OperationalError("COMMIT", None, Exception("gone"))

    event.listen(store.engine, "commit", store_and_fail)
    with pytest.raises(StoreError):
        commit(store, body)
    event.remove(store.engine, "commit", store_and_fail)
    assert commit(store, upload_of()) == [submission_of(upload_of()).answer]
    assert commit(store, body) == [submission_of(body).answer]
    assert total(store) == 3


def test_larger_groups_are_written_whole(store: Store) -> None:
    """A group of more rows than a statement holds is written whole."""
    bodies = [upload_of(report_of(cohort=i % 4, bits=i)) for i in range(201)]
    commit(store, *bodies)
    (counts,) = released(store).collections
    assert counts.n_reports == 201
    expected = [sum(i >> bit & 1 for i in range(201)) for bit in range(16)]
    assert counts.ones.sum(axis=0).tolist() == expected


def test_ping_gives_its_connection_back(store: Store) -> None:
    """A database that answers raises nothing, however often it is asked."""
    small = create_engine(store.engine.url, pool_size=1, max_overflow=0, pool_timeout=0.05)
    for _ in range(3):
        Store(small).ping()
    assert total(Store(small)) == 0
    small.dispose()
