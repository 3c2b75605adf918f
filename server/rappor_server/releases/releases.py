"""Releases: the counts that analysts may read.

Theory of operation
-------------------
A release is a sum of whole release windows (`storage.release_windows`). Three units lead to it:

    counter    reports of one fingerprint, cohort and day
    block      reports of one fingerprint and cohort, on consecutive whole days. A device reports at
               most once in an interval, such as a day. A block of three intervals is closed when it
               has at least 3 `min_cohort` reports
    window     all closed blocks of one fingerprint that end on some consecutive days, at least
               `min_reports` reports together. It never changes, and is dated on the last day

A fingerprint is the hash of a parameter set. A segment (a group of devices, such as those of one
country) is a parameter, so each segment has fingerprints of its own.

So two releases differ by whole windows, whatever their days and whenever they are read, and never
by a few reports. A query selects windows:

    range of days     the windows that are dated inside the range
    period            a day, week or month of the range: the windows that are dated inside it. The
                      periods of a range add up to the range, because a window has one date
    parameter set     the windows of one fingerprint
    segments          the windows of all segments are added, unless the query asks for separate
                      segments

Nothing of a parameter set is released before it has a window. A reader cannot distinguish such a
set from a set without reports.

A metric with `min_reports` = 0 has no windows. Such metrics are for people who try the software.
Their release adds counters and blocks as they are, so every report shows at once. A counter is
dated on its day, and a block on its last day.

A day is withheld if it was moved into blocks, and some reports that came on this day are in no
window yet. The list of withheld days is the same for every parameter set and segment. If each set
had its own list, the list would show on which day the first report of a rare segment came. Days
that were not moved yet are not in the list. If today were in it after its first report, a person
who reads the list again and again would learn when the first report of a rare metric comes.

The rows are read one by one (`ReleaseQuery.read_rows`) and added into a table of periods
(`_PeriodTable`). Each period has a sum for each fingerprint (`_PeriodSums`, `_ParamsSum`), from
which the counts of a release are made.

Example: a daily metric with two cohorts, `min_cohort` = 10 and `min_reports` = 30.

    cohort 1    block Mon (12 reports), block Tue (15), block Wed (11)
    cohort 2    block Mon-Tue (22 reports, at least 2 x 10), Wed 3 reports, which wait
    windows     dated Tue, of 12 + 15 + 22 reports. No window is dated Mon, because 12 < 30

    from Mon to Tue    49 reports
    only Mon           nothing
    only Tue           49 reports
    from Mon to Wed    49 reports, and Wednesday is withheld: 11 reports are in a block without a
                       window, and 3 are in no closed block
"""

from __future__ import annotations

import bisect
import datetime
import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Subquery,
    Table,
    and_,
    select,
    union,
    union_all,
)

from rappor.base.errors import ParamsError, ReportError
from rappor.counts.calendar_periods import DayRange, find_period
from rappor.counts.counts import Counts
from rappor.counts.squared_reports import compute_max_squares_by_pace
from rappor.protocol.params import Params
from rappor.registry.metric import Metric
from rappor_server.base.errors import StoreError
from rappor_server.storage import schema
from rappor_server.storage.database import read_snapshot
from rappor_server.storage.release_windows import select_waiting_totals
from rappor_server.storage.tallies import Tally

MAX_PERIODS: Final = 400
"""Largest number of periods in one response: a year and one more month of days. Each period has
sums of its own in memory, so a larger number takes more memory."""


@dataclass(frozen=True, slots=True)
class DayReports:
    """Number of reports of the windows that are dated on a day, under all parameter sets."""

    day: datetime.date
    reports: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The counts of a metric that are released for the days from `first` to `last`.

    Attributes
    ----------
    metric : name of the metric
    first, last : first and last day, both included
    collections : counts of each parameter set, in the order of their fingerprints
    days : number of reports by the dates of their windows
    withheld : days that were moved into blocks, with reports of the metric in no window yet
    daily_counts : the same reports as `collections`, divided into counts of one parameter set and
        one day. Only `read_release_by_day` fills it
    """

    metric: str
    first: datetime.date
    last: datetime.date
    collections: tuple[Counts, ...]
    days: tuple[DayReports, ...]
    withheld: tuple[datetime.date, ...]
    daily_counts: tuple[Counts, ...] = ()

    @property
    def n_reports(self) -> int:
        """Number of reports under all parameter sets."""
        return sum(counts.n_reports for counts in self.collections)


class _ReleasedRow(NamedTuple):
    """A released block, or a counter of a metric without a minimum of reports.

    Attributes
    ----------
    params : fingerprint
    cohort : cohort, from 0
    first, last : first and last day of the block
    day : date of the window that contains the block, which decides the period. Without a minimum,
        the last day of the block
    reports : number of reports
    ones : the sums of bits as the database stores them (`storage.tallies`)
    """

    params: str
    cohort: int
    first: datetime.date
    last: datetime.date
    day: datetime.date
    reports: int
    ones: bytes


@dataclass(frozen=True, slots=True)
class ReleaseQuery:
    """Query for the released counts of a metric in a range of days.

    Attributes
    ----------
    metric : entry of the metric in the registry
    first, last : first and last day, both included
    params : fingerprint of the only parameter set to read; None for all sets
    """

    metric: Metric
    first: datetime.date
    last: datetime.date
    params: str | None = None

    def read_rows(self, db: Connection) -> Iterator[_ReleasedRow]:
        """Yield the blocks of the windows of the query.

        Without a minimum of reports, yield all blocks and counters of the query.
        """
        if self.metric.min_reports:
            return self._read_windows(db)
        rows = db.execute(select(self.select_blocks_and_counters("reports", "ones")))
        return itertools.starmap(_ReleasedRow, rows)

    def _read_windows(self, db: Connection) -> Iterator[_ReleasedRow]:
        """Yield the blocks of the windows that are dated inside the range."""
        block, window = schema.block.c, schema.release_window.c
        windows = (
            select(window.params, window.first, window.last)
            .where(self._is_of_query(schema.release_window, window.last))
            .order_by(window.params, window.last)
        )
        # Each fingerprint has a statement of its own. With one statement that joins windows and
        # blocks, SQLite reads every block of the metric and looks for its window, also for a range
        # of one day.
        rows = db.execute(windows).all()
        for fingerprint, group in itertools.groupby(rows, key=lambda row: str(row.params)):
            days_of_windows = [(row.first, row.last) for row in group]
            dates = [last for _, last in days_of_windows]
            # The windows of a fingerprint follow each other without gaps. So every closed block
            # that ends between the first and the last of these windows is in one of them.
            blocks = select(block.cohort, block.first, block.last, block.reports, block.ones).where(
                block.metric == self.metric.name,
                block.closed,
                block.params == fingerprint,
                block.last.between(days_of_windows[0][0], dates[-1]),
            )
            for cohort, first, last, reports, ones in db.execute(blocks):
                # The window of a block is the first one that is dated no earlier.
                date = dates[bisect.bisect_left(dates, last)]
                yield _ReleasedRow(fingerprint, cohort, first, last, date, reports, ones)

    def select_blocks_and_counters(self, *names: str) -> Subquery:
        """Return the rows of the blocks and counters of the query, for a metric without a minimum.

        Parameters
        ----------
        names : further columns to return, such as "reports". The first columns are always params,
            cohort, first and last (the days of the block), and day (the last day)
        """
        # A metric without a minimum has blocks if it had a minimum before.
        block, tally = schema.block.c, schema.tally.c
        blocks = select(
            *(block.params, block.cohort, block.first, block.last, block.last.label("day")),
            *(block[name] for name in names),
        )
        counters = select(
            *(tally.params, tally.cohort, tally.day.label("first"), tally.day.label("last")),
            *(tally.day, *(tally[name] for name in names)),
        )
        return union_all(
            blocks.where(self._is_of_query(schema.block, block.last)),
            counters.where(self._is_of_query(schema.tally, tally.day)),
        ).subquery("everything")

    def read_withheld(self, db: Connection) -> list[datetime.date]:
        """Return the withheld days of the range (see the opening of the module).

        A block does not store on which of its days reports came. So for a block, its first and its
        last day are returned, and not the days between them.
        """
        days = read_withheld_days(db, [self.metric]).get(self.metric.name, ())
        return sorted(day for day in days if self.first <= day <= self.last)

    def _is_of_query(self, table: Table, date: ColumnElement[datetime.date]) -> ColumnElement[bool]:
        """Return the condition for a row of the metric, of the parameter set and of the range.

        `date` is the column of the table with the day to which its reports belong.
        """
        columns = table.c
        conditions = [columns.metric == self.metric.name, date.between(self.first, self.last)]
        if self.params is not None:
            conditions.append(columns.params == self.params)
        return and_(*conditions)


def read_release(
    engine: Engine,
    metric: Metric,
    first: datetime.date,
    last: datetime.date,
    *,
    params: str | None = None,
    separate_segments: bool = False,
) -> Release:
    """Return the released counts of the days from first to last, both included.

    Parameters
    ----------
    params : fingerprint of the only parameter set to read. `Release.days` then has the reports of
        this set only
    separate_segments : whether each segment has counts of its own. Otherwise segments are added
    """
    # A table with one period, the whole range, which contains every day.
    table = _PeriodTable(lambda _: (first, last), max_periods=1)
    _add_rows(engine, ReleaseQuery(metric, first, last, params), table)
    # A parameter set has at most one segment, so there is nothing to add.
    is_separate = separate_segments or params is not None
    return table.get(first).make_release(metric, first, last, separate_segments=is_separate)


def read_release_by_day(
    engine: Engine, metric: Metric, first: datetime.date, last: datetime.date
) -> Release:
    """Return the release of `read_release`, and in `Release.daily_counts` the same reports by day.

    The day of a report is the date of its window. The decoder estimates from the daily counts how
    often devices report again. If the metric has segments, or windows on more than `MAX_PERIODS`
    days, the counts are not divided by day: `daily_counts` is `collections`.
    """
    days = _PeriodTable(lambda day: (day, day), max_periods=MAX_PERIODS)
    try:
        _add_rows(engine, ReleaseQuery(metric, first, last), days)
    except ParamsError:  # too many days
        release = read_release(engine, metric, first, last)
        return replace(release, daily_counts=release.collections)
    # The sums of the range are computed from the sums of its days, so the rows are read once.
    total, ordered = _PeriodSums(), [days.periods[day] for day in sorted(days.periods)]
    for day in ordered:
        total.withheld += day.withheld
        for fingerprint, params_sum in day.sums.items():
            total.get(fingerprint, params_sum.params).add_sum(params_sum)
    release = total.make_release(metric, first, last, separate_segments=False)
    # The decoder compares the sums of days: the more they agree, the more devices report again. A
    # rare segment has a window only now and then, so the sums of most days do not contain its
    # devices, and the sum of one day contains their reports of many days. The days then agree less
    # than their devices do, and the decoder would conclude that fewer devices report again.
    if any(params_sum.params.segment for params_sum in total.sums.values()):
        return replace(release, daily_counts=release.collections)
    daily_counts = [
        day.sums[fingerprint].make_counts(metric)
        for fingerprint in sorted(total.sums)
        for day in ordered
        if fingerprint in day.sums
    ]
    return replace(release, daily_counts=tuple(daily_counts))


def read_releases_by_period(
    engine: Engine,
    query: ReleaseQuery,
    by: str,
    *,
    separate_segments: bool = False,
    max_periods: int = MAX_PERIODS,
) -> list[Release]:
    """Return the released counts of each "day", "week" or "month" of a query, in order.

    The periods add up to the range, because a window has one date. Periods without reports are not
    in the list.

    Raises
    ------
    ParamsError
        There are more than `max_periods` periods.
    """
    table = _PeriodTable(
        lambda day: find_period(day, by, within=(query.first, query.last)), max_periods=max_periods
    )
    _add_rows(engine, query, table)
    is_separate = separate_segments or query.params is not None
    releases = [
        sums.make_release(query.metric, *days, separate_segments=is_separate)
        for days, sums in sorted(table.periods.items())
    ]
    return [release for release in releases if release.collections or release.withheld]


_DayCounter = Counter[datetime.date]
"""Counts reports by the dates of their windows."""

_BlockReports = tuple[datetime.date, datetime.date, int]
"""First day, last day and number of reports of a block. The days bound how often one device
reported: at most once in each interval of the block."""


def _list_days(days: _DayCounter) -> tuple[DayReports, ...]:
    """Return the reports of each day, in the order of the days."""
    return tuple(DayReports(day, days[day]) for day in sorted(days))


def _add_rows(engine: Engine, query: ReleaseQuery, table: _PeriodTable) -> None:
    """Add the released rows and the withheld days of a query to the periods of a table."""
    sets: dict[str, Params] = {}
    with read_snapshot(engine) as db:
        # `table.get` creates a period if necessary, so a period without released reports is in the
        # table if one of its days is withheld.
        for day in query.read_withheld(db):
            table.get(day).withheld.append(day)
        for row in query.read_rows(db):
            if row.params not in sets:
                sets |= read_params(db, {row.params})
            table.get(row.day).get(row.params, sets[row.params]).add_row(row)


@dataclass(slots=True)
class _ParamsSum:
    """Sum of blocks under one parameter set.

    Attributes
    ----------
    params : the parameter set
    reports : (m,) int64, number of reports of each cohort
    ones : (m, k) int64, sums of bits
    blocks : days and number of reports of each block, by cohort. The days bound how often one
        device reported
    days : number of reports by the dates of their windows
    """

    params: Params
    reports: NDArray[np.int64]
    ones: NDArray[np.int64]
    blocks: defaultdict[int, list[_BlockReports]]
    days: _DayCounter

    @classmethod
    def create(cls, params: Params) -> _ParamsSum:
        """Return the sum of no blocks."""
        zeros = np.zeros((params.m, params.k), dtype=np.int64)
        reports = np.zeros(params.m, dtype=np.int64)
        return cls(params, reports, zeros, defaultdict(list), Counter())

    def add_row(self, row: _ReleasedRow) -> None:
        """Add a block or a counter of a cohort."""
        self.reports[row.cohort] += row.reports
        tally = Tally.from_bytes(row.reports, bytes(row.ones), k=self.params.k)
        self.ones[row.cohort] += tally.ones
        self.blocks[row.cohort].append((row.first, row.last, row.reports))
        self.days[row.day] += row.reports

    def add_sum(self, other: _ParamsSum) -> None:
        """Add the sum of another day or of another segment to this sum.

        Cohorts are added to the same cohorts. A device has one cohort, on all days and in all
        segments, so its reports stay together.
        """
        self.reports += other.reports
        self.ones += other.ones
        self.days += other.days
        for cohort, blocks in other.blocks.items():
            self.blocks[cohort] += blocks

    def make_counts(self, metric: Metric) -> Counts:
        """Return the counts, with an upper bound on the sum of squared reports of devices.

        The bound (`compute_max_squares_by_pace`) follows from the intervals that the blocks
        contain, because a device reports at most once in an interval. It is computed for each
        cohort alone, because a device is in one cohort. The pace is the length of an interval: a
        day, a week or an epoch. It is read from the parameter set of the reports, and not from the
        present registry. Case: the registry had daily intervals before, and has weekly intervals
        now. The old reports were made by daily intervals, and so their parameter set says.

        Raises
        ------
        StoreError
            The counts are impossible, for example more ones than reports.
        """
        squares = sum(
            compute_max_squares_by_pace(self.params.pace, self.params.epoch, blocks)
            for blocks in self.blocks.values()
        )
        try:
            return Counts(self.params, self.ones, self.reports, metric.name, squares)
        except ReportError as error:
            raise StoreError(
                f"the database has impossible counts of {metric.name}: {error}", retryable=False
            ) from None


@dataclass(slots=True)
class _PeriodSums:
    """Sums of one period.

    Attributes
    ----------
    sums : sum of each parameter set, by fingerprint
    withheld : withheld days of the period, in order
    """

    sums: dict[str, _ParamsSum] = field(default_factory=dict)
    withheld: list[datetime.date] = field(default_factory=list)

    def get(self, fingerprint: str, params: Params) -> _ParamsSum:
        """Return the sum under a parameter set; create it if it does not exist."""
        if fingerprint not in self.sums:
            self.sums[fingerprint] = _ParamsSum.create(params)
        return self.sums[fingerprint]

    def make_release(
        self,
        metric: Metric,
        first: datetime.date,
        last: datetime.date,
        *,
        separate_segments: bool,
    ) -> Release:
        """Return the release of the period."""
        days = _DayCounter()
        for params_sum in self.sums.values():
            days += params_sum.days
        has_segments = any(params_sum.params.segment for params_sum in self.sums.values())
        sums = self.sums
        if has_segments and not separate_segments:
            sums = _add_segments(self.sums.values()).sums
        return Release(
            metric=metric.name,
            first=first,
            last=last,
            # In the order of the fingerprints, so that equal counts have an equal digest. The order
            # of the rows in the database may change between two reads.
            collections=tuple(sums[key].make_counts(metric) for key in sorted(sums)),
            days=_list_days(days),
            withheld=tuple(self.withheld),
        )


def _add_segments(sums: Iterable[_ParamsSum]) -> _PeriodSums:
    """Return the sums with all segments added.

    Parameter sets that differ in their segment only become one parameter set without a segment.
    """
    total = _PeriodSums()
    for params_sum in sums:
        params = params_sum.params.without_segment
        total.get(params.fingerprint, params).add_sum(params_sum)
    return total


class _PeriodTable:
    """Sums of each period of a query.

    Attributes
    ----------
    periods : sums by the first and last day of the period
    """

    def __init__(self, find_days: Callable[[datetime.date], DayRange], *, max_periods: int) -> None:
        """Create an empty table.

        Parameters
        ----------
        find_days : returns the first and last day of the period that contains a day
        max_periods : largest number of periods
        """
        self.periods: dict[DayRange, _PeriodSums] = {}
        self._find_days = find_days
        self._max_periods = max_periods

    def get(self, day: datetime.date) -> _PeriodSums:
        """Return the period of a day; create it if it does not exist.

        Raises ParamsError if there would be too many periods.
        """
        days = self._find_days(day)
        if days not in self.periods:
            # The check is here, while rows are read. A check afterwards would be too late: the sums
            # of ten years of days would already be in memory.
            if len(self.periods) == self._max_periods:
                raise ParamsError(
                    f"by must give at most {self._max_periods} days, weeks or months: ask for fewer"
                )
            self.periods[days] = _PeriodSums()
        return self.periods[days]


def read_withheld_days(db: Connection, metrics: Iterable[Metric]) -> dict[str, set[datetime.date]]:
    """Return the days with reports that are in no window yet, by the name of the metric.

    Days that were not moved into blocks yet, such as today, are left out: the opening of the module
    explains why. A block does not store on which of its days reports came. So for a block, its
    first and its last day are returned, and not the days between them. A metric without such days,
    and a metric without a minimum, are absent from the result.
    """
    names = [metric.name for metric in metrics if metric.min_reports]
    # The days are those of all parameter sets (see the opening of the module). Numbers of reports
    # are not returned: somebody who reads a number again and again would see each report as it
    # comes.
    block, tally, blocked = schema.block.c, schema.tally.c, schema.blocked.c
    waiting = select_waiting_totals(names)
    blocks = union(
        select(block.metric, block.first, block.last).where(block.metric.in_(names), ~block.closed),
        select(waiting.c.metric, waiting.c.first, waiting.c.last),
        # Counters of days that were moved are late, or of a fingerprint of no registry in force.
        select(tally.metric, tally.day, tally.day)
        .join(schema.blocked, blocked.metric == tally.metric)
        .where(tally.metric.in_(names), tally.day <= blocked.through),
    )
    days: defaultdict[str, set[datetime.date]] = defaultdict(set)
    for name, first, last in db.execute(blocks):
        days[name] |= {first, last}
    return dict(days)


def read_params(db: Connection, fingerprints: Set[str]) -> dict[str, Params]:
    """Return parameter sets by their fingerprints."""
    columns = schema.params.c
    query = select(columns.fingerprint, columns.document).where(
        columns.fingerprint.in_(fingerprints)
    )
    return {key: _parse_params(document) for key, document in db.execute(query)}


# The page with the list of metrics reads the same few documents at every view. Parsing a document
# takes as long as a query to the database.
_parse_params = functools.lru_cache(maxsize=1000)(Params.from_json)
