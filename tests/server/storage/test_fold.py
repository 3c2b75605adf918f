"""Folding on both databases: every upload counts once, whoever folds and whatever fails."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import math
import random
import secrets
import threading
from pathlib import Path
from typing import Any

import pytest
from collectors import (
    ACCEPTED,
    REGISTRY,
    TODAY,
    append,
    commit,
    count_group,
    fold_now,
    metric_of,
    released,
    report_of,
    rows_of,
    submission_of,
    total,
    upload_of,
)
from hostile_uploads import seeded
from rappor_server.analysis.warning_signs import Refusals, refusals
from rappor_server.errors import StoreError
from rappor_server.ingest.accepted_params import AcceptedParams
from rappor_server.ingest.validate import AcceptedReport, Submission
from rappor_server.storage import day_tables, schema
from rappor_server.storage.bulk import insert_rows
from rappor_server.storage.database import (
    erase_traces,
    is_alone,
    open_engine,
    today_of,
    writing,
)
from rappor_server.storage.fold import fold, fold_all, retry_failed
from rappor_server.storage.inbox import Group, open_inbox
from rappor_server.storage.record import encode
from rappor_server.storage.retention import check_clock, prune
from rappor_server.storage.store import Store
from sqlalchemy import Text, cast, create_engine, event, literal, select, text
from sqlalchemy.exc import OperationalError

from rappor import Params, Registry

DAY = datetime.timedelta(days=1)
PAGE = Registry.loads(REGISTRY)["page"]
NEWEST = day_tables.table_of(day_tables.UPLOAD, TODAY).name


def test_a_retry_counts_nothing(store: Store) -> None:
    """Not in the same group, in one that is folded with it, in a later one, or on a later day."""
    body, other = upload_of(report_of(), report_of(cohort=2)), upload_of()
    append(store, [submission_of(body), submission_of(body)])
    append(store, [submission_of(body), submission_of(other)])
    assert fold_now(store)[:2] == (2, 2)
    for offset in (0, 1, 14):
        commit(store, upload_of(), body, today=TODAY + offset * DAY)
    assert total(store) == 6


SUBSETS = [places for n in range(4) for places in itertools.combinations((1, 2, 3), n)]
HISTORIES = [each for n in range(1, 5) for each in itertools.product(SUBSETS, repeat=n)]


def attempt(number: int, key: bytes, places: tuple[int, ...]) -> Submission:
    """Return an attempt of an upload of three reports, of which these are accepted."""
    metric = ACCEPTED.registry["sound"]
    accepted = tuple(
        AcceptedReport(
            metric="page",
            params=PAGE.params,
            fingerprint=PAGE.fingerprint,
            cohort=place,
            bits=(3 * number + place).to_bytes(2, "little"),
            keep=metric.keep_reports,
            quarantine=False,
            place=place,
        )
        for place in places
    )
    refused = {("page", "stopped"): 3 - len(places)} if len(places) < 3 else {}
    return Submission(key=key, answer=b"", accepted=accepted, refusals=refused)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", list(itertools.product((False, True), repeat=3)))
def test_mixed_uploads_lose_and_double_nothing(store: Store, pattern: tuple[bool, ...]) -> None:
    """All histories of up to four attempts at three reports, some of them refused each time.

    What was accepted in any attempt counts once, whichever attempts are folded together. On
    PostgreSQL only one pattern of folds is tried: the statements differ, the rules do not.
    """
    if store.engine.dialect.name == "postgresql" and pattern != (True, False, True):
        pytest.skip("the rules are the same on both databases")
    keys = [secrets.token_bytes(16) for _ in HISTORIES]
    for n, is_folded in enumerate((*pattern, True)):
        append(
            store,
            [
                attempt(number, keys[number], history[n])
                for number, history in enumerate(HISTORIES)
                if n < len(history)
            ],
        )
        if is_folded:
            fold_now(store)
    expected = sorted(
        3 * number + place
        for number, history in enumerate(HISTORIES)
        for place in set(itertools.chain.from_iterable(history))
    )
    kept = [int.from_bytes(row["bits"], "little") for row in rows_of(store, day_tables.KEPT)]
    assert sorted(kept) == expected
    assert total(store) == len(expected)


def test_folders_and_receivers_at_once_lose_and_double_nothing(store: Store) -> None:
    """Several threads add groups and fold, with retries to others, while blocks could be closed."""
    bodies = [upload_of(report_of(bits=i, cohort=i % 4)) for i in range(120)]

    def receive(first: int) -> None:
        own = Store.open(store.engine.url.render_as_string(hide_password=False))
        for i in range(first, len(bodies), 2):
            append(own, [submission_of(body) for body in bodies[max(i - 3, 0) : i + 1]])
        own.close()

    def count() -> None:
        with contextlib.closing(open_inbox(store.engine)) as inbox:
            while any(each.is_alive() for each in receivers):
                with contextlib.suppress(StoreError):
                    fold(store.engine, inbox, waits=bool(inbox.waiting().groups % 2), today=TODAY)

    receivers = [threading.Thread(target=receive, args=(i,)) for i in range(2)]
    folders = [threading.Thread(target=count) for _ in range(2)]
    for each in receivers + folders:
        each.start()
    for each in receivers + folders:
        each.join()
    fold_now(store)
    (counts,) = released(store).collections
    assert counts.reports.tolist() == [30] * 4
    expected = [sum(i >> bit & 1 for i in range(120)) for bit in range(16)]
    assert counts.ones.sum(axis=0).tolist() == expected


@pytest.mark.parametrize("days", [400, 1, -16])
def test_a_receiver_with_a_wrong_clock_harms_nobody(store: Store, days: int) -> None:
    """Its uploads count once on its day, not in the future; keys lie in tables of the folder's."""
    body = upload_of()
    append(store, [submission_of(body)], today=TODAY + days * DAY)
    fold_now(store)
    assert {row["day"] for row in rows_of(store, day_tables.UPLOAD)} == {TODAY}
    assert [each.day for each in released(store).days] == [min(TODAY + days * DAY, TODAY)]
    prune(store.engine, today=TODAY + DAY, report_days=90)
    commit(store, body, today=TODAY + DAY)
    assert total(store) == 1


def test_keys_go_to_the_newest_table(store: Store) -> None:
    """A clock that goes back brings no key that is deleted too early."""
    days = (5, 12, 20)
    for day in days:
        commit(store, upload_of(), today=TODAY + day * DAY)
    body = upload_of()
    commit(store, body)
    prune(store.engine, today=TODAY + 20 * DAY, report_days=90)
    commit(store, body, today=TODAY + 20 * DAY)
    assert total(store) == len(days) + 1


def test_a_clock_that_was_far_ahead_lets_no_key_live_longer(store: Store) -> None:
    """Keys go to the table of today again, also on the first day of a collector."""
    for day in (0, 400, 0, 1):
        commit(store, upload_of(), today=TODAY + day * DAY)
    with store.engine.connect() as db:
        found = [(day - TODAY).days for day in day_tables.days_of(db, day_tables.UPLOAD)]
    assert found == [400, 1, 0]
    assert prune(store.engine, today=TODAY + 16 * DAY, report_days=90).keys == 3


@pytest.mark.slow
def test_years_without_prune_stop_no_fold(store: Store) -> None:
    """Tables of keys may be more than a database joins; the newest ones are looked at."""
    body = upload_of()
    with writing(store.engine) as db:
        for i in range(600):
            day_tables.keep_keys(db, day_tables.UPLOAD, [secrets.token_bytes(16)], TODAY + i * DAY)
    for _ in range(2):
        commit(store, body, today=TODAY + 600 * DAY)
    assert total(store) == 1


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)  # SQLite has no such time
def test_who_is_alone_and_hangs_is_alone_no_longer(store: Store) -> None:
    """PostgreSQL ends the transaction of a folder that is silent for ten seconds, and no other."""
    seconds = text("SHOW idle_in_transaction_session_timeout")
    with writing(store.engine) as db:
        assert db.scalar(seconds) == "0"
        assert is_alone(db)
        assert db.scalar(seconds) == "10s"
    with store.engine.connect() as db:
        assert db.scalar(seconds) == "0"


def test_the_day_is_that_of_the_database(store: Store) -> None:
    """Without a day, folding asks the database's clock, and leaves a heartbeat."""
    append(store, [submission_of(upload_of())])
    fold_all(store.engine)
    with store.engine.connect() as db:
        now = today_of(db)
        assert day_tables.days_of(db, day_tables.UPLOAD) == [now]
        assert list(db.execute(select(schema.heartbeat.c.day)).scalars()) == [now]
    check_clock(store.engine, now + 2 * DAY)
    for days in (-16, -3, 3, 100):
        with pytest.raises(StoreError, match="give --yes") as caught:
            check_clock(store.engine, now + days * DAY)
        assert not caught.value.retryable


def test_a_collector_with_a_wrong_clock_lets_prune_delete_nothing(store: Store) -> None:
    """Whoever runs on its day cannot make it right; the next day of a right clock does."""
    commit(store, upload_of())
    commit(store, upload_of(), today=TODAY + 100 * DAY)
    with pytest.raises(StoreError, match="give --yes"):
        check_clock(store.engine, TODAY + 100 * DAY)
    commit(store, upload_of(), today=TODAY + DAY)
    check_clock(store.engine, TODAY + DAY)
    commit(store, upload_of(), today=TODAY + 9 * DAY)
    with pytest.raises(StoreError, match="give --yes"):
        check_clock(store.engine, TODAY + 9 * DAY)
    commit(store, upload_of(), today=TODAY + 10 * DAY)
    check_clock(store.engine, TODAY + 10 * DAY)
    for ahead in (100, 101):  # the wrong clock passes midnight
        commit(store, upload_of(), today=TODAY + ahead * DAY)
    with pytest.raises(StoreError, match="run prune --yes"):
        check_clock(store.engine, TODAY + 101 * DAY)
    prune(store.engine, today=TODAY + 101 * DAY, report_days=90)
    check_clock(store.engine, TODAY + 101 * DAY)


def test_tables_that_a_wrong_clock_has_deleted_are_added_again(store: Store) -> None:
    """A running collector goes on, also with the raw reports of a day whose table is gone."""
    commit(store, upload_of(), upload_of(report_of("sound")))
    prune(store.engine, today=TODAY + 100 * DAY, report_days=90)
    commit(store, upload_of(), upload_of(report_of("sound")))
    prune(store.engine, today=TODAY + DAY, report_days=0)
    commit(store, upload_of(report_of("sound")))
    assert (total(store), total(store, "sound")) == (2, 3)
    assert len(rows_of(store, day_tables.KEPT)) == 1


def test_refusals_are_counted_by_reason(store: Store) -> None:
    """Refused reports and uploads are counted by reason, over groups."""
    count_group(store, [submission_of(upload_of(report_of(), report_of("old")))])
    count_group(store, [], {("", "malformed"): 2})
    count_group(store, [], {("", "malformed"): 1})
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


def damaged() -> dict[str, bytes]:
    """Return groups that nobody can read."""
    good = encode([submission_of(upload_of())], {})
    foreign = encode([submission_of(upload_of())], {}).replace(PAGE.fingerprint.encode(), b"0" * 16)
    refused = encode([], {("page", "expired"): 1})
    return {
        "empty": b"",
        "newer": b"\x09" + good[1:],
        "cut": good[:-3],
        "foreign": foreign,
        "no text": good.replace(b"page", b"p\xe4ge"),
        "no name": good.replace(b"page", b"pa\0e"),
        "no refused name": refused.replace(b"page", b"pa\0e"),
        "no reason": refused.replace(b"expired", b"expire\0"),
        "no fingerprint": good.replace(PAGE.fingerprint.encode(), b"\0" * 16),
        "no number": refused[:-1] + b"\xcf" + b"\x7f" * 8,
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(damaged()))
def test_a_group_that_cannot_be_read_is_set_apart(store: Store, name: str) -> None:
    """Others are counted; it stays as it is, and is counted when a version can read it."""
    bad = damaged()[name]
    append(store, [submission_of(upload_of())])
    with contextlib.closing(open_inbox(store.engine)) as inbox:
        inbox.append(Group(TODAY, 1, bad), {})
        append(store, [submission_of(upload_of())])
        assert fold(store.engine, inbox, waits=True, today=TODAY).failed == 1
        assert inbox.waiting() == (0, 0, 0, 1)
    assert total(store) == 2
    assert retry_failed(store.engine, today=TODAY).failed == 1
    with writing(store.engine) as db:
        assert bytes(db.execute(select(schema.inbox_failed.c.data)).scalar_one()) == bad
        db.execute(
            schema.inbox_failed.update().values(data=encode([submission_of(upload_of())], {}))
        )
    assert retry_failed(store.engine, today=TODAY)[:1] == (1,)
    assert total(store) == 3


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)  # PostgreSQL checks its days
@pytest.mark.parametrize("day", [b"2026-11-9x", b"\xff"])
def test_a_group_whose_day_is_damaged_is_set_apart(store: Store, day: bytes) -> None:
    """It stops no fold, also where it is damaged among the groups that are set apart."""
    append(store, [submission_of(upload_of())])
    damaged_day = {"day": cast(literal(day), Text)}
    with contextlib.closing(open_inbox(store.engine)) as inbox:
        with writing(inbox._own) as own:  # type: ignore[arg-type]
            own.execute(schema.inbox_table("inbox").update().values(damaged_day))
        assert fold(store.engine, inbox, today=TODAY).failed == 1
    with writing(store.engine) as db:
        db.execute(schema.inbox_failed.update().values(damaged_day))
    assert [retry_failed(store.engine, today=TODAY).failed for _ in range(2)] == [1, 0]
    assert total(store) == 1


def damage(rng: random.Random, record: bytes) -> bytes:
    """Change some bytes of a record behind its version, and perhaps its length."""
    changed = bytearray(record)
    for _ in range(rng.randrange(1, 4)):
        changed[rng.randrange(1, len(changed))] = rng.randrange(256)
    return bytes(changed[: rng.choice([len(changed), rng.randrange(1, len(changed))])])


@pytest.mark.slow
def test_no_group_stops_the_others(store: Store) -> None:
    """Whatever became of its bytes, it is counted or set apart."""
    rng = seeded(35)
    uploads = [upload_of(report_of(bits=i), report_of("sound")) for i in range(4)]
    record = encode([submission_of(each) for each in uploads], {("page", "expired"): 1})
    with contextlib.closing(open_inbox(store.engine)) as inbox:
        for _ in range(50):
            for _ in range(20):
                inbox.append(Group(TODAY, 8, damage(rng, record)), {})
            fold(store.engine, inbox, waits=True, today=TODAY)
        assert inbox.waiting()[:3] == (0, 0, 0)
    commit(store, upload_of())
    assert total(store) >= 1


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
def test_a_fold_that_fails_counts_nothing_and_the_next_one_all(
    store: Store, verb: str, table: str
) -> None:
    """It is one transaction; its error has the kind only."""
    commit(store, upload_of())
    append(store, [submission_of(upload_of()), submission_of(upload_of())])
    undo = refuse_rows(store, verb, table)
    with pytest.raises(StoreError) as caught:
        fold_now(store)
    assert caught.value.retryable
    assert "refuses" not in str(caught.value)
    with writing(store.engine) as db:
        db.execute(text(undo))
    assert total(store) == 1
    fold_now(store)
    assert total(store) == 3
    assert len(rows_of(store, day_tables.UPLOAD)) == 3


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_fold_whose_commit_fails_counts_once(store: Store, *, is_committed: bool) -> None:
    """Whether the database has kept it or not, and nothing was cleared: the next one goes on."""
    append(store, [submission_of(upload_of())])

    def store_and_fail(connection: Any) -> None:
        driver = connection.connection.dbapi_connection
        driver.commit() if is_committed else driver.rollback()
        raise OperationalError("COMMIT", None, Exception("gone"))

    with contextlib.closing(open_inbox(store.engine)) as inbox:
        inbox.seal()
        event.listen(store.engine, "commit", store_and_fail)
        with pytest.raises(StoreError):
            fold(store.engine, inbox, waits=True, today=TODAY)
        event.remove(store.engine, "commit", store_and_fail)
    append(store, [submission_of(upload_of())])
    fold_now(store)
    assert total(store) == 2


@pytest.mark.slow
def test_locked_table_is_told_in_time(store: Store) -> None:
    """A fold fails after some seconds of a lock, and uploads are taken meanwhile."""
    other = open_engine(store.engine.url.render_as_string(hide_password=False))
    with writing(other) as db:
        if other.dialect.name == "postgresql":
            db.execute(text("LOCK TABLE tally IN EXCLUSIVE MODE"))
        append(store, [submission_of(upload_of())])
        with pytest.raises(StoreError, match=r"OperationalError|LockNotAvailable"):
            fold_now(store)
    other.dispose()
    fold_now(store)
    assert total(store) == 1


def test_too_many_connections_are_a_store_error(store: Store) -> None:
    """A pool without a free connection raises a retryable StoreError."""
    small = create_engine(store.engine.url, pool_size=1, max_overflow=0, pool_timeout=0.05)
    with small.connect(), pytest.raises(StoreError, match="all connections are in use") as caught:
        Store(small).ping()
    for _ in range(3):
        Store(small).ping()  # which gives its connection back
    small.dispose()
    assert caught.value.retryable


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)  # SQLite has one writer
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_transactions_see_what_others_have_done_whatever_the_default(
    store: Store, level: str
) -> None:
    """A receiver that has waited for a new table must see it, or it adds to one that is dropped."""
    name = store.engine.url.database
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        db.execute(text(f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'"))
        db.execute(text(f"ALTER DATABASE {name} SET synchronous_commit = off"))
    store.engine.dispose()
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        assert db.execute(text("SHOW transaction_isolation")).scalar_one() == "read committed"
        assert db.execute(text("SHOW synchronous_commit")).scalar_one() == "on"


def random_keys(n: int) -> list[bytes]:
    """Return random keys in their order."""
    return sorted(secrets.token_bytes(16) for _ in range(n))


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("k", "m", "n", "of_upload", "keep"),
    [
        *((8, 4096, 4096, 1, False), (128, 4096, 4096, 1, False), (2040, 512, 512, 1, False)),
        *((8, 4, 999, 1, False), (8, 4, 999, 1, True), (8, 4, 999, 99, True)),
    ],
)
def test_a_fold_takes_no_more_room_than_is_reckoned(
    store: Store, k: int, m: int, n: int, of_upload: int, *, keep: bool
) -> None:
    """Counters of all cohorts, keys, or reports that are kept: in the log, then in the file.

    Most keys change a page of their own, as those do that come later on a busy day.
    """
    params = Params(k=k, h=1, m=m, f=0.5, p=0.25, q=0.75)
    metric = metric_of("m" * 64, params, keep_reports=keep)
    bits = bytes(params.n_bytes)
    uploads = [
        tuple(
            AcceptedReport(metric.name, params, params.fingerprint, i % m, bits, keep, False, place)
            for place, i in enumerate(range(start, min(start + of_upload, n)), 1)
        )
        for start in range(0, n, of_upload)
    ]
    append(store, [Submission(secrets.token_bytes(16), b"", each, {}) for each in uploads])
    path = Path(str(store.engine.url.database))
    rows = [(key, metric.name, "0" * 16, 0, bits) for key in random_keys(20_000)]
    with writing(store.engine) as db:
        day_tables.keep_keys(db, day_tables.UPLOAD, random_keys(40_000), TODAY)
        day_tables.add(db, day_tables.KEPT, TODAY)
        insert_rows(db, day_tables.table_of(day_tables.KEPT, TODAY), rows)
    erase_traces(path)
    before, logs = path.stat().st_size, [0]

    @event.listens_for(store.engine, "checkin")
    def look(*_: object) -> None:
        logs.append(path.with_name(f"{path.name}-wal").stat().st_size)

    with contextlib.closing(open_inbox(store.engine)) as inbox:
        waiting = inbox.waiting()
        fold(store.engine, inbox, today=TODAY)
    reckoned = AcceptedParams(Registry([metric], total=math.inf)).fold_bytes(
        waiting.n_bytes, waiting.reports
    )
    taken = max(logs) + path.stat().st_size - before
    assert reckoned / 5 < taken < reckoned
