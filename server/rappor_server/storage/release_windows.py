"""Release windows: closed blocks of one fingerprint that are released together, once and for good.

Theory of operation
-------------------
A closed block (`blocks`) protects a report: no device made more than one in `min_cohort` of its
reports. A metric has a second minimum, `min_reports`, for all sums that an analyst reads. A minimum
that is checked at each request protects nothing. With `min_reports` = 100,

    range                reports    released
    week 1                    10    no, because 10 < 100
    week 2                   120    yes
    weeks 1 and 2            130    yes

and the difference of the two released sums is week 1. So the minimum is not a property of a request
here, but of the unit that is released. Each night, the closed blocks of a fingerprint that are in
no window yet form a window if together they have `min_reports` reports. Every sum for analysts is a
sum of whole windows, so the difference of two sums contains whole windows too: no report, or at
least `min_reports` reports of each fingerprint that it contains.

A fingerprint determines the segment, so each segment has windows of its own. A sum of all segments
adds the windows of the segments. A small segment is therefore in no sum, and cannot be computed
from the sum of all segments and the sums of the others.

The windows of a fingerprint divide the days on which its closed blocks end:

    window.first <= block.last <= window.last

A window is dated `window.last`. A range of days contains the windows that are dated inside it.

Example: a daily metric with one cohort, `min_cohort` = 10 and `min_reports` = 30. Every day has
enough reports for a block.

    night after    block     waiting blocks        window
    Mon            12        12 reports            none, because 12 < 30
    Tue            15        12 + 15 reports       none, because 27 < 30
    Wed            11        12 + 15 + 11          dated Wed, of the blocks Mon, Tue and Wed
    Thu            40        40                    dated Thu, of the block Thu

    from Mon to Tue    nothing
    from Mon to Wed    38 reports
    from Tue to Thu    78 reports: both windows are dated inside, and the block of Mon belongs to
                       the window of Wed
    from Tue to Wed    38 reports

Invariants:

1. A window is never changed. Its blocks are closed, and no block joins it.
2. A window formed in the night after day D is dated D. So the sum of a range whose last day was
   moved into blocks (`find_last_day`) never changes, and a stored result stays right.
3. A window had the `min_reports` of its night. If `min_reports` rises later, the window is still
   released, because a second reading shows nothing new.

Invariant 1 holds because windows are formed for days up to `through`, in the same transaction that
advances `through` (`blocks`). A block that is closed later ends on a later day, even if its reports
are late. A process that is killed leaves both undone, or neither.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Final, NamedTuple, Self

import numpy as np
from sqlalchemy import Connection, Subquery, func, or_, select

from rappor_server.storage import schema
from rappor_server.storage.bulk import insert_rows

COHORT_REPORTS: Final = np.dtype("<i8")
"""Format of a number of reports in `released_cohorts`: 64 bits, little-endian."""
_ADD_TO_TOTAL: Final = """
    smallest = CASE WHEN excluded.smallest < block_total.smallest
                    THEN excluded.smallest ELSE block_total.smallest END,
    reports = block_total.reports + excluded.reports
"""
"""SQL that adds the numbers of further blocks to the row of blocks with the same days. SQLite and
PostgreSQL have no common function for the smaller of two values."""


class BlockKey(NamedTuple):
    """Closed blocks of one metric that have the same fingerprint and the same days."""

    fingerprint: str
    last: datetime.date
    first: datetime.date


class BlockTotal(NamedTuple):
    """Numbers of the blocks of one `BlockKey`, which are in different cohorts.

    Attributes
    ----------
    intervals : largest number of reports of one device in a block, which follows from its days
    smallest : number of reports of the smallest block
    reports : number of reports of all the blocks
    """

    intervals: int
    smallest: int
    reports: int

    def add(self, reports: int) -> Self:
        """Return the numbers after one more block of the same days."""
        return self._replace(smallest=min(self.smallest, reports), reports=self.reports + reports)


def add_block_totals(db: Connection, metric: str, totals: Mapping[BlockKey, BlockTotal]) -> None:
    """Add the numbers of blocks that this transaction closes to the table `block_total`.

    A metric has a thousand times as many blocks as rows here: a block for each cohort, and a row
    for all cohorts.
    """
    rows = [(metric, *key, *total) for key, total in totals.items()]
    insert_rows(db, schema.block_total, rows, update=_ADD_TO_TOTAL)


def form_windows(
    db: Connection, metric: str, minimums: Mapping[str, int], day: datetime.date
) -> None:
    """Form the windows of the night after a day.

    Parameters
    ----------
    db : the transaction that moves the last piece of the day into blocks
    metric : name of the metric
    minimums : number of reports of a window, by fingerprint. Blocks under another fingerprint wait,
        because their minimum is unknown
    day : the day that was moved
    """
    waiting = select_waiting_totals(metric)
    first, last = func.min(waiting.c.last), func.max(waiting.c.last)
    query = (
        select(waiting.c.params, last, first, func.sum(waiting.c.reports))
        # A run that was interrupted may have closed blocks of the next days in some cohorts. They
        # belong to a window of a later night, after all cohorts were moved.
        .where(waiting.c.last <= day)
        .group_by(waiting.c.params)
        # A window without a block of this day could form after `min_reports` has fallen. It would
        # be dated on a past day, and change ranges that somebody has read.
        .having(last == day)
    )
    windows = [
        (metric, fingerprint, last, first, int(reports))
        for fingerprint, last, first, reports in db.execute(query)
        if fingerprint in minimums and reports >= minimums[fingerprint]
    ]
    insert_rows(db, schema.release_window, windows)
    for _, fingerprint, last, first, _ in windows:
        _add_cohorts(db, metric, fingerprint, first, last)


def _add_cohorts(
    db: Connection, metric: str, fingerprint: str, first: datetime.date, last: datetime.date
) -> None:
    """Add the reports of a new window to the numbers of reports of each cohort.

    The search for cohorts with too many reports would otherwise add up every block of every day.
    """
    released = schema.released_cohorts.c
    added = sum_cohorts(db, metric, fingerprint, first, last)
    is_of_params = (released.metric == metric, released.params == fingerprint)
    stored = db.execute(select(released.reports).where(*is_of_params)).scalar_one_or_none()
    before = np.frombuffer(stored or b"", dtype=COHORT_REPORTS)
    reports = np.zeros(max(len(before), *(cohort + 1 for cohort in added)), dtype=COHORT_REPORTS)
    reports[: len(before)] = before
    reports[list(added)] += list(added.values())
    row = (metric, fingerprint, reports.tobytes())
    insert_rows(db, schema.released_cohorts, [row], update="reports = excluded.reports")


def sum_cohorts(
    db: Connection, metric: str, fingerprint: str, first: datetime.date, last: datetime.date
) -> dict[int, int]:
    """Return the number of reports of each cohort in the closed blocks that end on some days."""
    block = schema.block.c
    # `+ 0` keeps SQLite from reading the primary key, in which cohorts are in order. The key has no
    # numbers of reports, so SQLite would read all rows with their sums of bits. The index
    # `ix_block_reports` has all columns of the query. PostgreSQL needs the same object twice: it
    # does not recognize two expressions with a parameter each as equal.
    cohort = block.cohort + 0
    query = (
        select(cohort, func.sum(block.reports))
        .where(
            block.metric == metric,
            block.closed,
            block.params == fingerprint,
            block.last.between(first, last),
        )
        .group_by(cohort)
    )
    return {j: int(reports) for j, reports in db.execute(query)}


def select_waiting_totals(metric: str) -> Subquery:
    """Return the rows of `block_total` of a metric whose blocks are in no window yet."""
    total, window = schema.block_total.c, schema.release_window.c
    newest = (
        select(window.params, func.max(window.last).label("last"))
        .where(window.metric == metric)
        .group_by(window.params)
        .subquery("newest")
    )
    # Windows of a fingerprint follow each other, so blocks after the newest window wait.
    return (
        select(total.params, total.last, total.first, total.reports)
        .outerjoin(newest, newest.c.params == total.params)
        .where(total.metric == metric, or_(newest.c.last.is_(None), total.last > newest.c.last))
        .subquery("waiting")
    )
