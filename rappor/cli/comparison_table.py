"""A comparison as tables for people, one for each sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from rappor.cli.console import escape, show, width
from rappor.decoding.comparison.comparison import Against, Comparison
from rappor.reporting.numbers import measured, moved, p_value, short_percent, span_of_points
from rappor.reporting.remarks import changes

_LEAST_NAME, _MOST_NAME = 9, 40


def print_comparison(comparison: Comparison, *, changed_only: bool) -> None:
    """Print the rows of each sample, the tests, the assumptions and the warnings.

    A list of changes shows their adjusted intervals, which hold for it as a whole; a list of all
    candidates shows the interval of each on its own.
    """
    for each in comparison.against:
        shown = _table(comparison, each, changed_only=changed_only)
        if shown.row_count:
            title = f"from {each.baseline} to {each.sample.name}"
            show(f"[bold]{escape(title)}[/bold]", shown, "")
    show(*map(escape, changes(comparison)))


def _table(comparison: Comparison, each: Against, *, changed_only: bool) -> Table:
    confidence = short_percent(comparison.detection.confidence)
    interval = (
        f"adjusted {confidence} interval" if changed_only else f"{confidence} interval of each"
    )
    columns = ["before", "after", "points", interval, "p-value", "change"]
    suffix = "_adjusted" if changed_only else ""
    rows = [
        tuple(_cells(row, suffix))
        for row in comparison.rows(changed_only=changed_only)
        if row["sample"] == each.sample.name
    ]
    numbers = zip(columns, *(row[1:] for row in rows), strict=True)
    room = width() - sum(2 + max(map(len, column)) for column in numbers)
    shown = Table(box=None, header_style="bold", pad_edge=False)
    most = max(_LEAST_NAME, min(room, _MOST_NAME))
    shown.add_column("candidate", overflow="ellipsis", no_wrap=True, max_width=most)
    for name in columns:
        shown.add_column(escape(name), justify="right", no_wrap=True)
    for row in rows:
        shown.add_row(*row)
    return shown


def _cells(row: Mapping[str, Any], suffix: str) -> Iterator[str]:
    group = f" (group {row['group']})" if "group" in row else ""
    yield escape(row["candidate"] + group)
    error = row["std_error"]
    yield measured(row["baseline_proportion"], error) or "unknown"
    yield measured(row["proportion"], error) or "unknown"
    yield moved(row["difference"], error) or "unknown"
    yield span_of_points(row[f"ci_low{suffix}"], row[f"ci_high{suffix}"], error)
    yield p_value(row["p_value"])
    yield row["kind"]
