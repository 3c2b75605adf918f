"""The page of a comparison: equal to the record, whole, and harmless."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pages import SVG, drawings, tables, tags

from rappor import Comparison, Params, Population, compare, simulate_counts
from rappor.reporting.comparison_page import comparison_page
from rappor.reporting.numbers import percent, points
from rappor.reporting.remarks import changes

PARAMS = Params(k=32, h=1, m=8, f=0.1, p=0.1, q=0.9)
NAMES = ["</script><script>alert(1)</script>", "\u202egpj.exe", "=1+1", "plain"]


@pytest.fixture(scope="module")
def found() -> Comparison:
    """Three samples: the second differs from the first, the third does not."""
    samples = {
        name: simulate_counts(Population(NAMES, weights), PARAMS, n_reports=2e4, seed=number)
        for number, (name, weights) in enumerate(
            {"May": [2, 2, 2, 2], "<June>": [1, 1, 1, 5], "July": [2, 2, 2, 2]}.items()
        )
    }
    return compare(samples, [*NAMES, "absent"])


@pytest.fixture(scope="module")
def page(found: Comparison) -> str:
    return comparison_page(found)


def rows_of(found: Comparison, sample: str) -> list[Mapping[str, Any]]:
    """Return the rows of a sample."""
    return [row for row in found.rows() if row["sample"] == sample]


def interval(row: Mapping[str, Any]) -> str:
    """Write the interval that a page shows of a row."""
    suffix = "_adjusted" if row["changed"] else ""
    return f"{points(row[f'ci_low{suffix}'])} .. {points(row[f'ci_high{suffix}'])}"


def test_every_mark_has_the_numbers_of_the_record(found: Comparison, page: str) -> None:
    """The changes of June with adjusted intervals, full; hollow ones of July, where none is."""
    for number, sample in enumerate(("<June>", "July")):
        rows = rows_of(found, sample)
        assert any(row["changed"] for row in rows) == (sample == "<June>")
        marks = list(drawings(page)[f"changes-{number}"].iter(f"{SVG}g"))
        expected = [row for row in rows if row["changed"]] or rows
        assert len(marks) == len(expected)
        titles = {str(mark.findtext(f"{SVG}title")) for mark in marks}
        for row in expected:
            numbers = f"{points(row['difference'])}, {interval(row)}"
            assert any(title.endswith(f": {numbers}") for title in titles)
        for mark in marks:
            dot = mark.find(f"{SVG}circle")
            assert dot is not None
            assert dot.get("fill") == ("currentColor" if sample == "<June>" else "Canvas")


def test_the_tables_are_the_record(found: Comparison, page: str) -> None:
    """Every row of every sample, changes first."""
    for sample in ("<June>", "July"):
        (shown,) = [
            rows
            for caption, rows in tables(page).items()
            if caption.startswith(f"From May to {sample}")
        ]
        rows = {row["candidate"]: row for row in rows_of(found, sample)}
        assert len(shown) - 1 == len(rows)
        kinds = [bool(line[1]) for line in shown[1:]]
        assert kinds == sorted(kinds, reverse=True)
        plain = next(line for line in shown if line[0] == "plain")
        row = rows["plain"]
        assert plain[1:6] == [
            row["kind"],
            percent(row["baseline_proportion"], 3),
            percent(row["proportion"], 3),
            points(row["difference"]),
            interval(row),
        ]


def test_sentences_are_those_of_the_terminal(found: Comparison, page: str) -> None:
    """What was tested and assumed, escaped."""
    for sentence in changes(found):
        assert sentence.replace("<", "&lt;").replace(">", "&gt;") in page


def test_hostile_strings_are_harmless(page: str) -> None:
    """One script, the page's own, and nothing that turns the direction."""
    assert [name for name, _ in tags(page)].count("script") == 1
    assert "\u202e" not in page
    assert "<June>" not in page
