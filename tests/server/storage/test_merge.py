"""Merges on SQLite and on PostgreSQL: every upload is counted once, whoever merges or fails.

A collector stores each batch of uploads in the inbox, and responds to the devices. A merge adds the
reports of all batches to the counters, in one transaction. It stores a deduplication key for each
upload, so a retry of a device is not counted again. The keys are in tables of one day each, and
`prune` deletes the tables of days that are more than 14 days old.

The helpers of `collectors` stand for the steps of a collector: `append` stores uploads as a batch,
`merge_now` merges all batches, and `commit` does both. `count_reports` returns the number of
counted reports. `build_upload()` returns the body of a new upload with one report of the metric
`page`.
"""

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
    build_metric,
    build_report,
    build_upload,
    commit,
    count_reports,
    merge_now,
    parse_submission,
    read_counts_without_minimum,
    read_day_rows,
    store_and_merge,
)
from databases import ON_BOTH_DATABASES
from hostile_uploads import make_generator
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
KEY_TABLE = day_tables.table_of(day_tables.UPLOAD, TODAY).name
"""This table contains the deduplication keys of TODAY."""


@ON_BOTH_DATABASES
def test_retry_is_not_counted_again(engine: Engine) -> None:
    """A retry is not counted again in the same batch, the same merge, a later merge, or later days.

    `body` has two reports, and `other_body` has one. The last day for a retry is 14 days later.
    """
    body, other_body = build_upload(build_report(), build_report(cohort=2)), build_upload()
    append(engine, [parse_submission(body), parse_submission(body)])
    append(engine, [parse_submission(body), parse_submission(other_body)])
    # The merge counts both uploads, and finds two duplicates of `body`.
    assert merge_now(engine)[:2] == (2, 2)
    for offset in (0, 1, 14):
        commit(engine, build_upload(), body, today=TODAY + offset * DAY)
    # Two reports of `body`, one of `other_body`, and one of each of the three new uploads.
    assert count_reports(engine) == 6


SUBSETS = [positions for n in range(4) for positions in itertools.combinations((1, 2, 3), n)]
"""All sets of positions of the three reports of an upload: those that one attempt has accepted."""


def list_histories(n_attempts: int) -> list[tuple[tuple[int, ...], ...]]:
    """Return all histories of an upload with one attempt, and up to a number of attempts.

    A history has a set of positions for each attempt.
    """
    return [
        history
        for n in range(1, n_attempts + 1)
        for history in itertools.product(SUBSETS, repeat=n)
    ]


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


@ON_BOTH_DATABASES
@pytest.mark.parametrize(
    "pattern",
    [
        *(
            pytest.param(pattern, marks=pytest.mark.slow)
            for pattern in itertools.product((False, True), repeat=2)
        ),
        *(
            pytest.param(pattern, marks=pytest.mark.acceptance)
            for pattern in itertools.product((False, True), repeat=3)
        ),
    ],
)
def test_mixed_uploads_lose_and_double_nothing(engine: Engine, pattern: tuple[bool, ...]) -> None:
    """A report that at least one attempt has accepted counts once, in all histories.

    `pattern` has for each attempt except the last whether a merge follows before the next attempt.
    Attempts without a merge in between are merged together. The first of three attempts leads to
    every set of counted reports, and the others are every pair of sets, merged together or not. The
    acceptance stage has four attempts. PostgreSQL runs only one pattern: its statements differ from
    those of SQLite, and the rules are the same.
    """
    if engine.dialect.name == "postgresql" and pattern != (True, False):
        pytest.skip("the rules are the same on both databases")
    histories = list_histories(len(pattern) + 1)
    keys = [secrets.token_bytes(16) for _ in histories]
    for n, is_merged in enumerate((*pattern, True)):
        append(
            engine,
            [
                make_attempt(number, keys[number], history[n])
                for number, history in enumerate(histories)
                if n < len(history)
            ],
        )
        if is_merged:
            merge_now(engine)
    expected = {
        3 * number + position: 1
        for number, history in enumerate(histories)
        for position in set(itertools.chain.from_iterable(history))
    }
    columns = schema.tally.c
    with engine.connect() as db:
        rows = db.execute(select(columns.cohort, columns.reports)).all()
    assert {row.cohort: row.reports for row in rows} == expected


@ON_BOTH_DATABASES
@pytest.mark.slow
def test_concurrent_merges_and_receivers_count_each_upload_once(
    engine: Engine, database: str
) -> None:
    """Two threads add batches, and two threads merge them at the same time.

    Each batch repeats the uploads of earlier batches, which the other receiver may have added.
    """
    bodies = [build_upload(build_report(bits=i, cohort=i % 4)) for i in range(120)]

    def receive(first: int) -> None:
        with open_database(database) as engine_of_thread:
            for i in range(first, len(bodies), 2):
                append(
                    engine_of_thread,
                    [parse_submission(body) for body in bodies[max(i - 3, 0) : i + 1]],
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
    (counts,) = read_counts_without_minimum(engine).collections
    assert counts.cohort_reports.tolist() == [30] * 4  # 120 reports in turn to four cohorts
    expected = [sum(i >> bit & 1 for i in range(120)) for bit in range(16)]
    assert counts.bit_counts.sum(axis=0).tolist() == expected


@pytest.mark.parametrize("days", [400, 1, -16])
def test_receiver_with_a_wrong_clock(engine: Engine, days: int) -> None:
    """Uploads of a collector with a wrong clock are counted once, on no day after today.

    The clock of the receiver is wrong by `days` days. The clock of the merge is right, so the
    deduplication keys are in the table of today. Keys in the table of a day 16 days ago would be
    deleted at once.
    """
    body = build_upload()
    append(engine, [parse_submission(body)], today=TODAY + days * DAY)
    merge_now(engine)
    assert {row["day"] for row in read_day_rows(engine, day_tables.UPLOAD)} == {TODAY}
    assert [row.day for row in read_counts_without_minimum(engine).days] == [
        min(TODAY + days * DAY, TODAY)
    ]
    prune(engine, today=TODAY + DAY)
    commit(engine, body, today=TODAY + DAY)
    assert count_reports(engine) == 1


@ON_BOTH_DATABASES
def test_keys_go_to_the_newest_table(engine: Engine) -> None:
    """After a clock was set back from day 20 to day 0, keys are stored in the table of day 20.

    The table of day 0 would be deleted by the next `prune` of day 20, and a retry of `body` would
    be counted again.
    """
    days = (5, 12, 20)
    for day in days:
        commit(engine, build_upload(), today=TODAY + day * DAY)
    body = build_upload()
    commit(engine, body)
    prune(engine, today=TODAY + 20 * DAY)
    commit(engine, body, today=TODAY + 20 * DAY)
    assert count_reports(engine) == len(days) + 1


def test_clock_that_was_far_ahead(engine: Engine) -> None:
    """A clock was 400 days ahead for one merge. Later keys go to the table of the right day again.

    Otherwise all later keys would be in the table of day 400, and would be stored for 400 days. The
    wrong merge comes on the first day of the collector, so only one other day has a table.
    """
    for day in (0, 400, 0, 1):
        commit(engine, build_upload(), today=TODAY + day * DAY)
    with engine.connect() as db:
        offsets = [(day - TODAY).days for day in day_tables.list_days(db, day_tables.UPLOAD)]
    assert offsets == [400, 1, 0]
    # On day 16, the two keys of day 0 and the key of day 1 are older than 14 days.
    assert prune(engine, today=TODAY + 16 * DAY) == 3


@ON_BOTH_DATABASES
@pytest.mark.slow
def test_merge_after_years_without_prune(engine: Engine) -> None:
    """A merge works without `prune` for 600 days. It reads only the newest tables of keys.

    A query cannot join 600 tables.
    """
    body = build_upload()
    with write_transaction(engine) as db:
        for i in range(600):
            day_tables.store_keys(db, day_tables.UPLOAD, [secrets.token_bytes(16)], TODAY + i * DAY)
    for _ in range(2):
        commit(engine, body, today=TODAY + 600 * DAY)
    assert count_reports(engine) == 1


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)  # SQLite has no such time
def test_hanging_merge_loses_its_lock(engine: Engine) -> None:
    """PostgreSQL ends the transaction of a merge that is idle for ten seconds.

    The limit begins with the maintenance lock. Other transactions have no limit.
    """
    seconds = text("SHOW idle_in_transaction_session_timeout")
    with write_transaction(engine) as db:
        assert db.scalar(seconds) == "0"
        assert try_maintenance_lock(db)
        assert db.scalar(seconds) == "10s"
    with engine.connect() as db:
        assert db.scalar(seconds) == "0"


@ON_BOTH_DATABASES
def test_merge_uses_the_day_of_the_database(engine: Engine) -> None:
    """`merge_all` takes the day from the clock of the database, and writes a heartbeat of this day.

    `check_clock` accepts days up to two days after the heartbeat, and refuses others.
    """
    append(engine, [parse_submission(build_upload())])
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
    """`check_clock` refuses a day after a jump of the clock, and accepts the next right day."""
    commit(engine, build_upload())
    commit(engine, build_upload(), today=TODAY + 100 * DAY)
    with pytest.raises(StoreError, match="run prune --yes"):
        check_clock(engine, TODAY + 100 * DAY)
    # The clock is right again.
    commit(engine, build_upload(), today=TODAY + DAY)
    check_clock(engine, TODAY + DAY)
    # No collector ran for eight days. The day is right, but `check_clock` accepts it only after a
    # second day.
    commit(engine, build_upload(), today=TODAY + 9 * DAY)
    with pytest.raises(StoreError, match="run prune --yes"):
        check_clock(engine, TODAY + 9 * DAY)
    commit(engine, build_upload(), today=TODAY + 10 * DAY)
    check_clock(engine, TODAY + 10 * DAY)
    # The clock is ahead by 90 days, and passes midnight. Both heartbeats are of the wrong clock,
    # and the gap between the days of the keys is still visible.
    for day in (100, 101):
        commit(engine, build_upload(), today=TODAY + day * DAY)
    with pytest.raises(StoreError, match="run prune --yes"):
        check_clock(engine, TODAY + 101 * DAY)
    # An operator says that the clock is right (`prune --yes`), which deletes the earlier days.
    prune(engine, today=TODAY + 101 * DAY)
    check_clock(engine, TODAY + 101 * DAY)


@ON_BOTH_DATABASES
def test_deleted_tables_of_keys_are_created_again(engine: Engine) -> None:
    """A collector creates the table of keys of a day again after `prune` has deleted it."""
    body = build_upload()
    commit(engine, build_upload())
    assert prune(engine, today=TODAY + 100 * DAY) == 1
    for _ in range(2):
        commit(engine, body)
    assert count_reports(engine) == 2  # the first upload, and `body` once
    assert len(read_day_rows(engine, day_tables.UPLOAD)) == 1  # the key of `body`


def test_refusals_are_counted_by_reason(engine: Engine) -> None:
    """Refused reports and uploads are counted by reason over all batches."""
    store_and_merge(engine, [parse_submission(build_upload(build_report(), build_report("old")))])
    store_and_merge(engine, [], {("", "malformed"): 2})
    store_and_merge(engine, [], {("", "malformed"): 1})
    assert read_refusals(engine) == [
        Refusals(TODAY, "", "malformed", 3),
        Refusals(TODAY, "old", "expired", 1),
    ]


def make_damaged_batches() -> dict[str, bytes]:
    """Return batches that cannot be read, by the name of their fault.

    `newer` has the number of a later version. `foreign` has the fingerprint of unknown parameters.
    The last bytes of `refused` are the number of refusals, which `no number` makes too large.
    """
    valid_data = encode([parse_submission(build_upload())], {})
    foreign = encode([parse_submission(build_upload())], {}).replace(
        PAGE.fingerprint.encode(), b"0" * 16
    )
    refused = encode([], {("page", "expired"): 1})
    return {
        "empty": b"",
        "newer": b"\x09" + valid_data[1:],
        "cut": valid_data[:-3],
        "foreign": foreign,
        "no text": valid_data.replace(b"page", b"p\xe4ge"),
        "no name": valid_data.replace(b"page", b"pa\0e"),
        "no refused name": refused.replace(b"page", b"pa\0e"),
        "no reason": refused.replace(b"expired", b"expire\0"),
        "no fingerprint": valid_data.replace(PAGE.fingerprint.encode(), b"\0" * 16),
        "no number": refused[:-1] + b"\xcf" + b"\x7f" * 8,
    }


@ON_BOTH_DATABASES
@pytest.mark.slow
def test_unreadable_batch_is_moved(engine: Engine) -> None:
    """A merge moves a batch that it cannot read to `unreadable_batch`, and counts other batches.

    `retry_unreadable` tries the batch again, which stays unchanged. The test then replaces its data
    with data that can be read, as if a later version could read the batch. Each kind of damage
    passes these steps alone, in the database of the kind before.
    """
    for n_earlier, (name, damaged_batch) in enumerate(make_damaged_batches().items()):
        append(engine, [parse_submission(build_upload())])
        with contextlib.closing(open_inbox(engine)) as inbox:
            inbox.append(Batch(TODAY, 1, damaged_batch), {})
            append(engine, [parse_submission(build_upload())])
            assert merge(engine, inbox, wait=True, today=TODAY).failed == 1, name
            assert inbox.count_contents() == (0, 0, 0, 1), name  # one unreadable batch, no other
        assert count_reports(engine) == 3 * n_earlier + 2, name
        assert retry_unreadable(engine, today=TODAY).failed == 1, name
        with write_transaction(engine) as db:
            stored = db.execute(select(schema.unreadable_batch.c.data)).scalar_one()
            assert bytes(stored) == damaged_batch, name
            readable = encode([parse_submission(build_upload())], {})
            db.execute(schema.unreadable_batch.update().values(data=readable))
        assert retry_unreadable(engine, today=TODAY)[:1] == (1,), name  # one upload was counted
        assert count_reports(engine) == 3 * n_earlier + 3, name


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)  # PostgreSQL checks its days
@pytest.mark.parametrize("day", [b"2026-11-9x", b"\xff"])
def test_batch_with_a_damaged_day_is_moved(engine: Engine, day: bytes) -> None:
    """A batch whose day is damaged stops no merge, in the inbox or in `unreadable_batch`.

    A merge or retry that cannot read the day stores the batch as unreadable, with today as its day.
    So the first retry fails, and the second retry counts the batch.
    """
    append(engine, [parse_submission(build_upload())])
    damaged_day = {"day": cast(literal(day), Text)}
    with contextlib.closing(open_inbox(engine)) as inbox:
        with write_transaction(inbox._inbox) as inbox_db:  # type: ignore[union-attr]
            inbox_db.execute(schema.inbox_table("inbox").update().values(damaged_day))
        assert merge(engine, inbox, today=TODAY).failed == 1
    with write_transaction(engine) as db:
        db.execute(schema.unreadable_batch.update().values(damaged_day))
    assert [retry_unreadable(engine, today=TODAY).failed for _ in range(2)] == [1, 0]
    assert count_reports(engine) == 1


def damage_record(rng: random.Random, record: bytes) -> bytes:
    """Change one to three bytes of a record, and perhaps cut it. Its version, byte 0, stays."""
    changed = bytearray(record)
    for _ in range(rng.randrange(1, 4)):
        changed[rng.randrange(1, len(changed))] = rng.randrange(256)
    return bytes(changed[: rng.choice([len(changed), rng.randrange(1, len(changed))])])


@ON_BOTH_DATABASES
@pytest.mark.slow
def test_damaged_batches_stop_no_merge(engine: Engine) -> None:
    """A merge counts or moves each of 1,000 randomly damaged batches, and raises no error.

    The inbox is empty afterwards, and the next upload is counted. Some batches are moved to
    `unreadable_batch`, and others can be read in spite of the damage. The first commit brings the
    parameters of the reports, without which no batch could be read.
    """
    rng = make_generator(35)
    uploads = [build_upload(build_report(bits=i), build_report("sound")) for i in range(4)]
    record = encode([parse_submission(upload) for upload in uploads], {("page", "expired"): 1})
    commit(engine, *uploads)
    with contextlib.closing(open_inbox(engine)) as inbox:
        for _ in range(50):
            for _ in range(20):
                inbox.append(Batch(TODAY, 8, damage_record(rng, record)), {})
            merge(engine, inbox, wait=True, today=TODAY)
        contents = inbox.count_contents()
    assert contents[:3] == (0, 0, 0)
    assert 0 < contents.unreadable < 1000
    n_reports = count_reports(engine)
    commit(engine, build_upload())
    assert count_reports(engine) == n_reports + 1


def refuse_rows(engine: Engine, verb: str, table: str) -> str:
    """Create a trigger that refuses rows of a table, and return the statement that drops it.

    `verb` is INSERT or UPDATE.
    """
    refusal, undo = "BEGIN SELECT RAISE(ABORT, 'it refuses'); END", "DROP TRIGGER refuse"
    with write_transaction(engine) as db:
        if engine.dialect.name == "postgresql":
            body = "BEGIN RAISE 'it refuses'; END"
            db.execute(text(f"CREATE FUNCTION no() RETURNS trigger AS $${body}$$ LANGUAGE plpgsql"))
            refusal, undo = "EXECUTE FUNCTION no()", f"{undo} ON {table}"
        trigger = f"CREATE TRIGGER refuse BEFORE {verb} ON {table} FOR EACH ROW {refusal}"
        db.execute(text(trigger))
    return undo


@ON_BOTH_DATABASES
@pytest.mark.parametrize(("verb", "table"), [("INSERT", KEY_TABLE), ("UPDATE", "tally")])
def test_failed_merge_counts_nothing(engine: Engine, verb: str, table: str) -> None:
    """A merge that fails counts nothing, because it is one transaction. The next merge counts all.

    The message of the error does not contain the message of the database, which may contain data.
    """
    commit(engine, build_upload())
    append(engine, [parse_submission(build_upload()), parse_submission(build_upload())])
    undo = refuse_rows(engine, verb, table)
    with pytest.raises(StoreError) as caught:
        merge_now(engine)
    assert caught.value.retryable
    assert "refuses" not in str(caught.value)
    with write_transaction(engine) as db:
        db.execute(text(undo))
    assert count_reports(engine) == 1
    merge_now(engine)
    assert count_reports(engine) == 3
    assert len(read_day_rows(engine, day_tables.UPLOAD)) == 3


@ON_BOTH_DATABASES
@pytest.mark.parametrize("is_committed", [True, False])
def test_failed_commit_counts_once(engine: Engine, *, is_committed: bool) -> None:
    """Each upload is counted once after a commit that failed, whether it was stored or not.

    A connection may fail before the database stores a commit, or after it.
    """
    append(engine, [parse_submission(build_upload())])

    def store_and_fail(connection: Any) -> None:
        driver = connection.connection.dbapi_connection
        driver.commit() if is_committed else driver.rollback()
        raise OperationalError("COMMIT", None, Exception("gone"))

    with contextlib.closing(open_inbox(engine)) as inbox:
        inbox.seal()  # before the listener, which would make this commit fail, too
        event.listen(engine, "commit", store_and_fail)
        with pytest.raises(StoreError):
            merge(engine, inbox, wait=True, today=TODAY)
        event.remove(engine, "commit", store_and_fail)
    append(engine, [parse_submission(build_upload())])
    merge_now(engine)
    assert count_reports(engine) == 2


@ON_BOTH_DATABASES
@pytest.mark.slow
def test_merge_fails_after_a_lock_timeout(engine: Engine, database: str) -> None:
    """A merge that cannot get a lock in time raises StoreError. Uploads are accepted meanwhile."""
    with open_database(database) as other_engine, write_transaction(other_engine) as db:
        if other_engine.dialect.name == "postgresql":
            db.execute(text("LOCK TABLE tally IN EXCLUSIVE MODE"))
        append(engine, [parse_submission(build_upload())])
        with pytest.raises(StoreError, match=r"OperationalError|LockNotAvailable"):
            merge_now(engine)
    merge_now(engine)
    assert count_reports(engine) == 1


@ON_BOTH_DATABASES
def test_exhausted_pool_raises_store_error(engine: Engine) -> None:
    """A pool without a free connection raises a retryable StoreError."""
    small = create_engine(engine.url, pool_size=1, max_overflow=0, pool_timeout=0.05)
    with small.connect(), pytest.raises(StoreError, match="all connections are in use") as caught:
        ping(small)
    for _ in range(3):
        ping(small)  # a ping that kept its connection would exhaust the pool
    small.dispose()
    assert caught.value.retryable


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)  # SQLite has one writer
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_transactions_read_committed_rows(engine: Engine, level: str) -> None:
    """Transactions have the isolation level "read committed", whatever the database defaults to.

    A receiver that waited for a new table of the inbox must see this table. With a stricter level
    it would still see the dropped table, and write to it. Commits wait for the disk, too.
    """
    name = engine.url.database
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        db.execute(text(f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'"))
        db.execute(text(f"ALTER DATABASE {name} SET synchronous_commit = off"))
    engine.dispose()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        assert db.execute(text("SHOW transaction_isolation")).scalar_one() == "read committed"
        assert db.execute(text("SHOW synchronous_commit")).scalar_one() == "on"


def draw_keys(n: int) -> list[bytes]:
    """Return n random deduplication keys in ascending order."""
    return sorted(secrets.token_bytes(16) for _ in range(n))


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("k", "m", "n"),
    [(8, 4096, 4096), (128, 4096, 4096), (2040, 512, 512), (8, 4, 999)],
)
def test_merge_needs_no_more_space_than_computed(engine: Engine, k: int, m: int, n: int) -> None:
    """The log and the file of SQLite together grow by no more than `merge_bytes` returns.

    In the first three cases counters of k bits in m cohorts need most of the space, and in the last
    case the keys of n reports. The table has 200,000 keys before, so most new keys change a page of
    their own, as late keys do on a busy day. The counters have 100,000 reports each, so their sums
    have the width that the bound assumes.
    """
    params = Params(k=k, h=1, m=m, f=0.5, p=0.25, q=0.75)
    metric = build_metric("m" * 64, params)
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
    size_before, log_sizes = path.stat().st_size, [0]

    @event.listens_for(engine, "checkin")  # after each transaction of the merge
    def store_log_size(*_: object) -> None:
        log_sizes.append(path.with_name(f"{path.name}-wal").stat().st_size)

    with contextlib.closing(open_inbox(engine)) as inbox:
        waiting = inbox.count_contents()
        merge(engine, inbox, today=TODAY)
    bound = AcceptedParams(Registry([metric], total=math.inf)).merge_bytes(
        waiting.n_bytes, waiting.reports
    )
    growth = max(log_sizes) + path.stat().st_size - size_before
    # A bound that is five times too large would refuse uploads without need.
    assert bound / 5 < growth < bound
