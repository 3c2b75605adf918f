"""What analysts may read: sums of whole blocks, never of fewer reports than a metric's minima.

A block is some whole days of one cohort that hold at least `min_cohort` reports. Blocks never
change but by a restored backup, and every range is a sum of whole blocks. So two ranges, or one
range at two times, never differ by a report, and a sum of one, which is a report, is never shown. A
metric without a minimum shows whatever has come.
"""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Iterable, Set
from dataclasses import dataclass
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

from rappor.counts.counts import Counts
from rappor.counts.devices import squares_by_interval
from rappor.errors import DecodeError, ReportError
from rappor.protocol.params import Params
from rappor.registry.metric import Metric
from rappor_server.errors import StoreError
from rappor_server.storage import schema
from rappor_server.storage.database import failing_as_store_error
from rappor_server.storage.store import Store
from rappor_server.storage.tallies import Tally

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
class _Range:
    """A metric's days from first to last, both included, under one parameter set or all."""

    metric: Metric
    first: datetime.date
    last: datetime.date
    params: str | None = None

    def shown(self) -> Subquery:
        """Return what may be shown: closed blocks; without a minimum everything there is."""
        columns = schema.block.c
        blocks = select(
            *(columns.params, columns.cohort, columns.first, columns.last.label("day")),
            *(columns.reports, columns.ones),
        ).where(
            self._own(schema.block),
            columns.first >= self.first,
            columns.last <= self.last,
        )
        if self.metric.min_reports:
            return blocks.where(columns.closed).subquery("shown")
        tally = schema.tally.c
        counters = select(
            *(tally.params, tally.cohort, tally.day.label("first"), tally.day),
            *(tally.reports, tally.ones),
        )
        return union_all(blocks, counters.where(self._counted())).subquery("shown")

    def waiting(self, db: Connection) -> set[datetime.date]:
        """Return the days of reports that are in no block yet, or in one beyond the range."""
        if not self.metric.min_reports:
            return set()
        columns = schema.block.c
        beyond = or_(~columns.closed, columns.first < self.first, columns.last > self.last)
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
) -> Release:
    """Return what may be read of a metric on the days from first to last, both included.

    A fingerprint as `params` leaves the reports under that set only, and the days of these.
    """
    asked = _Range(metric, first, last, params)
    with failing_as_store_error(), store.engine.connect() as db:
        sums, days = _add_rows(db, asked)
        waiting = asked.waiting(db)
    enough = {key for key in sums if sums[key].n_reports >= max(metric.min_reports, 1)}
    return Release(
        metric=metric.name,
        first=first,
        last=last,
        collections=tuple(sums[key] for key in sorted(enough)),
        days=_by_day(days, enough),
        withheld=_withheld(days, enough, waiting),
    )


def overview(store: Store, metric: Metric) -> Overview:
    """Return how many reports of a metric may be read, by day and by cohort."""
    asked = _Range(metric, datetime.date.min, datetime.date.max)
    shown = asked.shown()
    by_day = select(shown.c.params, shown.c.day, func.sum(shown.c.reports))
    by_cohort = select(shown.c.params, shown.c.cohort, func.sum(shown.c.reports))
    with failing_as_store_error(), store.engine.connect() as db:
        days = Counter(
            {
                (key, day): int(n)
                for key, day, n in db.execute(by_day.group_by(shown.c.params, shown.c.day))
            }
        )
        sets = _sets(db, {key for key, _ in days})
        cohorts = {key: np.zeros(params.m, dtype=np.int64) for key, params in sets.items()}
        for key, cohort, n in db.execute(by_cohort.group_by(shown.c.params, shown.c.cohort)):
            cohorts[key][cohort] = int(n)
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


def _add_rows(db: Connection, asked: _Range) -> tuple[dict[str, Counts], _Days]:
    """Add what may be shown, by parameter set, and its reports by day."""
    shown = asked.shown()
    days: _Days = Counter()
    reports: dict[str, NDArray[np.int64]] = {}
    ones: dict[str, NDArray[np.int64]] = {}
    sets: dict[str, Params] = {}
    periods: defaultdict[str, defaultdict[int, list[_Period]]]
    periods = defaultdict(lambda: defaultdict(list))
    for key, cohort, first, day, number, data in db.execute(select(shown)):
        if key not in sets:
            sets |= _sets(db, {key})
            reports[key] = np.zeros(sets[key].m, dtype=np.int64)
            ones[key] = np.zeros((sets[key].m, sets[key].k), dtype=np.int64)
        days[key, day] += number
        reports[key][cohort] += number
        ones[key][cohort] += Tally.from_bytes(number, bytes(data)).ones
        periods[key][cohort].append((first, day, number))
    counts = {
        key: _stored_counts(
            sets[key],
            ones[key],
            reports[key],
            asked.metric.name,
            squares=_squares(asked.metric.interval, periods[key].values()),
        )
        for key in sets
    }
    return counts, days


def _squares(interval: str, cohorts: Iterable[list[_Period]]) -> int | None:
    """Return the most that the sum of squares can be; a device is in one cohort."""
    if interval == "none":
        return None
    return sum(squares_by_interval(interval, periods) or 0 for periods in cohorts)


def _sets(db: Connection, fingerprints: Set[str]) -> dict[str, Params]:
    """Return parameter sets by their fingerprints."""
    columns = schema.params.c
    query = select(columns.fingerprint, columns.document).where(
        columns.fingerprint.in_(fingerprints)
    )
    return {key: Params.from_json(document) for key, document in db.execute(query)}


def _stored_counts(
    params: Params,
    ones: NDArray[np.int64],
    reports: NDArray[np.int64],
    metric: str,
    *,
    squares: int | None,
) -> Counts:
    """Return what the database holds as Counts; StoreError if that is impossible."""
    try:
        return Counts(params, ones, reports, metric, squares)
    except ReportError as error:
        raise StoreError(
            f"the database holds impossible counts of {metric}: {error}", retryable=False
        ) from None
