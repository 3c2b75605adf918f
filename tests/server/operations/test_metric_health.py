"""How metrics are: today's reports, refusals of a week, expiry."""

from __future__ import annotations

import datetime

from collectors import ACCEPTED, TODAY, close_days, commit, count_group, day, report_of, upload_of
from rappor_server.operations.metric_health import HealthReport, HealthTask, Refused
from rappor_server.pages.rendering import spans
from rappor_server.storage.blocks import SET_ASIDE
from sqlalchemy import Engine

DAY = datetime.timedelta(days=1)


def health(engine: Engine, *names: str) -> HealthReport:
    """Look at metrics of the registry."""
    metrics = [ACCEPTED.registry[name] for name in names]
    return HealthTask(metrics=metrics, today=TODAY).run(engine, lambda _: None)


def test_todays_reports_are_rounded_and_small_numbers_are_not_told(engine: Engine) -> None:
    """Two digits, rounded down; below the minimum nothing; other days do not count."""
    commit(engine, upload_of(*[report_of() for _ in range(129)]))
    commit(engine, upload_of(*[report_of("small") for _ in range(4)]))
    commit(engine, upload_of(*[report_of() for _ in range(7)]), today=TODAY - DAY)
    page, small, sound = health(engine, "page", "small", "sound").metrics
    assert (page.today, page.released, page.n_days) == (120, 136, 2)
    assert (small.today, small.released) == (None, 0)
    assert sound.today == 0
    commit(engine, upload_of(report_of("small")))
    assert health(engine, "small").metrics[0].today == 5


def test_refusals_of_a_week_are_told_by_their_reason(engine: Engine) -> None:
    """Today's apart, the most frequent first, and those that name no metric on their own."""
    for days, number in ((0, 1), (6, 10), (7, 100)):
        refused = {("page", "padding"): number, ("page", "cohort"): 2 * number, ("", "no-key"): 1}
        count_group(engine, [], refused, today=TODAY - days * DAY)
    found = health(engine, "page", "sound")
    assert found.metrics[0].refused == (
        Refused(reason="cohort", today=2, week=22),
        Refused(reason="padding", today=1, week=11),
    )
    assert found.metrics[0].refused_week == 33
    assert found.metrics[1].refused == ()
    assert found.nameless == (Refused(reason="no-key", today=1, week=2),)


def test_a_word_says_how_a_metric_is(engine: Engine) -> None:
    """Good while reports come, silent when they stop, and what else needs a look."""
    commit(engine, upload_of(*[report_of(cohort=i % 4) for i in range(50)]), today=TODAY - DAY)
    page, small, old = health(engine, "page", "small", "old").metrics
    assert page.state == ("good", "50 reports in 7 days")
    assert small.state == ("waiting", "for 5 reports from days that have ended")
    assert (old.state.word, old.days_left < 0, page.days_left > 10_000) == ("expired", True, True)
    count_group(engine, [], {("page", "padding"): 20})
    assert health(engine, "page").metrics[0].state.word == "refusing"
    count_group(engine, [], {("page", SET_ASIDE): 51})
    sparse = "51 reports in 7 days, of cohorts with too few devices, are not shown"
    assert health(engine, "page").metrics[0].state == ("sparse", sparse)
    assert health(engine, "page").metrics[0].refused_week == 20
    later = HealthTask(metrics=[ACCEPTED.registry["page"]], today=TODAY + 20 * DAY)
    silent = later.run(engine, lambda _: None).metrics[0]
    assert silent.state == ("silent", f"no reports since {TODAY - DAY}")


def test_many_days_that_wait_are_sparse(engine: Engine) -> None:
    """A released week does not hide that the days of a cohort wait; a page writes spans."""
    full = [report_of("small", cohort=(0, 2, 3)[i % 3]) for i in range(36)]
    commit(engine, upload_of(*full), today=TODAY - DAY)
    close_days(engine, ACCEPTED.registry["small"], TODAY)
    for days in (0, 1, 2, 3, 5, 6, 7, 8):
        commit(engine, upload_of(report_of("small")), today=TODAY - days * DAY)
    assert health(engine, "small").metrics[0].state.word == "good"
    commit(engine, upload_of(report_of("small")), today=TODAY - 9 * DAY)
    small = health(engine, "small").metrics[0]
    reason = "8 past days not yet released: cohorts have too few reports"
    assert small.state == ("sparse", reason)
    assert spans(small.withheld) == f"{day(-9)} to {day(-5)}, {day(-3)} to {TODAY}"
    assert spans([TODAY, day(2)]) == f"{TODAY}, {day(2)}"
