"""A release is a sum of whole release windows, so it never shows the sum of a few reports.

A report passes three steps before a reader sees it:

    block     a cohort's reports on consecutive days. The metric `small` needs two reports for each
              day of a block. With fewer, the days wait for reports of later days
    window    the closed blocks of all cohorts. `small` needs five reports in a window. With fewer,
              the blocks wait for later blocks. The date of a window is the last day of its blocks
    release   the sum of all windows that are dated in a range of days

`withheld` of a release are the days of which reports wait. In the tests, `send(engine, 0, 0, 1)`
stores two reports of cohort 0 and one of cohort 1, and `read` closes blocks and reads a release.
Days are counted from TODAY, which is day 0.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from collectors import (
    REGISTRY,
    build_metric,
    build_report,
    build_upload,
    close_days,
    commit,
    count_reports,
    day,
    parse_submission,
    store_and_merge,
)
from databases import ON_BOTH_DATABASES
from numpy.typing import NDArray
from rappor_server.base.errors import NotFoundError, StoreError
from rappor_server.ingest.accepted_params import AcceptedParams
from rappor_server.operations.closing import close_all
from rappor_server.queries.counts import JSON, CountsTask
from rappor_server.queries.estimates import EstimatesQuery
from rappor_server.queries.query import QueryResult, Range, Subject
from rappor_server.releases import releases
from rappor_server.releases.overviews import read_overviews
from rappor_server.releases.release_json import write_releases
from rappor_server.releases.releases import DayReports
from rappor_server.releases.warning_signs import Refusals, read_refusals
from rappor_server.storage import schema
from rappor_server.storage.blocks import SET_ASIDE, rules_in_force
from rappor_server.storage.database import write_transaction
from registries import build_registry
from sqlalchemy import Engine, event

from rappor import Counts, Metric, Registry, decode
from rappor.base.errors import ParamsError
from rappor.counts.released_counts import ReleasedCounts
from rappor.estimator.error_control import ErrorControl
from rappor.protocol.segments import Dimension

SMALL = Registry.loads(REGISTRY)["small"]
"""A daily metric with four cohorts and 16 bits. A window needs five reports, and a block needs two
reports for each of its days."""
ALL_DAYS = (datetime.date.min, datetime.date.max)


def send(engine: Engine, *cohorts: int, on: int = 0, bits: int = 0x0F0F) -> None:
    """Store one report for each cohort of `cohorts`, on the day `on`."""
    bodies = (build_upload(build_report("small", bits=bits, cohort=j)) for j in cohorts)
    commit(engine, *bodies, today=day(on))


def read(
    engine: Engine,
    first: int | None = None,
    last: int | None = None,
    *,
    on: int = 100,
    metric: Metric = SMALL,
) -> releases.Release:
    """Close all blocks of days before the day `on`; return the release of the days first to last.

    The range has no first or last day by default.
    """
    close_days(engine, metric, day(on))
    days = (
        ALL_DAYS[0] if first is None else day(first),
        ALL_DAYS[1] if last is None else day(last),
    )
    return releases.read_release(engine, metric, *days)


def count_by_cohort(release: releases.Release) -> list[int]:
    """Return the released reports of each cohort."""
    (counts,) = release.collections
    return [int(n) for n in counts.cohort_reports]


def test_days_of_a_cohort_wait_until_their_block_has_enough_reports(engine: Engine) -> None:
    """A report waits for reports of a later day, and the block of both days for a window.

    On day 0, cohorts 0 and 2 have blocks, which are a window of five reports. The report of cohort
    1 waits. On day 1, cohort 0 has a block that waits for a window, and the report of cohort 3
    waits. On day 2, cohort 1 has a block of 6 reports of the days 0 to 2.
    """
    send(engine, 0, 0, 1, 2, 2, 2, on=0)
    send(engine, 0, 0, 3, on=1)
    before = read(engine, on=2)
    assert count_by_cohort(before) == [2, 0, 3, 0]
    assert before.days == (DayReports(day(0), 5),)
    assert before.withheld == (day(0), day(1))
    send(engine, *[1] * 5, on=2)
    after = read(engine, on=3)
    assert count_by_cohort(after) == [4, 6, 3, 0]
    assert after.days == (DayReports(day(0), 5), DayReports(day(2), 8))
    assert after.withheld == (day(1),)  # the report of cohort 3


@ON_BOTH_DATABASES
def test_a_range_is_a_sum_of_whole_windows(engine: Engine) -> None:
    """A window belongs to the range that contains its date, wherever its blocks begin.

    Cohort 0 has 6, 5 and 5 reports in blocks of one day. Cohort 1 has a block of the days 0 to 2
    with 1 + 5 reports, which belongs to the window of day 2.
    """
    send(engine, *[0] * 6, 1, on=0)
    send(engine, *[0] * 5, on=1)
    assert read(engine, 0, 1, on=2).withheld == (day(0),)
    send(engine, *[0] * 5, *[1] * 5, on=2)
    assert count_by_cohort(read(engine, 0, 2)) == [16, 6, 0, 0]
    assert count_by_cohort(read(engine, 0, 1)) == [11, 0, 0, 0]
    assert count_by_cohort(read(engine, 1, 2)) == [10, 6, 0, 0]
    assert count_by_cohort(read(engine, 1, 1)) == [5, 0, 0, 0]
    assert read(engine, 0, 1).withheld == ()


@ON_BOTH_DATABASES
def test_one_parameter_set_has_its_own_days(engine: Engine) -> None:
    """With a fingerprint, `days` counts the reports under this fingerprint only."""
    page = Registry.loads(REGISTRY)["page"]
    changed = dataclasses.replace(page, params=dataclasses.replace(page.params, p=0.2))
    later = changed.params
    accepted = AcceptedParams(build_registry(page), [build_registry(changed)])
    for on, params in ((0, page.params), (1, later), (1, later)):
        body = build_upload(build_report("page", params=params))
        store_and_merge(engine, [parse_submission(body, accepted, today=day(on))], today=day(on))
    all_reports = releases.read_release(engine, page, *ALL_DAYS)
    only_later = releases.read_release(engine, page, *ALL_DAYS, params=later.fingerprint)
    assert all_reports.days == (DayReports(day(0), 1), DayReports(day(1), 2))
    assert only_later.days == (DayReports(day(1), 2),)
    assert [counts.params for counts in only_later.collections] == [later]


def test_blocks_never_change(engine: Engine) -> None:
    """A closed block never changes: a late report of its day is added to a later block.

    The report comes from a collector whose clock lags. Its day is withheld until a later block has
    the report.
    """
    send(engine, *[0] * 6, on=0)
    first = read(engine, 0, 0, on=1)
    send(engine, 0, on=0, bits=1)
    assert read(engine, 0, 0, on=2) == dataclasses.replace(first, withheld=(day(0),))
    send(engine, *[0] * 7, on=3)
    assert read(engine, 0, 0, on=4) == first
    assert read(engine, 3, 3, on=4).n_reports == 8  # the late report and seven of day 3
    assert read(engine, on=4).n_reports == 6 + 8


def test_without_a_minimum_everything_shows_at_once(engine: Engine) -> None:
    """Without `min_reports`, all reports are released at once.

    A registry has lowered `min_reports` to 0. Reports in blocks that were closed before are
    released, and so is the report of cohort 1 that waits for a block.
    """
    send(engine, *[0] * 6, 1, on=0)
    read(engine, on=1)
    send(engine, 1, on=1)
    metric = dataclasses.replace(SMALL, min_reports=0)
    release = releases.read_release(engine, metric, *ALL_DAYS)
    assert count_by_cohort(release) == [6, 2, 0, 0]
    assert release.days == (DayReports(day(0), 7), DayReports(day(1), 1))
    assert release.withheld == ()
    commit(engine, build_upload(build_report("page")))
    assert count_reports(engine) == 1


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_overview_reads_no_closed_block(engine: Engine) -> None:
    """An overview reads no closed block, because its numbers were added up when windows formed.

    The only statement about blocks searches open blocks, by an index that contains all its columns.
    """
    send(engine, *[0] * 6, on=0)
    read(engine, on=1)
    statements: list[tuple[str, Any]] = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2:4]))
    read_overviews(engine, [SMALL])
    of_blocks = [statement for statement in statements if "FROM block " in statement[0]]
    assert len(of_blocks) == 1
    with engine.connect() as db:
        plan = db.exec_driver_sql(f"EXPLAIN QUERY PLAN {of_blocks[0][0]}", of_blocks[0][1]).all()
    (step,) = [row[3] for row in plan if row[3].startswith("SEARCH block ")]
    assert "USING COVERING INDEX ix_block_reports (metric=? AND closed=?)" in step


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_range_reads_only_its_windows(engine: Engine) -> None:
    """A release of a range reads only the blocks of its windows, by an index with their last days.

    `EXPLAIN QUERY PLAN` of SQLite shows the index.
    """
    send(engine, *[0] * 6, on=0)
    read(engine, on=1)
    statements: list[tuple[str, Any]] = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2:4]))
    releases.read_release(engine, SMALL, day(0), day(0))
    ((statement, values),) = [
        executed
        for executed in statements
        if "FROM block \nWHERE" in executed[0] and "ones" in executed[0]
    ]
    with engine.connect() as db:
        ((*_, step),) = db.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
    index = "ix_block_reports (metric=? AND closed=? AND params=? AND last>? AND last<?)"
    assert step == f"SEARCH block USING INDEX {index}"


def test_overview_counts_the_reports_of_a_release(engine: Engine) -> None:
    """An overview has the days, withheld days and cohorts of a release of all days."""
    send(engine, 0, 0, 1, 2, 2, 2, on=0)
    send(engine, 0, 0, 3, on=1)
    read(engine, on=2)
    for metric in (SMALL, dataclasses.replace(SMALL, min_reports=0)):
        release = releases.read_release(engine, metric, *ALL_DAYS)
        (overview,) = read_overviews(engine, [metric])
        assert (overview.days, overview.withheld) == (release.days, release.withheld)
        assert [(row.fingerprint, row.reports.tolist()) for row in overview.cohorts] == [
            (counts.params.fingerprint, counts.cohort_reports.tolist())
            for counts in release.collections
        ]


def read_all_ranges(engine: Engine, until: int) -> list[Counts]:
    """Return the counts of every range of days, read at the end of day `until`."""
    ranges = itertools.combinations_with_replacement(range(until + 1), 2)
    releases_of_ranges = (read(engine, *days, on=until) for days in ranges)
    return [counts for release in releases_of_ranges for counts in release.collections]


def as_vector(counts: Counts) -> NDArray[np.int64]:
    """Return the numbers of reports and the sums of bits of all cohorts as one vector."""
    return np.concatenate([counts.cohort_reports, counts.bit_counts.ravel()])


def is_in_span(released_counts: list[Counts], target: NDArray[np.int64]) -> bool:
    """Return whether a vector is a linear combination of released counts.

    If it is, a reader can compute the vector by adding and subtracting the counts. The vector has
    whole numbers, so a difference of 1e-6 is the rounding of least squares.
    """
    rows = np.array([as_vector(counts) for counts in released_counts], dtype=float)
    solution, *_ = np.linalg.lstsq(rows.T, target.astype(float), rcond=None)
    return bool(np.allclose(rows.T @ solution, target, atol=1e-6))


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.acceptance) for seed in range(2, 5))]
)
def test_no_combination_of_ranges_and_times_gives_a_report(engine: Engine, seed: int) -> None:
    """A reader of every range on every day cannot compute a single report from the counts.

    Each day has 2 to 11 reports of random cohorts and bits.
    """
    rng = np.random.default_rng(seed)
    released_counts: list[Counts] = []
    sent: list[tuple[int, int]] = []  # cohort and bits of each report
    for now in range(5):
        for _ in range(int(rng.integers(2, 12))):
            sent.append((int(rng.integers(4)), int(rng.integers(1 << 16))))
            send(engine, sent[-1][0], on=now, bits=sent[-1][1])
        released_counts += read_all_ranges(engine, now)
    assert released_counts
    # The check works: counts that were released are a combination of themselves.
    assert is_in_span(released_counts, as_vector(released_counts[0]))
    for cohort, bits in sent:
        # The counts of this report alone: reports of 4 cohorts, and then 16 bits of each cohort.
        report = np.zeros(4 + 4 * 16, dtype=np.int64)
        report[cohort] = 1
        report[4 + 16 * cohort : 4 + 16 * (cohort + 1)] = [bits >> i & 1 for i in range(16)]
        assert not is_in_span(released_counts, report)


@pytest.mark.slow
def test_forged_reports_around_a_victim_do_not_isolate_it(engine: Engine) -> None:
    """Forged reports around the report of a victim, and reads at every step, do not isolate it.

    The forger fills the cohort of the victim with forged reports, so that each block has enough
    reports. The forger then subtracts the forged reports from all released counts. The difference
    is the sum of all honest reports of the block, and never the report of the victim alone.
    """
    honest = [0x0001 << i for i in range(8)]
    victim = 0x1234
    forged = 0xFFFF
    differences: list[tuple[int, list[int]]] = []
    for step, bits in enumerate([*honest, victim]):
        # Nine forged reports come before each of the nine honest reports.
        n_forged = 9 * (step + 1)
        send(engine, *[0] * 9, bits=forged)
        differences += [subtract_forged(counts, n_forged) for counts in read_all_ranges(engine, 0)]
        send(engine, 0, bits=bits)
        differences += [subtract_forged(counts, n_forged) for counts in read_all_ranges(engine, 0)]
    assert differences == []  # nothing is shown of a day that has not ended
    differences = [subtract_forged(counts, 9 * 9) for counts in read_all_ranges(engine, 1)]
    sum_of_honest = [sum(bits >> i & 1 for bits in [*honest, victim]) for i in range(16)]
    assert set(map(repr, differences)) == {repr((9, sum_of_honest))}


def subtract_forged(counts: Counts, n_forged: int) -> tuple[int, list[int]]:
    """Return the reports and sums of cohort 0 without forged reports, whose bits are all 1."""
    return int(counts.cohort_reports[0]) - n_forged, (counts.bit_counts[0] - n_forged).tolist()


@ON_BOTH_DATABASES
def test_impossible_counts_in_the_database_are_a_store_error(engine: Engine) -> None:
    """A sum of bits larger than the number of reports raises StoreError."""
    send(engine, *[0] * 5)
    read(engine)
    with write_transaction(engine) as db:
        db.execute(schema.block.update().values(reports=0))
    with pytest.raises(StoreError, match="impossible counts of small") as caught:
        releases.read_release(engine, build_metric("small", min_reports=0), *ALL_DAYS)
    assert not caught.value.retryable


def test_counts_bound_the_reports_of_a_device(engine: Engine) -> None:
    """Counts contain an upper bound on the sum over devices of (reports of the device)^2.

    A device sends one report a day at most, and has one cohort. Of one day, the bound is the number
    of reports. Of two days, a device may have sent two reports of its cohort, which count 4.
    """
    send(engine, 0, 0, 0, 1, 1, 1, 1)
    send(engine, 0, 0, 1, 2, 2, 2, on=1)
    (one_day,) = read(engine, 0, 0).collections
    assert one_day.sum_squared_reports == 7
    (two_days,) = read(engine, 0, 1).collections
    # Cohort 0: the two devices of the second day may be among the three of the first day. Then one
    # device has 1 report, and two devices have 2 reports: 1 + 2 * 4 = 3 + 2 + 2 * 2. Cohort 1 has 4
    # reports, because its report of the second day waits for a block. Cohort 2 has 3 reports.
    assert (two_days.n_reports, two_days.sum_squared_reports) == (12, 3 + 2 + 2 * 2 + 4 + 3)


def test_a_block_of_two_days_may_have_two_reports_of_a_device(engine: Engine) -> None:
    """A device may have sent two reports of a block of two days.

    Cohort 0 has such a block of 1 + 3 reports. Cohorts 1 and 2 have blocks of one day with 5 and 2
    reports.
    """
    send(engine, 0, *[1] * 5)
    send(engine, 0, 0, 0, 2, 2, on=1)
    (counts,) = read(engine).collections
    # The bound for the block is (reports) * (reports of a device) = 4 * 2.
    assert counts.sum_squared_reports == 4 * 2 + 5 + 2


def test_reports_that_no_block_can_contain_are_set_aside(engine: Engine) -> None:
    """Waiting reports are set aside when a later day has enough reports, but not for all days.

    Cohort 0 has one report on day 0, and one on day 2. A block of the days 0 to 4 needs 2 reports
    for each of 5 days. The two reports and five reports of day 4 are too few, so the five are a
    block of day 4, and the two are set aside. Cohort 1 has 1 + 4 reports on the days 5 and 6, which
    are enough for two days.
    """
    send(engine, 0, *[1] * 5)
    send(engine, 0, on=2)
    assert count_by_cohort(read(engine, on=3)) == [0, 5, 0, 0]
    assert read_refusals(engine) == []
    send(engine, *[0] * 5, on=4)
    assert count_by_cohort(read(engine, on=5)) == [5, 5, 0, 0]
    assert read_refusals(engine) == [Refusals(day(4), "small", SET_ASIDE, 2)]
    send(engine, 1, on=5)
    send(engine, 1, 1, 1, 1, on=6)
    assert count_by_cohort(read(engine, on=7)) == [5, 10, 0, 0]


def read_by(engine: Engine, by: str, first: int, last: int) -> list[releases.Release]:
    """Return the releases of all periods ("day", "week", "month") of the days first to last."""
    read(engine)
    return releases.read_releases_by_period(
        engine, releases.ReleaseQuery(SMALL, day(first), day(last)), by
    )


def test_periods_add_up_to_the_range(engine: Engine) -> None:
    """The releases of periods add up to the release of the range. Each has its withheld days.

    A window belongs to the period of its date. The report of cohort 1 on day 0 is in a block of the
    days 0 and 1 with 1 + 3 reports. The four reports of day 2 are too few for a window.
    """
    send(engine, *[0] * 6, 1)
    send(engine, *[0] * 5, *[1] * 3, on=1)
    send(engine, *[2] * 4, on=2)
    by_day = read_by(engine, "day", 0, 5)
    assert [(period.first, period.last) for period in by_day] == [
        (day(i), day(i)) for i in range(3)
    ]
    assert [count_by_cohort(period) for period in by_day[:2]] == [[6, 0, 0, 0], [5, 4, 0, 0]]
    assert by_day[2].collections == ()
    assert by_day[2].withheld == (day(2),)
    whole = read(engine, 0, 1).collections[0]
    parts = [as_vector(period.collections[0]) for period in by_day[:2]]
    assert np.array_equal(np.sum(parts, axis=0), as_vector(whole))


def test_a_range_by_day_is_the_same_reports(engine: Engine) -> None:
    """A release by day has the same reports as the release of the range, in a part for each window.

    The 2 reports of day 1 wait for a window, with the 4 reports of day 2. The 2 reports of day 5
    still wait.
    """
    sizes = {0: 6, 1: 2, 2: 4, 4: 8, 5: 2}
    for offset, number in sizes.items():
        send(engine, *[0] * number, on=offset)
    release = read(engine)
    by_day = releases.read_release_by_day(engine, SMALL, *ALL_DAYS)
    assert dataclasses.replace(by_day, collections=(), daily_counts=()) == dataclasses.replace(
        release, collections=()
    )
    (whole,) = release.collections
    assert [counts.sha256 for counts in by_day.collections] == [whole.sha256]
    assert [counts.n_reports for counts in by_day.daily_counts] == [6, 6, 8]
    bit_counts = np.sum([counts.bit_counts for counts in by_day.daily_counts], axis=0)
    assert bit_counts.tolist() == whole.bit_counts.tolist()


def test_estimates_of_a_range_are_those_of_its_days(engine: Engine) -> None:
    """The query for estimates decodes the days of a range separately.

    Odd days have other bits than even days, so the sum of all days has other estimates.
    """
    for offset in range(6):
        send(engine, *[0, 1, 2, 3] * 10, on=offset, bits=0x0F0F if offset % 2 else 0x0FF0)
    read(engine)
    days = releases.read_releases_by_period(engine, releases.ReleaseQuery(SMALL, *ALL_DAYS), "day")
    separate = decode([counts for period in days for counts in period.collections], ["a", "b"])
    together = decode(releases.read_release(engine, SMALL, *ALL_DAYS).collections, ["a", "b"])
    body = b'{"candidates": ["a", "b"], "all": true}'
    query = EstimatesQuery(
        subject=Subject(metric=SMALL, source=None, error_control=ErrorControl()),
        body=body,
        fields=None,
        media_type=JSON,
        max_candidates=10,
    )
    result = msgspec.msgpack.decode(query.run(engine, lambda _: None), type=QueryResult)
    document = json.loads(result.files[JSON])
    assert document["assumptions"] == separate.assumptions
    assert document["assumptions"] != together.assumptions
    assert document["estimates"] == separate.to_dict()["estimates"]


@pytest.mark.parametrize("min_reports", [0, 5])
def test_repeats_are_bounded_by_the_pace_of_each_fingerprint(
    engine: Engine, min_reports: int
) -> None:
    """The bound on repeated reports of a device depends on the interval of the fingerprint.

    Daily devices send 30 and 20 reports on two days of a week. Weekly devices send 10 and 5.
    """
    daily, weekly = (
        dataclasses.replace(SMALL, interval=interval, min_reports=min_reports, min_cohort=1)
        for interval in ("day", "week")
    )
    registries = [build_registry(weekly), build_registry(daily)]
    accepted = AcceptedParams(registries[0], registries[1:])
    for metric, on, number in ((daily, 2, 30), (daily, 3, 20), (weekly, 3, 10), (weekly, 4, 5)):
        reports = [build_report("small", params=metric.params)] * number
        store_and_merge(engine, [parse_submission(build_upload(*reports), accepted)], today=day(on))
    close_all(engine, rules_in_force(registries), day(5))
    collections = releases.read_release(engine, weekly, day(2), day(4)).collections
    squares = {counts.params.interval: counts.sum_squared_reports for counts in collections}
    # The 20 devices of day 3 may be among the 30 of day 2. A weekly device reports once.
    assert squares == {"day": 30 + 20 + 2 * 20, "week": 15}


def test_weeks_begin_on_monday_and_end_with_the_range(engine: Engine) -> None:
    """A period is a week from Monday to Sunday, or the part of a week that is in the range.

    TODAY is a Saturday, so day 2 is a Monday. The range ends on day 10, a Tuesday. The week from
    day 2 to day 8 has no reports, so it is left out.
    """
    send(engine, *[0] * 6)
    send(engine, *[0] * 6, on=1)
    send(engine, *[0] * 6, on=9)
    weeks = read_by(engine, "week", 0, 10)
    assert [(week.first, week.last) for week in weeks] == [(day(0), day(1)), (day(9), day(10))]
    (month,) = read_by(engine, "month", 0, 30)
    assert (month.first, month.last, month.n_reports) == (day(0), day(9), 18)


def test_a_small_period_is_released_with_the_next(engine: Engine) -> None:
    """A day with too few reports is released with the next day, in one window of the second day.

    A window needs five reports, and both days have three.
    """
    send(engine, *[0] * 3)
    (first,) = read_by(engine, "day", 0, 0)
    assert (first.n_reports, first.withheld) == (0, (day(0),))
    send(engine, *[0] * 3, on=1)
    (second,) = read_by(engine, "day", 0, 1)
    assert (second.first, second.n_reports, second.withheld) == (day(1), 6, ())


def test_the_number_of_periods_is_bounded(engine: Engine) -> None:
    """A query with more periods than `max_periods` is refused, also if no report is released.

    At first, each of three days has one report that waits. Then each has a window.
    """
    for cohorts in ([0], [1], [2]), ([0] * 6, [0] * 6, [0] * 6):
        for i, of_day in enumerate(cohorts, start=3 * (len(cohorts[0]) > 1)):
            send(engine, *of_day, on=i)
        read(engine, on=i + 1)
        with pytest.raises(ParamsError, match="by must give at most 2 days"):
            releases.read_releases_by_period(
                engine, releases.ReleaseQuery(SMALL, day(i - 2), day(9)), "day", max_periods=2
            )
    assert len(read_by(engine, "day", 3, 9)) == 3


def test_periods_are_one_document(engine: Engine, tmp_path: Path) -> None:
    """The releases of all periods are one JSON document.

    Each collection has the days of its period, and the document has the days of the range.
    """
    send(engine, *[0] * 6)
    send(engine, *[1] * 6, on=1)
    path = tmp_path / "counts.json"
    path.write_bytes(write_releases("small", read_by(engine, "day", 0, 5), day(0), day(5)))
    assert [list(counts.cohort_reports) for counts in Counts.load_all(path)] == [
        [6, 0, 0, 0],
        [0, 6, 0, 0],
    ]
    released = ReleasedCounts.load(path)
    assert [(period.first, period.n_reports) for period in released.periods] == [
        (day(0), 6),
        (day(1), 6),
    ]
    assert (released.first, released.last, released.withheld) == (day(0), day(5), ())


SPLIT = dataclasses.replace(SMALL, segments=(Dimension("version", ("1", "2")),))
"""A metric with a segment for each version. Its minimum is five reports in each segment."""


def send_segment(engine: Engine, version: str, *cohorts: int, on: int = 0) -> None:
    """Store one report of a version for each cohort of `cohorts`, on the day `on`."""
    params = SPLIT.in_segment({"version": version}).params
    accepted = AcceptedParams(build_registry(SPLIT))
    bodies = (build_upload(build_report("small", cohort=j, params=params)) for j in cohorts)
    store_and_merge(engine, [parse_submission(body, accepted) for body in bodies], today=day(on))


def test_segments_are_added_up_by_default(engine: Engine) -> None:
    """A release adds the counts of all segments, unless segments are separate.

    Both versions have six reports in blocks of two, on different days.
    """
    send_segment(engine, "1", *[0, 0, 1, 1, 2, 2])
    send_segment(engine, "2", *[0, 0, 1, 1, 3, 3], on=1)
    close_days(engine, SPLIT, day(5))
    whole = releases.read_release(engine, SPLIT, *ALL_DAYS)
    separate = releases.read_release(engine, SPLIT, *ALL_DAYS, separate_segments=True)
    (together,) = whole.collections
    assert together.params == SPLIT.params
    assert {counts.params.segment: counts.n_reports for counts in separate.collections} == {
        (("version", "1"),): 6,
        (("version", "2"),): 6,
    }
    assert together.cohort_reports.tolist() == [4, 4, 2, 2]
    bit_counts = np.sum([counts.bit_counts for counts in separate.collections], axis=0)
    assert np.array_equal(bit_counts, together.bit_counts)
    # A device has one cohort in all segments. Cohorts 0 and 1 have two reports on each of two days,
    # perhaps of the same two devices, which count 2^2 each. Cohorts 2 and 3 report on one day.
    assert together.sum_squared_reports == 4 * 2 + 4 * 2 + 2 + 2
    by_day = releases.read_releases_by_period(
        engine, releases.ReleaseQuery(SPLIT, day(0), day(1)), "day", separate_segments=True
    )
    assert [[counts.n_reports for counts in period.collections] for period in by_day] == [[6], [6]]


def test_a_small_segment_is_in_no_sum(engine: Engine) -> None:
    """A segment without a window is in no sum, so a reader cannot compute it by subtraction.

    Version 2 has four reports, and a window needs five. Its reports wait for the next two.
    """
    send_segment(engine, "1", *[0, 0, 1, 1, 2, 2])
    send_segment(engine, "2", *[0, 0, 1, 1])
    close_days(engine, SPLIT, day(5))
    whole = releases.read_release(engine, SPLIT, *ALL_DAYS)
    separate = releases.read_release(engine, SPLIT, *ALL_DAYS, separate_segments=True)
    assert whole.n_reports == separate.n_reports == 6
    assert [counts.params.segment for counts in separate.collections] == [(("version", "1"),)]
    assert whole.withheld == separate.withheld == (day(0),)
    send_segment(engine, "2", 2, 2, on=1)
    close_days(engine, SPLIT, day(6))
    for first, last, n_reports in ((0, 0, 6), (1, 1, 6), (0, 1, 12)):
        assert releases.read_release(engine, SPLIT, day(first), day(last)).n_reports == n_reports


@ON_BOTH_DATABASES
def test_a_rare_segment_shows_nothing_before_its_window(engine: Engine) -> None:
    """A reader cannot see whether a segment has reports before the segment has a window.

    No response changes when four reports of version 2 come, also if they are the only reports of
    their day. When their blocks are closed, the day is withheld, as after a report of version 1. A
    request for version 2 gets the same error as a request for an unknown fingerprint.
    """
    send_segment(engine, "1", *[0, 0, 1, 1, 2, 2])
    close_days(engine, SPLIT, day(1))
    rare = SPLIT.in_segment({"version": "2"}).fingerprint

    def read_everything() -> list[object]:
        queries = [
            (params, by, is_separate)
            for params in (None, rare, SPLIT.in_segment({"version": "1"}).fingerprint)
            for by in (None, "day", "week")
            for is_separate in (True, False)
        ]
        return [
            request_counts(engine, SPLIT, params, by, segments=is_separate)
            for params, by, is_separate in queries
        ]

    before = read_everything()
    for _ in range(2):
        send_segment(engine, "2", 0, 0, on=1)
        assert read_everything() == before
    close_days(engine, SPLIT, day(2))
    after = read_everything()
    assert {str(days) for days in list_withheld(after)} == {f"['{day(1)}']"}
    send_segment(engine, "2", 1, on=2)
    send_segment(engine, "1", 1, on=2)
    close_days(engine, SPLIT, day(3))
    unknown = "params must be a fingerprint with reports"
    assert request_counts(engine, SPLIT, rare, "day", segments=False) == unknown


def list_withheld(responses: list[object]) -> list[list[str]]:
    """Return the withheld days of each response that is no error."""
    return [response["withheld"] for response in responses if isinstance(response, dict)]


def request_counts(
    engine: Engine, metric: Metric, params: str | None, by: str | None, *, segments: bool
) -> object:
    """Return the response of the counts endpoint, or the sentence of its error."""
    task = CountsTask(
        metric=metric,
        range=Range(first=None, last=None),
        params=params,
        media_type=JSON,
        by=by,
        segments=segments,
    )
    try:
        return json.loads(task.run(engine, lambda _: None))
    except NotFoundError as error:
        return str(error)
