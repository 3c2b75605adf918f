"""Dot charts: rows of dots with their intervals, such as shares, differences and losses.

The name of a row stands above its dot and not beside it, because names may be long. A filled dot is
a statistically significant result: a detected string or a significant change. A hollow dot is a
result that is not significant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from rappor.reporting.charts import COLORS, Chart
from rappor.reporting.markup import Markup, join, shorten, tag
from rappor.reporting.numbers import format_short_percent
from rappor.reporting.scale import Scale

_MAX_NAME_COLUMNS: Final = 34
"""Largest width of a name, in columns of a terminal. A name of this width fits a narrow window
beside a number. The table of the page contains longer names."""

_START, _END = 2.0, 98.0
"""Ends of the axis, in per cent of the width. The margin keeps a dot at an end inside the
drawing."""

_ROW: Final = 34
"""Height of a row, in units of SVG. A row consists of a line of text and a line of dots."""

_NAME, _DOT = 13, 25
"""Position of a row's name and of its dots, in units of SVG below the top of the row. Intervals do
not touch the name."""

_HEADING: Final = 26
"""A heading has this height, in units of SVG."""

_LINE: Final = 18
"""A line of the legend has this height, in units of SVG."""

_LABEL_WIDTH: Final = 15
"""Smallest distance between two numbers below the axis, in per cent of the width. Nearer numbers
would overlap."""

_WIDEST: Final = (-0.5, 1.5)
"""Ends of the longest axis that intervals alone can cause, as proportions. An interval is drawn up
to the end of the axis. No true share is below 0 or above 1, but estimates are not clipped: the
margin of 0.5 shows that an interval extends beyond. A wider axis would press all dots together."""

_SHAPES: Final = ("", "M-5 -5H5V5H-5Z", "M0 -6L6 0L0 6L-6 0Z", "M-6 5L0 -6L6 5Z")
"""Paths of the markers of SVG, by the kind of a dot: circle (an element of its own, so its path is
empty), square, diamond, triangle."""


class Dot(NamedTuple):
    """Dot of a row.

    Attributes
    ----------
    value : number that the dot shows, in the unit of the axis.
    low, high : ends of its interval; None for a dot without an interval.
    is_filled : False for a hollow dot, which is a ring.
    kind : index of the dot's kind. A kind has a shape and a colour.
    """

    value: float
    low: float | None = None
    high: float | None = None
    is_filled: bool = True
    kind: int = 0


class Row(NamedTuple):
    """Row of a dot chart.

    Attributes
    ----------
    name : name of the row.
    number : formatted number beside the name.
    dots : the dots of the row.
    tooltip : text that a pointer shows; empty for the number.
    """

    name: str
    number: str
    dots: tuple[Dot, ...]
    tooltip: str = ""


def draw_dots(
    title: str,
    parts: Mapping[str, Sequence[Row]],
    *,
    axis: str = "share of the reports",
    kinds: Sequence[str] = (),
    write: Callable[[float], str] = format_short_percent,
) -> Chart:
    """Draw rows under their headings.

    Parameters
    ----------
    title : title of the chart.
    parts : rows by heading, in order. An empty heading is not drawn.
    axis : title of the axis, with the unit.
    kinds : names of the kinds of dots, for a legend; empty if all dots are of one kind. The legend
        shows the first kind filled and all others hollow, so the rows must do the same. In such a
        chart a filled dot does not mean a significant result.
    write : function that writes a number below the axis.
    """
    ends = [_find_ends(dot) for rows in parts.values() for row in rows for dot in row.dots]
    scale = Scale.broken(ends, start=_START, end=_END)
    marks, top = [], 0.0
    for heading, rows in parts.items():
        if heading and rows:
            marks.append(tag("text", heading, y=top + 15, font_weight="bold"))
            top += _HEADING
        if rows:
            marks.append(_draw_grid(scale, top, len(rows)))
        for row in rows:
            marks.append(_draw_row(row, scale, top))
            top += _ROW
    axis_texts, height = _draw_axis(scale, top, axis, write)
    for kind, text in enumerate(kinds):
        # The legend shows each kind as the rows do: the first kind filled, all others hollow.
        marks.append(draw_marker(kind, "6", height + 8, is_filled=not kind))
        marks.append(tag("text", text, x=18, y=height + 13))
        height += _LINE
    return Chart(title=title, content=join(axis_texts, *marks), height=height + 4)


def draw_marker(kind: int, x: str, y: float, *, is_filled: bool = True) -> Markup:
    """Draw a dot in the shape and the colour of its kind. A hollow dot is a ring."""
    color = COLORS[kind % len(COLORS)]
    shape = _SHAPES[kind % len(_SHAPES)]
    attributes: dict[str, str | float] = {
        "fill": color if is_filled else "none",
        "stroke": color,
        "stroke_width": 2.0,
    }
    if not shape:
        return tag("circle", cx=x, cy=y, r=3.8, **attributes)
    return tag("svg", tag("path", d=shape, **attributes), x=x, y=y, overflow="visible")


def format_position(scale: Scale, value: float) -> str:
    """Return the position of a number in per cent of the width of a drawing."""
    return f"{scale(value):g}%"


def _find_ends(dot: Dot) -> tuple[float, float]:
    """Return the smallest and the largest number of a dot and its interval, cut at `_WIDEST`.

    The dot itself is never cut. Cases: a loss of 3 nats, and a share that falls from 90 % to 10 %,
    whose change is -0.8.
    """
    ends = [end for end in dot[:3] if end is not None]
    lowest, highest = _WIDEST
    return max(min(ends), min(lowest, dot.value)), min(max(ends), max(highest, dot.value))


def _draw_row(row: Row, scale: Scale, top: float) -> Markup:
    """Draw the name, the number and the dots of a row."""
    y = top + _DOT
    parts = [
        tag("title", f"{row.name}: {row.tooltip or row.number}"),
        tag("text", shorten(row.name, _MAX_NAME_COLUMNS), y=top + _NAME, direction="ltr",
            unicode_bidi="isolate"),
        tag("text", row.number, x="100%", y=top + _NAME, text_anchor="end"),
        tag("line", x1=f"{_START:g}%", x2=f"{_END:g}%", y1=y, y2=y, stroke="currentColor",
            stroke_opacity=0.15),
    ]  # fmt: skip
    for dot in row.dots:
        parts += _draw_interval(dot, scale, y)
        x = format_position(scale, dot.value)
        parts.append(draw_marker(dot.kind, x, y, is_filled=dot.is_filled))
    return tag("g", *parts)


def _draw_interval(dot: Dot, scale: Scale, y: float) -> list[Markup]:
    """Draw the interval of a dot, and a line from 0 to a filled dot."""
    parts = []
    # The line shows a share as a length. Lengths on a broken axis cannot be compared.
    if dot.is_filled and dot.kind == 0 and scale.gap is None:
        ends = {"x1": format_position(scale, 0.0), "x2": format_position(scale, dot.value)}
        parts.append(tag("line", y1=y, y2=y, stroke=COLORS[0], stroke_width=2, **ends))
    if dot.low is not None and dot.high is not None:
        low, high = scale(dot.low), scale(dot.high)
        parts.append(
            tag("rect", x=f"{low:g}%", width=f"{high - low:.4g}%", y=y - 6, height=12, rx=2,
                fill=COLORS[dot.kind], fill_opacity=0.4)
        )  # fmt: skip
    return parts


def _draw_grid(scale: Scale, top: float, n: int) -> Markup:
    """Draw vertical lines beside the dots of n rows, and the break of the axis.

    The lines are dashed, so that they do not cross the names of the rows.
    """
    parts = [
        tag("line", x1=format_position(scale, tick), x2=format_position(scale, tick),
            y1=top + _DOT - 7, y2=top + n * _ROW, stroke="currentColor",
            stroke_opacity=0.8 if tick == 0 else 0.25, stroke_dasharray=f"14 {_ROW - 14}")
        for tick in scale.ticks(5)
    ]  # fmt: skip
    if scale.gap is not None:
        middle = f"{(scale(scale.gap[0]) + scale(scale.gap[1])) / 2:g}%"
        slashes = tag("path", d="M-5 5L-2 -5M1 5L4 -5", stroke="currentColor")
        parts += [
            tag("svg", slashes, x=middle, y=top + _DOT + row * _ROW, overflow="visible")
            for row in range(n)
        ]
    return join(*parts)


def _draw_axis(
    scale: Scale, height: float, title: str, write: Callable[[float], str]
) -> tuple[Markup, float]:
    """Write the numbers and the title of the axis below all rows.

    A broken axis also gets a sentence that names the numbers that it leaves out.

    Returns
    -------
    The texts, and the height of the chart so far in units of SVG.
    """
    parts, last = [], -math.inf
    for tick in scale.ticks(5):
        position = scale(tick)
        if position - last >= _LABEL_WIDTH:
            anchor = _choose_anchor(position)
            x = format_position(scale, tick)
            parts.append(tag("text", write(tick), x=x, y=height + 16, text_anchor=anchor))
            last = position
    height += 20
    parts.append(tag("text", title, x="100%", y=height + 14, text_anchor="end", font_size=12))
    if scale.gap is None:
        return join(*parts), height + 24
    gap_start, gap_end = (write(float(f"{end:.2g}")) for end in scale.gap)
    words = f"The axis is broken: it leaves out {gap_start} to {gap_end}."
    parts.append(tag("text", words, y=height + 36, font_style="italic"))
    return join(*parts), height + 44


def _choose_anchor(position: float) -> str:
    """Return the alignment at which a number below the axis stays inside the drawing."""
    if position < 4:
        return "start"
    return "end" if position > 94 else "middle"
