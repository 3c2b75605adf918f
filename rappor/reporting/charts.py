"""Line charts in one style, saved as SVG, PNG or one HTML file, all without a network.

Needs the extra `charts`: importing this module without it raises MissingExtraError.
"""

from __future__ import annotations

import html
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from rappor.errors import MissingExtraError, ParamsError

try:
    import altair as alt
    import vl_convert
except ImportError:
    raise MissingExtraError("charts") from None

Row: TypeAlias = Mapping[str, Any]
Chart: TypeAlias = alt.LayerChart | alt.ConcatChart

SUFFIXES: Final = (".svg", ".png", ".html")
"""What `save` can write."""

_WIDTH, _HEIGHT = 330, 240
"""Pixels of one chart, without its axes."""

_PLACE: Final = 400
"""Pixels of a window that one chart takes: three stand side by side from 1,200 on."""

_SAME_PLACE: Final = 0.005
"""Relative distance below which two lines cannot be told apart in a chart of this height."""

_COLORS: Final = ["#b5530a", "#7a7a7a", "#0b5fa5", "#2f8a3b", "#8a4fa3", "#c79a00", "#c2306a"]
"""Seven hues that differ on white paper; dashes distinguish the lines without colour."""

_DASHES: Final = [[1, 0], [7, 2], [4, 4], [2, 2], [9, 2, 2, 2], [1, 3], [12, 3]]
"""Gaps leave a line visible that lies under another."""

_SHAPES: Final = ["circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "stroke"]
"""They distinguish the dots without colour."""

_ROW: Final = 17
"""Pixels of a row of a chart of dots."""

_PIXELS_PER_INCH: Final = 144
"""Twice what a screen shows, so that a picture stays sharp in a document."""

_POWERS: Final = "format(datum.value, datum.value < 1 ? '~g' : '~s')"
"""Writes the ticks of a logarithmic axis as 0.01, 100, 10k, 1M."""

_SNIPPET: Final = "window.vegaEmbed = vegaEmbed;"
"""What the bundled library makes visible to the page."""

_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title></head>
<body><div id="chart"></div>
<script>{library}</script>
<script>const spec = {spec};
const fitting = Math.max(1, Math.floor(window.innerWidth / {place}));
spec.config.legend.columns = Math.min(spec.config.legend.columns, fitting);
if (spec.columns) spec.columns = Math.min(spec.columns, fitting);
vegaEmbed("#chart", spec, {{"actions": {{"export": true, "source": false,
"compiled": false, "editor": false}}}});</script>
</body>
</html>
"""
"""An HTML chart, with as many columns as the window has place for.

Its menu offers nothing that would leave for another site.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis: the rows' field, its title with the unit, its scale.

    `format` is d3's, as "%" for shares; `domain` fixes both ends.
    """

    field: str
    title: str
    log: bool = False
    domain: tuple[float, float] | None = None
    format: str = ""

    def has_place_for(self, row: Row) -> bool:
        """Return whether the row's value can be drawn on this axis."""
        value = row[self.field]
        return value is not None and math.isfinite(value) and (value > 0 or not self.log)

    def channel(self, kind: type[alt.X] | type[alt.Y], rows: Sequence[Row]) -> alt.X | alt.Y:
        """Return altair's form of the axis for the rows to be drawn."""
        scale: dict[str, Any] = {"type": "log", "nice": False} if self.log else {"zero": False}
        axis: dict[str, Any] = {"format": self.format} if self.format else {}
        if self.domain:
            scale["domain"] = list(self.domain)
        if self.log:
            axis["values"] = _ticks(self.domain or [row[self.field] for row in rows])
            axis |= {} if self.format else {"labelExpr": _POWERS}
        else:
            axis["tickCount"] = 6
        return kind(
            self.field,
            type="quantitative",
            title=self.title,
            scale=alt.Scale(**scale),
            axis=alt.Axis(**axis),
        )


def line_chart(
    rows: Iterable[Row],
    *,
    x: Axis,
    y: Axis,
    series: str,
    part: str = "",
    legend: str = "",
    title: str = "",
    points: Iterable[Row] = (),
) -> alt.LayerChart:
    """Draw a line for each value of the field `series`, in the order of the rows.

    With a field `part` a series has a line for each of its values, in one colour. `points`
    have the same fields and are drawn as dots over the lines: measured values over computed
    ones. A series of dots alone has a dot in the legend. Rows without a place on an axis
    (infinite, or not positive on a logarithmic one) are left out, and of
    several rows at one place of a line all but the first.
    """
    drawable = [dict(row) for row in rows if x.has_place_for(row) and y.has_place_for(row)]
    lines = _first_at_each_place(drawable, series, part, x.field)
    dots = [dict(row) for row in points if x.has_place_for(row) and y.has_place_for(row)]
    lined = list(dict.fromkeys(str(row[series]) for row in lines))
    names = list(dict.fromkeys([*lined, *(str(row[series]) for row in dots)]))
    dotted = [name for name in names if name not in lined]
    stroke = _legend(lined, legend, symbolType="stroke", symbolSize=500, symbolStrokeWidth=2)
    dot = _legend(dotted, "", symbolType="circle", symbolSize=45) if dotted else None
    colors = alt.Scale(domain=names, range=_COLORS)
    dashes = alt.Scale(domain=names, range=_DASHES)
    places = (
        x.channel(alt.X, [*lines, *dots]),
        y.channel(alt.Y, [*lines, *dots]),
        *([alt.Detail(part, type="nominal")] if part else []),
    )
    drawn = alt.Chart(alt.InlineData(values=lines)).mark_line()
    measured = alt.Chart(alt.InlineData(values=dots)).mark_point(filled=True, size=45, opacity=1)
    marks = [
        drawn.encode(
            *places,
            alt.Color(series, type="nominal", scale=colors, legend=stroke),
            alt.StrokeDash(series, type="nominal", scale=dashes, legend=stroke),
        ),
        measured.encode(*places, alt.Color(series, type="nominal", scale=colors, legend=dot)),
    ]
    chart = alt.LayerChart(layer=marks, width=_WIDTH, height=_HEIGHT, title=title)
    return chart.resolve_legend(color="independent", strokeDash="independent") if dotted else chart


def dot_chart(
    rows: Iterable[Row],
    *,
    x: Axis,
    name: str,
    series: str,
    low: str = "",
    high: str = "",
    title: str = "",
) -> alt.LayerChart:
    """Draw a dot for each row beside its name, in the order of the rows.

    With the fields `low` and `high` a line between them is the row's interval; a row without one
    has the dot alone. The series have colours and shapes of their own.
    """
    dots = [dict(row) for row in rows if x.has_place_for(row)]
    lines = [row for row in dots if low and row[low] is not None and row[high] is not None]
    series_names = list(dict.fromkeys(str(row[series]) for row in dots))
    names = alt.Y(name, type="nominal", title=None, sort=list(dict.fromkeys(r[name] for r in dots)))
    legend = _legend(series_names, "", symbolType="circle", symbolSize=45)
    colors = alt.Scale(domain=series_names, range=_COLORS)
    color = alt.Color(series, type="nominal", scale=colors, legend=legend)
    shapes = alt.Scale(domain=series_names, range=_SHAPES)
    drawn = alt.Chart(alt.InlineData(values=lines)).mark_rule(strokeWidth=2)
    marks: list[Any] = (
        [drawn.encode(alt.X(low, type="quantitative"), alt.X2(high), names, color)] if lines else []
    )
    points = alt.Chart(alt.InlineData(values=dots)).mark_point(filled=True, size=50, opacity=1)
    marks.append(
        points.encode(
            x.channel(alt.X, dots),
            names,
            color,
            alt.Shape(series, type="nominal", scale=shapes, legend=None),
        )
    )
    return alt.LayerChart(layer=marks, width=_WIDTH, height=alt.Step(_ROW), title=title)


def time_chart(
    rows: Iterable[Row],
    *,
    y: Axis,
    low: str,
    high: str,
    full: str,
    line: str = "",
    gaps: Iterable[str] = (),
    borders: Iterable[str] = (),
    title: str = "",
) -> alt.LayerChart:
    """Draw a dot with its interval for each row at its `day`, an ISO date.

    Dots are full where the field `full` says so, else hollow. The field `line` has values that are
    drawn as one line. `gaps` are days that have a cross at the foot, `borders` days that have a
    dashed upright.
    """
    places = [dict(row) for row in rows]
    dots = [row for row in places if y.has_place_for(row)]
    axis = alt.Axis(format="%Y-%m-%d", tickCount=4)
    day = alt.X(
        "day", type="temporal", title=None, axis=axis, scale=alt.Scale(type="utc", padding=12)
    )
    up = y.channel(alt.Y, dots)
    fill = alt.condition(f"datum.{full}", alt.value(_COLORS[2]), alt.value("white"))
    spans = [row for row in dots if row[low] is not None and row[high] is not None]
    data = alt.Chart(alt.InlineData(values=spans))
    marks: list[Any] = [
        data.mark_rule(color=_COLORS[2], opacity=0.6).encode(
            day, alt.Y(low, type="quantitative"), alt.Y2(high)
        )
    ]
    points = alt.Chart(alt.InlineData(values=dots)).mark_point(size=25, opacity=1)
    marks.append(points.encode(day, up, fill=fill, stroke=alt.value(_COLORS[2])))
    if line:
        # A row without a value interrupts the line.
        drawn = alt.Chart(alt.InlineData(values=places)).mark_line(color=_COLORS[0])
        marks.append(drawn.encode(day, alt.Y(line, type="quantitative")))
    crosses = alt.Chart(alt.InlineData(values=[{"day": each} for each in gaps]))
    cross = crosses.mark_point(shape="cross", angle=45, size=40, color=_COLORS[1])
    marks.append(cross.encode(day, y=alt.value(_HEIGHT)))
    uprights = alt.Chart(alt.InlineData(values=[{"day": each} for each in borders]))
    marks.append(uprights.mark_rule(strokeDash=[4, 3], color=_COLORS[1]).encode(day))
    return alt.LayerChart(layer=marks, width=_WIDTH, height=_HEIGHT, title=title)


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


def side_by_side(*charts: alt.LayerChart) -> alt.ConcatChart:
    """Put charts in a row; those with the same series share a legend.

    In an HTML file a narrow window has fewer in a row, and the others below.
    """
    return alt.concat(*charts, columns=len(charts))


def save(chart: Chart, path: str | os.PathLike[str]) -> None:
    """Write a chart in the format of its path's suffix; an HTML file needs no other file.

    Raises
    ------
    ParamsError: the suffix is none of SUFFIXES.
    """
    styled = _styled(chart)
    match check_suffix(path):
        case ".svg":
            styled.save(os.fspath(path), format="svg")
        case ".png":
            styled.save(os.fspath(path), format="png", ppi=_PIXELS_PER_INCH)
        case _:
            Path(path).write_text(_page(styled, Path(path).stem), encoding="utf-8")


def check_suffix(path: str | os.PathLike[str]) -> str:
    """Return a chart's suffix; raise ParamsError if it is none of SUFFIXES."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ParamsError(f"chart must end in {', '.join(SUFFIXES)}, got {os.fspath(path)!r}")
    return suffix


def _first_at_each_place(rows: Iterable[Row], *place: str) -> list[Row]:
    first: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        first.setdefault(tuple(row.get(field) for field in place), row)
    return list(first.values())


def _same_place(one: Sequence[float], other: Sequence[float]) -> bool:
    return len(one) == len(other) and all(
        math.isclose(a, b, rel_tol=_SAME_PLACE) for a, b in zip(one, other, strict=True)
    )


def _legend(names: Sequence[str], title: str, **symbols: Any) -> alt.Legend:
    """Return the legend below a chart for these series."""
    return alt.Legend(
        title=title or None, orient="bottom", direction="vertical", values=list(names), **symbols
    )


def _page(chart: Any, title: str) -> str:
    version = ".".join(alt.SCHEMA_VERSION.split(".")[:2])
    return _PAGE.format(
        title=html.escape(title),
        place=_PLACE,
        library=vl_convert.javascript_bundle(_SNIPPET, vl_version=version),
        spec=json.dumps(chart.to_dict()).replace("<", "\\u003c"),  # no text can end the script
    )


def _ticks(values: Sequence[float]) -> list[float]:
    """Return the ticks of a logarithmic axis: powers of ten, with 2 and 5 if these are few."""
    if not values:
        return []
    low, high = min(values), max(values)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 2 else (1,)
    ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    return [tick for tick in ticks if low <= tick <= high]


def _styled(chart: Chart) -> Any:  # altair's own return type is lost on the way
    return (
        chart.configure_view(stroke=None)
        .configure(background="white")
        .configure_axis(
            labelFontSize=11, titleFontSize=12, titleFontWeight="normal", gridColor="#e4e4e4"
        )
        .configure_legend(
            labelFontSize=11,
            titleFontSize=11,
            titleFontWeight="normal",
            labelLimit=400,
            titleLimit=400,
            columns=chart.columns if isinstance(chart, alt.ConcatChart) else 1,
        )
        .configure_title(fontSize=13, fontWeight="normal", anchor="start")
    )
