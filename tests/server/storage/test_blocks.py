"""The rule of blocks: no device has more than one report in `min_cohort` of what is shown."""

from __future__ import annotations

import datetime
import itertools
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rappor_server.storage.blocks import Block, Rule, _settle
from rappor_server.storage.tallies import Tally

START = datetime.date(2026, 11, 1)
LEAST = 10
PACES = ("day", "week", "month", "quarter")


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


def test_a_slower_interval_shows_no_device_more_than_before() -> None:
    """What came under the quicker one, and waits, is judged by it, until blocks begin later."""
    change, days = 10, 40
    before = Rule(pace="day", min_cohort=LEAST)
    until = START + datetime.timedelta(change)
    rule = Rule(pace="week", min_cohort=LEAST, earlier=((until, before),))
    lives = [[day <= change or day % 7 == 0 for day in range(days)] for _ in range(30)]
    shown = []
    for n_devices in (*range(1, 2 * LEAST), 30):
        own = lives[:n_devices]
        blocks, _, _ = run(rule, [sum(each) for each in zip(*own, strict=True)])
        for block in blocks:
            first, last = ((each - START).days for each in (block.first, block.last))
            most = max(sum(life[first : last + 1]) for life in own)
            assert LEAST * most <= block.tally.reports
        shown += blocks
    assert {block.first <= until for block in shown} == {True, False}


def test_events_are_only_counted() -> None:
    """Where a device reports every event, nothing bounds its part of a block."""
    shown, waiting, aside = run(Rule(pace="none", min_cohort=LEAST), [4, 0, 3, 4, 5])
    assert [(each.tally.reports, each.first, each.last) for each in shown] == [
        (11, START, START + datetime.timedelta(3))
    ]
    assert (waiting, aside) == (5, 0)
