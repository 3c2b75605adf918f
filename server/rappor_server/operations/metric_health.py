"""Health of each metric: released reports, refusals, days not yet released, expiry, a state.

Nothing here changes when a report is accepted. The numbers are those of release windows, and the
days not yet released are ended days (`releases.read_withheld_days`). A number of today's reports,
even rounded, would show a person who reads it again and again when a report of a rare metric comes.
Operators see the arrivals in Prometheus.

The state is the first of these that applies: a metric with several problems shows the most severe.

    expired      The metric has expired. Devices report nothing.
    suspicious   A cohort has more reports than honest devices send.
    sparse       More reports of the last week were set aside than released, or many ended days are
                 not yet released. The cohorts have too few devices.
    waiting      No report has been released yet.
    silent       No report of the last week is released or waits for its release.
    refusing     Many reports of the last week were refused.
    expiring     The metric expires soon.
    collecting normally
                 None of these.
"""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sqlalchemy import Engine

from rappor.base.sentence_numbers import format_count
from rappor.counts.installations import Installations
from rappor.registry.metric import Metric
from rappor_server.queries.worker import ReportStep
from rappor_server.releases import warning_signs
from rappor_server.releases.installations import read_installations
from rappor_server.releases.overviews import Overview, read_overviews
from rappor_server.releases.releases import DayReports
from rappor_server.releases.warning_signs import OverfullCohort
from rappor_server.storage.blocks import SET_ASIDE

WEEK: Final = datetime.timedelta(days=7)
_DAY: Final = datetime.timedelta(days=1)
_DAYS_LISTED: Final = 31
"""Largest number of withheld days that the health page lists, the last ones. A larger value makes
the page longer."""
_MAX_REFUSED_SHARE: Final = 0.05
"""Largest ratio of refused to released reports in a week of a metric that is collecting normally. A
larger value hides more lost reports, a smaller one reports a few devices with wrong parameters."""
_MAX_WITHHELD_DAYS: Final = 7
"""Largest number of ended days without a release of a metric that is collecting normally. A
metric with weekly reports always has some days that wait for the end of the week. A larger value
reports later that the cohorts of a metric have too few devices."""
_SOON_DAYS: Final = 30
"""Number of days before the expiry of a metric at which its state becomes `expiring`. It is a
convention: an update of an application reaches most devices within a month. A larger value warns
earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalCount:
    """Number of reports or uploads refused for one reason, today and in the last seven days."""

    reason: str
    today: int
    week: int


class State(NamedTuple):
    """State of a metric: its name, and a phrase that explains it."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricHealth:
    """Health of one metric. All days are UTC.

    Attributes
    ----------
    metric : the metric
    released : number of released reports
    days : reports of the last days on which windows are dated
    n_days : number of all such days
    withheld : last days that are not yet released
    days_left : days until the metric expires; negative if it has expired
    refused : refusals, the most frequent reason first
    overfull_cohorts : cohorts with more reports than honest devices send
    """

    metric: Metric
    released: int
    days: tuple[DayReports, ...]
    n_days: int
    withheld: tuple[datetime.date, ...]
    days_left: int
    refused: tuple[RefusalCount, ...]
    overfull_cohorts: tuple[OverfullCohort, ...]

    @property
    def refused_week(self) -> int:
        """Number of reports refused in the last seven days, without reports that were set aside."""
        return sum(count.week for count in self.refused if count.reason != SET_ASIDE)

    @property
    def set_aside_week(self) -> int:
        """Number of reports set aside in the last seven days: no block could contain them."""
        return sum(count.week for count in self.refused if count.reason == SET_ASIDE)

    @property
    def released_week(self) -> int:
        """Number of reports in windows that are dated in the seven days before today."""
        return sum(day.reports for day in self.days if day.day >= self._today - WEEK)

    @property
    def state(self) -> State:  # noqa: PLR0911 - one return for each state
        """State of the metric. The description of the module lists all states."""
        if self.days_left < 0:
            return State("expired", f"on {self.metric.expires}; new reports are refused")
        if self.overfull_cohorts:
            cohorts = format_count(len(self.overfull_cohorts), "cohort")
            return State("suspicious", f"{cohorts} with more reports than honest devices send")
        if self.set_aside_week > self.released_week:
            reports = f"{format_count(self.set_aside_week, 'report')} in 7 days"
            return State("sparse", f"{reports}, of cohorts with too few devices, are not shown")
        if not self.days:
            needed = max(self.metric.min_reports, 1)
            return State(
                "waiting", f"for {format_count(needed, 'report')} from days that have ended"
            )
        if len(self.withheld) > _MAX_WITHHELD_DAYS:
            days = f"{format_count(len(self.withheld), 'past day')} not yet released"
            return State("sparse", f"{days}: cohorts or parameter sets have too few reports")
        if not self.released_week and not self.withheld:
            return State("silent", f"no reports since {self.days[-1].day}")
        if self.refused_week > _MAX_REFUSED_SHARE * self.released_week:
            reason = next(count.reason for count in self.refused if count.reason != SET_ASIDE)
            reports = format_count(self.refused_week, "report")
            return State("refusing", f"{reports} in 7 days, most: {reason}")
        if self.days_left < _SOON_DAYS:
            return State("expiring", f"in {format_count(self.days_left, 'day')}")
        return State(
            "collecting normally", f"{format_count(self.released_week, 'report')} in 7 days"
        )

    @property
    def _today(self) -> datetime.date:
        return self.metric.expires - datetime.timedelta(days=self.days_left)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """Health of some metrics, and refusals that belong to no metric.

    Attributes
    ----------
    metrics : health of each metric
    nameless : refusals of whole uploads, and of reports whose metric the registry lacks
    installations : number of devices that reported; None if no readable metric is counted
    """

    metrics: tuple[MetricHealth, ...]
    nameless: tuple[RefusalCount, ...]
    installations: Installations | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthTask:
    """Task of a worker process that computes the health of some metrics on a day (UTC).

    `counting_metric` is the metric whose reports are counted as active installations, or None.
    """

    metrics: Sequence[Metric]
    today: datetime.date
    counting_metric: Metric | None = None

    def run(self, engine: Engine, report_step: ReportStep) -> HealthReport:
        """Return the health of each metric."""
        report_step("reading")
        refused = _count_refusals(engine, self.today)
        installations = None
        if self.counting_metric is not None:
            installations = read_installations(engine, self.counting_metric, self.today - _DAY)
        return HealthReport(
            metrics=tuple(
                _read_health(metric, overview, self.today, refused[metric.name])
                for metric, overview in zip(
                    self.metrics, read_overviews(engine, self.metrics), strict=True
                )
            ),
            nameless=refused[""],
            installations=installations,
        )


def _read_health(
    metric: Metric,
    overview: Overview,
    today: datetime.date,
    refused: tuple[RefusalCount, ...],
) -> MetricHealth:
    """Return the health of one metric."""
    return MetricHealth(
        metric=metric,
        released=overview.reports,
        days=overview.days,
        n_days=overview.n_days,
        withheld=overview.withheld[-_DAYS_LISTED:],
        days_left=(metric.expires - today).days,
        refused=refused,
        overfull_cohorts=warning_signs.find_overfull_cohorts(overview.cohorts),
    )


def _count_refusals(
    engine: Engine, today: datetime.date
) -> defaultdict[str, tuple[RefusalCount, ...]]:
    """Return the refusals by metric, the most frequent reason of the week first."""
    week_counts: Counter[tuple[str, str]] = Counter()
    today_counts: Counter[tuple[str, str]] = Counter()
    for row in warning_signs.read_refusals(engine, since=today - WEEK + _DAY):
        week_counts[row.metric, row.reason] += row.number
        if row.day == today:
            today_counts[row.metric, row.reason] += row.number
    refused: defaultdict[str, tuple[RefusalCount, ...]] = defaultdict(tuple)
    for key in sorted(week_counts, key=lambda key: (-week_counts[key], key)):
        metric, reason = key
        count = RefusalCount(reason=reason, today=today_counts[key], week=week_counts[key])
        refused[metric] += (count,)
    return refused
