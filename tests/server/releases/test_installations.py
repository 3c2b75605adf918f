"""Active installations: the number of devices that reported a metric, by interval.

`rappor_server.releases.installations` computes the numbers from release windows. A window contains
closed blocks, and is formed when it has `min_reports` reports of one fingerprint. A block is closed
when it has `min_cohort` reports for each of its intervals. The rules under test are:

    division        a block that touches d intervals counts with 1/d of its reports in each
    completeness    an interval is incomplete while reports of one of its days wait
    sampling rate   each window is divided by the rate of its own night, or has no rate
    subtraction     no difference of numbers shows fewer reports of a segment than a window needs

The metrics of the tests need 30 reports for a window (`min_reports`), and 10 for a block
(`min_cohort`). Tests give each cohort so many reports that a block is closed on the same day
(at least 10), or that it waits (fewer).
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from collections import Counter, defaultdict
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from collectors import build_metric, build_rules
from databases import ON_BOTH_DATABASES
from hypothesis import given, settings
from hypothesis import strategies as st
from rappor_server.operations.closing import close_all
from rappor_server.queries.counts import JSON, CountsTask
from rappor_server.queries.query import Range
from rappor_server.releases.installations import (
    Block,
    Parts,
    add_shares,
    join_small_shares,
    list_parts,
    read_installations,
)
from rappor_server.storage import schema
from rappor_server.storage.blocks import rules_in_force
from rappor_server.storage.bulk import insert_rows
from rappor_server.storage.database import write_transaction
from rappor_server.storage.forgetting import forget
from rappor_server.storage.release_windows import record_rules
from rappor_server.storage.tallies import Tally
from registries import build_registry
from sqlalchemy import Engine

from rappor import Metric, Params
from rappor.counts.calendar_periods import DayRange
from rappor.counts.installations import ActiveInterval, Installations
from rappor.counts.released_counts import ReleasedCounts
from rappor.protocol.segments import Dimension

PARAMS = Params(k=2, h=1, m=4, f=0.5, p=0.25, q=0.75)
DAILY = build_metric(params=PARAMS, interval="day", min_reports=30, min_cohort=10)
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
        insert_rows(db, schema.params, [(params.fingerprint, params.to_json())], skip_stored=True)
        insert_rows(db, schema.tally, rows)


def close(engine: Engine, today: datetime.date, *metrics: Metric) -> None:
    """Close the blocks of all days before a day, under registries with one metric each."""
    close_all(engine, rules_in_force([build_registry(metric) for metric in metrics]), today)


def list_numbers(installations: Installations) -> dict[str, float | None]:
    """Return the number of reports of each interval, by its name: a day, or first/last day."""
    return {interval.name: interval.reports for interval in installations.intervals}


def list_devices(installations: Installations) -> list[Any]:
    """Return the number of devices of each interval and its standard error, or None."""
    return [interval.estimate_devices() for interval in installations.intervals]


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
        current_version, older_version = (
            dataclasses.replace(version, name=metric.interval) for version in (metric, older)
        )
        for registered in (current_version, older_version):
            store(engine, day(0), registered, 40)
            store(engine, day(6), registered, 41)
        close(engine, day(7), current_version, older_version)
    daily = read_installations(engine, dataclasses.replace(DAILY, name="day"), day(0))
    assert (list_numbers(daily), daily.has_other_pace) == ({"2026-11-02": 80}, False)
    weekly = read_installations(engine, dataclasses.replace(WEEKLY, name="week"), FAR)
    assert list_numbers(weekly) == {"2026-11-02/2026-11-08": 81}
    assert weekly.has_other_pace


@ON_BOTH_DATABASES
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
    close_all(engine, build_rules(metric), day(1))
    installations = read_installations(engine, metric, FAR)
    assert list_numbers(installations) == {"2026-11-02": 90}
    assert list_incomplete(installations) == ["2026-11-02"]


def test_a_metric_without_windows_has_no_interval(engine: Engine) -> None:
    """A metric without a window has no interval: before the first night, or if all reports wait."""
    assert read_installations(engine, DAILY, FAR).intervals == ()
    store(engine, day(0), DAILY, 5)
    close(engine, day(1), DAILY)
    assert read_installations(engine, DAILY, FAR).intervals == ()


def sample(metric: Metric, rate: float) -> Metric:
    """Return a metric with a sampling rate."""
    return dataclasses.replace(metric, sampling_rate=rate)


def test_each_day_is_divided_by_its_own_rate(engine: Engine) -> None:
    """A change of the rate changes no number of the past.

    The rate falls from 1/2 to 1/4 between the nights after the days 1 and 2. The reports of day 2
    may have both rates, so there is no number of its devices.
    """
    rates = (0.5, 0.5, 0.25, 0.25)
    for number, rate in enumerate(rates):
        store(engine, day(number), DAILY, 40)
        close(engine, day(number + 1), sample(DAILY, rate))
    devices_at_half, devices_at_quarter = (
        (80, pytest.approx(80**0.5)),
        (160, pytest.approx(480**0.5)),
    )
    # The registry of today does not matter.
    for rate in (1, 0.25):
        installations = read_installations(engine, sample(DAILY, rate), FAR)
        assert list_devices(installations) == [
            devices_at_half,
            devices_at_half,
            None,
            devices_at_quarter,
        ]
    assert list(list_numbers(installations).values()) == [40] * 4


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)  # PostgreSQL has a clock
def test_a_rate_that_changes_and_changes_back_within_a_day_gives_no_number(engine: Engine) -> None:
    """A day has no number of devices if its rate changed at noon and changed back in the evening.

    The nights before and after day 1 have the same rate, so only the record of the reload at noon
    shows the change. The fingerprint of day 0 is new: its rate before the first night was recorded
    when the registry came into force.
    """
    half_rate, full_rate = (build_rules(sample(DAILY, rate)) for rate in (0.5, 1))
    record_rules(engine, half_rate, day(0))
    for number in range(3):
        store(engine, day(number), DAILY, 40)
        if number == 1:
            record_rules(engine, full_rate, day(1))
            record_rules(engine, half_rate, day(1))
        record_rules(engine, half_rate, day(number))  # an unchanged registry changes nothing
        close_all(engine, half_rate, day(number + 1))
    devices = list_devices(read_installations(engine, sample(DAILY, 0.5), FAR))
    assert devices == [(80, pytest.approx(80**0.5)), None, (80, pytest.approx(80**0.5))]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)  # PostgreSQL has a clock
def test_a_rate_that_changes_before_the_first_night_gives_no_number(engine: Engine) -> None:
    """The first day of a fingerprint has no number of devices if its rate changed on this day."""
    half_rate, full_rate = (build_rules(sample(DAILY, rate)) for rate in (0.5, 1))
    record_rules(engine, half_rate, day(0))
    store(engine, day(0), DAILY, 40)
    record_rules(engine, full_rate, day(0))
    close_all(engine, full_rate, day(1))
    store(engine, day(1), DAILY, 40)
    close_all(engine, full_rate, day(2))
    assert list_devices(read_installations(engine, DAILY, FAR)) == [None, (40, 0)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)  # PostgreSQL has a clock
def test_a_rate_of_one_host_that_is_in_force_for_a_day_gives_no_number(engine: Engine) -> None:
    """A host has another rate for one day, and another host closes the day before with the old one.

    The run that closes day 0 records the change back for day 0. It must not hide the change of
    day 1. Day 0 has no number either, because it was closed after the change.
    """
    half_rate, full_rate = (build_rules(sample(DAILY, rate)) for rate in (0.5, 1))
    record_rules(engine, half_rate, day(0))
    for number in range(3):
        if number == 1:
            record_rules(engine, full_rate, day(1))
        store(engine, day(number), DAILY, 40)
        close_all(engine, half_rate, day(number))
    close_all(engine, half_rate, day(3))
    devices = list_devices(read_installations(engine, sample(DAILY, 0.5), FAR))
    assert devices == [None, None, (80, pytest.approx(80**0.5))]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)  # PostgreSQL has a clock
def test_a_rate_that_changes_after_forget_gives_no_number(engine: Engine) -> None:
    """The reports were deleted in the morning, more came, and the rate changed at noon.

    The reports since the morning may have either rate, so there is no number of their devices.
    """
    half_rate, full_rate = (build_rules(sample(DAILY, rate)) for rate in (0.5, 1))
    record_rules(engine, half_rate, day(0))
    forget(engine, DAILY.name)
    store(engine, day(0), DAILY, 40)
    record_rules(engine, full_rate, day(0))
    close_all(engine, full_rate, day(1))
    store(engine, day(1), DAILY, 40)
    close_all(engine, full_rate, day(2))
    assert list_devices(read_installations(engine, DAILY, FAR)) == [None, (40, 0)]


def test_registries_that_disagree_on_the_rate_give_no_number(engine: Engine) -> None:
    """Reports have no known rate while `older` has another rate for their fingerprint.

    The fingerprint of the older registry with other parameters has one rate, so its reports and
    those of the current registry are divided by their own rates.
    """
    current, older = sample(DAILY, 1), sample(DAILY, 0.5)
    other_params = dataclasses.replace(older, params=dataclasses.replace(PARAMS, p=0.2))
    in_force = ((current, older), (current, older), (current,), (current, other_params))
    for number, registries in enumerate(in_force):
        store(engine, day(number), current, 40)
        close(engine, day(number + 1), *registries)
    store(engine, day(4), current, 40)
    store(engine, day(4), other_params, 50)
    close(engine, day(5), current, other_params)
    installations = read_installations(engine, current, FAR)
    devices_of_both = (40 + 100, pytest.approx(100**0.5))
    # Day 2 has the reports of the day on which the older registry was removed.
    assert list_devices(installations) == [None, None, None, (40, 0), devices_of_both]
    assert installations.intervals[0].has_unknown_rate


def test_a_block_across_a_change_of_the_rate_has_no_number(engine: Engine) -> None:
    """The 4 reports of Monday wait for 56 of Wednesday. The rate changes on Tuesday.

    Cohort 1 has 40 reports each day. The days that the block touches have no number, also Monday.
    """
    for number, (reports, rate) in enumerate(((4, 0.5), (0, 0.25), (56, 0.25), (60, 0.25))):
        store(engine, day(number), DAILY, reports, 40)
        close(engine, day(number + 1), sample(DAILY, rate))
    devices = list_devices(read_installations(engine, DAILY, FAR))
    assert devices == [None, None, None, (400, pytest.approx(1200**0.5))]


def test_days_of_a_backlog_have_the_rate_of_no_registry(engine: Engine) -> None:
    """The days 1 and 2 are moved after the change, in the night after day 2.

    The rate may have changed on each of them.
    """
    store(engine, day(0), DAILY, 40)
    close(engine, day(1), sample(DAILY, 0.5))
    for number in (1, 2):
        store(engine, day(number), DAILY, 40)
    close(engine, day(3), sample(DAILY, 1))
    store(engine, day(3), DAILY, 40)
    close(engine, day(4), sample(DAILY, 1))
    devices = list_devices(read_installations(engine, DAILY, FAR))
    assert devices == [(80, pytest.approx(80**0.5)), None, None, (40, 0)]


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


@pytest.mark.parametrize("retention", [None, "365 days"])
def test_deleted_days_are_not_counted(engine: Engine, retention: str | None) -> None:
    """No interval begins before the first day that `forget` kept.

    There are windows of the first two days of September, October and November. The windows before
    2 October are deleted, so October has lost a part of its reports, and is left out. December has
    not ended.
    """
    metric = dataclasses.replace(MONTHLY, retention=retention)
    for month in (9, 10, 11):
        for number in (1, 2):
            store(engine, datetime.date(2026, month, number), metric, 40)
            close(engine, datetime.date(2026, month, number + 1), metric)
    close(engine, datetime.date(2026, 12, 1), metric)
    store(engine, datetime.date(2026, 12, 1), metric, 40)
    close(engine, datetime.date(2026, 12, 2), metric)
    forget(engine, metric.name, before=datetime.date(2026, 10, 2))
    assert list_numbers(read_installations(engine, metric, FAR)) == {"2026-11-01/2026-11-30": 80}


def test_a_window_across_the_first_kept_day_counts_as_a_whole(engine: Engine) -> None:
    """The window dated Wednesday has blocks of 12, 15 and 11 reports on three days.

    `forget` keeps the days from Tuesday on. The window stays with the block of Monday, so each of
    its days has a third of 38 reports. Monday is left out, because other windows of Monday may have
    been deleted.
    """
    store(engine, day(-1), DAILY, 40)
    for number, reports in enumerate((12, 15, 11)):
        store(engine, day(number), DAILY, reports)
        close(engine, day(number + 1), DAILY)
    before = list_numbers(read_installations(engine, DAILY, FAR))
    assert before == {f"{day(-1)}": 40} | {
        f"{day(number)}": pytest.approx(38 / 3) for number in range(3)
    }
    forget(engine, DAILY.name, before=day(1))
    after = list_numbers(read_installations(engine, DAILY, FAR))
    assert after == {name: before[name] for name in (f"{day(1)}", f"{day(2)}")}


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
        close_all(engine, build_rules(metric), day(number + 1))
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


def make_blocks(sizes: list[tuple[int, int, int]]) -> list[Block]:
    """Return blocks with a first day, a number of days and a number of reports."""
    return [
        Block(tuple((day(first + i), day(first + i)) for i in range(n_days)), reports)
        for first, n_days, reports in sizes
    ]


def list_groups(numbers: dict[DayRange, Fraction]) -> list[list[DayRange]]:
    """Return the groups of a window: neighbouring days with equal numbers."""
    days = sorted(numbers)
    groups: list[list[DayRange]] = [[days[0]]]
    for interval in days[1:]:
        is_same = numbers[interval] == numbers[groups[-1][0]]
        groups[-1 if is_same else len(groups) :] = (
            [[*groups[-1], interval]] if is_same else [[interval]]
        )
    return groups


def divide_group(group: list[DayRange], blocks: list[Block], *, is_first: bool) -> list[Fraction]:
    """Return, for each block, the fraction of its reports that the numbers of a group contain.

    The sum of the numbers of a group is linear in the reports of the blocks: once the groups are
    known, it is the sum over the blocks of this fraction times the reports. The first group also
    contains the shares of all days before it.
    """
    return [
        sum(
            (group[0] <= interval or is_first) and interval <= group[-1]
            for interval in block.intervals
        )
        / Fraction(len(block.intervals))
        for block in blocks
    ]


@settings(max_examples=500)
@given(sizes=BLOCKS, minimum=st.integers(1, 100))
def test_no_sum_of_numbers_of_a_window_contains_less_than_the_minimum(
    sizes: list[tuple[int, int, int]], minimum: int
) -> None:
    """Whatever weights a reader gives the days, the blocks that do not cancel have the minimum.

    All numbers together are the reports of the window, and days with enough reports stay single.
    """
    minimum = min(minimum, sum(reports for _, _, reports in sizes))
    blocks = make_blocks(sizes)
    numbers_of_days = join_small_shares(blocks, minimum)
    assert sum(numbers_of_days.values()) == sum(block.reports for block in blocks)
    groups = list_groups(numbers_of_days)
    parts = [divide_group(group, blocks, is_first=group is groups[0]) for group in groups]
    scaled_parts = np.array([[int(SCALE * share) for share in part] for part in parts])
    assert all(int(SCALE * share) == SCALE * share for part in parts for share in part)
    weights = np.array([*itertools.product(range(-2, 3), repeat=len(groups))])
    is_visible = weights[weights.any(axis=1)] @ scaled_parts != 0
    assert (is_visible @ np.array([block.reports for block in blocks]) >= minimum).all()
    assert all(sum(numbers_of_days[interval] for interval in group) >= minimum for group in groups)
    begun: Counter[DayRange] = Counter()
    for block in blocks:
        begun[block.intervals[0]] += block.reports
    if all(len(block.intervals) == 1 for block in blocks) and min(begun.values()) >= minimum:
        assert numbers_of_days == begun


RATES = st.sampled_from([0.1, 0.5, 1.0, None])
SCALE = 6 * 420
"""A multiple of all denominators of parts: a block has up to 3 days, and a group up to 7 days."""
MULTIPLES = tuple(itertools.product((1, 2, 5, 10), repeat=2))
"""Pairs of factors for two numbers. Their ratios contain those of all sampling rates."""
WINDOWS = st.lists(st.tuples(BLOCKS, st.integers(1, 100), RATES), min_size=1, max_size=3)
"""Blocks, minimum and sampling rate of some windows."""


@given(windows=WINDOWS)
@settings(max_examples=50, deadline=None)
def test_rates_that_change_show_no_less_than_the_minimum(
    windows: list[tuple[list[tuple[int, int, int]], int, float | None]],
) -> None:
    """Whatever numbers a reader subtracts, the blocks of a window that remain have its minimum.

    The windows have fingerprints and sampling rates of their own. A reader reads all numbers after
    each window: the reports by rate, all reports, and the devices. The reader subtracts a multiple
    of one number from a multiple of another.
    """
    blocks_of_windows = [make_blocks(sizes) for sizes, _, _ in windows]
    reports = np.array([block.reports for blocks in blocks_of_windows for block in blocks])
    ends = np.cumsum([len(blocks) for blocks in blocks_of_windows])
    slices = [
        slice(end - len(blocks), end) for end, blocks in zip(ends, blocks_of_windows, strict=True)
    ]
    minimums = [
        min(minimum, sum(reports[window]))
        for window, (_, minimum, _) in zip(slices, windows, strict=True)
    ]
    numbers: Parts = defaultdict(dict)
    # The part of each block in the reports of each interval and rate.
    parts: dict[DayRange, dict[float | None, Any]] = defaultdict(dict)
    read: list[Any] = []  # the parts of each block in each number that is read
    for i, (blocks, window) in enumerate(zip(blocks_of_windows, slices, strict=True)):
        rate = windows[i][2]
        joined = join_small_shares(blocks, minimums[i])
        add_shares(numbers, joined, rate)
        groups = list_groups(joined)
        for group in groups:
            of_group = divide_group(group, blocks, is_first=group is groups[0])
            for interval in group:
                of_rate = parts[interval].setdefault(rate, np.zeros(len(reports), dtype=np.int64))
                of_rate[window] += [int(SCALE * part / len(group)) for part in of_group]
        for interval, by_rate in numbers.items():
            active = ActiveInterval(
                first=interval[0], last=interval[1], parts=list_parts(by_rate), is_complete=True
            )
            of_rates = [parts[interval][part.sampling_rate] for part in active.parts]
            for part, of_rate in zip(active.parts, of_rates, strict=True):
                assert part.reports == pytest.approx(of_rate @ reports / SCALE)
            read += [*of_rates, sum(of_rates)]
            estimate = active.estimate_devices()
            if estimate is not None:
                devices = sum(
                    of_rate * round(1 / part.sampling_rate)
                    for part, of_rate in zip(active.parts, of_rates, strict=True)
                    if part.sampling_rate
                )
                assert estimate[0] == pytest.approx(devices @ reports / SCALE)
                read.append(devices)
    matrix = np.unique(np.array(read), axis=0)
    for factor, other_factor in MULTIPLES:
        differences = factor * matrix[:, None] - other_factor * matrix[None]
        for window, minimum in zip(slices, minimums, strict=True):
            visible = (differences[..., window] != 0) @ reports[window]
            assert ((visible == 0) | (visible >= minimum)).all()
