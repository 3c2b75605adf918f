"""Range checks of numbers and names. Each check raises an error with one sentence.

The sentence has the form "NAME must be CONSTRAINT, got VALUE". An interval is a text in
mathematical notation, such as "[0, 1)" or "(0, infinity)", and the sentence contains the text. NaN
is in no interval. True and False are not numbers, although Python's bool is a subclass of int.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, NoReturn

from rappor.base.errors import ParamsError, RapporError

_LONGEST: Final = 200
"""Largest number of characters of a refused value in a message, so that the message stays short. A
value of a registry may be a long text."""

LARGEST_WEIGHT: Final = 1e100
"""Largest absolute weight in a sum of shares. Variances contain the square of a weight, which is
then at most 1e200 and far from the largest float, 1.8e308."""


class _Interval(NamedTuple):
    """Interval of numbers. Each end is included or excluded."""

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
    # Case: `sampling_rate = true` in TOML. True is an int in Python and would become 1.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value not in _parse_interval(interval):
        _refuse(error, name, f"a number in {interval}", value)


def check_weights(
    name: str, values: Iterable[object], *, error: type[RapporError] = ParamsError
) -> None:
    """Raise `error` unless all values are finite numbers with finite squares, and one is not 0.

    A sum with an infinite weight is not a number. A sum in which all weights are 0 has the
    estimate 0 and the standard error 0, which nobody intends.
    """
    import numbers  # noqa: PLC0415 - a device has no weights, and starts faster without it

    largest = 0.0
    for value in values:
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not is_number or not abs(value) <= LARGEST_WEIGHT:  # type: ignore[arg-type]
            _refuse(error, name, f"finite numbers of at most {LARGEST_WEIGHT:g}", value)
        largest = max(largest, abs(float(value)))  # type: ignore[arg-type]
    # Tests divide by the standard error of the sum, so it must not underflow to 0. Its square is
    # the square of a weight, at least 1e-200, times the variance of a share. The smallest positive
    # float is 5e-324, so the product does not underflow.
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
    """Convert a count to int. The count may be an integer of numpy, or a whole float such as 1e6.

    Raises
    ------
    ParamsError
        The value is not a whole number in [least, most].
    """
    import numbers  # noqa: PLC0415 - a device reads no data frame, and starts faster without it

    is_float = isinstance(value, float) and value.is_integer()
    # Integers of numpy are not instances of int.
    is_foreign = isinstance(value, numbers.Integral) and not isinstance(value, int)
    count = int(value) if is_float or is_foreign else value  # type: ignore[call-overload]
    check_integer(name, count, least, most)
    assert isinstance(count, int)
    return count


def read_number(
    name: str, value: object, interval: str, *, error: type[RapporError] = ParamsError
) -> float:
    """Convert a number to int or float. The number may be one of numpy.

    Raises `error` for a value that is not a number in the interval.
    """
    import numbers  # noqa: PLC0415 - a device reads no data frame, and starts faster without it

    # Case: the sum of a column of a data frame. Most numbers of numpy are no instances of int or
    # float, and products of them may overflow.
    is_foreign = isinstance(value, numbers.Real) and not isinstance(value, int | float)
    number: Any = value
    if is_foreign:
        number = int(number) if isinstance(value, numbers.Integral) else float(number)
    check_number(name, number, interval, error=error)
    assert isinstance(number, int | float)
    return number


def check_choice(
    name: str, value: object, choices: Iterable[str], *, error: type[RapporError] = ParamsError
) -> None:
    """Raise `error` unless a value is one of several texts."""
    allowed_texts = tuple(choices)
    if not isinstance(value, str) or value not in allowed_texts:
        _refuse(error, name, f"one of {', '.join(allowed_texts)}", value)


def format_value(value: object) -> str:
    """Format a refused parameter for a message, as Python writes it, cut to 200 characters.

    The function is for parameters of registries and programs, never for recorded values.
    """
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        # Two cases: a list that contains itself, and an integer with more than 4,300 digits, which
        # Python refuses to print.
        return f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


def _is_between(value: int, least: int, most: int | None) -> bool:
    """Return whether an integer is in [least, most]. None stands for no upper end."""
    return least <= value and (most is None or value <= most)


@functools.cache
def _parse_interval(interval: str) -> _Interval:
    """Parse an interval such as "[0, 1)" or "(0, infinity)"."""
    low, high = interval[1:-1].split(", ")
    return _Interval(float(low), float(high), interval[0] == "[", interval[-1] == "]")


def _refuse(error: type[RapporError], name: str, expected: str, value: object) -> NoReturn:
    """Raise `error` with the sentence of the module."""
    raise error(f"{name} must be {expected}, got {format_value(value)}")
