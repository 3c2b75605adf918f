"""What a paper of a company is made of: titles, sentences and tables, in one version.

The version is the SHA-256 of the content: the same registry and program give the same one.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, sentences below it, and a table of texts, if it has columns."""

    title: str
    texts: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A title and its sections; `version` is 16 hex digits."""

    title: str
    sections: tuple[Section, ...]
    version: str = field(init=False)

    def __post_init__(self) -> None:
        parts = [self.title, *map(asdict, self.sections)]
        content = json.dumps(parts, ensure_ascii=True, sort_keys=True).encode()
        object.__setattr__(self, "version", hashlib.sha256(content).hexdigest()[:16])
