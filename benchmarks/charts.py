"""Pictures of the curves: SVG and PNG, drawn without a network. Needs the extra `charts`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.tables import Table

if TYPE_CHECKING:
    from rappor.reporting.charts import Chart

_LEGEND = "design, eps_inf 4.394, eps_1 1.0743"


def draw(tables: list[Table], folder: Path) -> list[Path]:
    """Draw `accuracy` and `power` from the tables of `curves`, and return the files written.

    Raises
    ------
    MissingExtraError: the extra `charts` is not installed.
    """
    from rappor.reporting.charts import save  # noqa: PLC0415  # optional

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for start, name, picture in (
        ("curves, accuracy", "accuracy", _accuracy),
        ("curves, power", "power", _power),
    ):
        for table in tables:
            if table.title.startswith(start):
                chart = picture(table.to_dict()["rows"])
                for suffix in ("svg", "png"):
                    path = folder / f"{name}.{suffix}"
                    save(chart, path)
                    written.append(path)
    return written


def _accuracy(rows: list[dict[str, Any]]) -> Chart:
    """Draw strings found and total variation against the number of reports."""
    from rappor.reporting.charts import Axis, line_chart, side_by_side  # noqa: PLC0415  # optional

    reports = Axis(field="reports", title="reports", log=True)
    found = Axis(field="found", title="strings found, of 100", domain=(0, 100))
    variation = Axis(
        field="total variation", title="total variation of the distribution", domain=(0, 0.6)
    )
    return side_by_side(
        *(
            line_chart(rows, x=reports, y=y, series="design", legend=_LEGEND, points=rows)
            for y in (found, variation)
        )
    )


def _power(rows: list[dict[str, Any]]) -> Chart:
    """Draw the probability to find a string against its share: closed form and measured."""
    from rappor.reporting.charts import Axis, line_chart  # noqa: PLC0415  # optional

    return line_chart(
        [row | {"probability": row["closed form"]} for row in rows],
        points=[row | {"probability": row["measured"]} for row in rows],
        x=Axis(field="share %", title="share of the string, %", log=True, domain=(0.3, 5)),
        y=Axis(field="probability", title="probability to find it", domain=(0, 1)),
        series="design",
        legend=_LEGEND,
        title="1e6 reports, equal privacy: lines closed form, points measured",
    )
