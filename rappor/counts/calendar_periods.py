"""Calendar periods of counts: days, weeks from Monday to Sunday, and calendar months.

A trend compares the counts of consecutive periods. All days are days of UTC.
"""

from __future__ import annotations

import calendar
import datetime
from typing import Final

PERIOD_KINDS: Final = ("day", "week", "month")
"""Kinds of periods for which a collector returns counts, shortest first. A trend compares periods
of one kind."""

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
