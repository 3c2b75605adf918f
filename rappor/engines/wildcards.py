"""Paths with wildcards, as Hadoop reads them: * ? [ab] [^a] {one,other}, and a backslash.

Behind a wildcard, hidden names are left out, as in a folder. One that a path spells is meant.
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
"""What stands for other characters, unless a backslash is before it."""

_BRACES: Final = re.compile(r"\{([^{}]*)\}")
_ESCAPED: Final = re.compile(r"(?<!\\)\{[^}]*\\")
_FIRST: Final = 0xD800
"""Stands for the first special character, as itself, while braces are spelt out; no path has it."""


def spell_out(path: str) -> list[str]:
    """Return the paths that braces stand for, each as `glob` spells its wildcards.

    Raises FileError for a backslash within braces, which Hadoop drops from some of them.
    """
    if _ESCAPED.search(path):
        raise FileError(path, "it has a backslash within braces: name its paths one by one")
    spelt, rest = [], [re.sub(r"\\(.)", lambda found: _mark(found[1]), path, flags=re.DOTALL)]
    while rest:
        each = rest.pop(0)
        braces = _BRACES.search(each)
        if braces:
            start, end = braces.span()
            rest += [each[:start] + part + each[end:] for part in braces[1].split(",")]
        else:
            spelt.append(each.replace("[^", "[!").translate(_MARKED))
    return list(dict.fromkeys(spelt))


def _mark(character: str) -> str:
    return chr(_FIRST + SPECIAL.index(character)) if character in SPECIAL else character


_MARKED: Final = {ord(_mark(each)): glob.escape(each) for each in SPECIAL}


def lies_in(path: str, root: str) -> bool:
    """Return whether a path is, or is below, one that `spell_out` has returned."""
    parts, names = path.split("/"), root.rstrip("/").split("/")
    return len(parts) >= len(names) and all(map(fnmatchcase, parts, names))


def is_left_out(path: str, roots: Sequence[str]) -> bool:
    """Return whether a path is in some of the roots, but only by hidden names that none spells."""
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
    """Yield the files, folders and links to nothing that this machine has under a path."""
    for root in spell_out(path):
        found = sorted(glob.glob(root, include_hidden=True))  # noqa: PTH207  # the path has one beginning or none
        yield from (each for each in found if not is_left_out(each, [root]))
