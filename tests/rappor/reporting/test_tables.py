"""Tables: one record, written as text, as HTML and as JSON."""

from __future__ import annotations

import doctest
import math

import pytest
from pages import tables, tags

from rappor.reporting import tables as module
from rappor.reporting.markup import count_columns, tag
from rappor.reporting.tables import LISTED, Column, Table, table_of_cells, table_of_pairs

HOSTILE = "\x1b[31m<b>\u202egnp"
LONG = "a sentence of several words that is wider than the terminal, and is broken into lines"


def words_table(*names: str) -> Table[tuple[str, int]]:
    """Return a table of names and numbers, where each number is the index of its row."""
    return Table(
        title="Words",
        columns=(Column("word", lambda row: row[0], "name"), Column("n", lambda row: f"{row[1]}")),
        rows=[(name, i) for i, name in enumerate(names)],
    )


def test_the_example_of_the_module_is_true() -> None:
    """The example shows the text and the JSON of the same rows."""
    assert doctest.testmod(module).failed == 0
    assert module.__doc__ is not None
    assert ">>>" in module.__doc__


def test_text_is_aligned_and_has_no_trailing_blanks() -> None:
    """Words are aligned left and numbers right; a wide character takes two columns."""
    assert words_table("a", "longer", "\u6f22\u5b57").to_text() == (
        "word    n\na       0\nlonger  1\n\u6f22\u5b57    2"
    )


def test_a_long_name_is_shortened_and_numbers_are_whole() -> None:
    """A terminal that is too narrow cuts names down to nine columns, and never a number."""
    table = table_of_cells("", ("name", "n"), [("x" * 99, "1" * 30)])
    assert table.to_text(100) == f"name{' ' * 37}{' ' * 30}n\n{'x' * 39}\u2026  {'1' * 30}"
    assert table.to_text(10).split("\n")[1] == f"{'x' * 8}\u2026  {'1' * 30}"


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_column_of_sentences_is_broken_into_lines(width: int) -> None:
    """The lines fit the terminal, and contain every word and the number."""
    table = table_of_cells("", ("check", "finding", "p"), [("bits", LONG, "0.5")], n_texts=2)
    lines = table.to_text(width).split("\n")
    assert max(map(len, lines)) <= width
    (first, *others) = lines[1:]
    words = [*first.removesuffix("0.5").split()[1:], *" ".join(others).split()]
    assert words == LONG.split()
    assert first.startswith("bits ")
    assert first.endswith(" 0.5")


def test_pairs_have_no_titles_where_none_are_asked() -> None:
    """A terminal shows properties and values without a heading."""
    table = table_of_pairs("Plan", [("k", "128"), ("hashes", "2")])
    assert table.to_text(include_titles=False) == "k       128\nhashes  2"
    assert table_of_pairs("Plan", []).to_text() == "what  value"


def test_no_writer_trusts_a_cell() -> None:
    """A terminal gets no control character, and a page no markup but that of `tag`."""
    table = words_table(HOSTILE)
    text, page = table.to_text(), table.to_html()
    assert "\N{SYMBOL FOR ESCAPE}[31m<b>[U+202E]gnp" in text
    assert not {"\x1b", "\u202e"} & set(text + page)
    assert "b" not in {name for name, _ in tags(page)}
    link = table_of_cells("", ("edition",), [(tag("a", "1", href="x"),)]).to_html()
    assert ("a", {"href": "x"}) in [(name, dict(attributes)) for name, attributes in tags(link)]


def test_a_page_can_be_read_by_a_screen_reader() -> None:
    """The region, the caption, and the headings of columns and rows name the table."""
    names = [(name, dict(attributes)) for name, attributes in tags(words_table("a").to_html())]
    # HTML makes a heading without a scope that begins a row of cells the heading of that row.
    heads = [attributes.get("scope", "") for name, attributes in names if name == "th"]
    assert heads == ["col", "col", ""]
    assert [name for name, _ in names][-3:] == ["tr", "th", "td"]
    (region,) = (attributes for name, attributes in names if name == "div")
    assert (region["role"], region["aria-label"], region["tabindex"]) == ("region", "Words", "0")
    assert tables(words_table("a", "b").to_html()) == {
        "Words": [["word", "n"], ["a", "0"], ["b", "1"]]
    }


def test_only_a_table_with_a_name_can_be_sorted() -> None:
    """A script finds it by an attribute."""
    assert "data-sorts" not in words_table("a").to_html()
    assert ' id="w" data-sorts=""' in words_table("a").to_html(name="w")


def test_rows_beyond_the_first_thousand_are_counted() -> None:
    """The page says how many rows there are."""
    page = words_table(*map(str, range(LISTED + 1))).to_html()
    assert len(tables(page)["Words"]) == LISTED + 1
    assert page.endswith("<p>1,000 of 1,001 rows are listed.</p>")


def test_json_has_all_fields_and_digits() -> None:
    """JSON has the rows, not the cells; JSON has no infinity."""
    rows = [{"word": "a", "n": 1 / 3, "hidden": math.inf}]
    table = Table(title="", columns=(Column("n", lambda row: f"{row['n']:.1f}"),), rows=rows)
    assert table.to_text() == "n\n0.3"
    assert table.to_json() == [{"word": "a", "n": 1 / 3, "hidden": None}]


def test_columns_are_counted_as_a_terminal_shows_them() -> None:
    """An East Asian character is as wide as two letters."""
    assert [count_columns(text) for text in ("", "abc", "\u6f22")] == [0, 3, 2]
