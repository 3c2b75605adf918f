"""The page of a comparison: equal to the record, whole, and harmless."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pages import SVG, drawings, tables, tags

from rappor import Comparison, Detection, Params, Population, compare, simulate_counts
from rappor.reporting.comparison_page import comparison_page
from rappor.reporting.numbers import measured, moved, span_of_points
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
    return span_of_points(row[f"ci_low{suffix}"], row[f"ci_high{suffix}"], row["std_error"])


def test_every_mark_has_the_numbers_of_the_record(found: Comparison, page: str) -> None:
    """The changes of June with adjusted intervals; July, where nothing changed, is a sentence."""
    assert {row["sample"] for row in found.rows(changed_only=True)} == {"<June>"}
    (drawing,) = drawings(page).values()
    expected = [row for row in rows_of(found, "<June>") if row["changed"]]
    titles = {str(mark.findtext(f"{SVG}title")) for mark in drawing.iter(f"{SVG}g")}
    assert len(titles) == len(expected)
    for row in expected:
        numbers = f"{moved(row['difference'], row['std_error'])}, {interval(row)}"
        assert any(title.endswith(f": {numbers}") for title in titles)
    assert "No significant change in July." in page


def test_the_nearest_are_drawn_where_nothing_changed() -> None:
    """Hollow, with the interval of each alone."""
    samples = {
        name: simulate_counts(Population(NAMES, [1, 1, 1, 1]), PARAMS, n_reports=2e4, seed=seed)
        for seed, name in enumerate(("May", "June"))
    }
    same = compare(samples, NAMES, detection=Detection(level=1e-6))
    assert not same.n_changed
    (drawing,) = drawings(comparison_page(same)).values()
    assert [dot.get("fill") for dot in drawing.iter(f"{SVG}circle")] == ["none"] * 4


def test_the_tables_are_the_record(found: Comparison, page: str) -> None:
    """Every row of every sample, changes first; that of July is folded."""
    shown = {caption: rows for caption, rows in tables(page).items() if caption.startswith("From")}
    assert [caption.split(":")[0] for caption in shown] == [
        "From May to <June>",
        "From May to July",
    ]
    for sample, lines in zip(("<June>", "July"), shown.values(), strict=True):
        rows = {row["candidate"]: row for row in rows_of(found, sample)}
        assert len(lines) - 1 == len(rows)
        kinds = [bool(line[1]) for line in lines[1:]]
        assert kinds == sorted(kinds, reverse=True)
        plain = next(line for line in lines if line[0] == "plain")
        row = rows["plain"]
        assert plain[1:6] == [
            row["kind"],
            moved(row["difference"], row["std_error"]),
            interval(row),
            measured(row["baseline_proportion"], row["std_error"]),
            measured(row["proportion"], row["std_error"]),
        ]
    assert page.index("<details") < page.index("From May to July: ")
    assert page.index("From May to &lt;June&gt;: ") < page.index("<details")


def test_sentences_are_those_of_the_terminal(found: Comparison, page: str) -> None:
    """What was tested and assumed, escaped."""
    for sentence in changes(found):
        assert sentence.replace("<", "&lt;").replace(">", "&gt;") in page


def test_hostile_strings_are_harmless(page: str) -> None:
    """One script, the page's own, and nothing that turns the direction."""
    assert [name for name, _ in tags(page)].count("script") == 1
    assert "\u202e" not in page
    assert "<June>" not in page
