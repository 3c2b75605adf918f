"""Sum of squared reports of devices, S: the number by which repeated reports enlarge errors.

Theory of operation
-------------------
Device d sends n_d reports, and all devices together send N = sum n_d. The reports of one device
share its value and its permanent response (the noise that the device draws once and repeats). Each
report adds an instantaneous response (new noise). The variance of the proportion of ones at a bit
is therefore

    within / N + between S / N^2,     S = sum over d of n_d^2

`within` is the variance that the instantaneous response adds to each report, and `between` is the
variance between devices. Errors therefore depend on the devices only by S:

    every device sends 1 report      S = N
    every device sends r reports     S = N r
    one device sends all reports     S = N^2

Example: 1,000 devices with 10 reports each have N = 10,000 and S = 100,000.

A collector does not know devices, so S is often only bounded from above:

- Two sums of the same devices. Write the reports of the devices as vectors a and b with S = |a|^2
  and |b|^2. Then |a + b|^2 <= (|a| + |b|)^2 (triangle inequality), with equality if the reports of
  all devices grow in the same proportion.
- Two sums of different devices: S = |a|^2 + |b|^2.
- The pace of a metric: a device sends at most one report in each interval (a day, a week or an
  epoch). Take two periods. The first has n reports, and no device sent more than d of them. The
  second has n' reports, and no device sent more than d' of them. Multiply the two numbers of
  reports of each device, and add the products: the sum is at most min(n d', n' d). S is at most the
  sum of these bounds over all ordered pairs of periods (`compute_max_squares_of_periods`).
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
from rappor.base.ranges import format_value, read_number

_MONTHS: Final = {"month": 1, "quarter": 3, "year": 12}
"""Number of months of a pace (length of an interval) or of an epoch. Days, weeks and "life" are
absent, because they do not consist of months."""


def check_squares(squares: object, n_reports: int) -> int | None:
    """Return a sum of squared reports as an int; None stands for an unknown sum.

    Raises
    ------
    ReportError
        The sum is not an integer, or impossible for this number of reports: it is n_reports if
        every device reported once, and n_reports^2 if one device sent all reports.
    """
    if squares is None:
        return None
    # Case: the sum of a column of a data frame. It is an integer of numpy, which is no `int`.
    if isinstance(squares, bool) or not isinstance(squares, numbers.Integral):
        raise ReportError(f"squares must be an integer or None, got {format_value(squares)}")
    squares = int(squares)
    if not n_reports <= squares <= n_reports**2:
        raise ReportError(
            f"squares must be in [{n_reports}, {n_reports**2}], from one report a device to one "
            f"device, got {squares}"
        )
    return squares


def compute_squares(
    n_reports: int, *, n_devices: float | None = None, reports_per_device: float | None = None
) -> int:
    """Return S for reports that are evenly spread over the devices, rounded up.

    Parameters
    ----------
    n_reports : number of all reports.
    n_devices, reports_per_device : exactly one of the two, at least 1 and at most `n_reports`.

    Raises
    ------
    ReportError
        Both numbers are passed or none, or the number is outside its range.

    Examples
    --------
    >>> compute_squares(10_000, n_devices=1_000), compute_squares(10_000, reports_per_device=10)
    (100000, 100000)
    """
    if (n_devices is None) == (reports_per_device is None):
        raise ReportError("either devices or reports_per_device must be given, not both")
    name, value = ("reports_per_device", reports_per_device)
    if n_devices is not None:
        name, value = ("devices", n_devices)
    value = read_number(name, value, f"[1, {n_reports}]", error=ReportError)
    per_device = n_reports / value if n_devices is not None else value
    # Case: floating-point rounding moves the product out of the possible range [N, N^2].
    return min(max(math.ceil(n_reports * per_device), n_reports), n_reports**2)


def add_squares(first: int | None, second: int | None, *, same_devices: bool) -> int | None:
    """Return S of two sums of reports, or an upper bound of it; None if one of them is unknown.

    Parameters
    ----------
    same_devices : whether a device may have reports in both sums. Then the result is the bound
        (sqrt(first) + sqrt(second))^2, rounded up.
    """
    if first is None or second is None:
        return None
    if not same_devices:
        return first + second
    # (sqrt(a) + sqrt(b))^2 = a + b + sqrt(4 a b). The integer root is rounded up.
    product = 4 * first * second
    root = math.isqrt(product)
    return first + second + root + (root * root < product)


def compute_max_squares_of_days(reports: Iterable[int]) -> int:
    """Return the largest S of days on which no device reported twice.

    Parameters
    ----------
    reports : number of reports of each day.
    """
    return compute_max_squares_of_periods((n, 1) for n in reports)


def compute_max_squares_of_periods(periods: Iterable[tuple[int, int]]) -> int:
    """Return an upper bound of S for several periods.

    In a period with n reports, no device sent more than d. In a second period with n' reports, no
    device sent more than d'. A device with x and x' reports adds x x' to S twice. The sum of x x'
    over all devices is at most d' times the sum of x, which is n d', and likewise at most n' d. The
    bound adds min(n d', n' d) over all ordered pairs of periods, and n d for each period itself.

    Parameters
    ----------
    periods : pairs of the number n of reports, and the largest number d of reports of one device.

    Examples
    --------
    >>> compute_max_squares_of_periods([(100, 1), (100, 1), (50, 1)])
    650
    """
    # If n / d <= n' / d', then n d' <= n' d, so the minimum is n d'. In the order of n / d, the
    # earlier period of each pair therefore contributes its n, and one pass replaces the double sum.
    # `most` is d, and `later` is the sum of d over all periods that follow in this order.
    ordered = sorted(periods, key=lambda period: Fraction(*period))
    later = sum(most for _, most in ordered)
    squares = 0
    for n, most in ordered:
        later -= most
        squares += n * (most + 2 * later)
    # S is largest if one device sent all reports: S = N^2.
    return min(squares, sum(n for n, _ in ordered) ** 2)


def compute_max_squares_by_pace(
    pace: str, epoch: str, periods: Iterable[tuple[datetime.date, datetime.date, int]]
) -> int:
    """Return the largest S of a metric whose devices report once in each interval.

    A device that draws new noise in a new epoch still has its value, so the bound counts it as the
    same device.

    Parameters
    ----------
    pace : length of an interval: "day", "week" (from Monday), "month", "quarter" or "year"
        (`Params.pace`).
    epoch : "life", "year", "quarter" or "month". An interval ends with its epoch at the latest.
    periods : first day, last day and number of received reports of each period.

    Examples
    --------
    >>> day = datetime.date(2026, 11, 30)
    >>> compute_max_squares_by_pace("day", "life", [(day, day, 100), (day, day, 100)])
    200
    """
    # Two periods that begin in the same interval and have equally many intervals cover the same
    # intervals. They are merged, because one device reports at most once in each interval.
    reports: Counter[tuple[tuple[int, int], int]] = Counter()
    for first, last, n in periods:
        interval = _find_interval(pace, epoch, first)
        reports[interval, count_max_reports(pace, epoch, first, last)] += n
    return compute_max_squares_of_periods((n, most) for (_, most), n in reports.items() if n)


def count_max_reports(pace: str, epoch: str, first: datetime.date, last: datetime.date) -> int:
    """Return the largest number of reports that one device sends in a range of days.

    It is the number of intervals that contain a day of the range.

    Parameters
    ----------
    pace, epoch : as for `compute_max_squares_by_pace`.

    Examples
    --------
    >>> sunday, monday = datetime.date(2026, 11, 29), datetime.date(2026, 11, 30)
    >>> count_max_reports("week", "life", sunday, monday)
    2
    """
    n_intervals = _number_pace(pace, last) - _number_pace(pace, first) + 1
    if epoch in _MONTHS:
        for number in range(_number_pace(epoch, first) + 1, _number_pace(epoch, last) + 1):
            year, month = divmod(number * _MONTHS[epoch], 12)
            first_of_epoch = datetime.date(year, month + 1, 1)
            last_of_previous = first_of_epoch - datetime.timedelta(days=1)
            # An epoch that begins on a Wednesday ends the interval of Monday and Tuesday. A device
            # may send a report on Tuesday and one on Wednesday, although both are in one week. The
            # epoch "life" ignores the border between the epochs: are both days in one week?
            if is_same_interval(pace, "life", first_of_epoch, last_of_previous):
                n_intervals += 1
    return n_intervals


def is_same_interval(pace: str, epoch: str, first: datetime.date, second: datetime.date) -> bool:
    """Return whether two days are in one interval."""
    return _find_interval(pace, epoch, first) == _find_interval(pace, epoch, second)


def _find_interval(pace: str, epoch: str, day: datetime.date) -> tuple[int, int]:
    """Return the numbers of the pace and of the epoch that contain a day.

    Both numbers together identify an interval, because an interval ends with its epoch.
    """
    return _number_pace(pace, day), _number_pace(epoch, day) if epoch in _MONTHS else 0


def _number_pace(pace: str, day: datetime.date) -> int:
    """Return the number of the day, week, month, quarter or year that contains a day."""
    if pace in _MONTHS:
        return (12 * day.year + day.month - 1) // _MONTHS[pace]
    return (day.toordinal() - 1) // 7 if pace == "week" else day.toordinal()
