"""Write the tables of hosts of the client in JavaScript: `python tests/support/make_hosts.py`.

They are Python's own: IDNA of 2003 (RFC 3491) under Unicode 3.2, and the public suffixes of the
installed package `publicsuffixlist`.
"""

from __future__ import annotations

import json
import stringprep
import sys
import unicodedata
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from publicsuffixlist import PSLFILE

DATA = Path(__file__).resolve().parents[2] / "client" / "javascript" / "data"
_OLD = unicodedata.ucd_3_2_0
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_PROHIBITED = (
    *(stringprep.in_table_c12, stringprep.in_table_c22, stringprep.in_table_c3),
    *(stringprep.in_table_c4, stringprep.in_table_c5, stringprep.in_table_c6),
    *(stringprep.in_table_c7, stringprep.in_table_c8, stringprep.in_table_c9),
)
_EVERYTHING = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]


def idna_table() -> str:
    """Return the source of the JavaScript module with the tables of characters of IDNA 2003."""
    return f"""\
// Tables of characters for IDNA 2003 under Unicode 3.2, written by tests/support/make_hosts.py. A
// table is a list of lengths in base 36: ranges of code points outside and inside alternately.

/** Characters that Unicode 3.2 does not have. */
export const LATER = "{_ranges(_is_later)}";
/** Characters that no label may contain (RFC 3491 section 5). */
export const PROHIBITED = "{_ranges(lambda c: any(table(c) for table in _PROHIBITED))}";
/** Characters written from right to left, and from left to right (RFC 3454, tables D.1 and D.2). */
export const RIGHT = "{_ranges(stringprep.in_table_d1)}";
export const LEFT = "{_ranges(stringprep.in_table_d2)}";
/** Characters whose mapping (RFC 3491 section 3) is not their lower case. */
export const MAPPED = {_mapped()};
"""


def suffixes() -> str:
    """Return the source of the JavaScript module with the tree of public suffixes.

    Labels are written from the last label of a name on, children in brackets. A label with "?" is
    no suffix itself. A label with "!" is an exception from a wildcard.
    """
    return f"""\
// The public suffix list (https://publicsuffix.org/, Mozilla Public License 2.0), written by
// tests/support/make_hosts.py: labels from the last one on, each with its children in brackets. The
// mark "?" is for a label that is no suffix by itself, "!" for an exception from a wildcard.

export const SUFFIXES =
  "{_branches(_tree())}";
"""


def _is_later(character: str) -> bool:
    return _OLD.category(character) == "Cn"


def _ranges(holds: Callable[[str], Any]) -> str:
    """Write the ranges of code points for which a property holds.

    The result is a list of lengths: outside, inside, outside, and so on.
    """
    inside = [bool(holds(character)) for character in _EVERYTHING]
    # Surrogates have no properties. They continue the range before them.
    inside[0xD800:0xD800] = [inside[0xD7FF]] * 0x800
    changes = [code for code in range(1, len(inside)) if inside[code] != inside[code - 1]]
    ends = [0, *([0] if inside[0] else []), *changes, len(inside)]
    if not inside[-1]:
        ends.pop()
    return " ".join(_base36(end - start) for start, end in pairwise(ends))


def _mapped() -> str:
    """Write the mapping of characters where it is not `lower`, or another one in Unicode 3.2."""
    mapped = {}
    for character in _EVERYTHING:
        if _is_later(character) or character.isascii():
            continue
        new = "" if stringprep.in_table_b1(character) else stringprep.map_table_b2(character)
        old = _OLD.normalize("NFKC", new)
        if old != unicodedata.normalize("NFKC", character.lower()):
            mapped[character] = old
    return json.dumps(mapped, separators=(",", ":"))


def _tree() -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for line in Path(PSLFILE).read_text(encoding="utf-8").splitlines():
        rule = line.lower().split(" ")[0].rstrip()
        if not rule or rule.startswith("//"):
            continue
        branch = tree
        for label in reversed(rule.lstrip("!").encode("idna").decode().split(".")):
            branch = branch.setdefault(label, {})
        branch["!" if rule.startswith("!") else ""] = {}
    return tree


def _branches(tree: dict[str, Any]) -> str:
    written = []
    for label, branch in sorted(tree.items()):
        if label in ("", "!"):
            continue
        mark = "!" if "!" in branch else "" if "" in branch else "?"
        below = _branches(branch)
        written.append(f"{label}{mark}({below})" if below else f"{label}{mark}")
    return ",".join(written)


def _base36(number: int) -> str:
    digits = ""
    while True:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
        if not number:
            return digits


FILES = {"idna_table.js": idna_table, "suffixes.js": suffixes}

if __name__ == "__main__":
    for name, written in FILES.items():
        (DATA / name).write_text(written(), encoding="utf-8")
