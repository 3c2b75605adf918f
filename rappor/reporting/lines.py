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
"""Width of a chart, in units of SVG."""

_LEFT, _RIGHT = 60, 376
"""Positions at which the horizontal axis begins and ends, in units of SVG from the left. The
numbers of the vertical axis stand left of the first position."""

_TOP, _FLOOR = 30, 270
"""Positions at which the vertical axis ends and begins, in units of SVG from the top. The title of
the vertical axis stands above the first position, the numbers of the horizontal axis below the
second."""

_DOT_MARGIN: Final = 6
"""Distance of the first and the highest point from the ends of the axes, in units of SVG. A dot
with a smaller distance would be drawn over an axis."""

_Y_TITLE_TOP: Final = 14
"""Position of the title of the vertical axis, in units of SVG from the top."""

_TICK_LENGTH: Final = 4
"""Length of the part of a vertical grid line below the horizontal axis, in units of SVG."""

_X_NUMBERS_BELOW, _X_TITLE_BELOW, _LEGEND_BELOW = 19, 36, 46
"""Distances of the numbers of the horizontal axis, of its title and of the legend from the axis, in
units of SVG. The legend stands below the title, and the title below the numbers."""

_Y_NUMBERS_LEFT: Final = 6
"""Distance between the numbers of the vertical axis and the axis, in units of SVG."""

_TICKS: Final = 5
"""Approximate number of grid lines of an axis (`Scale.ticks`). With more, their numbers overlap."""

_NUMBER_SIZE: Final = 12
"""Size of the numbers beside the axes, in units of SVG."""

_BASELINE: Final = 4
"""Distance from the middle of a letter down to its baseline, in units of SVG. SVG positions a text
by its baseline. A text that is moved down by this distance is level with a line or a dot."""

_LINE: Final = 18
"""Height of a line of the legend, in units of SVG."""

_SAMPLE_WIDTH: Final = 26
"""Length of the piece of a line beside its name in the legend, in units of SVG. A dot stands in the
middle of this length."""

_NAME_LEFT: Final = 34
"""Position of the names in the legend, in units of SVG from the left."""

_LABEL_WIDTH: Final = 40
"""Smallest distance between two numbers below the horizontal axis, in units of SVG. At a smaller
distance numbers overlap."""

_LINE_TOLERANCE: Final = 0.005
"""Largest relative difference of the numbers of two lines that count as one line. A chart is 240
units of SVG high. If its axis begins at 0, two numbers with this difference are 1.2 units apart at
most. On a logarithmic axis they are closer. A line is 2 units wide, so a reader cannot distinguish
the two lines."""

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
        return f"{value:z.6g}"


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
    rows_of_lines = [row for row in rows if x.has_place_for(row) and y.has_place_for(row)]
    rows_of_dots = [row for row in points if x.has_place_for(row) and y.has_place_for(row)]
    all_rows = [*rows_of_lines, *rows_of_dots]
    names = list(dict.fromkeys(str(row[series]) for row in all_rows))
    x_scale = x.scale(all_rows, start=_LEFT + _DOT_MARGIN, end=_RIGHT)
    y_scale = y.scale(all_rows, start=_FLOOR, end=_TOP + _DOT_MARGIN)
    # A line is identified by its series and its part. The inner mapping contains the row at each x.
    # `setdefault` keeps the first row at an x.
    lines: dict[tuple[str, Any], dict[float, Row]] = {}
    for row in rows_of_lines:
        line = lines.setdefault((str(row[series]), row.get(part)), {})
        line.setdefault(row[x.field], row)
    marks: list[Markup] = []
    for (name, _), line in lines.items():
        positions = " ".join(
            f"{x_scale(value):g},{y_scale(row[y.field]):g}" for value, row in line.items()
        )
        marks.append(tag("polyline", points=positions, **_choose_stroke(names.index(name))))
    for row in rows_of_dots:
        # `draw_marker` writes the x as it is, because other charts pass a percentage.
        position = f"{x_scale(row[x.field]):g}"
        marks.append(draw_marker(names.index(str(row[series])), position, y_scale(row[y.field])))
    names_of_lines = {str(row[series]) for row in rows_of_lines}
    legend_markup, height = _draw_legend(names, names_of_lines, legend, _FLOOR + _LEGEND_BELOW)
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
    # The middle of a line of the legend is 8 units below its top. Four units below the last line
    # keep its letters inside the chart.
    middle, bottom_margin = 8, 4
    parts = [tag("text", title, y=top + middle + _BASELINE)] if title else []
    top += _LINE * len(parts)
    for number, name in enumerate(names):
        y = top + middle
        sample = tag("line", x1=0, x2=_SAMPLE_WIDTH, y1=y, y2=y, **_choose_stroke(number))
        dot = draw_marker(number, f"{_SAMPLE_WIDTH / 2:g}", y)
        parts.append(sample if name in names_of_lines else dot)
        parts.append(tag("text", name, x=_NAME_LEFT, y=y + _BASELINE))
        top += _LINE
    return join(*parts), top + bottom_margin


def _draw_axes(x: Axis, y: Axis, x_scale: Scale, y_scale: Scale) -> Markup:
    """Draw the titles of both axes, their numbers, and a grid."""
    grid: dict[str, Any] = {"stroke": "currentColor", "stroke_opacity": 0.15}
    parts = [
        tag("text", y.title, y=_Y_TITLE_TOP),
        tag("text", x.title, x=_RIGHT, y=_FLOOR + _X_TITLE_BELOW, text_anchor="end"),
    ]
    last_labelled = -math.inf
    for tick in x_scale.ticks(_TICKS):
        position = x_scale(tick)
        end = _FLOOR + _TICK_LENGTH
        parts.append(tag("line", x1=position, x2=position, y1=_TOP, y2=end, **grid))
        if position - last_labelled > _LABEL_WIDTH:
            parts.append(tag("text", x.write(tick), x=position, y=_FLOOR + _X_NUMBERS_BELOW,
                             text_anchor="middle", font_size=_NUMBER_SIZE))  # fmt: skip
            last_labelled = position
    for tick in y_scale.ticks(_TICKS):
        position = y_scale(tick)
        parts.append(tag("line", x1=_LEFT, x2=_RIGHT, y1=position, y2=position, **grid))
        parts.append(tag("text", y.write(tick), x=_LEFT - _Y_NUMBERS_LEFT, y=position + _BASELINE,
                         text_anchor="end", font_size=_NUMBER_SIZE))  # fmt: skip
    return join(*parts)
