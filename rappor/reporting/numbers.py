"""Numbers as people read them."""

from __future__ import annotations

import math
from typing import Final

from rappor.privacy.notice import at_most

_NEARLY_SURE: Final = 0.9999
"""A larger belief is written as more than this: rounded up it would read as certainty."""

_LEAST_P: Final = 1e-99
"""A smaller p-value says nothing more."""


def format_percent(share: float, digits: int = 1) -> str:
    """Write a share in per cent, with this number of digits after the point."""
    return f"{round(100 * share, digits) + 0.0:,.{digits}f} %"


def format_short_percent(share: float) -> str:
    """Write a share in per cent as short as it is exact: 5 %, 0.1 %, 95 %."""
    return f"{100 * share:.6g} %"


def count_digits(error: float | None) -> int:
    """Return how many digits of a percentage are written: two that count of its standard error."""
    if error is None or not math.isfinite(error) or error <= 0:
        return 3
    return min(max(1 - math.floor(math.log10(100 * error)), 0), 9)


def format_share(share: float | None, error: float | None) -> str:
    """Write an estimated share as exactly as its standard error allows; nothing if unknown."""
    return "" if share is None or math.isnan(share) else format_percent(share, count_digits(error))


def format_change(difference: float | None, error: float | None) -> str:
    """Write an estimated difference in percentage points as exactly as its error allows."""
    digits = count_digits(error)
    return "" if difference is None else f"{round(100 * difference, digits) + 0.0:+,.{digits}f}"


def format_interval(low: float | None, high: float | None, error: float | None) -> str:
    """Write an interval of a share as exactly as its standard error allows."""
    if low is None or high is None or not math.isfinite(low + high):
        return "unknown"
    return f"{format_share(low, error)} to {format_share(high, error)}"


def format_change_interval(low: float | None, high: float | None, error: float | None) -> str:
    """Write an interval of a difference, in percentage points."""
    if low is None or high is None or not math.isfinite(low + high):
        return "unknown"
    return f"{format_change(low, error)} to {format_change(high, error)}"


def format_p_value(value: float | None) -> str:
    """Write a p-value with two digits that count."""
    if value is None:
        return "unknown"
    return f"{value:.2g}" if value >= _LEAST_P else f"less than {_LEAST_P:g}"


def format_nats(epsilon: float) -> str:
    """Write a loss in nats, without the unit."""
    if math.isinf(epsilon):
        return "infinite"
    return f"{epsilon:.4f}" if epsilon < 100 else f"{epsilon:,.0f}"


def format_largest_belief(belief: float, epsilon: float) -> str:
    """Write the most that can be believed after a loss: rounded up, since a promise must hold.

    Only an infinite loss makes anybody certain.
    """
    if math.isinf(epsilon):
        return "100 %"
    return at_most(belief) if belief <= _NEARLY_SURE else ">99.99 %"
