"""Comparison as a table on the terminal, and in the requested files."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import click
from rich.table import Table

from rappor.cli.console import escape, print_parts, width
from rappor.cli.options import Output, save_chart
from rappor.comparison.comparison import Comparison
from rappor.comparison.sample_contrasts import SampleContrast
from rappor.reporting.footnotes import list_comparison_footnotes
from rappor.reporting.numbers import (
    format_change,
    format_change_interval,
    format_p_value,
    format_share,
    format_short_percent,
)
from rappor.reporting.plots import contrast_interval

_BARS: Final = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_GAP: Final = "\u00b7"
_LEAST_NAME, _MOST_NAME = 9, 40
_STEPS: Final = 20
"""Largest number of significant steps that are listed: the last ones."""


def write_outputs(panel: Comparison, output: Output, *, every: bool) -> None:
    """Write the requested files and print the comparison of all or of the selected rows."""
    if output.csv_path is not None:
        panel.to_csv(output.csv_path, include_all=every)
    if output.html_path is not None:
        panel.to_html(output.html_path)
    save_chart(panel, output.chart)
    if output.as_json:
        click.echo(panel.to_json(include_all=every))
        return
    rows = list(range(len(panel.candidates))) if every else panel.shown_rows.tolist()
    for each in panel.primary if rows else ():
        print_parts(f"[bold]{escape(each.name)}[/bold]", _table(panel, each, rows), "")
    steps = list(_steps(panel))
    if steps:
        more = f", the last {_STEPS}" if len(steps) > _STEPS else ""
        print_parts(f"[bold]significant steps{more}[/bold]", *steps[-_STEPS:], "")
    print_parts(*map(escape, list_comparison_footnotes(panel)))


def _table(panel: Comparison, contrast: SampleContrast, rows: list[int]) -> Table:
    """Return a row for each candidate; changes have adjusted intervals."""
    thirds = ("first third", "last third") if len(panel.samples) > 2 else ("first", "last")
    ends = thirds if contrast.kind == "slope" else ("before", "after")
    ends = ("the rest", "here") if contrast.kind == "rest" else ends
    columns = [*ends, "points", f"{format_short_percent(panel.error_control.confidence)} interval"]
    columns += ["p-value", "change"]
    cells = [tuple(_cells(panel, contrast, i)) for i in rows]
    numbers = zip(columns, *(row[1:] for row in cells), strict=True)
    room = width() - sum(2 + max(map(len, column)) for column in numbers)
    n = min(len(panel.samples), room - _LEAST_NAME - 2) if contrast.kind == "slope" else 0
    course = n if n > 2 else 0
    shown = Table(box=None, header_style="bold", pad_edge=False)
    most = max(_LEAST_NAME, min(room - course - 2 * (course > 0), _MOST_NAME))
    shown.add_column("candidate", overflow="ellipsis", no_wrap=True, max_width=most)
    for name in columns:
        shown.add_column(escape(name), justify="right", no_wrap=True)
    if course:
        shown.add_column(f"{panel.by}s", no_wrap=True, overflow="ellipsis", max_width=course)
    for i, row in zip(rows, cells, strict=True):
        bars = "".join(_bars(panel.per_sample.share[-course:, i].tolist())) if course else ""
        shown.add_row(*row, *([bars] if course else []))
    return shown


def _cells(panel: Comparison, contrast: SampleContrast, i: int) -> Iterator[str]:
    row = contrast.row(i)
    error = row["std_error"]
    group = f" (group {panel.group[i]})" if panel.group[i] else ""
    yield escape(panel.candidates[i] + group)
    yield format_share(row["before"], error) or "unknown"
    yield format_share(row["after"], error) or "unknown"
    yield format_change(row["estimate"], error) or "unknown"
    yield format_change_interval(*contrast_interval(row), error)
    yield format_p_value(row["p_value"])
    yield row["direction"]


def _bars(shares: list[float]) -> Iterator[str]:
    """Yield a bar for each share, from 0 to the largest; a dot for a period without reports."""
    largest = max((share for share in shares if math.isfinite(share)), default=0.0)
    for share in shares:
        if not math.isfinite(share):
            yield _GAP
        else:
            part = max(share, 0.0) / largest if largest > 0 else 0.0
            yield _BARS[round(part * (len(_BARS) - 1))]


def _steps(panel: Comparison) -> Iterator[str]:
    """Yield a line for each significant step, in the order of the periods."""
    for each in panel.contrasts if len(panel.samples) > 2 else ():
        for i in each.changed.nonzero()[0].tolist() if each.kind == "step" else ():
            row = each.row(i)
            between = format_change_interval(*contrast_interval(row), row["std_error"])
            name = escape(panel.candidates[i])
            points = format_change(row["estimate"], row["std_error"])
            yield f"{escape(each.name)}  {name}: {points} points ({between})"
