"""Numbers as people read them."""

from __future__ import annotations

import math
from typing import Final

from rappor.privacy.notice import at_most

_NEARLY_SURE: Final = 0.9999
"""A larger belief is written as more than this: rounded up it would read as certainty."""

_LEAST_P: Final = 1e-99
"""A smaller p-value says nothing more."""


def percent(share: float, digits: int = 1) -> str:
    """Write a share in per cent, with this number of digits after the point."""
    return f"{round(100 * share, digits) + 0.0:,.{digits}f} %"


def short_percent(share: float) -> str:
    """Write a share in per cent as short as it is exact: 5 %, 0.1 %, 95 %."""
    return f"{100 * share:.6g} %"


def digits_of(error: float | None) -> int:
    """Return how many digits of a percentage are written: two that count of its standard error."""
    if error is None or not math.isfinite(error) or error <= 0:
        return 3
    return min(max(1 - math.floor(math.log10(100 * error)), 0), 9)


def measured(share: float | None, error: float | None) -> str:
    """Write an estimated share as exactly as its standard error allows; nothing if unknown."""
    return "" if share is None or math.isnan(share) else percent(share, digits_of(error))


def moved(difference: float | None, error: float | None) -> str:
    """Write an estimated difference in percentage points as exactly as its error allows."""
    digits = digits_of(error)
    return "" if difference is None else f"{round(100 * difference, digits) + 0.0:+,.{digits}f}"


def span(low: float | None, high: float | None, error: float | None) -> str:
    """Write an interval of a share as exactly as its standard error allows."""
    if low is None or high is None or not math.isfinite(low + high):
        return "unknown"
    return f"{measured(low, error)} to {measured(high, error)}"


def span_of_points(low: float | None, high: float | None, error: float | None) -> str:
    """Write an interval of a difference, in percentage points."""
    if low is None or high is None or not math.isfinite(low + high):
        return "unknown"
    return f"{moved(low, error)} to {moved(high, error)}"


def p_value(value: float | None) -> str:
    """Write a p-value with two digits that count."""
    if value is None:
        return "unknown"
    return f"{value:.2g}" if value >= _LEAST_P else f"less than {_LEAST_P:g}"


def nats(epsilon: float) -> str:
    """Write a loss in nats, without the unit."""
    if math.isinf(epsilon):
        return "infinite"
    return f"{epsilon:.4f}" if epsilon < 100 else f"{epsilon:,.0f}"


def most_belief(belief: float, epsilon: float) -> str:
    """Write the most that can be believed after a loss: rounded up, since a promise must hold.

    Only an infinite loss makes anybody certain.
    """
    if math.isinf(epsilon):
        return "100 %"
    return at_most(belief) if belief <= _NEARLY_SURE else ">99.99 %"
