"""Dots with their intervals on rows: shares, differences, losses.

The name of a row stands above its dot, so that it has the whole width. Full dots are sure ones
(detected, changed), hollow ones are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from rappor.reporting.charts import COLORS, Chart
from rappor.reporting.markup import Markup, join, shorten, tag
from rappor.reporting.numbers import format_short_percent
from rappor.reporting.scale import Scale

_NAME_COLUMNS: Final = 34
"""Letters of a name beside its number in a narrow window; the table has more of them."""

_START, _END = 2.0, 98.0
"""Ends of the axis, in per cent of the width: a dot at an end is whole."""

_ROW: Final = 34
_NAME, _DOT = 13, 25
"""Below the top of a row: the foot of its name, and its dots, whose intervals stay clear of it."""

_HEADING: Final = 26
_LINE: Final = 18
_APART: Final = 15
"""Per cent of the width between two numbers beside an axis, at least."""

_MOST: Final = (-0.5, 1.5)
"""Shares outside are no answer: intervals end here."""

_SHAPES: Final = ("", "M-5 -5H5V5H-5Z", "M0 -6L6 0L0 6L-6 0Z", "M-6 5L0 -6L6 5Z")
"""Circle, square, diamond, triangle."""


class Dot(NamedTuple):
    """A dot: its value, its interval, whether it is full, and which of the chart's kinds it is."""

    value: float
    low: float | None = None
    high: float | None = None
    full: bool = True
    kind: int = 0


class Row(NamedTuple):
    """A row: a name, the number that is written beside it, its dots, and what a pointer shows."""

    name: str
    number: str
    dots: tuple[Dot, ...]
    told: str = ""


def dots(
    title: str,
    parts: Mapping[str, Sequence[Row]],
    *,
    axis: str = "share of the reports",
    kinds: Sequence[str] = (),
    write: Callable[[float], str] = format_short_percent,
) -> Chart:
    """Draw rows under their headings; an empty heading is not written.

    `axis` says what is drawn, and in which unit; `write` writes a number of it. With `kinds` a
    legend names what dots of each kind are.
    """
    every = [dot for rows in parts.values() for row in rows for dot in row.dots]
    scale = Scale.broken([_ends(dot) for dot in every], start=_START, end=_END)
    marks, top = [], 0.0
    for heading, rows in parts.items():
        if heading and rows:
            marks.append(tag("text", heading, y=top + 15, font_weight="bold"))
            top += _HEADING
        if rows:
            marks.append(_grid(scale, top, len(rows)))
        for row in rows:
            marks.append(_row(row, scale, top))
            top += _ROW
    below, height = _axis(scale, top, axis, write)
    for kind, text in enumerate(kinds):
        marks.append(marker(kind, "6", height + 8, full=not kind))
        marks.append(tag("text", text, x=18, y=height + 13))
        height += _LINE
    return Chart(title=title, content=join(below, *marks), height=height + 4)


def marker(kind: int, x: str, y: float, *, full: bool = True) -> Markup:
    """Draw a dot in the shape and the colour of its kind; a hollow one as a ring."""
    color = COLORS[kind]
    shape = _SHAPES[kind % len(_SHAPES)]
    look: dict[str, str | float] = {
        "fill": color if full else "none",
        "stroke": color,
        "stroke_width": 2.0,
    }
    if not shape:
        return tag("circle", cx=x, cy=y, r=3.8, **look)
    return tag("svg", tag("path", d=shape, **look), x=x, y=y, overflow="visible")


def along(scale: Scale, value: float) -> str:
    """Return where a value is on the width of a drawing."""
    return f"{scale(value):g}%"


def _ends(dot: Dot) -> tuple[float, float]:
    known = [end for end in dot[:3] if end is not None]
    least, most = _MOST
    return max(min(known), least), min(max(known), max(most, dot.value))


def _row(row: Row, scale: Scale, top: float) -> Markup:
    y = top + _DOT
    parts = [
        tag("title", f"{row.name}: {row.told or row.number}"),
        tag("text", shorten(row.name, _NAME_COLUMNS), y=top + _NAME, direction="ltr",
            unicode_bidi="isolate"),
        tag("text", row.number, x="100%", y=top + _NAME, text_anchor="end"),
        tag("line", x1=f"{_START:g}%", x2=f"{_END:g}%", y1=y, y2=y, stroke="currentColor",
            stroke_opacity=0.15),
    ]  # fmt: skip
    for dot in row.dots:
        parts += _stem(dot, scale, y)
        parts.append(marker(dot.kind, along(scale, dot.value), y, full=dot.full))
    return tag("g", *parts)


def _stem(dot: Dot, scale: Scale, y: float) -> list[Markup]:
    """Draw the way from 0 to a full dot, unless the axis is broken there, and its interval."""
    parts = []
    if dot.full and dot.kind == 0 and scale.gap is None:
        ends = {"x1": along(scale, 0.0), "x2": along(scale, dot.value)}
        parts.append(tag("line", y1=y, y2=y, stroke=COLORS[0], stroke_width=2, **ends))
    if dot.low is not None and dot.high is not None:
        low, high = scale(dot.low), scale(dot.high)
        parts.append(
            tag("rect", x=f"{low:g}%", width=f"{high - low:.4g}%", y=y - 6, height=12, rx=2,
                fill=COLORS[dot.kind], fill_opacity=0.4)
        )  # fmt: skip
    return parts


def _grid(scale: Scale, top: float, n: int) -> Markup:
    """Draw uprights beside the dots of n rows, and the break of the axis; names stay clear."""
    parts = [
        tag("line", x1=along(scale, tick), x2=along(scale, tick), y1=top + _DOT - 7,
            y2=top + n * _ROW, stroke="currentColor", stroke_opacity=0.8 if tick == 0 else 0.25,
            stroke_dasharray=f"14 {_ROW - 14}")
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


def _axis(
    scale: Scale, height: float, title: str, write: Callable[[float], str]
) -> tuple[Markup, float]:
    """Write the numbers of the axis below all rows, its title, and where it is broken."""
    parts, last = [], -math.inf
    for tick in scale.ticks(5):
        place = scale(tick)
        if place - last >= _APART:
            anchor = "start" if place < 4 else "end" if place > 94 else "middle"
            x = along(scale, tick)
            parts.append(tag("text", write(tick), x=x, y=height + 16, text_anchor=anchor))
            last = place
    height += 20
    parts.append(tag("text", title, x="100%", y=height + 14, text_anchor="end", font_size=12))
    if scale.gap is None:
        return join(*parts), height + 24
    below, above = (write(float(f"{end:.2g}")) for end in scale.gap)
    words = f"The axis is broken: it leaves out {below} to {above}."
    parts.append(tag("text", words, y=height + 36, font_style="italic"))
    return join(*parts), height + 44
