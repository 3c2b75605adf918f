"""Text of an association, for a terminal and for `print`.

An association shows whether two fields of a metric depend on each other, for example editor and
system. It contains the share of the reports of every pair of values, such as vim on linux. The text
has, in this order: a sentence with the answer, the table of all pairs (the cells) with the sums of
its rows and columns (the margins), the tables of the conditional shares within each row and within
each column, and footnotes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rappor.association.association import Association
from rappor.reporting.association_tables import (
    build_grids,
    describe_association,
    list_association_footnotes,
    shares_table,
)
from rappor.reporting.tables import Table, wrap

_MAX_LISTED_ROWS: Final = 30
"""Largest number of rows of a list, of margins or of cells. A longer list would push the answer
above it off the screen."""


def association_text(association: Association, *, width: int = 100) -> str:
    """Format an association as text.

    Parameters
    ----------
    association : the association.
    width : number of columns of the terminal. If the grid of cells is wider, the largest cells are
        listed instead, one in a line.
    """
    parts = [wrap(describe_association(association), width), ""]
    parts += _format_grids(association, width)
    parts += [wrap(sentence, width) for sentence in list_association_footnotes(association)]
    return "\n".join(parts)


def _format_grids(association: Association, width: int) -> Iterator[str]:
    """Yield the grids that are narrow enough, and a list of the largest cells if they are not."""
    cells, within_rows, within_columns = (grid.to_table() for grid in build_grids(association))
    conditional = (within_rows, within_columns)
    if _is_too_wide(cells, width):
        yield from _format_list(association, width)
    else:
        yield from _format_table(cells, width)
    if any(_is_too_wide(table, width) for table in conditional):
        yield "The conditional shares do not fit this window. --html and --csv have them."
        yield ""
        return
    for table in conditional:
        yield from _format_table(table, width)


def _is_too_wide(table: Table[Any], width: int) -> bool:
    """Return whether lines would be longer than `width`. Two spaces separate columns."""
    widths = table.column_widths()
    return sum(widths) + 2 * (len(widths) - 1) > width


def _format_table(table: Table[Any], width: int) -> Iterator[str]:
    """Yield the title and the lines of a table, and an empty line."""
    yield f"{table.title}:"
    yield table.to_text(width)
    yield ""


def _format_list(association: Association, width: int) -> Iterator[str]:
    """Yield the margins and the list of the largest cells, each cut to `_MAX_LISTED_ROWS`."""
    rows = list(association.rows())
    cells = sorted(
        (row for row in rows if row["kind"] == "cell"), key=lambda row: -float(row["share"])
    )
    margins = [row for row in rows if row["kind"] in ("row margin", "column margin")]
    for title, listed in (("Margins", margins), ("Largest cells", cells)):
        table = shares_table(association, listed[:_MAX_LISTED_ROWS], title)
        yield f"{title}:"
        yield table.to_text(width)
        if len(listed) > _MAX_LISTED_ROWS:
            yield f"{_MAX_LISTED_ROWS} of {len(listed):,} are listed. --html and --csv have all."
        yield ""
