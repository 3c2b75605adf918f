"""Charts of the page of a decode: every dot, interval and square has the right position."""

from __future__ import annotations

import re
from collections.abc import Callable
from xml.etree import ElementTree

import numpy as np
import pytest
from pages import SVG, parse_drawings, read_text

from rappor import Estimates
from rappor.decoding.estimates_report import MOST_CELLS, MOST_CHARTED_ROWS, report
from rappor.reporting.charts import COLORS
from rappor.reporting.numbers import count_digits, format_percent
from rappor.reporting.page import estimates_page

SHARES = "How large a share of the reports each candidate has."
REPORTS = "How many reports each cohort has."
BITS = "How many true bits a report of each cohort has."
RESIDUALS = "Residuals by cohort and bit: what the candidates do not explain."
"""The four drawings of the page have these titles."""


@pytest.fixture(scope="module")
def figures(estimates: Estimates) -> dict[str, ElementTree.Element]:
    """Return the drawings of the page by title."""
    return parse_drawings(estimates_page(estimates))


def parse_percentage(percentage: str | None) -> float:
    """Return the number of an attribute such as "12.5%", a position in per cent of the width."""
    return float(str(percentage).removesuffix("%"))


def make_share_of_position(drawing: ElementTree.Element) -> Callable[[float], float]:
    """Return the function from a position to a share, read from the labels of the axis.

    A reader estimates a share in the same way. The axis is linear, so the first and the last label
    determine the function.
    """
    labels = [
        (parse_percentage(text.get("x")), float(str(text.text).removesuffix(" %")) / 100)
        for text in drawing.findall(f"{SVG}text")
        if str(text.text).endswith("%")
    ]
    (x0, share0), *_, (x1, share1) = sorted(labels)
    return lambda x: share0 + (x - x0) / (x1 - x0) * (share1 - share0)


def test_every_dot_and_interval_equals_its_row(
    estimates: Estimates, figures: dict[str, ElementTree.Element]
) -> None:
    """Each dot and each end of an interval lies at the share of its row.

    Ten detected candidates have full dots and adjusted intervals. The three undetected candidates
    with the smallest p-values have hollow dots, so that a reader sees the limit of detection.
    """
    drawing = figures[SHARES]
    share_of_position = make_share_of_position(drawing)
    rows = report(estimates).charted
    marks = drawing.findall(f"{SVG}g")
    assert len(marks) == len(rows) == MOST_CHARTED_ROWS + 3
    assert {row["detected"] for row in rows} == {True, False}
    for group, row in zip(marks, rows, strict=True):
        suffix = "_adjusted" if row["detected"] else ""
        bar, dot = group.find(f"{SVG}rect"), group.find(f"{SVG}circle")
        assert bar is not None
        assert dot is not None
        low = parse_percentage(bar.get("x"))
        high = low + parse_percentage(bar.get("width"))
        center = parse_percentage(dot.get("cx"))
        assert share_of_position(center) == pytest.approx(row["share"], abs=1e-4)
        assert share_of_position(low) == pytest.approx(row[f"ci_low{suffix}"], abs=1e-4)
        assert share_of_position(high) == pytest.approx(row[f"ci_high{suffix}"], abs=1e-4)
        assert dot.get("fill") == (COLORS[0] if row["detected"] else "none")
        digits = count_digits(row["std_error"] / estimates.reports)
        assert read_text(group) == row["candidate"] + format_percent(row["share"], digits)


def test_every_square_is_its_residual(
    estimates: Estimates, figures: dict[str, ElementTree.Element]
) -> None:
    """The area of each square is proportional to its residual: full above the fit, hollow below.

    At most 64 x 64 squares are drawn. Here 70 cohorts of 96 bits become 35 x 48 squares, each with
    the largest residual of two cohorts and two bits, because a mean would hide a single bad bit. A
    residual of 5 standard deviations or more fills its square, whose side is 5 units.
    """
    (decoded,) = estimates.collections
    assert decoded.residuals is not None
    (collection,) = report(estimates).collections
    assert collection.residuals is not None
    grid = collection.residuals
    assert grid.cells.shape == (35, 48)
    assert max(grid.cells.shape) <= MOST_CELLS
    block = decoded.residuals[:2, :2]
    assert grid.cells[0, 0] == block.ravel()[np.abs(block).argmax()]
    positive_squares, negative_squares = figures[RESIDUALS].findall(f"{SVG}path")
    assert (positive_squares.get("fill"), negative_squares.get("fill")) == (None, "none")
    for path, sign in ((positive_squares, 1), (negative_squares, -1)):
        sides = [float(side) for side in re.findall(r"h([0-9.]+)v", str(path.get("d")))]
        values = sign * grid.cells[sign * grid.cells > 0]
        assert sides == pytest.approx(5 * np.sqrt(np.minimum(values, 5) / 5), abs=0.051)


def test_every_cohort_is_drawn_where_its_reports_are(
    estimates: Estimates, figures: dict[str, ElementTree.Element]
) -> None:
    """A bar reaches from the smallest to the largest number of its pair of cohorts.

    70 cohorts are more than 64, so two neighbouring cohorts share a bar. The labels of the upright
    axis give the number at a height. A label stands 3 units above its line.
    """
    (collection,) = report(estimates).collections
    (decoded,) = estimates.collections
    for name, values in ((REPORTS, decoded.reports), (BITS, decoded.true_bits.mean)):
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
        for group, pair in zip(marks, np.split(values, 35), strict=True):
            line = group.find(f"{SVG}line")
            assert line is not None
            ends = [value0 + (float(str(line.get(end))) - y0) * slope for end in ("y1", "y2")]
            assert ends == pytest.approx([pair.min(), pair.max()], abs=abs(slope) * 0.02)


def test_axes_say_what_they_show_and_where_they_begin(
    figures: dict[str, ElementTree.Element],
) -> None:
    """Axes have titles with units, and the labels of cohorts are multiples of a power of two.

    Only the axis of reports begins above 0, and the drawing has a sentence about it. Names of
    candidates stand above their intervals and do not touch them.
    """
    texts = {name: [read_text(text) for text in figure.iter(f"{SVG}text")]
             for name, figure in figures.items()}  # fmt: skip
    assert "share of the reports" in texts[SHARES]
    for name, title in ((REPORTS, "reports of a cohort"), (BITS, "true bits of a report")):
        assert {title, "cohort"} < set(texts[name])
        assert ("The upright axis does not begin at 0." in texts[name]) is (name == REPORTS)
        cohort_labels = [text.text for text in figures[name].iter(f"{SVG}text")
                 if text.get("text-anchor") == "middle"]  # fmt: skip
        assert cohort_labels == ["0", "16", "32", "48", "64"]
    assert {"bit", "cohort"} < set(texts[RESIDUALS])
    for group in figures[SHARES].findall(f"{SVG}g"):
        name_heights = [float(str(text.get("y"))) for text in group.findall(f"{SVG}text")]
        assert max(name_heights) + 5 <= float(str(group.find(f"{SVG}rect").get("y")))  # type: ignore[union-attr]


def test_every_drawing_is_named_and_needs_no_style(figures: dict[str, ElementTree.Element]) -> None:
    """A drawing has a name for screen readers, and no style attribute.

    A policy without styles removes style attributes, so colours are attributes of SVG. The colour
    `currentColor` follows the text, in light and dark windows.
    """
    assert set(figures) == {SHARES, REPORTS, BITS, RESIDUALS}
    for drawing in figures.values():
        for element in drawing.iter():
            assert element.get("style") is None
            for key in ("fill", "stroke"):
                assert element.get(key) in (None, "none", "currentColor", *COLORS)
