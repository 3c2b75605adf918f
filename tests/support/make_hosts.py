"""Write the tables with which the JavaScript client normalizes hosts.

Run this script as `python tests/support/make_hosts.py`. Both clients must map a host to the same
text, so the tables come from the libraries of the Python client: the characters of IDNA 2003
(RFC 3491) under Unicode 3.2 from Python's codec `idna`, and the public suffixes from the package
`publicsuffixlist`.
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
"""Database of Unicode 3.2, which IDNA 2003 uses."""
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_PROHIBITED = (
    *(stringprep.in_table_c12, stringprep.in_table_c22, stringprep.in_table_c3),
    *(stringprep.in_table_c4, stringprep.in_table_c5, stringprep.in_table_c6),
    *(stringprep.in_table_c7, stringprep.in_table_c8, stringprep.in_table_c9),
)
"""Tables of RFC 3454 whose characters RFC 3491 section 5 prohibits."""

_CHARACTERS = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
"""All characters of Unicode. Surrogates are no characters."""


def render_idna_table() -> str:
    """Return the source of the JavaScript module with the tables of characters of IDNA 2003."""
    return f"""\
// Tables of characters for IDNA 2003 under Unicode 3.2, written by tests/support/make_hosts.py. A
// table is a list of lengths in base 36: ranges of code points outside and inside alternately.

/** Characters that Unicode 3.2 does not have. */
export const LATER = "{_format_ranges(_is_later)}";
/** Characters that no label may contain (RFC 3491 section 5). */
export const PROHIBITED = "{_format_ranges(lambda c: any(table(c) for table in _PROHIBITED))}";
/** Characters written from right to left, and from left to right (RFC 3454, tables D.1 and D.2). */
export const RIGHT = "{_format_ranges(stringprep.in_table_d1)}";
export const LEFT = "{_format_ranges(stringprep.in_table_d2)}";
/** Characters whose mapping (RFC 3491 section 3) is not their lower case. */
export const MAPPED = {_format_mapping()};
"""


def render_suffixes() -> str:
    """Return the source of the JavaScript module with the tree of public suffixes.

    Labels are written from the last label of a name on, and the children of a label in brackets:
    "uk(co)" contains the suffixes uk and co.uk. A label with "?" is no suffix itself. A label with
    "!" is an exception from a wildcard.
    """
    return f"""\
// The public suffix list (https://publicsuffix.org/, Mozilla Public License 2.0), written by
// tests/support/make_hosts.py: labels from the last one on, each with its children in brackets. The
// mark "?" is for a label that is no suffix by itself, "!" for an exception from a wildcard.

export const SUFFIXES =
  "{_format_branches(_build_tree())}";
"""


def _is_later(character: str) -> bool:
    """Return whether a character came after Unicode 3.2."""
    return _OLD.category(character) == "Cn"


def _format_ranges(has_property: Callable[[str], Any]) -> str:
    """Write the ranges of code points that have a property, as lengths in base 36.

    The lengths alternate: of the first range without the property, of the range with the property
    that follows it, and so on. A last range without the property is left out.
    """
    inside = [bool(has_property(character)) for character in _CHARACTERS]
    # Surrogates have no properties. They continue the range before them.
    inside[0xD800:0xD800] = [inside[0xD7FF]] * 0x800
    changes = [code for code in range(1, len(inside)) if inside[code] != inside[code - 1]]
    ends = [0, *([0] if inside[0] else []), *changes, len(inside)]
    if not inside[-1]:
        ends.pop()
    return " ".join(_format_base36(end - start) for start, end in pairwise(ends))


def _format_mapping() -> str:
    """Write the characters whose mapping by RFC 3491 section 3 differs from their lower case.

    JavaScript computes the lower case, in the form NFKC, by the Unicode tables of the browser. The
    mapping of all other characters needs no table. Characters after Unicode 3.2 are prohibited.
    """
    mapped = {}
    for character in _CHARACTERS:
        if _is_later(character) or character.isascii():
            continue
        new = "" if stringprep.in_table_b1(character) else stringprep.map_table_b2(character)
        old = _OLD.normalize("NFKC", new)
        if old != unicodedata.normalize("NFKC", character.lower()):
            mapped[character] = old
    return json.dumps(mapped, separators=(",", ":"))


def _build_tree() -> dict[str, Any]:
    """Return the rules of the public suffix list as nested dictionaries of labels.

    The first level has the last labels of names, such as "uk". A dictionary with the key "" is the
    end of a rule, and a dictionary with the key "!" is the end of an exception.
    """
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


def _format_branches(tree: dict[str, Any]) -> str:
    """Write the labels of a tree, with the children of a label in brackets."""
    texts = []
    for label, branch in sorted(tree.items()):
        if label in ("", "!"):
            continue
        sign = "!" if "!" in branch else "" if "" in branch else "?"
        children = _format_branches(branch)
        texts.append(f"{label}{sign}({children})" if children else f"{label}{sign}")
    return ",".join(texts)


def _format_base36(number: int) -> str:
    """Write a non-negative integer in base 36."""
    digits = ""
    while True:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
        if not number:
            return digits


FILES = {"idna_table.js": render_idna_table, "suffixes.js": render_suffixes}
"""Maps the name of each file to the function that returns its text."""

if __name__ == "__main__":
    for name, make_text in FILES.items():
        (DATA / name).write_text(make_text(), encoding="utf-8")
