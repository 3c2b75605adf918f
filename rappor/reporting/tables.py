"""Tables as HTML: real ones, that can be read, copied and sorted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rappor.reporting.markup import Markup, join, tag

_SHORT: Final = 12
"""Characters of words that stay on one line, such as those of a date."""


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
        tag("th", title, scope="col", align="left" if place < left else "right")
        for place, title in enumerate(columns)
    ]
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row", align="left"),
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
        id=name or None,
        data_sorts="" if name else None,
    )
    return scrolling(whole, caption, kind="wide long" if name else "wide")


def pairs(caption: str, entries: Iterable[tuple[str, str]]) -> Markup:
    """Return a table of names and what belongs to each."""
    return table(caption, ("what", "value"), entries, left=2)


def scrolling(content: Markup, label: str, *, kind: str = "wide") -> Markup:
    """Return what may be wider than a phone in a part of its own that scrolls."""
    return tag("div", content, class_=kind, tabindex="0", role="region", aria_label=label)


def figure(caption: str, drawing: Markup, description: str, *, name: str = "") -> Markup:
    """Return a drawing under the sentence that it shows, with a description.

    One with a name has an address on the page, and a link to it.
    """
    words: list[str] = [tag("strong", caption), " ", description]
    if name:
        label = f"Link to the figure of {caption}"
        words.append(tag("a", "link", href=f"#{name}", aria_label=label))
    return tag(
        "figure",
        tag("figcaption", join(*words)),
        scrolling(drawing, caption),
        id=name or None,
    )
