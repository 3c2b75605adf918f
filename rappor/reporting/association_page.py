"""Page of an association: the answer, three tables in colours, and all shares with intervals.

`rappor associate --html` writes the page, and a page of the collector contains the same content.
Each table is a heat map. The colour of a cell shows the size of its share, and the cell contains
the share with its standard error. Without a style sheet the numbers remain.
"""

from __future__ import annotations

import math
from typing import Final

from rappor.association.association import Association
from rappor.reporting.association_tables import (
    ALL,
    Grid,
    GridCell,
    build_grids,
    describe_association,
    list_association_footnotes,
    shares_table,
)
from rappor.reporting.document import Content, collapsible, header, section
from rappor.reporting.markup import Markup, shorten, tag
from rappor.reporting.numbers import format_short_percent
from rappor.reporting.tables import format_name

_LEVELS: Final = 6
"""Number of colours of the cells. `page.css` has a class for each."""


def association_page(association: Association) -> str:
    """Return the page about an association."""
    return association_content(association).page()


def association_content(association: Association) -> Content:
    """Return the content of the page, for a page of its own or a part of one."""
    fields = f"{association.row_field} and {association.column_field}"
    title = f"{shorten(association.metric, 60) or 'Association'}: {fields}"
    footnotes = list(list_association_footnotes(association))
    # Warnings of the decode come last, and have the colour of warnings.
    n_sentences = len(footnotes) - len(association.warnings)
    head = header(title, describe_association(association), warnings=footnotes[n_sentences:])
    cells, within_rows, within_columns = build_grids(association)
    legend = tag("p", _format_legend(association), class_="note")
    sections = (
        section("Cells and margins", heat_table(cells), legend, name="cells"),
        section(f"Within each {association.row_field}", heat_table(within_rows), name="rows"),
        section(
            f"Within each {association.column_field}", heat_table(within_columns), name="columns"
        ),
    )
    numbers = shares_table(association, list(association.rows()))
    return Content(
        title,
        (
            head,
            *sections,
            collapsible("All shares as numbers", numbers.to_html(name="shares"), name="numbers"),
            tag("section", *(tag("p", text) for text in footnotes[:n_sentences]), id="notes"),
        ),
    )


def heat_table(grid: Grid) -> Markup:
    """Return a grid as a table in colours. A narrow window keeps the names of the rows visible."""
    heads = [tag("th", title, scope="col") for title in (grid.row_field, *grid.columns)]
    body = [
        tag("tr", tag("th", format_name(name), scope="row"), *map(_build_cell, cells))
        for name, cells in grid.rows
    ]
    table = tag(
        "table",
        tag("caption", grid.title, align="left"),
        tag("thead", tag("tr", *heads)),
        tag("tbody", *body),
        border="1",
        cellpadding="4",
        cellspacing="0",
        class_="heat",
    )
    return tag("div", table, class_="wide", tabindex="0", role="region", aria_label=grid.title)


def _build_cell(cell: GridCell) -> Markup:
    """Return a cell of a heat table. A pointer shows its interval."""
    level = None
    # A share of at most 0 has no colour.
    if cell.heat:
        level = f"heat-{math.ceil(cell.heat * _LEVELS)}"
    parts = [" ", tag("small", cell.error)] if cell.error else []
    return tag("td", cell.share, *parts, class_=level, title=f"interval {cell.interval}")


def _format_legend(association: Association) -> str:
    """Describe the colours, the errors and the margins."""
    return (
        "A stronger colour is a larger share of the table. After \u00b1 is the standard error in "
        f"percentage points; a pointer shows the {format_short_percent(association.confidence)} "
        f'interval. "{ALL}" is the sum of the listed cells of a row or a column. Noise makes '
        "shares of combinations that nobody has negative in half of the cases."
    )
