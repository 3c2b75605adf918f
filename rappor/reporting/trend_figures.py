"""Drawings of a trend: a panel for each string, as inline SVG in `currentColor`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from rappor.decoding.side_by_side import Levels
from rappor.decoding.trends.trend import Trend, TrendPeriod
from rappor.reporting.figures import WIDTH, svg, upright_ticks
from rappor.reporting.markup import Markup, join, tag
from rappor.reporting.numbers import percent, points
from rappor.reporting.scale import Scale

_LEFT: Final = 64
_TOP: Final = 14
_FLOOR: Final = 150
"""Where the lowest share is drawn, from above."""

_AXIS: Final = 44
_HEIGHT: Final = _FLOOR + _AXIS
_MOST_SHARE: Final = (-0.5, 1.5)
_DATES: Final = 4
"""Dates written below a panel, at most."""


def panel(trend: Trend, column: int, *, name: str, caption: str) -> Markup:
    """Draw how the share of one string runs, with its intervals, gaps and changes."""
    places = Scale.over(
        [_middle(period) for period in trend.periods], start=_LEFT + 10, end=WIDTH - 14
    )
    shares = _share_scale(trend, column)
    marks = [
        _mark(trend, number, column, places(_middle(period)), shares)
        for number, period in enumerate(trend.periods)
    ]
    lines = _smoothed(trend, column, places, shares)
    changes = {each.period for each in trend.params_changes}
    borders = [
        _border(period, places(_middle(period)))
        for period in trend.periods
        if period.name in changes
    ]
    return svg(
        join(
            upright_ticks(shares, left=_LEFT, digits=_digits(shares)),
            _zero(shares),
            _dates(trend.periods, places),
            *borders,
            *lines,
            *marks,
        ),
        _HEIGHT,
        name=name,
        title=caption,
    )


def _middle(period: TrendPeriod) -> float:
    return (period.first.toordinal() + period.last.toordinal()) / 2


def _share_scale(trend: Trend, column: int) -> Scale:
    least, most = _MOST_SHARE
    both = [trend.levels] if trend.smoothed is None else [trend.levels, trend.smoothed]
    ends = [
        float(table[number, column])
        for levels in both
        for table in (levels.proportion, levels.ci_low, levels.ci_high)
        for number in range(len(trend.periods))
    ]
    known = [min(max(end, least), most) for end in ends if math.isfinite(end)]
    return Scale.over([0.0, *known], start=_FLOOR, end=_TOP)


def _digits(scale: Scale) -> int:
    ticks = scale.ticks(4)
    return max(0, -math.floor(math.log10(100 * (ticks[1] - ticks[0])) + 1e-9))


def _zero(scale: Scale) -> Markup:
    y = scale(0.0)
    return tag("line", x1=_LEFT, x2=WIDTH - 4, y1=y, y2=y, stroke="currentColor")


def _dates(periods: Sequence[TrendPeriod], places: Scale) -> Markup:
    """Write a few first days, the first and the last one among them."""
    n = min(_DATES, len(periods))
    chosen = {round(i * (len(periods) - 1) / max(n - 1, 1)) for i in range(n)}
    parts = []
    for number in sorted(chosen):
        x = places(_middle(periods[number]))
        anchor = "end" if number == len(periods) - 1 and number else "middle"
        if number == 0:
            anchor = "start"
        shift = {"start": -10, "middle": 0, "end": 10}[anchor]
        parts.append(tag("line", x1=x, x2=x, y1=_FLOOR + 4, y2=_FLOOR + 9, stroke="currentColor"))
        parts.append(
            tag("text", str(periods[number].first), x=x + shift, y=_FLOOR + 24, text_anchor=anchor,
                font_size=11)
        )  # fmt: skip
    return join(*parts)


def _border(period: TrendPeriod, x: float) -> Markup:
    """Mark the first period of other parameters."""
    line = tag("line", x1=x, x2=x, y1=_TOP - 8, y2=_FLOOR, stroke="currentColor",
               stroke_dasharray="2 3")  # fmt: skip
    return tag("g", tag("title", f"other parameters from {period.name} on"), line)


def _mark(trend: Trend, number: int, column: int, x: float, shares: Scale) -> Markup:
    """Draw a dot with its interval, or a cross on the axis where there are no reports."""
    period, levels = trend.periods[number], trend.levels
    if not period.reports:
        ends = ((-3, -3, 3, 3), (-3, 3, 3, -3))
        cross = [
            tag("line", x1=x + a, y1=_FLOOR + b, x2=x + c, y2=_FLOOR + d, stroke="currentColor")
            for a, b, c, d in ends
        ]
        return tag("g", tag("title", f"{period.name}: no reports"), *cross)
    share = float(levels.proportion[number, column])
    low, high = float(levels.ci_low[number, column]), float(levels.ci_high[number, column])
    least, most = _MOST_SHARE
    full = bool(levels.detected[number, column])
    told = f"{period.name}: {percent(share, 3)}, {_between(low, high)}"
    if not math.isfinite(low + high):
        return tag("g", tag("title", told))
    parts = [
        tag("title", told + _step(trend, number, column)),
        tag("line", x1=x, x2=x, y1=shares(max(low, least)), y2=shares(min(high, most)),
            stroke="currentColor", stroke_opacity=0.55),
        tag("circle", cx=x, cy=shares(min(max(share, least), most)), r=2.5,
            fill="currentColor" if full else "Canvas", stroke="currentColor"),
    ]  # fmt: skip
    if turn := _turn(trend, number, column):
        tip, base = (_TOP - 12, _TOP - 4) if turn > 0 else (_TOP - 4, _TOP - 12)
        parts.append(
            tag("polygon", points=f"{x:g},{tip} {x - 4:g},{base} {x + 4:g},{base}",
                fill="currentColor" if turn > 0 else "Canvas", stroke="currentColor")
        )  # fmt: skip
    return tag("g", *parts)


def _turn(trend: Trend, number: int, column: int) -> float:
    """Return the step to a period where it is told from noise, else 0."""
    row = trend.step(number, column)
    return row["difference"] if row is not None and row["changed"] else 0.0


def _step(trend: Trend, number: int, column: int) -> str:
    turn = _turn(trend, number, column)
    return f"; step of {points(turn)} points" if turn else ""


def _smoothed(trend: Trend, column: int, places: Scale, shares: Scale) -> list[Markup]:
    """Draw the smoothed line and the ends of its intervals, interrupted where there are none."""
    if trend.smoothed is None:
        return []
    drawn = []
    for field, opacity in (("proportion", 1.0), ("ci_low", 0.5), ("ci_high", 0.5)):
        for run in _runs(trend.smoothed, field, column):
            ends = " ".join(
                f"{places(_middle(trend.periods[number])):g},{shares(_clip(value)):g}"
                for number, value in run
            )
            drawn.append(
                tag("polyline", points=ends, fill="none", stroke="currentColor",
                    stroke_width=2 if field == "proportion" else 1, stroke_opacity=opacity)
            )  # fmt: skip
    return drawn


def _runs(levels: Levels, field: str, column: int) -> list[list[tuple[int, float]]]:
    """Return stretches of neighbouring periods that have this number."""
    runs: list[list[tuple[int, float]]] = [[]]
    for number, value in enumerate(getattr(levels, field)[:, column].tolist()):
        if math.isfinite(value):
            runs[-1].append((number, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _clip(value: float) -> float:
    least, most = _MOST_SHARE
    return min(max(value, least), most)


def _between(low: float, high: float) -> str:
    if not math.isfinite(low + high):
        return "interval unknown"
    return f"{percent(low, 3)} .. {percent(high, 3)}"
