"""Charts of the benchmark `curves` as SVG: accuracy by reports, and power by share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.tables import Table
from rappor.reporting.charts import ChartGrid
from rappor.reporting.lines import Axis, draw_lines

_LEGEND = "design, eps_inf 4.394, eps_1 1.0743"


def draw(tables: list[Table], folder: Path) -> list[Path]:
    """Draw `accuracy` and `power` from the tables of `curves`. Returns the paths of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for table in tables:
        for start, picture in (("curves, accuracy", accuracy), ("curves, probability", power)):
            if table.title.startswith(start):
                path = folder / f"{picture.__name__}.svg"
                picture(table.to_dict()["rows"]).save(path)
                written.append(path)
    return written


def accuracy(rows: list[dict[str, Any]]) -> ChartGrid:
    """Draw detected strings and total variation against the number of reports."""
    reports = Axis(field="reports", title="reports", log=True)
    detections = Axis(field="found", title="strings found, of 100", domain=(0, 100))
    variation = Axis(
        field="total variation", title="total variation of the distribution", domain=(0, 0.6)
    )
    charts = [
        draw_lines(rows, x=reports, y=y, series="design", legend=_LEGEND, points=rows)
        for y in (detections, variation)
    ]
    return ChartGrid(title="Accuracy by the number of reports", charts=charts)


def power(rows: list[dict[str, Any]]) -> ChartGrid:
    """Draw the detection probability of a string against its share.

    Both the closed form and measurements are drawn.
    """
    chart = draw_lines(
        [row | {"probability": row["closed form"]} for row in rows],
        points=[row | {"probability": row["measured"]} for row in rows],
        x=Axis(field="share %", title="share of the string, %", log=True, domain=(0.3, 5)),
        y=Axis(field="probability", title="probability to find it", domain=(0, 1)),
        series="design",
        legend=_LEGEND,
        title="1e6 reports: lines closed form, dots measured",
    )
    return ChartGrid(title="Power at equal privacy", charts=[chart])
