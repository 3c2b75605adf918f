"""Charts of the cohorts of a collection: their reports, their true bits, what is unexplained."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from rappor.decoding.estimates_report import CohortRange, ResidualGrid
from rappor.reporting.charts import COLORS, Chart
from rappor.reporting.markup import Markup, join, tag
from rappor.reporting.scale import Scale

_LEFT, _RIGHT = 16.0, 98.0
_TOP, _FLOOR = 40, 190
_CELL: Final = 6
_MARGIN, _HEAD = 46, 22
_NAMED_COHORTS: Final = 8
"""Cohorts that are named below a chart, at most."""

_FULL: Final = 5.0
"""Residual whose square fills its cell."""


class _Column(NamedTuple):
    """What is drawn of some cohorts: least, most, what a pointer shows, what is possible."""

    low: float
    high: float
    told: str
    bounds: tuple[float, ...] = ()


class _Upright(NamedTuple):
    """An upright axis: what it shows and in which unit, what writes its numbers, dashed levels."""

    title: str
    write: Callable[[float], str]
    levels: tuple[float, ...] = ()


def cohort_reports(title: str, cohorts: Sequence[CohortRange], expected: float) -> Chart:
    """Draw the reports of each cohort, or the least and the most of neighbouring ones."""
    ends = ((each.least_reports, each.most_reports) for each in cohorts)
    columns = [_Column(low, high, f"{low:,} to {high:,} reports") for low, high in ends]
    up = _Upright("reports of a cohort", "{:,.0f}".format, (expected,))
    return _ranges(title, cohorts, columns, up)


def cohort_bits(title: str, cohorts: Sequence[CohortRange]) -> Chart:
    """Draw the mean true bits of a report in each cohort, between what honest ones can have."""
    up = _Upright("true bits of a report", "{:g}".format)
    return _ranges(title, cohorts, [_bits(each) for each in cohorts], up)


def _bits(each: CohortRange) -> _Column | None:
    least, most, low, high = each.least_bits, each.most_bits, each.low, each.high
    if least is None or most is None or low is None or high is None:
        return None
    told = f"{least:.3f} to {most:.3f} true bits, {low:.2f} to {high:.2f} can be honest"
    return _Column(least, most, told, (low, high))


def _ranges(
    title: str,
    cohorts: Sequence[CohortRange],
    columns: Sequence[_Column | None],
    axis: _Upright,
) -> Chart:
    """Draw an upright line for each column from its least to its most, and dashed levels."""
    known = [column for column in columns if column is not None]
    ends = [end for column in known for end in (column.low, column.high, *column.bounds)]
    up = Scale.over([*ends, *axis.levels], start=_FLOOR, end=_TOP)
    parts = [tag("text", axis.title, y=14, font_size=12)]
    for tick in up.ticks(4):
        y = up(tick)
        parts.append(tag("line", x1=0, x2="100%", y1=y, y2=y, stroke="currentColor",
                         stroke_opacity=0.15))  # fmt: skip
        parts.append(tag("text", axis.write(tick), y=y - 3, font_size=12))
    parts += [
        tag("line", x1=0, x2="100%", y1=up(level), y2=up(level), stroke="currentColor",
            stroke_dasharray="5 4", stroke_opacity=0.7)
        for level in axis.levels
    ]  # fmt: skip
    step = 2 ** math.ceil(math.log2(len(cohorts) / _NAMED_COHORTS)) if len(cohorts) > 1 else 1
    for number, (cohort, column) in enumerate(zip(cohorts, columns, strict=True)):
        place = _LEFT + (_RIGHT - _LEFT) * (number + 0.5) / len(cohorts)
        x = f"{place:.2f}%"
        if column is not None:
            parts.append(_range(cohort, column, x, up))
        if number % step == 0:
            parts.append(tag("text", f"{cohort.first}", x=x, y=_FLOOR + 20, text_anchor="middle"))
    parts.append(tag("text", "cohort", y=_FLOOR + 20))
    if up.low > 0:
        words = "The upright axis does not begin at 0."
        parts.append(tag("text", words, y=_FLOOR + 40, font_style="italic", font_size=12))
    return Chart(title=title, content=join(*parts), height=_FLOOR + 48)


def _range(cohort: CohortRange, column: _Column, x: str, up: Scale) -> Markup:
    one = cohort.first == cohort.last
    where = f"cohort {cohort.first}" if one else f"cohorts {cohort.first} to {cohort.last}"
    dots = [
        tag("circle", cx=x, cy=up(end), r=2.5, fill=COLORS[0])
        for end in dict.fromkeys((column.low, column.high))
    ]
    stroke = tag("path", d="M-4 0H4", stroke="currentColor", stroke_opacity=0.6)
    return tag(
        "g",
        tag("title", f"{where}: {column.told}"),
        tag("line", x1=x, x2=x, y1=up(column.low), y2=up(column.high), stroke=COLORS[0],
            stroke_width=3),
        *dots,
        *(tag("svg", stroke, x=x, y=up(bound), overflow="visible") for bound in column.bounds),
    )  # fmt: skip


def residuals(title: str, grid: ResidualGrid) -> Chart:
    """Draw a square for each cell, of the residual's size: full above the fit, else hollow."""
    rows, columns = grid.cells.shape
    above, below = (
        "".join(
            _square(abs(value), row, column)
            for (row, column), value in np.ndenumerate(sign * grid.cells)
            if value > 0
        )
        for sign in (1, -1)
    )
    marks = [tag("path", d=above), tag("path", d=below, fill="none", stroke="currentColor")]
    right, bottom = _MARGIN + columns * _CELL, _HEAD + rows * _CELL
    frame = tag("rect", x=_MARGIN, y=_HEAD, width=right - _MARGIN, height=bottom - _HEAD,
                fill="none", stroke="currentColor", stroke_opacity=0.4)  # fmt: skip
    labels = [
        tag("text", "bit", x=_MARGIN, y=14),
        tag("text", "cohort", x=_MARGIN - 4, y=14, text_anchor="end"),
        *(
            tag("text", f"{i * grid.bits}", x=_MARGIN + i * _CELL, y=bottom + 14, font_size=11)
            for i in range(0, columns, 16)
        ),
        *(
            tag("text", f"{j * grid.cohorts}", x=_MARGIN - 4, y=_HEAD + (j + 1) * _CELL,
                font_size=11, text_anchor="end")
            for j in range(0, rows, 16)
        ),
    ]  # fmt: skip
    content = join(frame, *labels, *marks)
    return Chart(title=title, content=content, height=bottom + 22, width=right + 10)


def _square(size: float, row: int, column: int) -> str:
    """Return the way around a square, of a residual's size, in the middle of its cell."""
    side = (_CELL - 1) * math.sqrt(min(size, _FULL) / _FULL)
    x = _MARGIN + (column + 0.5) * _CELL - side / 2
    y = _HEAD + (row + 0.5) * _CELL - side / 2
    return f"M{x:.1f} {y:.1f}h{side:.1f}v{side:.1f}h-{side:.1f}z"
