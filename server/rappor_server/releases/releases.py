"""What analysts may read: sums of whole blocks, never of fewer reports than a metric's minima.

A block is some whole days of one cohort that hold at least `min_cohort` reports. Blocks never
change but by a restored backup, and every range is a sum of whole blocks. So two ranges, or one
range at two times, never differ by a report, and a sum of one, which is a report, is never shown. A
metric without a minimum shows whatever has come.
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
from rappor.counts.calendar import Days, stretch_of
from rappor.counts.counts import Counts
from rappor.counts.devices import squares_by_pace
from rappor.protocol.params import Params
from rappor.registry.metric import Metric
from rappor_server.base.errors import StoreError
from rappor_server.storage import schema
from rappor_server.storage.database import translate_errors
from rappor_server.storage.tallies import Tally

MOST_STRETCHES: Final = 400
"""Days, weeks or months of one answer: a year of days and a month more."""


@dataclass(frozen=True, slots=True)
class DayReports:
    """How many reports are released of the blocks that end on a day, under all parameter sets."""

    day: datetime.date
    reports: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What is released of a metric on the days from `first` to `last`, both included.

    `collections` has one Counts for each parameter set; `withheld` are days with reports that
    wait: for the end of the day, for their block to be closed, or for a minimum in all.
    """

    metric: str
    first: datetime.date
    last: datetime.date
    collections: tuple[Counts, ...]
    days: tuple[DayReports, ...]
    withheld: tuple[datetime.date, ...]
    parts: tuple[Counts, ...] = ()
    """The same reports by day, where `release_by_day` made it."""

    @property
    def n_reports(self) -> int:
        """Reports under all parameter sets."""
        return sum(counts.n_reports for counts in self.collections)


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortReports:
    """How many reports of each cohort, (m,) int64, are released under one parameter set."""

    fingerprint: str
    reports: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """A release without its sums of bits: cheap, however much there is."""

    days: tuple[DayReports, ...]
    withheld: tuple[datetime.date, ...]
    cohorts: tuple[CohortReports, ...]


@dataclass(frozen=True, slots=True)
class BlockQuery:
    """A metric's days from first to last, both included, under one parameter set or all."""

    metric: Metric
    first: datetime.date
    last: datetime.date
    params: str | None = None
    ending: bool = False
    """Take blocks that end on one of the days, wherever they begin."""

    def shown(self, *names: str) -> Subquery:
        """Return what may be shown: closed blocks; without a minimum everything there is.

        `names` are columns beside those that say which days and reports they are.
        """
        columns = schema.block.c
        blocks = select(
            *(columns.params, columns.cohort, columns.first, columns.last.label("day")),
            *(columns[name] for name in names),
        ).where(
            self._own(schema.block),
            self._begins(),
            columns.last <= self.last,
        )
        if self.metric.min_reports:
            return blocks.where(columns.closed).subquery("shown")
        tally = schema.tally.c
        counters = select(
            *(tally.params, tally.cohort, tally.day.label("first"), tally.day),
            *(tally[name] for name in names),
        )
        return union_all(blocks, counters.where(self._counted())).subquery("shown")

    def waiting(self, db: Connection) -> set[datetime.date]:
        """Return the days of reports that are in no block yet, or in one beyond the range."""
        if not self.metric.min_reports:
            return set()
        columns = schema.block.c
        beyond = or_(~columns.closed, ~self._begins(), columns.last > self.last)
        blocks = select(columns.first, columns.last).where(
            self._own(schema.block),
            columns.first <= self.last,
            columns.last >= self.first,
            beyond,
        )
        days = {day for row in db.execute(blocks.distinct()) for day in row}
        days |= set(
            db.execute(select(schema.tally.c.day).where(self._counted()).distinct()).scalars()
        )
        return {day for day in days if self.first <= day <= self.last}

    def _begins(self) -> ColumnElement[bool]:
        columns = schema.block.c
        return (columns.last if self.ending else columns.first) >= self.first

    def _counted(self) -> ColumnElement[bool]:
        columns = schema.tally.c
        return and_(
            self._own(schema.tally),
            columns.day >= self.first,
            columns.day <= self.last,
        )

    def _own(self, table: Table) -> ColumnElement[bool]:
        columns = table.c
        is_own = columns.metric == self.metric.name
        return is_own if self.params is None else and_(is_own, columns.params == self.params)


def release(  # noqa: PLR0913 - a range, and what of it
    engine: Engine,
    metric: Metric,
    first: datetime.date,
    last: datetime.date,
    *,
    params: str | None = None,
    segments: bool = False,
    ending: bool = False,
) -> Release:
    """Return what may be read of a metric on the days from first to last, both included.

    A fingerprint as `params` leaves the reports under that set only, and the days of these. With
    `segments` each segment has counts of its own, else they are added up. With `ending` it is the
    blocks that end on these days, wherever they begin: of ranges that follow each other no block is
    in two of them or in none, so they may be added.
    """
    whole = _Stretches(lambda _: (first, last), most=1)
    _add_rows(engine, BlockQuery(metric, first, last, params, ending), whole)
    apart = segments or params is not None
    return whole.of(first).release(metric, first, last, segments=apart)


def release_by_day(
    engine: Engine, metric: Metric, first: datetime.date, last: datetime.date
) -> Release:
    """Return what `release` does, and the same reports by day: they tell how often devices repeat.

    Days are added until they have `min_reports` reports, so that each part may be read by itself.
    Segments are added up, and more than `MOST_STRETCHES` days too: one sum stands for them.
    """
    days = _Stretches(lambda day: (day, day), most=MOST_STRETCHES)
    try:
        _add_rows(engine, BlockQuery(metric, first, last), days)
    except ParamsError:
        found = release(engine, metric, first, last)
        return replace(found, parts=found.collections)
    whole, ordered = _Stretch(), [days.found[day] for day in sorted(days.found)]
    for day in ordered:
        whole.waiting |= day.waiting
        for key, each in day.sums.items():
            whole.sum_of(key, each.params).take(each)
    found = whole.release(metric, first, last, segments=False)
    if any(each.params.segment for each in whole.sums.values()):
        return replace(found, parts=found.collections)
    parts: list[Counts] = []
    for counts in found.collections:
        key = counts.params.fingerprint
        parts += _parts(metric, [day.sums[key] for day in ordered if key in day.sums])
    return replace(found, parts=tuple(parts))


def _parts(metric: Metric, days: Iterable[_Sum]) -> list[Counts]:
    """Add days of one parameter set until each part has enough reports, the last one with the rest.

    Together they have enough.
    """
    parts: list[_Sum] = []
    for day in days:
        if not parts or parts[-1].n_reports >= _least(metric):
            parts.append(_Sum.under(day.params))
        parts[-1].take(day)
    if len(parts) > 1 and parts[-1].n_reports < _least(metric):
        last = parts.pop()
        parts[-1].take(last)
    return [part.counts(metric) for part in parts]


def releases_by(
    engine: Engine,
    asked: BlockQuery,
    by: str,
    *,
    segments: bool = False,
    most: int = MOST_STRETCHES,
) -> list[Release]:
    """Return what may be read of each "day", "week" or "month" of a selection.

    A block counts where its last day lies, so no block is missing that the whole range shows. Each
    answer needs `min_reports` reports of its own.

    Raises
    ------
    ParamsError
        There are more than `most`.
    """
    stretches = _Stretches(
        lambda day: stretch_of(day, by, within=(asked.first, asked.last)), most=most
    )
    _add_rows(engine, asked, stretches)
    apart = segments or asked.params is not None
    found = [
        sums.release(asked.metric, *days, segments=apart)
        for days, sums in sorted(stretches.found.items())
    ]
    return [each for each in found if each.collections or each.withheld]


def overview(engine: Engine, metric: Metric) -> Overview:
    """Return how many reports of a metric may be read, by day and by cohort."""
    asked = BlockQuery(metric, datetime.date.min, datetime.date.max)
    shown = asked.shown("reports")
    by_day = select(shown.c.params, shown.c.day, func.sum(shown.c.reports))
    cohort = shown.c.cohort + 0  # or SQLite takes the key, which has cohorts in order but no counts
    by_cohort = select(shown.c.params, cohort, func.sum(shown.c.reports))
    with translate_errors(), engine.connect() as db:
        days = Counter(
            {
                (key, day): int(n)
                for key, day, n in db.execute(by_day.group_by(shown.c.params, shown.c.day))
            }
        )
        sets = read_params(db, {key for key, _ in days})
        cohorts = {key: np.zeros(params.m, dtype=np.int64) for key, params in sets.items()}
        for key, j, n in db.execute(by_cohort.group_by(shown.c.params, cohort)):
            cohorts[key][j] = int(n)
        waiting = asked.waiting(db)
    enough = {key for key in cohorts if cohorts[key].sum() >= _least(metric)}
    return Overview(
        days=_by_day(days, enough),
        withheld=_withheld(days, enough, waiting),
        cohorts=tuple(
            CohortReports(fingerprint=key, reports=cohorts[key]) for key in sorted(enough)
        ),
    )


_Days = Counter[tuple[str, datetime.date]]
"""(fingerprint, day) -> reports."""

_Period = tuple[datetime.date, datetime.date, int]
"""First and last day of a block of one cohort, and its number of reports."""


def _least(metric: Metric) -> int:
    """Return how many reports under a parameter set may be shown."""
    return max(metric.min_reports, 1)


def _by_day(days: _Days, enough: Set[str]) -> tuple[DayReports, ...]:
    totals: Counter[datetime.date] = Counter()
    for (key, day), n in days.items():
        if key in enough:
            totals[day] += n
    return tuple(DayReports(day, totals[day]) for day in sorted(totals))


def _withheld(
    days: _Days, enough: Set[str], waiting: Set[datetime.date]
) -> tuple[datetime.date, ...]:
    return tuple(sorted(waiting | {day for key, day in days if key not in enough}))


def _add_rows(engine: Engine, asked: BlockQuery, stretches: _Stretches) -> None:
    """Add what may be shown, and the days not yet released, each to its stretch of days."""
    sets: dict[str, Params] = {}
    with translate_errors(), engine.connect() as db:
        for day in asked.waiting(db):
            stretches.of(day).waiting.add(day)
        rows = db.execute(select(asked.shown("reports", "ones")))
        for key, cohort, first, day, number, data in rows:
            if key not in sets:
                sets |= read_params(db, {key})
            one = stretches.of(day).sum_of(key, sets[key])
            one.add(cohort, (first, day, number), bytes(data))


@dataclass(slots=True)
class _Sum:
    """What may be shown under one parameter set, while it is added up."""

    params: Params
    reports: NDArray[np.int64]
    ones: NDArray[np.int64]
    periods: defaultdict[int, list[_Period]]
    """By cohort."""

    @classmethod
    def under(cls, params: Params) -> _Sum:
        """Begin with nothing."""
        zeros = np.zeros((params.m, params.k), dtype=np.int64)
        return cls(params, np.zeros(params.m, dtype=np.int64), zeros, defaultdict(list))

    @property
    def n_reports(self) -> int:
        """Reports of all cohorts."""
        return int(self.reports.sum())

    def add(self, cohort: int, period: _Period, data: bytes) -> None:
        """Add a block of a cohort."""
        number = period[-1]
        self.reports[cohort] += number
        self.ones[cohort] += Tally.from_bytes(number, data).ones
        self.periods[cohort].append(period)

    def take(self, other: _Sum) -> None:
        """Add what another one has; a device has one cohort in all segments."""
        self.reports += other.reports
        self.ones += other.ones
        for cohort, periods in other.periods.items():
            self.periods[cohort] += periods

    def counts(self, metric: Metric) -> Counts:
        """Return the counts; StoreError if they are impossible."""
        squares: int | None = 0  # the most that it can be; a device is in one cohort
        for periods in self.periods.values():
            each = squares_by_pace(self.params.pace, self.params.epoch, periods)
            squares = None if squares is None or each is None else squares + each
        try:
            return Counts(self.params, self.ones, self.reports, metric.name, squares)
        except ReportError as error:
            raise StoreError(
                f"the database has impossible counts of {metric.name}: {error}", retryable=False
            ) from None


@dataclass(slots=True)
class _Stretch:
    """What may be shown of one stretch of days, by fingerprint, and its days not yet released."""

    sums: dict[str, _Sum] = field(default_factory=dict)
    waiting: set[datetime.date] = field(default_factory=set)

    def sum_of(self, key: str, params: Params) -> _Sum:
        """Return the sum under a parameter set."""
        if key not in self.sums:
            self.sums[key] = _Sum.under(params)
        return self.sums[key]

    def release(
        self, metric: Metric, first: datetime.date, last: datetime.date, *, segments: bool
    ) -> Release:
        """Return what holds as many reports as the metric wants: each segment, or all as one sum.

        A segment of fewer reports is in no sum, so that none of them can be subtracted out.
        """
        found = {key: self.sums[key].counts(metric) for key in sorted(self.sums)}
        enough = [key for key, counts in found.items() if counts.n_reports >= _least(metric)]
        collections = [found[key] for key in enough]
        if not segments and any(counts.params.segment for counts in collections):
            together = _unsegmented(self.sums[key] for key in enough)
            collections = [each.counts(metric) for each in together]
        days: _Days = Counter()
        for key, each in self.sums.items():
            for *_, day, number in itertools.chain.from_iterable(each.periods.values()):
                days[key, day] += number
        return Release(
            metric=metric.name,
            first=first,
            last=last,
            collections=tuple(collections),
            days=_by_day(days, set(enough)),
            withheld=_withheld(days, set(enough), self.waiting),
        )


def _unsegmented(sums: Iterable[_Sum]) -> list[_Sum]:
    """Add up the parameter sets that differ in their segment only."""
    found = _Stretch()
    for each in sums:
        params = each.params.unsegmented
        found.sum_of(params.fingerprint, params).take(each)
    return [found.sums[fingerprint] for fingerprint in sorted(found.sums)]


class _Stretches:
    """Stretches of days, at most `most`; ParamsError for one more."""

    def __init__(self, list_days: Callable[[datetime.date], Days], *, most: int) -> None:
        self.found: dict[Days, _Stretch] = {}
        self._days_of = list_days
        self._most = most

    def of(self, day: datetime.date) -> _Stretch:
        """Return the stretch that a day is in."""
        days = self._days_of(day)
        if days not in self.found:
            if len(self.found) == self._most:
                raise ParamsError(
                    f"by must give at most {self._most} days, weeks or months: ask for fewer"
                )
            self.found[days] = _Stretch()
        return self.found[days]


def read_params(db: Connection, fingerprints: Set[str]) -> dict[str, Params]:
    """Return parameter sets by their fingerprints."""
    columns = schema.params.c
    query = select(columns.fingerprint, columns.document).where(
        columns.fingerprint.in_(fingerprints)
    )
    return {key: Params.from_json(document) for key, document in db.execute(query)}
