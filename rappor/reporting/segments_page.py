"""Segments as one HTML page: a panel for each string, a row for each segment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from rappor.decoding.segments.segments import Segments
from rappor.reporting.document import Content, header
from rappor.reporting.markup import Markup, shorten, tag
from rappor.reporting.numbers import (
    measured,
    moved,
    p_value,
    short_percent,
    span,
    span_of_points,
)
from rappor.reporting.plots import SEGMENTS, segments_panel
from rappor.reporting.remarks import in_segments
from rappor.reporting.tables import figure, folded, listing, name_of, section, table, yes

_PANELS: Final = 12


def segments_page(found: Segments) -> str:
    """Return the page about segments."""
    return segments_content(found).page()


def segments_content(found: Segments) -> Content:
    """Return what the page about segments shows."""
    title = f"{shorten(found.metric, 60) or 'Estimates'} by segment"
    first, *others = in_segments(found)
    parts = (
        header(title, first),
        tag("section", *_panels(found), *(tag("p", text) for text in others), id="shares"),
        section("Numbers", *_rows(found), name="numbers"),
        folded("Segments by their reports", _segments(found), name="segments"),
    )
    return Content(title, parts)


def _panels(found: Segments) -> Iterator[Markup]:
    n = min(len(found.candidates), _PANELS)
    panels = (segments_panel(found, column) for column in range(n))
    yield tag("div", *(figure(each.title, each.inline()) for each in panels), class_="panels")
    yield tag(
        "p",
        "Dots are the share of the reports of each segment, full where the string is detected in "
        f"that segment. Bars over them are {short_percent(found.detection.confidence)} intervals, "
        "adjusted so that they hold for all strings shown together. Segments are named by "
        f"{', '.join(found.dimensions)}.",
    )
    if n < len(found.candidates):
        yield tag("p", f"{len(found.candidates) - n:,} more strings are in the table only.")
    if len(found.segments) > SEGMENTS:
        more = len(found.segments) - SEGMENTS
        yield tag("p", f"{more:,} smaller segments are in the table only.")


def _segments(found: Segments) -> Markup:
    errors = found.levels.unallocated_std_error.tolist()
    return table(
        "Segments by their reports",
        ("segment", "reports", "effective number of devices", "unallocated", "std error"),
        (
            (
                name_of(segment.name),
                f"{segment.reports:,}",
                f"{segment.devices:,.0f}",
                measured(share, error) or "unknown",
                measured(error, error) or "unknown",
            )
            for segment, share, error in zip(
                found.segments, found.levels.unallocated.tolist(), errors, strict=True
            )
        ),
    )


def _rows(found: Segments) -> Iterator[Markup]:
    interval = f"{short_percent(found.detection.confidence)} interval"
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "candidate": lambda row: name_of(row["candidate"]),
        "segment": lambda row: name_of(row["segment"]),
        "share": lambda row: measured(row["proportion"], row["std_error"]),
        f"adjusted {interval}": lambda row: span(row["ci_low"], row["ci_high"], row["std_error"]),
        "detected": lambda row: yes(fact=row["detected"]),
        "difference, points": lambda row: moved(row.get("difference"), row["std_error"]),
        f"its {interval}": lambda row: (
            ""
            if row.get("difference") is None
            else span_of_points(
                row["difference_ci_low"], row["difference_ci_high"], row["std_error"]
            )
        ),
        "p-value": lambda row: (
            "" if row.get("difference") is None else p_value(row["difference_p_value"])
        ),
        "differs": lambda row: "yes" if row.get("differs") else "",
    }
    yield from listing(
        "Shares of the reports in each segment, and their differences from the first",
        columns,
        list(found.rows()),
        name="shares-by-segment",
    )
