r"""Paths with wildcards in the syntax of Hadoop: * ? [ab] [^a] {one,other}, and a backslash.

Spark lists files by such paths. This module finds the same files on a machine, so that the two
lists can be compared (`rappor.engines.spark_files`). Python's `glob` has no braces, writes [^a] as
[!a], and escapes a character as [*] instead of with a backslash. So `spell_out` translates a path:

    lake/{a,b}/day=*      ->  lake/a/day=*  and  lake/b/day=*
    lake/[^x]*            ->  lake/[!x]*
    lake/what\?           ->  lake/what[?]

Hidden names mark the internal files of an engine (`rappor.engines.files.is_hidden`), for example
`_SUCCESS`. A wildcard does not match a hidden name. A hidden name that stands in the path without a
wildcard is read: `lake/_old/day=1` is read, and `lake/*/day=1` does not read it.
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
"""Pattern of the innermost braces, which contain no further braces. Group 1 is their content."""

_ESCAPED: Final = re.compile(r"(?<!\\)\{[^}]*\\")
"""Matches an opening brace and the text up to a backslash within the braces."""

_FIRST_MARK: Final = 0xD800
"""Code of the character that replaces an escaped `{`, the first of `SPECIAL`, while braces are
expanded. The next codes replace the next special characters.

The codes are halves of UTF-16 pairs, which no path contains.
"""


def spell_out(path: str) -> list[str]:
    """Expand braces, and return the paths with wildcards in the syntax of `glob`.

    Raises FileError for a backslash within braces. Hadoop drops the backslash from some of the
    paths.
    """
    if _ESCAPED.search(path):
        raise FileError(path, "it has a backslash within braces: name its paths one by one")
    # Replace escaped characters by their marks first, so that an escaped brace is not expanded.
    marked = re.sub(r"\\(.)", lambda match: _mark(match[1]), path, flags=re.DOTALL)
    expanded, patterns = [], [marked]
    while patterns:
        pattern = patterns.pop(0)
        braces = _BRACES.search(pattern)
        if braces:
            # Braces may be nested: each expansion is searched for braces again.
            start, end = braces.span()
            patterns += [pattern[:start] + part + pattern[end:] for part in braces[1].split(",")]
        else:
            expanded.append(pattern.replace("[^", "[!").translate(_MARKED))
    return list(dict.fromkeys(expanded))


def _mark(character: str) -> str:
    """Replace a special character by its mark, so that it is not read as a wildcard."""
    return chr(_FIRST_MARK + SPECIAL.index(character)) if character in SPECIAL else character


_MARKED: Final = {ord(_mark(character)): glob.escape(character) for character in SPECIAL}
"""Text that `glob` reads as the special character itself, by the code of its mark."""


def lies_in(path: str, root: str) -> bool:
    """Return whether a path matches a root, or lies below a folder that matches the root.

    Parameters
    ----------
    path : path of a file or folder.
    root : a path of `spell_out`, with wildcards.
    """
    parts, names = path.split("/"), root.rstrip("/").split("/")
    return len(parts) >= len(names) and all(map(fnmatchcase, parts, names))


def is_left_out(path: str, roots: Sequence[str]) -> bool:
    """Return whether a path is omitted from the search below some roots, because of hidden names.

    A root is a path of `spell_out`. The search below one root omits the path in two cases:

    - A name of the path below the root is hidden. Example: root lake, path lake/_tmp/a.csv.
    - A wildcard of the root matches a hidden name. Example: root lake/*, path lake/_tmp.

    A path below several roots is left out if the searches below all of them omit it.
    """
    parts = path.split("/")
    if not any(map(is_hidden, parts)):
        return False
    roots_above = [root.rstrip("/").split("/") for root in roots if lies_in(path, root)]

    def omits(names: list[str]) -> bool:
        """Return whether the search below the root with these names omits the path."""
        has_hidden_below = any(is_hidden(part) for part in parts[len(names) :])
        # Only a wildcard at the beginning of a name can match the dot or the underscore.
        has_hidden_match = any(
            is_hidden(part) and name[0] in "*?[" for part, name in zip(parts, names, strict=False)
        )
        return has_hidden_below or has_hidden_match

    return bool(roots_above) and all(map(omits, roots_above))


def find_matches(path: str) -> Iterator[str]:
    """Yield the files, folders and broken links of this machine that match a path."""
    for root in spell_out(path):
        # `Path.glob` needs a folder to begin at, and the path may be absolute or relative.
        matched = sorted(glob.glob(root, include_hidden=True))  # noqa: PTH207
        yield from (name for name in matched if not is_left_out(name, [root]))
