"""What analysts may read: sums of whole blocks, never of fewer reports than a metric's minima.

A block is some whole days of one cohort that hold at least `min_cohort` reports. Blocks never
change but by a restored backup, and every range is a sum of whole blocks. So two ranges, or one
range at two times, never differ by a report, and a sum of one, which is a report, is never shown. A
metric without a minimum shows whatever has come.
"""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import (
    ColumnElement,
    Connection,
    Subquery,
    Table,
    and_,
    func,
    or_,
    select,
    union_all,
)

from rappor.counts.calendar import Days, stretch_of
from rappor.counts.counts import Counts
from rappor.counts.devices import squares_by_pace
from rappor.ground.errors import DecodeError, ParamsError, ReportError
from rappor.protocol.params import Params
from rappor.registry.metric import Metric
from rappor_server.errors import StoreError
from rappor_server.storage import schema
from rappor_server.storage.database import failing_as_store_error
from rappor_server.storage.store import Store
from rappor_server.storage.tallies import Tally

MOST_STRETCHES: Final = 400
"""Days, weeks or months of one answer: a year of days and a month more."""

_EARLIER_HASH: Final = "murmur3"
"""The layout of strings that were counted before SHA-256 decided which of them are alike."""


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

    def shown(self) -> Subquery:
        """Return what may be shown: closed blocks; without a minimum everything there is."""
        return self._shown("reports", "ones")

    def counted(self) -> Subquery:
        """Return the same without the sums of bits, of which a count reads nothing."""
        return self._shown("reports")

    def _shown(self, *names: str) -> Subquery:
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
            ~columns.quarantine,
        )

    def _own(self, table: Table) -> ColumnElement[bool]:
        columns = table.c
        is_own = columns.metric == self.metric.name
        return is_own if self.params is None else and_(is_own, columns.params == self.params)


def release(
    store: Store,
    metric: Metric,
    first: datetime.date,
    last: datetime.date,
    *,
    params: str | None = None,
    segments: bool = False,
) -> Release:
    """Return what may be read of a metric on the days from first to last, both included.

    A fingerprint as `params` leaves the reports under that set only, and the days of these. With
    `segments` each segment has counts of its own, else they are added up.
    """
    whole = _Stretches(lambda _: (first, last), most=1)
    _add_rows(store, BlockQuery(metric, first, last, params), whole)
    apart = segments or params is not None
    return whole.of(first).release(metric, first, last, segments=apart)


def release_by_day(
    store: Store, metric: Metric, first: datetime.date, last: datetime.date
) -> Release:
    """Return what `release` does, and the same reports by day: they tell how often devices repeat.

    Days are added until they have `min_reports` reports, so that each part may be read by itself.
    Segments are added up, and more than `MOST_STRETCHES` days too: one sum stands for them.
    """
    days = _Stretches(lambda day: (day, day), most=MOST_STRETCHES)
    try:
        _add_rows(store, BlockQuery(metric, first, last), days)
    except ParamsError:
        found = release(store, metric, first, last)
        return replace(found, parts=found.collections)
    whole = _Sums()
    for each in days.sums.values():
        whole.take(each, each.sets)
    found = whole.release(metric, first, last, segments=False)
    if any(params.segment for params in whole.sets.values()):
        return replace(found, parts=found.collections)
    ordered = [days.sums[day] for day in sorted(days.sums)]
    keys = [counts.params.fingerprint for counts in found.collections]
    return replace(
        found, parts=tuple(counts for key in keys for counts in _parts(metric, key, ordered))
    )


def _parts(metric: Metric, key: str, days: Iterable[_Sums]) -> list[Counts]:
    """Add days of one parameter set until each part has enough reports, the last one with the rest.

    Together they have enough.
    """
    parts = [_Sums()]
    for day in days:
        if key in day.sets:
            if parts[-1].n_reports(key) >= max(metric.min_reports, 1):
                parts.append(_Sums())
            parts[-1].take(day, [key])
    if len(parts) > 1 and parts[-1].n_reports(key) < max(metric.min_reports, 1):
        last = parts.pop()
        parts[-1].take(last, [key])
    return [part.counts_of(metric, key) for part in parts]


def release_ended(
    store: Store, metric: Metric, first: datetime.date, last: datetime.date
) -> Release:
    """Return the blocks that end on the days from first to last, wherever they begin.

    Of ranges that follow each other no block is in two of them or in none, so they may be added.
    """
    whole = _Stretches(lambda _: (first, last), most=1)
    _add_rows(store, BlockQuery(metric, first, last, ending=True), whole)
    return whole.of(first).release(metric, first, last, segments=False)


def releases_by(
    store: Store,
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
    _add_rows(store, asked, stretches)
    apart = segments or asked.params is not None
    found = [
        sums.release(asked.metric, *days, segments=apart)
        for days, sums in sorted(stretches.sums.items())
    ]
    return [each for each in found if each.collections or each.withheld]


def overview(store: Store, metric: Metric) -> Overview:
    """Return how many reports of a metric may be read, by day and by cohort."""
    asked = BlockQuery(metric, datetime.date.min, datetime.date.max)
    shown = asked.counted()
    by_day = select(shown.c.params, shown.c.day, func.sum(shown.c.reports))
    cohort = shown.c.cohort + 0  # or SQLite takes the key, which has cohorts in order but no counts
    by_cohort = select(shown.c.params, cohort, func.sum(shown.c.reports))
    with failing_as_store_error(), store.engine.connect() as db:
        days = Counter(
            {
                (key, day): int(n)
                for key, day, n in db.execute(by_day.group_by(shown.c.params, shown.c.day))
            }
        )
        sets = _sets(db, {key for key, _ in days})
        cohorts = {key: np.zeros(params.m, dtype=np.int64) for key, params in sets.items()}
        for key, j, n in db.execute(by_cohort.group_by(shown.c.params, cohort)):
            cohorts[key][j] = int(n)
        waiting = asked.waiting(db)
    enough = {key for key in cohorts if cohorts[key].sum() >= max(metric.min_reports, 1)}
    return Overview(
        days=_by_day(days, enough),
        withheld=_withheld(days, enough, waiting),
        cohorts=tuple(
            CohortReports(fingerprint=key, reports=cohorts[key]) for key in sorted(enough)
        ),
    )


def check_decodable(found: Release) -> None:
    """Raise DecodeError for counts of strings that an earlier hash made: candidates differ."""
    for counts in found.collections:
        if counts.params.layout == _EARLIER_HASH:
            raise DecodeError(
                f"the counts under {counts.params.fingerprint} come from an earlier hash of "
                "strings, which candidates cannot be compared with: choose days after them"
            )


_Days = Counter[tuple[str, datetime.date]]
"""(fingerprint, day) -> reports."""

_Period = tuple[datetime.date, datetime.date, int]
"""First and last day of a block of one cohort, and its reports."""


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


def _add_rows(store: Store, asked: BlockQuery, stretches: _Stretches) -> None:
    """Add what may be shown, and the days not yet released, each to its stretch of days."""
    sets: dict[str, Params] = {}
    with failing_as_store_error(), store.engine.connect() as db:
        for day in asked.waiting(db):
            stretches.of(day).waiting.add(day)
        for key, cohort, first, day, number, data in db.execute(select(asked.shown())):
            if key not in sets:
                sets |= _sets(db, {key})
            stretches.of(day).add(key, sets[key], cohort, (first, day, number), bytes(data))


@dataclass(slots=True)
class _Sums:
    """What may be shown of one stretch of days, by fingerprint, while it is added up."""

    days: _Days = field(default_factory=Counter)
    waiting: set[datetime.date] = field(default_factory=set)
    sets: dict[str, Params] = field(default_factory=dict)
    reports: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    ones: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    periods: dict[str, defaultdict[int, list[_Period]]] = field(default_factory=dict)

    def add(self, key: str, params: Params, cohort: int, period: _Period, data: bytes) -> None:
        """Add a block of a cohort."""
        if key not in self.sets:
            self.sets[key] = params
            self.reports[key] = np.zeros(params.m, dtype=np.int64)
            self.ones[key] = np.zeros((params.m, params.k), dtype=np.int64)
            self.periods[key] = defaultdict(list)
        _, day, number = period
        self.days[key, day] += number
        self.reports[key][cohort] += number
        self.ones[key][cohort] += Tally.from_bytes(number, data).ones
        self.periods[key][cohort].append(period)

    def take(self, other: _Sums, keys: Iterable[str]) -> None:
        """Add what another one has of some parameter sets, and its days not yet released."""
        self.waiting |= other.waiting
        for key in keys:
            if key not in self.sets:
                params = self.sets[key] = other.sets[key]
                self.reports[key] = np.zeros(params.m, dtype=np.int64)
                self.ones[key] = np.zeros((params.m, params.k), dtype=np.int64)
                self.periods[key] = defaultdict(list)
            self.reports[key] += other.reports[key]
            self.ones[key] += other.ones[key]
            for cohort, periods in other.periods[key].items():
                self.periods[key][cohort] += periods
                for _, day, number in periods:
                    self.days[key, day] += number

    def n_reports(self, key: str) -> int:
        """Return how many reports there are of a parameter set."""
        return int(self.reports[key].sum()) if key in self.reports else 0

    def counts_of(self, metric: Metric, key: str) -> Counts:
        """Return the counts of a parameter set."""
        return self._counts(metric, self.sets[key], [key])

    def release(
        self, metric: Metric, first: datetime.date, last: datetime.date, *, segments: bool
    ) -> Release:
        """Return what holds as many reports as the metric wants: each segment, or all as one sum.

        A segment of fewer reports is in no sum, so that none of them can be subtracted out.
        """
        sums = {key: self._counts(metric, self.sets[key], [key]) for key in sorted(self.sets)}
        enough = [key for key in sums if sums[key].n_reports >= max(metric.min_reports, 1)]
        collections = [sums[key] for key in enough]
        if not segments and any(self.sets[key].segment for key in enough):
            together = self._unsegmented(enough)
            collections = [self._counts(metric, params, keys) for params, keys in together]
        return Release(
            metric=metric.name,
            first=first,
            last=last,
            collections=tuple(collections),
            days=_by_day(self.days, set(enough)),
            withheld=_withheld(self.days, set(enough), self.waiting),
        )

    def _unsegmented(self, keys: Iterable[str]) -> list[tuple[Params, list[str]]]:
        """Put the parameter sets together that differ in their segment only."""
        found: dict[str, tuple[Params, list[str]]] = {}
        for key in keys:
            params = self.sets[key].unsegmented
            found.setdefault(params.fingerprint, (params, []))[1].append(key)
        return [found[fingerprint] for fingerprint in sorted(found)]

    def _counts(self, metric: Metric, params: Params, keys: list[str]) -> Counts:
        """Return the sum of some sets under these parameters; StoreError if it is impossible.

        A device has one cohort in all segments.
        """
        periods: defaultdict[int, list[_Period]] = defaultdict(list)
        for key in keys:
            for cohort, some in self.periods[key].items():
                periods[cohort] += some
        squares = _squares(metric.pace, periods.values())
        ones = np.sum([self.ones[key] for key in keys], axis=0)
        reports = np.sum([self.reports[key] for key in keys], axis=0)
        try:
            return Counts(params, ones, reports, metric.name, squares)
        except ReportError as error:
            raise StoreError(
                f"the database has impossible counts of {metric.name}: {error}", retryable=False
            ) from None


class _Stretches:
    """The sums of each stretch of days, at most `most`; ParamsError for one more."""

    def __init__(self, days_of: Callable[[datetime.date], Days], *, most: int) -> None:
        self.sums: dict[Days, _Sums] = {}
        self._days_of = days_of
        self._most = most

    def of(self, day: datetime.date) -> _Sums:
        """Return the sums of the stretch that a day is in."""
        days = self._days_of(day)
        if days not in self.sums:
            if len(self.sums) == self._most:
                raise ParamsError(
                    f"by must give at most {self._most} days, weeks or months: ask for fewer"
                )
            self.sums[days] = _Sums()
        return self.sums[days]


def _squares(pace: str, cohorts: Iterable[list[_Period]]) -> int | None:
    """Return the most that the sum of squares can be; a device is in one cohort."""
    if pace == "none":
        return None
    return sum(squares_by_pace(pace, periods) or 0 for periods in cohorts)


def _sets(db: Connection, fingerprints: Set[str]) -> dict[str, Params]:
    """Return parameter sets by their fingerprints."""
    columns = schema.params.c
    query = select(columns.fingerprint, columns.document).where(
        columns.fingerprint.in_(fingerprints)
    )
    return {key: Params.from_json(document) for key, document in db.execute(query)}
