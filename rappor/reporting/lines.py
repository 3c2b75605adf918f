"""Line charts over linear and logarithmic axes, with dots for measured values.

The input is rows: mappings with the numbers of a point and the name of its series. A series is one
line with one colour and one pattern of dashes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from rappor.reporting.charts import COLORS, Chart
from rappor.reporting.dots import draw_marker
from rappor.reporting.markup import Markup, join, tag
from rappor.reporting.numbers import format_short_percent
from rappor.reporting.scale import Scale

Row: TypeAlias = Mapping[str, Any]
"""Point of a line. The mapping contains its numbers by field, and the name of its series."""

_WIDTH: Final = 400
"""A chart has this width, in units of SVG."""

_LEFT, _RIGHT = 60, 376
"""The horizontal axis begins and ends at these positions, in units of SVG from the left."""

_TOP, _FLOOR = 30, 270
"""The vertical axis begins and ends at these heights, in units of SVG from the top."""

_LINE: Final = 18
"""A line of the legend has this height, in units of SVG."""

_LABEL_WIDTH: Final = 40
"""Smallest distance between two numbers below the horizontal axis, in units of SVG. At a smaller
distance numbers overlap."""

_LINE_TOLERANCE: Final = 0.005
"""Largest relative difference at which two lines count as one. It is about a unit of SVG in a chart
of this height, so the lines cannot be distinguished."""

_DASHES: Final = (None, "7 2", "4 4", "2 2", "9 2 2 2", "1 3", "12 3")
"""Patterns of dashes of the series, in their order. Patterns distinguish lines without colour, and
a dashed line leaves the line below visible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Axis of a line chart.

    Attributes
    ----------
    field : name of the field of the rows that the axis shows.
    title : title of the axis, with the unit.
    log : True for a logarithmic axis.
    domain : numbers at both ends; None for the smallest and the largest number of the rows.
    percent : True for numbers in per cent.
    """

    field: str
    title: str
    log: bool = False
    domain: tuple[float, float] | None = None
    percent: bool = False

    def has_place_for(self, row: Row) -> bool:
        """Return whether the row's number can be drawn on this axis.

        Unknown and infinite numbers cannot, and a logarithmic axis has no place for 0 and less.
        """
        value = row[self.field]
        return value is not None and math.isfinite(value) and (value > 0 or not self.log)

    def scale(self, rows: Sequence[Row], *, start: float, end: float) -> Scale:
        """Return the scale of the rows between two positions."""
        values = self.domain or [row[self.field] for row in rows]
        return Scale.over(values, start=start, end=end, log=self.log)

    def write(self, value: float) -> str:
        """Format a number for the axis, such as 5 %, 0.01, 100, 10k, 1M."""
        if self.percent:
            return format_short_percent(value)
        # Thousands have four digits up to 9999, so that 5000 is not written as 5k beside 500.
        for size, letter, least in ((1e9, "G", 1e9), (1e6, "M", 1e6), (1e3, "k", 1e4)):
            if abs(value) >= least:
                return f"{value / size:g}{letter}"
        return f"{value:.6g}"


def draw_lines(  # noqa: PLR0913 - what a chart shows has many parts
    rows: Iterable[Row],
    *,
    x: Axis,
    y: Axis,
    series: str,
    part: str = "",
    legend: str = "",
    title: str = "",
    points: Iterable[Row] = (),
) -> Chart:
    """Draw a line for each series, in the order of the rows.

    Rows without a place on an axis are left out: infinite numbers, and numbers that are not
    positive on a logarithmic axis. If a line has several rows at one x, the first row is drawn.

    Parameters
    ----------
    rows : the points of the lines.
    x, y : the axes.
    series : field with the name of the series.
    part : field that divides a series into several lines of one colour. An empty text divides
        nothing.
    legend : sentence above the legend.
    title : title of the chart.
    points : measured values, which are drawn as dots over the lines. They have the same fields.
    """
    lined, dotted = (
        [row for row in points_of_kind if x.has_place_for(row) and y.has_place_for(row)]
        for points_of_kind in (list(rows), list(points))
    )
    names = list(dict.fromkeys(str(row[series]) for row in [*lined, *dotted]))
    # Six units of SVG keep the first dot away from the axes.
    x_scale = x.scale([*lined, *dotted], start=_LEFT + 6, end=_RIGHT)
    y_scale = y.scale([*lined, *dotted], start=_FLOOR, end=_TOP + 6)
    # For each line, a pair of series and part: its rows by their x.
    lines: dict[tuple[str, Any], dict[float, Row]] = {}
    for row in lined:
        lines.setdefault((str(row[series]), row.get(part)), {}).setdefault(row[x.field], row)
    marks: list[Markup] = []
    for (name, _), line in lines.items():
        ends = " ".join(
            f"{x_scale(value):g},{y_scale(row[y.field]):g}" for value, row in line.items()
        )
        marks.append(tag("polyline", points=ends, **_choose_stroke(names.index(name))))
    marks += [
        draw_marker(
            names.index(str(row[series])), f"{x_scale(row[x.field]):g}", y_scale(row[y.field])
        )
        for row in dotted
    ]
    names_of_lines = {str(row[series]) for row in lined}
    legend_markup, height = _draw_legend(names, names_of_lines, legend, _FLOOR + 46)
    axes = _draw_axes(x, y, x_scale, y_scale)
    return Chart(
        title=title, content=join(axes, *marks, legend_markup), height=height, width=_WIDTH
    )


def merge_labels(rows: Iterable[Row], *, value: str, series: str) -> dict[str, str]:
    """Return a label for each series. Series whose lines coincide share a label.

    Two lines coincide if their numbers differ by at most half a per cent.

    Parameters
    ----------
    rows : the points of all lines. Every series has the same x in the same order.
    value : field with the number that the vertical axis shows.
    series : field with the name of the series.
    """
    values: dict[str, list[float]] = {}
    for row in rows:
        values.setdefault(str(row[series]), []).append(row[value])
    groups: list[list[str]] = []
    for name, line in values.items():
        for group in groups:
            if _is_same_line(values[group[0]], line):
                group.append(name)
                break
        else:
            groups.append([name])
    return {name: "; ".join(group) for group in groups for name in group}


def _is_same_line(first: Sequence[float], second: Sequence[float]) -> bool:
    """Return whether two lines cannot be distinguished in a chart."""
    return len(first) == len(second) and all(
        math.isclose(a, b, rel_tol=_LINE_TOLERANCE) for a, b in zip(first, second, strict=True)
    )


def _choose_stroke(number: int) -> dict[str, Any]:
    """Return colour and dashes of the line of a series."""
    return {
        "fill": "none",
        "stroke": COLORS[number % len(COLORS)],
        "stroke_width": 2,
        "stroke_dasharray": _DASHES[number % len(_DASHES)],
    }


def _draw_legend(
    names: Sequence[str], names_of_lines: set[str], title: str, top: float
) -> tuple[Markup, float]:
    """Draw the legend. The name of a series stands beside a piece of its line, or beside its dot.

    Parameters
    ----------
    names : names of the series, in order.
    names_of_lines : names of the series that have a line.
    title : sentence above the legend, or an empty text.
    top : position of the legend, in units of SVG from the top.

    Returns
    -------
    The legend, and the height of the chart in units of SVG.
    """
    parts = [tag("text", title, y=top + 12)] if title else []
    top += _LINE * len(parts)
    for number, name in enumerate(names):
        y = top + 8
        sample = tag("line", x1=0, x2=26, y1=y, y2=y, **_choose_stroke(number))
        parts.append(sample if name in names_of_lines else draw_marker(number, "13", y))
        parts.append(tag("text", name, x=34, y=y + 4))
        top += _LINE
    return join(*parts), top + 4


def _draw_axes(x: Axis, y: Axis, x_scale: Scale, y_scale: Scale) -> Markup:
    """Draw the titles of both axes, their numbers, and a grid."""
    grid: dict[str, Any] = {"stroke": "currentColor", "stroke_opacity": 0.15}
    parts = [
        tag("text", y.title, y=14),
        tag("text", x.title, x=_RIGHT, y=_FLOOR + 36, text_anchor="end"),
    ]
    last = -math.inf
    for tick in x_scale.ticks(5):
        position = x_scale(tick)
        parts.append(tag("line", x1=position, x2=position, y1=_TOP, y2=_FLOOR + 4, **grid))
        if position - last > _LABEL_WIDTH:
            parts.append(tag("text", x.write(tick), x=position, y=_FLOOR + 19,
                             text_anchor="middle", font_size=12))  # fmt: skip
            last = position
    for tick in y_scale.ticks(5):
        parts.append(tag("line", x1=_LEFT, x2=_RIGHT, y1=y_scale(tick), y2=y_scale(tick), **grid))
        parts.append(tag("text", y.write(tick), x=_LEFT - 6, y=y_scale(tick) + 4, text_anchor="end",
                         font_size=12))  # fmt: skip
    return join(*parts)
