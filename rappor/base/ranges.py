"""Checks of numbers and names, with one sentence for each error.

An interval is a text in mathematical notation, such as "[0, 1)" or "(0, infinity)", and the message
contains the text. NaN is in no interval, and True and False are not numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Final, NamedTuple, NoReturn

from rappor.base.errors import ParamsError, RapporError

_LONGEST: Final = 200
"""Largest number of characters of a refused value in a message."""

LARGEST_WEIGHT: Final = 1e100
"""Largest absolute weight in a sum of shares. The square of a weight times any variance then stays
a finite number."""


class _Interval(NamedTuple):
    low: float
    high: float
    includes_low: bool
    includes_high: bool

    def __contains__(self, x: object) -> bool:
        assert isinstance(x, int | float)
        above = x >= self.low if self.includes_low else x > self.low
        return above and (x <= self.high if self.includes_high else x < self.high)


def check_number(
    name: str, value: object, interval: str, *, error: type[RapporError] = ParamsError
) -> None:
    """Raise `error` unless a value is an int or a float in an interval.

    Examples
    --------
    >>> check_number("share", 0.5, "(0, 1]")
    >>> check_number("share", 2, "(0, 1]")
    Traceback (most recent call last):
    rappor.base.errors.ParamsError: share must be a number in (0, 1], got 2
    """
    # True is an int to Python. `sampling_rate = true` in TOML would become 1.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value not in _parse_interval(interval):
        _refuse(error, name, f"a number in {interval}", value)


def check_weights(
    name: str, values: Iterable[object], *, error: type[RapporError] = ParamsError
) -> None:
    """Raise `error` unless all values are finite numbers with finite squares, and one is not 0.

    A sum with an infinite weight is not a number. A sum with all weights 0 would be 0 without an
    error.
    """
    import numbers  # noqa: PLC0415 - a device has no weights, and starts faster without it

    largest = 0.0
    for value in values:
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not is_number or not abs(value) <= LARGEST_WEIGHT:  # type: ignore[arg-type]
            _refuse(error, name, f"finite numbers of at most {LARGEST_WEIGHT:g}", value)
        largest = max(largest, abs(float(value)))  # type: ignore[arg-type]
    # The square of a smaller number underflows to 0, and standard errors would divide by it.
    if largest < 1 / LARGEST_WEIGHT:
        least = f"numbers of which at least one is {1 / LARGEST_WEIGHT:g} or more from 0"
        _refuse(error, name, least, largest)


def check_integer(
    name: str,
    value: object,
    least: int,
    most: int | None = None,
    *,
    error: type[RapporError] = ParamsError,
) -> None:
    """Raise `error` unless a value is an int of at least `least`, and at most `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or not _is_between(value, least, most):
        within = f"of at least {least:,}" if most is None else f"in [{least:,}, {most:,}]"
        _refuse(error, name, f"an integer {within}", value)


def read_count(name: str, value: object, least: int = 1, most: int | None = None) -> int:
    """Convert a count to int. The count may be an integer of numpy, or a whole float as 1e6.

    Raises
    ------
    ParamsError
        The value is not a whole number in [least, most].
    """
    import numbers  # noqa: PLC0415 - a device reads no data frame, and starts faster without it

    is_float = isinstance(value, float) and value.is_integer()
    # Integers of numpy are no int to Python.
    is_foreign = isinstance(value, numbers.Integral) and not isinstance(value, int)
    whole = int(value) if is_float or is_foreign else value  # type: ignore[call-overload]
    check_integer(name, whole, least, most)
    assert isinstance(whole, int)
    return whole


def check_choice(
    name: str, value: object, choices: Iterable[str], *, error: type[RapporError] = ParamsError
) -> None:
    """Raise `error` unless a value is one of several texts."""
    known = tuple(choices)
    if not isinstance(value, str) or value not in known:
        _refuse(error, name, f"one of {', '.join(known)}", value)


def format_value(value: object) -> str:
    """Format a refused parameter for a message, as Python writes it, cut to 200 characters.

    The function is for parameters of registries and programs, never for recorded values.
    """
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        # A table that contains itself, or an integer with more than 4,300 digits.
        return f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


def _is_between(value: int, least: int, most: int | None) -> bool:
    return least <= value and (most is None or value <= most)


@functools.cache
def _parse_interval(interval: str) -> _Interval:
    low, high = interval[1:-1].split(", ")
    return _Interval(float(low), float(high), interval[0] == "[", interval[-1] == "]")


def _refuse(error: type[RapporError], name: str, expected: str, value: object) -> NoReturn:
    raise error(f"{name} must be {expected}, got {format_value(value)}")
