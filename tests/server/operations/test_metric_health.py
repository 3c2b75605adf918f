"""Health of metrics: today's reports, refusals of a week, states."""

from __future__ import annotations

import datetime

from collectors import (
    ACCEPTED,
    TODAY,
    build_report,
    build_upload,
    close_days,
    commit,
    day,
    store_and_merge,
)
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
    """The number of today's reports has two significant digits, and is None below `min_reports`.

    Somebody who watched an exact number would see it grow by 1 when a device sends its report. The
    metric `page` has no minimum, so its 129 reports of today and 7 of yesterday are all released.
    The metric `small` has the minimum 5, and the fifth report makes the number visible.
    """
    commit(engine, build_upload(*[build_report() for _ in range(129)]))
    commit(engine, build_upload(*[build_report("small") for _ in range(4)]))
    commit(engine, build_upload(*[build_report() for _ in range(7)]), today=TODAY - DAY)
    page, small, sound = read_health(engine, "page", "small", "sound").metrics
    assert (page.reports_today, page.released, page.n_days) == (120, 136, 2)
    assert (small.reports_today, small.released) == (None, 0)
    assert sound.reports_today == 0
    commit(engine, build_upload(build_report("small")))
    assert read_health(engine, "small").metrics[0].reports_today == 5


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

    36 reports of yesterday were released. On each of the other days one report of cohort 1 arrived,
    and waits for more. Today has not ended, so eight such days are seven ended days, which a weekly
    metric always may have; the ninth day is one too many. Pages write consecutive withheld days as
    one range.
    """
    # The cohorts 0, 2 and 3 have enough reports for their blocks. Cohort 1 stays empty.
    of_full_cohorts = [build_report("small", cohort=(0, 2, 3)[i % 3]) for i in range(36)]
    commit(engine, build_upload(*of_full_cohorts), today=TODAY - DAY)
    close_days(engine, ACCEPTED.registry["small"], TODAY)
    for days_ago in (0, 1, 2, 3, 5, 6, 7, 8):
        commit(engine, build_upload(build_report("small")), today=TODAY - days_ago * DAY)
    assert read_health(engine, "small").metrics[0].state.name == "collecting normally"
    commit(engine, build_upload(build_report("small")), today=TODAY - 9 * DAY)
    small = read_health(engine, "small").metrics[0]
    reason = "8 past days not yet released: cohorts or parameter sets have too few reports"
    assert small.state == ("sparse", reason)
    assert format_days(small.withheld) == f"{day(-9)} to {day(-5)}, {day(-3)} to {TODAY}"
    assert format_days([TODAY, day(2)]) == f"{TODAY}, {day(2)}"
