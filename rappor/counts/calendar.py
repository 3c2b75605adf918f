"""Stretches of the calendar that counts are shown by: days, weeks from Monday on, months."""

from __future__ import annotations

import calendar
import datetime
from typing import Final

STRETCHES: Final = ("day", "week", "month")

Days = tuple[datetime.date, datetime.date]
"""First and last day, both included."""


def stretch_of(day: datetime.date, by: str, *, within: Days) -> Days:
    """Return the first and the last day of the stretch that a day is in, as far as it is within."""
    first = last = day
    if by == "week":
        monday = day.toordinal() - day.weekday()
        first = datetime.date.fromordinal(monday)
        last = datetime.date.fromordinal(min(monday + 6, datetime.date.max.toordinal()))
    elif by == "month":
        first = day.replace(day=1)
        last = day.replace(day=calendar.monthrange(day.year, day.month)[1])
    return max(first, within[0]), min(last, within[1])
