"""One sentence for every number or name that is outside its range.

An interval is written as people write it, "[0, 1)" or "(0, infinity)", and the message shows it as
it was written. A NaN is in no interval, and neither True nor False is a number.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Final, NamedTuple, NoReturn

from rappor.base.errors import ParamsError, RapporError

_LONGEST: Final = 200
"""Characters of a refused value that a message shows."""

LARGEST_WEIGHT: Final = 1e100
"""Largest absolute weight of a sum of shares. The square of a weight times any variance then stays
a finite number."""


class _Interval(NamedTuple):
    low: float
    high: float
    holds_low: bool
    holds_high: bool

    def __contains__(self, x: object) -> bool:
        assert isinstance(x, int | float)
        above = x >= self.low if self.holds_low else x > self.low
        return above and (x <= self.high if self.holds_high else x < self.high)


def check_number(
    name: str, value: object, interval: str, *, error: type[RapporError] = ParamsError
) -> None:
    """Raise `error` unless the value is an int or a float in the interval."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value not in _parse(interval):
        _refuse(error, name, f"a number in {interval}", value)


def check_weights(
    name: str, values: Iterable[object], *, error: type[RapporError] = ParamsError
) -> None:
    """Raise `error` unless all values are finite numbers that can be squared, and one is not 0.

    A sum with an infinite weight is no number, and a sum without weights is 0 without an error.
    """
    import numbers  # noqa: PLC0415 - a device, which has no weights, starts sooner

    largest = 0.0
    for value in values:
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not is_number or not abs(value) <= LARGEST_WEIGHT:  # type: ignore[arg-type]
            _refuse(error, name, f"finite numbers of at most {LARGEST_WEIGHT:g}", value)
        largest = max(largest, abs(float(value)))  # type: ignore[arg-type]
    # The square of a smaller number is 0, and nothing can be divided by it.
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
    """Raise `error` unless the value is an int of at least `least`, and at most `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or not _between(value, least, most):
        within = f"of at least {least:,}" if most is None else f"in [{least:,}, {most:,}]"
        _refuse(error, name, f"an integer {within}", value)


def read_count(name: str, value: object, least: int = 1, most: int | None = None) -> int:
    """Return a count that may be an integer of a data frame, or a whole float as 1e6.

    Raises ParamsError for anything else, and outside [least, most].
    """
    import numbers  # noqa: PLC0415 - a device, which reads no data frame, starts sooner

    is_float = isinstance(value, float) and value.is_integer()
    is_foreign = isinstance(value, numbers.Integral) and not isinstance(value, int)  # numpy's
    whole = int(value) if is_float or is_foreign else value  # type: ignore[call-overload]
    check_integer(name, whole, least, most)
    assert isinstance(whole, int)
    return whole


def check_choice(
    name: str, value: object, choices: Iterable[str], *, error: type[RapporError] = ParamsError
) -> None:
    """Raise `error` unless the value is one of these texts."""
    known = tuple(choices)
    if not isinstance(value, str) or value not in known:
        _refuse(error, name, f"one of {', '.join(known)}", value)


def format_value(value: object) -> str:
    """Write a refused parameter into a message: as Python writes it, cut where it is long.

    It is for what a registry or a program says, never for a recorded value.
    """
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # a table without end, an integer of thousands of digits
        return f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


def _between(value: int, least: int, most: int | None) -> bool:
    return least <= value and (most is None or value <= most)


@functools.cache
def _parse(interval: str) -> _Interval:
    low, high = interval[1:-1].split(", ")
    return _Interval(float(low), float(high), interval[0] == "[", interval[-1] == "]")


def _refuse(error: type[RapporError], name: str, expected: str, value: object) -> NoReturn:
    raise error(f"{name} must be {expected}, got {format_value(value)}")
