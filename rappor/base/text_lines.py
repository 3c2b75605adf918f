"""Lines and whole numbers of the files that people and other programs write: one reading of each.

Python's own functions know more than files do. `str.splitlines` ends a line at U+2028, U+0085 and
six other characters, `str.strip` takes U+00A0 and U+3000 away, and `int` reads `1_000` and digits
of other scripts. In a list of strings each of these is part of a string.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

WHITE_SPACE: Final = " \t\n\r\x0b\x0c"
"""The white space of ASCII: all that is ever stripped from a line."""

_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_NUMBER: Final = re.compile(r"[0-9]{1,40}(?:\.[0-9]{0,40})?(?:[eE][+-]?[0-9]{1,3})?")
"""A decimal as R, spreadsheets and data frames write counts: 12, 12.0, 1e+05, 2.5E6."""


def split_lines(text: str) -> list[str]:
    """Return the lines of a text, which end at LF, CR LF or CR, the last one perhaps at nothing."""
    lines = _LINE_END.split(text)
    return lines if lines[-1] else lines[:-1]


def split_filled_lines(text: str) -> list[str]:
    """Return the lines of a text that have more than white space, as they are."""
    return [line for line in split_lines(text) if line.strip(WHITE_SPACE)]


def read_whole_number(text: str) -> int:
    """Read a number of reports from a cell, whatever spelling of a decimal it has.

    Raises ValueError for any other text, for a number with a fraction, and from 2^63 on.
    """
    match = _NUMBER.fullmatch(text.strip(WHITE_SPACE))
    if match is None:
        raise ValueError("it is no number")
    number = Decimal(match[0])
    if number >= 1 << 63 or number != int(number):
        raise ValueError("it is no whole number below 2^63")
    return int(number)
