"""Time charts: the share of one string over periods, with intervals, gaps and changes.

A period is a day, a week or a month of a trend. The marks of a chart:

    dot                     share of one period; full if the period detects the string
    bar over a dot, band    confidence intervals
    line                    shares of neighbouring periods; interrupted at a period without reports
    cross on the axis       a period without reports
    triangle above a dot    a significant step from the period before; full for a rise
    dotted vertical line    the first period with other parameters
"""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rappor.comparison.comparison import Comparison, Sample
from rappor.comparison.per_sample import SampleEstimates
from rappor.reporting.charts import COLORS, Chart
from rappor.reporting.dots import draw_marker
from rappor.reporting.markup import Markup, join, tag
from rappor.reporting.numbers import (
    format_change,
    format_interval,
    format_share,
    format_short_percent,
)
from rappor.reporting.scale import Scale

_LEFT, _RIGHT = 16.0, 97.0
"""Ends of the horizontal axis, in per cent of the width. The numbers of the shares stand on the
left of the first dot."""

_TOP, _FLOOR = 22, 170
"""Ends of the vertical axis, in units of SVG from the top."""

_WIDEST: Final = (-0.5, 1.5)
"""Shares at which intervals are cut, as proportions. No share is below 0 or above 1, and a wider
axis would press all dots together."""

_DATES: Final = 5
"""Largest number of periods that are named below a chart. More names would overlap. Every period
has a tick."""

_FAR: Final = 3
"""Ratio of the smallest share to the difference of the largest and the smallest share above which
the axis does not begin at 0. A smaller ratio exaggerates changes, a larger ratio hides them."""


def draw_course(comparison: Comparison, column: int, title: str) -> Chart:
    """Draw the share of one candidate over all periods.

    Parameters
    ----------
    comparison : the comparison of periods.
    column : index of the candidate.
    title : title of the chart.
    """
    periods = comparison.samples
    days = [period.first for period in periods if period.first is not None]
    across = Scale.over([day.toordinal() for day in days], start=_LEFT, end=_RIGHT)
    positions = [across(day.toordinal()) for day in days]
    shares = _scale_candidate(comparison, column)
    with_new_params = {after.name for _, after in comparison.params_changes}
    borders = [
        _draw_border(period, position)
        for period, position in zip(periods, positions, strict=True)
        if period.name in with_new_params
    ]
    line = comparison.per_sample if comparison.smoothed is None else comparison.smoothed
    marks = [
        _draw_period(comparison, number, column, position, shares)
        for number, position in enumerate(positions)
    ]
    content = join(
        _draw_grid(shares), _draw_dates(days, positions), *borders,
        *_draw_line(line, column, positions, shares), *marks,
    )  # fmt: skip
    return Chart(title=title, content=content, height=_FLOOR + (66 if shares.low > 0 else 48))


def scale_shares(ends: Sequence[float], *, start: float, end: float) -> Scale:
    """Return the scale of shares. It begins at 0 unless all shares are far from 0 (`_FAR`)."""
    far = bool(ends) and min(ends) > _FAR * (max(ends) - min(ends)) > 0
    return Scale.over(ends if far else [0.0, *ends], start=start, end=end)


def draw_band(
    intervals: Sequence[tuple[float, float, float] | None],
    positions: Sequence[float],
    shares: Scale,
    *,
    height: float,
) -> list[Markup]:
    """Draw a line through shares, and the band of their intervals.

    Parameters
    ----------
    intervals : (low, share, high) of each period. None interrupts line and band.
    positions : position of each period, in per cent of the width.
    shares : the vertical scale.
    height : height of the drawing, in units of SVG.
    """
    parts = []
    for (x1, one), (x2, two) in itertools.pairwise(zip(positions, intervals, strict=True)):
        if one is None or two is None:
            continue
        low1, y1, high1 = map(shares, one)
        low2, y2, high2 = map(shares, two)
        band = f"0,{low1:g} 1,{low2:g} 1,{high2:g} 0,{high1:g}"
        # SVG allows no per cents in the points of a polygon. A drawing of width 1 is stretched.
        parts += [
            tag("svg", tag("polygon", points=band, fill=COLORS[0], fill_opacity=0.18),
                x=f"{x1:g}%", width=f"{x2 - x1:.4g}%", height=height,
                viewBox=f"0 0 1 {height:g}", preserveAspectRatio="none"),
            tag("line", x1=f"{x1:g}%", x2=f"{x2:g}%", y1=y1, y2=y2, stroke=COLORS[0],
                stroke_width=2, stroke_linecap="round"),
        ]  # fmt: skip
    return parts


def _scale_candidate(comparison: Comparison, column: int) -> Scale:
    """Return the vertical scale of all estimates of a candidate and of their intervals."""
    least, most = _WIDEST
    both = (comparison.per_sample, comparison.smoothed)
    ends = [
        min(max(end, least), most)
        for estimates in both
        if estimates is not None
        for table in (estimates.share, estimates.ci_low, estimates.ci_high)
        for end in table[:, column].tolist()
        if math.isfinite(end)
    ]
    return scale_shares(ends, start=_FLOOR, end=_TOP)


def _draw_grid(shares: Scale) -> Markup:
    """Draw a line for each round share, and a sentence if the axis does not begin at 0."""
    parts = []
    for tick in shares.ticks(4):
        y = shares(tick)
        parts.append(tag("line", x1=0, x2="100%", y1=y, y2=y, stroke="currentColor",
                         stroke_opacity=0.8 if tick == 0 else 0.15))  # fmt: skip
        parts.append(tag("text", format_short_percent(tick), y=y - 3, font_size=12))
    if shares.low > 0:
        words = "The axis does not begin at 0."
        parts.append(tag("text", words, y=_FLOOR + 58, font_style="italic", font_size=12))
    return join(*parts)


def _draw_dates(days: Sequence[datetime.date], positions: Sequence[float]) -> Markup:
    """Draw a tick at each period. Write the first day of some periods, and each new year."""
    step = math.ceil(len(days) / _DATES)
    parts, year = [], None
    for number, (day, position) in enumerate(zip(days, positions, strict=True)):
        x = f"{position:g}%"
        has_name = number % step == 0
        parts.append(tag("line", x1=x, x2=x, y1=_FLOOR, y2=_FLOOR + (7 if has_name else 4),
                         stroke="currentColor"))  # fmt: skip
        if not has_name:
            continue
        anchor = "end" if position > 94 else "middle"
        parts.append(tag("text", f"{day:%b} {day.day}", x=x, y=_FLOOR + 22, text_anchor=anchor,
                         font_size=12))  # fmt: skip
        if day.year != year:
            year = day.year
            parts.append(tag("text", f"{year}", x=x, y=_FLOOR + 38, text_anchor=anchor,
                             font_size=12))  # fmt: skip
    return join(*parts)


def _draw_border(period: Sample, position: float) -> Markup:
    """Draw a vertical line at the first period with other parameters."""
    x = f"{position:g}%"
    line = tag("line", x1=x, x2=x, y1=4, y2=_FLOOR, stroke="currentColor", stroke_dasharray="2 3")
    return tag("g", tag("title", f"other parameters from {period.name} on"), line)


def _draw_line(
    estimates: SampleEstimates, column: int, positions: Sequence[float], shares: Scale
) -> list[Markup]:
    """Draw the line and the band of a candidate, interrupted at periods without an estimate."""
    table = [estimates.ci_low[:, column], estimates.share[:, column], estimates.ci_high[:, column]]
    rows = zip(*(part.tolist() for part in table), strict=True)
    intervals = [row if all(map(math.isfinite, row)) else None for row in rows]
    return draw_band(intervals, positions, shares, height=_FLOOR + 5)


def _draw_period(
    comparison: Comparison, number: int, column: int, position: float, shares: Scale
) -> Markup:
    """Draw the dot of a period with its interval, or a cross if the period has no reports."""
    period, estimates, x = comparison.samples[number], comparison.per_sample, f"{position:g}%"
    if not period.reports:
        cross = tag("path", d="M-4 -4L4 4M-4 4L4 -4", stroke="currentColor")
        return tag("g", tag("title", f"{period.name}: no reports"),
                   tag("svg", cross, x=x, y=_FLOOR, overflow="visible"))  # fmt: skip
    share, error, low, high = (
        float(table[number, column])
        for table in (estimates.share, estimates.std_error, estimates.ci_low, estimates.ci_high)
    )
    tooltip = f"{period.name}: {format_share(share, error)}, {format_interval(low, high, error)}"
    if not math.isfinite(low + high):
        # Case: the period has reports, but none contains information about this candidate.
        return tag("g", tag("title", tooltip))
    step = _find_step(comparison, number, column)
    if step is not None:
        tooltip += f"; step of {format_change(step['estimate'], step['std_error'])} points"
    parts = [
        tag("title", tooltip),
        tag("line", x1=x, x2=x, y1=shares(low), y2=shares(high), stroke=COLORS[0],
            stroke_opacity=0.6, stroke_width=2),
        draw_marker(0, x, shares(share), full=bool(estimates.detected[number, column])),
    ]  # fmt: skip
    if step is not None:
        rises = step["estimate"] > 0
        triangle = tag("path", d="M-5 4L0 -5L5 4Z" if rises else "M-5 -5L0 4L5 -5Z",
                       fill="currentColor" if rises else "none", stroke="currentColor")  # fmt: skip
        parts.append(tag("svg", triangle, x=x, y=_TOP - 13, overflow="visible"))
    return tag("g", *parts)


def _find_step(comparison: Comparison, number: int, column: int) -> Mapping[str, Any] | None:
    """Return the significant step to a period, or None."""
    for contrast in comparison.contrasts:
        if contrast.kind == "step" and contrast.weights[number] > 0 and contrast.changed[column]:
            return contrast.row(column)
    return None
