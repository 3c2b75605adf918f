"""Rows as CSV that spreadsheets show and never compute."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

_MARK: Final = "'"
"""Stands before a text that a spreadsheet would compute, which shows the text without it."""

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""How texts begin that spreadsheets compute, also in full width."""


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the rows as CSV with a header; columns that a row does not have are empty.

    A text that a spreadsheet would compute as a formula has an apostrophe before it, and so has one
    that begins with an apostrophe. So two texts never become one: whoever reads the table takes
    one apostrophe away from every text that begins with one. A row with a
    carriage return, which Python's writer leaves bare, has all its fields in quotes.
    """
    text = io.StringIO()
    plain = csv.writer(text, lineterminator="\n")
    quoted = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    plain.writerow(columns)
    for row in rows:
        fields = [_shown(row.get(name, "")) for name in columns]
        breaks = any(isinstance(field, str) and "\r" in field for field in fields)
        (quoted if breaks else plain).writerow(fields)
    return text.getvalue()


def _shown(field: Any) -> Any:
    is_marked = isinstance(field, str) and field.startswith((*_FORMULA, _MARK))
    return f"{_MARK}{field}" if is_marked else field
