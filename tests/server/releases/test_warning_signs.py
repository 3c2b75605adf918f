"""Warning signs: overfull cohorts and small blocks.

A flood of forged reports may fill one cohort. A block is small if it was closed under a smaller
`min_cohort` than the present one.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from collectors import (
    ACCEPTED,
    build_metric,
    build_report,
    build_upload,
    close_days,
    commit,
    day,
)
from databases import ON_BOTH_DATABASES
from rappor_server.releases.overviews import (
    CohortReports,
    count_max_reports_in_cohort,
    read_overviews,
)
from rappor_server.releases.warning_signs import (
    OverfullCohort,
    count_in_small_blocks,
    find_overfull_cohorts,
)
from rappor_server.storage import schema
from rappor_server.storage.bulk import insert_rows
from rappor_server.storage.database import write_transaction
from rappor_server.storage.release_windows import BlockKey, BlockTotal, add_block_totals
from sqlalchemy import Engine

from rappor.counts.squared_reports import count_max_reports


@pytest.mark.parametrize(
    ("reports", "overfull"),
    [
        ([2500, 2450, 2550, 2500], []),
        ([2500, 2450, 2550, 9000], [3]),
        ([3983, 3983, 3982, 4552], []),
        ([3983, 3982, 3982, 4553], [3]),
        ([0, 0, 0, 0], []),
    ],
)
def test_overfull_cohorts_show_a_flood(reports: list[int], overfull: list[int]) -> None:
    """A cohort is overfull if it has more reports than the bound for honest devices.

    For n = 16,500 reports in m = 4 cohorts, an honest cohort has at most
    n / m + sqrt(n log(m / 1e-9) / 2) = 4,552 reports. The second, third and fourth case have 16,500
    reports.
    """
    cohorts = CohortReports(fingerprint="f", reports=np.array(reports), max_of_device=1)
    expected = tuple(OverfullCohort("f", j, reports[j]) for j in overfull)
    assert find_overfull_cohorts([cohorts]) == expected


@pytest.mark.parametrize("m", [2, 8, 32, 128])
@pytest.mark.parametrize("max_of_device", [1, 31, 92, 366])
def test_repeated_reports_of_honest_devices_are_no_flood(m: int, max_of_device: int) -> None:
    """No cohort of honest devices is overfull, however many reports each device sends.

    Half of the devices send a report in each interval, and half of them one report. The probability
    that a cohort exceeds its bound is 1e-9 at most. If as many reports as all devices send come in
    one cohort, this cohort is overfull: 200 devices for each cohort are enough.
    """
    generator = np.random.default_rng()
    daily_devices, single_devices = (generator.multinomial(100 * m, [1 / m] * m) for _ in range(2))
    reports = max_of_device * daily_devices + single_devices
    cohorts = CohortReports(fingerprint="f", reports=reports, max_of_device=max_of_device)
    assert find_overfull_cohorts([cohorts]) == ()
    reports[0] += reports.sum()
    (overfull,) = find_overfull_cohorts([cohorts])
    assert overfull.cohort == 0


@pytest.mark.parametrize(
    ("interval", "epoch", "n_days", "expected"),
    [
        ("day", "month", 40, 31),
        ("day", "month", 3, 3),
        ("day", "life", 400, 400),
        ("week", "quarter", 365, 14),
        ("epoch", "month", 365, 1),
    ],
)
def test_reports_of_a_device_in_a_cohort_are_limited_by_an_epoch(
    interval: str, epoch: str, n_days: int, expected: int
) -> None:
    """A device sends a report in each interval of an epoch, and has a new cohort afterwards.

    A quarter of 92 days contains days of at most 14 weeks.
    """
    params = build_metric(interval=interval, epoch=epoch).params
    assert count_max_reports_in_cohort(params, day(0), day(n_days - 1)) == expected


@pytest.mark.parametrize("min_reports", [0, 5])
def test_an_overview_has_the_largest_number_of_reports_of_a_device(
    engine: Engine, min_reports: int
) -> None:
    """An overview of three days of a daily metric has three reports of a device at most.

    The metric with a minimum is released in blocks, and the metric without one in counters.
    """
    metric = dataclasses.replace(ACCEPTED.registry["small"], min_reports=min_reports)
    for number in range(3):
        commit(engine, build_upload(*[build_report("small")] * 6), today=day(number))
    if min_reports:
        close_days(engine, metric, day(3))
    (overview,) = read_overviews(engine, [metric])
    (cohorts,) = overview.cohorts
    assert (cohorts.reports.sum(), cohorts.max_of_device) == (18, 3)


@ON_BOTH_DATABASES
def test_blocks_of_a_smaller_min_cohort_are_counted(engine: Engine) -> None:
    """The interval of the fingerprint and the present `min_cohort` determine the small blocks.

    A block needs `min_cohort` reports for each interval that it touches. The open block, and the
    block after the window, are not released.
    """
    daily, weekly = (build_metric(interval=interval) for interval in ("day", "week"))
    # First day, last day, number of reports, and whether the block is closed. Both fingerprints
    # have these blocks.
    blocks = [
        (0, 0, 10, True),
        (1, 10, 10, True),
        (11, 12, 20, True),
        (13, 13, 3, False),
        (14, 14, 1, True),
    ]
    with write_transaction(engine) as db:
        for params in (daily.params, weekly.params):
            fingerprint = params.fingerprint
            insert_rows(db, schema.params, [(fingerprint, params.to_json())], skip_stored=True)
            for first, last, reports, closed in blocks:
                days = (day(last), day(first))
                row = ("page", fingerprint, 1, *days, closed, reports, b"")
                insert_rows(db, schema.block, [row])
                if closed:
                    intervals = count_max_reports(params.pace, params.epoch, day(first), day(last))
                    total = BlockTotal(intervals, reports, reports)
                    add_block_totals(db, "page", {BlockKey(fingerprint, *days): total})
            window = ("page", fingerprint, day(12), day(0), 40, 1, 1.0)
            insert_rows(db, schema.release_window, [window])
    # TODAY is a Saturday, so the weekly second block touches three weeks. The released blocks need
    #
    #     reports                    10     10     20
    #     daily, times min_cohort     1     10      2
    #     weekly, times min_cohort    1      3      1
    #
    # At 3, the daily second block is small. At 4, the weekly second block is small, too: 20
    # reports. At 11, both first blocks and the daily third block follow: 20 + 20 + 20.
    for min_cohort, small in ((1, 0), (3, 10), (4, 20), (11, 60)):
        metric = build_metric(interval="week", min_cohort=min_cohort)
        # The `min_cohort` of another metric changes nothing, although one statement reads both.
        second_metric = build_metric("sound", min_cohort=1000)
        for metrics in ([metric], [metric, second_metric]):
            assert count_in_small_blocks(engine, metrics)["page"] == small
            assert count_in_small_blocks(engine, metrics)["sound"] == 0
    assert count_in_small_blocks(engine, []) == {}
