"""Numbers in sentences: a count with its noun, and a belief in per cent.

A belief is the probability that an observer assigns to a value of a device.
"""

from __future__ import annotations

import math


def format_count(n: int, noun: str) -> str:
    """Format a number with its noun, with separators of thousands.

    Examples
    --------
    >>> format_count(1, "report"), format_count(1000, "report")
    ('1 report', '1,000 reports')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def format_belief(belief: float) -> str:
    """Format an upper bound of a belief in per cent, rounded up, so that the printed bound holds.

    The belief is rounded to a tenth of a per cent. Above 99.9 % it is rounded to a thousandth, so
    that 99.97 % does not become 100 %.

    Examples
    --------
    >>> format_belief(0.88079), format_belief(0.99966)
    ('88.1 %', '99.966 %')
    """
    steps = 10 if belief <= 0.999 else 1000
    return f"{math.ceil(100 * steps * belief) / steps:g} %"
