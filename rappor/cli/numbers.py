"""Numbers on the command line: how they are read, and how they are written for people."""

from __future__ import annotations

import math
from typing import Any, Final

import click

from rappor.protocol.loss import posterior_bound
from rappor.reporting.numbers import format_largest_belief

_LEAST_SHOWN: Final = 0.001


class WholeNumber(click.ParamType):  # type: ignore[type-arg]  # generic in late versions only
    """A whole number, also written as 1e9, of at least `least` and at most `most`."""

    name = "number"

    def __init__(self, least: int | None = None, most: int | None = None) -> None:
        """Take the range; without one the library says what it admits."""
        self._least = least
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the number; whatever is not whole, or outside the range, is a usage error."""
        try:
            number = _read_whole(str(value))
        except (ValueError, OverflowError):
            raise click.BadParameter(f"{value!r} is not a whole number", ctx, param) from None
        if self._least is not None and number < self._least:
            raise click.BadParameter(f"{value} is less than {self._least:,}", ctx, param)
        if self._most is not None and number > self._most:
            raise click.BadParameter(f"{value} is more than {self._most:,}", ctx, param)
        return number


def _read_whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if not number.is_integer():
        raise ValueError(text)
    return int(number)


NUMBER: Final = WholeNumber()
COUNT: Final = WholeNumber(1, 10**15)
"""At least 1, and small enough for closed forms in binary64."""


def least_belief(belief: float) -> str:
    """Write the least that can be believed, in per cent without the sign, rounded down."""
    return "<0.1" if 0 < belief < _LEAST_SHOWN else f"{math.floor(1000 * belief) / 10:g}"


def even_odds_become(epsilon: float) -> str:
    """Write how sure an observer who thought 50 % can be after a loss of epsilon nats."""
    return format_largest_belief(posterior_bound(epsilon, 0.5)[1], epsilon)
