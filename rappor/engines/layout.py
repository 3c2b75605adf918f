"""The layout of stored reports, which every engine reads.

Columns: format (integer, 1), metric and params (text; params is the fingerprint), day (date),
cohort (integer) and bits (binary of ceil(k/8) bytes; in CSV and JSON, base64url). Others are
ignored, and the day may be missing.

The format stands in every row because rows are copied between files. The fingerprint cannot tell
another meaning of the bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rappor.base.errors import ReportError

FORMAT: Final = 1
"""The number of the layout, and of what its bits mean."""

COLUMNS: Final = ("format", "metric", "params", "cohort", "bits")
"""The columns that every report has."""

DAY: Final = "day"
"""The column that a report may have."""

REASONS: Final = {
    "malformed": "a line must be a row",
    "format": f"format must be {FORMAT}",
    "unknown-metric": "metric must be in the registry",
    "unknown-params": "params must be accepted for the metric",
    "day": "day must be a date",
    "cohort": "cohort must be in [0, m - 1]",
    "length": "bits must be as long as the parameters say, text in base64url without padding",
    "padding": "bits must be 0 past bit k - 1",
}
"""Why a row is no report: a word to count by, and a sentence. Earlier ones are told first."""


_TAKEN: Final = frozenset({*COLUMNS, DAY, "reports", "ones", "refused"})


def check_columns(names: Sequence[str], by: Sequence[str] = ()) -> None:
    """Raise ReportError where a column is missing or doubled; `by` are more that are needed."""
    for name in by:
        if name in _TAKEN:
            raise ReportError(f"by must name columns beside those of reports and sums, got {name}")
    shown = ", ".join(name[:40] for name in names[:12]) or "none"
    missing = [name for name in (*COLUMNS, *by) if name not in names]
    if "format" in missing:
        others = [name for name in missing if name != "format"]
        also = f", nor {', '.join(others)}" if others else ""
        raise ReportError(
            f"it has no column format, which must be {FORMAT} in every row{also}; got the columns "
            f"{shown}"
        )
    for name in (*COLUMNS, *by):
        if names.count(name) != 1:
            raise ReportError(f"column {name} must be there once, got columns {shown}")
    if names.count(DAY) > 1:
        raise ReportError(f"column {DAY} must be there once at most, got columns {shown}")
