"""Shares over time, as `trend` computes them from released counts.

A trend has a sample for each period (day, week or month). Its contrasts are the slope over all
periods, the difference between the last and the first third, and the step from each period to the
next one. The tests check these contrasts, periods without reports, withheld days, and changes of
parameters.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence

import decodings
import numpy as np
import pytest

from rappor import (
    Candidates,
    Comparison,
    Counts,
    Params,
    Population,
    compare_samples,
    decode,
    simulate_counts,
    trend,
)
from rappor.base.errors import DecodeError
from rappor.comparison.periods import split_periods
from rappor.counts.released_counts import ReleasedCounts
from rappor.estimator.error_control import ErrorControl
from rappor.reporting.footnotes import list_comparison_footnotes
from rappor.simulation import simulate_days

PARAMS = Params(k=32, h=1, m=16, f=0.5, p=0.1, q=0.9)
"""Parameters whose noise is mostly permanent. A device repeats its noise on each day."""

NAMES = [f"s{i}" for i in range(20)]
ABSENT = [f"x{i}" for i in range(40)]
"""Candidates that no device has."""

SHARES = np.exp(-np.arange(20) / 4) / np.exp(-np.arange(20) / 4).sum()
"""Shares of NAMES, which are constant in most tests."""
MONDAY = datetime.date(2026, 11, 2)
"""First day of most ranges."""


def day(number: int) -> datetime.date:
    """Return the date `number` days after Monday, 2 November 2026."""
    return MONDAY + datetime.timedelta(number)


def draw_days(
    n_days: int, *, n: float = 5e4, seed: int = 1, params: Params = PARAMS
) -> list[Counts]:
    """Return counts of consecutive days of the same n devices, which report once a day."""
    population = Population(NAMES, list(SHARES))
    return simulate_days(population, params, n_devices=n, n_days=n_days, seed=seed, metric="page")


def build_released_days(
    days: Sequence[tuple[int, Counts]], *, n_days: int, withheld: Sequence[int] = ()
) -> ReleasedCounts:
    """Return released counts of a range of `n_days` days, of which some have counts."""
    known = build_released_periods([(n, n, counts) for n, counts in days], withheld=withheld)
    return dataclasses.replace(known, first=MONDAY, last=day(n_days - 1))


def build_released_periods(
    periods: Sequence[tuple[int, int, Counts]], *, withheld: Sequence[int] = ()
) -> ReleasedCounts:
    """Return released counts of periods. Days are numbers of days after MONDAY."""
    counts = {(day(first), day(last)): period_counts for first, last, period_counts in periods}
    return decodings.build_released_counts(counts, "page", withheld=tuple(map(day, withheld)))


ONE_REPORT = Counts(PARAMS, np.zeros((16, 32)), np.ones(16))
"""Counts of one report in each of the 16 cohorts, without a 1. Tests with these counts check only
the periods."""

DAYS = [(number, counts) for number, counts in enumerate(draw_days(9)) if number != 4]
"""Numbers and counts of nine days from Monday on. The first Friday, day 4, has no counts."""


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    """Return the trend of the nine days, with estimates smoothed over three days."""
    return trend(build_released_days(DAYS, n_days=9, withheld=[8]), NAMES + ABSENT, smooth=3)


@pytest.mark.slow
def test_each_period_has_the_estimates_of_its_own_decode(comparison: Comparison) -> None:
    """Each period has the estimates of a decode of its counts, with adjusted intervals.

    The strings of a trend are selected by their detection, so their intervals are widened. A pooled
    decode of all days at half of the error rate (.025) detects n of the 60 candidates, and the
    intervals have the confidence 1 - .05 n / 60. The checked days are the first and the last one,
    and those before and after the day without counts.
    """
    counts = [counts for _, counts in DAYS]
    n = int(decode(counts, NAMES + ABSENT, error_control=ErrorControl(alpha=0.025)).detected.sum())
    assert 3 <= n <= len(comparison.shown_rows) < 60
    adjusted = ErrorControl(confidence=1 - 0.05 * n / 60)
    for number, day_counts in DAYS:
        if number not in (0, 3, 5, 8):
            continue
        estimates = decode(day_counts, NAMES + ABSENT, error_control=adjusted)
        order = [estimates.candidates.index(name) for name in comparison.candidates]
        for name in ("share", "std_error", "ci_low", "ci_high"):
            row = getattr(comparison.per_sample, name)[number]
            assert row == pytest.approx(getattr(estimates, name)[order], rel=1e-12)


@pytest.mark.slow
def test_a_day_without_reports_stays_visible(comparison: Comparison) -> None:
    """A day without reports stays in the trend, without estimates and with weight 0 in contrasts.

    If the day were left out, a reader would not see the gap.
    """
    assert [period.name for period in comparison.missing] == ["2026-11-06"]
    assert [period.reports for period in comparison.samples] == [5e4] * 4 + [0] + [5e4] * 4
    assert [period.withheld for period in comparison.samples] == [0] * 8 + [1]
    all_rows = list(comparison.rows())
    rows = [row for row in all_rows if row["name"] == "2026-11-06" and row["what"] == "share"]
    assert len(rows) == len(comparison.shown_rows)
    for row in rows:
        assert (row["estimate"], row["ci_low"], row["detected"]) == (None, None, False)
    assert all(contrast.weights[4] == 0 for contrast in comparison.contrasts)


def test_the_slope_is_that_of_weighted_least_squares(comparison: Comparison) -> None:
    """The slope is the change from the first to the last day along a fitted line.

    The line is fitted to the shares by least squares, weighted by the precision of the periods. The
    other contrasts are the thirds (days 7 and 8 against days 0 and 1) and the seven steps.
    """
    # A contrast is a weighted sum of shares. For random shares, the sum with the weights of the
    # slope equals numpy's fitted slope a day, times the 8 days from the first to the last day.
    (slope,) = comparison.primary
    days = np.array([number for number, _ in DAYS], dtype=float)
    precision = comparison._samples.precision[days.astype(int)]
    shares = np.random.default_rng(1).random(8)
    line = np.polyfit(days, shares, 1, w=np.sqrt(precision))
    assert slope.weights[days.astype(int)] @ shares == pytest.approx(8 * line[0])
    assert slope.weights.sum() == pytest.approx(0, abs=1e-12)
    kinds = [contrast.kind for contrast in comparison.contrasts]
    assert kinds == ["slope", "thirds", *["step"] * 7]
    (thirds,) = (contrast for contrast in comparison.contrasts if contrast.kind == "thirds")
    assert np.flatnonzero(thirds.weights).tolist() == [0, 1, 7, 8]
    first, last = comparison.thirds
    assert [comparison.samples.index(sample) for sample in (*first, *last)] == [0, 1, 7, 8]
    assert thirds.name == (
        f"from the first third ({day(0)}/{day(1)}) to the last ({day(7)}/{day(8)})"
    )
    assert not thirds.changed.any()
    assert slope.before == pytest.approx(comparison.per_sample.share[:2].mean(axis=0), rel=0.02)


@pytest.mark.slow
def test_steps_are_differences_of_consecutive_days_with_reports(comparison: Comparison) -> None:
    """A step is the difference of two consecutive days with reports, as in `compare_samples`.

    The permanent noise of the same devices cancels in a step. Its error is therefore less than .8
    of the error of a difference of independent days.
    """
    samples = {str(day(number)): counts for number, counts in DAYS}
    of_samples = compare_samples(samples, comparison.candidates, baseline="previous")
    steps = [contrast for contrast in comparison.contrasts if contrast.kind == "step"]
    assert [step.name for step in steps] == [contrast.name for contrast in of_samples.contrasts]
    order = np.array([of_samples.candidates.index(name) for name in comparison.candidates])
    for step, difference in zip(steps, of_samples.contrasts, strict=True):
        assert step.estimate == pytest.approx(difference.estimate[order], rel=1e-9)
        assert step.changed.tolist() == difference.changed[order].tolist()
    independent = np.hypot(*comparison.per_sample.std_error[:2])
    assert (
        steps[0].std_error[comparison.shown_rows] < 0.8 * independent[comparison.shown_rows]
    ).all()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_slow_fall_is_detected_by_the_slope() -> None:
    """The slope detects a fall from .2 to .1 over eight periods, and has the right error.

    The slopes of 120 absent strings, divided by their standard errors, have the variance 1. Strings
    with common bits are correlated, so 9 standard errors of a variance are allowed.
    """
    absent = [f"x{i}" for i in range(120)]
    weeks = []
    for week, share in enumerate(np.linspace(0.2, 0.1, 8)):
        shares = [*(SHARES * 0.7), share, 0.3 - share]
        population = Population([*NAMES, "falling", "unasked"], shares)
        counts = simulate_counts(population, PARAMS, n_reports=2e4, seed=week, metric="page")
        weeks.append((week, counts))
    comparison = trend(build_released_days(weeks, n_days=8), [*NAMES, *absent, "falling"])
    (slope,) = comparison.primary
    row = comparison.candidates.index("falling")
    assert abs(slope.estimate[row] + 0.1) < 6 * slope.std_error[row]
    assert slope.direction[row] == "fall"
    rows = [comparison.candidates.index(name) for name in absent]
    z = (slope.estimate / slope.std_error)[rows]
    assert abs(np.var(z) - 1) < 9 * np.sqrt(2 / len(z))


def test_smoothed_estimates_are_decodes_of_three_days_together(comparison: Comparison) -> None:
    """With `smooth=3`, a smoothed estimate is a decode of a day and the two days before together.

    Three days have smaller errors than one. The estimate is NaN before the third day and on days
    without reports. The estimate of day 5 uses days 3 and 5, because day 4 has no reports.
    """
    smoothed = comparison.smoothed
    assert smoothed is not None
    missing = np.isnan(smoothed.share).all(axis=1)
    assert missing.tolist() == [True, True, False, False, True, False, False, False, False]
    by_day = dict(DAYS)
    together = decode([by_day[3], by_day[5]], NAMES + ABSENT)
    shares = dict(zip(together.candidates, together.share, strict=True))
    for column, name in enumerate(comparison.candidates):
        assert smoothed.share[5, column] == shares[name]


def test_weeks_count_devices_and_not_reports() -> None:
    """A week of daily reports has the effective number of its devices, not of its reports.

    The week has 3e5 reports from 5e4 devices on six days, because Friday is missing. Repeated
    reports average the instantaneous noise out, so they count as a few more devices: less than
    7.5e4.
    """
    days = [(number, counts.with_devices(5e4)) for number, counts in DAYS]
    comparison = trend(build_released_days(days, n_days=9), NAMES, by="week")
    assert [period.name for period in comparison.samples] == [
        "2026-11-02/2026-11-08",
        "2026-11-09/2026-11-10",
    ]
    assert [period.missing_days for period in comparison.samples] == [1, 0]
    assert comparison.samples[0].reports == 3e5
    assert comparison.samples[0].devices < 0.25 * 3e5
    assert [contrast.kind for contrast in comparison.contrasts] == ["slope"]


@pytest.mark.slow
def test_a_string_of_one_day_is_detected() -> None:
    """A string that is frequent on one day only is detected on this day.

    6 % of the devices have it on day 2. A pooled decode of all five days does not detect it, so the
    test of each day is needed as well. The directions of the steps are newcomer and then leaver.
    """
    burst = Population([*NAMES, "burst"], [*(SHARES * 0.94), 0.06])
    days = [(i, counts) for i, counts in enumerate(draw_days(5, n=1e5, seed=2))]
    days[2] = (2, simulate_days(burst, PARAMS, n_devices=2e4, n_days=1, seed=3, metric="page")[0])
    candidates = [*NAMES, *ABSENT, "burst"]
    pooled = decode(
        [counts for _, counts in days], candidates, error_control=ErrorControl(alpha=0.025)
    )
    assert not pooled.detected[pooled.candidates.index("burst")]
    comparison = trend(build_released_days(days, n_days=5), candidates)
    column = comparison.candidates.index("burst")
    assert comparison.detected_overall[column]
    assert comparison.per_sample.detected[:, column].tolist() == [i == 2 for i in range(5)]
    steps = [contrast for contrast in comparison.contrasts if contrast.kind == "step"]
    assert [step.direction[column] for step in steps] == ["", "newcomer", "leaver", ""]


@pytest.mark.slow
@pytest.mark.parametrize("by", [None, "day", "week", "month"])
def test_an_unbounded_range_ends_with_its_reports_and_withheld_days(by: str | None) -> None:
    """Without a first and a last day, the range contains all reports and withheld days.

    Reports are of days 3 and 5, and days 2 and 6 are withheld, so the range is days 2 to 6. An
    unbounded range would have millions of days without reports.
    """
    bounded = build_released_days([(3, DAYS[3][1]), (5, DAYS[4][1])], n_days=7, withheld=[2, 6])
    endless = dataclasses.replace(bounded, first=datetime.date.min, last=datetime.date.max)
    within = dataclasses.replace(bounded, first=day(2), last=day(6))
    periods, expected = (trend(counts, NAMES, by=by).samples for counts in (endless, within))
    assert periods == expected


@pytest.mark.slow
def test_a_change_of_parameters_is_marked() -> None:
    """A trend names the periods before and after a change of parameters, also across a gap.

    Other noise changes the errors from one period to the next. Day 2, 2026-11-04, has no reports.
    """
    new_params = dataclasses.replace(PARAMS, p=0.2, q=0.8)
    days = [(0, draw_days(1)[0]), (1, draw_days(1)[0]), (3, draw_days(1, params=new_params)[0])]
    ((before, after),) = trend(build_released_days(days, n_days=4), NAMES).params_changes
    assert (before.name, after.name) == ("2026-11-03", "2026-11-05")
    assert (before.fingerprints, after.params) == ((PARAMS.fingerprint,), (new_params,))


@pytest.mark.slow
def test_all_categories_are_shown_in_their_order() -> None:
    """A trend of categories has a row for each category, in the order of the registry.

    The intervals are those of a decode, because all categories are shown and none is selected. A
    single day has no contrast, and a footnote explains why nothing was compared.
    """
    params = Params(k=2, encoding="onehot", categories=("no", "yes"), f=0.25, p=0.25, q=0.75)
    population = Population(["no", "yes"], [9, 1])
    days = simulate_days(population, params, n_devices=1e4, n_days=2, seed=1, metric="page")
    comparison = trend(build_released_days(list(enumerate(days)), n_days=2))
    assert comparison.candidates == ("no", "yes")
    assert comparison.per_sample.ci_low[1].tolist() == decode(days[1]).ci_low.tolist()
    first_day = trend(build_released_days([(0, days[0])], n_days=1))
    assert (
        next(list_comparison_footnotes(first_day))
        == "Nothing was compared: only one day has reports."
    )


def test_periods_that_are_no_days_weeks_or_months_are_kept() -> None:
    """Counts of periods of 3 and 12 days stay periods, because no sum can be divided into days.

    The number of missing days of such a period is unknown. Each period keeps its own counts, even
    if two periods begin on the same day.
    """
    (first, second) = draw_days(2)
    counts = build_released_periods([(0, 2, first), (9, 20, second)])
    comparison = trend(counts, NAMES)
    assert (comparison.by, len(comparison.samples), comparison.missing) == ("period", 2, ())
    assert [sample.missing_days for sample in comparison.samples] == [None, None]
    with pytest.raises(DecodeError, match="by must not be finer than the counts, got day"):
        trend(counts, NAMES, by="day")
    overlapping = build_released_periods([(0, 2, ONE_REPORT), (0, 4, first)])
    _, periods = split_periods(overlapping, None)
    assert [period.n_reports for period in periods] == [ONE_REPORT.n_reports, first.n_reports]
    # Periods of one and two days in turn.
    firsts = [n // 2 * 3 + n % 2 for n in range(1001)]
    many = build_released_periods([(n, n + n % 3, ONE_REPORT) for n in firsts])
    with pytest.raises(DecodeError, match="at most 1,000 periods, got 1,001"):
        split_periods(many, None)


def test_a_range_without_a_first_day_begins_with_the_first_withheld_day() -> None:
    """A range without a first day begins with a withheld day that is before all reports."""
    counts = build_released_periods([(2, 2, ONE_REPORT)], withheld=[0, 4])
    endless = dataclasses.replace(counts, first=datetime.date.min, last=day(4))
    kind, periods = split_periods(endless, None)
    assert kind == "day"
    # Each row has the first day, the number of days without reports, and of withheld days. Day 2
    # has reports. Days 0 and 4 are withheld, and also count as days without reports.
    assert [(period.first, period.missing_days, period.withheld) for period in periods] == [
        (day(0), 1, 1),
        (day(1), 1, 0),
        (day(2), 0, 0),
        (day(3), 1, 0),
        (day(4), 1, 1),
    ]


def test_weeks_and_months_are_cut_at_the_ends_of_the_range() -> None:
    """The first and the last week or month of a range are cut at its ends.

    Days outside the range would count as missing. The number of missing days is unknown if the
    counts are of a whole period.
    """
    weeks = build_released_periods([(3, 6, ONE_REPORT), (14, 18, ONE_REPORT)], withheld=[7, 13])
    kind, periods = split_periods(weeks, None)
    assert kind == "week"
    assert [
        (period.first, period.last, period.missing_days, period.withheld) for period in periods
    ] == [
        (day(3), day(6), None, 0),
        (day(7), day(13), 7, 2),
        (day(14), day(18), None, 0),
    ]
    # Single days are grouped by month. Of the 29 days from 2 to 30 November, one has reports. Of
    # the 16 days from 1 December to the end of the range, one has reports.
    days = build_released_days([(0, ONE_REPORT), (40, ONE_REPORT)], n_days=45)
    kind, periods = split_periods(days, "month")
    assert [(period.first, period.last, period.missing_days) for period in periods] == [
        (MONDAY, datetime.date(2026, 11, 30), 28),
        (datetime.date(2026, 12, 1), day(44), 15),
    ]


def test_counts_without_a_trend_are_refused() -> None:
    """Counts without reports, too many candidates, too many days and smooth=0 are refused."""
    counts = draw_days(1)[0]
    many = Candidates.product(["a"], "abcdefgh", 0, 6)
    without_reports = build_released_days([(0, Counts.zero(PARAMS, "page"))], n_days=1)
    with pytest.raises(DecodeError, match="at least 1 report"):
        trend(without_reports, NAMES)
    with pytest.raises(DecodeError, match="at most 131,072, got more: product"):
        trend(build_released_days([(0, counts)], n_days=1), many)
    with pytest.raises(DecodeError, match="at most 1,000 days"):
        trend(build_released_days([(0, counts)], n_days=1001), NAMES)
    with pytest.raises(DecodeError, match="smooth must be"):
        trend(build_released_days([(0, counts)], n_days=1), NAMES, smooth=0)
