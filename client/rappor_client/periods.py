"""Days, intervals and epochs of a moment, all in UTC; the clock is the caller's."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Final

Clock = Callable[[], float]
"""() -> seconds since 1970 (UTC)."""

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR
WEEK: Final = 7 * DAY

_FIRST_DAY: Final = datetime.date(1970, 1, 1)
LAST: Final = (datetime.date(9999, 1, 1) - _FIRST_DAY).days * DAY
_MONDAY: Final = 4 * DAY  # 1970 began on a Thursday
_INTERVALS: Final[Mapping[str, tuple[float, float]]] = {
    "day": (DAY, 0.0),
    "week": (WEEK, _MONDAY),
    "epoch": (DAY, 0.0),
}
"""Length and offset; once an epoch, the events of one day are chosen from."""
_EPOCH_MONTHS: Final = {"year": 12, "quarter": 3, "month": 1}


def bounded(clock: Clock) -> Clock:
    """Return a clock that is never beyond what a calendar holds: from 1970 to the year 9999.

    What is no number reads as 1970, which every device knows to be wrong.
    """

    def read() -> float:
        now = clock()
        return min(max(now, 0.0), LAST) if now == now else 0.0  # noqa: PLR0124  (only NaN is not)

    return read


def day_of(now: float) -> datetime.date:
    """Return the day (UTC) of a moment."""
    return _FIRST_DAY + datetime.timedelta(days=now // DAY)  # fromtimestamp ends in 3000 on Windows


def interval_seconds(interval: str) -> float:
    """Return the length of a day or a week, in seconds; of a day where one is drawn in an epoch."""
    length, _ = _INTERVALS[interval]
    return length


def interval_end(interval: str, now: float) -> float:
    """Return the first moment after the day or week (from Monday) that holds `now`."""
    length, offset = _INTERVALS[interval]
    return (now - offset) // length * length + length + offset


def is_far_ahead(ends: float, seconds: float, now: float) -> bool:
    """Return whether an interval of this length begins so late that the clock must be wrong."""
    return ends > now + 2 * seconds


def after_day(day: str) -> float:
    """Return the first moment (UTC) after a day in ISO form."""
    return ((datetime.date.fromisoformat(day) - _FIRST_DAY).days + 1) * DAY


def epoch_days(epoch: str, day: datetime.date) -> tuple[datetime.date, datetime.date]:
    """Return the first and the last day of the year, quarter or month that holds a day."""
    months = _EPOCH_MONTHS[epoch]
    month = (day.month - 1) // months * months + 1
    first = datetime.date(day.year, month, 1)
    year, month = divmod(day.year * 12 + month - 1 + months, 12)
    if year > datetime.MAXYEAR:
        return first, datetime.date.max
    return first, datetime.date(year, month + 1, 1) - datetime.timedelta(days=1)
