"""A year of blocks: the list of metrics and their health cost the same for any number of blocks.

A daily metric closes a block of each cohort on each day. So 32 cohorts have 16 times as many blocks
as two cohorts. Cost is measured in instructions of SQLite, which are the same on every machine.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from collectors import build_metric, build_rules, day
from rappor_server.operations.metric_health import HealthTask
from rappor_server.queries.counts import CountsTask, MetricsTask
from rappor_server.queries.query import Range
from rappor_server.storage import schema
from rappor_server.storage.bulk import insert_rows
from rappor_server.storage.database import open_database, write_transaction
from rappor_server.storage.release_windows import (
    BlockKey,
    BlockTotal,
    add_block_totals,
    form_windows,
    store_rates,
)
from rappor_server.storage.tallies import Tally
from sqlalchemy import Engine, event

from rappor import Metric, Params

N_DAYS = 400
"""More days than a year."""
N_REPORTS = 100
"""Each block contains this number of reports."""
STEPS = 100
"""SQLite calls the handler of progress after this number of its instructions."""


def make_metric(name: str, m: int) -> Metric:
    """Return a daily metric with m cohorts."""
    return build_metric(name, Params(k=8, h=1, m=m, f=0.5, p=0.25, q=0.75), interval="day")


def fill(engine: Engine, metric: Metric) -> None:
    """Close a block of each cohort on each day, and form a window of each day."""
    fingerprint, m = metric.fingerprint, metric.params.m
    tally = Tally(N_REPORTS, np.full(8, 50))
    rules = build_rules(metric)[metric.name]
    data, total = tally.to_bytes(), BlockTotal(1, N_REPORTS, m * N_REPORTS)
    with write_transaction(engine) as db:
        insert_rows(db, schema.params, [(fingerprint, metric.params.to_json())], skip_stored=True)
        insert_rows(db, schema.blocked, [(metric.name, day(N_DAYS - 1), day(0))])
        store_rates(db, metric.name, rules, day(-1))
        for on in range(N_DAYS):
            days = (day(on), day(on))
            rows = [(metric.name, fingerprint, j, *days, True, N_REPORTS, data) for j in range(m)]
            insert_rows(db, schema.block, rows)
            add_block_totals(db, metric.name, {BlockKey(fingerprint, *days): total})
            form_windows(db, metric.name, rules, day(on))


def count_steps(engine: Engine, task: Any) -> tuple[int, Any]:
    """Run a task; return the number of SQLite's instructions in hundreds, and the result."""
    n_steps = 0

    def count() -> int:
        nonlocal n_steps
        n_steps += 1
        return 0

    def watch(connection: Any, *_: object) -> None:
        connection.set_progress_handler(count, STEPS)

    event.listen(engine, "checkout", watch)
    result = task.run(engine, lambda _: None)
    event.remove(engine, "checkout", watch)
    return n_steps, result


SMALL_METRIC, LARGE_METRIC = make_metric("few", 2), make_metric("many", 32)
"""Two metrics of which the second has 16 times as many blocks."""


@pytest.fixture(scope="module")
def engine(
    tmp_path_factory: pytest.TempPathFactory, migrated_files: list[Path]
) -> Iterator[Engine]:
    """Open one database with the blocks of both metrics. No test changes it."""
    folder = tmp_path_factory.mktemp("year")
    for path in migrated_files:
        shutil.copy(path, folder)
    with open_database(f"sqlite:///{folder / 'counts.sqlite3'}") as opened:
        for metric in (SMALL_METRIC, LARGE_METRIC):
            fill(opened, metric)
        yield opened


@pytest.mark.slow
def test_the_cost_of_a_metric_does_not_grow_with_its_blocks(engine: Engine) -> None:
    """A metric with 16 times as many blocks takes the same number of instructions."""
    small_metric, large_metric = SMALL_METRIC, LARGE_METRIC
    for make_task in (
        lambda metric: MetricsTask(metrics=[metric], today=day(N_DAYS)),
        lambda metric: HealthTask(metrics=[metric], today=day(N_DAYS)),
    ):
        steps, results = zip(
            *(count_steps(engine, make_task(metric)) for metric in (small_metric, large_metric)),
            strict=True,
        )
        assert steps[1] <= 1.05 * steps[0]
        # The number of instructions grows with the days: each has a window and a row of totals.
        # `steps` counts hundreds, so a day may take 100 instructions.
        assert steps[0] < N_DAYS
        for metric, result in zip((small_metric, large_metric), results, strict=True):
            days = result.metrics[0].days  # the last 31 days
            assert days[-1].reports == N_REPORTS * metric.params.m
            assert [reports.day for reports in days] == [day(N_DAYS - 31 + i) for i in range(31)]
            assert result.metrics[0].n_days == N_DAYS
    response = MetricsTask(metrics=[small_metric, large_metric], today=day(N_DAYS)).run(
        engine, lambda _: None
    )
    totals = [(metric.reports, metric.n_days) for metric in response.metrics]
    assert totals == [(N_DAYS * N_REPORTS * m, N_DAYS) for m in (2, 32)]
    # The response about 50 metrics has at most 200 kB. This one is about two metrics.
    assert len(msgspec.json.encode(response)) < 2 * 200_000 / 50


@pytest.mark.slow
def test_a_short_range_of_a_long_history_reads_its_blocks_only(engine: Engine) -> None:
    """The cost of the counts of a week grows with the blocks of the week, not with all blocks.

    The counts of a week without reports show the cost that every request has.
    """
    metric = LARGE_METRIC
    week = Range(first=str(day(7)), last=str(day(13)))
    task = CountsTask(metric=metric, range=week, params=None, media_type="application/json")
    task_of_all_days = dataclasses.replace(task, range=Range(first=None, last=None))
    steps, body = count_steps(engine, task)
    all_steps, all_body = count_steps(engine, task_of_all_days)
    assert msgspec.json.decode(body)["reports"] == 7 * 32 * N_REPORTS
    assert msgspec.json.decode(all_body)["reports"] == N_DAYS * 32 * N_REPORTS
    task_without_reports = dataclasses.replace(
        task, range=Range(first=str(day(-7)), last=str(day(-1)))
    )
    fixed_steps, _ = count_steps(engine, task_without_reports)
    # The week has 7 of 400 days, so 1 in 57 of the blocks. A twentieth of the cost is allowed.
    assert 20 * (steps - fixed_steps) < all_steps - fixed_steps
    # Bytes of the sums of all days. With a part for each of the 400 days, they would be more.
    assert len(all_body) < 30_000
