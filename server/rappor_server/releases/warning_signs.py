"""Signs that something is wrong with the reports of a metric, and numbers of reports.

`operations.metric_health` shows them to the operator. The signs are:

- Refused reports: devices with another registry, or forged uploads.
- Overfull cohorts: forged uploads may name the same cohort again and again.
- Small blocks: released blocks with fewer reports than the present `min_cohort` requires. They were
  closed while `min_cohort` was smaller. A block is a sum of the reports of one cohort, which
  protects each report by its size (`storage.blocks`).
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from sqlalchemy import Engine, exists, func, select

from rappor.registry.metric import Metric
from rappor_server.releases.overviews import CohortReports
from rappor_server.storage import schema
from rappor_server.storage.database import read_snapshot, translate_errors

_FALSE_ALARM: Final = 1e-9
"""Largest probability that a cohort of a parameter set exceeds its bound although all devices are
honest. A larger value detects smaller floods, and has more false alarms."""


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
class RefusalTotal:
    """Number of reports or uploads that were refused on all days for one reason.

    `metric` is empty in the cases of `Refusals`.
    """

    metric: str
    reason: str
    number: int


@dataclass(frozen=True, slots=True)
class OverfullCohort:
    """A cohort with more reports than honest devices send.

    Attributes
    ----------
    fingerprint : parameter set of the reports
    cohort : the cohort, from 0
    reports : number of its released reports
    """

    fingerprint: str
    cohort: int
    reports: int


def read_refusals(engine: Engine, *, since: datetime.date = datetime.date.min) -> list[Refusals]:
    """Return the refusals since a day, ordered by day, metric and reason."""
    columns = schema.refusal.c
    keys = (columns.day, columns.metric, columns.reason)
    query = select(*keys, func.sum(columns.number)).where(columns.day >= since)
    query = query.group_by(*keys).order_by(*keys)
    with translate_errors(), engine.connect() as db:
        return [
            Refusals(day, metric, reason, int(number))
            for day, metric, reason, number in db.execute(query)
        ]


def sum_refusals(engine: Engine) -> list[RefusalTotal]:
    """Return the refusals of all days, ordered by metric and reason."""
    columns = schema.refusal.c
    keys = (columns.metric, columns.reason)
    query = select(*keys, func.sum(columns.number)).group_by(*keys).order_by(*keys)
    with translate_errors(), engine.connect() as db:
        return [
            RefusalTotal(metric, reason, int(number))
            for metric, reason, number in db.execute(query)
        ]


def count_in_small_blocks(engine: Engine, metrics: Iterable[Metric]) -> Counter[str]:
    """Return the number of released reports in blocks below the present `min_cohort`, by metric.

    Such a block was closed while `min_cohort` was smaller. One device may have sent more than one
    in `min_cohort` of its reports.
    """
    block, total, window = schema.block.c, schema.block_total.c, schema.release_window.c
    is_in_window = exists().where(
        window.metric == total.metric,
        window.params == total.params,
        total.last.between(window.first, window.last),
    )
    min_cohorts = {metric.name: metric.min_cohort for metric in metrics}
    # A row of `block_total` has the size of the smallest block among all cohorts with the same
    # days. Only if it is too small are these blocks read, because a year has thousands of blocks.
    # The statement has the largest `min_cohort` of all metrics, so it also returns rows of metrics
    # with a smaller `min_cohort`, which the loop leaves out.
    days_with_small_blocks = select(
        total.metric, total.params, total.last, total.first, total.intervals, total.smallest
    ).where(
        total.metric.in_(min_cohorts),
        total.smallest < max(min_cohorts.values(), default=0) * total.intervals,
        is_in_window,
    )
    n_reports: Counter[str] = Counter()
    with read_snapshot(engine) as db:
        for row in db.execute(days_with_small_blocks).all():
            name, fingerprint, last, first, intervals, smallest = row
            needed = min_cohorts[name] * intervals
            if smallest >= needed:
                continue
            query = select(func.sum(block.reports)).where(
                block.metric == name,
                block.closed,
                block.params == fingerprint,
                block.last == last,
                block.first == first,
                block.reports < needed,
            )
            n_reports[name] += int(db.execute(query).scalar_one())
    return n_reports


def count_released(engine: Engine, metric: str) -> tuple[int, int]:
    """Return the number of release windows and the number of their reports.

    Neither number decreases, unless windows are deleted (`forget`), because windows never change.
    """
    columns = schema.release_window.c
    query = select(func.count(), func.coalesce(func.sum(columns.reports), 0))
    with translate_errors(), engine.connect() as db:
        row = db.execute(query.where(columns.metric == metric)).one()
    return int(row[0]), int(row[1])


def find_overfull_cohorts(sets: Iterable[CohortReports]) -> tuple[OverfullCohort, ...]:
    """Return the cohorts whose number of reports exceeds a bound for honest devices.

    Let n be the number of reports, m the number of cohorts, and alpha = `_FALSE_ALARM`. Assumption:
    in each epoch, an honest device d chooses its cohort uniformly and independently, and sends at
    most r reports (`CohortReports.max_of_device`), all of this cohort. So the number of reports of
    a cohort is the sum of n_d for the devices that have chosen it, where n = sum n_d and n_d <= r.
    It has mean n / m. By Hoeffding's inequality for these terms, which have the ranges [0, n_d], it
    exceeds the mean by t with a probability of at most exp(-2 t^2 / sum n_d^2). The sum of n_d^2 is
    at most r n. So the number of reports of a cohort exceeds

        n / m + sqrt(r n log(m / alpha) / 2)

    with probability alpha / m at most. By the union bound, the probability that any of the m
    cohorts exceeds the bound is at most alpha.
    """
    overfull: list[OverfullCohort] = []
    for cohorts in sets:
        n, m = int(cohorts.reports.sum()), len(cohorts.reports)
        # Bad case: with r = 1 in this formula, a metric with 32 cohorts and a report on each day of
        # a quarter exceeded the bound in half of all quarters, although its devices were honest.
        margin = np.sqrt(cohorts.max_of_device * n * np.log(m / _FALSE_ALARM) / 2)
        over = np.flatnonzero(cohorts.reports > n / m + margin)  # none if m = 1
        overfull += [
            OverfullCohort(cohorts.fingerprint, int(j), int(cohorts.reports[j])) for j in over
        ]
    return tuple(overfull)
