"""Signs that something is wrong with what arrives: refusals, overfull cohorts."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from sqlalchemy import Engine, func, select

from rappor.registry.metric import Metric
from rappor_server.releases.releases import CohortReports
from rappor_server.storage import schema
from rappor_server.storage.blocks import Rule
from rappor_server.storage.database import translate_errors

_FALSE_ALARM: Final = 1e-9
"""Probability that honest devices, whose cohorts are random, overfill any cohort."""


@dataclass(frozen=True, slots=True)
class Refusals:
    """How many reports or uploads were refused on a day for one reason.

    `metric` is empty where the report names none of the registry, or the whole upload was refused.
    """

    day: datetime.date
    metric: str
    reason: str
    number: int


@dataclass(frozen=True, slots=True)
class OverfullCohort:
    """A cohort with more reports than honest devices send it."""

    fingerprint: str
    cohort: int
    reports: int


def refusals(engine: Engine, *, since: datetime.date = datetime.date.min) -> list[Refusals]:
    """Return how much was refused from a day on, by day, metric and reason."""
    columns = schema.refusal.c
    keys = (columns.day, columns.metric, columns.reason)
    query = select(*keys, func.sum(columns.number)).where(columns.day >= since)
    query = query.group_by(*keys).order_by(*keys)
    with translate_errors(), engine.connect() as db:
        return [
            Refusals(day, metric, reason, int(number))
            for day, metric, reason, number in db.execute(query)
        ]


def n_arrived(engine: Engine, metric: str, day: datetime.date | None = None) -> int:
    """Return how many reports of a metric, on a day or all, are counted and in no block yet."""
    columns = schema.tally.c
    query = select(func.coalesce(func.sum(columns.reports), 0)).where(columns.metric == metric)
    if day is not None:
        query = query.where(columns.day == day)
    with translate_errors(), engine.connect() as db:
        return int(db.execute(query).scalar_one())


def n_of_small_blocks(engine: Engine, metric: Metric) -> int:
    """Return how many released reports are in blocks that are smaller than the metric's rule.

    They were closed under an earlier rule: one that counted no intervals, or another `min_cohort`
    or interval. A device may be more than one in `min_cohort` of such a block.
    """
    columns, rule = schema.block.c, Rule.of(metric)
    days, own = (columns.first, columns.last), (columns.metric == metric.name, columns.closed)
    smallest = select(*days, func.min(columns.reports)).where(*own).group_by(*days)
    with translate_errors(), engine.connect() as db:
        return sum(
            db.execute(
                select(func.sum(columns.reports)).where(
                    *own,
                    columns.first == first,
                    columns.last == last,
                    columns.reports < rule.least(first, last),
                )
            ).scalar_one()
            for first, last, reports in db.execute(smallest).all()
            if reports < rule.least(first, last)
        )


def n_released(engine: Engine, metric: str) -> tuple[int, int]:
    """Return the numbers of closed blocks and of their reports: closed blocks only become more."""
    columns = schema.block.c
    query = select(func.count(), func.coalesce(func.sum(columns.reports), 0))
    with translate_errors(), engine.connect() as db:
        row = db.execute(query.where(columns.metric == metric, columns.closed)).one()
    return int(row[0]), int(row[1])


def overfull_cohorts(sets: Iterable[CohortReports]) -> tuple[OverfullCohort, ...]:
    """Return the cohorts above a bound that honest devices keep, by Hoeffding's inequality."""
    found: list[OverfullCohort] = []
    for each in sets:
        n, m = int(each.reports.sum()), len(each.reports)
        margin = np.sqrt(n * np.log(m / _FALSE_ALARM) / 2)
        over = np.flatnonzero(each.reports > n / m + margin)  # none where m = 1
        found += [OverfullCohort(each.fingerprint, int(j), int(each.reports[j])) for j in over]
    return tuple(found)
