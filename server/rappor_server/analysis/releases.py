"""What analysts may read: counts of whole days, never of fewer reports than a metric's minimum.

Under a minimum the released counts of a day advance in steps: what was released stays the answer
until as many reports again have come. So neither a small day, nor the difference between two
ranges, nor the difference between two answers for one day shows fewer reports than the minimum.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, select

from rappor.counts.counts import Counts
from rappor.errors import ReportError
from rappor.protocol.params import Params
from rappor.registry.metric import Metric
from rappor_server.errors import StoreError
from rappor_server.storage import schema
from rappor_server.storage.bulk import BulkInsert
from rappor_server.storage.database import failing_as_store_error, writing
from rappor_server.storage.store import Store
from rappor_server.storage.tallies import SUM, Tally

_RELEASES: Final = BulkInsert(schema.release, returning="metric")

_Key = tuple[datetime.date, str]
"""A day and a fingerprint."""


@dataclass(frozen=True, slots=True)
class DayCounts:
    """The counts of one day under one parameter set."""

    day: datetime.date
    counts: Counts


@dataclass(frozen=True, slots=True)
class DayReports:
    """How many reports of one day are released, under all parameter sets."""

    day: datetime.date
    reports: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What is released of a metric on the days from `first` to `last`, both included.

    `collections` has one Counts for each parameter set; `withheld` are days below the minimum.
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


def release(store: Store, metric: Metric, first: datetime.date, last: datetime.date) -> Release:
    """Return what may be read of a metric on the days from first to last, both included."""
    with failing_as_store_error(), store.engine.connect() as db:
        current = _current(db, metric.name, first, last)
        before = _released(db, metric.name, first, last) if metric.min_reports else {}
    if metric.min_reports:
        current = [_advance(store, metric, each, before) for each in current]
    enough = [each for each in current if each.counts.n_reports >= max(metric.min_reports, 1)]
    days = sorted({each.day for each in enough})
    return Release(
        metric=metric.name,
        first=first,
        last=last,
        collections=_sum_by_params(enough),
        days=tuple(DayReports(day, _n_reports_on(day, enough)) for day in days),
        withheld=tuple(sorted({each.day for each in current} - set(days))),
    )


def _n_reports_on(day: datetime.date, found: Iterable[DayCounts]) -> int:
    return sum(each.counts.n_reports for each in found if each.day == day)


def _sum_by_params(found: Iterable[DayCounts]) -> tuple[Counts, ...]:
    """Add the days of each parameter set, in the order of their fingerprints."""
    sets: dict[str, list[Counts]] = {}
    for each in found:
        sets.setdefault(each.counts.params.fingerprint, []).append(each.counts)
    return tuple(functools.reduce(operator.add, sets[key]) for key in sorted(sets))


def _current(
    db: Connection, metric: str, first: datetime.date, last: datetime.date
) -> list[DayCounts]:
    """Return all counts of the days, the shards added, reports in quarantine left out."""
    columns = schema.tally.c
    query = (
        select(columns.day, schema.params.c.document, columns.cohort, columns.reports, columns.ones)
        .join(schema.params, schema.params.c.fingerprint == columns.params)
        .where(
            columns.metric == metric,
            columns.day >= first,
            columns.day <= last,
            ~columns.quarantine,
        )
        .order_by(columns.day, columns.params)
    )
    groups = itertools.groupby(db.execute(query), key=operator.itemgetter(0, 1))
    return [
        DayCounts(day, _add_rows(rows, Params.from_json(document), metric))
        for (day, document), rows in groups
    ]


def _add_rows(rows: Iterable[Row[*tuple[Any, ...]]], params: Params, metric: str) -> Counts:
    """Add the rows of one day and parameter set, each of one cohort and shard."""
    ones = np.zeros((params.m, params.k), dtype=np.int64)
    reports = np.zeros(params.m, dtype=np.int64)
    for _, _, cohort, number, data in rows:
        tally = Tally.from_bytes(number, bytes(data))
        ones[cohort] += tally.ones
        reports[cohort] += tally.reports
    return _stored_counts(params, ones, reports, metric)


def _released(
    db: Connection, metric: str, first: datetime.date, last: datetime.date
) -> dict[_Key, Row[Any]]:
    """Return what was released of the days so far."""
    columns = schema.release.c
    query = select(schema.release).where(
        columns.metric == metric, columns.day >= first, columns.day <= last
    )
    return {(row.day, row.params): row for row in db.execute(query)}


def _advance(
    store: Store, metric: Metric, current: DayCounts, before: Mapping[_Key, Row[Any]]
) -> DayCounts:
    """Return what is released of a day, one step further if enough reports have come."""
    row = before.get((current.day, current.counts.params.fingerprint))
    if current.counts.n_reports - (row.total if row else 0) >= metric.min_reports:
        return _step(store, current, row)
    return _read(row, current) if row else current  # below the minimum: withheld


def _step(store: Store, current: DayCounts, row: Row[Any] | None) -> DayCounts:
    """Release a day's counts, unless another reader has taken this step: then return theirs.

    Two readers at once may have seen different counts. Only one of them may be answered, or
    their difference would be fewer reports than the minimum. The transaction begins with its
    write, so it waits for others instead of failing because of them.
    """
    columns = schema.release.c
    counts = current.counts
    key = (counts.metric, counts.params.fingerprint, current.day)
    here = [columns.metric == key[0], columns.params == key[1], columns.day == key[2]]
    values = {
        "total": counts.n_reports,
        "reports": counts.reports.astype(SUM).tobytes(),
        "ones": counts.ones.astype(SUM).tobytes(),
    }
    with writing(store.engine) as db:
        if row is None:
            won = bool(_RELEASES.run(db, [(*key, *values.values())]))
        else:
            same = columns.total == row.total
            update = schema.release.update().where(*here, same).values(values)
            won = bool(db.execute(update).rowcount)
        if won:
            return current
        return _read(db.execute(select(schema.release).where(*here)).one(), current)


def _read(row: Row[Any], current: DayCounts) -> DayCounts:
    """Return the counts that a row of releases holds."""
    params = current.counts.params
    ones = np.frombuffer(bytes(row.ones), dtype=SUM).reshape(params.m, params.k)
    reports = np.frombuffer(bytes(row.reports), dtype=SUM)
    return DayCounts(row.day, _stored_counts(params, ones, reports, current.counts.metric))


def _stored_counts(
    params: Params, ones: NDArray[np.int64], reports: NDArray[np.int64], metric: str
) -> Counts:
    """Return what the database holds as Counts; StoreError if that is impossible."""
    try:
        return Counts(params, ones, reports, metric)
    except ReportError as error:
        raise StoreError(
            f"the database holds impossible counts of {metric}: {error}", retryable=False
        ) from None
