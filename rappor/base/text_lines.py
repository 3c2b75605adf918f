"""Lines and numbers in text files of people and of other programs.

Python's own functions treat more characters as special than text files do. `str.splitlines` ends a
line at U+2028, U+0085 and six other characters, `str.strip` removes U+00A0 and U+3000, and `int`
and `float` accept `1_000` and digits of other scripts. In a list of candidate strings, each of
these characters is part of a string, so the functions here treat only ASCII characters as special.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Final

WHITE_SPACE: Final = " \t\n\r\x0b\x0c"
"""Readers strip the white space of ASCII from a line, and no other characters."""

_LINE_END: Final = re.compile(r"\r\n|\r|\n")
"""Matches a line end: CR LF, CR or LF."""

_COUNT: Final = re.compile(r"[0-9]{1,40}(?:\.[0-9]{0,40})?(?:[eE][+-]?[0-9]{1,3})?")
"""Matches a decimal number in the notations of R, spreadsheets and data frames: 12, 12.0, 1e+05,
2.5E6. The limit of 40 digits bounds the time: Python takes quadratic time for millions of
digits."""

_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
"""Matches a decimal number of programming languages and spreadsheets: 12, -.5, 7.5e-01."""


def split_lines(text: str) -> list[str]:
    r"""Split a text into lines, which end at LF, CR LF or CR. The last line may have no end.

    Examples
    --------
    >>> split_lines("a\r\nb\n")
    ['a', 'b']
    """
    # If the text ends with a line end, the last piece is empty and is no line.
    lines = _LINE_END.split(text)
    return lines if lines[-1] else lines[:-1]


def split_filled_lines(text: str) -> list[str]:
    """Split a text into lines, and drop lines that contain only white space.

    White space at the ends of other lines stays.
    """
    return [line for line in split_lines(text) if line.strip(WHITE_SPACE)]


def read_whole_number(text: str) -> int:
    """Read a number of reports from a cell of a table, in any decimal notation.

    Raises
    ------
    ValueError
        The text is not a number, has a fraction, or is 2^63 or more.

    Examples
    --------
    >>> read_whole_number(" 2.5E6")
    2500000
    """
    match = _COUNT.fullmatch(text.strip(WHITE_SPACE))
    if match is None:
        raise ValueError("a cell must be a whole number")
    # A float would round counts above 2^53.
    number = Decimal(match[0])
    if number >= 1 << 63 or number != int(number):
        raise ValueError("a cell must be a whole number below 2^63")
    return int(number)


def read_decimal(text: str) -> float:
    """Read a weight or a probability from a cell of a table, in any decimal notation.

    Raises
    ------
    ValueError
        The text is not a number, such as nan or 1_000, or the number is too large for a float.

    Examples
    --------
    >>> read_decimal(" 7.5e-01")
    0.75
    """
    match = _DECIMAL.fullmatch(text.strip(WHITE_SPACE))
    number = math.inf if match is None else float(match[0])
    if not math.isfinite(number):
        raise ValueError("a cell must be a number")
    return number


def is_blank_row(row: Sequence[str]) -> bool:
    """Return whether the row of a CSV reader is a line that is empty or only white space."""
    return not "".join(row).strip(WHITE_SPACE) and len(row) < 2
