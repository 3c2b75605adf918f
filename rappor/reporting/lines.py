"""Curves over linear and logarithmic axes, with measured dots."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from rappor.reporting.charts import COLORS, Chart
from rappor.reporting.dots import marker
from rappor.reporting.markup import Markup, join, tag
from rappor.reporting.numbers import format_short_percent
from rappor.reporting.scale import Scale

Row: TypeAlias = Mapping[str, Any]

_WIDTH: Final = 400
_LEFT, _RIGHT = 60, 376
_TOP, _FLOOR = 30, 270
_LINE: Final = 18

_SAME_PLACE: Final = 0.005
"""Relative distance below which two lines cannot be distinguished in a chart of this height."""

_DASHES: Final = (None, "7 2", "4 4", "2 2", "9 2 2 2", "1 3", "12 3")
"""They distinguish lines without colour, and leave a line visible that lies under another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis: the rows' field, its title with the unit, its scale.

    `percent` writes shares in per cent; `domain` fixes both ends.
    """

    field: str
    title: str
    log: bool = False
    domain: tuple[float, float] | None = None
    percent: bool = False

    def has_place_for(self, row: Row) -> bool:
        """Return whether the row's value can be drawn on this axis."""
        value = row[self.field]
        return value is not None and math.isfinite(value) and (value > 0 or not self.log)

    def scale(self, rows: Sequence[Row], *, start: float, end: float) -> Scale:
        """Return where the rows are drawn."""
        values = self.domain or [row[self.field] for row in rows]
        return Scale.over(values, start=start, end=end, log=self.log)

    def write(self, value: float) -> str:
        """Write a number beside the axis: 5 %, 0.01, 100, 10k, 1M."""
        if self.percent:
            return format_short_percent(value)
        for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= size * (10 if letter == "k" else 1):
                return f"{value / size:g}{letter}"
        return f"{value:.6g}"


def line_chart(  # noqa: PLR0913 - what a chart shows has many parts
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
    """Draw a line for each value of the field `series`, in the order of the rows.

    With a field `part` a series has a line for each of its values, in one colour. `points`
    have the same fields and are drawn as dots over the lines: measured values over computed
    ones. Rows without a place on an axis (infinite, or not positive on a logarithmic one) are
    left out, and of several rows at one place of a line all but the first.
    """
    lined, dotted = (
        [row for row in some if x.has_place_for(row) and y.has_place_for(row)]
        for some in (list(rows), list(points))
    )
    names = list(dict.fromkeys(str(row[series]) for row in [*lined, *dotted]))
    across = x.scale([*lined, *dotted], start=_LEFT + 6, end=_RIGHT)
    up = y.scale([*lined, *dotted], start=_FLOOR, end=_TOP + 6)
    marks: list[Markup] = []
    for place in {(str(row[series]), row.get(part)): None for row in lined}:
        line: dict[float, Row] = {}
        for row in lined:
            if (str(row[series]), row.get(part)) == place:
                line.setdefault(row[x.field], row)
        ends = " ".join(f"{across(at):g},{up(row[y.field]):g}" for at, row in line.items())
        marks.append(tag("polyline", points=ends, **_stroke(names.index(place[0]))))
    marks += [
        marker(names.index(str(row[series])), f"{across(row[x.field]):g}", up(row[y.field]))
        for row in dotted
    ]
    on_lines = {str(row[series]) for row in lined}
    below, height = _legend(names, on_lines, legend, _FLOOR + 46)
    axes = _axes(x, y, across, up)
    return Chart(title=title, content=join(axes, *marks, below), height=height, width=_WIDTH)


def shared_labels(rows: Iterable[Row], *, value: str, series: str) -> dict[str, str]:
    """Return a label for each series; series whose lines lie over each other share one.

    They do where their values, in the order of the rows, differ by half a per cent at most.
    """
    values: dict[str, list[float]] = {}
    for row in rows:
        values.setdefault(str(row[series]), []).append(row[value])
    groups: list[list[str]] = []
    for name, line in values.items():
        for group in groups:
            if _same_place(values[group[0]], line):
                group.append(name)
                break
        else:
            groups.append([name])
    return {name: "; ".join(group) for group in groups for name in group}


def _same_place(one: Sequence[float], other: Sequence[float]) -> bool:
    return len(one) == len(other) and all(
        math.isclose(a, b, rel_tol=_SAME_PLACE) for a, b in zip(one, other, strict=True)
    )


def _stroke(number: int) -> dict[str, Any]:
    return {
        "fill": "none",
        "stroke": COLORS[number % len(COLORS)],
        "stroke_width": 2,
        "stroke_dasharray": _DASHES[number % len(_DASHES)],
    }


def _legend(names: Sequence[str], lined: set[str], title: str, top: float) -> tuple[Markup, float]:
    """Name each series beside a piece of its line, or beside its dot if it has no line."""
    parts = [tag("text", title, y=top + 12)] if title else []
    top += _LINE * len(parts)
    for number, name in enumerate(names):
        y = top + 8
        sample = tag("line", x1=0, x2=26, y1=y, y2=y, **_stroke(number))
        parts.append(sample if name in lined else marker(number, "13", y))
        parts.append(tag("text", name, x=34, y=y + 4))
        top += _LINE
    return join(*parts), top + 4


def _axes(x: Axis, y: Axis, across: Scale, up: Scale) -> Markup:
    grid: dict[str, Any] = {"stroke": "currentColor", "stroke_opacity": 0.15}
    parts = [
        tag("text", y.title, y=14),
        tag("text", x.title, x=_RIGHT, y=_FLOOR + 36, text_anchor="end"),
    ]
    last = -math.inf
    for tick in across.ticks(5):
        place = across(tick)
        parts.append(tag("line", x1=place, x2=place, y1=_TOP, y2=_FLOOR + 4, **grid))
        if place - last > 40:
            parts.append(tag("text", x.write(tick), x=place, y=_FLOOR + 19, text_anchor="middle",
                             font_size=12))  # fmt: skip
            last = place
    for tick in up.ticks(5):
        parts.append(tag("line", x1=_LEFT, x2=_RIGHT, y1=up(tick), y2=up(tick), **grid))
        parts.append(tag("text", y.write(tick), x=_LEFT - 6, y=up(tick) + 4, text_anchor="end",
                         font_size=12))  # fmt: skip
    return join(*parts)
