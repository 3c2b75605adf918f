"""Normalize every assigned character with the tables of the running Python, and print the results.

The program runs under any Python from 3.10 on, with the repository on its path. It prints JSON: the
version of Unicode, the assigned characters as runs [first, last], and the normal forms of the
characters that a normalizer changes.
"""

from __future__ import annotations

import itertools
import json
import sys
import unicodedata

from rappor.protocol.normalizers import normalize

CONTEXT = "{0}\n{0}\u0323\u0301\na{0}"
"""Text in which a character stands alone, under two combining marks, and after a letter with which
it may compose."""

IDEOGRAPHS = 0x3400
"""First code point of the ideographs. They have no case and compose with no other character, so
most are skipped."""

HOST = "www.{}a.example"
"""Name of a host that contains the character, before a letter with which it may compose."""


def list_assigned() -> list[int]:
    """Return the assigned code points, without those for private use."""
    points = (c for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000)
    return [c for c in points if unicodedata.category(chr(c)) not in ("Cn", "Co")]


def group_runs(points: list[int]) -> list[tuple[int, int]]:
    """Return the first and the last integer of each run of consecutive integers."""
    groups = itertools.groupby(enumerate(points), key=lambda pair: pair[1] - pair[0])
    ends = [[point for _, point in group] for _, group in groups]
    return [(group[0], group[-1]) for group in ends]


def normalize_character(point: int) -> list[str] | None:
    """Return the normal forms of a character; None if no normalizer changes it."""
    character = chr(point)
    is_letter = point >= IDEOGRAPHS and unicodedata.category(character) == "Lo"
    if is_letter and not unicodedata.decomposition(character):
        return None
    text = CONTEXT.format(character)
    results = [normalize(name, text) for name in ("nfc", "casefold")]
    if results == [text, text]:
        return None
    return [*results, normalize("host", HOST.format(character))]


def main() -> None:
    """Print version, characters and normal forms as JSON."""
    points = list_assigned()
    forms = {
        str(point): texts for point in points if (texts := normalize_character(point)) is not None
    }
    document = {
        "unicode": unicodedata.unidata_version,
        "runs": group_runs(points),
        "changed": forms,
    }
    json.dump(document, sys.stdout)


if __name__ == "__main__":
    main()
