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
    return f"{100 * share:,.{digits}f} %"


def short_percent(share: float) -> str:
    """Write a share in per cent as short as it is exact: 5 %, 0.1 %, 95 %."""
    return f"{100 * share:.6g} %"


def points(difference: float, digits: int = 3) -> str:
    """Write a difference of shares in percentage points, with its sign."""
    return f"{100 * difference:+,.{digits}f}"


def p_value(value: float) -> str:
    """Write a p-value with two digits that count."""
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
