"""What counts know of the devices behind them: kept by adding, never too small."""

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
from rappor.counts.devices import (
    add_squares,
    most_reports,
    same_interval,
    squares_by_pace,
    squares_of_days,
)
from rappor.decoding.decoder import decode
from rappor.protocol.params import Params
from rappor.simulation import Population, simulate_days

PARAMS = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)

reports_of_devices = st.lists(st.integers(0, 5), min_size=6, max_size=6)


def counted(n_reports: int, squares: int | None = None) -> Counts:
    return Counts(PARAMS, [[0]], [n_reports], "page", squares)


def test_sums_of_data_frames_are_squares() -> None:
    """An integer of any type is one of Python; a truth value and a float are none."""
    for kind in (np.int64, np.int32, np.uint64, np.uint16):
        squares = counted(100, kind(250)).sum_squared_reports  # type: ignore[arg-type]
        assert (squares, type(squares)) == (250, int)
    for wrong in (True, np.True_, 250.0, np.float64(250), "250"):
        with pytest.raises(ReportError, match="squares must be an integer or None"):
            counted(100, wrong)  # type: ignore[arg-type]


def of_each(reports: list[int]) -> Counts:
    return counted(sum(reports), sum(n * n for n in reports))


@given(reports_of_devices, reports_of_devices)
def test_a_sum_is_never_too_sure(first: list[int], second: list[int]) -> None:
    """Whichever devices report in both, the true sum of squares is at most the one that is kept."""
    total = of_each(first) + of_each(second)
    assert total.sum_squared_reports is not None
    for order in itertools.permutations(second):
        together = [a + b for a, b in zip(first, order, strict=True)]
        assert sum(n * n for n in together) <= total.sum_squared_reports


@given(reports_of_devices, reports_of_devices)
def test_other_devices_add_their_squares(first: list[int], second: list[int]) -> None:
    """Where no device is in both sums, the sum is exact."""
    total = of_each(first).add(of_each(second), same_devices=False)
    assert total.sum_squared_reports == of_each(first + second).sum_squared_reports


def test_the_unknown_stays_unknown() -> None:
    """Counts of unknown devices make the sum unknown; no reports change nothing."""
    known, unknown = counted(100, 100), counted(100)
    assert (known + unknown).sum_squared_reports is None
    assert unknown.reports_per_device is None
    assert known + Counts.zero(PARAMS, "page") == known
    assert unknown + Counts.zero(PARAMS, "page") == unknown


def test_taking_counts_away_keeps_the_bound() -> None:
    """What is left has at most the squares of the whole, and at most those of one device."""
    assert (counted(100, 400) - counted(40, 40)).sum_squared_reports == 400
    assert (counted(100, 400) - counted(95, 95)).sum_squared_reports == 25
    assert (counted(100, 400) - counted(100)).sum_squared_reports == 0


def test_devices_are_given_by_either_number() -> None:
    """So many devices, or so many reports of each; rounding is to the larger sum."""
    assert counted(300).with_devices(10).sum_squared_reports == 9000
    assert counted(300).with_devices(reports_per_device=30).sum_squared_reports == 9000
    assert counted(10).with_devices(3).sum_squared_reports == 34
    assert counted(300).with_devices(10).reports_per_device == 30


@pytest.mark.parametrize(
    ("n_devices", "each", "reason"),
    [
        (None, None, "either devices or reports_per_device"),
        (5, 2, "either devices or reports_per_device"),
        (11, None, r"devices must be a number in \[1, 10\]"),
        (0, None, r"devices must be a number in \[1, 10\]"),
        (None, 0.5, r"reports_per_device must be a number in \[1, 10\]"),
        (None, float("nan"), "reports_per_device"),
    ],
)
def test_impossible_devices_are_refused(
    n_devices: float | None, each: float | None, reason: str
) -> None:
    """There are at most as many devices as reports, and at least one."""
    with pytest.raises(ReportError, match=reason):
        counted(10).with_devices(n_devices, reports_per_device=each)


@pytest.mark.parametrize("squares", [9, 101, 10.0, True, "10"])
def test_impossible_squares_are_refused(squares: int) -> None:
    """Ten reports have between 10 and 100."""
    with pytest.raises(ReportError, match="squares must be"):
        counted(10, squares)


def test_files_keep_what_is_known_of_devices(tmp_path: Path) -> None:
    """The counts file, Parquet and CSV do; a damaged number is refused."""
    for counts in (counted(10, 34), counted(10), Counts.zero(PARAMS)):
        counts.save(tmp_path / "a.counts")
        counts.to_parquet(tmp_path / "a.parquet")
        counts.to_csv(tmp_path / "a.csv")
        assert Counts.load(tmp_path / "a.counts") == counts
        assert Counts.from_parquet(tmp_path / "a.parquet") == counts
        assert Counts.from_csv(tmp_path / "a.csv", PARAMS, counts.metric) == counts
    table = counted(10).to_arrow()
    wrong = table.replace_schema_metadata({**table.schema.metadata, b"rappor.squares": b"-1"})
    with pytest.raises(FileError, match="squares"):
        Counts.from_arrow(wrong)


@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=4))
def test_days_bound_the_squares(days: list[list[bool]]) -> None:
    """One report a day at most: the bound holds, and is reached by devices that come in order."""
    n_days = np.array(days).sum(axis=0)
    bound = squares_of_days(sum(day) for day in days)
    assert int((n_days**2).sum()) <= bound
    nested = np.array([[i < sum(day) for i in range(5)] for day in days]).sum(axis=0)
    assert int((nested**2).sum()) == bound


@given(
    st.sampled_from(["day", "week"]),
    st.sampled_from(["life", "month", "quarter"]),
    st.lists(st.sets(st.integers(0, 30)), min_size=1, max_size=6),
    st.sets(st.integers(1, 30)),
)
def test_interval_and_days_bound_the_squares(
    interval: str, epoch: str, devices: list[set[int]], ends: set[int]
) -> None:
    """Whichever intervals a device reports in, and however days are summed into periods."""
    start = START
    starts = sorted({0, *ends})
    periods = []
    for first, end in itertools.pairwise([*starts, 31]):
        n = sum(first <= day < end for days in devices for day in _used(interval, epoch, days))
        last = start + datetime.timedelta(days=end - 1)
        periods.append((start + datetime.timedelta(days=first), last, n))
    squares = sum(len(_used(interval, epoch, days)) ** 2 for days in devices)
    assert squares <= squares_by_pace(interval, epoch, periods)


START = datetime.date(2026, 12, 18)
"""A Friday, so that weeks begin inside the days after it. A year begins on a Friday, too."""


def _used(interval: str, epoch: str, days: set[int]) -> set[int]:
    """Return the days on which a device that tries on these days does report."""
    first: dict[tuple[int, ...], int] = {}
    for day in sorted(days):
        date = START + datetime.timedelta(days=day)
        number = date.toordinal() if interval == "day" else (date.toordinal() - 1) // 7
        is_new_year = date.year > START.year and epoch != "life"
        first.setdefault((number, is_new_year), day)
    return set(first.values())


@given(st.sampled_from(["month", "quarter", "year"]), st.integers(0, 1500), st.integers(0, 800))
def test_a_week_in_which_an_epoch_begins_is_two_intervals(
    epoch: str, offset: int, length: int
) -> None:
    """A device reports on Tuesday and on Wednesday if a month begins on Wednesday."""
    first = datetime.date(2024, 1, 1) + datetime.timedelta(days=offset)
    days = [first + datetime.timedelta(days=i) for i in range(length + 1)]
    months = {"month": 1, "quarter": 3, "year": 12}[epoch]
    intervals = [
        ((day.toordinal() - 1) // 7, (12 * day.year + day.month - 1) // months) for day in days
    ]
    assert most_reports("week", epoch, first, days[-1]) == len(set(intervals))
    is_same = intervals[0] == intervals[-1]
    assert same_interval("week", epoch, first, days[-1]) == is_same
    assert most_reports("day", epoch, first, days[-1]) == length + 1
    assert most_reports("week", "life", first, days[-1]) == len({week for week, _ in intervals})


def test_the_same_devices_every_day_reach_the_bound_of_the_interval() -> None:
    """Thirty days of 100 devices: thirty reports each by day, five by week."""
    first = datetime.date(2026, 11, 1)  # a Sunday, and a week of its own
    days = [first + datetime.timedelta(days=i) for i in range(30)]
    each_day = [(day, day, 100) for day in days]
    assert squares_by_pace("day", "life", each_day) == 3000 * 30
    assert squares_by_pace("day", "life", [(days[0], days[-1], 3000)]) == 3000 * 30
    weeks = [(day, day, 100) for day in days if day.weekday() == 6]
    assert squares_by_pace("week", "life", weeks) == 500 * 5
    # Other devices of one week more: on Monday and Tuesday, before its Sunday.
    assert squares_by_pace("week", "life", [*weeks, (days[1], days[2], 100)]) == 500 * 5 + 100
    assert squares_by_pace("day", "life", []) == 0


@given(st.integers(0, 10**30), st.integers(0, 10**30))
def test_large_squares_are_added_exactly(first: int, second: int) -> None:
    """The least integer that is not below (sqrt(a) + sqrt(b))^2."""
    total = add_squares(first, second, same_devices=True)
    assert total is not None
    cross = total - first - second
    assert (cross - 1) ** 2 < 4 * first * second <= cross**2 or cross == first * second == 0


@pytest.mark.slow
def test_counts_known_by_days_and_interval_alone_are_covered() -> None:
    """Thirty days, a twentieth of the devices replaced each day: intervals 1.23 times as wide."""
    names = tuple(f"c{i}" for i in range(20))
    params = Params.profile("balanced", encoding="onehot", categories=names)
    shares = np.array([0.5, 0.3, 0.2] + [0.0] * 17)
    n_runs, n_days, held, ratios = 10, 30, 0, []
    true_r = sum(0.95 ** abs(i - j) for i in range(n_days) for j in range(n_days)) / n_days
    today = datetime.date(2026, 11, 1)
    for seed in range(n_runs):
        people = Population(list(names), shares.tolist())
        days = simulate_days(people, params, n_devices=10_000, n_days=n_days, churn=0.05, seed=seed)
        dated = [(today + datetime.timedelta(days=i), day.n_reports) for i, day in enumerate(days)]
        total = sum(days[1:], days[0])
        squares = squares_by_pace("day", "life", ((day, day, n) for day, n in dated))
        bounded = Counts(
            params, total.bit_counts, total.cohort_reports, sum_squared_reports=squares
        )
        found, exact = decode(bounded), decode(bounded, reports_per_device=true_r)
        held += int(((found.ci_low <= shares) & (shares <= found.ci_high)).sum())
        ratios += ((found.ci_high - found.ci_low) / (exact.ci_high - exact.ci_low)).tolist()
    # The bits of a report are nearly independent, so 200 intervals are.
    assert held >= stats.binom.ppf(1e-9, 20 * n_runs, 0.94)
    assert max(ratios) < 1.25
