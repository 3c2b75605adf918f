"""Tables: one record of titled columns and rows, written as text, as HTML and as JSON.

How to think about it
---------------------
A `Table` contains rows as the library computes them: mappings or records of numbers. A `Column` has
a title and the function that formats the cell of a row. The three writers differ in what they do
with a row:

- `Table.to_text` formats the cells and aligns them in columns of a terminal;
- `Table.to_html` formats the same cells as a table of a page;
- `Table.to_json` formats nothing. It writes the rows with all their numbers, because a program
  computes with numbers, and a formatted cell has lost digits.

Terminal and page therefore show equal words for equal numbers. Neither trusts a cell: `to_text`
names control characters instead of sending them to a terminal, and `to_html` escapes markup.

>>> table = Table(
...     title="Reports",
...     columns=(Column("word", lambda row: row["word"], "name"),
...              Column("reports", lambda row: f"{row['n']:,}")),
...     rows=({"word": "cat", "n": 1200}, {"word": "heron", "n": 7}),
... )
>>> print(table.to_text())
word   reports
cat      1,200
heron        7
>>> table.to_json()
[{'word': 'cat', 'n': 1200}, {'word': 'heron', 'n': 7}]
"""

from __future__ import annotations

import itertools
import operator
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

from rappor.reporting.json_values import to_json_value
from rappor.reporting.markup import (
    Markup,
    count_columns,
    join,
    mark_breaks,
    replace_invisible,
    shorten,
    tag,
)

MAX_ROWS: Final = 1000
"""Largest number of rows of a table on a page. Further rows are counted. The limit keeps the page
of a list of a million candidates below 2 MB."""

_MAX_UNBROKEN_LENGTH: Final = 12
"""Largest number of characters of a cell of a page that is never broken into lines, if all cells of
its column are so short. A date in the form 2026-11-30 is shorter."""

_LONGEST_NAME_ON_PAGE: Final = 120
"""Largest width of a name on a page, in columns of a terminal. A longer name is cut and ends with
an ellipsis."""

_MIN_NAME_COLUMNS, _MAX_NAME_COLUMNS = 9, 40
"""Smallest and largest width of the first column on a terminal, in columns. A longer name is cut
and ends with an ellipsis. Numbers are never cut."""

_MIN_TEXT_COLUMNS: Final = 20
"""Smallest width to which a terminal narrows a column of sentences, in columns. A smaller width
would break lines after every word."""

RowT = TypeVar("RowT")
"""Type of a row: a record or a mapping. The rows of a table and the functions that format its cells
must have the same type of row."""


@dataclass(frozen=True, slots=True)
class Column(Generic[RowT]):
    """Column of a table.

    Attributes
    ----------
    title : heading of the column.
    format_cell : function that formats the cell of a row. On pages, a cell of type `Markup`, such
        as a link, is written without escaping.
    kind : "name" for strings of devices and analysts, which may be long and in any script; "text"
        for words and sentences; "number" for numbers, which are aligned right and never cut.
    """

    title: str
    format_cell: Callable[[RowT], str]
    kind: Literal["name", "text", "number"] = "number"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Generic[RowT]):
    """Table with a title. The first cell of a row is the heading of the row.

    Attributes
    ----------
    title : title of the table.
    columns : the columns, in order.
    rows : the rows, in order.
    """

    title: str
    columns: Sequence[Column[RowT]]
    rows: Sequence[RowT]

    def to_text(self, width: int = 100, *, include_titles: bool = True) -> str:
        """Write the table for a terminal of `width` columns, without a trailing line break.

        Names in the first column are cut to 40 columns. If the lines are still too long, the widest
        column of words is broken into several lines, and then names are cut to at least 9 columns.
        Numbers are never cut, so lines may be longer than `width`.
        """
        widths = self.column_widths(include_titles=include_titles)
        widths[0] = min(widths[0], _MAX_NAME_COLUMNS)
        # Two spaces separate neighbouring columns.
        overflow = sum(widths) + 2 * len(widths[1:]) - width
        # Sentences are broken first, because they stay readable. Names are cut next. Numbers are
        # never cut: a number without its last digits is another number.
        texts = [i for i, column in enumerate(self.columns) if i and column.kind != "number"]
        if overflow > 0 and texts:
            widest = max(texts, key=widths.__getitem__)
            narrowed = min(widths[widest], max(widths[widest] - overflow, _MIN_TEXT_COLUMNS))
            overflow -= widths[widest] - narrowed
            widths[widest] = narrowed
        if overflow > 0:
            widths[0] = max(widths[0] - overflow, min(widths[0], _MIN_NAME_COLUMNS))
        titles = [tuple(column.title for column in self.columns)] if include_titles else []
        lines = (
            self._format_lines(cells, widths) for cells in (*titles, *self._format_cells(self.rows))
        )
        return "\n".join(itertools.chain.from_iterable(lines))

    def to_html(self, *, name: str = "") -> Markup:
        """Write the first 1,000 rows as a table of a page, and a sentence if there are more rows.

        A table with a `name` can be sorted and filtered where scripts are allowed.
        """
        rows = self.rows[:MAX_ROWS]
        heads = (
            tag("th", column.title, scope="col", align=_align(column),
                nowrap="" if len(column.title) <= _MAX_UNBROKEN_LENGTH else None)
            for column in self.columns
        )  # fmt: skip
        # A page may contain thousands of cells, so a cell has no attributes. Classes of the table
        # (page.css) align a column of words left and keep its short cells on one line.
        cells = [[column.format_cell(row) for column in self.columns] for row in rows]
        body = (tag("tr", *self._build_html_cells(texts)) for texts in cells)
        are_all_words = all(column.kind != "number" for column in self.columns)
        # A phone shows the cells of a table without numbers one below another.
        classes = ["words"] if are_all_words else []
        for i, column in enumerate(self.columns):
            if column.kind != "number" and not are_all_words:
                # A name is broken after signs (`mark_breaks`), so it never needs a line of its own.
                is_short = column.kind == "text" and all(
                    len(texts[i]) <= _MAX_UNBROKEN_LENGTH for texts in cells
                )
                classes.append(f"{'short' if is_short else 'long'}-{i + 1}")
        table = tag(
            "table",
            tag("caption", self.title, align="left"),
            tag("thead", tag("tr", *heads)),
            tag("tbody", *body, align=None if are_all_words else "right"),
            border="1",
            cellpadding="4",
            cellspacing="0",
            class_=" ".join(classes) or None,
            id=name or None,
            data_sorts="" if name else None,
        )
        # The table scrolls inside its own region where a phone is narrower than the table.
        kind = "wide long" if name else "wide"
        region = tag("div", table, class_=kind, tabindex="0", role="region", aria_label=self.title)
        if len(self.rows) <= MAX_ROWS:
            return region
        return join(region, tag("p", f"{MAX_ROWS:,} of {len(self.rows):,} rows are listed."))

    def to_json(self) -> list[Any]:
        """Return the rows as JSON values, with all fields of each row and unrounded numbers."""
        return [to_json_value(row) for row in self.rows]

    def column_widths(self, *, include_titles: bool = True) -> list[int]:
        """Return the width of each column on a terminal before names are cut and texts broken."""
        cells = list(self._format_cells(self.rows))
        return [
            max((count_columns(text) for text in (*titles, *column)), default=0)
            for titles, column in zip(
                ((column.title,) if include_titles else () for column in self.columns),
                zip(*cells, strict=True) if cells else [()] * len(self.columns),
                strict=True,
            )
        ]

    def _format_cells(self, rows: Iterable[RowT]) -> Iterator[tuple[str, ...]]:
        """Yield the cells of each row without characters that a terminal would execute."""
        for row in rows:
            yield tuple(replace_invisible(column.format_cell(row)) for column in self.columns)

    def _format_lines(self, cells: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
        """Yield the lines of one row. A cell of words that is wider than its column has several."""
        columns = [
            _break_cell(cell, width) if column.kind == "text" and i else [shorten(cell, width)]
            for i, (cell, width, column) in enumerate(zip(cells, widths, self.columns, strict=True))
        ]
        for line in itertools.zip_longest(*columns, fillvalue=""):
            padded = (
                " " * (width - count_columns(text)) + text
                if column.kind == "number" and i
                else text + " " * (width - count_columns(text))
                for i, (text, width, column) in enumerate(
                    zip(line, widths, self.columns, strict=True)
                )
            )
            yield "  ".join(padded).rstrip()

    def _build_html_cells(self, texts: Sequence[str]) -> Iterator[Markup]:
        """Yield the cells of a row; the first cell is the heading of the row."""
        for i, (text, column) in enumerate(zip(texts, self.columns, strict=True)):
            cell = format_name(text) if column.kind == "name" else text
            yield tag("td" if i else "th", cell)


def table_of_cells(
    title: str, titles: Sequence[str], rows: Iterable[Sequence[str]], *, n_texts: int = 1
) -> Table[Sequence[str]]:
    """Return a table of formatted cells. The first `n_texts` columns contain words."""
    columns: tuple[Column[Sequence[str]], ...] = tuple(
        Column(name, operator.itemgetter(i), "text" if i < n_texts else "number")
        for i, name in enumerate(titles)
    )
    return Table(title=title, columns=columns, rows=tuple(rows))


def table_of_pairs(title: str, pairs: Iterable[tuple[str, str]]) -> Table[Sequence[str]]:
    """Return a table of properties and their values."""
    return table_of_cells(title, ("what", "value"), pairs, n_texts=2)


def format_name(text: str) -> Markup:
    """Return a name as a cell of a page. A narrow window breaks it after signs only.

    A cell isolates the direction of its text from other cells, so a name needs no element `bdi`.
    """
    return mark_breaks(shorten(text, _LONGEST_NAME_ON_PAGE))


def wrap(text: str, width: int) -> str:
    """Break each line of a text into lines of at most `width` columns.

    A line never ends between a number and its unit.
    """
    lines = (
        textwrap.fill(line.replace(" %", "\xa0%"), width, break_on_hyphens=False)
        for line in text.split("\n")
    )
    return "\n".join(lines).replace("\xa0", " ")


def _align(column: Column[Any]) -> str:
    """Return the alignment of a heading: right for numbers, left for words."""
    return "right" if column.kind == "number" else "left"


def _break_cell(text: str, width: int) -> list[str]:
    """Break a cell of words into lines of at most `width` columns."""
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]
