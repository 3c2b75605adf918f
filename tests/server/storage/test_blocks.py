"""The rule of blocks: no device has more than one report in `min_cohort` of what is shown."""

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
from rappor_server.storage.blocks import Block, Rule, _settle, rules_in_force
from rappor_server.storage.tallies import Tally
from registries import registry_of

from rappor import Params
from rappor.protocol.parts import Part
from rappor.protocol.segments import Dimension

START = datetime.date(2026, 11, 1)
LEAST = 10
PACES = ("day", "week", "month", "quarter")
STRICT = Params.profile("strict")


def block_of(day: int, reports: int) -> Block:
    """Make a block of one bit."""
    on = START + datetime.timedelta(day)
    return Block(on, on, Tally(reports, np.array([reports])))


def run(rule: Rule, counts: Sequence[int]) -> tuple[list[Block], int, int]:
    """Give a cohort's reports of each day; return what is shown, waits and was set aside."""
    shown: list[Block] = []
    waiting: tuple[Block, ...] = ()
    aside = 0
    for day, reports in enumerate(counts):
        if not reports:
            continue
        settled = rule.settle([*waiting, block_of(day, reports)])
        shown += [] if settled.closed is None else [settled.closed]
        waiting = settled.waiting
        aside += settled.set_aside
    return shown, sum(each.tally.reports for each in waiting), aside


@given(
    pace=st.sampled_from(PACES),
    least=st.integers(1, 12),
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=60),
)
def test_every_report_is_shown_waits_or_is_set_aside(
    pace: str, least: int, counts: list[int]
) -> None:
    """Blocks are of different days in order, and at most two wait."""
    rule = Rule(pace=pace, min_cohort=least)
    shown, waiting, aside = run(rule, counts)
    assert sum(each.tally.reports for each in shown) + waiting + aside == sum(counts)
    for one, two in itertools.pairwise(shown):
        assert one.last < two.first


@given(
    pace=st.sampled_from(PACES),
    least=st.integers(1, 12),
    days=st.dictionaries(st.integers(0, 9), st.integers(1, 40), min_size=1),
    moved=st.integers(0, 9),
    n_waiting=st.integers(0, 2),
)
def test_late_reports_beside_a_block_of_a_later_day_count_once(
    pace: str, least: int, days: dict[int, int], moved: int, n_waiting: int
) -> None:
    """An interrupted run has left that block, and then reports came for a day before it."""
    blocks = [block_of(day, reports) for day, reports in sorted(days.items())]
    late = [each for each in blocks if each.first <= START + datetime.timedelta(moved)]
    if not late:
        return
    waiting = [each for each in blocks if each not in late][:n_waiting]
    day = START + datetime.timedelta(moved)
    settled = _settle(Rule(pace=pace, min_cohort=least), waiting, late, day)
    kept = [each for each in (settled.closed, *settled.waiting) if each is not None]
    given = sum(each.tally.reports for each in (*waiting, *late))
    assert sum(each.tally.reports for each in kept) + settled.set_aside == given


def sent(rng: random.Random, pace: str, days: int) -> list[int]:
    """Draw the days on which a device's reports arrive: at most one an interval, some late.

    It joins and leaves, is offline for days, and the collector is out of reach for a week. What
    waits follows one by one.
    """
    joined, gone = sorted(rng.sample(range(days), 2))
    active, online = rng.choice((0.3, 0.7, 1.0)), rng.choice((0.4, 0.9, 1.0))
    waiting, answered, left, arrived = 0, None, None, []
    for day in range(joined, gone):
        date = START + datetime.timedelta(day)
        interval = {
            "day": date.toordinal(),
            "week": (date.toordinal() - 1) // 7,
            "month": date.month,
        }[pace]
        if interval != answered and rng.random() < active:
            waiting, answered = waiting + 1, interval
        is_out = 20 <= day < 27
        if waiting and interval != left and not is_out and rng.random() < online:
            waiting, left = waiting - 1, interval
            arrived.append(day)
    return arrived


@pytest.mark.parametrize("pace", ["day", "week", "month"])
@pytest.mark.parametrize(("devices", "later"), [(100, 0), (400, 0), (100, 1500)])
def test_no_device_has_more_than_a_tenth_of_a_block(pace: str, devices: int, later: int) -> None:
    """In 128 cohorts, or 16: few devices, enough, and a population that grows."""
    rng = random.Random(f"{pace} {devices} {later}")  # noqa: S311  # a seeded population
    rule, days, n_blocks = Rule(pace=pace, min_cohort=LEAST), 92, 0
    lives = [sent(rng, pace, days) for _ in range(devices)]
    lives += [[day for day in sent(rng, pace, days) if day > 45] for _ in range(later)]
    for m in (128, 16):
        cohorts = [rng.randrange(m) for _ in lives]
        for cohort in range(m):
            own = [life for life, j in zip(lives, cohorts, strict=True) if j == cohort]
            reports = Counter(day for life in own for day in life)
            shown, _, _ = run(rule, [reports[day] for day in range(days)])
            n_blocks += len(shown)
            for block in shown:
                first, last = ((each - START).days for each in (block.first, block.last))
                most = max(sum(first <= day <= last for day in life) for life in own)
                assert LEAST * most <= block.tally.reports
    assert n_blocks > 10 or devices == 100


def test_each_fingerprint_is_judged_by_its_own_interval() -> None:
    """Devices with the registry before a slower interval go on as often as before."""
    daily, weekly, once = (
        metric_of(params=STRICT, interval=interval, epoch="quarter")
        for interval in ("day", "week", "epoch")
    )
    rules = rules_in_force([registry_of(once), registry_of(weekly), registry_of(daily)])["page"]
    paces = {fingerprint: rule.pace for fingerprint, rule in rules.items()}
    assert paces == {
        daily.fingerprint: "day",
        weekly.fingerprint: "week",
        once.fingerprint: "quarter",
    }


def test_the_largest_min_cohort_in_force_holds() -> None:
    """It is in no fingerprint, so devices of both registries may be in a block."""
    current, older, other = (
        metric_of(params=params, min_cohort=least)
        for params, least in ((STRICT, 20), (STRICT, 30), (Params.profile("balanced"), 40))
    )
    gone = metric_of("gone")
    orders = ([current, older, other], [older, current, other], [current, other, older])
    for first, *others in orders:
        registries = [registry_of(first), *(registry_of(metric, gone) for metric in others)]
        rules = rules_in_force(registries)
        least = {fingerprint: rule.min_cohort for fingerprint, rule in rules["page"].items()}
        assert least == {current.fingerprint: 30, other.fingerprint: 40}
        assert rules.keys() == {"page"}  # a metric that left the current registry has no rule


def test_every_part_and_segment_has_a_rule() -> None:
    """Devices of a segment that the current registry has no more are judged, too."""
    old = metric_of(
        params=STRICT,
        epoch="quarter",
        parts=(Part("prefix:3", 0.25), Part("whole")),
        segments=(Dimension("version", ("1", "2")),),
    )
    new = dataclasses.replace(old, segments=(Dimension("version", ("2", "3")),))
    rules = rules_in_force([registry_of(new), registry_of(old)])["page"]
    assert rules.keys() == old.accepted.keys() | new.accepted.keys()
    assert len(rules) == 2 * (1 + 4)  # no segment, versions 1, 2, 3 and other


def test_metrics_without_a_minimum_have_no_blocks() -> None:
    """The minimum of the current registry decides."""
    open_to_all, bounded = metric_of(min_reports=0), metric_of(min_reports=5)
    assert rules_in_force([registry_of(open_to_all), registry_of(bounded)]) == {}
