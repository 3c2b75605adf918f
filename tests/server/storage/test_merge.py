"""Merges on both databases: every upload is counted once, whichever process merges or fails."""

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

import numpy as np
import pytest
from collectors import (
    REGISTRY,
    TODAY,
    append,
    commit,
    count_group,
    merge_now,
    metric_of,
    released,
    report_of,
    rows_of,
    submission_of,
    total,
    upload_of,
)
from hostile_uploads import seeded
from rappor_server.base.errors import StoreError
from rappor_server.ingest.accepted_params import AcceptedParams
from rappor_server.ingest.validate import AcceptedReport, Submission
from rappor_server.operations.retention import check_clock, prune
from rappor_server.releases.warning_signs import Refusals, read_refusals
from rappor_server.storage import day_tables, schema
from rappor_server.storage.bulk import insert_rows
from rappor_server.storage.database import (
    erase_traces,
    open_database,
    ping,
    read_today,
    try_maintenance_lock,
    write_transaction,
)
from rappor_server.storage.inbox import Batch, open_inbox
from rappor_server.storage.merge import merge, merge_all, retry_unreadable
from rappor_server.storage.record import encode
from rappor_server.storage.tallies import Tally
from sqlalchemy import Engine, Text, cast, create_engine, event, literal, select, text
from sqlalchemy.exc import OperationalError

from rappor import Params, Registry

DAY = datetime.timedelta(days=1)
PAGE = Registry.loads(REGISTRY)["page"]
NEWEST = day_tables.table_of(day_tables.UPLOAD, TODAY).name


def test_retry_is_not_counted_again(engine: Engine) -> None:
    """The retry may be in the same batch, the same merge, a later merge, or on a later day."""
    body, other = upload_of(report_of(), report_of(cohort=2)), upload_of()
    append(engine, [submission_of(body), submission_of(body)])
    append(engine, [submission_of(body), submission_of(other)])
    assert merge_now(engine)[:2] == (2, 2)
    for offset in (0, 1, 14):
        commit(engine, upload_of(), body, today=TODAY + offset * DAY)
    assert total(engine) == 6


SUBSETS = [positions for n in range(4) for positions in itertools.combinations((1, 2, 3), n)]
"""All sets of positions of the three reports of an upload: those that one attempt has accepted."""
HISTORIES = [history for n in range(1, 5) for history in itertools.product(SUBSETS, repeat=n)]
"""All histories of an upload with one to four attempts. A history has a set for each attempt."""


MANY_COHORTS = Params(k=2, h=1, m=65_536, f=0.5, p=0.25, q=0.75)


def make_attempt(number: int, key: bytes, positions: tuple[int, ...]) -> Submission:
    """Return an attempt to upload three reports, which accepts the reports at some positions.

    Each report of each upload has a cohort of its own, so the counter of the cohort shows how often
    the report was counted.
    """
    accepted = tuple(
        AcceptedReport(
            metric="page",
            params=MANY_COHORTS,
            fingerprint=MANY_COHORTS.fingerprint,
            cohort=3 * number + position,
            bits=b"\x01",
            position=position,
        )
        for position in positions
    )
    refused = {("page", "stopped"): 3 - len(positions)} if len(positions) < 3 else {}
    return Submission(key=key, response=b"", accepted=accepted, refusals=refused)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", list(itertools.product((False, True), repeat=3)))
def test_mixed_uploads_lose_and_double_nothing(engine: Engine, pattern: tuple[bool, ...]) -> None:
    """A report that at least one attempt has accepted counts once, in all `HISTORIES`.

    `pattern` has for each of the first three attempts whether a merge follows before the next
    attempt. Attempts without a merge in between are merged together. PostgreSQL runs only one
    pattern: its statements differ from those of SQLite, and the rules are the same.
    """
    if engine.dialect.name == "postgresql" and pattern != (True, False, True):
        pytest.skip("the rules are the same on both databases")
    keys = [secrets.token_bytes(16) for _ in HISTORIES]
    for n, is_merged in enumerate((*pattern, True)):
        append(
            engine,
            [
                make_attempt(number, keys[number], history[n])
                for number, history in enumerate(HISTORIES)
                if n < len(history)
            ],
        )
        if is_merged:
            merge_now(engine)
    expected = {
        3 * number + position: 1
        for number, history in enumerate(HISTORIES)
        for position in set(itertools.chain.from_iterable(history))
    }
    columns = schema.tally.c
    with engine.connect() as db:
        rows = db.execute(select(columns.cohort, columns.reports)).all()
    assert {row.cohort: row.reports for row in rows} == expected


@pytest.mark.slow
def test_concurrent_merges_and_receivers_count_each_upload_once(
    engine: Engine, database: str
) -> None:
    """Two threads add batches, and two threads merge them at the same time.

    Each batch repeats the uploads of earlier batches, which the other receiver may have added.
    """
    bodies = [upload_of(report_of(bits=i, cohort=i % 4)) for i in range(120)]

    def receive(first: int) -> None:
        with open_database(database) as engine_of_thread:
            for i in range(first, len(bodies), 2):
                append(
                    engine_of_thread,
                    [submission_of(body) for body in bodies[max(i - 3, 0) : i + 1]],
                )

    def merge_repeatedly() -> None:
        with contextlib.closing(open_inbox(engine)) as inbox:
            while any(receiver.is_alive() for receiver in receivers):
                with contextlib.suppress(StoreError):
                    merge(engine, inbox, wait=bool(inbox.count_contents().batches % 2), today=TODAY)

    receivers = [threading.Thread(target=receive, args=(i,)) for i in range(2)]
    mergers = [threading.Thread(target=merge_repeatedly) for _ in range(2)]
    for thread in receivers + mergers:
        thread.start()
    for thread in receivers + mergers:
        thread.join()
    merge_now(engine)
    (counts,) = released(engine).collections
    assert counts.cohort_reports.tolist() == [30] * 4
    expected = [sum(i >> bit & 1 for i in range(120)) for bit in range(16)]
    assert counts.bit_counts.sum(axis=0).tolist() == expected


@pytest.mark.parametrize("days", [400, 1, -16])
def test_receiver_with_a_wrong_clock(engine: Engine, days: int) -> None:
    """Uploads of a collector with a wrong clock are counted once, on no day after today.

    The deduplication keys are in the table of the day of the merge.
    """
    body = upload_of()
    append(engine, [submission_of(body)], today=TODAY + days * DAY)
    merge_now(engine)
    assert {row["day"] for row in rows_of(engine, day_tables.UPLOAD)} == {TODAY}
    assert [each.day for each in released(engine).days] == [min(TODAY + days * DAY, TODAY)]
    prune(engine, today=TODAY + DAY)
    commit(engine, body, today=TODAY + DAY)
    assert total(engine) == 1


def test_keys_go_to_the_newest_table(engine: Engine) -> None:
    """After a clock was set back, keys are stored in the newest table.

    The table of the earlier day would be deleted too early.
    """
    days = (5, 12, 20)
    for day in days:
        commit(engine, upload_of(), today=TODAY + day * DAY)
    body = upload_of()
    commit(engine, body)
    prune(engine, today=TODAY + 20 * DAY)
    commit(engine, body, today=TODAY + 20 * DAY)
    assert total(engine) == len(days) + 1


def test_clock_that_was_far_ahead(engine: Engine) -> None:
    """Keys go to the table of today again, also on the first day of a collector."""
    for day in (0, 400, 0, 1):
        commit(engine, upload_of(), today=TODAY + day * DAY)
    with engine.connect() as db:
        found = [(day - TODAY).days for day in day_tables.list_days(db, day_tables.UPLOAD)]
    assert found == [400, 1, 0]
    assert prune(engine, today=TODAY + 16 * DAY) == 3


@pytest.mark.slow
def test_merge_after_years_without_prune(engine: Engine) -> None:
    """There may be more tables of keys than a query can join. Only the newest ones are read."""
    body = upload_of()
    with write_transaction(engine) as db:
        for i in range(600):
            day_tables.store_keys(db, day_tables.UPLOAD, [secrets.token_bytes(16)], TODAY + i * DAY)
    for _ in range(2):
        commit(engine, body, today=TODAY + 600 * DAY)
    assert total(engine) == 1


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)  # SQLite has no such time
def test_hanging_merge_loses_its_lock(engine: Engine) -> None:
    """PostgreSQL ends the transaction of a merge that is idle for ten seconds, and no other."""
    seconds = text("SHOW idle_in_transaction_session_timeout")
    with write_transaction(engine) as db:
        assert db.scalar(seconds) == "0"
        assert try_maintenance_lock(db)
        assert db.scalar(seconds) == "10s"
    with engine.connect() as db:
        assert db.scalar(seconds) == "0"


def test_merge_uses_the_day_of_the_database(engine: Engine) -> None:
    """Without a day, a merge reads the clock of the database, and writes a heartbeat."""
    append(engine, [submission_of(upload_of())])
    merge_all(engine)
    with engine.connect() as db:
        now = read_today(db)
        assert day_tables.list_days(db, day_tables.UPLOAD) == [now]
        assert list(db.execute(select(schema.heartbeat.c.day)).scalars()) == [now]
    check_clock(engine, now + 2 * DAY)
    for days in (-16, -3, 3, 100):
        with pytest.raises(StoreError, match="run prune --yes") as caught:
            check_clock(engine, now + days * DAY)
        assert not caught.value.retryable


def test_prune_refuses_the_day_of_a_wrong_clock(engine: Engine) -> None:
    """`prune` is refused on each day of a wrong clock, and accepted on the next correct day."""
    commit(engine, upload_of())
    commit(engine, upload_of(), today=TODAY + 100 * DAY)
    with pytest.raises(StoreError, match="run prune --yes"):
        check_clock(engine, TODAY + 100 * DAY)
    commit(engine, upload_of(), today=TODAY + DAY)
    check_clock(engine, TODAY + DAY)
    commit(engine, upload_of(), today=TODAY + 9 * DAY)
    with pytest.raises(StoreError, match="run prune --yes"):
        check_clock(engine, TODAY + 9 * DAY)
    commit(engine, upload_of(), today=TODAY + 10 * DAY)
    check_clock(engine, TODAY + 10 * DAY)
    for ahead in (100, 101):  # the wrong clock passes midnight
        commit(engine, upload_of(), today=TODAY + ahead * DAY)
    with pytest.raises(StoreError, match="run prune --yes"):
        check_clock(engine, TODAY + 101 * DAY)
    prune(engine, today=TODAY + 101 * DAY)
    check_clock(engine, TODAY + 101 * DAY)


def test_deleted_tables_of_keys_are_created_again(engine: Engine) -> None:
    """A running collector continues, also with keys of a day whose table is gone."""
    body = upload_of()
    commit(engine, upload_of())
    assert prune(engine, today=TODAY + 100 * DAY) == 1
    for _ in range(2):
        commit(engine, body)
    assert total(engine) == 2
    assert len(rows_of(engine, day_tables.UPLOAD)) == 1


def test_refusals_are_counted_by_reason(engine: Engine) -> None:
    """Refused reports and uploads are counted by reason over all batches."""
    count_group(engine, [submission_of(upload_of(report_of(), report_of("old")))])
    count_group(engine, [], {("", "malformed"): 2})
    count_group(engine, [], {("", "malformed"): 1})
    assert read_refusals(engine) == [
        Refusals(TODAY, "", "malformed", 3),
        Refusals(TODAY, "old", "expired", 1),
    ]


def make_damaged_batches() -> dict[str, bytes]:
    """Return batches that no version can read, by the name of their fault."""
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
@pytest.mark.parametrize("name", sorted(make_damaged_batches()))
def test_unreadable_batch_is_moved(engine: Engine, name: str) -> None:
    """Other batches are counted. The batch stays unchanged until a version can read it."""
    bad = make_damaged_batches()[name]
    append(engine, [submission_of(upload_of())])
    with contextlib.closing(open_inbox(engine)) as inbox:
        inbox.append(Batch(TODAY, 1, bad), {})
        append(engine, [submission_of(upload_of())])
        assert merge(engine, inbox, wait=True, today=TODAY).failed == 1
        assert inbox.count_contents() == (0, 0, 0, 1)
    assert total(engine) == 2
    assert retry_unreadable(engine, today=TODAY).failed == 1
    with write_transaction(engine) as db:
        assert bytes(db.execute(select(schema.unreadable_batch.c.data)).scalar_one()) == bad
        db.execute(
            schema.unreadable_batch.update().values(data=encode([submission_of(upload_of())], {}))
        )
    assert retry_unreadable(engine, today=TODAY)[:1] == (1,)
    assert total(engine) == 3


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)  # PostgreSQL checks its days
@pytest.mark.parametrize("day", [b"2026-11-9x", b"\xff"])
def test_batch_with_a_damaged_day_is_moved(engine: Engine, day: bytes) -> None:
    """It stops no merge, also if it is damaged among the unreadable batches."""
    append(engine, [submission_of(upload_of())])
    damaged_day = {"day": cast(literal(day), Text)}
    with contextlib.closing(open_inbox(engine)) as inbox:
        with write_transaction(inbox._inbox) as own:  # type: ignore[union-attr]
            own.execute(schema.inbox_table("inbox").update().values(damaged_day))
        assert merge(engine, inbox, today=TODAY).failed == 1
    with write_transaction(engine) as db:
        db.execute(schema.unreadable_batch.update().values(damaged_day))
    assert [retry_unreadable(engine, today=TODAY).failed for _ in range(2)] == [1, 0]
    assert total(engine) == 1


def damage_record(rng: random.Random, record: bytes) -> bytes:
    """Change some bytes of a record after its version, and perhaps its length."""
    changed = bytearray(record)
    for _ in range(rng.randrange(1, 4)):
        changed[rng.randrange(1, len(changed))] = rng.randrange(256)
    return bytes(changed[: rng.choice([len(changed), rng.randrange(1, len(changed))])])


@pytest.mark.slow
def test_damaged_batches_stop_no_merge(engine: Engine) -> None:
    """Each damaged batch is counted or moved."""
    rng = seeded(35)
    uploads = [upload_of(report_of(bits=i), report_of("sound")) for i in range(4)]
    record = encode([submission_of(each) for each in uploads], {("page", "expired"): 1})
    with contextlib.closing(open_inbox(engine)) as inbox:
        for _ in range(50):
            for _ in range(20):
                inbox.append(Batch(TODAY, 8, damage_record(rng, record)), {})
            merge(engine, inbox, wait=True, today=TODAY)
        assert inbox.count_contents()[:3] == (0, 0, 0)
    commit(engine, upload_of())
    assert total(engine) >= 1


def refuse_rows(engine: Engine, verb: str, table: str) -> str:
    """Make the database refuse rows of a table; return the statement that ends this."""
    refusal, undo = "BEGIN SELECT RAISE(ABORT, 'it refuses'); END", "DROP TRIGGER refuse"
    with write_transaction(engine) as db:
        if engine.dialect.name == "postgresql":
            body = "BEGIN RAISE 'it refuses'; END"
            db.execute(text(f"CREATE FUNCTION no() RETURNS trigger AS $${body}$$ LANGUAGE plpgsql"))
            refusal, undo = "EXECUTE FUNCTION no()", f"{undo} ON {table}"
        trigger = f"CREATE TRIGGER refuse BEFORE {verb} ON {table} FOR EACH ROW {refusal}"
        db.execute(text(trigger))
    return undo


@pytest.mark.parametrize(("verb", "table"), [("INSERT", NEWEST), ("UPDATE", "tally")])
def test_failed_merge_counts_nothing(engine: Engine, verb: str, table: str) -> None:
    """A merge is one transaction. The next merge counts everything.

    The error names its class only.
    """
    commit(engine, upload_of())
    append(engine, [submission_of(upload_of()), submission_of(upload_of())])
    undo = refuse_rows(engine, verb, table)
    with pytest.raises(StoreError) as caught:
        merge_now(engine)
    assert caught.value.retryable
    assert "refuses" not in str(caught.value)
    with write_transaction(engine) as db:
        db.execute(text(undo))
    assert total(engine) == 1
    merge_now(engine)
    assert total(engine) == 3
    assert len(rows_of(engine, day_tables.UPLOAD)) == 3


@pytest.mark.parametrize("is_committed", [True, False])
def test_failed_commit_counts_once(engine: Engine, *, is_committed: bool) -> None:
    """The database may have stored the commit or not. The next merge continues correctly."""
    append(engine, [submission_of(upload_of())])

    def store_and_fail(connection: Any) -> None:
        driver = connection.connection.dbapi_connection
        driver.commit() if is_committed else driver.rollback()
        raise OperationalError("COMMIT", None, Exception("gone"))

    with contextlib.closing(open_inbox(engine)) as inbox:
        inbox.seal()
        event.listen(engine, "commit", store_and_fail)
        with pytest.raises(StoreError):
            merge(engine, inbox, wait=True, today=TODAY)
        event.remove(engine, "commit", store_and_fail)
    append(engine, [submission_of(upload_of())])
    merge_now(engine)
    assert total(engine) == 2


@pytest.mark.slow
def test_merge_fails_after_a_lock_timeout(engine: Engine, database: str) -> None:
    """Uploads are accepted meanwhile."""
    with open_database(database) as other, write_transaction(other) as db:
        if other.dialect.name == "postgresql":
            db.execute(text("LOCK TABLE tally IN EXCLUSIVE MODE"))
        append(engine, [submission_of(upload_of())])
        with pytest.raises(StoreError, match=r"OperationalError|LockNotAvailable"):
            merge_now(engine)
    merge_now(engine)
    assert total(engine) == 1


def test_exhausted_pool_raises_store_error(engine: Engine) -> None:
    """A pool without a free connection raises a retryable StoreError."""
    small = create_engine(engine.url, pool_size=1, max_overflow=0, pool_timeout=0.05)
    with small.connect(), pytest.raises(StoreError, match="all connections are in use") as caught:
        ping(small)
    for _ in range(3):
        ping(small)  # which gives its connection back
    small.dispose()
    assert caught.value.retryable


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)  # SQLite has one writer
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_transactions_read_committed_rows(engine: Engine, level: str) -> None:
    """A receiver that waited for a new table must see the table, or it writes to a dropped one."""
    name = engine.url.database
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        db.execute(text(f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'"))
        db.execute(text(f"ALTER DATABASE {name} SET synchronous_commit = off"))
    engine.dispose()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        assert db.execute(text("SHOW transaction_isolation")).scalar_one() == "read committed"
        assert db.execute(text("SHOW synchronous_commit")).scalar_one() == "on"


def draw_keys(n: int) -> list[bytes]:
    """Return n random keys in their order."""
    return sorted(secrets.token_bytes(16) for _ in range(n))


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("k", "m", "n"),
    [(8, 4096, 4096), (128, 4096, 4096), (2040, 512, 512), (8, 4, 999)],
)
def test_merge_needs_no_more_space_than_computed(engine: Engine, k: int, m: int, n: int) -> None:
    """The log and the file together grow by no more than `merge_bytes` returns.

    The cases are counters of all cohorts, and keys. Most keys change a page of their own, as late
    keys do on a busy day. The counters have 100,000 reports each, so their sums have the width that
    the bound assumes.
    """
    params = Params(k=k, h=1, m=m, f=0.5, p=0.25, q=0.75)
    metric = metric_of("m" * 64, params)
    bits = bytes(params.n_bytes)
    reports = [
        AcceptedReport(metric.name, params, params.fingerprint, i % m, bits, 1) for i in range(n)
    ]
    append(engine, [Submission(secrets.token_bytes(16), b"", (report,), {}) for report in reports])
    path = Path(str(engine.url.database))
    tally = Tally(100_000, np.zeros(k, dtype=np.int64))
    with write_transaction(engine) as db:
        day_tables.store_keys(db, day_tables.UPLOAD, draw_keys(200_000), TODAY)
        key = (metric.name, metric.fingerprint, TODAY)
        rows = [(*key, cohort, tally.reports, tally.to_bytes()) for cohort in range(m)]
        insert_rows(db, schema.tally, rows)
    erase_traces(path)
    before, logs = path.stat().st_size, [0]

    @event.listens_for(engine, "checkin")
    def look(*_: object) -> None:
        logs.append(path.with_name(f"{path.name}-wal").stat().st_size)

    with contextlib.closing(open_inbox(engine)) as inbox:
        waiting = inbox.count_contents()
        merge(engine, inbox, today=TODAY)
    reckoned = AcceptedParams(Registry([metric], total=math.inf)).merge_bytes(
        waiting.n_bytes, waiting.reports
    )
    taken = max(logs) + path.stat().st_size - before
    assert reckoned / 5 < taken < reckoned
