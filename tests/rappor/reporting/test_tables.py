"""Tables: one record, written as text, as HTML and as JSON.

A column has one of three kinds. A column "name" contains strings of devices, which may be long and
in any script. A column "text" contains words and sentences. A column "number", the default, is
aligned right and never cut. `table_of_cells` makes its first `n_texts` columns (by default one)
columns of texts.
"""

from __future__ import annotations

import doctest
import math

import pytest
from pages import parse_tables, parse_tags

from rappor.reporting import tables as module
from rappor.reporting.markup import count_columns, tag
from rappor.reporting.tables import MAX_ROWS, Column, Table, table_of_cells, table_of_pairs

HOSTILE = "\x1b[31m<b>\u202egnp"
"""A name that would attack a reader: it colours a terminal red, makes a page bold, and writes "gnp"
from right to left (U+202E), so that it reads as "png"."""
LONG = "a sentence of several words that is wider than the terminal, and is broken into lines"


def words_table(*names: str) -> Table[tuple[str, int]]:
    """Return a table of names and numbers, where each number is the index of its row."""
    return Table(
        title="Words",
        columns=(
            Column("word", lambda row: row[0], kind="name"),
            Column("n", lambda row: f"{row[1]}"),
        ),
        rows=[(name, i) for i, name in enumerate(names)],
    )


def test_the_example_of_the_module_is_true() -> None:
    """The example shows the text and the JSON of the same rows."""
    assert doctest.testmod(module).failed == 0
    assert module.__doc__ is not None
    assert ">>>" in module.__doc__


def test_text_is_aligned_and_has_no_trailing_blanks() -> None:
    """Words are aligned left and numbers right.

    An East Asian character is twice as wide as a letter in a terminal.
    """
    assert words_table("a", "longer", "\u6f22\u5b57").to_text() == (
        "word    n\na       0\nlonger  1\n\u6f22\u5b57    2"
    )


def test_a_long_name_is_shortened_and_numbers_are_whole() -> None:
    """The width of a name is `_MIN_NAME_COLUMNS` (9) to `_MAX_NAME_COLUMNS` (40). No number is cut.

    On a terminal of 100 characters a line, the name of 99 letters is cut to 39 letters and an
    ellipsis. Two blanks and the number of 30 digits follow. On a terminal of 10 characters a line,
    8 letters and an ellipsis are left, and the line is longer than the terminal is wide.
    """
    table = table_of_cells("", ("name", "n"), [("x" * 99, "1" * 30)])
    assert table.to_text(100) == f"name{' ' * 37}{' ' * 30}n\n{'x' * 39}\u2026  {'1' * 30}"
    assert table.to_text(10).split("\n")[1] == f"{'x' * 8}\u2026  {'1' * 30}"


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_column_of_sentences_is_broken_into_lines(width: int) -> None:
    """The lines fit the terminal, and contain every word and the number."""
    table = table_of_cells("", ("check", "finding", "p"), [("bits", LONG, "0.5")], n_texts=2)
    lines = table.to_text(width).split("\n")
    assert max(map(len, lines)) <= width
    (first, *continuation) = lines[1:]
    words = [*first.removesuffix("0.5").split()[1:], *" ".join(continuation).split()]
    assert words == LONG.split()
    assert first.startswith("bits ")
    assert first.endswith(" 0.5")


def test_pairs_are_written_without_titles_on_request() -> None:
    """`include_titles=False` leaves out the titles "what" and "value" of properties and values.

    By default a table has its titles, even without a row.
    """
    table = table_of_pairs("Plan", [("k", "128"), ("hashes", "2")])
    assert table.to_text(include_titles=False) == "k       128\nhashes  2"
    assert table_of_pairs("Plan", []).to_text() == "what  value"


def test_control_characters_and_markup_of_a_cell_have_no_effect() -> None:
    """The text contains no control character of a cell, and the page contains no markup of a cell.

    Only the markup that `tag` builds, such as a link, is written to the page.
    """
    table = words_table(HOSTILE)
    text, page = table.to_text(), table.to_html()
    assert "\N{SYMBOL FOR ESCAPE}[31m<b>[U+202E]gnp" in text
    assert not {"\x1b", "\u202e"} & set(text + page)
    assert "b" not in {name for name, _ in parse_tags(page)}
    link = table_of_cells("", ("edition",), [(tag("a", "1", href="x"),)]).to_html()
    assert ("a", {"href": "x"}) in [
        (name, dict(attributes)) for name, attributes in parse_tags(link)
    ]


def test_a_page_can_be_read_by_a_screen_reader() -> None:
    """The region, the caption, and the headings of columns and rows name the table."""
    names = [
        (name, dict(attributes)) for name, attributes in parse_tags(words_table("a").to_html())
    ]
    # A heading (th) without the attribute scope is the first cell of its row here. By the rules of
    # HTML it is then the heading of the row, so the attribute is not needed.
    heads = [attributes.get("scope", "") for name, attributes in names if name == "th"]
    assert heads == ["col", "col", ""]
    assert [name for name, _ in names][-3:] == ["tr", "th", "td"]
    (region,) = (attributes for name, attributes in names if name == "div")
    assert (region["role"], region["aria-label"], region["tabindex"]) == ("region", "Words", "0")
    assert parse_tables(words_table("a", "b").to_html()) == {
        "Words": [["word", "n"], ["a", "0"], ["b", "1"]]
    }


def test_only_a_table_with_a_name_can_be_sorted() -> None:
    """A table with a name has the attribute `data-sorts`.

    The script of a page finds tables by this attribute, and makes them sortable.
    """
    assert "data-sorts" not in words_table("a").to_html()
    assert ' id="w" data-sorts=""' in words_table("a").to_html(name="w")


def test_rows_beyond_the_first_thousand_are_counted() -> None:
    """A page lists 1,000 rows at most. A sentence below the table has the number of all rows."""
    page = words_table(*map(str, range(MAX_ROWS + 1))).to_html()
    assert len(parse_tables(page)["Words"]) == 1 + MAX_ROWS  # the headings, and the listed rows
    assert page.endswith("<p>1,000 of 1,001 rows are listed.</p>")


def test_json_has_all_fields_and_digits() -> None:
    """JSON has each row as it was passed, with fields that no column shows, and without rounding.

    The text has cells, which columns format from a row. JSON has no infinity, so it has null.
    """
    rows = [{"word": "a", "n": 1 / 3, "hidden": math.inf, "unknown": math.nan}]
    table = Table(title="", columns=(Column("n", lambda row: f"{row['n']:.1f}"),), rows=rows)
    assert table.to_text() == "n\n0.3"
    assert table.to_json() == [{"word": "a", "n": 1 / 3, "hidden": None, "unknown": None}]


def test_columns_are_counted_as_a_terminal_shows_them() -> None:
    """An East Asian character is as wide as two letters. An accent and a joiner have no width."""
    texts = ("", "abc", "\u6f22", "e\u0301", "\u0646\u200c", "\u2764\ufe0f")
    assert list(map(count_columns, texts)) == [0, 3, 2, 1, 1, 1]
