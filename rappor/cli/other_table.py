"""The answer of categories, and what is in their `other`, for people."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
from rich.table import Table

from rappor.cli.console import escape, section, table, width
from rappor.reporting.numbers import measured, short_percent, span

if TYPE_CHECKING:
    from rappor.discovery.discoveries import NamedOther, Share


def print_other(found: NamedOther) -> None:
    """Print the answer of the categories, and then the texts in `other`."""
    from rappor.reporting.text import estimates_text

    click.echo(estimates_text(found.categories, detected_only=False, width=width()))
    other = found.categories.candidates[-1]
    section(f"What is in {escape(other)}", _texts(found), *_remarks(found))


def _texts(found: NamedOther) -> Table:
    interval = f"{short_percent(found.categories.detection.confidence)} interval"
    other = escape(found.categories.candidates[-1])
    shown = table("text", "share", interval, f"of {other}", interval)
    for text in found.strings:
        cells = (*share_cells(text.of_all), *share_cells(text.of_other))
        shown.add_row(escape(text.string), *cells)
    return shown


def share_cells(share: Share) -> Iterator[str]:
    """Yield a share and its interval."""
    yield measured(share.proportion, share.std_error) or "unknown"
    yield _interval(share)


def _interval(share: Share) -> str:
    """Write an interval as people read it: no share is below 0."""
    if not math.isfinite(share.low):
        return "unknown"
    return span(max(share.low, 0.0), max(share.high, 0.0), share.std_error)


def _remarks(found: NamedOther) -> Iterator[str]:
    """Yield what was found, and how much of `other` is unnamed."""
    from rappor.reporting.remarks import answer

    yield answer(found.found.estimates)
    unnamed, other = found.unnamed, escape(found.categories.candidates[-1])
    if math.isfinite(unnamed.proportion):
        yield (
            f"{measured(max(unnamed.proportion, 0.0), unnamed.std_error)} of {other} is unnamed "
            f"({_interval(unnamed)}): texts that are too rare, too long, or have a character "
            "outside the alphabet."
        )
    else:
        yield f"{other} itself is not significant, so shares of it are unknown."
