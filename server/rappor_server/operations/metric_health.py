"""How metrics are: what arrives, what is refused, what looks wrong, and when they expire."""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sqlalchemy import Engine

from rappor.base.sentence_numbers import format_count
from rappor.registry.metric import Metric
from rappor_server.queries.worker import ReportStep
from rappor_server.releases import releases, warning_signs
from rappor_server.releases.releases import DayReports
from rappor_server.releases.warning_signs import OverfullCohort
from rappor_server.storage.blocks import SET_ASIDE

WEEK: Final = datetime.timedelta(days=7)
_DAY: Final = datetime.timedelta(days=1)
_DAYS_LISTED: Final = 31
_MANY_REFUSED: Final = 0.05
"""Part of the released reports that may be refused in a week before a metric is not good."""
_MOST_WAITING: Final = 7
"""Days that have ended and may wait for their release before a metric is not good."""
_SOON: Final = 30
"""Days before a metric expires from which on it says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """How many reports were refused for a reason, today and in the last seven days."""

    reason: str
    today: int
    week: int


class State(NamedTuple):
    """How a metric is: a word, and the reason."""

    word: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricHealth:
    """One metric as people look after it; days are UTC.

    `today` is the number of today's reports, rounded to two digits that count; None where there
    are fewer than the metric's minimum. `days` are the last ones on which blocks ended; `n_days`
    counts all of them. `days_left` is below 0 once the metric has expired.
    """

    metric: Metric
    today: int | None
    released: int
    days: tuple[DayReports, ...]
    n_days: int
    withheld: tuple[datetime.date, ...]
    days_left: int
    refused: tuple[Refused, ...]
    overfull_cohorts: tuple[OverfullCohort, ...]

    @property
    def refused_week(self) -> int:
        """Reports refused in the last seven days for any reason."""
        return sum(each.week for each in self.refused if each.reason != SET_ASIDE)

    @property
    def set_aside_week(self) -> int:
        """Reports set aside in the last seven days: their cohorts have too few devices."""
        return sum(each.week for each in self.refused if each.reason == SET_ASIDE)

    @property
    def week(self) -> int:
        """Released reports of blocks that ended in the seven days before today."""
        return sum(each.reports for each in self.days if each.day >= self._day - WEEK)

    @property
    def state(self) -> State:  # noqa: PLR0911 - one for each word
        """How the metric is, in a word, and why."""
        if self.days_left < 0:
            return State("expired", f"on {self.metric.expires}; new reports are refused")
        if self.overfull_cohorts:
            over = format_count(len(self.overfull_cohorts), "cohort")
            return State("suspicious", f"{over} with more reports than honest devices send")
        if self.set_aside_week > self.week:
            few = f"{format_count(self.set_aside_week, 'report')} in 7 days"
            return State("sparse", f"{few}, of cohorts with too few devices, are not shown")
        if not self.days:
            need = max(self.metric.min_reports, 1)
            return State("waiting", f"for {format_count(need, 'report')} from days that have ended")
        waiting = sum(day < self._day for day in self.withheld)
        if waiting > _MOST_WAITING:
            few = f"{format_count(waiting, 'past day')} not yet released"
            return State("sparse", f"{few}: cohorts have too few reports")
        if not self.week and not self.today and not self.withheld:
            return State("silent", f"no reports since {self.days[-1].day}")
        if self.refused_week > _MANY_REFUSED * self.week:
            n = self.refused_week
            reason = next(each.reason for each in self.refused if each.reason != SET_ASIDE)
            return State("refusing", f"{format_count(n, 'report')} in 7 days, most: {reason}")
        if self.days_left < _SOON:
            return State("expiring", f"in {format_count(self.days_left, 'day')}")
        return State("good", f"{format_count(self.week, 'report')} in 7 days")

    @property
    def _day(self) -> datetime.date:
        return self.metric.expires - datetime.timedelta(days=self.days_left)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """Some metrics, and what was refused that names none: whole uploads, unknown metrics."""

    metrics: tuple[MetricHealth, ...]
    nameless: tuple[Refused, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthTask:
    """How some metrics are today."""

    metrics: Sequence[Metric]
    today: datetime.date

    def run(self, engine: Engine, report_step: ReportStep) -> HealthReport:
        """Look at each metric."""
        report_step("reading")
        refused = _refused(engine, self.today)
        return HealthReport(
            metrics=tuple(
                _health(engine, metric, self.today, refused[metric.name]) for metric in self.metrics
            ),
            nameless=refused[""],
        )


def _health(
    engine: Engine, metric: Metric, today: datetime.date, refused: tuple[Refused, ...]
) -> MetricHealth:
    seen = releases.overview(engine, metric)
    arrived = warning_signs.n_arrived(engine, metric.name, today)
    return MetricHealth(
        metric=metric,
        today=None if arrived < metric.min_reports else _rounded(arrived),
        released=sum(day.reports for day in seen.days),
        days=seen.days[-_DAYS_LISTED:],
        n_days=len(seen.days),
        withheld=seen.withheld[-_DAYS_LISTED:],
        days_left=(metric.expires - today).days,
        refused=refused,
        overfull_cohorts=warning_signs.overfull_cohorts(seen.cohorts),
    )


def _rounded(number: int) -> int:
    """Round down to two digits that count, so that no single report shows."""
    digits = f"{number}"
    return int(digits[:2].ljust(len(digits), "0"))


def _refused(engine: Engine, today: datetime.date) -> defaultdict[str, tuple[Refused, ...]]:
    """Return what was refused of each metric, the most frequent reasons first."""
    in_week: Counter[tuple[str, str]] = Counter()
    on_day: Counter[tuple[str, str]] = Counter()
    for each in warning_signs.refusals(engine, since=today - WEEK + _DAY):
        in_week[each.metric, each.reason] += each.number
        on_day[each.metric, each.reason] += each.number if each.day == today else 0
    refused: defaultdict[str, tuple[Refused, ...]] = defaultdict(tuple)
    for key in sorted(in_week, key=lambda each: (-in_week[each], each)):
        metric, reason = key
        refused[metric] += (Refused(reason=reason, today=on_day[key], week=in_week[key]),)
    return refused
