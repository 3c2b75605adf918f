"""The answer of categories, and what is in their `other`, for people."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from rappor.cli.console import section, table
from rappor.reporting.numbers import percent, short_percent

if TYPE_CHECKING:
    from rappor.discovery.discoveries import NamedOther, Share


def print_other(found: NamedOther, *, truth: Mapping[str, int] | None = None) -> None:
    """Print the answer of the categories, and then the texts in `other`; `truth` in devices."""
    from rappor.cli.estimates_table import print_estimates

    print_estimates(found.categories, detected_only=False, truth=truth)
    other = found.categories.candidates[-1]
    section(f"What is in {escape(other)}", _texts(found, truth), *_remarks(found))


def _texts(found: NamedOther, truth: Mapping[str, int] | None) -> Table:
    interval = f"{short_percent(found.categories.detection.confidence)} interval"
    other = escape(found.categories.candidates[-1])
    columns = ["text", "share", interval, f"of {other}", interval]
    shown = table(*columns, *([] if truth is None else ["truth"]))
    for text in found.strings:
        cells = [*share_cells(text.of_all), *share_cells(text.of_other)]
        held = [] if truth is None else [f"{truth.get(text.string, 0):,}"]
        shown.add_row(escape(text.string), *cells, *held)
    return shown


def share_cells(share: Share, decimals: int = 3) -> Iterator[str]:
    """Yield a share and its interval."""
    yield percent(share.proportion, decimals) if math.isfinite(share.proportion) else "unknown"
    yield _interval(share, decimals)


def _interval(share: Share, decimals: int) -> str:
    """Write an interval as people read it: no share is below 0."""
    if not math.isfinite(share.low):
        return "unknown"
    low, high = max(share.low, 0.0), max(share.high, 0.0)
    return f"{percent(low, decimals)} to {percent(high, decimals)}"


def _remarks(found: NamedOther) -> Iterator[str]:
    """Yield what was found, and how much of `other` is unnamed."""
    from rappor.reporting.remarks import answer

    yield answer(found.found.estimates)
    unnamed, other = found.unnamed, escape(found.categories.candidates[-1])
    if math.isfinite(unnamed.proportion):
        yield (
            f"{percent(max(unnamed.proportion, 0.0))} of {other} is unnamed "
            f"({_interval(unnamed, 1)}): texts that are too rare, too long, or have a character "
            "outside the alphabet."
        )
    else:
        yield f"{other} itself is not significant, so shares of it are unknown."
