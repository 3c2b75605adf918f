"""Charts that a page draws itself: inline SVG that needs no style sheet and no script.

Every colour is `currentColor`, which follows the reader's light or dark mode, so nothing is told by
a hue: detected dots are full and undetected ones hollow, positive squares full and negative ones
hollow. Every mark has a title with its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rappor.decoding.estimates import adjusted_interval
from rappor.decoding.report import CohortRange, Mass, ResidualGrid
from rappor.reporting.markup import Markup, join, shorten, tag
from rappor.reporting.numbers import percent, points
from rappor.reporting.scale import Scale

WIDTH: Final = 440
"""Units of a drawing from left to right."""

_NAMES: Final = 145
"""Units left of a plot, for names."""

_NAME_COLUMNS: Final = 19
"""Letters of a name that fit there; the table has more of them."""

_NUMBERS: Final = 62
_ROW: Final = 20
_AXIS: Final = 34
_TALL: Final = 180
_CELL: Final = 6
_FULL: Final = 5.0
"""Residual whose square fills its cell."""

_MOST_SHARE: Final = (-0.5, 1.5)
"""Shares outside are no answer: intervals end here, with an arrow."""

Row = Mapping[str, Any]

_Write = Callable[[float, int], str]
"""Writes a share, or a difference of shares, with a number of digits."""


def shares(rows: Sequence[Row], *, name: str, caption: str) -> Markup:
    """Draw candidates with their intervals, detected ones first, under a heading each.

    Detected rows have the adjusted interval.
    """
    detected = [row for row in rows if row["detected"]]
    others = [row for row in rows if not row["detected"]]
    ends = [end for row in rows for end in interval(row) if end is not None]
    marks = []
    top = 0.0
    scale = _share_scale([*ends, *(row["proportion"] for row in rows)])
    for heading, some in (("detected", detected), ("not detected", others)):
        if some:
            marks.append(_heading(heading, top + 14))
            top += _ROW
        for row in some:
            low, high = interval(row)
            marks.append(
                _dot(
                    row["candidate"], row["proportion"], low, high, scale, top, full=row["detected"]
                )
            )
            top += _ROW
    return svg(join(_share_axis(scale, top), *marks), top + _AXIS, name=name, title=caption)


def masses(rows: Sequence[Mass], *, name: str, caption: str) -> Markup:
    """Draw what is detected and what is left, with their intervals."""
    scale = _share_scale([end for row in rows for end in (row.low, row.high)])
    marks = [
        _dot(row.name, row.proportion, row.low, row.high, scale, _ROW * place)
        for place, row in enumerate(rows)
    ]
    top = _ROW * len(rows)
    return svg(join(_share_axis(scale, top), *marks), top + _AXIS, name=name, title=caption)


def named_dots(
    rows: Sequence[tuple[str, float, float | None, float | None, bool]], *, name: str, caption: str
) -> Markup:
    """Draw a share with its interval for each name; dots are full where the last entry says so."""
    ends = [end for _, share, low, high, _ in rows for end in (share, low, high) if end is not None]
    scale = _share_scale(ends)
    marks = [
        _dot(label, share, low, high, scale, _ROW * place, full=full)
        for place, (label, share, low, high, full) in enumerate(rows)
    ]
    top = _ROW * len(rows)
    return svg(join(_share_axis(scale, top), *marks), top + _AXIS, name=name, title=caption)


def differences(
    rows: Sequence[tuple[str, float, float | None, float | None, bool]], *, name: str, caption: str
) -> Markup:
    """Draw a difference of shares in points for each name; full dots where it is a change."""
    ends = [end for _, value, low, high, _ in rows for end in (value, low, high) if end is not None]
    scale = _share_scale(ends)
    marks = [
        _dot(label, value, low, high, scale, _ROW * place, full=full, write=_points)
        for place, (label, value, low, high, full) in enumerate(rows)
    ]
    top = _ROW * len(rows)
    axis = _share_axis(scale, top, write=_points)
    return svg(join(axis, *marks), top + _AXIS, name=name, title=caption)


def _points(difference: float, digits: int) -> str:
    return points(difference, digits) if difference else "0"


def interval(row: Row) -> tuple[float | None, float | None]:
    """Return the interval that is shown of a row: the adjusted one where it is detected."""
    return adjusted_interval(row) if row["detected"] else (row["ci_low"], row["ci_high"])


def residuals(grid: ResidualGrid, *, name: str, caption: str) -> Markup:
    """Draw a square for each cell, of the residual's size: full above the fit, else hollow."""
    rows, columns = grid.cells.shape
    left, top = 46, 22
    marks = [
        _square(float(grid.cells[row, column]), row, column, grid, left, top)
        for row in range(rows)
        for column in range(columns)
        if not math.isnan(grid.cells[row, column])
    ]
    right, bottom = left + columns * _CELL, top + rows * _CELL
    frame = tag(
        "rect", x=left, y=top, width=right - left, height=bottom - top, fill="none",
        stroke="currentColor", stroke_opacity=0.4,
    )  # fmt: skip
    labels = [
        tag("text", "bit", x=left, y=14),
        tag("text", "cohort", x=left - 4, y=14, text_anchor="end"),
        *(
            tag("text", f"{i * grid.bits}", x=left + i * _CELL, y=bottom + 14, font_size=11)
            for i in range(0, columns, 16)
        ),
        *(
            tag("text", f"{j * grid.cohorts}", x=left - 4, y=top + (j + 1) * _CELL, font_size=11,
                text_anchor="end")
            for j in range(0, rows, 16)
        ),
    ]  # fmt: skip
    return svg(
        join(frame, *labels, *marks), bottom + 22, name=name, title=caption,
        width=max(right + 10, WIDTH),
    )  # fmt: skip


def _square(
    value: float, row: int, column: int, grid: ResidualGrid, left: float, top: float
) -> Markup:
    side = (_CELL - 1) * math.sqrt(min(abs(value), _FULL) / _FULL)
    x = left + (column + 0.5) * _CELL - side / 2
    y = top + (row + 0.5) * _CELL - side / 2
    full = value > 0
    where = f"{_span('cohort', row, grid.cohorts)}, {_span('bit', column, grid.bits)}"
    return tag(
        "rect", tag("title", f"{where}: {value:+.2f}"), x=round(x, 2), y=round(y, 2),
        width=round(side, 2), height=round(side, 2), fill="currentColor" if full else "none",
        stroke=None if full else "currentColor",
    )  # fmt: skip


def _span(word: str, place: int, size: int) -> str:
    first = place * size
    return f"{word} {first}" if size == 1 else f"{word}s {first} to {first + size - 1}"


def cohort_reports(
    cohorts: Sequence[CohortRange], expected: float, *, name: str, caption: str
) -> Markup:
    """Draw the reports of each cohort, or the least and the most of neighbouring ones."""
    ends = [float(end) for each in cohorts for end in (each.least_reports, each.most_reports)]
    scale = Scale.over([*ends, expected], start=_TALL, end=10)
    marks = [
        _bar(each, float(each.least_reports), float(each.most_reports), scale, place, len(cohorts),
             f"{each.least_reports:,} to {each.most_reports:,} reports"
             if each.least_reports < each.most_reports else f"{each.least_reports:,} reports")
        for place, each in enumerate(cohorts)
    ]  # fmt: skip
    line = _level(scale(expected))
    return svg(
        join(_upright_axis(scale, cohorts, "{:,.0f}"), line, *marks), _TALL + _AXIS, name=name,
        title=caption,
    )  # fmt: skip


def cohort_bits(cohorts: Sequence[CohortRange], *, name: str, caption: str) -> Markup:
    """Draw the mean true bits of a report in each cohort, between what honest ones can have."""
    known = [
        (place, each.least_bits, each.most_bits, each.low, each.high)
        for place, each in enumerate(cohorts)
        if each.least_bits is not None
        and each.most_bits is not None
        and each.low is not None
        and each.high is not None
    ]
    scale = Scale.over([end for _, *ends in known for end in ends], start=_TALL, end=10)
    marks = []
    for place, least, most, low, high in known:
        between = f"{low:.2f} to {high:.2f} can be honest"
        shown = f"{least:.3f}" if least == most else f"{least:.3f} to {most:.3f}"
        text = f"{shown} true bits, {between}"
        marks.append(_bar(cohorts[place], least, most, scale, place, len(cohorts), text))
        marks += [_limit(scale(end), place, len(cohorts)) for end in (low, high)]
    return svg(
        join(_upright_axis(scale, cohorts, "{:g}"), *marks), _TALL + _AXIS, name=name, title=caption
    )


def _bar(
    cohort: CohortRange,
    low: float,
    high: float,
    scale: Scale,
    place: int,
    n: int,
    text: str,
) -> Markup:
    x = _column(place, n)
    where = (
        f"cohort {cohort.first}"
        if cohort.first == cohort.last
        else f"cohorts {cohort.first} to {cohort.last}"
    )
    line = tag("line", x1=x, x2=x, y1=scale(low), y2=scale(high), stroke_width=3)
    dots = [tag("circle", cx=x, cy=scale(end), r=2.5, fill="currentColor") for end in {low, high}]
    return tag("g", tag("title", f"{where}: {text}"), line, *dots, stroke="currentColor")


def _limit(y: float, place: int, n: int) -> Markup:
    x = _column(place, n)
    return tag(
        "line", x1=x - 4, x2=x + 4, y1=y, y2=y, stroke="currentColor", stroke_opacity=0.6
    )  # fmt: skip


def _level(y: float) -> Markup:
    return tag(
        "line", x1=60, x2=WIDTH - 10, y1=y, y2=y, stroke="currentColor",
        stroke_dasharray="5 4", stroke_opacity=0.7,
    )  # fmt: skip


def _column(place: int, n: int) -> float:
    return round(66 + (WIDTH - 82) * (place + 0.5) / n, 2)


def upright_ticks(scale: Scale, *, left: float, digits: int) -> Markup:
    """Draw shares beside an upright axis, with a line across for each."""
    return join(
        *(
            join(
                _grid_line(x1=left, x2=WIDTH - 4, y1=scale(tick), y2=scale(tick)),
                tag("text", percent(tick, digits), x=left - 6, y=scale(tick) + 4, text_anchor="end",
                    font_size=11),
            )
            for tick in scale.ticks(4)
        )
    )  # fmt: skip


def _upright_axis(scale: Scale, cohorts: Sequence[CohortRange], form: str) -> Markup:
    parts = []
    for tick in scale.ticks(5):
        y = scale(tick)
        parts.append(_grid_line(x1=60, x2=WIDTH - 10, y1=y, y2=y))
        parts.append(tag("text", form.format(tick), x=54, y=y + 4, text_anchor="end"))
    n = len(cohorts)
    parts += [
        tag("text", f"{cohorts[place].first}", x=_column(place, n), y=_TALL + 18,
            text_anchor="middle")
        for place in range(0, n, max(1, math.ceil(n / 6)))
    ]  # fmt: skip
    parts.append(tag("text", "cohort", x=54, y=_TALL + 18, text_anchor="end"))
    return join(*parts)


def _share_scale(values: Sequence[float]) -> Scale:
    least, most = _MOST_SHARE
    return Scale.over(
        [0.0, *(min(max(value, least), most) for value in values)],
        start=_NAMES + 10,
        end=WIDTH - _NUMBERS - 10,
    )


def _share_axis(scale: Scale, height: float, *, write: _Write = percent) -> Markup:
    parts = []
    ticks = scale.ticks(5)
    digits = max(0, -math.floor(math.log10(100 * (ticks[1] - ticks[0])) + 1e-9))
    for tick in ticks:
        x = scale(tick)
        parts.append(_grid_line(x1=x, x2=x, y1=0, y2=height))
        parts.append(
            tag("text", write(tick, digits), x=x, y=height + 18, text_anchor="middle")
        )  # fmt: skip
    zero = scale(0.0)
    parts.append(tag("line", x1=zero, x2=zero, y1=0, y2=height, stroke="currentColor"))
    return join(*parts)


def _grid_line(**ends: float) -> Markup:
    return tag("line", stroke="currentColor", stroke_opacity=0.2, **ends)


def _heading(text: str, y: float) -> Markup:
    return tag("text", text, x=_NAMES, y=y, text_anchor="end", font_weight="bold")


def _dot(
    name: str,
    value: float,
    low: float | None,
    high: float | None,
    scale: Scale,
    top: float,
    *,
    full: bool = True,
    write: _Write = percent,
) -> Markup:
    """Draw a name, its interval, its dot and its number."""
    y = top + _ROW / 2
    least, most = _MOST_SHARE
    parts = [
        tag("title", f"{shorten(name, 60)}: {write(value, 3)}, {_between(low, high, write)}"),
        tag("text", shorten(name, _NAME_COLUMNS), x=_NAMES, y=y + 4, text_anchor="end",
            direction="ltr", unicode_bidi="isolate"),
        tag("text", write(value, 3), x=WIDTH - 2, y=y + 4, text_anchor="end"),
        tag("line", x1=scale(max(least if low is None else low, least)),
            x2=scale(min(most if high is None else high, most)), y1=y, y2=y,
            stroke="currentColor", stroke_width=2, stroke_dasharray=None if full else "3 3"),
        tag("circle", cx=scale(min(max(value, least), most)), cy=y, r=3.5,
            fill="currentColor" if full else "Canvas", stroke="currentColor", stroke_width=1.5),
    ]  # fmt: skip
    return tag("g", *parts)


def _between(low: float | None, high: float | None, write: _Write) -> str:
    if low is None or high is None:
        return "interval unknown"
    return f"{write(low, 3)} .. {write(high, 3)}"


def svg(
    content: Markup,
    height: float,
    *,
    name: str,
    title: str,
    width: float = WIDTH,
) -> Markup:
    """Return a picture that assistive technology reads as one, with its title."""
    return tag(
        "svg", tag("title", title, id=f"{name}-title"), content,
        xmlns="http://www.w3.org/2000/svg", role="img", aria_labelledby=f"{name}-title",
        width=width, height=height, viewBox=f"0 0 {width:g} {height:g}", fill="currentColor",
        font_family="system-ui, sans-serif", font_size=13,
    )  # fmt: skip
