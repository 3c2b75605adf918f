"""Numbers in sentences: a count with its noun, a mean count, and a belief in per cent.

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
    return f"{n:,} {noun if n == 1 else format_plural(noun)}"


def format_plural(noun: str) -> str:
    """Return the plural of a noun.

    Examples
    --------
    >>> format_plural("string"), format_plural("category"), format_plural("day")
    ('strings', 'categories', 'days')
    """
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}s"


def format_mean(mean: float) -> str:
    """Format a mean count, rounded up.

    Sentences about privacy state how many items of a set an observer can name on average. A number
    that is rounded down would promise more privacy than devices have.

    A mean below 10 has two significant digits. A larger mean is a whole number.

    Examples
    --------
    >>> format_mean(0.3489), format_mean(3.562), format_mean(11.04), format_mean(0.0)
    ('0.35', '3.6', '12', '0')
    """
    if mean <= 0:
        return "0"
    # The exponent of the last printed digit: 0.3489 has the digits 10^-1 and 10^-2.
    step = 10.0 ** min(math.floor(math.log10(mean)) - 1, 0)
    # A quotient of floats may be 35.000000000000004. Without the inner rounding it would become 36.
    return f"{math.ceil(round(mean / step, 6)) * step:.6g}"


def format_chance(probability: float) -> str:
    """Format a probability in whole per cent.

    A probability below half a per cent is "less than 1 %", because "0 %" would mean never.

    Examples
    --------
    >>> format_chance(0.2), format_chance(0.00001)
    ('20 %', 'less than 1 %')
    """
    per_cent = f"{100 * probability:.0f} %"
    return "less than 1 %" if per_cent == "0 %" else per_cent


def format_times_in_100(probability: float) -> str:
    """Format a probability as a number of times in 100.

    A probability below half a per cent is "less than once in 100", because "0 times" would mean
    never.

    Examples
    --------
    >>> format_times_in_100(0.77), format_times_in_100(0.01), format_times_in_100(0.0039)
    ('77 times in 100', 'once in 100', 'less than once in 100')
    """
    times = round(100 * probability)
    if times > 1:
        return f"{times} times in 100"
    return "once in 100" if times == 1 else "less than once in 100"


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
