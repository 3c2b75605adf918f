"""Tests of the active installations of a metric, which are computed from released blocks.

The tests check how a block is divided among its intervals, how an interval is marked if some of its
reports are not released, and that nobody can compute a small group by subtraction.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from collectors import metric_of, rules_of
from hypothesis import given
from hypothesis import strategies as st
from rappor_server.operations.closing import close_all
from rappor_server.queries.counts import JSON, CountsTask
from rappor_server.queries.query import Range
from rappor_server.releases.installations import (
    Block,
    join_small_shares,
    read_installations,
)
from rappor_server.storage import schema
from rappor_server.storage.blocks import rules_in_force
from rappor_server.storage.bulk import insert_rows
from rappor_server.storage.database import write_transaction
from rappor_server.storage.forgetting import forget
from rappor_server.storage.tallies import Tally
from registries import registry_of
from sqlalchemy import Engine

from rappor import Metric, Params
from rappor.counts.calendar_periods import DayRange
from rappor.counts.installations import Installations
from rappor.counts.released_counts import ReleasedCounts
from rappor.protocol.segments import Dimension

PARAMS = Params(k=2, h=1, m=4, f=0.5, p=0.25, q=0.75)
DAILY = metric_of(params=PARAMS, interval="day", min_reports=30, min_cohort=10)
WEEKLY = dataclasses.replace(DAILY, interval="week", epoch="quarter")
MONTHLY = dataclasses.replace(DAILY, interval="epoch", epoch="month")
MONDAY = datetime.date(2026, 11, 2)
"""First day of a week. The month began on the day before, and the quarter began on 1 October."""
FAR = datetime.date(2030, 1, 1)


def day(number: int) -> datetime.date:
    """Return a day, counted from MONDAY."""
    return MONDAY + datetime.timedelta(days=number)


def store(engine: Engine, on: datetime.date, metric: Metric, *cohorts: int) -> None:
    """Add the counters of a day: number of reports of each cohort."""
    params = metric.params
    rows = [
        (
            *(metric.name, params.fingerprint, on, cohort, number),
            Tally(number, np.array([number, 0])).to_bytes(),
        )
        for cohort, number in enumerate(cohorts)
        if number
    ]
    with write_transaction(engine) as db:
        insert_rows(db, schema.params, [(params.fingerprint, params.to_json())])
        insert_rows(db, schema.tally, rows)


def close(engine: Engine, today: datetime.date, *metrics: Metric) -> None:
    """Close the blocks of all days before a day, under registries with one metric each."""
    close_all(engine, rules_in_force([registry_of(metric) for metric in metrics]), today)


def list_numbers(installations: Installations) -> dict[str, float | None]:
    """Return the number of reports of each interval by the name of the interval."""
    return {interval.name: interval.reports for interval in installations.intervals}


def list_incomplete(installations: Installations) -> list[str]:
    """Return the names of the intervals of which a part is not released."""
    return [interval.name for interval in installations.intervals if not interval.is_complete]


def test_each_day_counts_its_reports(engine: Engine) -> None:
    """Four cohorts with blocks of one day. Today has not ended, and is left out."""
    for number, reports in enumerate((40, 44, 60)):
        store(engine, day(number), DAILY, *[reports // 4] * 4)
    close(engine, day(2), DAILY)
    installations = read_installations(engine, DAILY, FAR)
    assert list_numbers(installations) == {"2026-11-02": 40, "2026-11-03": 44}
    assert list_incomplete(installations) == []
    change = installations.compute_change()
    assert change is not None
    assert change.ratio == pytest.approx(0.1)


def test_a_block_counts_in_equal_parts_in_its_intervals(engine: Engine) -> None:
    """Cohort 0 has a block of Monday to Wednesday, and cohort 1 a block on each of these days."""
    for number, reports in enumerate((3, 4, 53)):
        store(engine, day(number), DAILY, reports, 90)
        close(engine, day(number + 1), DAILY)
    assert list_numbers(read_installations(engine, DAILY, FAR)) == {
        "2026-11-02": 90 + 20,
        "2026-11-03": 90 + 20,
        "2026-11-04": 90 + 20,
    }


def test_a_block_of_two_weeks_counts_half_in_each(engine: Engine) -> None:
    """A week from Monday to Sunday is one interval, however many of its days a block contains.

    Cohort 1 has one block of 8 + 72 reports. The block touches two weeks, so 40 reports count in
    each week.
    """
    store(engine, day(0), WEEKLY, 100, 8)
    close(engine, day(1), WEEKLY)
    store(engine, day(3), WEEKLY, 100)
    store(engine, day(6), WEEKLY, 50)
    store(engine, day(7), WEEKLY, 70, 72)
    close(engine, day(14), WEEKLY)
    # Only days with reports are moved into blocks, and a week counts once its last day or a later
    # day is moved. This report of the third week therefore completes the second week.
    store(engine, day(14), WEEKLY, 1)
    close(engine, day(15), WEEKLY)
    assert list_numbers(read_installations(engine, WEEKLY, FAR)) == {
        "2026-11-02/2026-11-08": 250 + 40,
        "2026-11-09/2026-11-15": 70 + 40,
    }


def test_only_epochs_that_have_ended_are_counted(engine: Engine) -> None:
    """With one report in an epoch, November is counted when 30 November has been moved into blocks.

    October is left out, because the collection began on its second day.
    """
    for on in ("2026-10-02", "2026-10-20", "2026-11-01", "2026-11-30", "2026-12-01", "2026-12-31"):
        store(engine, datetime.date.fromisoformat(on), MONTHLY, 40)
    months: dict[str, dict[str, int]] = {
        "2026-11-30": {},
        "2026-12-01": {"2026-11-01/2026-11-30": 80},
    }
    for today, numbers in months.items():
        close(engine, datetime.date.fromisoformat(today), MONTHLY)
        assert list_numbers(read_installations(engine, MONTHLY, FAR)) == numbers
    close(engine, datetime.date(2027, 1, 1), MONTHLY)
    installations = read_installations(engine, MONTHLY, FAR)
    assert list_numbers(installations) == {
        "2026-11-01/2026-11-30": 80,
        "2026-12-01/2026-12-31": 80,
    }
    assert installations.pace == "month"


def test_a_waiting_part_is_marked_without_a_number(engine: Engine) -> None:
    """Cohort 1 waits on Monday and Tuesday. Its days are incomplete until its block is closed."""
    store(engine, day(0), DAILY, 40, 3)
    close(engine, day(1), DAILY)
    store(engine, day(1), DAILY, 40, 4)
    close(engine, day(2), DAILY)
    waiting = read_installations(engine, DAILY, FAR)
    assert list_numbers(waiting) == {"2026-11-02": 40, "2026-11-03": 40}
    assert list_incomplete(waiting) == ["2026-11-02", "2026-11-03"]
    assert waiting.compute_change() is None
    store(engine, day(2), DAILY, 40, 83)
    close(engine, day(3), DAILY)
    installations = read_installations(engine, DAILY, FAR)
    assert list_numbers(installations) == dict.fromkeys(
        ("2026-11-02", "2026-11-03", "2026-11-04"), 70
    )
    assert list_incomplete(installations) == []


def test_a_day_of_which_nothing_is_released_has_no_number(engine: Engine) -> None:
    """On Tuesday all reports wait, for a block or for a window."""
    store(engine, day(0), DAILY, 40)
    store(engine, day(1), DAILY, 3, 12)
    close(engine, day(2), DAILY)
    installations = read_installations(engine, DAILY, FAR)
    assert list_numbers(installations) == {"2026-11-02": 40, "2026-11-03": None}
    assert list_incomplete(installations) == ["2026-11-03"]


def test_a_day_without_reports_has_no_number(engine: Engine) -> None:
    """Nothing waits either: devices may have been off, or reports were set aside."""
    store(engine, day(0), DAILY, 40)
    store(engine, day(2), DAILY, 40)
    close(engine, day(3), DAILY)
    installations = read_installations(engine, DAILY, FAR)
    assert list_numbers(installations) == {
        "2026-11-02": 40,
        "2026-11-03": None,
        "2026-11-04": 40,
    }
    assert list_incomplete(installations) == []


def test_a_reading_of_a_past_day_never_changes(engine: Engine) -> None:
    """A stored page of a day shows the same, although later windows have blocks of the day."""
    store(engine, day(0), DAILY, 40, 3)
    close(engine, day(1), DAILY)
    before = read_installations(engine, DAILY, day(0))
    store(engine, day(1), DAILY, 40, 57)
    close(engine, day(2), DAILY)
    assert read_installations(engine, DAILY, day(0)) == before
    assert list_numbers(before) == {"2026-11-02": 40}
    assert list_incomplete(before) == ["2026-11-02"]
    assert list_numbers(read_installations(engine, DAILY, day(1))) == {
        "2026-11-02": 70,
        "2026-11-03": 70,
    }


def test_devices_with_another_interval_are_not_counted(engine: Engine) -> None:
    """After the interval became a week, devices with the older registry still report daily."""
    older = dataclasses.replace(WEEKLY, interval="day")
    for number in range(7):
        store(engine, day(number), older, 40)
    store(engine, day(1), WEEKLY, 33)
    close(engine, day(7), WEEKLY, older)
    installations = read_installations(engine, WEEKLY, FAR)
    assert list_numbers(installations) == {"2026-11-02/2026-11-08": 33}
    assert installations.has_other_pace
    # For the older registry, the reports of seven days are those of seven intervals.
    daily = read_installations(engine, older, FAR)
    assert list_numbers(daily) == {f"{day(number)}": 40 for number in range(7)}
    assert daily.has_other_pace


def test_an_epoch_changes_weeks_but_no_days(engine: Engine) -> None:
    """A device with another epoch reports on the same days, and in other parts of some weeks."""
    for metric in (DAILY, WEEKLY):
        older = dataclasses.replace(metric, epoch="year")
        named, other = (
            dataclasses.replace(epoch, name=metric.interval) for epoch in (metric, older)
        )
        for registered in (named, other):
            store(engine, day(0), registered, 40)
            store(engine, day(6), registered, 41)
        close(engine, day(7), named, other)
    daily = read_installations(engine, dataclasses.replace(DAILY, name="day"), day(0))
    assert (list_numbers(daily), daily.has_other_pace) == ({"2026-11-02": 80}, False)
    weekly = read_installations(engine, dataclasses.replace(WEEKLY, name="week"), FAR)
    assert list_numbers(weekly) == {"2026-11-02/2026-11-08": 81}
    assert weekly.has_other_pace


def test_segments_and_parts_are_added_up(engine: Engine) -> None:
    """Each device is in one segment. A segment without a window is not released."""
    metric = dataclasses.replace(DAILY, segments=(Dimension("version", ("1", "2")),))
    one, two, rest = (
        metric.in_segment({"version": version}) for version in ("1", "2", "something else")
    )
    for segment, reports in ((one, 40), (two, 50), (rest, 12)):
        store(engine, day(0), segment, reports)
    close_all(engine, rules_of(metric), day(1))
    installations = read_installations(engine, metric, FAR)
    assert list_numbers(installations) == {"2026-11-02": 90}
    assert list_incomplete(installations) == ["2026-11-02"]


def test_a_metric_without_windows_has_no_interval(engine: Engine) -> None:
    """Before the first night, and as long as everything waits, there is no number."""
    assert read_installations(engine, DAILY, FAR).intervals == ()
    store(engine, day(0), DAILY, 5)
    close(engine, day(1), DAILY)
    assert read_installations(engine, DAILY, FAR).intervals == ()


def test_at_most_eight_intervals_are_returned(engine: Engine) -> None:
    """The latest day and the same day of the week before are among them."""
    for number in range(12):
        store(engine, day(number), DAILY, 40 + number)
        close(engine, day(number + 1), DAILY)
    assert list_numbers(read_installations(engine, DAILY, FAR)) == {
        f"{day(number)}": 40 + number for number in range(4, 12)
    }


def test_deleted_days_are_not_counted(engine: Engine) -> None:
    """With a retention, intervals begin with the date of the oldest window that was not deleted."""
    metric = dataclasses.replace(MONTHLY, retention="365 days")
    for month in (9, 10, 11):
        for number in (1, 2):
            store(engine, datetime.date(2026, month, number), metric, 40)
            close(engine, datetime.date(2026, month, number + 1), metric)
    close(engine, datetime.date(2026, 12, 1), metric)
    store(engine, datetime.date(2026, 12, 1), metric, 40)
    close(engine, datetime.date(2026, 12, 2), metric)
    forget(engine, metric.name, before=datetime.date(2026, 10, 2))
    assert list_numbers(read_installations(engine, metric, FAR)) == {"2026-11-01/2026-11-30": 80}


def test_the_counts_of_the_metric_contain_the_number(engine: Engine) -> None:
    """The JSON of a collector is read back, with and without periods; a range ends the intervals.

    Counts of a metric that is not counted have no number.
    """
    for number in range(3):
        store(engine, day(number), DAILY, 40 + number)
    close(engine, day(3), DAILY)
    for by in (None, "day"):
        for last, n_days in ((None, 3), ("2026-11-03", 2)):
            task = CountsTask(
                metric=DAILY,
                range=Range(first=None, last=last),
                params=None,
                media_type=JSON,
                by=by,
                counts_installations=True,
            )
            released = ReleasedCounts.from_json(task.run(engine, lambda _: None))
            assert released.installations is not None
            assert list_numbers(released.installations) == {
                f"{day(number)}": 40 + number for number in range(n_days)
            }
            uncounted = dataclasses.replace(task, counts_installations=False)
            without = ReleasedCounts.from_json(uncounted.run(engine, lambda _: None))
            assert without == dataclasses.replace(released, installations=None)


def test_a_rare_segment_is_not_found_by_subtraction(engine: Engine) -> None:
    """The example of the module: 12, 15 and 11 reports of a segment wait for one window.

    The other segment has a window each day, so a reader knows its number of devices of each day.
    Subtraction gives three equal numbers, which say nothing more than their sum, the window.
    """
    metric = dataclasses.replace(DAILY, segments=(Dimension("version", ("1", "2")),))
    common, rare = (metric.in_segment({"version": version}) for version in ("1", "2"))
    for number, reports in enumerate((12, 15, 11)):
        store(engine, day(number), common, 500 + number)
        store(engine, day(number), rare, reports)
        close_all(engine, rules_of(metric), day(number + 1))
    numbers = list_numbers(read_installations(engine, metric, FAR))
    shares = [(numbers[f"{day(number)}"] or 0) - (500 + number) for number in range(3)]
    assert shares == pytest.approx([38 / 3] * 3)


def test_a_later_minimum_does_not_divide_a_window_again(engine: Engine) -> None:
    """A window is divided by the minimum of the night in which it was formed.

    The window has 20, 21, 22, 23 and 24 reports on five days and was formed with a minimum of 100.
    So each day has the mean, 22 reports.

    If a reading divided the window by the minimum of the present registry, two readings could be
    subtracted. With a minimum of 24, the last day is a group of 24 reports. With a minimum of 30,
    the last two days are a group of 47. The difference shows the 23 reports of a single day.
    """
    reports = [20, 21, 22, 23, 24]
    blocks = [Block(((day(number), day(number)),), n) for number, n in enumerate(reports)]
    last_day, last_two_days = (day(4), day(4)), [(day(3), day(3)), (day(4), day(4))]
    assert join_small_shares(blocks, 24)[last_day] == 24
    assert sum(join_small_shares(blocks, 30)[interval] for interval in last_two_days) == 47
    for number, n in enumerate(reports):
        store(engine, day(number), DAILY, n)
        close(engine, day(number + 1), dataclasses.replace(DAILY, min_reports=100))
    for minimum in (24, 30, 100):
        later = dataclasses.replace(DAILY, min_reports=minimum)
        numbers = list_numbers(read_installations(engine, later, FAR))
        assert numbers == {f"{day(number)}": 22 for number in range(5)}


def test_a_small_block_is_not_found_by_subtraction_of_two_days() -> None:
    """A block of 12 reports on Wednesday beside a block of Tuesday and Wednesday.

    The shares 30 and 42 both have the minimum, and their difference would be the block of 12.
    """
    tuesday, wednesday = ((day(number), day(number)) for number in (1, 2))
    blocks = [Block((tuesday, wednesday), 60), Block((wednesday,), 12)]
    assert join_small_shares(blocks, 30) == {tuesday: 36, wednesday: 36}
    # A larger block of Wednesday may be known.
    blocks = [Block((tuesday, wednesday), 60), Block((wednesday,), 40)]
    assert join_small_shares(blocks, 30) == {tuesday: 30, wednesday: 70}


BLOCKS = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3), st.integers(1, 60)), min_size=1)
"""First day, number of days and number of reports of each block of a window."""


@given(sizes=BLOCKS, minimum=st.integers(1, 100))
def test_no_sum_of_numbers_of_a_window_contains_less_than_the_minimum(
    sizes: list[tuple[int, int, int]], minimum: int
) -> None:
    """Whatever weights a reader gives the days, the blocks that do not cancel have the minimum.

    All numbers together are the reports of the window, and days with enough reports stay single.
    """
    minimum = min(minimum, sum(reports for _, _, reports in sizes))
    blocks = [
        Block(tuple((day(first + i), day(first + i)) for i in range(n_days)), reports)
        for first, n_days, reports in sizes
    ]
    joined = join_small_shares(blocks, minimum)
    assert sum(joined.values()) == sum(block.reports for block in blocks)
    # The number of a day is linear in the blocks once the groups are known: the first group also
    # gets all earlier shares. Days of one group have equal numbers.
    days = sorted(joined)
    groups: list[list[DayRange]] = [[days[0]]]
    for interval in days[1:]:
        is_same = joined[interval] == joined[groups[-1][0]]
        groups[-1 if is_same else len(groups) :] = (
            [[*groups[-1], interval]] if is_same else [[interval]]
        )
    parts = [
        [
            sum(
                (group[0] <= touched or group is groups[0]) and touched <= group[-1]
                for touched in block.intervals
            )
            / Fraction(len(block.intervals))
            for block in blocks
        ]
        for group in groups
    ]
    for weights in itertools.product(range(-2, 3), repeat=len(groups)):
        if any(weights):
            visible = [
                block.reports
                for i, block in enumerate(blocks)
                if sum(weight * part[i] for weight, part in zip(weights, parts, strict=True))
            ]
            assert sum(visible) >= minimum
    assert all(sum(joined[interval] for interval in group) >= minimum for group in groups)
    begun: Counter[DayRange] = Counter()
    for block in blocks:
        begun[block.intervals[0]] += block.reports
    if all(len(block.intervals) == 1 for block in blocks) and min(begun.values()) >= minimum:
        assert joined == begun
