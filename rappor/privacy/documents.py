"""Documents for a company, such as a data sheet or consent texts: title, sentences and tables.

The modules of this package write the content as `Document`, without markup.
`rappor.reporting.papers` renders a document as Markdown or HTML.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Heading, paragraphs below the heading, and one table.

    Attributes
    ----------
    title : the heading.
    texts : the paragraphs, in order.
    columns : headings of the table's columns; empty for a section without a table.
    rows : the table's rows. Each row has one text for each column.
    """

    title: str
    texts: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Title and sections of a document.

    Attributes
    ----------
    title : the title.
    sections : the sections, in order.
    version : first 16 hexadecimal digits of the SHA-256 of the content. The same registry and the
        same program give the same version, so a company sees whether a document changed.
    """

    title: str
    sections: tuple[Section, ...]
    version: str = field(init=False)

    def __post_init__(self) -> None:
        parts = [self.title, *map(asdict, self.sections)]
        content = json.dumps(parts, ensure_ascii=True, sort_keys=True).encode()
        # A frozen dataclass refuses assignment, also in its own __post_init__.
        object.__setattr__(self, "version", hashlib.sha256(content).hexdigest()[:16])
