"""Figures: every dot, interval and square is where the record says."""

from __future__ import annotations

import math
from collections.abc import Callable
from xml.etree import ElementTree

import numpy as np
import pytest
from pages import SVG, drawings, text_of

from rappor import Estimates
from rappor.decoding.report import CELLS, CHARTED, report
from rappor.reporting.numbers import percent
from rappor.reporting.page import estimates_page


@pytest.fixture(scope="module")
def figures(estimates: Estimates) -> dict[str, ElementTree.Element]:
    return drawings(estimates_page(estimates))


def share_at(drawing: ElementTree.Element) -> Callable[[str | None], float]:
    """Return what a place on the axis of shares means, read from its labels."""
    labels = [
        (float(str(text.get("x"))), float(str(text.text).removesuffix(" %")) / 100)
        for text in drawing.findall(f"{SVG}text")
        if str(text.text).endswith("%")
    ]
    (x0, share0), *_, (x1, share1) = sorted(labels)
    return lambda x: share0 + (float(str(x)) - x0) / (x1 - x0) * (share1 - share0)


def test_every_dot_and_interval_equals_its_row(
    estimates: Estimates, figures: dict[str, ElementTree.Element]
) -> None:
    """Detected rows with the adjusted interval and full dots, the nearest others hollow."""
    drawing = figures["shares"]
    place = share_at(drawing)
    rows = report(estimates).charted
    marks = drawing.findall(f"{SVG}g")
    assert len(marks) == len(rows) > 20
    assert {row["detected"] for row in rows} == {True, False}
    for mark, row in zip(marks, rows, strict=True):
        suffix = "_adjusted" if row["detected"] else ""
        line, dot = mark.find(f"{SVG}line"), mark.find(f"{SVG}circle")
        assert line is not None
        assert dot is not None
        assert place(dot.get("cx")) == pytest.approx(row["proportion"], abs=1e-4)
        assert place(line.get("x1")) == pytest.approx(row[f"ci_low{suffix}"], abs=1e-4)
        assert place(line.get("x2")) == pytest.approx(row[f"ci_high{suffix}"], abs=1e-4)
        assert (dot.get("fill") == "currentColor") is row["detected"]
        assert text_of(mark) == row["candidate"] + percent(row["proportion"], 3)


def test_what_is_not_charted_is_one_row_with_an_error(estimates: Estimates) -> None:
    """All detected, the others among them, and unallocated: shares that add up."""
    found = report(estimates)
    shown = sum(row["proportion"] for row in found.charted if row["detected"])
    every, *others, rest = found.masses
    drawing = drawings(estimates_page(estimates))["masses"]
    place = share_at(drawing)

    assert len(others) == (found.n_detected > CHARTED)
    assert every.proportion == pytest.approx(shown + sum(other.proportion for other in others))
    assert every.proportion + rest.proportion == pytest.approx(1.0)
    for mark, mass in zip(drawing.findall(f"{SVG}g"), found.masses, strict=True):
        dot, line = mark.find(f"{SVG}circle"), mark.find(f"{SVG}line")
        assert dot is not None
        assert line is not None
        assert place(dot.get("cx")) == pytest.approx(mass.proportion, abs=2e-3)
        assert place(line.get("x1")) == pytest.approx(mass.low, abs=2e-3)
        assert place(line.get("x2")) == pytest.approx(mass.high, abs=2e-3)


def test_every_square_is_its_residual(
    estimates: Estimates, figures: dict[str, ElementTree.Element]
) -> None:
    """At most 64 x 64, full above the fit and hollow below, the most extreme of its block."""
    (collected,) = estimates.collected
    assert collected.residuals is not None
    (found,) = report(estimates).collected
    assert found.residuals is not None
    grid = found.residuals
    assert grid.cells.shape == (35, 48)
    assert max(grid.cells.shape) <= CELLS
    block = collected.residuals[:2, :2]
    assert grid.cells[0, 0] == block.ravel()[np.abs(block).argmax()]
    squares = [
        square
        for square in figures["residuals-0"].findall(f"{SVG}rect")
        if square.find(f"{SVG}title") is not None
    ]
    assert len(squares) == grid.cells.size
    for square, value in zip(squares, grid.cells.ravel(), strict=True):
        side = 5 * math.sqrt(min(abs(value), 5) / 5)
        assert float(str(square.get("width"))) == pytest.approx(side, abs=0.01)
        assert (square.get("fill") == "currentColor") is bool(value > 0)
        title = square.find(f"{SVG}title")
        assert title is not None
        assert str(title.text).endswith(f"{value:+.2f}")


def test_every_cohort_is_drawn_where_its_reports_are(
    estimates: Estimates, figures: dict[str, ElementTree.Element]
) -> None:
    """Least and most of the reports and of the true bits of each pair of cohorts."""
    (found,) = report(estimates).collected
    (collected,) = estimates.collected
    for name, values in (("reports-0", collected.reports), ("bits-0", collected.true_bits.mean)):
        drawing = figures[name]
        labels = sorted(
            (float(str(text.get("y"))) - 4, float(str(text.text).replace(",", "")))
            for text in drawing.findall(f"{SVG}text")
            if text.get("x") == "54" and text.text != "cohort"
        )
        (y0, value0), *_, (y1, value1) = labels
        slope = (value1 - value0) / (y1 - y0)
        marks = drawing.findall(f"{SVG}g")
        assert len(marks) == len(found.cohorts) == 35
        for mark, pair in zip(marks, np.split(values, 35), strict=True):
            line = mark.find(f"{SVG}line")
            assert line is not None
            ends = [value0 + (float(str(line.get(end))) - y0) * slope for end in ("y1", "y2")]
            assert ends == pytest.approx([pair.min(), pair.max()], abs=abs(slope) * 0.02)


def test_every_drawing_is_named_and_needs_no_style(
    figures: dict[str, ElementTree.Element],
) -> None:
    """A title that assistive technology reads; presentation attributes and system colours."""
    assert set(figures) == {"shares", "masses", "reports-0", "bits-0", "residuals-0"}
    for name, drawing in figures.items():
        title = drawing.find(f"{SVG}title")
        assert title is not None
        assert title.get("id") == f"{name}-title"
        assert str(title.text).endswith(".")
        for element in drawing.iter():
            assert element.get("style") is None
            for key in ("fill", "stroke"):
                assert element.get(key) in (None, "none", "currentColor", "Canvas")
