"""Numbers on the command line: parameter types, and formatters of posterior probabilities."""

from __future__ import annotations

import math
from typing import Any, Final

import click

from rappor.protocol.loss import posterior_bound
from rappor.reporting.numbers import format_largest_belief

_LEAST_SHOWN: Final = 0.001


class WholeNumber(click.ParamType):  # type: ignore[type-arg]  # generic in late versions only
    """A whole number from `least` to `most`, also written as 1e9."""

    name = "number"

    def __init__(self, least: int | None = None, most: int | None = None) -> None:
        """Store the range. Without a range, the library checks the number."""
        self._least = least
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the number. A number that is not whole or outside the range is a usage error."""
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
"""Type of a count: at least 1, and at most 10^15, so that closed forms are exact in binary64."""


def least_belief(belief: float) -> str:
    """Format a lower bound on a posterior probability in per cent, rounded down."""
    return "<0.1" if 0 < belief < _LEAST_SHOWN else f"{math.floor(1000 * belief) / 10:g}"


def even_odds_become(epsilon: float) -> str:
    """Format the largest posterior probability of a value with prior 50 % after a loss in nats."""
    return format_largest_belief(posterior_bound(epsilon, 0.5)[1], epsilon)
