"""Paths with wildcards in the syntax of Hadoop: * ? [ab] [^a] {one,other}, and a backslash.

A wildcard does not match hidden names, as in the search of a folder. A hidden name that the path
spells out is read.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

from rappor.base.errors import FileError
from rappor.engines.files import is_hidden

SPECIAL: Final = "{}[]*?,\\"
"""Characters that have a special meaning in a path, except after a backslash."""

_BRACES: Final = re.compile(r"\{([^{}]*)\}")
"""Pattern of braces without braces inside."""

_ESCAPED: Final = re.compile(r"(?<!\\)\{[^}]*\\")
"""Pattern of a backslash within braces."""

_FIRST: Final = 0xD800
"""Code of the character that replaces the first special character while braces are expanded.

The code is half of a UTF-16 pair, which no path contains.
"""


def spell_out(path: str) -> list[str]:
    """Expand braces, and return the paths with wildcards in the syntax of `glob`.

    Raises FileError for a backslash within braces. Hadoop drops it from some of the paths.
    """
    if _ESCAPED.search(path):
        raise FileError(path, "it has a backslash within braces: name its paths one by one")
    expanded, rest = [], [re.sub(r"\\(.)", lambda match: _mark(match[1]), path, flags=re.DOTALL)]
    while rest:
        pattern = rest.pop(0)
        braces = _BRACES.search(pattern)
        if braces:
            start, end = braces.span()
            rest += [pattern[:start] + part + pattern[end:] for part in braces[1].split(",")]
        else:
            expanded.append(pattern.replace("[^", "[!").translate(_MARKED))
    return list(dict.fromkeys(expanded))


def _mark(character: str) -> str:
    """Replace a special character by its mark, so that it is not read as a wildcard."""
    return chr(_FIRST + SPECIAL.index(character)) if character in SPECIAL else character


_MARKED: Final = {ord(_mark(character)): glob.escape(character) for character in SPECIAL}
"""Text that `glob` reads as the special character itself, by the code of its mark."""


def lies_in(path: str, root: str) -> bool:
    """Return whether a path is a path of `spell_out`, or lies below it."""
    parts, names = path.split("/"), root.rstrip("/").split("/")
    return len(parts) >= len(names) and all(map(fnmatchcase, parts, names))


def is_left_out(path: str, roots: Sequence[str]) -> bool:
    """Return whether a path lies in some roots, but only by hidden names that none spells out."""
    parts = path.split("/")
    if not any(map(is_hidden, parts)):
        return False
    inside = [root.rstrip("/").split("/") for root in roots if lies_in(path, root)]
    return bool(inside) and all(
        any(is_hidden(part) for part in parts[len(names) :])
        or any(
            is_hidden(part) and name[0] in "*?[" for part, name in zip(parts, names, strict=False)
        )
        for names in inside
    )


def matches(path: str) -> Iterator[str]:
    """Yield the files, folders and broken links of this machine that match a path."""
    for root in spell_out(path):
        # `Path.glob` needs a folder to begin at, and the path may be absolute or relative.
        matched = sorted(glob.glob(root, include_hidden=True))  # noqa: PTH207
        yield from (name for name in matched if not is_left_out(name, [root]))
