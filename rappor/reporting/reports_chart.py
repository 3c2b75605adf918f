"""Chart of the released reports by day: a bar for each release window.

A release window has the reports of one or more days, and is dated on its last day. A day without a
bar is no last day of a window: its reports are in the next bar, or nothing was reported.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import Final

from rappor.base.sentence_numbers import format_count
from rappor.reporting.charts import COLORS, Chart
from rappor.reporting.markup import Markup, join, tag
from rappor.reporting.scale import Scale

_LEFT: Final = 12.0
"""The horizontal axis begins here, in per cent of the width, and ends at the right edge. The
numbers of reports stand on its left."""

_TOP, _FLOOR = 26, 150
"""The vertical axis ends and begins at these heights, in units of SVG from the top."""

_HEIGHT: Final = _FLOOR + 44
"""Height of the chart, in units of SVG. Below the bars are the dates, and the years below them."""

_FEWEST_DAYS: Final = 14
"""Smallest number of days of the horizontal axis. A metric with fewer days has narrow bars with
free space beside them. With a smaller number, a single bar would fill the chart."""

_FILLED: Final = 0.7
"""Width of a bar divided by the width of a day. A larger number leaves less space between bars."""

_MAX_NAMES: Final = 5
"""Largest number of days that are named below the bars. More names would overlap on a telephone."""


def draw_reports_by_day(title: str, days: Sequence[tuple[datetime.date, int]]) -> Chart:
    """Draw a bar for the reports of each release window.

    Parameters
    ----------
    title : title of the chart.
    days : last day and number of reports of each window, the earliest first; at least one.

    Examples
    --------
    >>> monday = datetime.date(2026, 8, 3)
    >>> chart = draw_reports_by_day("theme", [(monday, 800), (monday.replace(day=4), 790)])
    >>> "2026-08-03: 800 reports" in chart.svg()
    True
    """
    first, last = days[0][0].toordinal(), days[-1][0].toordinal()
    n_days = max(last - first + 1, _FEWEST_DAYS)
    day_width = (100 - _LEFT) / n_days
    reports = Scale.over([0.0, *(float(number) for _, number in days)], start=_FLOOR, end=_TOP)
    bars = []
    for day, number in days:
        left = _LEFT + day_width * (day.toordinal() - first + (1 - _FILLED) / 2)
        top = reports(float(number))
        tooltip = tag("title", f"{day}: {format_count(number, 'report')}")
        bars.append(
            tag("rect", tooltip, x=f"{left:.4g}%", y=top, width=f"{day_width * _FILLED:.4g}%",
                height=round(_FLOOR - top, 2))
        )  # fmt: skip
    content = join(
        _draw_numbers(reports),
        tag("g", *bars, fill=COLORS[0]),
        _draw_dates(first, n_days, day_width),
    )
    return Chart(title=title, content=content, height=_HEIGHT)


def _draw_numbers(reports: Scale) -> Markup:
    """Draw a line across the chart for each round number of reports, with the number above it."""
    parts = []
    for tick in reports.ticks(4):
        y = reports(tick)
        parts.append(tag("line", x1="0%", x2="100%", y1=y, y2=y, stroke="currentColor",
                         stroke_opacity=0.15 if tick else 0.8))  # fmt: skip
        if tick:
            parts.append(tag("text", f"{tick:,.0f}", x="0%", y=y - 3, font_size=12))
    return join(*parts)


def _draw_dates(first: int, n_days: int, day_width: float) -> Markup:
    """Write the names of some days below the bars, and each year below its first name.

    `first` is the ordinal of the first day, and `day_width` is in per cent of the width.
    """
    parts, year = [], None
    for number in range(0, n_days, math.ceil(n_days / _MAX_NAMES)):
        day = datetime.date.fromordinal(first + number)
        x = f"{_LEFT + day_width * (number + 0.5):.4g}%"
        parts.append(tag("text", f"{day:%b} {day.day}", x=x, y=_FLOOR + 20))
        if day.year != year:
            year = day.year
            parts.append(tag("text", f"{year}", x=x, y=_FLOOR + 36))
    return tag("g", *parts, font_size=12, text_anchor="middle")
