"""Parsers of HTML pages for tests: drawings, tables and elements of a page."""

from __future__ import annotations

import html
import html.parser
import re
from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"


def drawings(page: str) -> dict[str, ElementTree.Element]:
    """Return the outermost drawings of a page by their names (the attribute aria-label)."""
    depth, start, sources = 0, 0, []
    for edge in re.finditer(r"<svg |</svg>", page):
        start = edge.start() if not depth else start
        depth += 1 if edge.group() == "<svg " else -1
        sources += [] if depth else [page[start : edge.end()]]
    roots = [ElementTree.fromstring(text) for text in sources]  # noqa: S314  # our own page
    return {str(root.get("aria-label")): root for root in roots if root.get("role") == "img"}


def text_of(element: ElementTree.Element) -> str:
    """Return the text of an element and of all its descendants, without titles and descriptions."""
    return "".join(
        part.text or "" for part in element.iter() if part.tag not in (f"{SVG}title", f"{SVG}desc")
    )


class _Tables(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self._rows: list[list[str]] = []
        self._caption = ""
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        if tag == "table":
            self._rows, self._caption = [], ""
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
        if tag in ("caption", "td", "th"):
            self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""
        elif tag in ("thead", "tbody"):
            # The end tags of cells are optional, so a cell may end with its table part.
            self._inside = ""
        elif tag == "table":
            self.tables[self._caption] = self._rows

    def handle_data(self, data: str) -> None:
        if self._inside == "caption":
            self._caption += data
        elif self._inside:
            self._rows[-1][-1] += data


def tables(page: str) -> dict[str, list[list[str]]]:
    """Return the tables of a page by their captions, each a list of rows, the heads first."""
    reader = _Tables()
    reader.feed(page)
    return reader.tables


class _Tags(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def tags(page: str) -> list[tuple[str, dict[str, str | None]]]:
    """Return every element of a page with its attributes."""
    reader = _Tags()
    reader.feed(page)
    return reader.found
