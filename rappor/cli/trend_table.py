"""A trend as a table for people: the first and the last period, and the course between."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from rich.table import Table

from rappor.cli.console import escape, show, width
from rappor.decoding.trends.trend import Trend
from rappor.reporting.numbers import measured, moved, short_percent, span, span_of_points
from rappor.reporting.remarks import over_time

_BARS: Final = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_GAP: Final = "\u00b7"
_MOST_BARS: Final = 30
"""Periods of the course that a line has room for, the last ones."""

_LEAST_NAME, _MOST_NAME = 9, 40
_STEPS: Final = 20
"""Steps that are listed, the last ones."""


def print_trend(trend: Trend) -> None:
    """Print a row for each string, the significant steps, and the remarks."""
    if trend.candidates:
        show(_table(trend), "")
    steps = list(_steps(trend))
    if steps:
        more = f", the last {_STEPS}" if len(steps) > _STEPS else ""
        show(f"[bold]significant steps{more}[/bold]", *steps[-_STEPS:], "")
    show(*map(escape, over_time(trend)))


def _table(trend: Trend) -> Table:
    known = [number for number, period in enumerate(trend.periods) if period.reports]
    first, last = known[0], known[-1]
    interval = f"adjusted {short_percent(trend.detection.confidence)} interval"
    columns = [trend.periods[first].name, trend.periods[last].name, interval]
    n = min(len(trend.periods), _MOST_BARS)
    course = f"{n} {trend.by}s" if n == len(trend.periods) else f"last {n} {trend.by}s"
    shown = Table(box=None, header_style="bold", pad_edge=False)
    room = width() - sum(2 + max(len(name), 9) for name in columns) - 2 - max(n, len(course))
    most = max(_LEAST_NAME, min(room, _MOST_NAME))
    shown.add_column("candidate", overflow="ellipsis", no_wrap=True, max_width=most)
    for name in columns:
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column(course, no_wrap=True)
    levels = trend.levels
    for column, name in enumerate(trend.candidates):
        first_error, error = (float(levels.std_error[row, column]) for row in (first, last))
        ends = float(levels.ci_low[last, column]), float(levels.ci_high[last, column])
        shown.add_row(
            escape(name),
            measured(float(levels.proportion[first, column]), first_error),
            measured(float(levels.proportion[last, column]), error),
            span(*ends, error),
            "".join(_bars(levels.proportion[-n:, column].tolist())),
        )
    return shown


def _bars(shares: list[float]) -> Iterator[str]:
    """Yield a bar for each share, from 0 to the largest; a dot where there are no reports."""
    largest = max((share for share in shares if math.isfinite(share)), default=0.0)
    for share in shares:
        if not math.isfinite(share):
            yield _GAP
        else:
            part = max(share, 0.0) / largest if largest > 0 else 0.0
            yield _BARS[round(part * (len(_BARS) - 1))]


def _steps(trend: Trend) -> Iterator[str]:
    """Yield a line for each significant step, in the order of the periods."""
    rows = [row for row in trend.rows() if row.get("changed")]
    for row in sorted(rows, key=lambda row: str(row["first"])):
        low, high = row["step_ci_low"], row["step_ci_high"]
        error = None if low is None or high is None else (high - low) / 4  # nearly
        between = "" if error is None else f" ({span_of_points(low, high, error)})"
        name = escape(row["candidate"])
        yield f"{row['first']}  {name}: {moved(row['step'], error)} points{between}"
