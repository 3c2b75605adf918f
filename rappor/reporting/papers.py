"""Documents for a company, such as a data sheet, as Markdown and as one HTML file.

`rappor.privacy` writes the content as a `Document` of sections with texts and tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rappor.privacy.documents import Document, Section
from rappor.reporting.document import document, header
from rappor.reporting.markup import Markup, tag, visible
from rappor.reporting.tables import table_of_cells

_PLACEHOLDER: Final = "[to be filled in]"
"""Placeholder of a text that people have to write. Its brackets are the only brackets that are not
escaped, so that people can search for it."""


def paper_markdown(paper: Document) -> str:
    """Return a document as Markdown, with its version below the title."""
    lines = [f"# {_escape_markdown(paper.title)}", "", f"Version `{paper.version}`", ""]
    for section in paper.sections:
        lines += _list_lines(section)
    return "\n".join(lines)


def paper_page(paper: Document) -> str:
    """Return a document as one HTML file."""
    parts = (_build_section(section) for section in paper.sections)
    return document(paper.title, header(paper.title, f"Version {paper.version}"), *parts)


def _list_lines(section: Section) -> Iterator[str]:
    """Yield the lines of a section: its heading, its texts, and its table.

    Several texts become a list.
    """
    yield from (f"## {_escape_markdown(section.title)}", "")
    bullet = "- " if len(section.texts) > 1 else ""
    yield from (f"{bullet}{_escape_markdown(text)}" for text in section.texts)
    if section.texts:
        yield ""
    if section.columns:
        yield f"| {' | '.join(section.columns)} |"
        yield f"|{'---|' * len(section.columns)}"
        yield from (f"| {' | '.join(map(_escape_markdown, row))} |" for row in section.rows)
        yield ""


def _escape_markdown(text: str) -> str:
    """Return text that Markdown shows unchanged, in one line, so that it fits a cell of a table."""
    line = " ".join(visible(text).split()) if "\n" in text else visible(text)
    for sign in "\\|<>*[]":
        line = line.replace(sign, f"\\{sign}")
    return line.replace(f"\\{_PLACEHOLDER[:-1]}\\]", _PLACEHOLDER)


def _build_section(section: Section) -> Markup:
    """Return a section of a page."""
    parts = [tag("p", text) for text in section.texts]
    if section.columns:
        n_texts = len(section.columns)
        table = table_of_cells(section.title, section.columns, section.rows, n_texts=n_texts)
        parts.append(table.to_html())
    return tag("section", tag("h2", section.title), *parts)
