"""Releases: the counts that analysts may read.

Theory of operation
-------------------
A release is a sum of whole closed blocks (`storage.blocks`). A block contains consecutive whole
days of one cohort under one fingerprint, and never changes. So two ranges of days, or one range
read at two times, differ by whole blocks, and never by a single report.

    range of days     the sum of the blocks that are wholly inside it
    period            a day, week or month: the sum of the blocks that end in it
    parameter set     the counts under a fingerprint are released if they have `min_reports` reports
    segments          added up, unless the query asks for separate segments

A day is withheld if some of its reports are not in the release: the day has not ended, its block is
not closed, its block crosses the end of the range, or the parameter set has too few reports.

A segment with fewer than `min_reports` reports is in no sum. Otherwise the difference of the sum of
all segments and of the other segments would be its counts.

A metric with `min_reports` = 0, for trials, has no minimum. Its release adds the counters of days
that have not ended to its blocks, and every report shows at once.

Example: two cohorts of a daily metric with `min_cohort` = 10.

    cohort 1    block Mon (12 reports), block Tue (15)
    cohort 2    block Mon-Tue (22)

    from Mon to Tue    12 + 15 + 22 reports
    only Tue           15 reports, and Tuesday is withheld: a block of cohort 2 begins before it
    by day             Mon 12, Tue 15 + 22
"""

from __future__ import annotations

import datetime
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Subquery,
    Table,
    and_,
    func,
    or_,
    select,
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
from rappor_server.storage.database import translate_errors
from rappor_server.storage.tallies import Tally

MAX_PERIODS: Final = 400
"""Largest number of periods in one response: the days of a year and of one more month. Each period
has sums of its own in memory, so a larger number takes more memory."""


@dataclass(frozen=True, slots=True)
class DayReports:
    """Number of released reports of the blocks that end on a day, under all parameter sets."""

    day: datetime.date
    reports: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The counts of a metric that are released for the days from `first` to `last`.

    Attributes
    ----------
    first, last : first and last day, both included
    collections : counts of each parameter set
    days : number of reports by the last day of their blocks
    withheld : days with reports that are not in the release
    parts : the same reports as `collections`, by day. Only `read_release_by_day` fills it
    """

    metric: str
    first: datetime.date
    last: datetime.date
    collections: tuple[Counts, ...]
    days: tuple[DayReports, ...]
    withheld: tuple[datetime.date, ...]
    parts: tuple[Counts, ...] = ()

    @property
    def n_reports(self) -> int:
        """Number of reports under all parameter sets."""
        return sum(counts.n_reports for counts in self.collections)


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortReports:
    """Number of released reports of each cohort, (m,) int64, under one parameter set."""

    fingerprint: str
    reports: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """A release of all days without its sums of bits. Its cost does not grow with the bits."""

    days: tuple[DayReports, ...]
    withheld: tuple[datetime.date, ...]
    cohorts: tuple[CohortReports, ...]


@dataclass(frozen=True, slots=True)
class BlockQuery:
    """Query for the blocks of a metric in a range of days.

    Attributes
    ----------
    first, last : first and last day, both included
    params : fingerprint of the only parameter set to read; None for all sets
    include_crossing : whether a block that begins before `first` is included. Ranges that follow
        each other then include each block once: in the range of its last day
    """

    metric: Metric
    first: datetime.date
    last: datetime.date
    params: str | None = None
    include_crossing: bool = False

    def select_released(self, *names: str) -> Subquery:
        """Return the rows of closed blocks; without a minimum, of all blocks and counters.

        The columns are params, cohort, first, day (the last day), and the columns `names`.
        """
        columns = schema.block.c
        blocks = select(
            *(columns.params, columns.cohort, columns.first, columns.last.label("day")),
            *(columns[name] for name in names),
        ).where(
            self._is_of_query(schema.block),
            self._begins_in_range(),
            columns.last <= self.last,
        )
        if self.metric.min_reports:
            return blocks.where(columns.closed).subquery("released")
        # Open blocks and counters may exist although the metric has no minimum: it may have had
        # one before.
        tally = schema.tally.c
        counters = select(
            *(tally.params, tally.cohort, tally.day.label("first"), tally.day),
            *(tally[name] for name in names),
        )
        return union_all(blocks, counters.where(self._is_counted())).subquery("released")

    def read_waiting_days(self, db: Connection) -> set[datetime.date]:
        """Return the days of reports in no block, in an open block, or in a block that crosses.

        Of a block, only the first and the last day are returned, because a block does not contain
        the days of its reports.
        """
        if not self.metric.min_reports:
            return set()
        columns = schema.block.c
        is_excluded = or_(~columns.closed, ~self._begins_in_range(), columns.last > self.last)
        blocks = select(columns.first, columns.last).where(
            self._is_of_query(schema.block),
            columns.first <= self.last,
            columns.last >= self.first,
            is_excluded,
        )
        # Days only, never numbers of reports: a number that grows would show each report.
        days = {day for row in db.execute(blocks.distinct()) for day in row}
        counters = select(schema.tally.c.day).where(self._is_counted()).distinct()
        days |= set(db.execute(counters).scalars())
        return {day for day in days if self.first <= day <= self.last}

    def _begins_in_range(self) -> ColumnElement[bool]:
        columns = schema.block.c
        return (columns.last if self.include_crossing else columns.first) >= self.first

    def _is_counted(self) -> ColumnElement[bool]:
        """Return the condition for a counter of the range."""
        columns = schema.tally.c
        return and_(
            self._is_of_query(schema.tally),
            columns.day >= self.first,
            columns.day <= self.last,
        )

    def _is_of_query(self, table: Table) -> ColumnElement[bool]:
        """Return the condition for a row of the metric and of the parameter set."""
        columns = table.c
        is_of_metric = columns.metric == self.metric.name
        if self.params is None:
            return is_of_metric
        return and_(is_of_metric, columns.params == self.params)


def read_release(  # noqa: PLR0913 - a range, and which of its blocks
    engine: Engine,
    metric: Metric,
    first: datetime.date,
    last: datetime.date,
    *,
    params: str | None = None,
    separate_segments: bool = False,
    include_crossing: bool = False,
) -> Release:
    """Return the released counts of the days from first to last, both included.

    Parameters
    ----------
    params : fingerprint of the only parameter set to read; `days` and `withheld` are its days then
    separate_segments : whether each segment has counts of its own. Otherwise segments are added up
    include_crossing : as in `BlockQuery`
    """
    # The whole range is one period.
    table = _PeriodTable(lambda _: (first, last), most=1)
    _add_rows(engine, BlockQuery(metric, first, last, params, include_crossing), table)
    # A parameter set contains at most one segment, so there is nothing to add up.
    is_separate = separate_segments or params is not None
    return table.get(first).make_release(metric, first, last, separate_segments=is_separate)


def read_release_by_day(
    engine: Engine, metric: Metric, first: datetime.date, last: datetime.date
) -> Release:
    """Return the release of `read_release`, and in `parts` the same reports by day.

    The decoder estimates from the parts how often devices report again. Consecutive days are added
    until they have `min_reports` reports, so that each part may be read by itself.

    With segments, or with more than `MAX_PERIODS` days, the parts are the collections.
    """
    days = _PeriodTable(lambda day: (day, day), most=MAX_PERIODS)
    try:
        _add_rows(engine, BlockQuery(metric, first, last), days)
    except ParamsError:  # too many days
        release = read_release(engine, metric, first, last)
        return replace(release, parts=release.collections)
    # The sums of the range are computed from the sums of its days, so the rows are read once.
    total, ordered = _PeriodSums(), [days.periods[day] for day in sorted(days.periods)]
    for day in ordered:
        total.waiting |= day.waiting
        for fingerprint, params_sum in day.sums.items():
            total.get(fingerprint, params_sum.params).add_sum(params_sum)
    release = total.make_release(metric, first, last, separate_segments=False)
    # The parts of a sum over segments would need `min_reports` in each segment and day.
    if any(params_sum.params.segment for params_sum in total.sums.values()):
        return replace(release, parts=release.collections)
    parts: list[Counts] = []
    for counts in release.collections:
        key = counts.params.fingerprint
        parts += _join_days(metric, [day.sums[key] for day in ordered if key in day.sums])
    return replace(release, parts=tuple(parts))


def _join_days(metric: Metric, days: Iterable[_ParamsSum]) -> list[Counts]:
    """Add consecutive days of one parameter set until each part has enough reports.

    Days at the end that are not enough by themselves belong to the last part. All days together
    must have enough reports.
    """
    parts: list[_ParamsSum] = []
    for day in days:
        # The part before is complete, so this day begins a part.
        if not parts or parts[-1].n_reports >= _required_reports(metric):
            parts.append(_ParamsSum.create(day.params))
        parts[-1].add_sum(day)
    if len(parts) > 1 and parts[-1].n_reports < _required_reports(metric):
        last = parts.pop()
        parts[-1].add_sum(last)
    return [part.make_counts(metric) for part in parts]


def read_releases_by_period(
    engine: Engine,
    query: BlockQuery,
    by: str,
    *,
    separate_segments: bool = False,
    most: int = MAX_PERIODS,
) -> list[Release]:
    """Return the released counts of each "day", "week" or "month" of a query, in order.

    A block belongs to the period of its last day. So the periods add up to the range, and no block
    of the range is missing. Each period needs `min_reports` reports of its own. Periods without
    reports are left out.

    Raises
    ------
    ParamsError
        There are more than `most` periods.
    """
    table = _PeriodTable(
        lambda day: find_period(day, by, within=(query.first, query.last)), most=most
    )
    _add_rows(engine, query, table)
    is_separate = separate_segments or query.params is not None
    releases = [
        sums.make_release(query.metric, *days, separate_segments=is_separate)
        for days, sums in sorted(table.periods.items())
    ]
    return [release for release in releases if release.collections or release.withheld]


def read_overview(engine: Engine, metric: Metric) -> Overview:
    """Return the numbers of released reports of a metric, by day and by cohort."""
    query = BlockQuery(metric, datetime.date.min, datetime.date.max)
    released = query.select_released("reports")
    by_day = select(released.c.params, released.c.day, func.sum(released.c.reports))
    # `+ 0` keeps SQLite from reading the primary key, in which cohorts are in order. The key has no
    # numbers of reports, so SQLite would read all rows with their sums of bits. The index
    # `ix_block_reports` has all columns of the query: .1 s instead of .9 s for 45,000 blocks.
    cohort = released.c.cohort + 0
    by_cohort = select(released.c.params, cohort, func.sum(released.c.reports))
    with translate_errors(), engine.connect() as db:
        rows = db.execute(by_day.group_by(released.c.params, released.c.day))
        days: _DayCounter = Counter({(key, day): int(n) for key, day, n in rows})
        sets = read_params(db, {key for key, _ in days})
        cohorts = {key: np.zeros(params.m, dtype=np.int64) for key, params in sets.items()}
        for key, j, n in db.execute(by_cohort.group_by(released.c.params, cohort)):
            cohorts[key][j] = int(n)
        waiting = query.read_waiting_days(db)
    enough = {key for key in cohorts if cohorts[key].sum() >= _required_reports(metric)}
    return Overview(
        days=_sum_days(days, enough),
        withheld=_list_withheld(days, enough, waiting),
        cohorts=tuple(
            CohortReports(fingerprint=key, reports=cohorts[key]) for key in sorted(enough)
        ),
    )


_DayCounter = Counter[tuple[str, datetime.date]]
"""The counter has the number of reports by (fingerprint, last day of their block)."""

_BlockReports = tuple[datetime.date, datetime.date, int]
"""The tuple has the first day, last day and number of reports of a block of one cohort."""


def _required_reports(metric: Metric) -> int:
    """Return the number of reports under a parameter set from which on it is released."""
    return max(metric.min_reports, 1)


def _sum_days(days: _DayCounter, enough: Set[str]) -> tuple[DayReports, ...]:
    """Return the reports of each day, under the parameter sets that have enough reports."""
    # The reports of a set below the minimum are not even counted by day.
    totals: Counter[datetime.date] = Counter()
    for (key, day), n in days.items():
        if key in enough:
            totals[day] += n
    return tuple(DayReports(day, totals[day]) for day in sorted(totals))


def _list_withheld(
    days: _DayCounter, enough: Set[str], waiting: Set[datetime.date]
) -> tuple[datetime.date, ...]:
    """Return the days that wait, and the days of parameter sets with too few reports."""
    return tuple(sorted(waiting | {day for key, day in days if key not in enough}))


def _add_rows(engine: Engine, query: BlockQuery, table: _PeriodTable) -> None:
    """Add the released rows of a query, and its waiting days, each to its period."""
    sets: dict[str, Params] = {}
    with translate_errors(), engine.connect() as db:
        # Before the rows: a period whose reports all wait must be in the table, too.
        for day in query.read_waiting_days(db):
            table.get(day).waiting.add(day)
        rows = db.execute(select(query.select_released("reports", "ones")))
        for fingerprint, cohort, first, day, number, data in rows:
            if fingerprint not in sets:
                sets |= read_params(db, {fingerprint})
            params_sum = table.get(day).get(fingerprint, sets[fingerprint])
            params_sum.add_block(cohort, (first, day, number), bytes(data))


@dataclass(slots=True)
class _ParamsSum:
    """Sum of blocks under one parameter set.

    Attributes
    ----------
    reports : (m,) number of reports of each cohort
    ones : (m, k) sums of bits
    blocks : days and number of reports of each block, by cohort
    """

    params: Params
    reports: NDArray[np.int64]
    ones: NDArray[np.int64]
    blocks: defaultdict[int, list[_BlockReports]]

    @classmethod
    def create(cls, params: Params) -> _ParamsSum:
        """Return the sum of no blocks."""
        zeros = np.zeros((params.m, params.k), dtype=np.int64)
        return cls(params, np.zeros(params.m, dtype=np.int64), zeros, defaultdict(list))

    @property
    def n_reports(self) -> int:
        """Number of reports of all cohorts."""
        return int(self.reports.sum())

    def add_block(self, cohort: int, block: _BlockReports, data: bytes) -> None:
        """Add a block of a cohort; `data` are its sums of bits as the database stores them."""
        number = block[-1]
        self.reports[cohort] += number
        self.ones[cohort] += Tally.from_bytes(number, data).ones
        self.blocks[cohort].append(block)

    def add_sum(self, other: _ParamsSum) -> None:
        """Add another sum. A device has the same cohort in all segments."""
        self.reports += other.reports
        self.ones += other.ones
        for cohort, blocks in other.blocks.items():
            self.blocks[cohort] += blocks

    def make_counts(self, metric: Metric) -> Counts:
        """Return the counts; StoreError if they are impossible, such as more ones than reports.

        The sum of squared reports is the largest possible one. It is computed cohort by cohort,
        because a device is in one cohort, and by the pace of the fingerprint: after an interval
        became slower, devices that were not updated still report as often as before.
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
    """Sums of one period by fingerprint, and its days with reports that wait."""

    sums: dict[str, _ParamsSum] = field(default_factory=dict)
    waiting: set[datetime.date] = field(default_factory=set)

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
        """Return the release of the period, with the parameter sets that have enough reports."""
        # In the order of the fingerprints: the order of the rows may change between two reads, and
        # the digest of a release must not.
        counts = {key: self.sums[key].make_counts(metric) for key in sorted(self.sums)}
        enough = [key for key in counts if counts[key].n_reports >= _required_reports(metric)]
        collections = [counts[key] for key in enough]
        if not separate_segments and any(counts.params.segment for counts in collections):
            # Only segments with enough reports are added: the sum without a small segment, and the
            # separate counts of the others, must not differ by the small segment.
            sums = _add_segments(self.sums[key] for key in enough)
            collections = [params_sum.make_counts(metric) for params_sum in sums]
        days: _DayCounter = Counter()
        for key, params_sum in self.sums.items():
            for _, day, number in itertools.chain.from_iterable(params_sum.blocks.values()):
                days[key, day] += number
        return Release(
            metric=metric.name,
            first=first,
            last=last,
            collections=tuple(collections),
            days=_sum_days(days, set(enough)),
            withheld=_list_withheld(days, set(enough), self.waiting),
        )


def _add_segments(sums: Iterable[_ParamsSum]) -> list[_ParamsSum]:
    """Return the sums of the parameter sets that differ in their segment only."""
    total = _PeriodSums()
    for params_sum in sums:
        params = params_sum.params.without_segment
        total.get(params.fingerprint, params).add_sum(params_sum)
    return [total.sums[fingerprint] for fingerprint in sorted(total.sums)]


class _PeriodTable:
    """Sums of each period of a query, at most `most` periods."""

    def __init__(self, find_days: Callable[[datetime.date], DayRange], *, most: int) -> None:
        """Create an empty table. `find_days` returns the first and last day of a day's period."""
        self.periods: dict[DayRange, _PeriodSums] = {}
        self._find_days = find_days
        self._most = most

    def get(self, day: datetime.date) -> _PeriodSums:
        """Return the period of a day; create it if it does not exist.

        Raises ParamsError if there would be too many periods.
        """
        days = self._find_days(day)
        if days not in self.periods:
            # Checked while rows are read: afterwards, ten years of days would be in memory already.
            if len(self.periods) == self._most:
                raise ParamsError(
                    f"by must give at most {self._most} days, weeks or months: ask for fewer"
                )
            self.periods[days] = _PeriodSums()
        return self.periods[days]


def read_params(db: Connection, fingerprints: Set[str]) -> dict[str, Params]:
    """Return parameter sets by their fingerprints."""
    columns = schema.params.c
    query = select(columns.fingerprint, columns.document).where(
        columns.fingerprint.in_(fingerprints)
    )
    return {key: Params.from_json(document) for key, document in db.execute(query)}
