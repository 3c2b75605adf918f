"""Parsers of HTML pages for tests: drawings, tables and elements of a page."""

from __future__ import annotations

import html
import html.parser
import re
from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"
"""Namespace of SVG as ElementTree writes it before the name of a tag."""


def parse_drawings(page: str) -> dict[str, ElementTree.Element]:
    """Return the SVG drawings of a page by their names (the attribute aria-label).

    A drawing inside another drawing, such as a legend, belongs to the outer drawing.
    """
    depth, start, sources = 0, 0, []
    for edge in re.finditer(r"<svg |</svg>", page):
        start = edge.start() if not depth else start
        depth += 1 if edge.group() == "<svg " else -1
        sources += [] if depth else [page[start : edge.end()]]
    roots = [ElementTree.fromstring(text) for text in sources]  # noqa: S314  # our own page
    return {str(root.get("aria-label")): root for root in roots if root.get("role") == "img"}


def read_text(element: ElementTree.Element) -> str:
    """Return the text of an element and of all its descendants, without titles and descriptions."""
    return "".join(
        part.text or "" for part in element.iter() if part.tag not in (f"{SVG}title", f"{SVG}desc")
    )


class _TableParser(html.parser.HTMLParser):
    """Parser that collects the cells of all tables by the captions of the tables."""

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


def parse_tables(page: str) -> dict[str, list[list[str]]]:
    """Return the tables of a page by their captions, each a list of rows, the heads first."""
    reader = _TableParser()
    reader.feed(page)
    return reader.tables


class _TagParser(html.parser.HTMLParser):
    """Parser that collects the start tags of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def parse_tags(page: str) -> list[tuple[str, dict[str, str | None]]]:
    """Return tag name and attributes of every element of a page, in the order of the page."""
    reader = _TagParser()
    reader.feed(page)
    return reader.tags
