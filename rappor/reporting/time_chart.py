"""Time charts: the share of one string over periods, with intervals, gaps and changes.

A period is a day, a week or a month of a trend. The marks of a chart:

    dot                     share of one period; full if the period detects the string
    band                    confidence intervals of the line
    bar over a dot          confidence interval of a dot that is not on a line with a band
    line                    shares of neighbouring periods; interrupted at a period without reports
    cross on the axis       a period without reports
    triangle at the top     a significant step from the period before; full for a rise
    dotted vertical line    the first period with other parameters
"""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rappor.comparison.comparison import Comparison, Sample
from rappor.comparison.per_sample import SampleEstimates
from rappor.reporting.charts import COLORS, Chart
from rappor.reporting.markup import Markup, join, tag
from rappor.reporting.numbers import (
    format_change,
    format_interval,
    format_share,
    format_short_percent,
)
from rappor.reporting.scale import Scale

_WIDTH: Final = 350
"""Width of a chart, in units of SVG. A phone of 390 pixels shows one chart in this size, and a
window of 1,280 pixels shows three beside each other. In a chart without a fixed width, all
positions would be percentages. A path cannot contain percentages, so every mark would be an element
of its own. With a fixed width all marks of a kind are one path, and the file is five times smaller.
"""

_LEFT, _RIGHT = 54.0, 340.0
"""Ends of the horizontal axis, in units of SVG. The numbers of the shares stand on the left of the
first dot."""

_TOP, _FLOOR = 22, 170
"""The vertical axis begins and ends at these heights, in units of SVG from the top."""

_WIDEST: Final = (-0.5, 1.5)
"""Smallest and largest share that the vertical axis may contain, as proportions. Estimates and
intervals may lie outside [0, 1], because noise is subtracted from the counts. With few reports an
interval may be much wider than that. The axis then ends here, and the interval leaves the chart:
on a wider axis all dots would lie on one line."""

_RADIUS, _RING = 3.4, 2
"""A dot has this radius, and a hollow dot a ring of this width, in units of SVG."""

_DATES: Final = 5
"""Largest number of periods that are named below a chart. More names would overlap. Every period
has a tick."""

_FAR: Final = 3
"""Smallest end of the intervals, divided by the range of all their ends, above which the axis does
not begin at 0. Example: ends from 0.31 to 0.39 have the quotient 0.31 / 0.08 = 3.9, so the axis
begins near 0.31. A smaller limit exaggerates changes, a larger limit hides them."""


def draw_course(comparison: Comparison, column: int, title: str) -> Chart:
    """Draw the share of one candidate over all periods.

    Parameters
    ----------
    comparison : the comparison of periods.
    column : index of the candidate.
    title : title of the chart.
    """
    # The samples of a trend are periods, and every period has a first day. Only samples of other
    # comparisons have None, and `draw_shares` draws them as other charts. mypy needs the condition.
    periods = comparison.samples
    days = [period.first for period in periods if period.first is not None]
    time_scale = Scale.over([day.toordinal() for day in days], start=_LEFT, end=_RIGHT)
    positions = [round(time_scale(day.toordinal()), 1) for day in days]
    share_scale = _scale_candidate(comparison, column)
    changed_periods = {after.name for _, after in comparison.params_changes}
    borders = [
        _draw_border(period, position)
        for period, position in zip(periods, positions, strict=True)
        if period.name in changed_periods
    ]
    line = comparison.per_sample if comparison.smoothed is None else comparison.smoothed
    content = join(
        _draw_grid(share_scale), _draw_dates(days, positions), *borders,
        *draw_band(_list_intervals(line, column), positions, share_scale),
        *_draw_gaps(periods, positions),
        *_draw_shares(comparison, column, positions, share_scale),
    )  # fmt: skip
    height = _FLOOR + (66 if share_scale.low > 0 else 48)
    return Chart(title=title, content=content, height=height, width=_WIDTH)


def scale_shares(ends: Sequence[float], *, start: float, end: float) -> Scale:
    """Return the scale of shares. It begins at 0 unless all shares are far from 0 (`_FAR`)."""
    is_far = bool(ends) and min(ends) > _FAR * (max(ends) - min(ends)) > 0
    return Scale.over(ends if is_far else [0.0, *ends], start=start, end=end)


def draw_band(
    intervals: Sequence[tuple[float, float, float] | None],
    positions: Sequence[float],
    share_scale: Scale,
) -> list[Markup]:
    """Draw a line through shares, and the band of their intervals, as one path each.

    Parameters
    ----------
    intervals : (low, share, high) of each period. None interrupts line and band.
    positions : position of each period, in units of SVG.
    share_scale : the vertical scale.
    """
    bands, lines = [], []
    pairs = zip(positions, intervals, strict=True)
    for has_estimate, run in itertools.groupby(pairs, lambda pair: pair[1] is not None):
        points = [(x, *map(share_scale, interval)) for x, interval in run if interval is not None]
        # A single period has neither a line nor a band. Its dot and its bar show the estimate.
        if not has_estimate or len(points) < 2:
            continue
        edge = [(x, low) for x, low, _, _ in points]
        edge += [(x, high) for x, _, _, high in reversed(points)]
        lines.append(_connect([(x, y) for x, _, y, _ in points]))
        bands.append(_connect(edge) + "z")
    if not lines:
        return []
    return [
        tag("path", d="".join(bands), fill=COLORS[0], fill_opacity=0.18),
        tag("path", d="".join(lines), fill="none", stroke=COLORS[0], stroke_width=2,
            stroke_linecap="round", stroke_linejoin="round"),
    ]  # fmt: skip


def _connect(points: Sequence[tuple[float, float]]) -> str:
    """Return a line through points as the text of a path, in tenths of a unit.

    Points after the first are differences to the point before, which are shorter than positions.
    The differences are computed from rounded positions, so that rounding errors do not add up.
    """
    # One tenth of a unit is one tenth of a pixel, which is invisible.
    tenths = [(round(10 * x), round(10 * y)) for x, y in points]
    (x, y), *_ = tenths
    text = f"M{x / 10:g} {y / 10:g}l"
    for (x1, y1), (x2, y2) in itertools.pairwise(tenths):
        text += f"{(x2 - x1) / 10:g} {(y2 - y1) / 10:g} "
    return text.strip()


def _scale_candidate(comparison: Comparison, column: int) -> Scale:
    """Return the vertical scale of all estimates of a candidate and of their intervals."""
    lowest, highest = _WIDEST
    estimates_of_both_kinds = (comparison.per_sample, comparison.smoothed)
    ends = [
        min(max(end, lowest), highest)
        for estimates in estimates_of_both_kinds
        if estimates is not None
        for table in (estimates.share, estimates.ci_low, estimates.ci_high)
        for end in table[:, column].tolist()
        if math.isfinite(end)
    ]
    return scale_shares(ends, start=_FLOOR, end=_TOP)


def _draw_grid(share_scale: Scale) -> Markup:
    """Draw a line for each round share, and a sentence if the axis does not begin at 0."""
    ticks = share_scale.ticks(4)
    lines = "".join(f"M0 {share_scale(tick):g}h{_WIDTH}" for tick in ticks)
    texts = [tag("text", format_short_percent(tick), y=share_scale(tick) - 3) for tick in ticks]
    parts = [
        tag("path", d=lines, stroke="currentColor", stroke_opacity=0.15),
        tag("g", *texts, font_size=12),
    ]
    if 0 in ticks:
        parts.append(tag("path", d=f"M0 {share_scale(0.0):g}h{_WIDTH}", stroke="currentColor",
                         stroke_opacity=0.8))  # fmt: skip
    if share_scale.low > 0:
        words = "The axis does not begin at 0."
        parts.append(tag("text", words, y=_FLOOR + 58, font_style="italic", font_size=12))
    return join(*parts)


def _draw_dates(days: Sequence[datetime.date], positions: Sequence[float]) -> Markup:
    """Draw a tick at each period. Write the first day of some periods, and each new year."""
    step = math.ceil(len(days) / _DATES)
    parts, ticks, year = [], [], None
    for number, (day, position) in enumerate(zip(days, positions, strict=True)):
        has_name = number % step == 0
        ticks.append(f"M{position:g} {_FLOOR}v{7 if has_name else 4}")
        if not has_name:
            continue
        anchor = "end" if position > _WIDTH - 20 else "middle"
        parts.append(tag("text", f"{day:%b} {day.day}", x=position, y=_FLOOR + 22,
                         text_anchor=anchor))  # fmt: skip
        if day.year != year:
            year = day.year
            parts.append(tag("text", f"{year}", x=position, y=_FLOOR + 38, text_anchor=anchor))
    lines = tag("path", d="".join(ticks), stroke="currentColor")
    return join(lines, tag("g", *parts, font_size=12))


def _draw_border(period: Sample, position: float) -> Markup:
    """Draw a vertical line at the first period with other parameters."""
    line = tag("line", x1=position, x2=position, y1=4, y2=_FLOOR, stroke="currentColor",
               stroke_dasharray="2 3")  # fmt: skip
    return tag("g", tag("title", f"other parameters from {period.name} on"), line)


def _list_intervals(
    estimates: SampleEstimates, column: int
) -> list[tuple[float, float, float] | None]:
    """Return (low, share, high) of a candidate in each period; None without an estimate."""
    table = [estimates.ci_low[:, column], estimates.share[:, column], estimates.ci_high[:, column]]
    rows = zip(*(part.tolist() for part in table), strict=True)
    return [row if all(map(math.isfinite, row)) else None for row in rows]


def _draw_gaps(periods: Sequence[Sample], positions: Sequence[float]) -> Iterator[Markup]:
    """Yield a cross on the axis for each period without reports."""
    for period, position in zip(periods, positions, strict=True):
        if not period.reports:
            cross = f"M{position - 4:g} {_FLOOR - 4}l8 8m-8 0l8 -8"
            yield tag("path", tag("title", f"{period.first}: no reports"), d=cross,
                      stroke="currentColor")  # fmt: skip


def _draw_shares(
    comparison: Comparison, column: int, positions: Sequence[float], share_scale: Scale
) -> Iterator[Markup]:
    """Yield the intervals without a band as one path, the dots, and the triangles of steps.

    A dot and its triangle have the same tooltip. A period whose reports contain no information
    about the candidate has no marks.
    """
    estimates = comparison.per_sample
    bars, dots, triangles = [], [], []
    intervals = _list_intervals(estimates, column)
    for number, interval in enumerate(intervals):
        if interval is None:
            continue
        low, share, high = interval
        error = float(estimates.std_error[number, column])
        tooltip = (
            f"{comparison.samples[number].first}: {format_share(share, error)}, "
            f"{format_interval(low, high, error)}"
        )
        x = positions[number]
        step = _find_step(comparison, number, column)
        if step is not None:
            tooltip += f"; step of {format_change(step['estimate'], step['std_error'])} points"
            rises = step["estimate"] > 0
            # Middle of the triangle. It is above the axis, so that it covers neither dot nor band.
            top = _TOP - 13
            triangle = (
                f"M{x - 5:g} {top + 4}l5 -9l5 9Z" if rises else f"M{x - 5:g} {top - 5}l5 9l5 -9Z"
            )
            triangles.append(tag("path", tag("title", tooltip), d=triangle,
                                 fill="currentColor" if rises else "none",
                                 stroke="currentColor"))  # fmt: skip
        y = round(share_scale(share), 1)
        neighbours = intervals[max(number - 1, 0) : number] + intervals[number + 1 : number + 2]
        # A line that is not smoothed passes through the dots, and its band has their intervals.
        if comparison.smoothed is not None or not any(neighbours):
            bars.append(f"M{x:g} {share_scale(low):.1f}V{share_scale(high):.1f}")
        if estimates.detected[number, column]:
            # A line of length 0 with round ends is drawn as a dot. It has fewer bytes than an
            # element `circle`.
            dots.append(tag("path", tag("title", tooltip), d=f"M{x:g} {y:g}h0"))
        else:
            dots.append(
                tag("circle", tag("title", tooltip), cx=x, cy=y, r=_RADIUS, fill="none",
                    stroke_width=_RING)
            )  # fmt: skip
    if bars:
        yield tag("path", d="".join(bars), stroke=COLORS[0], stroke_opacity=0.6, stroke_width=2)
    yield tag("g", *dots, stroke=COLORS[0], stroke_width=2 * _RADIUS + _RING,
              stroke_linecap="round")  # fmt: skip
    yield from triangles


def _find_step(comparison: Comparison, number: int, column: int) -> Mapping[str, Any] | None:
    """Return the significant step to a period, or None.

    A step is the contrast of two successive periods with reports. The earlier period has the weight
    -1, and the later period the weight 1.
    """
    for contrast in comparison.contrasts:
        if contrast.kind == "step" and contrast.weights[number] > 0 and contrast.changed[column]:
            return contrast.row(column)
    return None
