"""HTML tables that readers can copy and sort, and sections that fold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from rappor.reporting.markup import Markup, breakable, join, shorten, tag

LISTED: Final = 1000
"""Largest number of rows of a listing. Further rows are only counted."""

_SHORT: Final = 12
"""Largest number of characters of a cell that is never broken, such as a date."""

_NAME_COLUMNS: Final = 120
"""Largest number of letters of a name in a table. A longer name ends with an ellipsis."""

Row = Mapping[str, Any]
Columns: TypeAlias = dict[str, Callable[[Row], str]]
"""Functions that format the cells of a column, by the column's title."""


def table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: int = 1,
    name: str = "",
) -> Markup:
    """Return a table whose first cells are the headings of their rows.

    The first `left` columns contain words and are aligned left. A table with a `name` can be sorted
    and filtered where scripts are allowed.
    """
    heads = [
        tag("th", title, scope="col", align="left" if place < left else "right",
            nowrap="" if len(title) <= _SHORT else None)
        for place, title in enumerate(columns)
    ]  # fmt: skip
    body = [
        tag(
            "tr",
            tag(
                "th",
                row[0],
                scope="row",
                align="left",
                nowrap="" if len(row[0]) <= _SHORT else None,
            ),
            *(
                tag(
                    "td",
                    cell,
                    align=None if place < left else "right",
                    nowrap=None if place < left and len(cell) > _SHORT else "",
                )
                for place, cell in enumerate(row[1:], start=1)
            ),
        )
        for row in rows
    ]
    whole = tag(
        "table",
        tag("caption", caption, align="left"),
        tag("thead", tag("tr", *heads)),
        tag("tbody", *body),
        border="1",
        cellpadding="4",
        cellspacing="0",
        class_="words" if left >= len(columns) else None,  # a phone shows its cells below another
        id=name or None,
        data_sorts="" if name else None,
    )
    kind = "wide long" if name else "wide"  # it scrolls in its own part where a phone is narrower
    return tag("div", whole, class_=kind, tabindex="0", role="region", aria_label=caption)


def listing(
    caption: str,
    columns: Mapping[str, Callable[[Row], str]],
    rows: Sequence[Row],
    *,
    left: int = 2,
    name: str = "",
) -> Iterator[Markup]:
    """Yield a table of the first rows, and a sentence if there are more rows."""
    cells = (tuple(write(row) for write in columns.values()) for row in rows[:LISTED])
    yield table(caption, tuple(columns), cells, left=left, name=name)
    if len(rows) > LISTED:
        yield tag("p", f"{LISTED:,} of {len(rows):,} rows are listed.")


def pairs(caption: str, entries: Iterable[tuple[str, str]]) -> Markup:
    """Return a table of names and values."""
    return table(caption, ("what", "value"), entries, left=2)


def name_of(text: str, note: str = "") -> Markup:
    """Return a name as a cell: isolated from the text direction, and broken between words only."""
    return join(tag("bdi", breakable(shorten(text, _NAME_COLUMNS))), note)


def candidate(row: Row) -> str:
    """Format the name of a row, with the number of its identifiability group."""
    return name_of(row["candidate"], f" (group {row['group']})" if "group" in row else "")


def section(title: str, *parts: Markup, name: str) -> Markup:
    """Return a section of a page under a heading."""
    return tag("section", tag("h2", title, id=name), *parts)


def folded(title: str, *parts: Markup, name: str) -> Markup:
    """Return a section of a page that readers unfold, without a script."""
    return tag("details", tag("summary", tag("strong", title)), *parts, id=name)
