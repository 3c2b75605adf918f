"""Documents for a company, such as a data sheet, as Markdown and as one HTML file.

`rappor.privacy` writes the content as a `Document` of sections with texts and tables. The option
`--paper` of `rappor datasheet` chooses a document, so this module calls a `Document` a paper. The
function `rappor.reporting.document.document` is another thing: it returns an HTML file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from rappor.privacy.documents import Document, Section
from rappor.reporting.document import document, header
from rappor.reporting.markup import Markup, replace_invisible, tag
from rappor.reporting.tables import table_of_cells

_SIGN: Final = re.compile(r"[\\|<>*~`\[\]]|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w+;)")
"""Matches a sign that Markdown or HTML interprets anywhere in a line. An underscore within a word,
as in `min_reports`, and the sign & of "R & D" have no meaning."""

_BLOCK_START: Final = re.compile(
    r"^(\d*)(#(?=#*(?: |$))|-(?=-*(?: |$))|\+(?= |$)|(?<=\d)[.)](?= |$))"
)
"""Matches the beginning of a line that is a heading, a list or a rule. Its second group is the sign
that needs a backslash: of "1. Which editor?", the point."""

_PLACEHOLDER: Final = "[to be filled in]"
"""Placeholder of a text that people have to write. Its brackets are the only brackets that are not
escaped, so that people can search for it."""

_CODE_SPAN: Final = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
"""Matches a code span as CommonMark defines it: two runs of backticks of the same length, and the
text between them. Only such a text may stay unescaped. If this pattern matched more than CommonMark
does, a tag in the text would become HTML."""


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
        for row in section.rows:
            yield f"| {' | '.join(_escape_markdown(text, is_cell=True) for text in row)} |"
        yield ""


def _escape_markdown(text: str, *, is_cell: bool = False) -> str:
    """Return a text as one line of Markdown. With `is_cell`, the line fits a cell of a table.

    A reader sees the text unchanged, except that backticks mark code.
    """
    line, parts, end = replace_invisible(_join_lines(text)), [], 0
    for code in _CODE_SPAN.finditer(line):
        # Markdown shows each character of a code span, also a backslash. A cell is the exception: a
        # bar would end the cell, and Markdown removes the backslash before the bar.
        parts += [
            _escape_signs(line[end : code.start()]),
            code[0].replace("|", "\\|") if is_cell else code[0],
        ]
        end = code.end()
    escaped_text = _escape_block_sign("".join((*parts, _escape_signs(line[end:]))))
    return escaped_text.replace(_escape_signs(_PLACEHOLDER), _PLACEHOLDER)


def _escape_signs(text: str) -> str:
    """Put a backslash before each sign that Markdown or HTML would interpret."""
    return _SIGN.sub(r"\\\g<0>", text)


def _escape_block_sign(line: str) -> str:
    """Put a backslash before a sign that would make the line a heading, a list or a rule."""
    return _BLOCK_START.sub(r"\1\\\2", line)


def _join_lines(text: str) -> str:
    """Return a text with spaces in place of line breaks.

    A description in a registry may have several lines. Markdown and pages would show a picture of
    the control character in place of each line break (`replace_invisible`).
    """
    return " ".join(line.strip() for line in text.splitlines())


def _build_section(section: Section) -> Markup:
    """Return a section of a page."""
    parts = [tag("p", *_mark_code(_join_lines(text))) for text in section.texts]
    if section.columns:
        rows = [[_join_lines(text) for text in row] for row in section.rows]
        n_texts = len(section.columns)
        table = table_of_cells(section.title, section.columns, rows, n_texts=n_texts)
        parts.append(table.to_html())
    return tag("section", tag("h2", section.title), *parts)


def _mark_code(text: str) -> Iterator[str]:
    """Yield the parts of a text in order. Code spans, as in Markdown, are elements `code`."""
    end = 0
    for code in _CODE_SPAN.finditer(text):
        yield text[end : code.start()]
        yield tag("code", code[2])
        end = code.end()
    yield text[end:]
