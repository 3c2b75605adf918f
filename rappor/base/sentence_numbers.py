"""Numbers in sentences: a count with its noun, and a belief in per cent."""

from __future__ import annotations

import math


def format_count(n: int, noun: str) -> str:
    """Write a number with its noun: 1 report, 1,000 reports."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def format_belief(belief: float) -> str:
    """Write a belief in per cent, rounded up, because a bound that is promised must hold.

    The belief is rounded to a tenth of a per cent, and near certainty to a thousandth, so that
    99.97 % does not read as 100 %.
    """
    steps = 10 if belief <= 0.999 else 1000
    return f"{math.ceil(100 * steps * belief) / steps:g} %"
