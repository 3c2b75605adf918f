"""Sums of squared reports, S: the sum over devices of the squared number of a device's reports.

Example: two devices with 3 and 4 reports have S = 9 + 16 = 25. The reports of a device repeat its
permanent noise, so the estimator needs S for the standard errors. A collector does not know which
reports come from one device, so S is often an upper bound. A larger S makes confidence intervals
wider, and a smaller S would make them wrong. The tests compare bounds of added counts, and bounds
from the interval of a metric, with exact sums.
"""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rappor.base.errors import FileError, ReportError
from rappor.counts.counts import Counts
from rappor.counts.squared_reports import (
    add_squares,
    compute_max_squares_by_pace,
    compute_max_squares_of_days,
    count_max_reports,
    is_same_interval,
)
from rappor.decoding.decoder import decode
from rappor.protocol.params import Params
from rappor.simulation import Population, simulate_days

PARAMS = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)

REPORTS_OF_DEVICES = st.lists(st.integers(0, 5), min_size=6, max_size=6)
"""Numbers of reports of six devices are drawn from 0 to 5."""


def make_counts(n_reports: int, squares: int | None = None) -> Counts:
    """Return counts with this number of reports and sum of squared reports."""
    return Counts(PARAMS, [[0]], [n_reports], "page", squares)


def test_an_integer_of_numpy_is_a_sum_of_squares() -> None:
    """An integer of numpy becomes a Python int. Booleans, floats and texts are refused."""
    for kind in (np.int64, np.int32, np.uint64, np.uint16):
        squares = make_counts(100, kind(250)).sum_squared_reports  # type: ignore[arg-type]
        assert (squares, type(squares)) == (250, int)
    for wrong in (True, np.True_, 250.0, np.float64(250), "250"):
        with pytest.raises(ReportError, match="squares must be an integer or None"):
            make_counts(100, wrong)  # type: ignore[arg-type]


def count_devices(reports: list[int]) -> Counts:
    """Return the counts of devices with these numbers of reports."""
    return make_counts(sum(reports), sum(n * n for n in reports))


@given(REPORTS_OF_DEVICES, REPORTS_OF_DEVICES)
def test_adding_gives_an_upper_bound(first: list[int], second: list[int]) -> None:
    """The true sum of squares is at most the bound, whichever devices report in both counts."""
    total = count_devices(first) + count_devices(second)
    assert total.sum_squared_reports is not None
    for order in itertools.permutations(second):
        together = [a + b for a, b in zip(first, order, strict=True)]
        assert sum(n * n for n in together) <= total.sum_squared_reports


@given(REPORTS_OF_DEVICES, REPORTS_OF_DEVICES)
def test_counts_of_different_devices_add_their_squares(first: list[int], second: list[int]) -> None:
    """The sum is exact if no device has reports in both counts."""
    total = count_devices(first).add(count_devices(second), same_devices=False)
    assert total.sum_squared_reports == count_devices(first + second).sum_squared_reports


def test_an_unknown_sum_stays_unknown() -> None:
    """Counts with an unknown S have a sum with an unknown S. Zero counts change nothing."""
    known, unknown = make_counts(100, 100), make_counts(100)
    assert (known + unknown).sum_squared_reports is None
    assert unknown.reports_per_device is None
    assert known + Counts.zero(PARAMS, "page") == known
    assert unknown + Counts.zero(PARAMS, "page") == unknown


def test_subtracting_keeps_the_bound() -> None:
    """S of a difference has two bounds, and the smaller bound is stored.

    S of the difference is at most S of the counts before the subtraction. If n reports are left,
    S is also at most n^2, the sum if one device sent all n reports. If no report is left, S is 0,
    even if S of the subtracted counts is unknown.
    """
    assert (make_counts(100, 400) - make_counts(40, 40)).sum_squared_reports == 400
    assert (make_counts(100, 400) - make_counts(95, 95)).sum_squared_reports == 25
    assert (make_counts(100, 400) - make_counts(100)).sum_squared_reports == 0


def test_number_of_devices_or_reports_per_device_gives_the_sum() -> None:
    """300 reports of 10 devices, and 300 reports with 30 per device, have the same S = 10 * 30^2.

    Ten reports of three devices have S = 10 * (10 / 3), which is rounded up to 34.
    """
    assert make_counts(300).with_devices(10).sum_squared_reports == 9000
    assert make_counts(300).with_devices(reports_per_device=30).sum_squared_reports == 9000
    assert make_counts(10).with_devices(3).sum_squared_reports == 34
    for from_numpy in (np.int64(3), np.float32(3)):
        counts = make_counts(10).with_devices(from_numpy)  # type: ignore[arg-type]
        assert counts.sum_squared_reports == 34
    assert make_counts(300).with_devices(10).reports_per_device == 30


@pytest.mark.parametrize(
    ("n_devices", "per_device", "reason"),
    [
        (None, None, "either devices or reports_per_device"),
        (5, 2, "either devices or reports_per_device"),
        (11, None, r"devices must be a number in \[1, 10\]"),
        (0, None, r"devices must be a number in \[1, 10\]"),
        (None, 0.5, r"reports_per_device must be a number in \[1, 10\]"),
        (None, float("nan"), "reports_per_device"),
    ],
)
def test_an_impossible_number_of_devices_is_refused(
    n_devices: float | None, per_device: float | None, reason: str
) -> None:
    """Ten reports come from 1 to 10 devices with 1 to 10 reports. Other numbers are refused."""
    with pytest.raises(ReportError, match=reason):
        make_counts(10).with_devices(n_devices, reports_per_device=per_device)


@pytest.mark.parametrize("squares", [9, 101, 10.0, True, "10"])
def test_impossible_squares_are_refused(squares: int) -> None:
    """S of ten reports is an integer from 10 (ten devices) to 100 (one device)."""
    with pytest.raises(ReportError, match="squares must be"):
        make_counts(10, squares)


def test_files_store_the_sum_of_squares(tmp_path: Path) -> None:
    """The counts file, Parquet and CSV store S. A damaged S is refused."""
    for counts in (make_counts(10, 34), make_counts(10), Counts.zero(PARAMS)):
        counts.save(tmp_path / "a.counts")
        counts.to_parquet(tmp_path / "a.parquet")
        counts.to_csv(tmp_path / "a.csv")
        assert Counts.load(tmp_path / "a.counts") == counts
        assert Counts.from_parquet(tmp_path / "a.parquet") == counts
        assert Counts.from_csv(tmp_path / "a.csv", PARAMS, counts.metric) == counts
    table = make_counts(10).to_arrow()
    wrong = table.replace_schema_metadata({**table.schema.metadata, b"rappor.squares": b"-1"})
    with pytest.raises(FileError, match="squares"):
        Counts.from_arrow(wrong)


@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=4))
def test_reports_by_day_bound_the_squares(days: list[list[bool]]) -> None:
    """If a device sends at most one report a day, S is at most the bound of the days.

    S is equal to the bound if the devices of each day are among the devices of every busier day.
    `days` has an entry for each day and device: whether the device reports on the day.
    """
    n_reports = np.array(days).sum(axis=0)
    bound = compute_max_squares_of_days(sum(day) for day in days)
    assert int((n_reports**2).sum()) <= bound
    # On a day with n reports, devices 0 to n - 1 report.
    n_nested_reports = np.array([[i < sum(day) for i in range(5)] for day in days]).sum(axis=0)
    assert int((n_nested_reports**2).sum()) == bound


START = datetime.date(2026, 12, 18)
"""First of 31 days. The days contain one start of a month, a quarter and a year: January 1. Both
START and January 1 are Fridays, so the first week is cut, and the epoch begins inside a week."""


@pytest.mark.slow
@given(
    st.sampled_from(["day", "week"]),
    st.sampled_from(["life", "month", "quarter"]),
    st.lists(st.sets(st.integers(0, 30)), min_size=1, max_size=6),
    st.sets(st.integers(1, 30)),
)
def test_interval_and_days_bound_the_squares(
    interval: str, epoch: str, devices: list[set[int]], ends: set[int]
) -> None:
    """For any days of events and any division into periods, S is at most the computed bound.

    Devices report at most once in an interval. `devices` has the days on which each device has an
    event, and `ends` has the ends of the periods.
    """
    starts = sorted({0, *ends})
    periods = []
    for first, end in itertools.pairwise([*starts, 31]):
        n = sum(
            first <= day < end for days in devices for day in _choose_days(interval, epoch, days)
        )
        last = START + datetime.timedelta(days=end - 1)
        periods.append((START + datetime.timedelta(days=first), last, n))
    squares = sum(len(_choose_days(interval, epoch, days)) ** 2 for days in devices)
    assert squares <= compute_max_squares_by_pace(interval, epoch, periods)


def _choose_days(interval: str, epoch: str, days: set[int]) -> set[int]:
    """Return the days of the reports of a device with events on these days."""
    first: dict[tuple[int, ...], int] = {}
    for day in sorted(days):
        date = START + datetime.timedelta(days=day)
        # Day 1 of `toordinal` is a Monday.
        number = date.toordinal() if interval == "day" else (date.toordinal() - 1) // 7
        is_next_epoch = date.year > START.year and epoch != "life"
        first.setdefault((number, is_next_epoch), day)
    return set(first.values())


@given(st.sampled_from(["month", "quarter", "year"]), st.integers(0, 1500), st.integers(0, 800))
def test_a_week_with_the_start_of_an_epoch_is_two_intervals(
    epoch: str, offset: int, length: int
) -> None:
    """The number of intervals in a range is the number of different pairs of week and epoch.

    If a month begins on Wednesday, a device may report on Tuesday and again on Wednesday.
    """
    first = datetime.date(2024, 1, 1) + datetime.timedelta(days=offset)
    days = [first + datetime.timedelta(days=i) for i in range(length + 1)]
    months = {"month": 1, "quarter": 3, "year": 12}[epoch]
    intervals = [
        ((day.toordinal() - 1) // 7, (12 * day.year + day.month - 1) // months) for day in days
    ]
    assert count_max_reports("week", epoch, first, days[-1]) == len(set(intervals))
    is_same = intervals[0] == intervals[-1]
    assert is_same_interval("week", epoch, first, days[-1]) == is_same
    assert count_max_reports("day", epoch, first, days[-1]) == length + 1
    assert count_max_reports("week", "life", first, days[-1]) == len(
        {week for week, _ in intervals}
    )


def test_the_same_devices_every_day_reach_the_bound_of_the_interval() -> None:
    """In 30 days, 100 devices send 30 daily or 5 weekly reports each, which reaches the bound."""
    first = datetime.date(2026, 11, 1)  # a Sunday, and a week of its own
    days = [first + datetime.timedelta(days=i) for i in range(30)]
    periods = [(day, day, 100) for day in days]
    assert compute_max_squares_by_pace("day", "life", periods) == 3000 * 30
    assert compute_max_squares_by_pace("day", "life", [(days[0], days[-1], 3000)]) == 3000 * 30
    weeks = [(day, day, 100) for day in days if day.weekday() == 6]
    assert compute_max_squares_by_pace("week", "life", weeks) == 500 * 5
    # 100 other devices report once, on November 2 or 3: Monday and Tuesday of the second week.
    assert (
        compute_max_squares_by_pace("week", "life", [*weeks, (days[1], days[2], 100)])
        == 500 * 5 + 100
    )
    assert compute_max_squares_by_pace("day", "life", []) == 0


@given(st.integers(0, 10**30), st.integers(0, 10**30))
def test_large_squares_are_added_exactly(first: int, second: int) -> None:
    """The sum for the same devices is (sqrt(a) + sqrt(b))^2, rounded up, for integers of any size.

    This is a + b + 2 sqrt(a b).
    """
    total = add_squares(first, second, same_devices=True)
    assert total is not None
    # cross is the smallest integer that is at least 2 sqrt(a b). Squares of integers are compared,
    # because a root in floating point is not exact.
    cross = total - first - second
    square_of_exact_cross = 4 * first * second
    assert square_of_exact_cross <= cross**2
    if square_of_exact_cross:
        assert (cross - 1) ** 2 < square_of_exact_cross
    else:
        assert cross == 0


@pytest.mark.slow
def test_intervals_from_a_bound_of_squares_contain_the_true_shares() -> None:
    """With the bound of S from days and interval, confidence intervals contain the true shares.

    5 % of the devices are replaced each day, so the true S is smaller than the bound. S / N is 19.1
    in truth and 30 in the bound, for N reports. The variance of an estimate has a part that is
    proportional to S, and a part that does not depend on S. So the intervals are at most
    sqrt(30 / 19.1) = 1.25 times as wide as intervals from the true S.
    """
    names = tuple(f"c{i}" for i in range(20))
    params = Params.profile("balanced", encoding="onehot", categories=names)
    shares = np.array([0.5, 0.3, 0.2] + [0.0] * 17)
    n_runs, n_days, n_covered, ratios = 10, 30, 0, []
    # Expected S / N. A device that reports on day i reports on day j with probability 0.95^|i - j|.
    true_r = sum(0.95 ** abs(i - j) for i in range(n_days) for j in range(n_days)) / n_days
    today = datetime.date(2026, 11, 1)
    for seed in range(n_runs):
        population = Population(list(names), shares.tolist())
        days = simulate_days(
            population, params, n_devices=10_000, n_days=n_days, churn=0.05, seed=seed
        )
        dated = [(today + datetime.timedelta(days=i), day.n_reports) for i, day in enumerate(days)]
        total = sum(days[1:], days[0])
        squares = compute_max_squares_by_pace("day", "life", ((day, day, n) for day, n in dated))
        bounded = Counts(
            params, total.bit_counts, total.cohort_reports, sum_squared_reports=squares
        )
        estimates, exact = decode(bounded), decode(bounded, reports_per_device=true_r)
        is_covered = (estimates.ci_low <= shares) & (shares <= estimates.ci_high)
        n_covered += int(is_covered.sum())
        ratios += ((estimates.ci_high - estimates.ci_low) / (exact.ci_high - exact.ci_low)).tolist()
    # The bits of a report are nearly independent, so the 200 intervals are, too. The intervals
    # promise to contain the share with probability 0.95. If the true probability is at least 0.94,
    # the test fails with a probability of at most 1e-9.
    assert n_covered >= stats.binom.ppf(1e-9, 20 * n_runs, 0.94)
    assert max(ratios) < 1.25
