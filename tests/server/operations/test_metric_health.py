"""Health of metrics: today's reports, refusals of a week, states."""

from __future__ import annotations

import datetime

from collectors import ACCEPTED, TODAY, close_days, commit, count_group, day, report_of, upload_of
from rappor_server.operations.metric_health import HealthReport, HealthTask, RefusalCount
from rappor_server.pages.rendering import format_days
from rappor_server.storage.blocks import SET_ASIDE
from sqlalchemy import Engine

DAY = datetime.timedelta(days=1)


def read_health(engine: Engine, *names: str) -> HealthReport:
    """Return the health of metrics of the registry."""
    metrics = [ACCEPTED.registry[name] for name in names]
    return HealthTask(metrics=metrics, today=TODAY).run(engine, lambda _: None)


def test_todays_reports_are_rounded_and_small_numbers_are_hidden(engine: Engine) -> None:
    """The number has two digits, rounded down. It is None below the minimum."""
    commit(engine, upload_of(*[report_of() for _ in range(129)]))
    commit(engine, upload_of(*[report_of("small") for _ in range(4)]))
    commit(engine, upload_of(*[report_of() for _ in range(7)]), today=TODAY - DAY)
    page, small, sound = read_health(engine, "page", "small", "sound").metrics
    assert (page.today, page.released, page.n_days) == (120, 136, 2)
    assert (small.today, small.released) == (None, 0)
    assert sound.today == 0
    commit(engine, upload_of(report_of("small")))
    assert read_health(engine, "small").metrics[0].today == 5


def test_refusals_of_a_week_are_counted_by_reason(engine: Engine) -> None:
    """The most frequent reason comes first. Refusals without a metric are separate."""
    for days, number in ((0, 1), (6, 10), (7, 100)):
        refused = {("page", "padding"): number, ("page", "cohort"): 2 * number, ("", "no-key"): 1}
        count_group(engine, [], refused, today=TODAY - days * DAY)
    report = read_health(engine, "page", "sound")
    assert report.metrics[0].refused == (
        RefusalCount(reason="cohort", today=2, week=22),
        RefusalCount(reason="padding", today=1, week=11),
    )
    assert report.metrics[0].refused_week == 33
    assert report.metrics[1].refused == ()
    assert report.nameless == (RefusalCount(reason="no-key", today=1, week=2),)


def test_states_of_a_metric(engine: Engine) -> None:
    """A metric is good while reports come and silent when they stop; other states are problems."""
    commit(engine, upload_of(*[report_of(cohort=i % 4) for i in range(50)]), today=TODAY - DAY)
    page, small, old = read_health(engine, "page", "small", "old").metrics
    assert page.state == ("good", "50 reports in 7 days")
    assert small.state == ("waiting", "for 5 reports from days that have ended")
    assert (old.state.word, old.days_left < 0, page.days_left > 10_000) == ("expired", True, True)
    count_group(engine, [], {("page", "padding"): 20})
    assert read_health(engine, "page").metrics[0].state.word == "refusing"
    count_group(engine, [], {("page", SET_ASIDE): 51})
    sparse = "51 reports in 7 days, of cohorts with too few devices, are not shown"
    assert read_health(engine, "page").metrics[0].state == ("sparse", sparse)
    assert read_health(engine, "page").metrics[0].refused_week == 20
    later = HealthTask(metrics=[ACCEPTED.registry["page"]], today=TODAY + 20 * DAY)
    silent = later.run(engine, lambda _: None).metrics[0]
    assert silent.state == ("silent", f"no reports since {TODAY - DAY}")


def test_many_days_that_wait_are_sparse(engine: Engine) -> None:
    """Many withheld days make a metric sparse, although reports of the week were released.

    Pages write consecutive days as one span.
    """
    full = [report_of("small", cohort=(0, 2, 3)[i % 3]) for i in range(36)]
    commit(engine, upload_of(*full), today=TODAY - DAY)
    close_days(engine, ACCEPTED.registry["small"], TODAY)
    for days in (0, 1, 2, 3, 5, 6, 7, 8):
        commit(engine, upload_of(report_of("small")), today=TODAY - days * DAY)
    assert read_health(engine, "small").metrics[0].state.word == "good"
    commit(engine, upload_of(report_of("small")), today=TODAY - 9 * DAY)
    small = read_health(engine, "small").metrics[0]
    reason = "8 past days not yet released: cohorts or parameter sets have too few reports"
    assert small.state == ("sparse", reason)
    assert format_days(small.withheld) == f"{day(-9)} to {day(-5)}, {day(-3)} to {TODAY}"
    assert format_days([TODAY, day(2)]) == f"{TODAY}, {day(2)}"
