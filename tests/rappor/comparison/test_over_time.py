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
"""Most of the noise is permanent, so a device repeats its noise on each day."""

NAMES = [f"s{i}" for i in range(20)]
ABSENT = [f"x{i}" for i in range(40)]
SHARES = np.exp(-np.arange(20) / 4) / np.exp(-np.arange(20) / 4).sum()
MONDAY = datetime.date(2026, 11, 2)
FALSE_ALARM = 1e-9


def day(number: int) -> datetime.date:
    """Return the date `number` days after Monday, 2 November 2026."""
    return MONDAY + datetime.timedelta(number)


def drawn(n_days: int, *, n: float = 5e4, seed: int = 1, params: Params = PARAMS) -> list[Counts]:
    """Draw days of the same devices."""
    population = Population(NAMES, list(SHARES))
    return simulate_days(population, params, n_devices=n, n_days=n_days, seed=seed, metric="page")


def released(
    days: Sequence[tuple[int, Counts]], *, n_days: int, withheld: Sequence[int] = ()
) -> ReleasedCounts:
    """Return counts of some of the days from Monday on."""
    known = released_periods([(n, n, counts) for n, counts in days], withheld=withheld)
    return dataclasses.replace(known, first=MONDAY, last=day(n_days - 1))


def released_periods(
    periods: Sequence[tuple[int, int, Counts]], *, withheld: Sequence[int] = ()
) -> ReleasedCounts:
    """Return counts of periods, by their first and last days after Monday."""
    counts = {(day(first), day(last)): period_counts for first, last, period_counts in periods}
    return decodings.released(counts, "page", withheld=tuple(map(day, withheld)))


ONE_REPORT = Counts(PARAMS, np.zeros((16, 32)), np.ones(16))
"""Counts of one report in each of the 16 cohorts. No report has a 1, because tests with these
counts look only at the periods."""

DAYS = [(number, counts) for number, counts in enumerate(drawn(9)) if number != 4]
"""Numbers and counts of nine days from Monday on. The first Friday, day 4, has no counts."""


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return trend(released(DAYS, n_days=9, withheld=[8]), NAMES + ABSENT, smooth=3)


@pytest.mark.slow
def test_each_period_is_a_decode_of_its_own(comparison: Comparison) -> None:
    """Each period has the estimates of its counts alone, and intervals for detected strings.

    A decode of all days at half of the error rate (0.025) detects R = `n` of the c = 60 candidates.
    The intervals have the confidence 1 - 0.05 R / c.
    """
    counts = [counts for _, counts in DAYS]
    n = int(decode(counts, NAMES + ABSENT, error_control=ErrorControl(alpha=0.025)).detected.sum())
    assert 3 <= n <= len(comparison.shown_rows) < 60
    adjusted = ErrorControl(confidence=1 - 0.05 * n / 60)
    for number, day_counts in DAYS:
        alone = decode(day_counts, NAMES + ABSENT, error_control=adjusted)
        order = [alone.candidates.index(name) for name in comparison.candidates]
        for name in ("share", "std_error", "ci_low", "ci_high"):
            ours = getattr(comparison.per_sample, name)[number]
            assert ours == pytest.approx(getattr(alone, name)[order], rel=1e-12)


@pytest.mark.slow
def test_a_day_without_reports_stays_visible(comparison: Comparison) -> None:
    """A day without reports is a period with NaN, and has the weight 0 in all contrasts."""
    assert [period.name for period in comparison.missing] == ["2026-11-06"]
    assert [period.reports for period in comparison.samples] == [5e4] * 4 + [0] + [5e4] * 4
    assert [period.withheld for period in comparison.samples] == [0] * 8 + [1]
    rows = [r for r in comparison.rows() if r["name"] == "2026-11-06" and r["what"] == "share"]
    assert len(rows) == len(comparison.shown_rows)
    for row in rows:
        assert (row["estimate"], row["ci_low"], row["detected"]) == (None, None, False)
    assert all(contrast.weights[4] == 0 for contrast in comparison.contrasts)


def test_the_slope_is_that_of_least_squares_by_the_days(comparison: Comparison) -> None:
    """The slope is the change along a line, weighted by the precision of the periods."""
    # The estimate is a weighted sum of shares. The weights are checked on random shares, which have
    # the slope of a weighted fit by numpy, times the 8 days from the first to the last one.
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
    assert not thirds.changed.any()
    assert slope.before == pytest.approx(comparison.per_sample.share[:2].mean(axis=0), rel=0.02)


@pytest.mark.slow
def test_steps_are_differences_from_the_day_before_with_reports(comparison: Comparison) -> None:
    """Steps are differences of consecutive days with reports, as `compare_samples` computes.

    The permanent noise of the same devices cancels, so errors are far below those of two shares.
    """
    samples = {str(day(number)): counts for number, counts in DAYS}
    again = compare_samples(samples, comparison.candidates, baseline="previous")
    steps = [contrast for contrast in comparison.contrasts if contrast.kind == "step"]
    assert [step.name for step in steps] == [contrast.name for contrast in again.contrasts]
    order = np.array([again.candidates.index(name) for name in comparison.candidates])
    for ours, theirs in zip(steps, again.contrasts, strict=True):
        assert ours.estimate == pytest.approx(theirs.estimate[order], rel=1e-9)
        assert ours.changed.tolist() == theirs.changed[order].tolist()
    independent = np.hypot(*comparison.per_sample.std_error[:2])
    assert (
        steps[0].std_error[comparison.shown_rows] < 0.8 * independent[comparison.shown_rows]
    ).all()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_slow_fall_is_found_by_the_slope() -> None:
    """A fall of three standard errors over 8 weeks is found by the slope.

    Slopes of 120 absent strings (40 in each of 3 runs), divided by their standard errors, have the
    variance 1. The bound is 9 standard errors of a variance, because strings that share bits are
    correlated. A benchmark has more runs.
    """
    z = []
    for seed in range(3):
        weeks = []
        for week, share in enumerate(np.linspace(0.2, 0.1, 8)):
            shares = [*(SHARES * 0.7), share, 0.3 - share]
            population = Population([*NAMES, "falling", "unasked"], shares)
            counts = simulate_counts(
                population, PARAMS, n_reports=2e4, seed=100 * seed + week, metric="page"
            )
            weeks.append((week, counts))
        comparison = trend(released(weeks, n_days=8), [*NAMES, *ABSENT, "falling"])
        (slope,) = comparison.primary
        row = comparison.candidates.index("falling")
        assert abs(slope.estimate[row] + 0.1) < 6 * slope.std_error[row]  # it falls from .2 to .1
        assert slope.direction[row] == "fall"
        absent = [comparison.candidates.index(name) for name in ABSENT]
        z += (slope.estimate / slope.std_error)[absent].tolist()
    assert abs(np.var(z) - 1) < 9 * np.sqrt(2 / len(z))


def test_smoothed_estimates_are_of_the_days_together(comparison: Comparison) -> None:
    """A smoothed estimate is a decode of three days.

    It is NaN before the third day and on days without reports. The estimate of day 5 uses days 3
    and 5, because day 4 has no reports.
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
    """Six days of the same 5e4 devices count as fewer than 7.5e4 devices.

    Each device sends one report a day. Monday to Sunday without Friday are 3e5 reports.
    """
    days = [(number, counts.with_devices(5e4)) for number, counts in DAYS]
    comparison = trend(released(days, n_days=9), NAMES, by="week")
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
    """A string that 6 % of the devices send on day 2 only is detected on this day.

    A decode of all five days together does not detect it.
    """
    burst = Population([*NAMES, "burst"], [*(SHARES * 0.94), 0.06])
    days = [(i, counts) for i, counts in enumerate(drawn(5, n=1e5, seed=2))]
    days[2] = (2, simulate_days(burst, PARAMS, n_devices=2e4, n_days=1, seed=3, metric="page")[0])
    candidates = [*NAMES, *ABSENT, "burst"]
    pooled = decode(
        [counts for _, counts in days], candidates, error_control=ErrorControl(alpha=0.025)
    )
    assert not pooled.detected[pooled.candidates.index("burst")]
    comparison = trend(released(days, n_days=5), candidates)
    column = comparison.candidates.index("burst")
    assert comparison.detected_overall[column]
    assert comparison.per_sample.detected[:, column].tolist() == [i == 2 for i in range(5)]
    steps = [contrast for contrast in comparison.contrasts if contrast.kind == "step"]
    assert [step.direction[column] for step in steps] == ["", "newcomer", "leaver", ""]


@pytest.mark.slow
@pytest.mark.parametrize("by", [None, "day", "week", "month"])
def test_a_range_without_ends_is_that_of_its_reports(by: str | None) -> None:
    """Without first and last days, the range is that of the reports and the withheld days."""
    bounded = released([(3, DAYS[3][1]), (5, DAYS[4][1])], n_days=7, withheld=[2, 6])
    endless = dataclasses.replace(bounded, first=datetime.date.min, last=datetime.date.max)
    within = dataclasses.replace(bounded, first=day(2), last=day(6))
    periods, expected = (trend(counts, NAMES, by=by).samples for counts in (endless, within))
    assert periods == expected


@pytest.mark.slow
def test_a_change_of_parameters_is_marked() -> None:
    """A change of parameters is marked at its first period, also after a gap."""
    other = dataclasses.replace(PARAMS, p=0.2, q=0.8)
    days = [(0, drawn(1)[0]), (1, drawn(1)[0]), (3, drawn(1, params=other)[0])]
    ((before, after),) = trend(released(days, n_days=4), NAMES).params_changes
    assert (before.name, after.name) == ("2026-11-03", "2026-11-05")
    assert (before.fingerprints, after.params) == ((PARAMS.fingerprint,), (other,))


@pytest.mark.slow
def test_answers_are_all_shown() -> None:
    """All categories are shown in their order."""
    params = Params(k=2, encoding="onehot", categories=("no", "yes"), f=0.25, p=0.25, q=0.75)
    population = Population(["no", "yes"], [9, 1])
    days = simulate_days(population, params, n_devices=1e4, n_days=2, seed=1, metric="page")
    comparison = trend(released(list(enumerate(days)), n_days=2))
    assert comparison.candidates == ("no", "yes")
    assert comparison.per_sample.ci_low[1].tolist() == decode(days[1]).ci_low.tolist()
    alone = trend(released([(0, days[0])], n_days=1))
    assert (
        next(list_comparison_footnotes(alone)) == "Nothing was compared: only one day has reports."
    )


def test_periods_of_other_lengths_stay_as_they_are() -> None:
    """Periods of other lengths are kept, with an unknown number of missing days."""
    (first, second) = drawn(2)
    counts = released_periods([(0, 2, first), (9, 20, second)])
    comparison = trend(counts, NAMES)
    assert (comparison.by, len(comparison.samples), comparison.missing) == ("period", 2, ())
    assert [sample.missing_days for sample in comparison.samples] == [None, None]
    with pytest.raises(DecodeError, match="by must not be finer than the counts, got day"):
        trend(counts, NAMES, by="day")


def test_a_range_without_a_first_day_begins_with_the_first_withheld_day() -> None:
    """A range without a first day begins with the first withheld day."""
    counts = released_periods([(2, 2, ONE_REPORT)], withheld=[0, 4])
    endless = dataclasses.replace(counts, first=datetime.date.min, last=day(4))
    kind, periods = split_periods(endless, None)
    assert kind == "day"
    # (first day, days without reports, withheld days): day 2 has reports, days 0 and 4 are
    # withheld.
    assert [(period.first, period.missing_days, period.withheld) for period in periods] == [
        (day(0), 1, 1),
        (day(1), 1, 0),
        (day(2), 0, 0),
        (day(3), 1, 0),
        (day(4), 1, 1),
    ]


def test_weeks_and_months_are_cut_at_the_ends_of_the_range() -> None:
    """Weeks and months end with the range, and missing days are counted."""
    weeks = released_periods([(3, 6, ONE_REPORT), (14, 18, ONE_REPORT)], withheld=[7, 13])
    kind, periods = split_periods(weeks, None)
    assert kind == "week"
    assert [
        (period.first, period.last, period.missing_days, period.withheld) for period in periods
    ] == [
        (day(3), day(6), None, 0),
        (day(7), day(13), 7, 2),
        (day(14), day(18), None, 0),
    ]
    # Counts by month of single days: 28 of the 29 days until the end of November have no reports,
    # and 15 of the 16 days until the end of the range.
    days = released([(0, ONE_REPORT), (40, ONE_REPORT)], n_days=45)
    kind, periods = split_periods(days, "month")
    assert [(period.first, period.last, period.missing_days) for period in periods] == [
        (MONDAY, datetime.date(2026, 11, 30), 28),
        (datetime.date(2026, 12, 1), day(44), 15),
    ]


def test_questions_without_an_answer_are_refused() -> None:
    """Counts without reports, too many candidates and too many days are refused."""
    one = drawn(1)[0]
    many = Candidates.product(["a"], "abcdefgh", 0, 6)
    nothing = released([(0, Counts.zero(PARAMS, "page"))], n_days=1)
    with pytest.raises(DecodeError, match="at least 1 report"):
        trend(nothing, NAMES)
    with pytest.raises(DecodeError, match="at most 131,072, got more: product"):
        trend(released([(0, one)], n_days=1), many)
    with pytest.raises(DecodeError, match="at most 1,000 days"):
        trend(released([(0, one)], n_days=1001), NAMES)
    with pytest.raises(DecodeError, match="smooth must be"):
        trend(released([(0, one)], n_days=1), NAMES, smooth=0)
