"""Active installations: the number of devices that reported a metric, by interval.

`rappor_server.releases.installations` computes the numbers from release windows. A window contains
closed blocks, and is formed when it has `min_reports` reports of one fingerprint. A block is closed
when it has `min_cohort` reports for each of its intervals. The rules under test are:

    division        a block that touches d intervals counts with 1/d of its reports in each
    completeness    an interval is incomplete while reports of one of its days wait
    subtraction     no difference of numbers shows fewer reports of a segment than a window needs

The metrics of the tests need 30 reports for a window (`min_reports`), and 10 for a block
(`min_cohort`). Tests give each cohort so many reports that a block is closed on the same day
(at least 10), or that it waits (fewer).
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
"""Results through this day contain all windows of the tests."""


def day(number: int) -> datetime.date:
    """Return a day, counted from MONDAY."""
    return MONDAY + datetime.timedelta(days=number)


def store(engine: Engine, on: datetime.date, metric: Metric, *cohorts: int) -> None:
    """Add the counters of a day. `cohorts` has the number of reports of cohort 0, 1, ..."""
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
    """Return the number of reports of each interval, by its name: a day, or first/last day."""
    return {interval.name: interval.reports for interval in installations.intervals}


def list_incomplete(installations: Installations) -> list[str]:
    """Return the names of the intervals of which a part is not released."""
    return [interval.name for interval in installations.intervals if not interval.is_complete]


def test_each_day_counts_its_reports(engine: Engine) -> None:
    """A day has the sum of the reports of its four cohorts. Each cohort has a block of one day.

    The third day is today. It has not ended, so it has no number.
    """
    for number, reports in enumerate((40, 44, 60)):
        store(engine, day(number), DAILY, *[reports // 4] * 4)
    close(engine, day(2), DAILY)
    installations = read_installations(engine, DAILY, FAR)
    assert list_numbers(installations) == {"2026-11-02": 40, "2026-11-03": 44}
    assert list_incomplete(installations) == []
    change = installations.compute_change()
    assert change is not None
    assert change.ratio == pytest.approx(0.1)  # from 40 to 44


def test_a_block_counts_in_equal_parts_in_its_intervals(engine: Engine) -> None:
    """A block of three days counts with a third of its reports on each day.

    Cohort 0 has a block of Monday to Wednesday with 3 + 4 + 53 = 60 reports, because Monday and
    Tuesday have too few. Cohort 1 has a block of 90 reports on each of these days.
    """
    for number, reports in enumerate((3, 4, 53)):
        store(engine, day(number), DAILY, reports, 90)
        close(engine, day(number + 1), DAILY)
    assert list_numbers(read_installations(engine, DAILY, FAR)) == {
        "2026-11-02": 90 + 20,
        "2026-11-03": 90 + 20,
        "2026-11-04": 90 + 20,
    }


def test_a_block_of_two_weeks_counts_half_in_each(engine: Engine) -> None:
    """A block that touches two weeks counts with half of its reports in each week.

    Cohort 0 has 250 reports in blocks of the first week, and 70 in the second week. Cohort 1 has a
    block from the first Monday to the second with 8 + 72 = 80 reports. It counts as two halves of
    40 reports, although it has one day of the second week.
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
    """A month is counted after its last day has been moved into blocks.

    The metric has one report in a month. Nothing is counted on 30 November. On 1 December the 40
    reports each of 1 and 30 November are counted. October is left out, because the collection began
    on its second day.
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
    """A day is incomplete while some of its reports wait, and says nothing about their number.

    Cohort 0 has a block of 40 reports on each day. The 3 and 4 reports of cohort 1 wait on Monday
    and Tuesday. On Wednesday 83 more reports close a block of 90, which counts with 30 on each day.
    """
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
    """A day has no number if all of its reports wait.

    On Tuesday 3 reports of cohort 0 are too few for a block. The block of 12 reports of cohort 1 is
    closed, but it is too small for a window.
    """
    store(engine, day(0), DAILY, 40)
    store(engine, day(1), DAILY, 3, 12)
    close(engine, day(2), DAILY)
    installations = read_installations(engine, DAILY, FAR)
    assert list_numbers(installations) == {"2026-11-02": 40, "2026-11-03": None}
    assert list_incomplete(installations) == ["2026-11-03"]


def test_a_day_without_reports_has_no_number(engine: Engine) -> None:
    """A day without reports has no number, and is complete, because nothing waits.

    A number of 0 would be wrong: the reports of the day may have been set aside.
    """
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
    """The result through a day stays the same, although later windows have blocks of the day.

    The 3 reports of Monday that wait are in a block with 57 reports of Tuesday. The result through
    Monday does not contain this block. The result through Tuesday counts 30 of its reports on each
    day, beside the 40 reports of cohort 0.
    """
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
    """Devices with another interval are not counted, and the result says so (`has_other_pace`).

    The interval of the metric became a week. Devices with the older registry still report daily.
    Seven reports of such a device are no seven devices of a week.
    """
    older = dataclasses.replace(WEEKLY, interval="day")
    for number in range(7):
        store(engine, day(number), older, 40)
    store(engine, day(1), WEEKLY, 33)
    close(engine, day(7), WEEKLY, older)
    installations = read_installations(engine, WEEKLY, FAR)
    assert list_numbers(installations) == {"2026-11-02/2026-11-08": 33}
    assert installations.has_other_pace
    # For the older registry, a day is an interval. The 33 weekly reports are not counted.
    daily = read_installations(engine, older, FAR)
    assert list_numbers(daily) == {f"{day(number)}": 40 for number in range(7)}
    assert daily.has_other_pace


def test_an_epoch_changes_weeks_but_no_days(engine: Engine) -> None:
    """Devices with another epoch count if the interval is a day, and not if it is a week.

    A week ends with its epoch, so weeks of different epochs are different intervals. Days are the
    same in all epochs. The older registry of both metrics has years as epochs. The metrics have the
    names `day` and `week`.
    """
    for metric in (DAILY, WEEKLY):
        older = dataclasses.replace(metric, epoch="year")
        current, former = (
            dataclasses.replace(version, name=metric.interval) for version in (metric, older)
        )
        for registered in (current, former):
            store(engine, day(0), registered, 40)
            store(engine, day(6), registered, 41)
        close(engine, day(7), current, former)
    daily = read_installations(engine, dataclasses.replace(DAILY, name="day"), day(0))
    assert (list_numbers(daily), daily.has_other_pace) == ({"2026-11-02": 80}, False)
    weekly = read_installations(engine, dataclasses.replace(WEEKLY, name="week"), FAR)
    assert list_numbers(weekly) == {"2026-11-02/2026-11-08": 81}
    assert weekly.has_other_pace


def test_segments_and_parts_are_added_up(engine: Engine) -> None:
    """The numbers of all segments are added, because each device is in one segment.

    The 12 reports of the segment of other versions are too few for a window. They are not counted,
    and the day is incomplete.
    """
    metric = dataclasses.replace(DAILY, segments=(Dimension("version", ("1", "2")),))
    version_1, version_2, other_versions = (
        metric.in_segment({"version": version}) for version in ("1", "2", "something else")
    )
    for segment, reports in ((version_1, 40), (version_2, 50), (other_versions, 12)):
        store(engine, day(0), segment, reports)
    close_all(engine, rules_of(metric), day(1))
    installations = read_installations(engine, metric, FAR)
    assert list_numbers(installations) == {"2026-11-02": 90}
    assert list_incomplete(installations) == ["2026-11-02"]


def test_a_metric_without_windows_has_no_interval(engine: Engine) -> None:
    """A metric without a window has no interval: before the first night, or if all reports wait."""
    assert read_installations(engine, DAILY, FAR).intervals == ()
    store(engine, day(0), DAILY, 5)
    close(engine, day(1), DAILY)
    assert read_installations(engine, DAILY, FAR).intervals == ()


def test_at_most_eight_intervals_are_returned(engine: Engine) -> None:
    """A result has the last eight intervals. Of days, they have the same day a week earlier, too.

    Of twelve days, the days 4 to 11 are returned.
    """
    for number in range(12):
        store(engine, day(number), DAILY, 40 + number)
        close(engine, day(number + 1), DAILY)
    assert list_numbers(read_installations(engine, DAILY, FAR)) == {
        f"{day(number)}": 40 + number for number in range(4, 12)
    }


def test_deleted_days_are_not_counted(engine: Engine) -> None:
    """With a retention, no interval begins before the date of the oldest window that remains.

    There are windows of the first two days of September, October and November. The windows before
    2 October are deleted, so October has lost a part of its reports, and is left out. December has
    not ended.
    """
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
    """The JSON of counts contains the installations, and `ReleasedCounts` reads them back.

    The cases are counts of all days together (`by` = None) or of each day, with and without a last
    day, which is the last day of the installations, too. If installations are not requested, only
    they are missing.
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
    """Subtracting the known segments does not show the days of a segment with few reports.

    The rare segment has 12, 15 and 11 reports on three days, and one window of all 38 reports. The
    common segment has a window each day, so a reader can subtract its numbers. The differences are
    three equal numbers. They add to the 38 reports of the window, and show nothing more.
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
