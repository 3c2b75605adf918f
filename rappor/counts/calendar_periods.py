"""Calendar periods of counts: days, weeks, months, and the intervals of a metric's reports.

A trend compares the counts of consecutive days, weeks (Monday to Sunday) or months. A device sends
at most one report of a metric in each interval. All days are days of UTC.
"""

from __future__ import annotations

import calendar
import datetime
from collections.abc import Iterator
from typing import Final

PERIOD_KINDS: Final = ("day", "week", "month")
"""Kinds of periods for which a collector returns counts, shortest first. A trend compares periods
of one kind."""

_MONTHS: Final = {"month": 1, "quarter": 3, "year": 12}
"""Number of months of an interval or of an epoch. Days and weeks are not in this mapping, because
they do not consist of whole months. `find_period` finds days and weeks."""

DayRange = tuple[datetime.date, datetime.date]
"""Range of days. The two entries are its first and its last day, both included."""


def find_period(day: datetime.date, kind: str, *, within: DayRange) -> DayRange:
    """Return the period that contains a day, cut to a range.

    Parameters
    ----------
    day : a day of the range.
    kind : "day", "week" or "month".
    within : range of days for which counts exist. The period ends where the range ends.
    """
    first = last = day
    if kind == "week":
        monday = day.toordinal() - day.weekday()
        first = datetime.date.fromordinal(monday)
        # Case: the last week of the year 9999. A `datetime.date` cannot represent its Sunday.
        last = datetime.date.fromordinal(min(monday + 6, datetime.date.max.toordinal()))
    elif kind == "month":
        first = day.replace(day=1)
        last = day.replace(day=calendar.monthrange(day.year, day.month)[1])
    return max(first, within[0]), min(last, within[1])


def find_interval(pace: str, epoch: str, day: datetime.date) -> DayRange:
    """Return the first and the last day of the interval that contains a day.

    An interval is a whole day, week, month, quarter or year, cut at the first and the last day of
    its epoch. A week in which an epoch begins therefore consists of two intervals: a device may
    send a report in both, because it draws new permanent noise in the new epoch.

    Parameters
    ----------
    pace : length of an interval: "day", "week" (from Monday), "month", "quarter" or "year"
        (`Params.pace`).
    epoch : "life", "year", "quarter" or "month". An interval ends with its epoch at the latest.
    day : a day of the interval.

    Examples
    --------
    >>> [f"{end}" for end in find_interval("week", "year", datetime.date(2026, 12, 30))]
    ['2026-12-28', '2026-12-31']
    """
    first, last = _find_calendar_range(pace, day)
    if epoch in _MONTHS:
        first_of_epoch, last_of_epoch = _find_calendar_range(epoch, day)
        first, last = max(first, first_of_epoch), min(last, last_of_epoch)
    return first, last


def list_intervals(
    pace: str, epoch: str, first: datetime.date, last: datetime.date
) -> Iterator[DayRange]:
    """Yield the intervals that contain a day of a range, in order.

    Parameters
    ----------
    pace, epoch : as for `find_interval`.
    first, last : first and last day of the range, both included.
    """
    while first <= last:
        interval = find_interval(pace, epoch, first)
        yield interval
        first = interval[1] + datetime.timedelta(days=1)


def _find_calendar_range(kind: str, day: datetime.date) -> DayRange:
    """Return the whole day, week, month, quarter or year that contains a day."""
    if kind not in _MONTHS:
        return find_period(day, kind, within=(datetime.date.min, datetime.date.max))
    n_months = _MONTHS[kind]
    first_month = (day.month - 1) // n_months * n_months + 1
    last_month = first_month + n_months - 1
    last_day = calendar.monthrange(day.year, last_month)[1]
    return day.replace(month=first_month, day=1), datetime.date(day.year, last_month, last_day)
