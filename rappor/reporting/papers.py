"""Papers for a company, as Markdown and as one HTML file."""

from __future__ import annotations

from collections.abc import Iterator

from rappor.privacy.documents import Document, Section
from rappor.reporting.document import document, header
from rappor.reporting.markup import Markup, tag, visible
from rappor.reporting.tables import table


def paper_markdown(paper: Document) -> str:
    """Return a paper as Markdown, with its version below the title."""
    lines = [f"# {_inline(paper.title)}", "", f"Version `{paper.version}`", ""]
    for section in paper.sections:
        lines += _lines(section)
    return "\n".join(lines)


def paper_page(paper: Document) -> str:
    """Return a paper as one HTML file."""
    parts = (_section(section) for section in paper.sections)
    return document(paper.title, header(paper.title, f"Version {paper.version}"), *parts)


def _lines(section: Section) -> Iterator[str]:
    yield from (f"## {_inline(section.title)}", "")
    for text in section.texts:
        yield from (f"- {_inline(text)}" if len(section.texts) > 1 else _inline(text),)
    if section.texts:
        yield ""
    if section.columns:
        yield f"| {' | '.join(section.columns)} |"
        yield f"|{'---|' * len(section.columns)}"
        yield from (f"| {' | '.join(map(_inline, row))} |" for row in section.rows)
        yield ""


def _inline(text: str) -> str:
    """Return a text that Markdown shows as it is, on one line and in one cell."""
    shown = " ".join(visible(text).split()) if "\n" in text else visible(text)
    for sign in "\\|<>*[]":
        shown = shown.replace(sign, f"\\{sign}")
    return shown.replace("\\[to be filled in\\]", "[to be filled in]")


def _section(section: Section) -> Markup:
    texts = [tag("p", text) for text in section.texts]
    if section.columns:
        left = len(section.columns)
        texts.append(table(section.title, section.columns, section.rows, left=left))
    return tag("section", tag("h2", section.title), *texts)
