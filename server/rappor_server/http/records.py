"""What is answered to analysts as JSON, beside counts and estimates."""

from __future__ import annotations

import datetime

import msgspec

from rappor_server.analysis.releases import DayReports
from rappor_server.analysis.warning_signs import OverfullCohort, Refusals


class MetricAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What there is of one metric: its entry in the registry, released days, warning signs.

    `small_blocks` are released reports of blocks that were closed under an earlier, weaker rule.
    """

    name: str
    description: str
    owner: str
    expires: datetime.date
    fingerprints: tuple[str, ...]
    min_reports: int
    min_cohort: int
    days: tuple[DayReports, ...]
    withheld: tuple[datetime.date, ...]
    quarantine: int
    small_blocks: int
    overfull_cohorts: tuple[OverfullCohort, ...]


class MetricsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /v1/metrics."""

    metrics: list[MetricAnswer]
    refusals: list[Refusals]


class AnalysisAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /v1/analyses/ID; `detail` says why an analysis has failed."""

    id: str
    metric: str
    state: str
    step: str
    seconds: float
    result: str
    detail: str


class RootAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /: what this is, and where its description is."""

    service: str
    description: str
    registry: str
