"""Forgetting: the deletion of the counters, blocks and release windows of a metric.

Two callers delete sums: `rappor-server forget`, and `prune` for a metric with a `retention`. Both
delete the days before a day, or everything:

    window           deleted with its blocks if it is dated before the day
    closed block     in no window yet: deleted if it ends before the day
    open block       deleted if it ends before the day
    counter          deleted if its day is before the day

A window is deleted as a whole, in one transaction. So two answers still differ by whole windows,
also if one of them was read before the deletion and the other one after it.

Each transaction deletes one window, because uploads wait for it. A run that was killed leaves some
windows, and the next run deletes them. Reports that arrive during the run are counted as usual: a
run deletes what was there at its start, and perhaps some of the new counters.

The last day that was moved into blocks (`blocked.through`) stays until nothing of the metric is
left. Otherwise late reports would form a second window of a day whose first window analysts have
read.
"""

from __future__ import annotations

import datetime
import time
from typing import NamedTuple

import numpy as np
from sqlalchemy import ColumnElement, Connection, Engine, delete, func, select, union

from rappor_server.storage import schema
from rappor_server.storage.bulk import insert_rows
from rappor_server.storage.database import (
    PAUSE_SECONDS,
    lock_maintenance,
    translate_errors,
    write_transaction,
)
from rappor_server.storage.release_windows import COHORT_REPORTS, sum_cohorts


class Forgotten(NamedTuple):
    """Numbers of deleted rows, and of the reports that were in them.

    Attributes
    ----------
    blocks : number of blocks, open and closed
    counters : number of counters
    reports : number of reports in both
    """

    blocks: int = 0
    counters: int = 0
    reports: int = 0

    def add(self, other: Forgotten) -> Forgotten:
        """Return the sum of two deletions."""
        return Forgotten(*map(sum, zip(self, other, strict=True)))


def list_stored_metrics(engine: Engine) -> set[str]:
    """Return the names of the metrics that have counters or blocks."""
    query = union(select(schema.tally.c.metric), select(schema.block.c.metric))
    with translate_errors(), engine.connect() as db:
        return set(db.execute(query).scalars())


def find_oldest_window(engine: Engine, metric: str) -> datetime.date | None:
    """Return the date of the oldest window of a metric, or None without windows.

    A result of a range stays right as long as no window is deleted. The oldest window changes with
    every deletion of windows, because all windows before a day are deleted together.
    """
    columns = schema.release_window.c
    query = select(func.min(columns.last)).where(columns.metric == metric)
    with translate_errors(), engine.connect() as db:
        oldest: datetime.date | None = db.execute(query).scalar()
    return oldest


def forget(engine: Engine, metric: str, *, before: datetime.date | None = None) -> Forgotten:
    """Delete the counters, blocks and windows of a metric.

    Parameters
    ----------
    before : first day that stays. With None, everything is deleted, also the refusals.
    """
    end = datetime.date.max if before is None else before
    windows = schema.release_window.c
    query = (
        select(windows.params, windows.first, windows.last)
        .where(windows.metric == metric, windows.last < end)
        # The oldest first: `find_oldest_window` then changes with the first deletion.
        .order_by(windows.last, windows.params)
    )
    with translate_errors(), engine.connect() as db:
        rows = db.execute(query).all()
    total = Forgotten()
    for fingerprint, first, last in rows:
        with write_transaction(engine) as db:
            # On PostgreSQL, no other process may close blocks of the metric meanwhile.
            lock_maintenance(db)
            total = total.add(_forget_window(db, metric, fingerprint, first, last))
        # Without a pause, the next transaction would take SQLite's lock before a waiting upload.
        time.sleep(PAUSE_SECONDS)
    with write_transaction(engine) as db:
        lock_maintenance(db)
        total = total.add(_forget_waiting(db, metric, end))
        if before is None:
            for table in (schema.refusal, schema.blocked, schema.released_cohorts):
                db.execute(delete(table).where(table.c.metric == metric))
    return total


def _forget_window(
    db: Connection, metric: str, fingerprint: str, first: datetime.date, last: datetime.date
) -> Forgotten:
    """Delete a window with its blocks, and subtract it from the reports of the cohorts."""
    window, released = schema.release_window.c, schema.released_cohorts.c
    is_window = (window.metric == metric, window.params == fingerprint, window.last == last)
    if not db.execute(delete(schema.release_window).where(*is_window)).rowcount:
        return Forgotten()  # another run has deleted it
    is_of_params = (released.metric == metric, released.params == fingerprint)
    stored = db.execute(select(released.reports).where(*is_of_params)).scalar_one()
    reports = np.frombuffer(stored, dtype=COHORT_REPORTS).copy()
    for cohort, number in sum_cohorts(db, metric, fingerprint, first, last).items():
        reports[cohort] -= number
    if reports.any():
        row = (metric, fingerprint, reports.tobytes())
        insert_rows(db, schema.released_cohorts, [row], update="reports = excluded.reports")
    else:
        db.execute(delete(schema.released_cohorts).where(*is_of_params))
    block, total = schema.block.c, schema.block_total.c
    db.execute(
        delete(schema.block_total).where(
            total.metric == metric, total.params == fingerprint, total.last.between(first, last)
        )
    )
    return _delete_blocks(
        db,
        block.metric == metric,
        block.closed,
        block.params == fingerprint,
        block.last.between(first, last),
    )


def _forget_waiting(db: Connection, metric: str, end: datetime.date) -> Forgotten:
    """Delete the blocks in no window that end before a day, and the counters of days before it."""
    block, total, tally = schema.block.c, schema.block_total.c, schema.tally.c
    db.execute(delete(schema.block_total).where(total.metric == metric, total.last < end))
    deleted = _delete_blocks(db, block.metric == metric, block.last < end)
    is_of_metric = (tally.metric == metric, tally.day < end)
    number, reports = db.execute(
        select(func.count(), func.coalesce(func.sum(tally.reports), 0)).where(*is_of_metric)
    ).one()
    db.execute(delete(schema.tally).where(*is_of_metric))
    return deleted.add(Forgotten(counters=int(number), reports=int(reports)))


def _delete_blocks(db: Connection, *conditions: ColumnElement[bool]) -> Forgotten:
    """Delete blocks, and return their number and the number of their reports."""
    numbers = select(func.count(), func.coalesce(func.sum(schema.block.c.reports), 0))
    number, reports = db.execute(numbers.where(*conditions)).one()
    db.execute(delete(schema.block).where(*conditions))
    return Forgotten(blocks=int(number), reports=int(reports))
