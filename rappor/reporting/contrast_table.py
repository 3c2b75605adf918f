"""Table of contrasts: sums and differences of several rows, with their errors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

from rappor.decoding.contrasts import Contrast
from rappor.reporting.markup import Markup
from rappor.reporting.numbers import format_interval, format_p_value, format_share
from rappor.reporting.tables import name_of, table

_DIGITS: Final = 4
"""Number of significant digits of a number that is not a share."""


def contrast_titles(confidence: str, what: str = "together") -> tuple[str, ...]:
    """Return the titles of the columns."""
    return what, "estimate", "std error", f"{confidence} interval", "p-value"


def contrast_cells(each: Contrast) -> tuple[str, ...]:
    """Return the cells of one contrast."""
    error = each.std_error
    if each.is_share:
        numbers = (
            format_share(each.estimate, error),
            format_share(error, error),
            format_interval(each.ci_low, each.ci_high, error),
        )
    else:
        numbers = (
            _number(each.estimate),
            f"{error:.2g}" if math.isfinite(error) else "unknown",
            f"{_number(each.ci_low)} to {_number(each.ci_high)}",
        )
    return each.name, *numbers, "" if each.p_value is None else format_p_value(each.p_value)


def contrasts_table(contrasts: Iterable[Contrast], confidence: str) -> Iterator[Markup]:
    """Yield the table of the requested contrasts, if there are any."""
    rows = [contrast_cells(each) for each in contrasts]
    if rows:
        cells = ((name_of(name), *numbers) for name, *numbers in rows)
        yield table("Several rows together", contrast_titles(confidence), cells)


def _number(value: float) -> str:
    """Format a number. An infinite number lies beyond the outer edges of the buckets."""
    if math.isfinite(value):
        return f"{value:.{_DIGITS}g}"
    return "above the edges" if value > 0 else "below the edges"
