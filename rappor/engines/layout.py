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
    "malformed": "a line must be a row",
    "format": f"format must be {FORMAT}",
    "unknown-metric": "metric must be in the registry",
    "unknown-params": "params must be accepted for the metric",
    "day": "day must be a date",
    "cohort": "cohort must be in [0, m - 1]",
    "length": "bits must be as long as the parameters say, text in base64url without padding",
    "padding": "bits must be 0 past bit k - 1",
    "popcount": "bits must have exactly one 1, where a report names one bucket",
}
"""Reasons for which a row is refused: the word under which refusals are counted, and a sentence.

A row with several faults is counted by the first of its reasons, in this order.
"""

_RESERVED: Final = frozenset({*COLUMNS, DAY, "reports", "ones", "refused"})
"""Names of columns of reports and sums. A further column (`by`) must have another name."""

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
    by : names of further columns that the rows must have
    """
    for name in by:
        if name in _RESERVED:
            raise ReportError(
                f"by must name columns beside the columns of reports and sums, got {name}"
            )
    column_list = ", ".join(name[:_SHOWN_CHARACTERS] for name in names[:_SHOWN_COLUMNS]) or "none"
    missing = [name for name in (*COLUMNS, *by) if name not in names]
    if "format" in missing:
        # Without the format the rows are hardly reports, such as a file with other separators. The
        # message lists all missing columns, so that the user sees the cause at once.
        also_missing = [name for name in missing if name != "format"]
        others = f", nor {', '.join(also_missing)}" if also_missing else ""
        raise ReportError(
            f"it has no column format, which must be {FORMAT} in every row{others}; got the "
            f"columns {column_list}"
        )
    for name in (*COLUMNS, *by):
        if names.count(name) != 1:
            raise ReportError(f"column {name} must be there once, got columns {column_list}")
    if names.count(DAY) > 1:
        raise ReportError(f"column {DAY} must be there once at most, got columns {column_list}")
