"""Overviews: numbers of released reports of metrics, without their sums of bits.

A *block* contains the reports of consecutive days of one metric, parameter set and cohort. The
collector closes a block when it has enough reports to protect each of them. A *release window* is a
group of closed blocks that are released together. The window is dated by the last day of its
blocks. (GLOSSARY.md has both terms.)

The list of metrics, their health and GET /v1/metrics show all metrics at each view. A year of a
metric has tens of thousands of closed blocks, so an overview reads no closed blocks. It reads three
tables of sums, which the collector updates when it closes blocks and forms windows:

| table | one row for each | the overview reads |
|---|---|---|
| `release_window` | metric, fingerprint and window | released reports of each date |
| `released_cohorts` | metric and fingerprint | released reports of each cohort |
| `block_total` | metric, fingerprint and days of closed blocks | days not yet released |

Reports that are in no closed block add their days to those not yet released (`read_withheld_days`).

Most statements read all metrics together. With several statements for each of 50 metrics, building
and sending the statements took longer than reading the rows.

A metric with `min_reports` = 0 is for trials: every report is released at once, and no windows are
formed. `_read_trial` adds up the blocks of the metric and its counters. A counter has the reports
of one day and cohort, which are in no block yet.
"""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine, and_, func, select

from rappor.counts.calendar_periods import list_intervals
from rappor.counts.squared_reports import count_max_reports
from rappor.protocol.params import Params
from rappor.registry.metric import Metric
from rappor_server.releases.releases import (
    DayReports,
    ReleaseQuery,
    read_params,
    read_withheld_days,
)
from rappor_server.storage import schema
from rappor_server.storage.database import read_snapshot
from rappor_server.storage.release_windows import COHORT_REPORTS

MAX_DAYS: Final = 31
"""Largest number of days of an overview, which has the last days. A larger value makes responses
longer: with all days of a year, the response about 50 metrics had 669 kB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortReports:
    """Numbers of released reports under one parameter set.

    Attributes
    ----------
    fingerprint : fingerprint of the parameter set
    reports : (m,) int64, number of reports of each cohort
    max_of_device : largest number of these reports that one device sent in one cohort
    """

    fingerprint: str
    reports: NDArray[np.int64]
    max_of_device: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Numbers of released reports of a metric.

    Attributes
    ----------
    reports : number of released reports of all days
    n_days : number of different days that are the last day of a window
    days : reports of the latest of these days, at most `MAX_DAYS`
    withheld : days with reports that are in no window yet
    cohorts : reports of the cohorts of each parameter set
    """

    reports: int
    n_days: int
    days: tuple[DayReports, ...]
    withheld: tuple[datetime.date, ...]
    cohorts: tuple[CohortReports, ...]


def read_overviews(engine: Engine, metrics: Collection[Metric]) -> list[Overview]:
    """Return the overview of each metric, in the order of the metrics."""
    names = [metric.name for metric in metrics if metric.min_reports]
    with read_snapshot(engine) as db:
        totals, cohorts = _read_totals(db, names), _read_cohorts(db, names)
        withheld = read_withheld_days(db, metrics)
        return [
            Overview(
                reports=totals[metric.name][0],
                n_days=totals[metric.name][1],
                days=_read_last_days(db, metric.name),
                withheld=tuple(sorted(withheld.get(metric.name, ()))),
                cohorts=tuple(cohorts[metric.name]),
            )
            if metric.min_reports
            else _read_trial(db, metric)
            for metric in metrics
        ]


def _read_totals(db: Connection, names: Collection[str]) -> dict[str, tuple[int, int]]:
    """Return the number of reports in windows, and of last days of windows, by metric."""
    window = schema.release_window.c
    query = (
        select(window.metric, func.sum(window.reports), func.count(window.last.distinct()))
        .where(window.metric.in_(names))
        .group_by(window.metric)
    )
    totals = dict.fromkeys(names, (0, 0))
    return totals | {name: (int(reports), n_days) for name, reports, n_days in db.execute(query)}


def _read_last_days(db: Connection, name: str) -> tuple[DayReports, ...]:
    """Return the released reports of a metric by the last day of their window.

    Only the latest `MAX_DAYS` of these days are included.
    """
    window = schema.release_window.c
    # A statement for each metric, because its limit lets SQLite sort 31 days only. A statement for
    # all metrics, which numbers the days of each, took eight times as many instructions.
    query = (
        select(window.last, func.sum(window.reports))
        .where(window.metric == name)
        .group_by(window.last)
        .order_by(window.last.desc())
        .limit(MAX_DAYS)
    )
    days = [DayReports(last, int(reports)) for last, reports in db.execute(query)]
    return tuple(reversed(days))


def _read_cohorts(db: Connection, names: Collection[str]) -> defaultdict[str, list[CohortReports]]:
    """Return the reports of the cohorts of each parameter set, by metric."""
    released, total = schema.released_cohorts.c, schema.block_total.c
    days = (
        select(
            total.metric,
            total.params,
            func.min(total.first).label("first"),
            func.max(total.last).label("last"),
        )
        .where(total.metric.in_(names))
        .group_by(total.metric, total.params)
        .subquery("days")
    )
    query = (
        select(released.metric, released.params, released.reports, days.c.first, days.c.last)
        .join(days, and_(days.c.metric == released.metric, days.c.params == released.params))
        .where(released.metric.in_(names))
        .order_by(released.params)
    )
    rows = db.execute(query).all()
    sets = read_params(db, {row.params for row in rows})
    cohorts: defaultdict[str, list[CohortReports]] = defaultdict(list)
    for name, fingerprint, stored, first, last in rows:
        params = sets[fingerprint]
        reports = np.frombuffer(bytes(stored), dtype=COHORT_REPORTS)
        # The row ends with the largest cohort that has a released block. The cohorts after it have
        # 0 reports.
        padded = np.zeros(params.m, dtype=np.int64)
        padded[: len(reports)] = reports
        cohorts[name].append(
            CohortReports(
                fingerprint=fingerprint,
                reports=padded,
                max_of_device=count_max_reports_in_cohort(params, first, last),
            )
        )
    return cohorts


def count_max_reports_in_cohort(params: Params, first: datetime.date, last: datetime.date) -> int:
    """Return the largest number of reports that one device sends in one cohort on some days.

    A device sends at most one report in each interval, and draws a new cohort in each epoch. So the
    number is at most the number of intervals of the days, and at most that of the longest epoch.
    Without the second limit, the number would grow from year to year.

    `params.pace` is the length of an interval: a day, a week, or the whole epoch.
    """
    n_intervals = count_max_reports(params.pace, params.epoch, first, last)
    if params.epoch == "life":
        return n_intervals
    # The pace "epoch" has one interval for each epoch, so these intervals are the epochs.
    epochs = list_intervals(pace=params.epoch, epoch=params.epoch, first=first, last=last)
    return min(
        n_intervals,
        max(count_max_reports(params.pace, params.epoch, *epoch) for epoch in epochs),
    )


def _read_trial(db: Connection, metric: Metric) -> Overview:
    """Return the overview of a metric with `min_reports` = 0, whose reports are all released."""
    query = ReleaseQuery(metric, datetime.date.min, datetime.date.max)
    columns = query.select_blocks_and_counters("reports").c
    keys = (columns.params, columns.cohort, columns.day)
    numbers = (func.min(columns.first), func.sum(columns.reports))
    rows = db.execute(select(*keys, *numbers).group_by(*keys)).all()
    sets = read_params(db, {row.params for row in rows})
    days: Counter[datetime.date] = Counter()
    cohorts = {key: np.zeros(sets[key].m, dtype=np.int64) for key in sorted(sets)}
    # First and last days of blocks and counters, by fingerprint. A block is dated by its last day,
    # so its column `day` is the last day. A counter has one day.
    block_ends: defaultdict[str, set[datetime.date]] = defaultdict(set)
    for fingerprint, cohort, last, first, reports in rows:
        days[last] += int(reports)
        cohorts[fingerprint][cohort] += int(reports)
        block_ends[fingerprint] |= {first, last}
    return Overview(
        reports=days.total(),
        n_days=len(days),
        days=tuple(DayReports(day, days[day]) for day in sorted(days)[-MAX_DAYS:]),
        withheld=(),
        cohorts=tuple(
            CohortReports(
                fingerprint=key,
                reports=reports,
                max_of_device=count_max_reports_in_cohort(
                    sets[key], min(block_ends[key]), max(block_ends[key])
                ),
            )
            for key, reports in cohorts.items()
        ),
    )
