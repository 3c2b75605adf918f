"""The rule of blocks.

A block is the sum of a cohort's reports on consecutive days. The rule decides when a block has
enough reports to be closed, which means that its sum may be released. No device has sent more than
one in `min_cohort` of the reports of a closed block. A device sends one report in an interval, so a
block needs `min_cohort` reports for each interval that contains a day of the block.

Reports of days that are not closed wait in an open block, or are set aside and never released. A
pace is the length of an interval in the calendar: a day, a week, or the epoch. Blocks are closed
separately for each fingerprint, the short hash of a parameter set that every report carries.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from collectors import build_metric
from hypothesis import given
from hypothesis import strategies as st
from rappor_server.storage.block_rules import Block, Rule
from rappor_server.storage.blocks import rules_in_force
from rappor_server.storage.tallies import Tally
from registries import build_registry

from rappor import Params
from rappor.protocol.parts import Part
from rappor.protocol.segments import Dimension

START = datetime.date(2026, 11, 1)
"""The tests count days from this day, a Sunday. It has the number 0."""
MIN_COHORT = 10
CALENDARS = [
    ("day", "life"),
    ("week", "life"),
    ("week", "month"),
    ("month", "month"),
    ("quarter", "quarter"),
]
"""Pairs of a pace and an epoch. The pace is the length of an interval of days. An interval ends at
the latest with the epoch. The epoch "life" has no end."""
STRICT = Params.profile("strict")


def make_rule(calendar: tuple[str, str], min_cohort: int = MIN_COHORT) -> Rule:
    """Return the rule of a calendar, which is a pair of a pace and an epoch.

    `min_reports` and the sampling rate are the defaults of a registry. They are for the release of
    closed blocks, and do not affect which blocks are closed.
    """
    pace, epoch = calendar
    return Rule(pace=pace, epoch=epoch, min_cohort=min_cohort, min_reports=100, sampling_rate=1.0)


def make_block(day: int, reports: int) -> Block:
    """Return a block of one day with some reports of one bit, all of them 1."""
    date = START + datetime.timedelta(day)
    return Block(date, date, Tally(reports, np.array([reports])))


def close_days(rule: Rule, counts: Sequence[int]) -> tuple[list[Block], int, int]:
    """Close the days of a cohort one by one. `counts` has the number of reports of each day.

    Returns the closed blocks, the number of reports that wait at the end, and the number of reports
    that were set aside.
    """
    closed: list[Block] = []
    waiting: tuple[Block, ...] = ()
    set_aside = 0
    for day, reports in enumerate(counts):
        if not reports:
            continue
        decision = rule.decide([*waiting, make_block(day, reports)])
        closed += [] if decision.closed is None else [decision.closed]
        waiting = decision.waiting
        set_aside += decision.set_aside
    return closed, sum(block.tally.reports for block in waiting), set_aside


@given(
    calendar=st.sampled_from(CALENDARS),
    min_cohort=st.integers(1, 12),
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=60),
)
def test_every_report_is_closed_waits_or_is_set_aside(
    calendar: tuple[str, str], min_cohort: int, counts: list[int]
) -> None:
    """No report is lost or counted twice, and the days of closed blocks do not overlap."""
    closed, n_waiting, set_aside = close_days(make_rule(calendar, min_cohort), counts)
    assert sum(block.tally.reports for block in closed) + n_waiting + set_aside == sum(counts)
    for earlier, later in itertools.pairwise(closed):
        assert earlier.last < later.first


@given(
    calendar=st.sampled_from(CALENDARS),
    min_cohort=st.integers(1, 12),
    days=st.dictionaries(st.integers(0, 9), st.integers(1, 40), min_size=1),
    day_offset=st.integers(0, 9),
    n_waiting=st.integers(0, 2),
)
def test_late_reports_after_a_block_of_a_later_day_count_once(
    calendar: tuple[str, str],
    min_cohort: int,
    days: dict[int, int],
    day_offset: int,
    n_waiting: int,
) -> None:
    """No report is lost or counted twice if a late day comes after a block of a later day.

    A collector adds the reports of each ended day to the blocks. Here its process was killed while
    it did so, and has left `n_waiting` open blocks of days after `day`. The next process adds the
    reports of `day`, and late reports of earlier days.
    """
    blocks = [make_block(day, reports) for day, reports in sorted(days.items())]
    day = START + datetime.timedelta(day_offset)
    moved_days = [block for block in blocks if block.first <= day]
    if not moved_days:
        return
    waiting = [block for block in blocks if block not in moved_days][:n_waiting]
    decision = make_rule(calendar, min_cohort).decide_day(waiting, moved_days, day)
    n_kept = sum(
        block.tally.reports for block in (decision.closed, *decision.waiting) if block is not None
    )
    n_reports = sum(block.tally.reports for block in (*waiting, *moved_days))
    assert n_kept + decision.set_aside == n_reports


@given(
    calendar=st.sampled_from(CALENDARS),
    min_cohort=st.integers(1, 12),
    earlier=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 9)), max_size=4),
    runs=st.lists(
        st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1), min_size=2
    ),
)
def test_waiting_blocks_of_repeated_runs_end_on_different_days(
    calendar: tuple[str, str],
    min_cohort: int,
    earlier: list[tuple[int, int]],
    runs: list[list[tuple[int, int]]],
) -> None:
    """No report is lost or counted twice if runs are killed before they finish a day.

    `earlier` and `runs` contain pairs of a day and a number of reports. The days of `earlier` were
    finished. Each of the runs then moves the day 9, with its counters and late counters of days
    before, until one of them closes a block. The database stores one block for each last day, so
    two waiting blocks must not end on the same day.
    """
    rule = make_rule(calendar, min_cohort)
    waiting: tuple[Block, ...] = ()
    for day, reports in sorted(dict(earlier).items()):
        decision = rule.decide([*waiting, make_block(day, reports)])
        waiting = decision.waiting
    for run in runs:
        counters = [make_block(day, reports) for day, reports in sorted(dict(run).items())]
        n_reports = sum(block.tally.reports for block in (*waiting, *counters))
        decision = rule.decide_day(waiting, counters, START + datetime.timedelta(9))
        waiting = decision.waiting
        blocks = [block for block in (decision.closed, *waiting) if block is not None]
        assert sum(block.tally.reports for block in blocks) + decision.set_aside == n_reports
        assert len({block.last for block in blocks}) == len(blocks)
        assert all(first.last < second.first for first, second in itertools.pairwise(waiting))
        if decision.closed is not None:
            return


def draw_arrivals(rng: random.Random, calendar: tuple[str, str], days: int) -> list[int]:
    """Draw the days on which the reports of a device arrive: at most one in an interval, some late.

    The device exists from a random day until a random day. It records an event on a day with the
    probability `p_active`, and is online with the probability `p_online`. The collector is out of
    reach on days 20 to 26. Reports that wait are sent one by one, each in an interval of its own.

    `recorded` and `sent` are the last intervals with an event, and with a report that was sent.
    """
    begin, end = sorted(rng.sample(range(days), 2))
    p_active, p_online = rng.choice((0.3, 0.7, 1.0)), rng.choice((0.4, 0.9, 1.0))
    n_waiting, recorded, sent, arrivals = 0, None, None, []
    for day in range(begin, end):
        date = START + datetime.timedelta(day)
        interval = {
            ("day", "life"): date.toordinal(),
            ("week", "life"): (date.toordinal() - 1) // 7,
            ("week", "month"): ((date.toordinal() - 1) // 7, date.month),
            ("month", "month"): date.month,
        }[calendar]
        if interval != recorded and rng.random() < p_active:
            n_waiting, recorded = n_waiting + 1, interval
        is_collector_away = 20 <= day < 27
        can_send = interval != sent and not is_collector_away and rng.random() < p_online
        if n_waiting and can_send:
            n_waiting, sent = n_waiting - 1, interval
            arrivals.append(day)
    return arrivals


# `draw_arrivals` has no quarters, because the 92 days contain no whole quarter.
@pytest.mark.parametrize("calendar", CALENDARS[:4])
@pytest.mark.parametrize(("devices", "newcomers"), [(100, 0), (400, 0), (100, 1500)])
def test_no_device_has_more_than_a_tenth_of_a_block(
    calendar: tuple[str, str], devices: int, newcomers: int
) -> None:
    """No device made more than a tenth of the reports of a closed block, for `min_cohort` = 10.

    The populations are 100 devices, 400 devices, and 100 devices that 1,500 devices join after half
    of the days. Each population is divided among 128 cohorts, among 16, and among 4. The fewer
    cohorts, the more blocks are closed. In 16 cohorts, 100 devices close one block at most.
    """
    rng = random.Random(f"{calendar} {devices} {newcomers}")  # noqa: S311 - a seeded population
    rule, days, n_blocks = make_rule(calendar), 92, 0
    population = [draw_arrivals(rng, calendar, days) for _ in range(devices)]
    population += [
        [day for day in draw_arrivals(rng, calendar, days) if day > 45] for _ in range(newcomers)
    ]
    for m in (128, 16, 4):
        cohorts = [rng.randrange(m) for _ in population]
        for cohort in range(m):
            members = [
                arrivals for arrivals, j in zip(population, cohorts, strict=True) if j == cohort
            ]
            reports = Counter(day for arrivals in members for day in arrivals)
            closed, _, _ = close_days(rule, [reports[day] for day in range(days)])
            n_blocks += len(closed)
            for block in closed:
                first, last = ((day - START).days for day in (block.first, block.last))
                max_of_device = max(
                    sum(first <= day <= last for day in arrivals) for arrivals in members
                )
                assert MIN_COHORT * max_of_device <= block.tally.reports
    # Without closed blocks, the loop above would check nothing.
    assert n_blocks > 10


def test_a_week_with_the_start_of_a_month_needs_twice_as_many_reports() -> None:
    """A week in which a month begins is two intervals if the epoch is a month.

    Five devices may report on Monday, 30 November, and again on Tuesday, 1 December. Their ten
    reports are those of five devices, so ten reports are not enough for a block with a `min_cohort`
    of ten. If the epoch is the life of the device, the week is one interval. Its ten reports are
    those of ten devices, and are enough.
    """
    monday, tuesday = make_block(29, 5), make_block(30, 5)
    rule = make_rule(("week", "month"))
    assert rule.decide([monday, tuesday]).closed is None
    assert make_rule(("week", "life")).decide([monday, tuesday]).closed is not None
    # Ten reports of Tuesday are enough without Monday, whose five reports are set aside.
    decision = rule.decide([make_block(29, 5), make_block(30, 10)])
    assert (decision.closed, decision.set_aside) == (make_block(30, 10), 5)


def test_each_fingerprint_has_the_rule_of_its_interval() -> None:
    """Each fingerprint has the rule of its own interval.

    A registry that changes the interval from a day to a week has a new fingerprint. Devices with
    the older registry still report every day, under the older fingerprint.
    """
    daily, weekly, once = (
        build_metric(params=STRICT, interval=interval, epoch="quarter")
        for interval in ("day", "week", "epoch")
    )
    rules = rules_in_force([build_registry(once), build_registry(weekly), build_registry(daily)])[
        "page"
    ]
    assert rules == {
        daily.fingerprint: make_rule(("day", "quarter")),
        weekly.fingerprint: make_rule(("week", "quarter")),
        once.fingerprint: make_rule(("quarter", "quarter")),
    }


def test_the_largest_min_cohort_in_force_holds() -> None:
    """The largest `min_cohort` of all registries in force holds for a fingerprint.

    The fingerprint does not depend on `min_cohort`, so a block may contain reports of devices with
    different registries. `current` and `older` have one fingerprint, and `newer` has another one.
    """
    current, older, newer = (
        build_metric(params=params, min_cohort=min_cohort)
        for params, min_cohort in ((STRICT, 20), (STRICT, 30), (Params.profile("balanced"), 40))
    )
    removed = build_metric("removed")
    orders = ([current, older, newer], [older, current, newer], [current, newer, older])
    for first, *other_metrics in orders:
        registries = [
            build_registry(first),
            *(build_registry(metric, removed) for metric in other_metrics),
        ]
        rules = rules_in_force(registries)
        minimums = {fingerprint: rule.min_cohort for fingerprint, rule in rules["page"].items()}
        assert minimums == {current.fingerprint: 30, newer.fingerprint: 40}
        assert rules.keys() == {"page"}  # a metric that left the current registry has no rule


def test_every_part_and_segment_has_a_rule() -> None:
    """Each fingerprint of a part and segment has a rule, in all registries in force.

    The older registry has a segment that the current registry has removed.
    """
    old = build_metric(
        params=STRICT,
        epoch="quarter",
        parts=(Part("prefix:3", 0.25), Part("whole")),
        segments=(Dimension("version", ("1", "2")),),
    )
    new = dataclasses.replace(old, segments=(Dimension("version", ("2", "3")),))
    rules = rules_in_force([build_registry(new), build_registry(old)])["page"]
    assert rules.keys() == old.accepted.keys() | new.accepted.keys()
    # Two parts, each without a segment, and with the versions 1, 2, 3 and all other versions.
    assert len(rules) == 2 * (1 + 4)


def test_metrics_without_a_minimum_have_no_blocks() -> None:
    """A metric has no blocks if its `min_reports` is 0 in the current registry, the first one.

    The minimum of an older registry does not count.
    """
    without, bounded = build_metric(min_reports=0), build_metric(min_reports=5)
    assert rules_in_force([build_registry(without), build_registry(bounded)]) == {}
