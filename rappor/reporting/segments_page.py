"""Segments as one HTML page: a panel for each string, a row for each segment."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rappor.decoding.segments.segments import Segments
from rappor.reporting.document import Content, document, sections
from rappor.reporting.figures import named_dots
from rappor.reporting.markup import Markup, join, shorten, tag
from rappor.reporting.numbers import p_value, percent, points, short_percent
from rappor.reporting.remarks import in_segments
from rappor.reporting.tables import figure, table

LISTED: Final = 1000
"""Rows of the table; the others are counted."""

_PANELS: Final = 12
_ROWS: Final = 24
"""Segments that are drawn, the largest ones."""

_NAME_COLUMNS: Final = 60
_SECTIONS: Final = {"shares": "Shares", "segments": "Segments", "numbers": "Numbers"}


def segments_page(found: Segments) -> str:
    """Return the page about segments."""
    content = segments_content(found)
    return document(content.title, *content.parts)


def segments_content(found: Segments) -> Content:
    """Return what the page about segments shows."""
    title = f"{shorten(found.metric, 60) or 'Estimates'} by segment"
    header = tag(
        "header",
        tag("h1", title),
        *(tag("p", sentence) for sentence in in_segments(found)),
        sections(_SECTIONS),
    )
    parts = (
        header,
        tag("section", tag("h2", "Shares", id="shares"), *_panels(found)),
        tag("section", tag("h2", "Segments", id="segments"), _segments(found)),
        tag("section", tag("h2", "Numbers", id="numbers"), *_rows(found)),
    )
    return Content(title, parts)


def segment_panel(found: Segments, column: int, *, name: str) -> Markup:
    """Draw the share of one string in each segment."""
    levels = found.levels
    rows = [
        (
            segment.label,
            float(levels.proportion[number, column]),
            _known(float(levels.ci_low[number, column])),
            _known(float(levels.ci_high[number, column])),
            bool(levels.detected[number, column]),
        )
        for number, segment in enumerate(found.segments[:_ROWS])
    ]
    caption = f"Share of {shorten(found.candidates[column], _NAME_COLUMNS)} in each segment"
    return named_dots(rows, name=name, caption=caption)


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _panels(found: Segments) -> Iterator[Markup]:
    yield tag(
        "p",
        "Dots are the share of the reports of each segment, full where that segment alone tells "
        f"the string from nothing. Lines are {short_percent(found.detection.confidence)} "
        "intervals, adjusted so that they hold for the strings that are shown as a whole. "
        f"Segments are named by {', '.join(found.dimensions)}.",
    )
    n = min(len(found.candidates), _PANELS)
    yield tag(
        "div",
        *(
            figure(
                shorten(found.candidates[column], _NAME_COLUMNS),
                segment_panel(found, column, name=f"segments-{column}"),
                "",
            )
            for column in range(n)
        ),
        class_="panels",
    )
    if n < len(found.candidates):
        yield tag("p", f"{len(found.candidates) - n:,} more strings are in the table only.")
    if len(found.segments) > _ROWS:
        yield tag("p", f"{len(found.segments) - _ROWS:,} smaller segments are in the table only.")


def _segments(found: Segments) -> Markup:
    return table(
        "Segments by their reports",
        ("segment", "reports", "devices that know as much", "unallocated", "std error"),
        (
            (
                join(tag("bdi", shorten(segment.name, _NAME_COLUMNS))),
                f"{segment.reports:,}",
                f"{segment.devices:,.0f}",
                _share(float(found.levels.unallocated[number])),
                _share(float(found.levels.unallocated_std_error[number])),
            )
            for number, segment in enumerate(found.segments)
        ),
    )


def _share(share: float) -> str:
    return "unknown" if math.isnan(share) else percent(share, 3)


def _rows(found: Segments) -> Iterator[Markup]:
    interval = f"{short_percent(found.detection.confidence)} interval"
    rows = list(found.rows())
    yield table(
        "Shares of the reports in each segment, and their differences from the first",
        ("candidate", "segment", "share", "std error", f"adjusted {interval}", "told alone",
         "difference, points", f"its {interval}", "p-value", "differs"),
        (tuple(_cells(row)) for row in rows[:LISTED]),
        left=2,
        name="shares-by-segment",
    )  # fmt: skip
    if len(rows) > LISTED:
        yield tag("p", f"{LISTED:,} of {len(rows):,} rows are listed.")


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    yield join(tag("bdi", shorten(row["candidate"], _NAME_COLUMNS)))
    yield join(tag("bdi", shorten(row["segment"], _NAME_COLUMNS)))
    yield percent(row["proportion"], 3)
    yield "unknown" if row["std_error"] is None else percent(row["std_error"], 3)
    low, high = row["ci_low"], row["ci_high"]
    unknown = low is None or high is None
    yield "unknown" if unknown else f"{percent(low, 3)} .. {percent(high, 3)}"
    yield "yes" if row["detected"] else "no"
    if row.get("difference") is None:
        yield from ("", "", "", "")
        return
    yield points(row["difference"])
    low, high = row["difference_ci_low"], row["difference_ci_high"]
    yield "unknown" if low is None or high is None else f"{points(low)} .. {points(high)}"
    yield p_value(row["difference_p_value"])
    yield "yes" if row["differs"] else ""
