"""Charts of the benchmark `curves` as SVG: accuracy by reports, and power by share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.tables import Table
from rappor.reporting.charts import ChartGrid
from rappor.reporting.lines import Axis, draw_lines

_LEGEND = "design, eps_inf 4.394, eps_1 1.0743"


def draw(tables: list[Table], folder: Path) -> list[Path]:
    """Draw `accuracy.svg` and `power.svg` from the tables of `curves`; return the written paths.

    Tables of other benchmarks are ignored. A table of `curves` is recognized by its title.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for table in tables:
        for start, name, draw_grid in (
            ("curves, accuracy", "accuracy", draw_accuracy),
            ("curves, probability", "power", draw_power),
        ):
            if table.title.startswith(start):
                path = folder / f"{name}.svg"
                draw_grid(table.to_dict()["rows"]).save(path)
                written.append(path)
    return written


def draw_accuracy(rows: list[dict[str, Any]]) -> ChartGrid:
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


def draw_power(rows: list[dict[str, Any]]) -> ChartGrid:
    """Draw the detection probability of a string against its share.

    The lines are the closed form of `benchmarks.curves`, and the dots are measurements.
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
