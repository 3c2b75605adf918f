"""Shares in segments as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.table import Table

from rappor.cli.console import escape, show
from rappor.decoding.segments.segments import Segments
from rappor.reporting.numbers import measured, moved, short_percent, span
from rappor.reporting.remarks import in_segments

_MOST_NAME: Final = 40


def print_segments(found: Segments) -> None:
    """Print a row for each string in each segment, and what was assumed."""
    interval = f"adjusted {short_percent(found.detection.confidence)} interval"
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("candidate", "segment"):
        shown.add_column(name, overflow="ellipsis", no_wrap=True, max_width=_MOST_NAME)
    for name in ("share", interval, "points from the first"):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in found.rows():
        shown.add_row(*_cells(row))
    if found.candidates:
        show(shown, "")
    show(*map(escape, in_segments(found)))


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    yield escape(row["candidate"])
    yield escape(row["segment"])
    yield measured(row["proportion"], row["std_error"])
    yield span(row["ci_low"], row["ci_high"], row["std_error"])
    difference = row.get("difference")
    mark = " *" if row.get("differs") else ""
    yield "" if difference is None else moved(difference, row["std_error"]) + mark
