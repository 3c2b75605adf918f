"""Write rows as CSV that spreadsheets display and never compute."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

_MARK: Final = "'"
"""Character in front of a text that a spreadsheet would compute. Spreadsheets display the text
without it."""

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters of texts that spreadsheets compute, including full-width characters."""


def format_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the rows as CSV with a header. A column that a row does not have is empty.

    A text that a spreadsheet would compute as a formula gets an apostrophe in front. A text that
    begins with an apostrophe gets one, too, so that two texts never become equal: a reader removes
    one apostrophe from every text that begins with one. A row with a carriage return has all its
    fields in quotes, because Python's writer does not quote a carriage return.
    """
    text = io.StringIO()
    plain = csv.writer(text, lineterminator="\n")
    quoted = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    plain.writerow(columns)
    for row in rows:
        # Python's writer leaves a carriage return without quotes, and some readers start a new row
        # there.
        fields = [_format_field(row.get(name, "")) for name in columns]
        has_carriage_return = any(isinstance(field, str) and "\r" in field for field in fields)
        (quoted if has_carriage_return else plain).writerow(fields)
    return text.getvalue()


def _format_field(field: Any) -> Any:
    """Put an apostrophe in front of a text that a spreadsheet would compute.

    A negative zero becomes 0.0. Other numbers are unchanged.
    """
    if isinstance(field, float):
        return field + 0.0
    is_marked = isinstance(field, str) and field.startswith((*_FORMULA, _MARK))
    return f"{_MARK}{field}" if is_marked else field
