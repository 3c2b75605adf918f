"""Release windows: closed blocks of one fingerprint that are released together, once and for good.

Theory of operation
-------------------
A closed block (`blocks`) is a sum of the reports of one cohort on consecutive days. It protects
each report: no device made more than one in `min_cohort` of its reports. A metric has a second
minimum, `min_reports`, for all sums that an analyst reads. A minimum that is checked at each
request protects nothing. With `min_reports` = 100,

    range                reports    released
    week 1                    10    no, because 10 < 100
    week 2                   120    yes
    weeks 1 and 2            130    yes

and the difference of the two released sums is week 1. So every sum that is released must consist of
units, and each unit must have `min_reports` reports. The unit is the window. The difference of two
sums of whole windows again consists of whole windows, so it has no report of a fingerprint, or at
least `min_reports` of them.

Each night, after the blocks of a day were closed, the closed blocks of a fingerprint that are in no
window yet form a window if together they have `min_reports` reports. Otherwise they wait for the
next night.

A fingerprint (short hash of the parameters) determines the segment, which is a group of devices,
such as those of one country. So each segment has windows of its own. A sum of all segments adds the
windows of the segments. The reports of a segment without a window are in no sum, so nobody can
compute them by subtracting the other segments from the sum of all segments.

A window of a fingerprint consists of all closed blocks that end on some consecutive days, in all
cohorts:

    window.first <= block.last <= window.last

A window is dated `window.last`. A range of days contains the windows that are dated inside it.

Example: a daily metric with one cohort, `min_cohort` = 10 and `min_reports` = 30. Every day has
enough reports for a block.

    night after    reports of      reports of blocks       window of this night
                   the new block   in no window
    Mon            12              12                      none, because 12 < 30
    Tue            15              12 + 15 = 27            none, because 27 < 30
    Wed            11              12 + 15 + 11 = 38       dated Wed, of the blocks Mon, Tue and Wed
    Thu            40              40                      dated Thu, of the block Thu

    range of a request    result
    from Mon to Tue       nothing: no window is dated Mon or Tue
    from Mon to Wed       38 reports
    from Tue to Wed       38 reports: the window of Wed is whole, with the block of Mon
    from Tue to Thu       78 reports: the windows of Wed and Thu

Invariants:

1. A window is never changed. Its blocks are closed, and no block joins it.
2. A window formed in the night after day D is dated D. So the sum of a range whose last day was
   moved into blocks (`find_last_day`) never changes, and a stored result stays right.
3. A window had at least the `min_reports` that was in force in its night. If `min_reports` rises
   later, the window is still released, because a second reading shows nothing new.

Invariant 1 holds because the windows of the night after day D and the record that D was moved
(`blocked.through`) are written in one transaction. A process that is killed leaves both or neither.
A block that is closed afterwards ends on a later day than D, even if it has late reports.

Sampling rates
--------------
The number of devices is the number of reports divided by `sampling_rate`
(`releases.installations`). The rate is no parameter of the fingerprint, and reports do not contain
it. A window stores the rate of its reports when it is formed, so a later change of the registry
changes no number of the past. The stored rate is null if devices may have had different rates:

    the registries in force have different rates for the fingerprint
    the rate has changed since the first day of the blocks of the window

The table `rate_in_force` has the present rate, and the last day on which another rate may have been
in force. Every collector compares both with its registry twice a minute (`record_rules`), and so
does every run that closes blocks (`store_rates`), because `prune` may close blocks while no
collector runs.
Example: a daily metric whose rate falls on Wednesday at noon.

    time              rate in force    changed    window    rate of the window
    night after Tue   1                -          Tue       1
    Wed, noon         0.1              Wed
    night after Wed   0.1              Wed        Wed       null: reports of the morning have rate 1
    night after Thu   0.1              Wed        Thu       0.1

If two hosts have registries with different rates, each of them writes its rate again and again, so
every day of that time is a day of a change. Bad case: each host wrote its rate at its start only.
One host then closed the blocks of all days, the stored rate was its rate, and the reports that the
other host had counted were divided by a wrong rate.

If the rate rises to 1 again on Wednesday evening, Wednesday's window still has the rate null.
Without the record at noon, the rates of both nights would be equal, and the window would have the
rate 1.

Minimums of several collectors
------------------------------
Collectors on one database may have different registries, for example while one host after the
other is reloaded. Any of them may close the blocks of a day. The minimums of a day are the largest
ones that any of them had on this day or later. Each collector stores its own minimums with the day
(`record_rules`), before it stores the first upload of the day (`batch_commit.Receiver`). The run
that closes blocks reads those of all collectors (`combine_rules`). Bad case: the registry of host A
promises `min_cohort` = 20, host B still has 10 and is the first to close the day. A device of A
made more than one in 20 reports of a block. The run also closes the blocks of fingerprints that
only another collector accepts. They would otherwise wait for a night in which that collector is the
first.

The task that closes blocks also stores the minimums and rates, twice a minute, because a collector
may have no upload on a day. Bad case: only this task stored the minimums. It hung for a day on one
host, and another host released the reports of the hanging host under smaller minimums.

Tables: `block_total` has the number of reports of closed blocks, without sums of bits.
`release_window` has the windows, `rate_in_force` the sampling rates, and `minimums_in_force` the
minimums of all collectors. `released_cohorts` has the number of reports of each cohort in all
windows of a fingerprint.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Self

import numpy as np
from sqlalchemy import Connection, Engine, Subquery, and_, func, or_, select

from rappor.protocol.params import Params
from rappor_server.storage import schema
from rappor_server.storage.block_rules import Rule
from rappor_server.storage.bulk import insert_rows
from rappor_server.storage.database import (
    lock_maintenance,
    read_today,
    translate_errors,
    write_transaction,
)

COHORT_REPORTS: Final = np.dtype("<i8")
"""Format of a number of reports in `released_cohorts`: 64 bits, little-endian. Number j in the row
of a fingerprint is the number of reports of cohort j."""
_ADD_TO_TOTAL: Final = """
    smallest = CASE WHEN excluded.smallest < block_total.smallest
                    THEN excluded.smallest ELSE block_total.smallest END,
    reports = block_total.reports + excluded.reports
"""
"""SQL that adds the numbers of further blocks to the row of blocks with the same days. SQLite and
PostgreSQL have no common function for the smaller of two values."""


class BlockKey(NamedTuple):
    """Key of the closed blocks of a metric that have the same fingerprint and the same days.

    The blocks differ in their cohorts only.

    Attributes
    ----------
    fingerprint : fingerprint of the reports
    last, first : last and first day of each of the blocks
    """

    fingerprint: str
    last: datetime.date
    first: datetime.date


class BlockTotal(NamedTuple):
    """Numbers of reports of the closed blocks of one `BlockKey`.

    Attributes
    ----------
    intervals : number of intervals of the metric (a day, a week or an epoch) that contain a day of
        the blocks. A device sends one report in an interval, so this is also the largest number of
        reports of one device in a block
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

    A metric with 1,000 cohorts has 1,000 blocks for each row of `block_total`. Windows are formed
    from the rows, so the blocks are not read.
    """
    rows = [(metric, *key, *total) for key, total in totals.items()]
    insert_rows(db, schema.block_total, rows, update=_ADD_TO_TOTAL)


def record_rules(
    engine: Engine, rules: Mapping[str, Mapping[str, Rule]], today: datetime.date | None
) -> datetime.date:
    """Store the sampling rates and the minimums of a registry that is in force today.

    A collector calls the function twice a minute, and before it stores the first upload of a day
    or of a registry. The function writes only if the database has other rates, or does not have the
    minimums of today.

    Parameters
    ----------
    engine : the database
    rules : rule of each fingerprint, by the name of the metric
    today : day (UTC) by the clock of this machine. PostgreSQL uses the day of its own clock, by
        which reports are dated. None is the day of the database's clock

    Returns
    -------
    The day for which the minimums are stored.
    """
    with translate_errors(), engine.connect() as db:
        if today is None or db.dialect.name == "postgresql":
            today = read_today(db)
        is_stored = not _list_new_rates(db, rules, today) and not _list_new_minimums(
            db, rules, today
        )
    if is_stored:
        return today
    with write_transaction(engine) as db:
        # Another collector may record its registry, or close blocks, at the same time.
        lock_maintenance(db)
        _write_rates(db, _list_new_rates(db, rules, today))
        rows = _list_new_minimums(db, rules, today)
        insert_rows(db, schema.minimums_in_force, rows, update="day = excluded.day")
    return today


def store_rates(db: Connection, metric: str, rules: Mapping[str, Rule], day: datetime.date) -> None:
    """Store the sampling rates in force, and for each new rate the day of its change.

    Parameters
    ----------
    db : a transaction that has the maintenance lock
    metric : name of the metric
    rules : rule of each fingerprint of the metric
    day : the last day whose reports may have come before the change: yesterday for a run that
        closes the blocks of ended days
    """
    _write_rates(db, _list_new_rates(db, {metric: rules}, day))


_RateRow = tuple[str, str, float | None, datetime.date]
"""A row of `rate_in_force`. It contains metric, fingerprint, sampling rate and day of change."""


def _list_new_rates(
    db: Connection, rules: Mapping[str, Mapping[str, Rule]], day: datetime.date
) -> list[_RateRow]:
    """Return the rows of sampling rates that differ from the stored ones.

    `day` is the last day whose reports may have come before the change.
    """
    columns = schema.rate_in_force.c
    query = select(columns.metric, columns.params, columns.sampling_rate, columns.changed).where(
        columns.metric.in_(rules)
    )
    stored = {(row.metric, row.params): row for row in db.execute(query)}
    rows: list[_RateRow] = []
    for metric, rules_of_metric in rules.items():
        for fingerprint, rule in rules_of_metric.items():
            row = stored.get((metric, fingerprint))
            if row is None:
                # The fingerprint is new, so no report has an earlier rate.
                rows.append((metric, fingerprint, rule.sampling_rate, datetime.date.min))
            elif row.sampling_rate != rule.sampling_rate:
                # The day never becomes earlier. Bad case: host B was restarted with a new rate just
                # after midnight, and host A then closed the blocks of yesterday with the old rate.
                # In the evening B had the old rate again. With yesterday as the day of the last
                # change, the window of today got the old rate, although reports of it have the new
                # one.
                changed = max(row.changed, day)
                rows.append((metric, fingerprint, rule.sampling_rate, changed))
    return rows


def _write_rates(db: Connection, rows: Sequence[_RateRow]) -> None:
    """Write rows of sampling rates."""
    update = "sampling_rate = excluded.sampling_rate, changed = excluded.changed"
    insert_rows(db, schema.rate_in_force, rows, update=update)


def _list_new_minimums(
    db: Connection, rules: Mapping[str, Mapping[str, Rule]], today: datetime.date
) -> list[tuple[str, str, int, int, datetime.date]]:
    """Return the rows of minimums of today that are not stored yet."""
    columns = schema.minimums_in_force.c
    keys = (columns.metric, columns.params, columns.min_cohort, columns.min_reports)
    query = select(*keys).where(columns.metric.in_(rules), columns.day >= today)
    stored = {tuple(row) for row in db.execute(query)}
    rows = [
        (metric, fingerprint, rule.min_cohort, rule.min_reports)
        for metric, rules_of_metric in rules.items()
        for fingerprint, rule in rules_of_metric.items()
    ]
    return [(*row, today) for row in rows if row not in stored]


def combine_rules(
    db: Connection, metric: str, rules: Mapping[str, Rule], day: datetime.date
) -> dict[str, Rule]:
    """Return the rules of all collectors of the database for the blocks of a day.

    The minimums are the largest ones that any collector had on the day or later. A fingerprint that
    only another collector accepts has the rule of that collector. Its interval is a parameter.

    Parameters
    ----------
    db : the database
    metric : name of the metric
    rules : rule of each fingerprint of the metric, from the registries of this collector
    day : the day whose blocks are closed
    """
    minimums, params = schema.minimums_in_force.c, schema.params.c
    rate = schema.rate_in_force.c
    query = (
        select(
            minimums.params,
            func.max(minimums.min_cohort).label("min_cohort"),
            func.max(minimums.min_reports).label("min_reports"),
            func.max(rate.sampling_rate).label("sampling_rate"),
            func.max(params.document).label("document"),
        )
        .join(
            schema.rate_in_force,
            and_(rate.metric == minimums.metric, rate.params == minimums.params),
        )
        # No report under the fingerprint has come yet if its parameters are not stored.
        .outerjoin(schema.params, params.fingerprint == minimums.params)
        .where(minimums.metric == metric, minimums.day >= day)
        .group_by(minimums.params)
    )
    combined = dict(rules)
    for row in db.execute(query):
        rule = combined.get(row.params)
        if rule is not None:
            combined[row.params] = replace(
                rule,
                min_cohort=max(rule.min_cohort, row.min_cohort),
                min_reports=max(rule.min_reports, row.min_reports),
            )
        elif row.document is not None and row.min_reports:
            stored = Params.from_json(row.document)
            combined[row.params] = Rule(
                pace=stored.pace,
                epoch=stored.epoch,
                min_cohort=row.min_cohort,
                min_reports=row.min_reports,
                sampling_rate=row.sampling_rate,
            )
    return combined


def form_windows(
    db: Connection, metric: str, rules: Mapping[str, Rule], day: datetime.date
) -> None:
    """Form the windows of the night after a day.

    Parameters
    ----------
    db : the transaction that moves the last counters of the day into blocks. A day with more than
        4,096 cohorts is moved in several pieces, and its last piece forms the windows
    metric : name of the metric
    rules : rule of each fingerprint of the metric. Blocks under another fingerprint wait, because
        their minimum is unknown
    day : the day that was moved. A new window is dated this day
    """
    waiting = select_waiting_totals([metric])
    # A window begins with the earliest last day of its blocks. A block of several days has reports
    # of days before its last day, so `first_day_of_reports` may be earlier.
    last_day_of_blocks = func.max(waiting.c.last)
    query = (
        select(
            waiting.c.params,
            last_day_of_blocks.label("last"),
            func.min(waiting.c.last).label("first"),
            func.min(waiting.c.first).label("first_day_of_reports"),
            func.sum(waiting.c.reports).label("reports"),
        )
        # Case: a run that moved a later day was killed. It has closed blocks of the later day in
        # some cohorts. Afterwards late counters of this day came, so this day is moved now. The
        # blocks of the later day must not join its window. They belong to the window of a later
        # night, after all cohorts of the later day were moved.
        .where(waiting.c.last <= day)
        .group_by(waiting.c.params)
        # Case: `min_reports` was lowered, so the waiting blocks are enough, and none of them ends
        # on this day. The window would be dated on a past day, and would change ranges that
        # somebody has read. The blocks wait until a night with a new block.
        .having(last_day_of_blocks == day)
    )
    columns = schema.rate_in_force.c
    changes = select(columns.params, columns.changed).where(columns.metric == metric)
    days_of_change = {row.params: row.changed for row in db.execute(changes)}
    windows = []
    for row in db.execute(query):
        rule = rules.get(row.params)
        if rule is None or row.reports < rule.min_reports:
            continue
        has_one_rate = row.first_day_of_reports > days_of_change[row.params]
        rate = rule.sampling_rate if has_one_rate else None
        reports = int(row.reports)
        windows.append((metric, row.params, row.last, row.first, reports, rule.min_reports, rate))
    insert_rows(db, schema.release_window, windows)
    for _, fingerprint, last, first, *_ in windows:
        _add_cohorts(db, metric, fingerprint, first, last)


def _add_cohorts(
    db: Connection, metric: str, fingerprint: str, first: datetime.date, last: datetime.date
) -> None:
    """Add the reports of a new window to `released_cohorts`.

    The search for cohorts with too many reports reads this row. Otherwise the search would add up
    every block of every day.
    """
    released = schema.released_cohorts.c
    added = sum_cohorts(db, metric, fingerprint, first, last)
    query = select(released.reports).where(
        released.metric == metric,
        released.params == fingerprint,
    )
    stored = db.execute(query).scalar_one_or_none()
    before = np.frombuffer(stored or b"", dtype=COHORT_REPORTS)
    # The row has numbers up to the largest cohort that has reports. The window may have a larger
    # one.
    reports = np.zeros(max(len(before), *(cohort + 1 for cohort in added)), dtype=COHORT_REPORTS)
    reports[: len(before)] = before
    reports[list(added)] += list(added.values())
    row = (metric, fingerprint, reports.tobytes())
    insert_rows(db, schema.released_cohorts, [row], update="reports = excluded.reports")


def sum_cohorts(
    db: Connection, metric: str, fingerprint: str, first: datetime.date, last: datetime.date
) -> dict[int, int]:
    """Return the number of reports of each cohort in the closed blocks that end on some days.

    `first` and `last` are the days between which the blocks end.
    """
    block = schema.block.c
    # Without `+ 0`, SQLite would group the rows by reading the primary key, in which the cohorts
    # are in order. The key does not contain numbers of reports, so SQLite would then read all rows
    # with their sums of bits. With `+ 0`, SQLite reads the index `ix_block_reports`, which has all
    # columns of the query. Both uses below must be the same object: 0 is a parameter of the
    # statement, and PostgreSQL does not recognize expressions with two parameters as equal.
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


def select_waiting_totals(
    metrics: Collection[str], *, through: datetime.date = datetime.date.max
) -> Subquery:
    """Return the rows of `block_total` of some metrics whose blocks are in no window yet.

    Windows that are dated after `through` are ignored, so their blocks are among the rows.
    """
    total, window = schema.block_total.c, schema.release_window.c
    newest = (
        select(window.metric, window.params, func.max(window.last).label("last"))
        .where(window.metric.in_(metrics), window.last <= through)
        .group_by(window.metric, window.params)
        .subquery("newest")
    )
    # The windows of a fingerprint follow each other without gaps. So the blocks that end after the
    # newest window are exactly the blocks that are in no window.
    return (
        select(total.metric, total.params, total.last, total.first, total.reports)
        .outerjoin(newest, and_(newest.c.metric == total.metric, newest.c.params == total.params))
        .where(total.metric.in_(metrics), or_(newest.c.last.is_(None), total.last > newest.c.last))
        .subquery("waiting")
    )
