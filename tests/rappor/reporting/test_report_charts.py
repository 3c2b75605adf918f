"""Charts of a report: every dot, interval and square has the position of its number."""

from __future__ import annotations

import re
from collections.abc import Callable
from xml.etree import ElementTree

import numpy as np
import pytest
from pages import SVG, drawings, text_of

from rappor import Estimates
from rappor.decoding.estimates_report import CELLS, CHARTED, report
from rappor.reporting.charts import COLORS
from rappor.reporting.numbers import count_digits, format_percent
from rappor.reporting.page import estimates_page

SHARES = "How large a share of the reports each candidate has."
REPORTS = "How many reports each cohort has."
BITS = "How many true bits a report of each cohort has."
RESIDUALS = "Residuals by cohort and bit: what the candidates do not explain."


@pytest.fixture(scope="module")
def figures(estimates: Estimates) -> dict[str, ElementTree.Element]:
    return drawings(estimates_page(estimates))


def across(place: str | None) -> float:
    """Return the position of an element, in per cent of the width."""
    return float(str(place).removesuffix("%"))


def share_at(drawing: ElementTree.Element) -> Callable[[float], float]:
    """Return the share at a position, read from the labels of the axis."""
    labels = [
        (across(text.get("x")), float(str(text.text).removesuffix(" %")) / 100)
        for text in drawing.findall(f"{SVG}text")
        if str(text.text).endswith("%")
    ]
    (x0, share0), *_, (x1, share1) = sorted(labels)
    return lambda x: share0 + (x - x0) / (x1 - x0) * (share1 - share0)


def test_every_dot_and_interval_equals_its_row(
    estimates: Estimates, figures: dict[str, ElementTree.Element]
) -> None:
    """Detected rows have full dots and adjusted intervals, and the nearest others hollow dots."""
    drawing = figures[SHARES]
    place = share_at(drawing)
    rows = report(estimates).charted
    marks = drawing.findall(f"{SVG}g")
    assert len(marks) == len(rows) == CHARTED + 3
    assert {row["detected"] for row in rows} == {True, False}
    for mark, row in zip(marks, rows, strict=True):
        suffix = "_adjusted" if row["detected"] else ""
        bar, dot = mark.find(f"{SVG}rect"), mark.find(f"{SVG}circle")
        assert bar is not None
        assert dot is not None
        low = across(bar.get("x"))
        assert place(across(dot.get("cx"))) == pytest.approx(row["share"], abs=1e-4)
        assert place(low) == pytest.approx(row[f"ci_low{suffix}"], abs=1e-4)
        assert place(low + across(bar.get("width"))) == pytest.approx(
            row[f"ci_high{suffix}"], abs=1e-4
        )
        assert dot.get("fill") == (COLORS[0] if row["detected"] else "none")
        digits = count_digits(row["std_error"] / estimates.reports)
        assert text_of(mark) == row["candidate"] + format_percent(row["share"], digits)


def test_every_square_is_its_residual(
    estimates: Estimates, figures: dict[str, ElementTree.Element]
) -> None:
    """At most 64 x 64 squares are drawn, full above the fit and hollow below it."""
    (collected,) = estimates.collections
    assert collected.residuals is not None
    (collection,) = report(estimates).collections
    assert collection.residuals is not None
    grid = collection.residuals
    assert grid.cells.shape == (35, 48)
    assert max(grid.cells.shape) <= CELLS
    block = collected.residuals[:2, :2]
    assert grid.cells[0, 0] == block.ravel()[np.abs(block).argmax()]
    above, below = figures[RESIDUALS].findall(f"{SVG}path")
    assert (above.get("fill"), below.get("fill")) == (None, "none")
    for path, sign in ((above, 1), (below, -1)):
        sides = [float(side) for side in re.findall(r"h([0-9.]+)v", str(path.get("d")))]
        values = sign * grid.cells[sign * grid.cells > 0]
        assert sides == pytest.approx(5 * np.sqrt(np.minimum(values, 5) / 5), abs=0.051)


def test_every_cohort_is_drawn_where_its_reports_are(
    estimates: Estimates, figures: dict[str, ElementTree.Element]
) -> None:
    """A bar has the smallest and largest number of a pair of cohorts."""
    (collection,) = report(estimates).collections
    (collected,) = estimates.collections
    for name, values in ((REPORTS, collected.reports), (BITS, collected.true_bits.mean)):
        drawing = figures[name]
        labels = sorted(
            (float(str(text.get("y"))) + 3, float(str(text.text).replace(",", "")))
            for text in drawing.findall(f"{SVG}text")
            if text.get("x") is None and str(text.text).replace(",", "").replace(".", "").isdigit()
        )
        (y0, value0), *_, (y1, value1) = labels
        slope = (value1 - value0) / (y1 - y0)
        marks = drawing.findall(f"{SVG}g")
        assert len(marks) == len(collection.cohorts) == 35
        for mark, pair in zip(marks, np.split(values, 35), strict=True):
            line = mark.find(f"{SVG}line")
            assert line is not None
            ends = [value0 + (float(str(line.get(end))) - y0) * slope for end in ("y1", "y2")]
            assert ends == pytest.approx([pair.min(), pair.max()], abs=abs(slope) * 0.02)


def test_axes_say_what_they_show_and_where_they_begin(
    figures: dict[str, ElementTree.Element],
) -> None:
    """Axes have titles with units, and cohorts are named in steps of a power of two."""
    texts = {name: [text_of(text) for text in figure.iter(f"{SVG}text")]
             for name, figure in figures.items()}  # fmt: skip
    assert "share of the reports" in texts[SHARES]
    for name, title in ((REPORTS, "reports of a cohort"), (BITS, "true bits of a report")):
        assert {title, "cohort"} < set(texts[name])
        assert ("The upright axis does not begin at 0." in texts[name]) is (name == REPORTS)
        named = [text.text for text in figures[name].iter(f"{SVG}text")
                 if text.get("text-anchor") == "middle"]  # fmt: skip
        assert named == ["0", "16", "32", "48", "64"]
    assert {"bit", "cohort"} < set(texts[RESIDUALS])
    for mark in figures[SHARES].findall(f"{SVG}g"):
        below = [float(str(text.get("y"))) for text in mark.findall(f"{SVG}text")]
        assert max(below) + 5 <= float(str(mark.find(f"{SVG}rect").get("y")))  # type: ignore[union-attr]


def test_every_drawing_is_named_and_needs_no_style(figures: dict[str, ElementTree.Element]) -> None:
    """A drawing has a name for assistive technology, and no style attribute."""
    assert set(figures) == {SHARES, REPORTS, BITS, RESIDUALS}
    for drawing in figures.values():
        for element in drawing.iter():
            assert element.get("style") is None
            for key in ("fill", "stroke"):
                assert element.get(key) in (None, "none", "currentColor", *COLORS)
