"""Calendar of the device: days, intervals and epochs of a time, all in UTC.

A time is a number of seconds since 1970-01-01 00:00 UTC. This count has no leap seconds, so every
day has 86,400 seconds. The module reads no clock. The caller passes the time.

An interval is the time in which a metric has at most one report. With `interval = "epoch"` a metric
has one report in an epoch, about the events of a single day. The interval of this module is then
that day. The day is chosen elsewhere.

    unit       contains                              example for 2026-11-18 12:00 (a Wednesday)
    day        0:00 to 24:00                         2026-11-18
    interval   "day": a day                          2026-11-18
               "week": Monday to Sunday              2026-11-16 to 2026-11-22
               "epoch": a day                        2026-11-18
    epoch      a month, quarter or year              quarter: 2026-10-01 to 2026-12-31

All ends are exclusive times: the end of a day is the first second of the next day.

Clocks may be wrong. `bound_clock` keeps a clock inside the calendar, and `is_far_ahead` recognizes
an interval that a wrong clock began.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Final

Clock = Callable[[], float]
"""A function that returns the present time, in seconds since 1970 (UTC)."""

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR
WEEK: Final = 7 * DAY

_FIRST_DAY: Final = datetime.date(1970, 1, 1)
LAST_TIME: Final = (datetime.date(9999, 1, 1) - _FIRST_DAY).days * DAY
"""Latest time that a clock shows. Python's calendar ends on 9999-12-31; the year before its end
leaves room for the ends of epochs."""
_MONDAY: Final = 4 * DAY
"""Start of the first Monday. 1970 began on a Thursday, and weeks are counted from Mondays."""
_INTERVALS: Final[Mapping[str, tuple[float, float]]] = {
    "day": (DAY, 0.0),
    "week": (WEEK, _MONDAY),
    "epoch": (DAY, 0.0),
}
"""Length of each interval in seconds, and start of its first whole interval after the beginning of
1970, in seconds. Every later interval begins a multiple of the length after this start. The
interval "epoch" has the numbers of a day."""
_EPOCH_MONTHS: Final = {"year": 12, "quarter": 3, "month": 1}


def bound_clock(clock: Clock) -> Clock:
    """Return a clock that shows only times from 1970 to the year 9999.

    Calendar functions raise for other times, and a host may pass any clock. A NaN becomes 1970, a
    time that every rule for wrong clocks recognizes.
    """

    def read() -> float:
        now = clock()
        is_number = now == now  # noqa: PLR0124 - only NaN differs from itself
        return min(max(now, 0.0), LAST_TIME) if is_number else 0.0

    return read


def day_of(now: float) -> datetime.date:
    """Return the day of a time."""
    # `datetime.fromtimestamp` raises for times after the year 3000 on Windows.
    return _FIRST_DAY + datetime.timedelta(days=now // DAY)


def get_interval_seconds(interval: str) -> float:
    """Return the length of an interval, in seconds; the length of a day for "epoch"."""
    length, _ = _INTERVALS[interval]
    return length


def find_interval_end(interval: str, now: float) -> float:
    """Return the end of the interval that contains a time.

    Parameters
    ----------
    interval
        "day", "week" or "epoch". The end for "epoch" is the end of the day.
    now
        The time.
    """
    length, start = _INTERVALS[interval]
    n_complete = (now - start) // length
    return n_complete * length + length + start


def is_far_ahead(end: float, seconds: float, now: float) -> bool:
    """Return whether an interval begins more than its own length after the present time.

    An interval is stored while it is open, so a right clock is after its beginning. A clock that is
    before the beginning was ahead when the interval began, or is behind now. A small difference,
    for example a correction from 0:01 back to 23:59, is no reason to drop the interval. It stays
    open, so that the evening does not get a second report.

    Parameters
    ----------
    end
        End of the interval.
    seconds
        Length of the interval, in seconds.
    now
        The present time.
    """
    # The interval begins at `end - seconds`.
    return end > now + 2 * seconds


def find_day_end(day: str) -> float:
    """Return the end of a day in ISO form, such as "2026-11-18"."""
    return ((datetime.date.fromisoformat(day) - _FIRST_DAY).days + 1) * DAY


def find_epoch_days(epoch: str, day: datetime.date) -> tuple[datetime.date, datetime.date]:
    """Return the first and the last day of the year, quarter or month that contains a day."""
    n_months = _EPOCH_MONTHS[epoch]
    first_month = (day.month - 1) // n_months * n_months + 1
    first = datetime.date(day.year, first_month, 1)
    # Count months from January of the year 0. The epoch ends before the month with this number. Its
    # year and its month, from 0, are quotient and remainder.
    year, month = divmod(day.year * 12 + first_month - 1 + n_months, 12)
    # The day after the last epoch of the year 9999 does not exist in Python.
    if year > datetime.MAXYEAR:
        return first, datetime.date.max
    return first, datetime.date(year, month + 1, 1) - datetime.timedelta(days=1)
