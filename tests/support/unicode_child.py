"""Normalise every assigned character with this interpreter's tables, for one that has others.

It runs under any Python from 3.10 on, with the repository on its path. It prints JSON: the version
of Unicode, the assigned characters as runs [first, last], and by character what it becomes where
that is not the character itself.
"""

from __future__ import annotations

import itertools
import json
import sys
import unicodedata

from rappor.protocol.normalizers import normalize

CONTEXT = "{0}\n{0}\u0323\u0301\na{0}"
"""Alone, under two marks, and after a letter that it may compose with."""

IDEOGRAPHS = 0x3400
"""From here on nearly all are letters without case that nothing composes with."""

HOST = "www.{}a.example"


def assigned() -> list[int]:
    """Return the code points that are characters here, but for those of private use."""
    points = (c for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000)
    return [c for c in points if unicodedata.category(chr(c)) not in ("Cn", "Co")]


def runs(points: list[int]) -> list[tuple[int, int]]:
    """Return the first and the last of each run of consecutive integers."""
    groups = itertools.groupby(enumerate(points), key=lambda pair: pair[1] - pair[0])
    ends = [[point for _, point in group] for _, group in groups]
    return [(group[0], group[-1]) for group in ends]


def changed(point: int) -> list[str] | None:
    """Return all that a character becomes; None if no normalizer changes it."""
    character = chr(point)
    letter = point >= IDEOGRAPHS and unicodedata.category(character) == "Lo"
    if letter and not unicodedata.decomposition(character):
        return None
    text = CONTEXT.format(character)
    results = [normalize(name, text) for name in ("nfc", "casefold")]
    if results == [text, text]:
        return None
    return [*results, normalize("host", HOST.format(character))]


def main() -> None:
    """Print what this interpreter does."""
    points = assigned()
    found = {str(point): texts for point in points if (texts := changed(point)) is not None}
    document = {"unicode": unicodedata.unidata_version, "runs": runs(points), "changed": found}
    json.dump(document, sys.stdout)


if __name__ == "__main__":
    main()
