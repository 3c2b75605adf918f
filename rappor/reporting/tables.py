"""Tables as HTML: real ones, that can be read, copied and sorted; and what folds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from rappor.reporting.markup import Markup, breakable, join, shorten, tag

LISTED: Final = 1000
"""Rows of a listing; the others are counted."""

_SHORT: Final = 12
"""Characters of words that stay on one line, such as those of a date."""

_NAME_COLUMNS: Final = 120
"""Letters of a name in a table; longer ones are cut, and say so by an ellipsis."""

Row = Mapping[str, Any]
Columns: TypeAlias = dict[str, Callable[[Row], str]]
"""What writes the cells of a column, by its title."""


def table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: int = 1,
    name: str = "",
) -> Markup:
    """Return a table whose first cells head their rows; the first `left` columns are of words.

    One with a name can be sorted and filtered where scripts are allowed.
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
    """Yield a table of the first rows, a function for each column, and how many there are."""
    cells = (tuple(write(row) for write in columns.values()) for row in rows[:LISTED])
    yield table(caption, tuple(columns), cells, left=left, name=name)
    if len(rows) > LISTED:
        yield tag("p", f"{LISTED:,} of {len(rows):,} rows are listed.")


def pairs(caption: str, entries: Iterable[tuple[str, str]]) -> Markup:
    """Return a table of names and what belongs to each."""
    return table(caption, ("what", "value"), entries, left=2)


def name_of(text: str, note: str = "") -> Markup:
    """Return a name as a cell shows it: on its own direction, broken between its words only."""
    return join(tag("bdi", breakable(shorten(text, _NAME_COLUMNS))), note)


def candidate(row: Row) -> str:
    """Write the name of a row, with its group of indistinguishable ones."""
    return name_of(row["candidate"], f" (group {row['group']})" if "group" in row else "")


def section(title: str, *parts: Markup, name: str) -> Markup:
    """Return a part of a page under its heading."""
    return tag("section", tag("h2", title, id=name), *parts)


def folded(title: str, *parts: Markup, name: str) -> Markup:
    """Return a part of a page that is opened by whoever wants it, without a script."""
    return tag("details", tag("summary", tag("strong", title)), *parts, id=name)
