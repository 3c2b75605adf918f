"""The days, weeks or months of a trend, including periods without reports."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from rappor.base.errors import DecodeError
from rappor.base.ranges import check_choice
from rappor.counts.calendar_periods import PERIOD_KINDS, DayRange, find_period
from rappor.counts.counts import Counts
from rappor.counts.released_counts import Period, ReleasedCounts

MOST_PERIODS: Final = 1000
"""Largest number of periods in one trend: more than two years of days. Bounds time and memory."""


@dataclass(slots=True)
class CalendarPeriod:
    """A day, week or month with its counts.

    Attributes
    ----------
    missing_days : days without reports; None if the counts do not separate days.
    withheld : days with reports that the collector has not released.
    """

    first: datetime.date
    last: datetime.date
    missing_days: int | None = None
    withheld: int = 0
    collections: list[Counts] = field(default_factory=list)

    @property
    def n_reports(self) -> int:
        """Number of reports under all parameter sets."""
        return sum(counts.n_reports for counts in self.collections)

    @property
    def name(self) -> str:
        """The day, or the first and the last day, in the format of `Period.name`."""
        return Period(first=self.first, last=self.last, collections=()).name


def split_periods(released: ReleasedCounts, by: str | None) -> tuple[str, list[CalendarPeriod]]:
    """Return the length of the periods ("day", "week", ...), and all periods in order.

    Parameters
    ----------
    by : "day", "week" or "month", no finer than the counts' periods. By default the length that all
        periods have. Periods of unequal length stay as they are, and their missing days are
        unknown.

    Raises
    ------
    DecodeError
        There are no reports, a period spans several days, weeks or months, or there are too many.
    """
    if by is not None:
        check_choice("by", by, PERIOD_KINDS, error=DecodeError)
    periods = [period for period in released.periods if period.n_reports]
    if not periods:
        raise DecodeError("counts must have at least 1 report, got 0")
    within = _resolve_range(released, periods)
    kind = by or _common_kind(periods, within)
    if kind is None:
        calendar = [CalendarPeriod(period.first, period.last) for period in periods]
    else:
        calendar = list(_generate_calendar(kind, within))
    by_first_day = {calendar_period.first: calendar_period for calendar_period in calendar}
    daily = kind is not None and all(period.first == period.last for period in periods)
    for period in periods:
        first, last = find_period(period.first, kind, within=within) if kind else _days_of(period)
        if period.last > last:
            raise DecodeError(
                f"by must not be finer than the counts, got {by} for the period {period.name}"
            )
        by_first_day[first].collections += period.collections
    for day in released.withheld:
        for calendar_period in calendar:
            calendar_period.withheld += calendar_period.first <= day <= calendar_period.last
    days = {period.first for period in periods}
    for calendar_period in calendar:
        if daily or not calendar_period.collections:
            n_days = (calendar_period.last - calendar_period.first).days + 1
            calendar_period.missing_days = n_days - sum(
                calendar_period.first <= day <= calendar_period.last for day in days
            )
    return kind or "period", calendar


def _days_of(period: Period) -> DayRange:
    """Return the first and the last day of a period."""
    return period.first, period.last


def _resolve_range(released: ReleasedCounts, periods: Sequence[Period]) -> DayRange:
    """Return the requested days; an open end is replaced by the first or last day with reports.

    Collectors write a range without a beginning or an end with the first and the last possible
    date.
    """
    first, last = released.first, released.last
    if first == datetime.date.min:
        first = min([periods[0].first, *released.withheld])
    if last == datetime.date.max:
        last = max([periods[-1].last, *released.withheld])
    return first, last


def _common_kind(periods: Sequence[Period], within: DayRange) -> str | None:
    """Return the length that all periods have; None if lengths differ or fit no calendar unit."""
    for kind in PERIOD_KINDS:
        if all(
            find_period(period.first, kind, within=within) == _days_of(period) for period in periods
        ):
            return kind
    return None


def _generate_calendar(kind: str, within: DayRange) -> Iterator[CalendarPeriod]:
    """Yield every period of the range, with or without reports.

    Raises DecodeError if there are more than `MOST_PERIODS`.
    """
    day, n_periods = within[0], 0
    while day <= within[1]:
        first, last = find_period(day, kind, within=within)
        if n_periods == MOST_PERIODS:
            raise DecodeError(
                f"a trend has at most {MOST_PERIODS:,} {kind}s, from {within[0]}: ask for less"
            )
        yield CalendarPeriod(first, last)
        n_periods += 1
        if last == datetime.date.max:
            return
        day = last + datetime.timedelta(1)
