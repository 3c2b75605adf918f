"""Formatters of numbers for people: shares, changes, intervals, p-values, privacy losses, days.

An estimate is written with two significant digits of its standard error, because further digits
would be noise. Example: the share 0.12345 with the standard error 0.0011 is written as 12.35 %.
Bounds of beliefs are rounded towards less privacy, because they are promises.

An estimate may be negative, because noise is subtracted. An estimate that rounds to zero is written
without a minus sign: the option z of a format, as in `f"{-0.3:z.0f}"`, turns -0 into 0.
"""

from __future__ import annotations

import datetime
import math
from typing import Final

from rappor.base.sentence_numbers import format_belief
from rappor.protocol.loss import posterior_bound

_MAX_BELIEF: Final = 0.9999
"""Largest posterior probability that is written as a number. A larger probability, rounded up,
would read as 100 %."""

_MIN_BELIEF: Final = 0.001
"""Smallest lower bound of a posterior probability that is written as a number. A smaller bound,
rounded down, would read as 0."""

_MIN_P_VALUE: Final = 1e-99
"""Smallest p-value that is written as a number. Smaller p-values contain no further information,
and an exponent of three digits would widen the column."""


def format_percent(share: float, digits: int = 1) -> str:
    """Format a share in per cent, with `digits` digits after the decimal point."""
    return f"{100 * share:z,.{digits}f} %"


def format_short_percent(share: float) -> str:
    """Format a share in per cent without trailing zeros: 5 %, 0.1 %, 95 %."""
    return f"{100 * share:z.6g} %"


def count_digits(error: float | None) -> int:
    """Return the number of decimals of a percentage that show two digits of its standard error."""
    if error is None or not math.isfinite(error) or error <= 0:
        return 3
    return min(max(1 - math.floor(math.log10(100 * error)), 0), 9)


def format_small_percent(share: float) -> str:
    """Format a share in per cent with two decimals, or more to show two significant digits.

    The limits of many devices are small: with two decimals, 0.004 % would be written as 0.00 %.
    """
    return format_percent(share, max(count_digits(share), 2))


def format_share(share: float | None, error: float | None) -> str:
    """Format an estimated share as precisely as its standard error allows; empty if unknown."""
    return "" if share is None or math.isnan(share) else format_percent(share, count_digits(error))


def format_change(difference: float | None, error: float | None) -> str:
    """Format an estimated change in percentage points as precisely as its standard error allows."""
    digits = count_digits(error)
    return "" if difference is None else f"{100 * difference:+z,.{digits}f}"


def format_interval(low: float | None, high: float | None, error: float | None) -> str:
    """Format a confidence interval of a share as precisely as its standard error allows."""
    if low is None or high is None or not math.isfinite(low + high):
        return "unknown"
    return f"{format_share(low, error)} to {format_share(high, error)}"


def format_change_interval(low: float | None, high: float | None, error: float | None) -> str:
    """Format a confidence interval of a change, in percentage points."""
    if low is None or high is None or not math.isfinite(low + high):
        return "unknown"
    return f"{format_change(low, error)} to {format_change(high, error)}"


def format_p_value(value: float | None) -> str:
    """Format a p-value with two significant digits; "unknown" for None and NaN."""
    if value is None or math.isnan(value):
        return "unknown"
    return f"{value:.2g}" if value >= _MIN_P_VALUE else f"less than {_MIN_P_VALUE:g}"


def format_nats(epsilon: float) -> str:
    """Format a privacy loss in nats, without the unit."""
    if math.isinf(epsilon):
        return "infinite"
    return f"{epsilon:.4f}" if epsilon < 100 else f"{epsilon:,.0f}"


def format_least_belief(belief: float) -> str:
    """Format a lower bound on a posterior probability in per cent. It is rounded down."""
    return "<0.1" if 0 < belief < _MIN_BELIEF else f"{math.floor(1000 * belief) / 10:g}"


def format_even_odds(epsilon: float) -> str:
    """Format the largest posterior probability of a value with prior 50 % after a loss in nats."""
    return format_largest_belief(posterior_bound(epsilon, 0.5)[1], epsilon)


def format_largest_belief(belief: float, epsilon: float) -> str:
    """Format an upper bound on a posterior probability. It is rounded up, because it is a promise.

    Only an infinite loss allows certainty.
    """
    if math.isinf(epsilon):
        return "100 %"
    return format_belief(belief) if belief <= _MAX_BELIEF else ">99.99 %"


def format_days(first: datetime.date | None, last: datetime.date | None) -> str:
    """Return the first and the last day of a period in words, or its only day."""
    return f"{first}" if first == last else f"{first} to {last}"
