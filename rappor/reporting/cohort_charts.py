"""Charts of the cohorts of a collection: reports, true bits, and residuals.

A cohort is a group of devices with the same hash functions. Honest devices draw their cohort at
random, so cohorts have similar numbers of reports, and similar mean numbers of true bits (bits
before the noise). A residual is the number of ones at a bit of a cohort minus the number that the
candidates explain, in standard deviations of the noise. Forged reports show as uneven cohorts or as
patterns of the residuals.
"""

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
"""Ends of the horizontal axis, in per cent of the width. The numbers of the vertical axis stand on
the left of the first cohort."""

_TOP, _FLOOR = 40, 190
"""The vertical axis begins and ends at these heights, in units of SVG from the top."""

_NAMES, _NOTE, _HEIGHT = _FLOOR + 20, _FLOOR + 40, _FLOOR + 48
"""Below the bars, the names of the cohorts and a note stand at the first two heights, and the chart
ends at the third, in units of SVG from the top."""

_CELL: Final = 6
"""The cell of one residual is a square with this side, in units of SVG."""

_MARGIN, _HEAD = 46, 22
"""The first cell of residuals begins at this position, in units of SVG from the left and from the
top."""

_LABEL_SIZE: Final = 11
"""Height of the letters of the labels of residuals, in units of SVG."""

_CELLS_PER_LABEL: Final = 16
"""Number of cells from one labelled row or column of residuals to the next. With fewer cells, the
labels of columns would overlap."""

_LABEL_BASELINE: Final = 14
"""Distance from the top of a line of text to the line on which its letters stand, in units of
SVG."""

_BOTTOM_MARGIN, _RIGHT_MARGIN = 22, 10
"""Free space below and to the right of the residuals, in units of SVG. The labels of the columns
stand below the residuals, and the label of the last column may extend to the right."""

_MAX_NAMED_COHORTS: Final = 8
"""Largest number of cohorts that are named below a chart. More names would overlap."""

_MAX_DRAWN_RESIDUAL: Final = 5.0
"""Residual, in standard deviations, whose square fills its cell. Larger residuals have a square of
the same size. A normal number exceeds 5, with either sign, once in 1.7 million."""


class _Bar(NamedTuple):
    """Vertical line of one cohort, or of some neighbouring cohorts.

    Attributes
    ----------
    low, high : smallest and largest number among the cohorts.
    tooltip : text that a pointer shows.
    bounds : smallest and largest value of the drawn number that honest reports can plausibly give
        a cohort; empty if no bounds are drawn.
    """

    low: float
    high: float
    tooltip: str
    bounds: tuple[float, ...] = ()


class _VerticalAxis(NamedTuple):
    """Vertical axis of a chart.

    Attributes
    ----------
    title : title with the unit.
    write : function that formats a number beside the axis.
    levels : numbers at which a dashed line is drawn.
    """

    title: str
    write: Callable[[float], str]
    levels: tuple[float, ...] = ()


def draw_cohort_reports(title: str, cohorts: Sequence[CohortRange], expected: float) -> Chart:
    """Draw the reports of each cohort, or the smallest and largest number of neighbouring cohorts.

    Parameters
    ----------
    title : title of the chart.
    cohorts : the cohorts, in order.
    expected : mean number of reports of a cohort, which is a dashed line.
    """
    ends = ((cohort.least_reports, cohort.most_reports) for cohort in cohorts)
    bars = [_Bar(low, high, f"{low:,} to {high:,} reports") for low, high in ends]
    axis = _VerticalAxis("reports of a cohort", "{:,.0f}".format, (expected,))
    return _draw_bars(title, cohorts, bars, axis)


def draw_cohort_bits(title: str, cohorts: Sequence[CohortRange]) -> Chart:
    """Draw the mean number of true bits of a report in each cohort.

    Short strokes mark the smallest and the largest plausible mean of honest reports.
    """
    axis = _VerticalAxis("true bits of a report", "{:g}".format)
    return _draw_bars(title, cohorts, [_build_bar_of_bits(cohort) for cohort in cohorts], axis)


def draw_residuals(title: str, grid: ResidualGrid) -> Chart:
    """Draw a square for each residual. The area of the square is proportional to the residual.

    A square is full if a bit has more ones than the candidates explain, and hollow if it has fewer.

    Parameters
    ----------
    title : title of the chart.
    grid : residuals in `cells`, (rows, columns) float64. A row stands for `grid.cohorts` cohorts,
        and a column for `grid.bits` bits.
    """
    rows, columns = grid.cells.shape
    # With sign 1 the positive residuals are drawn, and with sign -1 the negative ones.
    full_squares, hollow_squares = (
        "".join(
            _draw_square(abs(value), row, column)
            for (row, column), value in np.ndenumerate(sign * grid.cells)
            if value > 0
        )
        for sign in (1, -1)
    )
    marks = [
        tag("path", d=full_squares),
        tag("path", d=hollow_squares, fill="none", stroke="currentColor"),
    ]
    right, bottom = _MARGIN + columns * _CELL, _HEAD + rows * _CELL
    frame = tag("rect", x=_MARGIN, y=_HEAD, width=right - _MARGIN, height=bottom - _HEAD,
                fill="none", stroke="currentColor", stroke_opacity=0.4)  # fmt: skip
    labels = [
        tag("text", "bit", x=_MARGIN, y=_LABEL_BASELINE),
        tag("text", "cohort", x=_MARGIN - 4, y=_LABEL_BASELINE, text_anchor="end"),
        *(
            tag("text", f"{i * grid.bits}", x=_MARGIN + i * _CELL, y=bottom + _LABEL_BASELINE,
                font_size=_LABEL_SIZE)
            for i in range(0, columns, _CELLS_PER_LABEL)
        ),
        *(
            tag("text", f"{j * grid.cohorts}", x=_MARGIN - 4, y=_HEAD + (j + 1) * _CELL,
                font_size=_LABEL_SIZE, text_anchor="end")
            for j in range(0, rows, _CELLS_PER_LABEL)
        ),
    ]  # fmt: skip
    content = join(frame, *labels, *marks)
    return Chart(
        title=title,
        content=content,
        height=bottom + _BOTTOM_MARGIN,
        width=right + _RIGHT_MARGIN,
    )


def _build_bar_of_bits(cohort: CohortRange) -> _Bar | None:
    """Return the bar of a cohort's true bits, or None if the cohort has no reports."""
    least, most = cohort.least_bits, cohort.most_bits
    # Limits of the mean number of true bits if all devices of the cohort are honest.
    lower_limit, upper_limit = cohort.low, cohort.high
    if least is None or most is None or lower_limit is None or upper_limit is None:
        return None
    tooltip = (
        f"{least:.3f} to {most:.3f} true bits; "
        f"honest reports have {lower_limit:.2f} to {upper_limit:.2f}"
    )
    return _Bar(least, most, tooltip, (lower_limit, upper_limit))


def _draw_bars(
    title: str, cohorts: Sequence[CohortRange], bars: Sequence[_Bar | None], axis: _VerticalAxis
) -> Chart:
    """Draw a vertical line for each bar from its smallest to its largest number."""
    existing_bars = [bar for bar in bars if bar is not None]
    ends = [end for bar in existing_bars for end in (bar.low, bar.high, *bar.bounds)]
    # The scale maps a number of the vertical axis to a height in units of SVG.
    scale = Scale.over([*ends, *axis.levels], start=_FLOOR, end=_TOP)
    parts = [tag("text", axis.title, y=_LABEL_BASELINE, font_size=12)]
    for tick in scale.ticks(4):
        height = scale(tick)
        parts.append(tag("line", x1=0, x2="100%", y1=height, y2=height, stroke="currentColor",
                         stroke_opacity=0.15))  # fmt: skip
        parts.append(tag("text", axis.write(tick), y=height - 3, font_size=12))
    parts += [
        tag("line", x1=0, x2="100%", y1=scale(level), y2=scale(level), stroke="currentColor",
            stroke_dasharray="5 4", stroke_opacity=0.7)
        for level in axis.levels
    ]  # fmt: skip
    # Every cohort is named, or every second, fourth, eighth and so on. The number of cohorts is
    # often a power of 2, so each name then stands for equally many cohorts.
    step = 1
    while len(cohorts) > step * _MAX_NAMED_COHORTS:
        step *= 2
    for number, (cohort, bar) in enumerate(zip(cohorts, bars, strict=True)):
        position = _LEFT + (_RIGHT - _LEFT) * (number + 0.5) / len(cohorts)
        x = f"{position:.2f}%"
        if bar is not None:
            parts.append(_draw_bar(cohort, bar, x, scale))
        if number % step == 0:
            parts.append(tag("text", f"{cohort.first}", x=x, y=_NAMES, text_anchor="middle"))
    parts.append(tag("text", "cohort", y=_NAMES))
    if scale.low > 0:
        words = "The upright axis does not begin at 0."
        parts.append(tag("text", words, y=_NOTE, font_style="italic", font_size=12))
    return Chart(title=title, content=join(*parts), height=_HEIGHT)


def _draw_bar(cohort: CohortRange, bar: _Bar, x: str, scale: Scale) -> Markup:
    """Draw the line of a bar, its ends, and strokes at its bounds."""
    name = f"cohorts {cohort.first} to {cohort.last}"
    if cohort.first == cohort.last:
        name = f"cohort {cohort.first}"
    ends = [
        tag("circle", cx=x, cy=scale(end), r=2.5, fill=COLORS[0])
        for end in dict.fromkeys((bar.low, bar.high))
    ]
    # The position of a bar is a percentage of the width of the chart. A path has no percentages, so
    # it stands in an `svg` element of its own, whose origin is at the position.
    stroke = tag("path", d="M-4 0H4", stroke="currentColor", stroke_opacity=0.6)
    return tag(
        "g",
        tag("title", f"{name}: {bar.tooltip}"),
        tag("line", x1=x, x2=x, y1=scale(bar.low), y2=scale(bar.high), stroke=COLORS[0],
            stroke_width=3),
        *ends,
        *(tag("svg", stroke, x=x, y=scale(bound), overflow="visible") for bound in bar.bounds),
    )  # fmt: skip


def _draw_square(size: float, row: int, column: int) -> str:
    """Return the path of a square in the middle of a cell. Its area is proportional to `size`."""
    side = (_CELL - 1) * math.sqrt(min(size, _MAX_DRAWN_RESIDUAL) / _MAX_DRAWN_RESIDUAL)
    x = _MARGIN + (column + 0.5) * _CELL - side / 2
    y = _HEAD + (row + 0.5) * _CELL - side / 2
    return f"M{x:.1f} {y:.1f}h{side:.1f}v{side:.1f}h-{side:.1f}z"
