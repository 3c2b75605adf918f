"""Signs that something is wrong with the reports of a metric, and numbers of reports.

- Refused reports: devices with another registry, or forged uploads.
- Overfull cohorts: forged uploads may name the same cohort again and again.
- Small blocks: blocks that were closed under a smaller `min_cohort` than the present one.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from sqlalchemy import Engine, func, select

from rappor.registry.metric import Metric
from rappor_server.releases.releases import CohortReports, read_params
from rappor_server.storage import schema
from rappor_server.storage.blocks import Rule
from rappor_server.storage.database import translate_errors

_FALSE_ALARM: Final = 1e-9
"""Largest probability that a cohort of a metric exceeds its bound although all devices are honest.
A larger value detects smaller floods, and has more false alarms."""


@dataclass(frozen=True, slots=True)
class Refusals:
    """Number of reports or uploads that were refused on a day for one reason.

    `metric` is empty if the report named no metric of the registry, or if a whole upload was
    refused.
    """

    day: datetime.date
    metric: str
    reason: str
    number: int


@dataclass(frozen=True, slots=True)
class OverfullCohort:
    """A cohort with more reports than honest devices send."""

    fingerprint: str
    cohort: int
    reports: int


def read_refusals(engine: Engine, *, since: datetime.date = datetime.date.min) -> list[Refusals]:
    """Return the refusals since a day, by day, metric and reason."""
    columns = schema.refusal.c
    keys = (columns.day, columns.metric, columns.reason)
    query = select(*keys, func.sum(columns.number)).where(columns.day >= since)
    query = query.group_by(*keys).order_by(*keys)
    with translate_errors(), engine.connect() as db:
        return [
            Refusals(day, metric, reason, int(number))
            for day, metric, reason, number in db.execute(query)
        ]


def count_arrived(engine: Engine, metric: str, day: datetime.date | None = None) -> int:
    """Return the number of reports of a metric in counters that no block contains yet.

    With `day`, only the reports of that day are counted.
    """
    columns = schema.tally.c
    query = select(func.coalesce(func.sum(columns.reports), 0)).where(columns.metric == metric)
    if day is not None:
        query = query.where(columns.day == day)
    with translate_errors(), engine.connect() as db:
        return int(db.execute(query).scalar_one())


def count_in_small_blocks(engine: Engine, metric: Metric) -> int:
    """Return the number of released reports in blocks below the metric's present minimum.

    Such a block was closed while `min_cohort` was smaller. In such a block, one device may have
    sent more than 1 / min_cohort of the reports.
    """
    columns = schema.block.c
    kinds = (columns.params, columns.first, columns.last)
    is_released = (columns.metric == metric.name, columns.closed)
    # Blocks of the same days need the same number of reports. The smallest block of the days says
    # whether any is too small; only then are the blocks of these days looked at one by one.
    smallest = select(*kinds, func.min(columns.reports)).where(*is_released).group_by(*kinds)
    n_reports = 0
    with translate_errors(), engine.connect() as db:
        rows = db.execute(smallest).all()
        sets = read_params(db, {row.params for row in rows})
        for fingerprint, first, last, reports in rows:
            params = sets[fingerprint]
            rule = Rule(pace=params.pace, epoch=params.epoch, min_cohort=metric.min_cohort)
            required = rule.required_reports(first, last)
            if reports < required:
                is_small = (*is_released, columns.params == fingerprint, columns.reports < required)
                query = select(func.sum(columns.reports)).where(
                    *is_small, columns.first == first, columns.last == last
                )
                n_reports += db.execute(query).scalar_one()
    return n_reports


def count_released(engine: Engine, metric: str) -> tuple[int, int]:
    """Return the number of closed blocks and the number of their reports.

    Neither number ever decreases, because closed blocks never change.
    """
    columns = schema.block.c
    query = select(func.count(), func.coalesce(func.sum(columns.reports), 0))
    with translate_errors(), engine.connect() as db:
        row = db.execute(query.where(columns.metric == metric, columns.closed)).one()
    return int(row[0]), int(row[1])


def find_overfull_cohorts(sets: Iterable[CohortReports]) -> tuple[OverfullCohort, ...]:
    """Return the cohorts whose number of reports exceeds a bound for honest devices.

    Honest devices choose cohorts uniformly, so a cohort of n reports in m cohorts has mean n / m.
    By Hoeffding's inequality and a union bound over the m cohorts, any cohort exceeds
    n / m + sqrt(n log(m / alpha) / 2) with probability alpha at most.
    """
    overfull: list[OverfullCohort] = []
    for cohorts in sets:
        n, m = int(cohorts.reports.sum()), len(cohorts.reports)
        margin = np.sqrt(n * np.log(m / _FALSE_ALARM) / 2)
        over = np.flatnonzero(cohorts.reports > n / m + margin)  # none if m = 1
        overfull += [
            OverfullCohort(cohorts.fingerprint, int(j), int(cohorts.reports[j])) for j in over
        ]
    return tuple(overfull)
