"""Signs that something is wrong with what arrives: refusals, quarantine, overfull cohorts."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Final

import numpy as np
from sqlalchemy import func, select

from rappor_server.analysis.releases import CohortReports
from rappor_server.storage import schema
from rappor_server.storage.database import failing_as_store_error
from rappor_server.storage.store import Store

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


def refusals(store: Store) -> list[Refusals]:
    """Return how much was refused, by day, metric and reason."""
    columns = schema.refusal.c
    keys = (columns.day, columns.metric, columns.reason)
    query = select(*keys, func.sum(columns.number)).group_by(*keys).order_by(*keys)
    with failing_as_store_error(), store.engine.connect() as db:
        return [
            Refusals(day, metric, reason, int(number))
            for day, metric, reason, number in db.execute(query)
        ]


def n_quarantined(store: Store, metric: str) -> int:
    """Return how many suspicious reports of a metric are in quarantine."""
    columns = schema.tally.c
    query = select(func.coalesce(func.sum(columns.reports), 0)).where(
        columns.metric == metric, columns.quarantine
    )
    with failing_as_store_error(), store.engine.connect() as db:
        return int(db.execute(query).scalar_one())


def overfull_cohorts(cohorts: CohortReports) -> list[OverfullCohort]:
    """Return the cohorts above a bound that honest devices keep, by Hoeffding's inequality."""
    reports = cohorts.reports
    n, m = int(reports.sum()), len(reports)
    margin = np.sqrt(n * np.log(m / _FALSE_ALARM) / 2)
    over = np.flatnonzero(reports > n / m + margin)  # none where m = 1
    return [OverfullCohort(cohorts.fingerprint, int(j), int(reports[j])) for j in over]
