"""What is known of the devices behind a sum of reports.

Theory of operation
-------------------
Device d sends n_d reports, N in all. The reports of one device share its value and its permanent
response, so the variance of a proportion is

    within / N + between * S / N^2,     S = sum over d of n_d^2

within is what the fresh coins add to each report, between what differs between devices. So S is
all that has to be known: N where every device reports once, N r where each sends r reports.

Two sums of the same devices have S = |a + b|^2 <= (|a| + |b|)^2 (the triangle inequality, |a|^2
being the S of one of them), with equality where each device's reports grow in the same proportion;
sums of different devices have S = |a|^2 + |b|^2.
"""

from __future__ import annotations

import datetime
import math
import numbers
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from typing import Final

from rappor.base.errors import ReportError
from rappor.base.ranges import check_number, format_value

_MONTHS: Final = {"month": 1, "quarter": 3, "year": 12}


def check_squares(squares: object, n_reports: int) -> int | None:
    """Return a sum of squares that n reports can have, or None for None.

    Raises ReportError for any other number, or what is none.
    """
    if squares is None:
        return None
    # A sum over a data frame is an integer of numpy, which is no `int`.
    if isinstance(squares, bool) or not isinstance(squares, numbers.Integral):
        raise ReportError(f"squares must be an integer or None, got {format_value(squares)}")
    squares = int(squares)
    if not n_reports <= squares <= n_reports**2:
        raise ReportError(
            f"squares must be in [{n_reports}, {n_reports**2}], from one report a device to one "
            f"device, got {squares}"
        )
    return squares


def squares_of(
    n_reports: int, *, n_devices: float | None = None, reports_per_device: float | None = None
) -> int:
    """Return the sum of squares if reports are evenly spread over the devices, rounded up."""
    if (n_devices is None) == (reports_per_device is None):
        raise ReportError("either devices or reports_per_device must be given, not both")
    name, value = ("reports_per_device", reports_per_device)
    if n_devices is not None:
        name, value = ("devices", n_devices)
    check_number(name, value, f"[1, {n_reports}]", error=ReportError)
    assert value is not None
    each = n_reports / value if n_devices is not None else value
    return min(max(math.ceil(n_reports * each), n_reports), n_reports**2)


def add_squares(first: int | None, second: int | None, *, same_devices: bool) -> int | None:
    """Return the sum of squares of two sums, or a bound above it; None if one is unknown."""
    if first is None or second is None:
        return None
    if not same_devices:
        return first + second
    product = 4 * first * second
    root = math.isqrt(product)
    return first + second + root + (root * root < product)


def squares_of_days(reports: Iterable[int]) -> int:
    """Return the largest sum of squares of days on which no device reported twice."""
    return squares_of_periods((n, 1) for n in reports)


def squares_of_periods(periods: Iterable[tuple[int, int]]) -> int:
    """Return the largest sum of squares, given the reports of periods and a device's most in each.

    In periods of n reports, at most d from each device, and of n' and d', the products of the
    devices' reports sum to at most min(n d', n' d): as many devices are in both as the smaller one
    holds, and each sent d and d'. S is the sum of that over all pairs of periods.
    """
    ordered = sorted(periods, key=lambda period: Fraction(*period))
    later = sum(most for _, most in ordered)
    squares = 0
    for n, most in ordered:
        later -= most
        squares += n * (most + 2 * later)
    return min(squares, sum(n for n, _ in ordered) ** 2)


def squares_by_pace(
    pace: str, epoch: str, periods: Iterable[tuple[datetime.date, datetime.date, int]]
) -> int:
    """Return the largest sum of squares of a metric whose devices report once in each interval.

    A device that has drawn new noise in a new epoch still has its value, so it is taken for the
    same device.

    Parameters
    ----------
    pace : length of an interval: "day", "week" from Monday on, "month", "quarter" or "year".
    epoch : "life", "year", "quarter" or "month". An interval ends with its epoch at the latest.
    periods : first day, last day, and number of reports received on these days
    """
    reports: Counter[tuple[tuple[int, int], int]] = Counter()
    for first, last, n in periods:
        # Reports of two periods are of one interval only if both periods begin in the interval.
        reports[_interval(pace, epoch, first), most_reports(pace, epoch, first, last)] += n
    return squares_of_periods((n, most) for (_, most), n in reports.items() if n)


def most_reports(pace: str, epoch: str, first: datetime.date, last: datetime.date) -> int:
    """Return the most reports that one device sends on the days from first to last.

    It is 1 for each interval that has one of these days. Pace and epoch are as for
    `squares_by_pace`.
    """
    number = _number(pace, last) - _number(pace, first) + 1
    if epoch in _MONTHS:
        for i in range(_number(epoch, first) + 1, _number(epoch, last) + 1):
            year, month = divmod(i * _MONTHS[epoch], 12)
            begin = datetime.date(year, month + 1, 1)
            # An epoch that begins on a Wednesday ends the interval of Monday and Tuesday. A device
            # may send a report on Tuesday and one on Wednesday, though they are of one week.
            if same_interval(pace, "life", begin, begin - datetime.timedelta(days=1)):
                number += 1
    return number


def same_interval(pace: str, epoch: str, first: datetime.date, second: datetime.date) -> bool:
    """Return whether two days are of one interval."""
    return _interval(pace, epoch, first) == _interval(pace, epoch, second)


def _interval(pace: str, epoch: str, day: datetime.date) -> tuple[int, int]:
    """Return the numbers of the pace and of the epoch to which a day belongs."""
    return _number(pace, day), _number(epoch, day) if epoch in _MONTHS else 0


def _number(pace: str, day: datetime.date) -> int:
    """Return the number of the week, month, quarter or year that holds a day, or of the day."""
    if pace in _MONTHS:
        return (12 * day.year + day.month - 1) // _MONTHS[pace]
    return (day.toordinal() - 1) // 7 if pace == "week" else day.toordinal()
