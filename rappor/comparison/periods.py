"""The days, weeks or months of a trend, including periods without reports.

`trend` calls `split_periods`. The input is a `ReleasedCounts`, whose periods are those of a
collector's response: only periods with reports, and perhaps shorter than the periods of the trend.
The output is a calendar: consecutive `CalendarPeriod` of one length, each with its counts. A period
without reports stays in the calendar, so that a trend shows the gap.

Example: a response has counts of the days 2, 3 and 10 November 2026, for the range from 1 to 15
November. By week, the calendar has the periods 1 November (the range begins on a Sunday), 2 to 8
November with two days of counts and 5 missing days, and 9 to 15 November with one day of counts and
6 missing days.
"""

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
"""Largest number of periods in one trend, which bounds time and memory: every period is decoded.
1,000 days are more than two years."""


@dataclass(slots=True)
class CalendarPeriod:
    """A day, week or month with its counts.

    Attributes
    ----------
    first, last : first and last day, both included. The first and the last period end where the
        requested range ends.
    missing_days : number of days without released reports. None if the counts of the period do not
        separate days.
    withheld : number of days with reports that the collector has not released.
    collections : counts of the period, of all parameter sets and days. Empty without reports.
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
    released : counts with their days.
    by : "day", "week" or "month". The counts must not be coarser: the counts of a month cannot be
        split into weeks. None takes the length that all periods of the counts have. If their
        lengths differ, these periods stay as they are, without gaps, and the length is "period".

    Raises
    ------
    DecodeError
        There are no reports, a period of the counts reaches beyond a period of the calendar, or
        there are more than `MOST_PERIODS` periods.
    """
    if by is not None:
        check_choice("by", by, PERIOD_KINDS, error=DecodeError)
    periods = [period for period in released.periods if period.n_reports]
    if not periods:
        raise DecodeError("counts must have at least 1 report, got 0")
    within = _resolve_range(released, periods)
    kind = by or _find_common_kind(periods, within)
    # Without a common kind, the periods of the counts have different lengths.
    calendar = _fill_calendar(kind, within, periods) if kind else _copy_periods(periods)
    has_daily_counts = kind is not None and all(period.first == period.last for period in periods)
    for day in released.withheld:
        for calendar_period in calendar:
            calendar_period.withheld += calendar_period.first <= day <= calendar_period.last
    # Counts of a week do not say on which of its days there were reports. So only daily counts
    # determine the missing days, and a period without any counts misses all its days.
    days = {period.first for period in periods}
    for calendar_period in calendar:
        if has_daily_counts or not calendar_period.collections:
            n_days = (calendar_period.last - calendar_period.first).days + 1
            calendar_period.missing_days = n_days - sum(
                calendar_period.first <= day <= calendar_period.last for day in days
            )
    return kind or "period", calendar


def _copy_periods(periods: Sequence[Period]) -> list[CalendarPeriod]:
    """Return the periods of the counts as they are, each with its own counts.

    Raises
    ------
    DecodeError
        There are more than `MOST_PERIODS` periods.
    """
    if len(periods) > MOST_PERIODS:
        raise DecodeError(
            f"a trend has at most {MOST_PERIODS:,} periods, got {len(periods):,}: ask for less"
        )
    return [
        CalendarPeriod(period.first, period.last, collections=list(period.collections))
        for period in periods
    ]


def _fill_calendar(kind: str, within: DayRange, periods: Sequence[Period]) -> list[CalendarPeriod]:
    """Return every period of the range, with the counts of its days.

    Parameters
    ----------
    kind : "day", "week" or "month".
    within : the first and the last day of the range.
    periods : the periods of the counts.

    Raises
    ------
    DecodeError
        A period of the counts reaches beyond a period of the calendar, or the range has more than
        `MOST_PERIODS` periods.
    """
    calendar = {period.first: period for period in _generate_calendar(kind, within)}
    for period in periods:
        first, last = find_period(period.first, kind, within=within)
        if period.last > last:
            raise DecodeError(
                f"by must not be finer than the counts, got {kind} for the period {period.name}"
            )
        calendar[first].collections += period.collections
    return list(calendar.values())


def _get_day_range(period: Period) -> DayRange:
    """Return the first and the last day of a period."""
    return period.first, period.last


def _resolve_range(released: ReleasedCounts, periods: Sequence[Period]) -> DayRange:
    """Return the first and the last requested day.

    A request may have no first or no last day. The response of the collector then contains the
    first or the last possible date (the years 1 and 9999). Such a date is replaced by the first or
    the last day with reports, released or not.
    """
    first, last = released.first, released.last
    if first == datetime.date.min:
        first = min([periods[0].first, *released.withheld])
    if last == datetime.date.max:
        last = max([periods[-1].last, *released.withheld])
    return first, last


def _find_common_kind(periods: Sequence[Period], within: DayRange) -> str | None:
    """Return the kind of which all periods are: "day", "week" or "month".

    Return None if there is no such kind: the lengths differ, or a period is no whole calendar
    period, such as ten days.
    """
    for kind in PERIOD_KINDS:
        if all(
            find_period(period.first, kind, within=within) == _get_day_range(period)
            for period in periods
        ):
            return kind
    return None


def _generate_calendar(kind: str, within: DayRange) -> Iterator[CalendarPeriod]:
    """Yield every period of the range, still without counts.

    Parameters
    ----------
    kind : "day", "week" or "month".
    within : the first and the last day of the range.

    Raises
    ------
    DecodeError
        The range has more than `MOST_PERIODS` periods.
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
        # The next day cannot be represented.
        if last == datetime.date.max:
            return
        day = last + datetime.timedelta(1)
