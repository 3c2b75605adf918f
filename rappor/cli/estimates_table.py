"""Estimates as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.table import Table

from rappor.cli.console import escape, show, width
from rappor.decoding.estimates import Estimates, adjusted_interval
from rappor.reporting.numbers import percent, short_percent
from rappor.reporting.remarks import remarks

_FORGED: Final = (
    "forged make: if this many of the reports are forged, nobody may have the string. forged hide: "
    "this many more forged reports would hide the row, and perhaps others too."
)

_LEAST_NAME, _MOST_NAME = 9, 40
"""Columns of a candidate: numbers are never cut, names are."""


def print_estimates(
    estimates: Estimates,
    *,
    detected_only: bool,
    truth: Mapping[str, int] | None = None,
    forged: bool = False,
) -> None:
    """Print the rows, the unallocated share, the assumptions and the warnings.

    A list of detected rows shows their adjusted intervals, which hold for it as a whole; a list of
    all candidates shows the interval of each on its own. With `forged` the numbers of forged
    reports stand in their place.
    """
    shown = _table(estimates, detected_only=detected_only, truth=truth, forged=forged)
    show(shown, *([_FORGED] if forged else []), *remarks(estimates))


def _table(
    estimates: Estimates, *, detected_only: bool, truth: Mapping[str, int] | None, forged: bool
) -> Table:
    interval = f"{short_percent(estimates.detection.confidence)} interval"
    interval = f"adjusted {interval}" if detected_only else f"{interval} of each"
    last = ["forged make", "forged hide"] if forged else [interval]
    columns = ["reports", "std error", "share", *last]
    if estimates.share is not None:
        columns += ["distribution", "its error"]
    if truth is not None:
        columns.append("truth")
    found = estimates.rows(detected_only=detected_only)
    suffix = "_adjusted" if detected_only else ""
    rows = [tuple(_cells(row, truth, forged=forged, suffix=suffix)) for row in found]
    numbers = zip(columns, *(row[1:] for row in rows), strict=True)
    room = width() - sum(2 + max(map(len, column)) for column in numbers)
    shown = Table(box=None, header_style="bold", pad_edge=False)
    most = max(_LEAST_NAME, min(room, _MOST_NAME))
    shown.add_column("candidate", overflow="ellipsis", no_wrap=True, max_width=most)
    for name in columns:
        shown.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        shown.add_row(*row)
    return shown


def _cells(
    row: Mapping[str, Any], truth: Mapping[str, int] | None, *, forged: bool, suffix: str
) -> Iterator[str]:
    mark = "" if row["detected"] else " (not detected)"
    group = f" (group {row['group']})" if "group" in row else ""
    yield escape(row["candidate"] + group + mark)
    yield f"{row['count']:,.0f}"
    yield "inf" if row["std_error"] is None else f"{row['std_error']:,.0f}"
    yield percent(row["proportion"], 3)
    yield from _forged(row) if forged else [_interval(row, suffix)]
    if "share" in row:
        yield percent(row["share"], 3)
        error = row["share_std_error"]
        yield "inf" if error is None else percent(error, 3)
    if truth is not None:
        yield f"{truth.get(row['candidate'], 0):,}"


def _interval(row: Mapping[str, Any], suffix: str) -> str:
    low, high = adjusted_interval(row) if suffix else (row["ci_low"], row["ci_high"])
    known = low is not None and high is not None
    return f"{percent(low, 3)} to {percent(high, 3)}" if known else "unknown"


def _forged(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield how many forged reports make and hide a detected row; nothing for other rows."""
    for key in ("forged_to_make", "forged_to_hide"):
        number = row.get(key)
        yield "" if key not in row else "none can" if number is None else f"{number:,}"
