"""The parts of a document for a company, such as a data sheet: title, sentences and tables.

`rappor.reporting.papers` writes a document as Markdown or HTML.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, sentences below the heading, and a table of texts.

    A section without `columns` has no table.
    """

    title: str
    texts: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A title and sections.

    `version` is the first 16 hexadecimal digits of the SHA-256 of the content. The same registry
    and the same program give the same version, so a company sees whether a document changed.
    """

    title: str
    sections: tuple[Section, ...]
    version: str = field(init=False)

    def __post_init__(self) -> None:
        parts = [self.title, *map(asdict, self.sections)]
        content = json.dumps(parts, ensure_ascii=True, sort_keys=True).encode()
        object.__setattr__(self, "version", hashlib.sha256(content).hexdigest()[:16])
