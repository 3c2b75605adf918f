"""Pictures of the curves: SVG and PNG, drawn without a network. Needs the extra `charts`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.tables import Table
from rappor.errors import MissingExtraError

_WIDTH, _HEIGHT = 300, 230


def draw(tables: list[Table], folder: Path) -> list[Path]:
    """Draw `accuracy` and `power` from the tables of `curves`, and return the files written.

    Raises
    ------
    MissingExtraError: the extra `charts` is not installed.
    """
    try:
        import altair  # noqa: PLC0415, F401  # optional
    except ImportError:
        raise MissingExtraError("charts") from None
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
                    chart.save(str(path), **({"ppi": 110} if suffix == "png" else {}))
                    written.append(path)
    return written


def _accuracy(rows: list[dict[str, Any]]) -> Any:
    """Draw strings found and total variation against the number of reports."""
    import altair as alt  # noqa: PLC0415  # optional

    reports = alt.X("reports:Q", scale=alt.Scale(type="log"), title="reports").axis(
        format="~e", tickCount=5
    )
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=reports, color=_designs(alt))
    found = base.mark_line(point=True).encode(
        y=alt.Y("found:Q", title="strings found, of 100").scale(domain=[0, 100])
    )
    variation = base.mark_line(point=True).encode(
        y=alt.Y("total variation:Q", title="total variation of the distribution")
    )
    return _together(alt, found, variation)


def _power(rows: list[dict[str, Any]]) -> Any:
    """Draw the chance to find a string against its share: closed form and measured."""
    import altair as alt  # noqa: PLC0415  # optional

    base = alt.Chart(alt.InlineData(values=rows)).encode(
        x=alt.X("share %:Q", title="share of the string, %").scale(type="log").axis(tickCount=6),
        color=_designs(alt),
    )
    lines = base.mark_line().encode(y=alt.Y("closed form:Q", title="chance to find it"))
    points = base.mark_point(filled=True, size=45).encode(y="measured:Q")
    chart = (lines + points).properties(
        width=_WIDTH * 1.4,
        height=_HEIGHT,
        title="1e6 reports, equal privacy: lines closed form, points measured",
    )
    return _styled(chart)


def _designs(alt: Any) -> Any:
    scale = alt.Scale(range=["#b5530a", "#7a7a7a", "#0b5fa5"])
    return alt.Color("design:N", scale=scale, sort=None).legend(
        title="design, eps_inf 4.394, eps_1 1.0743", orient="bottom", direction="vertical"
    )


def _together(alt: Any, *charts: Any) -> Any:
    sized = [chart.properties(width=_WIDTH, height=_HEIGHT) for chart in charts]
    return _styled(alt.hconcat(*sized))


def _styled(chart: Any) -> Any:
    return (
        chart.configure_view(stroke=None)
        .configure(background="white")
        .configure_axis(
            labelFontSize=11, titleFontSize=12, titleFontWeight="normal", gridColor="#e4e4e4"
        )
        .configure_legend(labelFontSize=11, titleFontSize=11, labelLimit=300, titleLimit=300)
    )
