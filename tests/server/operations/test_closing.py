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
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from collectors import (
    ACCEPTED,
    TODAY,
    append,
    build_report,
    build_rules,
    build_upload,
    close_days,
    commit,
    day,
    make_token,
    parse_submission,
    run_collector,
    store_and_merge,
)
from databases import ON_BOTH_DATABASES
from programs import wait_in_event_loop, wait_until
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
from registries import build_registry
from sqlalchemy import Engine, event, func, insert, literal, select, text, update

from rappor import Params

SMALL = ACCEPTED.registry["small"]
"""A daily metric. Five reports are released together, and a block needs two reports for each of its
days."""
RULES = build_rules(SMALL)
"""`close_all` takes these rules of blocks. The key is the name of the metric `small`."""
ALL_DAYS = (datetime.date.min, datetime.date.max)
"""First and last day of a release without bounds."""
N_DAYS = 6
"""Number of days with stored reports. More days would test the same tasks, more slowly."""


def store_reports(engine: Engine, first: datetime.date = TODAY) -> None:
    """Store six reports on each of N_DAYS days, three in cohort 0 and three in cohort 1.

    Report j of day i has the number i + j as its bits.
    """
    for i in range(N_DAYS):
        reports = [build_report("small", bits=i + j, cohort=j % 2) for j in range(6)]
        commit(engine, build_upload(*reports), today=first + datetime.timedelta(days=i))


def test_readers_close_nothing(engine: Engine) -> None:
    """Reading a release closes no block: ended days show nothing until a task closes their blocks.

    If readers closed blocks, the first reader after midnight would wait for the blocks of a whole
    day.
    """
    store_reports(engine)
    release = releases.read_release(engine, SMALL, *ALL_DAYS)
    assert (release.n_reports, release.withheld) == (0, ())
    assert read_overviews(engine, [SMALL])[0].withheld == ()
    assert blocks.count_due_days(engine, ["small"], today=day(N_DAYS)) == {"small": N_DAYS}
    close_days(engine, SMALL, day(N_DAYS))
    assert releases.read_release(engine, SMALL, *ALL_DAYS).n_reports == 6 * N_DAYS


@ON_BOTH_DATABASES
def test_tasks_close_a_backlog_together(engine: Engine) -> None:
    """Several short tasks close all days between them, and every report is counted once.

    A task with 0 seconds stops after its first transaction, and the next task continues. The
    transaction moves one piece or more: on a fast machine, the first task may move both days that
    have ended on day 2. The bit counts in the release must be those of all stored reports.
    """
    store_reports(engine)
    first = CloseTask(rules=RULES, today=day(2), seconds=0)
    first.run(engine, lambda _: None)
    assert releases.read_release(engine, SMALL, *ALL_DAYS).n_reports in (6, 12)
    n_tasks = 0
    while due_rules := select_due(engine, RULES, day(N_DAYS)):
        CloseTask(rules=due_rules, today=day(N_DAYS), seconds=0).run(engine, lambda _: None)
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
    """A task whose time is over moves one piece and stops, even if a transaction is slow.

    Uploads wait while a transaction of a task writes. Each statement here takes twice the time that
    a transaction may take, so the transaction ends after its first piece. One piece is the six
    reports of one day.
    """
    store_reports(engine)

    @event.listens_for(engine, "before_cursor_execute")
    def be_slow(*_: object) -> None:
        time.sleep(2 * blocks._TRANSACTION_SECONDS)

    CloseTask(rules=RULES, today=day(N_DAYS), seconds=0).run(engine, lambda _: None)
    assert releases.read_release(engine, SMALL, *ALL_DAYS).n_reports == 6


def test_pieces_are_moved_once(engine: Engine) -> None:
    """A piece is moved once, also if two processes have listed the same pieces.

    Two collectors on one database close blocks at the same time. Here the first process moves the
    days 0 and 1. Then six late reports of day 0 arrive. The second process still has the list from
    before, but must not add the late reports to the closed block of day 0: analysts have read this
    block, and the difference would reveal the late reports. The late reports belong to the next
    block, which is dated day 2 and has six reports of its own.
    """
    store_reports(engine)
    with engine.connect() as db:
        pieces = list(blocks._list_pieces(db, "small", day(2)))
    close_days(engine, SMALL, day(2))
    before = releases.read_release(engine, SMALL, *ALL_DAYS)
    commit(engine, build_upload(*[build_report("small", cohort=3)] * 6), today=day(0))
    with write_transaction(engine) as db:
        for piece in pieces:
            blocks._move_piece(db, "small", piece, RULES["small"])
    assert releases.read_release(engine, SMALL, *ALL_DAYS).collections == before.collections
    close_days(engine, SMALL, day(3))
    assert releases.read_release(engine, SMALL, day(0), day(1)).collections == before.collections
    assert releases.read_release(engine, SMALL, day(2), day(2)).n_reports == 6 + 6


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_damaged_counters_stop_no_other_metric(engine: Engine) -> None:
    """A task closes the blocks of all other metrics before it raises the error of one metric.

    Metrics are closed in the order of the registry. If the error stopped the task, no metric after
    the damaged metric would ever be released. The test copies the counters of `small` to a metric
    `damaged`, which is the first in the registry, with sums that are too short.
    """
    store_reports(engine)
    columns: list[Any] = [*schema.tally.c]
    # The last two columns are the number of reports and their sums. The sums of 300 reports need
    # two bytes for each bit, and this row has one byte in all.
    fields = [literal("damaged"), *columns[1:-2], literal(300), literal(b"\0")]
    with write_transaction(engine) as db:
        db.execute(insert(schema.tally).from_select(columns, select(*fields)))
    damaged = dataclasses.replace(SMALL, name="damaged")
    for _ in range(2):
        with pytest.raises(StoreError, match=r"blocks of damaged: .* sums in it are damaged"):
            CloseTask(rules=build_rules(damaged, SMALL), today=day(N_DAYS)).run(
                engine, lambda _: None
            )
        assert releases.read_release(engine, SMALL, *ALL_DAYS).n_reports == 6 * N_DAYS


@ON_BOTH_DATABASES
@pytest.mark.parametrize("pace", ["day", "week"])
def test_block_with_late_reports_needs_more_reports(engine: Engine, pace: str) -> None:
    """A block with late reports needs `min_cohort` reports for each interval since the late day.

    A device may have sent a late report and a report of the present day, so the device may be in
    the block twice. No device may have made more than one in `min_cohort` of the reports of a
    block. With `min_cohort` 4, a block of two intervals therefore needs 2 * 4 reports. TODAY is a
    Saturday, so the days 1 and 2 are a Sunday and a Monday, and belong to different weeks as well.
    """
    rule = Rule(pace=pace, epoch="life", min_cohort=4, min_reports=1, sampling_rate=1.0)
    rules = {SMALL.fingerprint: rule}

    def store_and_close(reports: int, on: int, today: int) -> list[tuple[Any, ...]]:
        """Store reports on a day, and close the blocks of the days before today; return blocks."""
        commit(engine, build_upload(*[build_report("small")] * reports), today=day(on))
        blocks.close_blocks(engine, "small", rules, today=day(today))
        columns = schema.block.c
        query = select(columns.first, columns.last, columns.reports, columns.closed)
        with engine.connect() as db:
            return [tuple(row) for row in db.execute(query.order_by(columns.last))]

    # First day, last day, reports, and whether the block is closed.
    closed = (day(1), day(1), 4, True)
    assert store_and_close(4, on=1, today=2) == [closed]
    # Two late reports of day 1 wait for the next day. With three reports of day 2, they are 5 < 8.
    assert store_and_close(2, on=1, today=2) == [closed]
    assert store_and_close(3, on=2, today=3) == [closed, (day(1), day(2), 5, False)]
    # The six reports of day 9 are enough for one day, but 6 + 5 are too few for the days 1 to 9.
    # Day 9 becomes a block of its own, and the five reports that waited are set aside.
    later = (day(9), day(9), 6, True)
    assert store_and_close(6, on=9, today=10) == [closed, later]
    # Two late reports of day 2 wait in a block that ends on the day that is moved, day 10.
    assert store_and_close(2, on=2, today=11) == [closed, later, (day(2), day(10), 2, False)]


@ON_BOTH_DATABASES
@pytest.mark.slow
def test_no_block_has_reports_of_one_outdated_device_only(engine: Engine) -> None:
    """No closed block consists of the reports of a single device that has the older registry.

    The registry changes the interval of a metric from a day to an epoch (a year). Outdated devices,
    which still have the older registry, report daily.

    - Cohort 0 has one outdated device. By the rule of the longer interval, ten reports would be
      enough for a block, and all of them would be of this device. The rule of the older fingerprint
      requires ten reports for each day, so the 24 reports of the device wait.
    - Cohort 1 has twelve outdated devices, which are enough for a block on each day.
    - Twelve updated devices of cohort 0 report on the first day, which is a block as well.
    """
    daily, slower = (
        dataclasses.replace(SMALL, interval=interval, epoch="year", min_cohort=10)
        for interval in ("day", "epoch")
    )
    registries = [build_registry(slower), build_registry(daily)]
    accepted, rules = AcceptedParams(registries[0], registries[1:]), rules_in_force(registries)
    for on in range(24):
        cohorts = [0, *[1] * 12]
        reports = [build_report("small", cohort=j, params=daily.params) for j in cohorts]
        if on == 0:
            reports += [build_report("small", cohort=0, params=slower.params)] * 12
        store_and_merge(engine, [parse_submission(build_upload(*reports), accepted)], today=day(on))
        close_all(engine, rules, day(on + 1))
    daily_blocks = [(1, day(on), 12) for on in range(24)]
    assert list_blocks(engine, daily.params, is_closed=True) == daily_blocks
    assert sum(n for *_, n in list_blocks(engine, daily.params, is_closed=False)) == 24
    assert list_blocks(engine, slower.params, is_closed=True) == [(0, day(0), 12)]


def test_the_larger_min_cohort_of_two_registries_holds(engine: Engine) -> None:
    """The larger `min_cohort` of two registries in force decides when a block closes.

    The older registry promised its devices that each report is one of at least 5. The current
    registry promises 3. Both registries have the same fingerprint, because `min_cohort` is no part
    of the fingerprint, so the collector cannot distinguish the reports.
    """
    current, older = (dataclasses.replace(SMALL, min_cohort=min_cohort) for min_cohort in (3, 5))
    rules = rules_in_force([build_registry(current), build_registry(older)])
    for on, n_reports in enumerate((4, 5)):
        commit(engine, build_upload(*[build_report("small")] * n_reports), today=day(on))
        close_all(engine, rules, day(on + 1))
    # `min_cohort` is 5. The 4 reports of day 0 are too few, and so are the 9 reports of both days.
    # The 5 reports of day 1 are enough.
    assert list_blocks(engine, SMALL.params, is_closed=True) == [(1, day(1), 5)]


def test_reports_of_an_unknown_fingerprint_wait(engine: Engine) -> None:
    """Reports wait while no registry in force has their fingerprint, and are released afterwards.

    The rule of a block is that of its fingerprint. Without the rule, a collector knows neither the
    interval nor `min_cohort`, so it must neither close a block nor delete the reports. Six reports
    with the daily fingerprint arrive on each of three days. Both registries are in force in the
    first night, and only the weekly registry in the next two. Then both are in force again, and the
    12 reports of the last two days become one block.
    """
    weekly = dataclasses.replace(SMALL, interval="week")
    weekly_rules, both_rules = (
        rules_in_force([build_registry(metric) for metric in metrics])
        for metrics in ([weekly], [weekly, SMALL])
    )
    for on in range(3):
        commit(engine, build_upload(*[build_report("small")] * 6), today=day(on))
        close_all(engine, both_rules if on == 0 else weekly_rules, day(on + 1))
        assert select_due(engine, weekly_rules, day(on + 1)) == {}
    first = [(1, day(0), 6)]  # cohort, last day, reports
    assert list_blocks(engine, SMALL.params) == first
    release = releases.read_release(engine, weekly, *ALL_DAYS)
    assert (release.n_reports, release.withheld) == (6, (day(1), day(2)))
    close_all(engine, both_rules, day(4))
    assert list_blocks(engine, SMALL.params, is_closed=True) == [*first, (1, day(3), 12)]
    assert releases.read_release(engine, weekly, *ALL_DAYS).n_reports == 18


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_clock_ahead_ends_no_day(engine: Engine) -> None:
    """A day has ended if it has ended by both clocks: of the host, and of PostgreSQL.

    Several collectors may use one database. A host whose clock is 30 days ahead must not close the
    present day for all of them, because further reports of this day would be late.
    """
    today = utc_today()
    commit(engine, build_upload(*[build_report("small")] * 6), today=today)
    wrong_day = today + datetime.timedelta(days=30)
    CloseTask(rules=RULES, today=wrong_day).run(engine, lambda _: None)
    assert blocks.count_due_days(engine, ["small"], today=wrong_day) == {"small": 30}
    # The clock of PostgreSQL may have passed midnight since the first line of the test.
    assert (closing.earlier_of_clocks(engine, wrong_day) - today).days in (0, 1)
    # A host whose clock is behind: its day is the earlier one.
    assert closing.earlier_of_clocks(engine, day(-9)) == day(-9)


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_clock_far_ahead_ends_no_day(engine: Engine) -> None:
    """A clock that is 400 days ahead closes no day, and all days are closed once it is right again.

    SQLite has no second clock, so the task compares the clock with the days of the last uploads. It
    stops with an error that names the command for an operator whose clock is right. If the task
    had closed the blocks, true reports of the next 400 days would have been late. Day 401 checks
    that an upload of a wrong day does not make the wrong clock look right.
    """
    store_reports(engine)
    for wrong_day in (400, 401):
        commit(engine, build_upload(*[build_report("small")] * 6), today=day(wrong_day))
        with pytest.raises(StoreError, match="run prune --yes"):
            CloseTask(rules=RULES, today=day(wrong_day)).run(engine, lambda _: None)
    store_reports(engine, day(N_DAYS))
    CloseTask(rules=RULES, today=day(2 * N_DAYS)).run(engine, lambda _: None)
    assert releases.read_release(engine, SMALL, day(0), day(2 * N_DAYS)).n_reports == 12 * N_DAYS


def test_only_metrics_with_ended_days_are_due(engine: Engine) -> None:
    """A metric is due if it has counters, and a day has ended that was not moved into blocks.

    The collector starts a process for the metrics that are due, and none if no metric is due. Late
    reports of a moved day do not make a metric due: they wait for the end of the next day, as a
    process every 30 seconds for each late report would be a waste. A metric without a minimum
    (`min_reports` 0) has no blocks and no rules.
    """
    store_reports(engine)
    rules = build_rules(SMALL, dataclasses.replace(ACCEPTED.registry["page"], min_reports=5))
    assert blocks.count_due_days(engine, ["page", "small"], today=day(0)) == {}
    assert blocks.count_due_days(engine, ["page", "small"], today=day(1)) == {"small": 1}
    assert blocks.count_due_days(engine, ["page", "small"], today=day(9)) == {"small": 9}
    assert select_due(engine, rules, day(0)) == {}
    assert select_due(engine, rules, day(1)) == RULES
    close_days(engine, SMALL, day(3))
    assert blocks.count_due_days(engine, ["small"], today=day(9)) == {"small": 6}
    close_days(engine, SMALL, day(N_DAYS))
    commit(engine, build_upload(build_report("small")), today=day(0))
    assert select_due(engine, RULES, day(N_DAYS)) == {}
    assert select_due(engine, RULES, day(N_DAYS + 1)) == RULES
    assert build_rules(dataclasses.replace(SMALL, min_reports=0)) == {}


@ON_BOTH_DATABASES
def test_interrupted_closing_loses_no_report(engine: Engine) -> None:
    """A closing that is killed between two pieces of a day loses no report and counts none twice.

    With 65,536 cohorts, the counters of one day are several pieces. The first piece contains cohort
    0 with two reports, and becomes a closed block. Then the process is killed, as far as the test
    is concerned. The counters of the two other cohorts grow to four reports, and cohort 0 gets two
    late reports. The next run moves the other pieces with four reports each. The late reports of
    cohort 0 are in the block of the next day, because a closed block never changes.
    """
    metric = dataclasses.replace(SMALL, params=dataclasses.replace(SMALL.params, m=65_536))
    params, rules = metric.params, build_rules(metric)
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
    commit(engine, build_upload(build_report("small")), today=day(1))
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


class _FailingPool:
    """Stands in for the pool of worker processes: runs tasks in this process, and fails once.

    Attributes
    ----------
    n_tasks : number of tasks so far. The first one fails.
    n_idle : number of calls of `stop_idle`, which a collector makes when no metric is due
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


@ON_BOTH_DATABASES
@pytest.mark.anyio
async def test_closing_continues_after_a_failure(engine: Engine) -> None:
    """After a failed task, the collector tries again and closes all days.

    A database that fails for a minute at midnight must not withhold a day until the next midnight.
    When no metric is due any more, the collector ends the idle worker process (`n_idle`).
    """
    store_reports(engine)
    pool = _FailingPool(engine)

    def today() -> datetime.date:
        return day(N_DAYS)

    async def find_due() -> dict[str, Rules]:
        return select_due(engine, RULES, today())

    task = asyncio.create_task(
        closing.keep_closing(pool.run, pool.stop_idle, find_due, today, poll_seconds=0.01)
    )
    await wait_in_event_loop(lambda: pool.n_idle)
    task.cancel()
    assert pool.n_tasks >= 2
    assert releases.read_release(engine, SMALL, *ALL_DAYS).n_reports == 6 * N_DAYS


@pytest.mark.anyio
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_pages_are_computed_although_a_metric_is_damaged(engine: Engine) -> None:
    """Pages are computed although closing always fails.

    Case: the counters of one metric are damaged. The blocks of all other metrics were closed.
    """
    pool, n_calls = _FailingPool(engine), 0

    async def find_due() -> dict[str, Rules]:
        raise StoreError("blocks of damaged: sums in it are damaged")

    async def compute_pages() -> None:
        nonlocal n_calls
        n_calls += 1

    closing_task = asyncio.create_task(
        closing.keep_closing(
            pool.run,
            pool.stop_idle,
            find_due,
            utc_today,
            after_closing=compute_pages,
            poll_seconds=0.01,
        )
    )
    await wait_in_event_loop(lambda: n_calls > 1)
    closing_task.cancel()


@pytest.mark.anyio
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_closing_continues_after_an_unexpected_error(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """Blocks are closed although the work after closing raises an error that nobody expected.

    Case: the disk of uploaded lists fails. The log has one line for all failures in a row, and the
    line does not contain the message of the error.
    """
    store_reports(engine)
    pool, n_calls = _FailingPool(engine), 0
    pool.n_tasks = 1  # the task that fails is over

    async def find_due() -> dict[str, Rules]:
        return select_due(engine, RULES, day(min(n_calls, N_DAYS)))

    async def delete_lists() -> None:
        nonlocal n_calls
        n_calls += 1
        raise OSError("/home/operator/lists")

    closing_task = asyncio.create_task(
        closing.keep_closing(
            pool.run,
            pool.stop_idle,
            find_due,
            lambda: day(min(n_calls, N_DAYS)),
            after_closing=delete_lists,
            poll_seconds=0.01,
        )
    )
    await wait_in_event_loop(lambda: closing_task.done() or n_calls > N_DAYS + 1)
    assert not closing_task.done()
    closing_task.cancel()
    assert releases.read_release(engine, SMALL, *ALL_DAYS).n_reports == 6 * N_DAYS
    assert [record.getMessage() for record in caplog.records] == ["unexpected error"]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_reports_in_the_inbox_are_merged_before_their_day_is_closed(engine: Engine) -> None:
    """The last uploads of a day are in the blocks of this day, although no merge came before.

    Otherwise they would be late, and would be in a block of the next day.
    """
    append(engine, [parse_submission(build_upload(*[build_report("small")] * 6))], today=TODAY)
    closing.close_ended_days(engine, RULES, day(1))
    assert releases.read_release(engine, SMALL, *ALL_DAYS).n_reports == 6


@pytest.mark.slow
def test_closing_process_ends_when_idle(tmp_path: Path) -> None:
    """The process that closes blocks ends when no metric is due, and readers never see half a day.

    The process is needed for seconds after midnight. If it stayed, a small machine would lack its
    memory for the whole day. While it runs, a release contains the six reports of a day or none.
    """
    address = f"sqlite:///{tmp_path}/counts.sqlite3"
    migrate(address)
    with open_database(address) as engine:
        store_reports(engine, utc_today() - datetime.timedelta(days=N_DAYS))
    with run_collector(tmp_path, address) as running:
        token = make_token(address)

        def count_released_days() -> int:
            counts = running.get("/v1/metrics/small/counts", token).json()
            assert all(day["reports"] == 6 for day in counts["days"])
            assert counts["reports"] == 6 * len(counts["days"])
            return len(counts["days"])

        wait_until(
            lambda: count_released_days() == N_DAYS and "rappor-closer" not in running.children()
        )
        assert "rappor-reader" in running.children()


AT_ONCE = dataclasses.replace(ACCEPTED.registry["small"], min_reports=1)
"""A metric whose closed blocks are released at once, because a window needs one report."""

Reading = tuple[datetime.date, int, tuple[int, ...]]
"""Day, number of reports and bit counts of a released day."""


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_closing_waits_for_a_merge(engine: Engine) -> None:
    """A task that closes blocks waits for the end of a merge, so each report is counted once.

    A merge reads a counter, adds reports, and writes the counter. If a task moved the counter in
    between, the reports in it would be in a block and in the new counter. Here another thread
    begins to close day 0 just before the merge writes: the thread either waits for the maintenance
    lock, or closes the day. On SQLite, a write transaction excludes all other writers.
    """
    waiting = text(
        "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database"
        " WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted"
    )
    closings: list[Future[None]] = []
    with ThreadPoolExecutor(1) as pool, engine.connect() as observer:

        def begin_to_close(*args: Any) -> None:
            if args[2].startswith("INSERT INTO tally") and not closings:
                closings.append(pool.submit(close_days, engine, AT_ONCE, day(1)))
                wait_until(lambda: closings[0].done() or observer.scalar(waiting))

        commit(engine, build_upload(*[build_report("small")] * 2))
        event.listen(engine, "before_cursor_execute", begin_to_close)
        commit(engine, build_upload(*[build_report("small")] * 3))
        (closing_of_day,) = closings
        closing_of_day.result(timeout=60)
    close_days(engine, AT_ONCE, day(2))
    assert list_blocks(engine, AT_ONCE.params) == [(1, day(0), 5)]
    assert count_unreleased(engine) == 0


@ON_BOTH_DATABASES
@pytest.mark.slow
@pytest.mark.parametrize("n_days", [6, pytest.param(100, marks=pytest.mark.acceptance)])
def test_concurrent_readers_see_each_block_once(engine: Engine, n_days: int) -> None:
    """Every read of a released day returns the same counts, from any thread and at any time.

    If the counts of a released day changed by one report, the difference of two reads would be this
    report. Two threads close blocks and read releases while the main thread stores four uploads on
    each day. The clocks of the two threads are a day ahead of the clock of the main thread, so they
    move a day while its reports still arrive. Each day has therefore reports that are in time,
    reports that are late, and an upload that arrives in the transaction that moves the day.

    At the end, every report was counted once: it is in a closed block, waits, or was set aside.

    The test needs luck to find a day that is moved twice, so `test_pieces_are_moved_once` and
    `test_closing_waits_for_a_merge` make the same cases certain. This test also finds a transaction
    of SQLite that reads before it takes the write lock, and fails as soon as it writes.
    """
    today = day(0)
    has_ended = threading.Event()

    def read_until_ended() -> set[Reading]:
        readings = set[Reading]()
        while not has_ended.is_set():
            close_days(engine, AT_ONCE, today + datetime.timedelta(days=1))
            readings.update(read_days(engine))
        return readings

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read_until_ended) for _ in range(2)]
        try:
            for i in range(4 * n_days):
                today = day(i // 4)
                # Two reports are enough for a block of one day. The other cohorts have none, so a
                # late upload may bring the first report of a cohort on a day that was moved.
                reports = [build_report("small", bits=i, cohort=i % 3)] * 2
                store_and_merge(engine, [parse_submission(build_upload(*reports))], today=today)
        finally:
            has_ended.set()
        readings = set[Reading]().union(*(reader.result(timeout=60) for reader in readers))
    close_days(engine, AT_ONCE, day(n_days + 1))
    final = read_days(engine)
    assert readings
    assert readings <= set(final)  # no release of a day has changed after it was seen
    n_released = sum(n_reports for _, n_reports, _ in final)
    assert n_released + count_unreleased(engine) == 8 * n_days


def read_days(engine: Engine) -> list[Reading]:
    """Return the released days of `AT_ONCE`."""
    query = releases.ReleaseQuery(AT_ONCE, *ALL_DAYS)
    return [
        (release.first, counts.n_reports, tuple(counts.bit_counts.ravel().tolist()))
        for release in releases.read_releases_by_period(engine, query, "day")
        for counts in release.collections
    ]


def count_unreleased(engine: Engine) -> int:
    """Return the number of reports that wait in counters and open blocks, or were set aside."""
    tally, block, refusal = schema.tally.c, schema.block.c, schema.refusal.c
    queries = (
        select(func.sum(tally.reports)),
        select(func.sum(block.reports)).where(~block.closed),
        select(func.sum(refusal.number)).where(refusal.reason == blocks.SET_ASIDE),
    )
    with engine.connect() as db:
        return sum(int(db.scalar(query) or 0) for query in queries)
