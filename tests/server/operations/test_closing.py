"""Closing of blocks: a task moves the counters of days that have ended into blocks.

A collector and `prune` run these tasks. Readers never close blocks. A task moves one piece (some
cohorts of a day) in each transaction, and stops when its time is over. The next task continues. A
metric is due if a day has ended whose counters were not moved.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from collectors import (
    ACCEPTED,
    TODAY,
    close_days,
    commit,
    count_group,
    day,
    make_token,
    report_of,
    rules_of,
    serving,
    submission_of,
    upload_of,
)
from programs import become, until
from rappor_server.base.errors import StoreError
from rappor_server.ingest.accepted_params import AcceptedParams
from rappor_server.operations import closing
from rappor_server.operations.closing import CloseTask, close_all, select_due
from rappor_server.releases import releases
from rappor_server.releases.overviews import read_overviews
from rappor_server.storage import blocks, schema
from rappor_server.storage.block_rules import Rule
from rappor_server.storage.blocks import Rules, rules_in_force
from rappor_server.storage.database import open_database, utc_today, write_transaction
from rappor_server.storage.schema_versions import migrate
from registries import registry_of
from sqlalchemy import Engine, event, insert, literal, select, update

from rappor import Params

SMALL = ACCEPTED.registry["small"]
"""A daily metric. Five reports are released together, and a block needs two reports for each of its
days."""
RULES = rules_of(SMALL)
ALL_DAYS = (datetime.date.min, datetime.date.max)
N_DAYS = 6


def store_reports(engine: Engine, first: datetime.date = TODAY) -> None:
    """Store six reports on each of N_DAYS days, three in cohort 0 and three in cohort 1.

    Report j of day i has the number i + j as its bits.
    """
    for i in range(N_DAYS):
        reports = [report_of("small", bits=i + j, cohort=j % 2) for j in range(6)]
        commit(engine, upload_of(*reports), today=first + datetime.timedelta(days=i))


def test_readers_close_nothing(engine: Engine) -> None:
    """Ended days stay withheld until a task closes their blocks."""
    store_reports(engine)
    waiting = releases.read_release(engine, SMALL, *ALL_DAYS)
    assert (waiting.n_reports, waiting.withheld) == (0, tuple(map(day, range(N_DAYS))))
    assert read_overviews(engine, [SMALL])[0].withheld == waiting.withheld
    close_days(engine, SMALL, day(N_DAYS))
    assert releases.read_release(engine, SMALL, *ALL_DAYS).n_reports == 6 * N_DAYS


def test_tasks_close_a_backlog_together(engine: Engine) -> None:
    """Several tasks without time close all days together, and the sums are right.

    The first task may close both days that have ended, although it has no time: it moves at least
    one day.
    """
    store_reports(engine)
    first = CloseTask(rules=RULES, today=day(2), seconds=0)
    first.run(engine, lambda _: None)
    assert releases.read_release(engine, SMALL, *ALL_DAYS).n_reports in (6, 12)
    n_tasks = 0
    while due := select_due(engine, RULES, day(N_DAYS)):
        CloseTask(rules=due, today=day(N_DAYS), seconds=0).run(engine, lambda _: None)
        n_tasks += 1
    assert 1 <= n_tasks <= N_DAYS
    (counts,) = releases.read_release(engine, SMALL, *ALL_DAYS).collections
    assert counts.n_reports == 6 * N_DAYS
    bits_by_cohort = [[(i + j) for i in range(N_DAYS) for j in range(c, 6, 2)] for c in range(2)]
    for cohort, bits in enumerate(bits_by_cohort):
        expected = [sum(value >> bit & 1 for value in bits) for bit in range(16)]
        assert counts.bit_counts[cohort].tolist() == expected


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_task_ends_in_time(engine: Engine) -> None:
    """A task without time moves one piece, even if a transaction is slow."""
    store_reports(engine)

    @event.listens_for(engine, "before_cursor_execute")
    def be_slow(*_: object) -> None:
        time.sleep(2 * blocks._TRANSACTION_SECONDS)

    CloseTask(rules=RULES, today=day(N_DAYS), seconds=0).run(engine, lambda _: None)
    assert releases.read_release(engine, SMALL, *ALL_DAYS).n_reports == 6


def test_pieces_are_moved_once(engine: Engine) -> None:
    """A piece is moved once, also if two processes have listed the same pieces.

    The second process finds late reports of a moved day. They go into a later block: the block of
    day 2, which has its six reports and the six late reports.
    """
    store_reports(engine)
    with engine.connect() as db:
        pieces = list(blocks._list_pieces(db, "small", day(2)))
    close_days(engine, SMALL, day(2))
    before = releases.read_release(engine, SMALL, *ALL_DAYS)
    commit(engine, upload_of(*[report_of("small", cohort=3)] * 6), today=day(0))
    with write_transaction(engine) as db:
        for piece in pieces:
            blocks._move_piece(db, "small", piece, RULES["small"])
    assert releases.read_release(engine, SMALL, *ALL_DAYS).collections == before.collections
    close_days(engine, SMALL, day(3))
    assert releases.read_release(engine, SMALL, day(0), day(1)).collections == before.collections
    assert releases.read_release(engine, SMALL, day(2), day(2)).n_reports == 6 + 6


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_damaged_counters_stop_no_other_metric(engine: Engine) -> None:
    """A task closes the blocks of all other metrics before it raises the error of one metric."""
    store_reports(engine)
    columns: list[Any] = [*schema.tally.c]
    # The sums of 300 reports have two bytes each.
    fields = [literal("damaged"), *columns[1:-2], literal(300), literal(b"\0")]
    with write_transaction(engine) as db:
        db.execute(insert(schema.tally).from_select(columns, select(*fields)))
    damaged = dataclasses.replace(SMALL, name="damaged")
    for _ in range(2):
        with pytest.raises(StoreError, match=r"blocks of damaged: .* sums in it are damaged"):
            CloseTask(rules=rules_of(damaged, SMALL), today=day(N_DAYS)).run(engine, lambda _: None)
        assert releases.read_release(engine, SMALL, *ALL_DAYS).n_reports == 6 * N_DAYS


@pytest.mark.parametrize("pace", ["day", "week"])
def test_block_with_late_reports_needs_more_reports(engine: Engine, pace: str) -> None:
    """A block with late reports needs the reports of all its days, from the day of the late report.

    A device may have sent the late report and a report of the present day, so it may be in the
    block twice. A block of two days needs 2 * 4 reports here, because `min_cohort` is 4. TODAY is a
    Saturday, so the days 1 and 2 are a Sunday and a Monday, in different weeks.
    """
    rules = {SMALL.fingerprint: Rule(pace=pace, epoch="life", min_cohort=4, min_reports=1)}

    def close(reports: int, on: int, today: int) -> list[tuple[Any, ...]]:
        commit(engine, upload_of(*[report_of("small")] * reports), today=day(on))
        blocks.close_blocks(engine, "small", rules, today=day(today))
        columns = schema.block.c
        query = select(columns.first, columns.last, columns.reports, columns.closed)
        with engine.connect() as db:
            return [tuple(row) for row in db.execute(query.order_by(columns.last))]

    # First day, last day, reports, and whether the block is closed.
    closed = (day(1), day(1), 4, True)
    assert close(4, on=1, today=2) == [closed]
    # Two late reports of day 1 wait for the next day. With three reports of day 2, they are 5 < 8.
    assert close(2, on=1, today=2) == [closed]
    assert close(3, on=2, today=3) == [closed, (day(1), day(2), 5, False)]
    # The six reports of day 9 are enough for one day, and the five are set aside.
    later = (day(9), day(9), 6, True)
    assert close(6, on=9, today=10) == [closed, later]
    # Two late reports of day 2 wait in a block that ends on the day that is moved, day 10.
    assert close(2, on=2, today=11) == [closed, later, (day(2), day(10), 2, False)]


@pytest.mark.slow
def test_no_block_is_of_a_device_that_was_not_updated(engine: Engine) -> None:
    """A device that was not updated never has a block alone, although it reports more often.

    The registry changes the interval from a day to an epoch (a year). One device of cohort 0 has
    the older registry, and reports daily for 24 days. By the rule of the longer interval, ten
    reports would be enough for a block, and all of them would be of this device. The rule of its
    own fingerprint requires ten reports for each day, so its 24 reports wait. Cohort 1 has twelve
    such devices, which are enough each day. Twelve updated devices are in cohort 0 on the first
    day.
    """
    daily, slower = (
        dataclasses.replace(SMALL, interval=interval, epoch="year", min_cohort=10)
        for interval in ("day", "epoch")
    )
    registries = [registry_of(slower), registry_of(daily)]
    accepted, rules = AcceptedParams(registries[0], registries[1:]), rules_in_force(registries)
    for on in range(24):
        cohorts = [0, *[1] * 12]
        reports = [report_of("small", cohort=j, params=daily.params) for j in cohorts]
        if on == 0:
            reports += [report_of("small", cohort=0, params=slower.params)] * 12
        count_group(engine, [submission_of(upload_of(*reports), accepted)], today=day(on))
        close_all(engine, rules, day(on + 1))
    ended = [(1, day(on), 12) for on in range(24)]
    assert list_blocks(engine, daily.params, is_closed=True) == ended
    assert sum(n for *_, n in list_blocks(engine, daily.params, is_closed=False)) == 24
    assert list_blocks(engine, slower.params, is_closed=True) == [(0, day(0), 12)]


def test_the_larger_min_cohort_of_two_registries_holds(engine: Engine) -> None:
    """Reports of one fingerprint wait until they are enough for both registries."""
    current, older = (dataclasses.replace(SMALL, min_cohort=min_cohort) for min_cohort in (3, 5))
    rules = rules_in_force([registry_of(current), registry_of(older)])
    for on, n_reports in enumerate((4, 5)):
        commit(engine, upload_of(*[report_of("small")] * n_reports), today=day(on))
        close_all(engine, rules, day(on + 1))
    # `min_cohort` is 5. The 4 reports of day 0 are too few, and so are the 9 reports of both days.
    # The 5 reports of day 1 are enough.
    assert list_blocks(engine, SMALL.params, is_closed=True) == [(1, day(1), 5)]


def test_reports_of_an_unknown_fingerprint_wait(engine: Engine) -> None:
    """Reports wait until a registry in force has their fingerprint.

    Both registries are in force in the first night, and only the weekly registry in the next two.
    Then both are in force again, and the 12 reports of two days become one block.
    """
    weekly = dataclasses.replace(SMALL, interval="week")
    only_weekly, both = (
        rules_in_force([registry_of(metric) for metric in metrics])
        for metrics in ([weekly], [weekly, SMALL])
    )
    for on in range(3):
        commit(engine, upload_of(*[report_of("small")] * 6), today=day(on))
        close_all(engine, both if on == 0 else only_weekly, day(on + 1))
        assert select_due(engine, only_weekly, day(on + 1)) == {}
    first = [(1, day(0), 6)]
    assert list_blocks(engine, SMALL.params) == first
    shown = releases.read_release(engine, weekly, *ALL_DAYS)
    assert (shown.n_reports, shown.withheld) == (6, (day(1), day(2)))
    close_all(engine, both, day(4))
    assert list_blocks(engine, SMALL.params, is_closed=True) == [*first, (1, day(3), 12)]
    assert releases.read_release(engine, weekly, *ALL_DAYS).n_reports == 18


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_clock_ahead_ends_no_day(engine: Engine) -> None:
    """A day has ended if it has ended by both clocks: of the host, and of PostgreSQL."""
    today = utc_today()
    commit(engine, upload_of(*[report_of("small")] * 6), today=today)
    ahead = today + datetime.timedelta(days=30)
    CloseTask(rules=RULES, today=ahead).run(engine, lambda _: None)
    assert releases.read_release(engine, SMALL, *ALL_DAYS).withheld == (today,)
    # The clock of PostgreSQL may have passed midnight since the first line of the test.
    assert closing.earlier_of_clocks(engine, ahead) - today in (day(0) - day(0), day(1) - day(0))
    assert closing.earlier_of_clocks(engine, day(-9)) == day(-9)


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_clock_far_ahead_ends_no_day(engine: Engine) -> None:
    """A clock that is 400 days ahead closes no day. All days are closed once it is right again."""
    store_reports(engine)
    for ahead in (400, 401):
        commit(engine, upload_of(*[report_of("small")] * 6), today=day(ahead))
        with pytest.raises(StoreError, match="run prune --yes"):
            CloseTask(rules=RULES, today=day(ahead)).run(engine, lambda _: None)
    store_reports(engine, day(N_DAYS))
    CloseTask(rules=RULES, today=day(2 * N_DAYS)).run(engine, lambda _: None)
    assert releases.read_release(engine, SMALL, day(0), day(2 * N_DAYS)).n_reports == 12 * N_DAYS


def test_only_metrics_with_ended_days_are_due(engine: Engine) -> None:
    """A metric is due if a day has ended that was not moved.

    A metric is not due if its days have not ended, or if only late reports of moved days have come.
    Late reports wait for the end of the next day.
    """
    store_reports(engine)
    rules = rules_of(SMALL, dataclasses.replace(ACCEPTED.registry["page"], min_reports=5))
    assert blocks.count_due_days(engine, ["page", "small"], today=day(0)) == {}
    assert blocks.count_due_days(engine, ["page", "small"], today=day(1)) == {"small": 1}
    assert blocks.count_due_days(engine, ["page", "small"], today=day(9)) == {"small": 9}
    assert select_due(engine, rules, day(0)) == {}
    assert select_due(engine, rules, day(1)) == RULES
    close_days(engine, SMALL, day(3))
    assert blocks.count_due_days(engine, ["small"], today=day(9)) == {"small": 6}
    close_days(engine, SMALL, day(N_DAYS))
    commit(engine, upload_of(report_of("small")), today=day(0))
    assert select_due(engine, RULES, day(N_DAYS)) == {}
    assert select_due(engine, RULES, day(N_DAYS + 1)) == RULES
    assert rules_of(dataclasses.replace(SMALL, min_reports=0)) == {}


def test_interrupted_closing_loses_no_report(engine: Engine) -> None:
    """A closing that is interrupted between two pieces of a day loses no report.

    The first piece contains cohort 0. After the interruption the counters of the two other cohorts
    grow to four reports, and cohort 0 gets two late reports. The next run moves the other pieces
    with four reports each. The late reports are in the block of the next day.
    """
    metric = dataclasses.replace(SMALL, params=dataclasses.replace(SMALL.params, m=65_536))
    params, rules = metric.params, rules_of(metric)
    rows: list[dict[str, Any]] = [
        {
            "metric": "small",
            "params": params.fingerprint,
            "day": day(0),
            "cohort": cohort,
            "reports": 2,
            "ones": bytes(16),
        }
        for cohort in (0, 5000, 65_535)
    ]
    with write_transaction(engine) as db:
        document = params.to_json()
        db.execute(insert(schema.params).values(fingerprint=params.fingerprint, document=document))
        db.execute(insert(schema.tally), rows)
    with write_transaction(engine) as db:
        first, *_ = blocks._list_pieces(db, "small", day(1))
        assert not first.is_last
        blocks._move_piece(db, "small", first, rules["small"])
    with write_transaction(engine) as db:
        db.execute(update(schema.tally).values(reports=4))
        db.execute(insert(schema.tally), rows[:1])
    close_days(engine, metric, day(1))
    assert list_blocks(engine, params) == [(0, day(0), 2), (5000, day(0), 4), (65_535, day(0), 4)]
    commit(engine, upload_of(report_of("small")), today=day(1))
    close_days(engine, metric, day(2))
    assert list_blocks(engine, params)[1] == (0, day(1), 2)


def list_blocks(
    engine: Engine, params: Params, *, is_closed: bool | None = None
) -> list[tuple[int, datetime.date, int]]:
    """Return cohort, last day and reports of the blocks of a parameter set."""
    columns = schema.block.c
    query = select(columns.cohort, columns.last, columns.reports)
    query = query.where(columns.params == params.fingerprint)
    if is_closed is not None:
        query = query.where(columns.closed == is_closed)
    with engine.connect() as db:
        rows = db.execute(query).all()
    return sorted((cohort, last, reports) for cohort, last, reports in rows)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_query_of_open_blocks_uses_an_index(engine: Engine) -> None:
    """The statement that deletes open blocks searches by metric and fingerprint in an index.

    A search by the metric alone would read all closed blocks, and become slower every day.
    """
    store_reports(engine)
    statements: list[tuple[str, Any]] = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2:4]))
    close_days(engine, SMALL, day(1))
    (deletion,) = [
        statement for statement in statements if statement[0].startswith("DELETE FROM block ")
    ]
    with engine.connect() as db:
        plan = db.exec_driver_sql(f"EXPLAIN QUERY PLAN {deletion[0]}", deletion[1])
        (search,) = [row[3] for row in plan if row[3].startswith("SEARCH block")]
    assert "metric=?" in search
    assert "params=?" in search


class _Pool:
    """Pool that runs tasks in this process. The first task fails.

    `n_idle` counts the calls that end idle processes. They come when no metric is due.
    """

    def __init__(self, engine: Engine) -> None:
        self._store = engine
        self.n_tasks = 0
        self.n_idle = 0

    async def stop_idle(self) -> None:
        """Count the calls."""
        self.n_idle += 1

    async def run(self, task: CloseTask) -> None:
        """Run a task; raise StoreError for the first task."""
        self.n_tasks += 1
        if self.n_tasks == 1:
            raise StoreError("the database cannot answer")
        task.run(self._store, lambda _: None)


@pytest.mark.anyio
async def test_closing_continues_after_a_failure(engine: Engine) -> None:
    """After a task fails, the next task closes all days. Then no metric is due, and none runs."""
    store_reports(engine)
    pool = _Pool(engine)

    async def look() -> dict[str, Rules]:
        return select_due(engine, RULES, day(N_DAYS))

    task = asyncio.create_task(
        closing.keep_closing(pool.run, pool.stop_idle, look, lambda: day(N_DAYS), poll_seconds=0.01)
    )
    await become(lambda: pool.n_idle)
    task.cancel()
    assert pool.n_tasks >= 2
    assert releases.read_release(engine, SMALL, *ALL_DAYS).n_reports == 6 * N_DAYS


@pytest.mark.slow
def test_closing_process_ends_when_idle(tmp_path: Path) -> None:
    """The process that closes blocks ends when no metric is due. Readers work at the same time."""
    address = f"sqlite:///{tmp_path}/counts.sqlite3"
    migrate(address)
    with open_database(address) as engine:
        store_reports(engine, utc_today() - datetime.timedelta(days=N_DAYS))
    with serving(tmp_path, address) as running:
        token = make_token(address)

        def waiting() -> int:
            counts = running.get("/v1/metrics/small/counts", token).json()
            assert counts["reports"] == 6 * (N_DAYS - len(counts["withheld"]))
            return len(counts["withheld"])

        until(lambda: not waiting() and "rappor-closer" not in running.children())
        assert "rappor-reader" in running.children()


AT_ONCE = dataclasses.replace(ACCEPTED.registry["small"], min_reports=1)
"""A metric whose closed blocks are released at once, because a window needs one report."""


@pytest.mark.slow
def test_concurrent_readers_see_each_block_once(engine: Engine) -> None:
    """Every read of a day returns nothing or the same counts, from any thread and at any time.

    The clocks of the readers are days ahead of the collector's clock, so each of its days has ended
    for the readers while the collector still stores reports.
    """
    ended = threading.Event()

    def read_until_ended() -> set[tuple[datetime.date, int, tuple[int, ...]]]:
        seen = set()
        while not ended.is_set():
            seen |= {release for i in range(N_DAYS) for release in read_day(engine, i)}
        return seen

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read_until_ended) for _ in range(4)]
        try:
            for i in range(300):
                body = upload_of(report_of("small", bits=i, cohort=i % 4))
                count_group(engine, [submission_of(body)], today=day(i * N_DAYS // 300))
        finally:
            ended.set()
        seen = set().union(*(reader.result(timeout=60) for reader in readers))
    final = {release for i in range(3 * N_DAYS) for release in read_day(engine, i, later=N_DAYS)}
    assert seen <= final  # no release of a day has changed after it was seen
    assert len({release_day for release_day, *_ in final}) == len(final)
    last = day(3 * N_DAYS)
    close_days(engine, AT_ONCE, last)
    everything = releases.read_release(engine, AT_ONCE, day(0), last)
    # In each of four cohorts, fewer than `min_cohort` reports may wait for a block.
    assert 0 <= 300 - everything.n_reports < 4 * AT_ONCE.min_cohort


def read_day(
    engine: Engine, i: int, *, later: int = 0
) -> list[tuple[datetime.date, int, tuple[int, ...]]]:
    """Close all blocks; return day, number of reports and bit counts of the release of day i.

    The list is empty if nothing is released on the day.
    """
    close_days(engine, AT_ONCE, day(2 * N_DAYS + later))
    shown = releases.read_release(engine, AT_ONCE, day(i), day(i))
    return [
        (day(i), counts.n_reports, tuple(counts.bit_counts.ravel().tolist()))
        for counts in shown.collections
    ]
