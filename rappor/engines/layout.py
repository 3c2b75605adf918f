"""Layout of stored reports: the columns that every engine reads, and the reasons for a refusal.

A stored report is a row of a table, in a file or a warehouse:

    format   integer, 1
    metric   text
    params   text: the fingerprint of the parameter set
    day      date; the column may be missing, and its cells may be null
    cohort   integer, 0 to m - 1
    bits     binary of ceil(k/8) bytes; in CSV and JSON, text in base64url without padding

Other columns are ignored. Every row repeats the format, because rows are copied between files. The
fingerprint would not show a change of the format, for example of the order of the bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rappor.base.errors import ReportError

FORMAT: Final = 1
"""Version of the layout, and of the meaning of its bits. Every row contains it."""

COLUMNS: Final = ("format", "metric", "params", "cohort", "bits")
"""Names of the columns that every report has."""

DAY: Final = "day"
"""Name of the column that a report may have."""

REASONS: Final = {
    "malformed": "a line must be a CSV row with a cell for each column, or a JSON object",
    "format": f"format must be {FORMAT}",
    "unknown-metric": "metric must be in the registry",
    "unknown-params": "params must be accepted for the metric",
    "day": "day must be a date",
    "cohort": "cohort must be in [0, m - 1]",
    "length": "bits must be ceil(k/8) bytes, or their text in base64url without padding",
    "padding": "bits must be 0 past bit k - 1",
    "popcount": "bits must have exactly one 1 if the metric's reports name one bucket",
}
"""Reasons for which a row is refused: the word under which refusals are counted, and a sentence.

A row with several faults is counted under the first of its reasons, in this order. The reason
"malformed" comes from files of text only: a line cannot be split into the cells of a row.
"""

_RESERVED: Final = frozenset({*COLUMNS, DAY, "reports", "ones", "refused"})
"""Names of the columns of reports and of sums of reports. A column by which a caller groups the
sums (`by`) must have another name, because the table of sums contains it, too."""

_SHOWN_COLUMNS: Final = 12
"""Largest number of columns that a message lists. Tables may have thousands."""

_SHOWN_CHARACTERS: Final = 40
"""Largest number of characters of a column's name in a message. The limit keeps the message
short."""


def check_columns(names: Sequence[str], by: Sequence[str] = ()) -> None:
    """Raise ReportError if a column is missing or repeated.

    Parameters
    ----------
    names : names of the columns that the rows have
    by : names of further columns that the rows must have. Sums are grouped by them
    """
    for name in by:
        if name in _RESERVED:
            raise ReportError(
                f"by must name columns beside the columns of reports and sums, got {name}"
            )
    column_list = ", ".join(name[:_SHOWN_CHARACTERS] for name in names[:_SHOWN_COLUMNS]) or "none"
    missing = [name for name in (*COLUMNS, *by) if name not in names]
    if "format" in missing:
        # Case: the table does not contain reports, or a CSV file has another separator, so that its
        # header is one column. Many columns are missing then. The message lists all of them, so
        # that the user recognises the cause.
        raise ReportError(
            f"columns must include {', '.join(missing)} (format is {FORMAT} in every row), got "
            f"{column_list}"
        )
    for name in (*COLUMNS, *by):
        if names.count(name) != 1:
            raise ReportError(f"column {name} must be there once, got columns {column_list}")
    if names.count(DAY) > 1:
        raise ReportError(f"column {DAY} must be there once at most, got columns {column_list}")
