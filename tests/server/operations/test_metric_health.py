"""Health and summaries of metrics: refusals, days not yet released, states."""

from __future__ import annotations

import dataclasses
import datetime

import numpy as np
from collectors import (
    ACCEPTED,
    PARAMS,
    TODAY,
    build_metric,
    build_report,
    build_upload,
    close_days,
    commit,
    day,
    store_and_merge,
    store_counts,
)
from databases import ON_BOTH_DATABASES
from rappor_server.operations.metric_health import (
    HealthReport,
    HealthTask,
    MetricHealth,
    RefusalCount,
)
from rappor_server.pages.rendering import format_days
from rappor_server.queries.counts import MetricsResponse, MetricsTask
from rappor_server.releases.warning_signs import RefusalTotal
from rappor_server.storage.blocks import SET_ASIDE
from sqlalchemy import Engine

from rappor import Counts

DAY = datetime.timedelta(days=1)


def read_health(engine: Engine, *names: str) -> HealthReport:
    """Return the health of metrics of the registry."""
    metrics = [ACCEPTED.registry[name] for name in names]
    return HealthTask(metrics=metrics, today=TODAY).run(engine, lambda _: None)


@ON_BOTH_DATABASES
def test_nothing_changes_when_a_report_comes(engine: Engine) -> None:
    """The health and the summary of a metric stay the same while reports of a day come.

    A person who reads them again and again must not learn when a device sends its report. The
    metric `small` releases five reports together, so the fifth report of the day could show, too.
    After the day has ended and its blocks were closed, all ten reports show at once.
    """
    small = ACCEPTED.registry["small"]

    def read_all() -> tuple[HealthReport, MetricsResponse]:
        summary = MetricsTask(metrics=[small], today=TODAY).run(engine, lambda _: None)
        return read_health(engine, "small"), summary

    before = read_all()
    for i in range(10):
        commit(engine, build_upload(build_report("small", cohort=i % 2)))
        assert read_all() == before
    close_days(engine, small, TODAY + DAY)
    health, summary = read_all()
    assert (health.metrics[0].released, summary.metrics[0].reports) == (10, 10)


def test_long_lists_of_days_are_cut(engine: Engine) -> None:
    """The summary of metrics lists the last 31 days, and has the numbers of all days.

    On each of 40 days one report is refused and two reports come. They wait for a block: `lonely`
    has 40 cohorts, and each day has reports of one cohort of its own.
    """
    params = dataclasses.replace(PARAMS, m=40)
    lonely = build_metric("lonely", params, min_reports=100, min_cohort=10)
    for days_ago in range(40):
        on = TODAY - (days_ago + 1) * DAY
        store_and_merge(engine, [], {("lonely", "padding"): 2, ("", "no-key"): 1}, today=on)
        reports, ones = np.zeros(40, dtype=np.int64), np.zeros((40, params.k), dtype=np.int64)
        reports[days_ago] = 2
        store_counts(engine, Counts(params, ones, reports, "lonely"), on)
    store_and_merge(engine, [], {("lonely", "padding"): 1}, today=TODAY)
    close_days(engine, lonely, TODAY)
    response = MetricsTask(metrics=[lonely], today=TODAY).run(engine, lambda _: None)
    (summary,) = response.metrics
    assert summary.withheld == tuple(day(i) for i in range(-31, 0))
    assert summary.n_withheld == 40
    assert {row.day for row in response.refusals} == {day(i) for i in range(-30, 1)}
    assert sum(row.number for row in response.refusals) == 30 * 3 + 1
    assert response.refusal_totals == [
        RefusalTotal("", "no-key", 40),
        RefusalTotal("lonely", "padding", 81),
    ]


def test_refusals_of_a_week_are_counted_by_reason(engine: Engine) -> None:
    """Refusals are counted by metric and reason over seven days, the most frequent reason first.

    The day seven days ago is outside the week, so its 100 and 200 refusals do not count. An upload
    without an upload key is refused before its metrics are known ("no-key"), so the report lists
    such refusals apart.
    """
    for days_ago, number in ((0, 1), (6, 10), (7, 100)):
        refused = {("page", "padding"): number, ("page", "cohort"): 2 * number, ("", "no-key"): 1}
        store_and_merge(engine, [], refused, today=TODAY - days_ago * DAY)
    report = read_health(engine, "page", "sound")
    assert report.metrics[0].refused == (
        RefusalCount(reason="cohort", today=2, week=22),
        RefusalCount(reason="padding", today=1, week=11),
    )
    assert report.metrics[0].refused_week == 33
    assert report.metrics[1].refused == ()
    assert report.nameless == (RefusalCount(reason="no-key", today=1, week=2),)


@ON_BOTH_DATABASES
def test_states_of_a_metric(engine: Engine) -> None:
    """Each problem of a metric has a state of its own, with a reason that an operator can act on.

    Several problems show the most severe. 20 refused of 50 reports are more than one in twenty, so
    the metric is refusing. 51 reports that were set aside are more than the 50 that were released,
    which is more severe: most devices are in cohorts too small to be released.
    """
    commit(
        engine, build_upload(*[build_report(cohort=i % 4) for i in range(50)]), today=TODAY - DAY
    )
    page, small, old = read_health(engine, "page", "small", "old").metrics
    assert page.state == ("collecting normally", "50 reports in 7 days")
    assert small.state == ("waiting", "for 5 reports from days that have ended")
    assert (old.state.name, old.days_left < 0, page.days_left > 10_000) == ("expired", True, True)
    store_and_merge(engine, [], {("page", "padding"): 20})
    assert read_health(engine, "page").metrics[0].state.name == "refusing"
    store_and_merge(engine, [], {("page", SET_ASIDE): 51})
    sparse = "51 reports in 7 days, of cohorts with too few devices, are not shown"
    assert read_health(engine, "page").metrics[0].state == ("sparse", sparse)
    assert read_health(engine, "page").metrics[0].refused_week == 20
    later = HealthTask(metrics=[ACCEPTED.registry["page"]], today=TODAY + 20 * DAY)
    silent = later.run(engine, lambda _: None).metrics[0]
    assert silent.state == ("silent", f"no reports since {TODAY - DAY}")


def test_many_days_that_wait_are_sparse(engine: Engine) -> None:
    """More than seven ended days without a release make a metric sparse.

    35 reports of yesterday were released. On each of the other days one report of a cohort of its
    own arrived, and waits for more. Seven such days are what a weekly metric always may have; the
    eighth day is one too many. Pages write consecutive withheld days as one range.
    """
    params = dataclasses.replace(PARAMS, m=12)
    wide = build_metric("wide", params, min_reports=5, min_cohort=2)

    def send(on: datetime.date, cohorts: slice, number: int) -> None:
        reports, ones = np.zeros(12, dtype=np.int64), np.zeros((12, params.k), dtype=np.int64)
        reports[cohorts] = number
        store_counts(engine, Counts(params, ones, reports, "wide"), on)

    def read_state(today: datetime.date) -> MetricHealth:
        close_days(engine, wide, today)
        return HealthTask(metrics=[wide], today=today).run(engine, lambda _: None).metrics[0]

    for cohort, days_ago in enumerate((9, 8, 7, 6, 5, 3, 2)):
        send(TODAY - days_ago * DAY, slice(cohort, cohort + 1), 1)
    send(TODAY - DAY, slice(7, 12), 7)
    assert read_state(TODAY).state.name == "collecting normally"
    send(TODAY, slice(11, 12), 1)
    assert read_state(TODAY).state.name == "collecting normally"  # today has not ended
    later = read_state(TODAY + DAY)
    reason = "8 past days not yet released: cohorts or parameter sets have too few reports"
    assert later.state == ("sparse", reason)
    assert format_days(later.withheld) == f"{day(-9)} to {day(-5)}, {day(-3)} to {day(-2)}, {TODAY}"
    assert format_days([TODAY, day(2)]) == f"{TODAY}, {day(2)}"
