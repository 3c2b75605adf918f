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
which have enough reports. A window that is dated on D or later stays as a whole, also its blocks
that end before D.

Analysts also read the number of active devices in each interval (`releases.installations`). The
interval, a week or an epoch, may contain D. A part of its reports is deleted, so its number of
devices would look like a decline. The column `blocked.forgotten` stores D (`find_first_whole_day`),
and no interval that begins before D is shown.

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
from typing import Final, NamedTuple

import numpy as np
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    delete,
    func,
    or_,
    select,
    union,
    update,
)

from rappor_server.storage import schema
from rappor_server.storage.blocks import SET_ASIDE
from rappor_server.storage.bulk import insert_rows
from rappor_server.storage.database import (
    PAUSE_SECONDS,
    lock_maintenance,
    translate_errors,
    write_transaction,
)
from rappor_server.storage.merge import add_refusals
from rappor_server.storage.release_windows import COHORT_REPORTS, sum_cohorts

_DAY: Final = datetime.timedelta(days=1)


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
    """Return the date of the oldest window of a metric, or None without windows."""
    columns = schema.release_window.c
    query = select(func.min(columns.last)).where(columns.metric == metric)
    with translate_errors(), engine.connect() as db:
        oldest: datetime.date | None = db.execute(query).scalar()
    return oldest


def find_first_whole_day(engine: Engine, metric: str) -> datetime.date:
    """Return the first day from which no reports of a metric were deleted.

    The day is 0001-01-01 if no reports were deleted, and if all of them were.
    """
    columns = schema.blocked.c
    query = select(columns.forgotten).where(columns.metric == metric)
    with translate_errors(), engine.connect() as db:
        return db.execute(query).scalar_one_or_none() or datetime.date.min


def forget(engine: Engine, metric: str, *, before: datetime.date | None = None) -> Forgotten:
    """Delete the counters, blocks and windows of a metric.

    Parameters
    ----------
    before : first day that stays. With None, everything is deleted, also the refusals.
    """
    end = datetime.date.max if before is None else before
    total, is_finished = Forgotten(), False
    while not is_finished:
        with translate_errors(), engine.connect() as db:
            windows = _list_windows(db, metric, end)
        for window in windows:
            with write_transaction(engine) as db:
                # On PostgreSQL, another process could otherwise change the same rows: by closing
                # blocks or by another `forget`.
                lock_maintenance(db)
                # If everything is deleted, the stored day is the day after the newest window. A run
                # that is killed leaves some windows, and all of them are before this day.
                _store_forgotten(db, metric, before or windows[-1].last + _DAY)
                total = total.add(_forget_window(db, metric, *window))
            # Without a pause, the next transaction would take SQLite's lock before a waiting
            # upload.
            time.sleep(PAUSE_SECONDS)
        with write_transaction(engine) as db:
            lock_maintenance(db)
            # Case: another process has formed a window since the windows were listed.
            is_finished = not _list_windows(db, metric, end)
            if is_finished:
                total = total.add(_forget_waiting(db, metric, end))
                if before is None:
                    _forget_numbers(db, metric)
    return total


class _Window(NamedTuple):
    """A release window.

    Attributes
    ----------
    params : fingerprint
    first, last : days on which the earliest and the latest of its blocks end
    """

    params: str
    first: datetime.date
    last: datetime.date


def _list_windows(db: Connection, metric: str, end: datetime.date) -> list[_Window]:
    """Return the windows that are dated before a day, in the order of their dates."""
    columns = schema.release_window.c
    query = (
        select(columns.params, columns.first, columns.last)
        .where(columns.metric == metric, columns.last < end)
        # The oldest window is deleted first, so a run that was killed leaves the latest windows.
        .order_by(columns.last, columns.params)
    )
    return [_Window(*row) for row in db.execute(query)]


def _forget_numbers(db: Connection, metric: str) -> None:
    """Delete the rows of a metric that contain no sums of bits.

    They are the refusals, the last day that was moved into blocks, and the numbers of released
    reports by cohort.

    The sampling rates stay, because they are still in force. Bad case: an operator deleted the
    reports of a metric in the morning, and changed its rate at noon. Without a stored rate, the
    change was not noticed, and the reports since the morning were divided by the rate of the
    evening.
    """
    for table in (schema.refusal, schema.blocked, schema.released_cohorts):
        db.execute(delete(table).where(table.c.metric == metric))


def _store_forgotten(db: Connection, metric: str, end: datetime.date) -> None:
    """Store the day before which a transaction deletes reports.

    A metric of which no day was moved into blocks has no row, and needs none: its numbers of active
    devices begin with its first block, and only counters of earlier days were deleted.
    """
    columns = schema.blocked.c
    is_later = (columns.metric == metric, columns.forgotten < end)
    db.execute(update(schema.blocked).where(*is_later).values(forgotten=end))


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
    """Delete the waiting sums before a day: blocks in no window, and counters.

    A block is deleted if it ends before the day.
    """
    block, total, tally = schema.block.c, schema.block_total.c, schema.tally.c
    window = schema.release_window.c
    # Case: a window that is dated after the day has blocks that end before it. They stay.
    block_has_window = select(window.metric).where(
        window.metric == block.metric,
        window.params == block.params,
        block.last.between(window.first, window.last),
    )
    total_has_window = select(window.metric).where(
        window.metric == total.metric,
        window.params == total.params,
        total.last.between(window.first, window.last),
    )
    is_waiting = ~total_has_window.exists()
    db.execute(
        delete(schema.block_total).where(total.metric == metric, total.last < end, is_waiting)
    )
    is_open_or_waiting = or_(~block.closed, ~block_has_window.exists())
    deleted = _delete_blocks(db, block.metric == metric, block.last < end, is_open_or_waiting)
    is_of_metric = (tally.metric == metric, tally.day < end)
    number, reports = db.execute(
        select(func.count(), func.coalesce(func.sum(tally.reports), 0)).where(*is_of_metric)
    ).one()
    db.execute(delete(schema.tally).where(*is_of_metric))
    deleted = deleted.add(Forgotten(counters=int(number), reports=int(reports)))
    if any(deleted):
        _store_forgotten(db, metric, end)
    return deleted


def set_aside_waiting(db: Connection, day: datetime.date) -> int:
    """Delete the counters and blocks of all metrics that are in no window; return their reports.

    The reports are counted as set aside on a day (`storage.blocks`). A restored backup needs this
    (`operations.backup`). Trials keep their counters: their metrics had no minimum of reports at
    any collector, and every report was shown at once.

    Parameters
    ----------
    db : a transaction that has the maintenance lock
    day : the day of the refusals, which is today. All earlier days have lost reports
    """
    minimum, tally, block = schema.minimums_in_force.c, schema.tally.c, schema.block.c
    trials = (
        select(minimum.metric).group_by(minimum.metric).having(func.max(minimum.min_reports) == 0)
    )
    metrics = union(select(tally.metric), select(block.metric)).subquery()
    query = select(metrics.c.metric).where(metrics.c.metric.not_in(trials))
    refusals = {}
    for metric in db.execute(query).scalars().all():
        deleted = _forget_waiting(db, metric, datetime.date.max)
        if deleted.reports:
            refusals[day, metric, SET_ASIDE] = deleted.reports
        # An interval that contains the lost reports would look like a decline.
        columns = schema.blocked.c
        statement = update(schema.blocked).where(columns.metric == metric)
        db.execute(statement.values(forgotten=day + _DAY))
    add_refusals(db, refusals)
    return sum(refusals.values())


def _delete_blocks(db: Connection, *conditions: ColumnElement[bool]) -> Forgotten:
    """Delete blocks, and return their number and the number of their reports."""
    numbers = select(func.count(), func.coalesce(func.sum(schema.block.c.reports), 0))
    number, reports = db.execute(numbers.where(*conditions)).one()
    db.execute(delete(schema.block).where(*conditions))
    return Forgotten(blocks=int(number), reports=int(reports))
