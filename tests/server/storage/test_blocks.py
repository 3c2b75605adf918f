"""Tests of the rule of blocks.

A block is the sum of a cohort's reports on consecutive days. The rule decides when a block has
enough reports to be closed, that is shown as one sum. Its promise is: one device made at most one
in `min_cohort` of the reports of a closed block. A device sends one report in an interval, so a
block needs `min_cohort` reports for each interval that contains a day of the block.

Reports of days that are not closed wait in an open block, or are set aside (never shown). A pace is
the length of an interval in the calendar: a day, a week, or the epoch.
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
from collectors import metric_of
from hypothesis import given
from hypothesis import strategies as st
from rappor_server.storage.block_rules import Block, Rule
from rappor_server.storage.blocks import rules_in_force
from rappor_server.storage.tallies import Tally
from registries import registry_of

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
the latest with the epoch."""
STRICT = Params.profile("strict")


def make_rule(calendar: tuple[str, str], min_cohort: int = MIN_COHORT) -> Rule:
    """Return the rule of a calendar, which is a pair of a pace and an epoch."""
    pace, epoch = calendar
    return Rule(pace=pace, epoch=epoch, min_cohort=min_cohort, min_reports=100)


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
    for one, two in itertools.pairwise(closed):
        assert one.last < two.first


@given(
    calendar=st.sampled_from(CALENDARS),
    min_cohort=st.integers(1, 12),
    days=st.dictionaries(st.integers(0, 9), st.integers(1, 40), min_size=1),
    moved=st.integers(0, 9),
    n_waiting=st.integers(0, 2),
)
def test_late_reports_beside_a_block_of_a_later_day_count_once(
    calendar: tuple[str, str], min_cohort: int, days: dict[int, int], moved: int, n_waiting: int
) -> None:
    """No report is lost or counted twice if a late day comes after a block of a later day.

    A run that was killed has left open blocks of days after `moved`, the day that the next run
    moves into blocks. Then reports came for the day `moved`, and late reports for earlier days.
    """
    blocks = [make_block(day, reports) for day, reports in sorted(days.items())]
    day = START + datetime.timedelta(moved)
    late = [block for block in blocks if block.first <= day]
    if not late:
        return
    waiting = [block for block in blocks if block not in late][:n_waiting]
    decision = make_rule(calendar, min_cohort).decide_day(waiting, late, day)
    kept = [block for block in (decision.closed, *decision.waiting) if block is not None]
    n_reports = sum(block.tally.reports for block in (*waiting, *late))
    assert sum(block.tally.reports for block in kept) + decision.set_aside == n_reports


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


@pytest.mark.parametrize("calendar", CALENDARS[:4])
@pytest.mark.parametrize(("devices", "newcomers"), [(100, 0), (400, 0), (100, 1500)])
def test_no_device_has_more_than_a_tenth_of_a_block(
    calendar: tuple[str, str], devices: int, newcomers: int
) -> None:
    """No device made more than a tenth of the reports of a closed block, for `min_cohort` = 10.

    The populations are 100 devices, 400 devices, and 100 devices that 1,500 devices join after half
    of the days. Each population is divided among 128 cohorts, and among 16. In 128 cohorts, 100
    devices are too few for any block.
    """
    rng = random.Random(f"{calendar} {devices} {newcomers}")  # noqa: S311 - a seeded population
    rule, days, n_blocks = make_rule(calendar), 92, 0
    population = [draw_arrivals(rng, calendar, days) for _ in range(devices)]
    population += [
        [day for day in draw_arrivals(rng, calendar, days) if day > 45] for _ in range(newcomers)
    ]
    for m in (128, 16):
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
                most = max(sum(first <= day <= last for day in arrivals) for arrivals in members)
                assert MIN_COHORT * most <= block.tally.reports
    # The test would prove nothing if hardly any block was closed. Populations that begin with 100
    # devices may close fewer.
    assert n_blocks > 10 or devices == 100


def test_a_week_in_which_a_month_begins_needs_twice_as_many_reports() -> None:
    """A week in which a month begins is two intervals if the epoch is a month.

    Five devices may report on Monday, 30 November, and again on Tuesday, 1 December. Their ten
    reports are those of five devices, so ten reports are not enough for a block with a `min_cohort`
    of ten. Without the epoch, ten reports of the week are of ten devices, and are enough.
    """
    monday, tuesday = make_block(29, 5), make_block(30, 5)
    rule = make_rule(("week", "month"))
    assert rule.decide([monday, tuesday]).closed is None
    assert make_rule(("week", "life")).decide([monday, tuesday]).closed is not None
    # Ten reports of Tuesday are enough without Monday, whose five reports are set aside.
    decision = rule.decide([make_block(29, 5), make_block(30, 10)])
    assert (decision.closed, decision.set_aside) == (make_block(30, 10), 5)


def test_each_fingerprint_is_judged_by_its_own_interval() -> None:
    """Each fingerprint has the rule of its own interval.

    A registry that changes the interval from a day to a week has a new fingerprint. Devices with
    the older registry still report every day, under the older fingerprint.
    """
    daily, weekly, once = (
        metric_of(params=STRICT, interval=interval, epoch="quarter")
        for interval in ("day", "week", "epoch")
    )
    rules = rules_in_force([registry_of(once), registry_of(weekly), registry_of(daily)])["page"]
    assert rules == {
        daily.fingerprint: make_rule(("day", "quarter")),
        weekly.fingerprint: make_rule(("week", "quarter")),
        once.fingerprint: make_rule(("quarter", "quarter")),
    }


def test_the_largest_min_cohort_in_force_holds() -> None:
    """The largest `min_cohort` of all registries in force holds for a fingerprint.

    The fingerprint does not depend on `min_cohort`, so a block may contain reports of devices with
    different registries. `current` and `older` have one fingerprint, and `other` has another one.
    """
    current, older, other = (
        metric_of(params=params, min_cohort=min_cohort)
        for params, min_cohort in ((STRICT, 20), (STRICT, 30), (Params.profile("balanced"), 40))
    )
    removed = metric_of("removed")
    orders = ([current, older, other], [older, current, other], [current, other, older])
    for first, *others in orders:
        registries = [registry_of(first), *(registry_of(metric, removed) for metric in others)]
        rules = rules_in_force(registries)
        minimums = {fingerprint: rule.min_cohort for fingerprint, rule in rules["page"].items()}
        assert minimums == {current.fingerprint: 30, other.fingerprint: 40}
        assert rules.keys() == {"page"}  # a metric that left the current registry has no rule


def test_every_part_and_segment_has_a_rule() -> None:
    """Each fingerprint of a part and segment has a rule, in all registries in force.

    The older registry has a segment that the current registry has removed.
    """
    old = metric_of(
        params=STRICT,
        epoch="quarter",
        parts=(Part("prefix:3", 0.25), Part("whole")),
        segments=(Dimension("version", ("1", "2")),),
    )
    new = dataclasses.replace(old, segments=(Dimension("version", ("2", "3")),))
    rules = rules_in_force([registry_of(new), registry_of(old)])["page"]
    assert rules.keys() == old.accepted.keys() | new.accepted.keys()
    # Two parts, each without a segment, and with the versions 1, 2, 3 and all other versions.
    assert len(rules) == 2 * (1 + 4)


def test_metrics_without_a_minimum_have_no_blocks() -> None:
    """A metric has no blocks if its `min_reports` is 0 in the current registry, the first one.

    The minimum of an older registry does not count.
    """
    without, bounded = metric_of(min_reports=0), metric_of(min_reports=5)
    assert rules_in_force([registry_of(without), registry_of(bounded)]) == {}
