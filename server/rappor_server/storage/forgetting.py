"""Forgetting: the deletion of the counters, blocks and release windows of a metric.

Counters are sums of one day. After the day they are moved into blocks, which are sums of
consecutive days (`blocks`). Closed blocks with enough reports form a window, which analysts read
(`release_windows`).

Two callers delete these sums. `rappor-server forget` deletes all sums of a metric, or the sums
before a day. `prune` deletes the sums before a day, for a metric that has a `retention`. The sums
before day D are:

    windows that are dated before D, with their closed blocks
    closed blocks in no window that end before D
    open blocks that end before D
    counters of days before D

A window is deleted as a whole, in one transaction. An analyst may have read a sum before the
deletion and another sum after it. The difference of the two sums still consists of whole windows,
which have enough reports.

Each transaction deletes one window, because uploads wait for it. A run that was killed leaves some
windows, and the next run deletes them. Reports that arrive during a run are counted as usual. The
run deletes the windows that existed at its start, and the blocks and counters that exist at its
end.

The last day that was moved into blocks (`blocked.through`) is deleted only if all sums of the
metric are. Otherwise late reports of a deleted day could form a second window with the date of a
window that analysts have read.
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

    Stored results of queries carry this date, and are valid only while it is the same. The date
    changes with every deletion, because `forget` deletes the oldest windows.
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
        # The oldest window is deleted first. `find_oldest_window` then changes at once, and stored
        # results become invalid before further windows are deleted.
        .order_by(windows.last, windows.params)
    )
    with translate_errors(), engine.connect() as db:
        rows = db.execute(query).all()
    total = Forgotten()
    for fingerprint, first, last in rows:
        with write_transaction(engine) as db:
            # On PostgreSQL, another process could otherwise change the same rows: by closing blocks
            # or by another `forget`.
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
    """Delete a window with its blocks, and subtract its reports from `released_cohorts`."""
    window, released = schema.release_window.c, schema.released_cohorts.c
    is_window = (window.metric == metric, window.params == fingerprint, window.last == last)
    if not db.execute(delete(schema.release_window).where(*is_window)).rowcount:
        return Forgotten()  # another run of `forget` has deleted the window
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
