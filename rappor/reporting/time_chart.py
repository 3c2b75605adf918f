"""How the share of one string runs: a line through dots, with intervals, gaps and changes."""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rappor.comparison.comparison import Comparison, Sample
from rappor.comparison.per_sample import SampleEstimates
from rappor.reporting.charts import COLORS, Chart
from rappor.reporting.dots import marker
from rappor.reporting.markup import Markup, join, tag
from rappor.reporting.numbers import (
    format_change,
    format_interval,
    format_share,
    format_short_percent,
)
from rappor.reporting.scale import Scale

_LEFT, _RIGHT = 16.0, 97.0
"""Per cent of the width: the shares beside the lines stand left of the first dot."""

_TOP, _FLOOR = 22, 170
_MOST: Final = (-0.5, 1.5)
_DATES: Final = 5
"""Periods that are named below a panel, at most; each has a tick."""

_FAR: Final = 3
"""The axis begins at 0 unless all that is drawn is this many times its own height away."""


def time_panel(panel: Comparison, column: int, title: str) -> Chart:
    """Draw how the share of one string runs, with its intervals, gaps and changes."""
    periods = panel.samples
    days = [period.first for period in periods if period.first is not None]
    across = Scale.over([day.toordinal() for day in days], start=_LEFT, end=_RIGHT)
    places = [across(day.toordinal()) for day in days]
    shares = _shares(panel, column)
    changed = {each.name for _, each in panel.params_changes}
    borders = [
        _border(period, place)
        for period, place in zip(periods, places, strict=True)
        if period.name in changed
    ]
    line = panel.per_sample if panel.smoothed is None else panel.smoothed
    marks = [_mark(panel, number, column, place, shares) for number, place in enumerate(places)]
    content = join(
        _grid(shares), _dates(days, places), *borders,
        *_run(line, column, places, shares), *marks,
    )  # fmt: skip
    return Chart(title=title, content=content, height=_FLOOR + (66 if shares.low > 0 else 48))


def _shares(panel: Comparison, column: int) -> Scale:
    least, most = _MOST
    both = [panel.per_sample] if panel.smoothed is None else [panel.per_sample, panel.smoothed]
    ends = [
        min(max(end, least), most)
        for levels in both
        for table in (levels.share, levels.ci_low, levels.ci_high)
        for end in table[:, column].tolist()
        if math.isfinite(end)
    ]
    return axis(ends, start=_FLOOR, end=_TOP)


def axis(ends: Sequence[float], *, start: float, end: float) -> Scale:
    """Return the scale of shares: from 0 on, unless all of them are far from it."""
    far = bool(ends) and min(ends) > _FAR * (max(ends) - min(ends)) > 0
    return Scale.over(ends if far else [0.0, *ends], start=start, end=end)


def _grid(shares: Scale) -> Markup:
    """Draw a line for each share, which stands above it; say where 0 is not drawn."""
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


def _dates(days: Sequence[datetime.date], places: Sequence[float]) -> Markup:
    """Draw a tick at each period, and name the first day of some, with each new year."""
    step = math.ceil(len(days) / _DATES)
    parts, year = [], None
    for number, (day, place) in enumerate(zip(days, places, strict=True)):
        x = f"{place:g}%"
        named = number % step == 0
        parts.append(tag("line", x1=x, x2=x, y1=_FLOOR, y2=_FLOOR + (7 if named else 4),
                         stroke="currentColor"))  # fmt: skip
        if named:
            anchor = "end" if place > 94 else "middle"
            parts.append(tag("text", f"{day:%b} {day.day}", x=x, y=_FLOOR + 22,
                             text_anchor=anchor, font_size=12))  # fmt: skip
        if named and day.year != year:
            year = day.year
            parts.append(tag("text", f"{year}", x=x, y=_FLOOR + 38, text_anchor=anchor,
                             font_size=12))  # fmt: skip
    return join(*parts)


def _border(period: Sample, place: float) -> Markup:
    """Mark the first period of other parameters."""
    line = tag("line", x1=f"{place:g}%", x2=f"{place:g}%", y1=4, y2=_FLOOR, stroke="currentColor",
               stroke_dasharray="2 3")  # fmt: skip
    return tag("g", tag("title", f"other parameters from {period.name} on"), line)


def _run(
    levels: SampleEstimates, column: int, places: Sequence[float], shares: Scale
) -> list[Markup]:
    """Draw a line and the band of its intervals, interrupted where there is no estimate."""
    table = [levels.ci_low[:, column], levels.share[:, column], levels.ci_high[:, column]]
    ends = zip(*(part.tolist() for part in table), strict=True)
    known = [each if all(map(math.isfinite, each)) else None for each in ends]
    return ribbon(known, places, shares, height=_FLOOR + 5)


def ribbon(
    known: Sequence[tuple[float, float, float] | None],
    places: Sequence[float],
    shares: Scale,
    *,
    height: float,
) -> list[Markup]:
    """Draw a line through (low, share, high) at places, and a band; None interrupts both."""
    drawn = []
    for (x1, one), (x2, two) in itertools.pairwise(zip(places, known, strict=True)):
        if one is None or two is None:
            continue
        low1, y1, high1 = map(shares, one)
        low2, y2, high2 = map(shares, two)
        band = f"0,{low1:g} 1,{low2:g} 1,{high2:g} 0,{high1:g}"
        drawn += [
            tag("svg", tag("polygon", points=band, fill=COLORS[0], fill_opacity=0.18),
                x=f"{x1:g}%", width=f"{x2 - x1:.4g}%", height=height,
                viewBox=f"0 0 1 {height:g}", preserveAspectRatio="none"),
            tag("line", x1=f"{x1:g}%", x2=f"{x2:g}%", y1=y1, y2=y2, stroke=COLORS[0],
                stroke_width=2, stroke_linecap="round"),
        ]  # fmt: skip
    return drawn


def _mark(panel: Comparison, number: int, column: int, place: float, shares: Scale) -> Markup:
    """Draw a dot with its interval, or a cross on the axis where there are no reports."""
    period, levels, x = panel.samples[number], panel.per_sample, f"{place:g}%"
    if not period.reports:
        cross = tag("path", d="M-4 -4L4 4M-4 4L4 -4", stroke="currentColor")
        return tag("g", tag("title", f"{period.name}: no reports"),
                   tag("svg", cross, x=x, y=_FLOOR, overflow="visible"))  # fmt: skip
    share, error, low, high = (
        float(each[number, column])
        for each in (levels.share, levels.std_error, levels.ci_low, levels.ci_high)
    )
    told = f"{period.name}: {format_share(share, error)}, {format_interval(low, high, error)}"
    if not math.isfinite(low + high):
        return tag("g", tag("title", told))
    step = _step(panel, number, column)
    if step is not None:
        told += f"; step of {format_change(step['estimate'], step['std_error'])} points"
    parts = [
        tag("title", told),
        tag("line", x1=x, x2=x, y1=shares(low), y2=shares(high), stroke=COLORS[0],
            stroke_opacity=0.6, stroke_width=2),
        marker(0, x, shares(share), full=bool(levels.detected[number, column])),
    ]  # fmt: skip
    if step is not None:
        rises = step["estimate"] > 0
        triangle = tag("path", d="M-5 4L0 -5L5 4Z" if rises else "M-5 -5L0 4L5 -5Z",
                       fill="currentColor" if rises else "none", stroke="currentColor")  # fmt: skip
        parts.append(tag("svg", triangle, x=x, y=_TOP - 13, overflow="visible"))
    return tag("g", *parts)


def _step(panel: Comparison, number: int, column: int) -> Mapping[str, Any] | None:
    """Return the significant step to a period, None where there is none."""
    for each in panel.contrasts:
        if each.kind == "step" and each.weights[number] > 0 and each.changed[column]:
            return each.row(column)
    return None
