"""Segments as one HTML page: a panel for each string, a row for each segment."""

from __future__ import annotations

from typing import Final

from rappor.decoding.segments.segments import Segments
from rappor.reporting.columns import Columns, contrast, left_over, levels
from rappor.reporting.document import Content, header
from rappor.reporting.markup import Markup, shorten, tag
from rappor.reporting.numbers import short_percent
from rappor.reporting.plots import SEGMENTS, segments_plot
from rappor.reporting.remarks import in_segments
from rappor.reporting.tables import folded, listing, name_of, section, table

_PANELS: Final = 12


def segments_page(found: Segments) -> str:
    """Return the page about segments."""
    return segments_content(found).page()


def segments_content(found: Segments) -> Content:
    """Return what the page about segments shows."""
    title = f"{shorten(found.metric, 60) or 'Estimates'} by segment"
    first, *others = in_segments(found)
    legend = (
        "Dots are the share of the reports of each segment, full where the string is detected in "
        f"that segment. Bars over them are {short_percent(found.detection.confidence)} intervals, "
        "adjusted so that they hold for all strings shown together. Segments are named "
        f"by {', '.join(found.dimensions)}."
    )
    sentences = [legend, *others]
    for n, what in (
        (len(found.candidates) - _PANELS, "more strings"),
        (len(found.segments) - SEGMENTS, "smaller segments"),
    ):
        sentences += [f"{n:,} {what} are in the table only."] if n > 0 else []
    panels = segments_plot(found, top=_PANELS).inline()
    caption = "Shares of the reports in each segment, and their differences from the first"
    rows = listing(caption, segment_columns(found), list(found.rows()), name="shares-by-segment")
    parts = (
        header(title, first),
        tag("section", panels, *(tag("p", text) for text in sentences), id="shares"),
        section("Numbers", *rows, name="numbers"),
        folded("Segments by their reports", _segments(found), name="segments"),
    )
    return Content(title, parts)


def segment_columns(found: Segments) -> Columns:
    """Return the columns of the rows of segments."""
    interval = f"{short_percent(found.detection.confidence)} interval"
    name, *others = levels(f"adjusted {interval}").items()
    columns: Columns = dict([name, ("segment", lambda row: name_of(row["segment"])), *others])
    return columns | contrast("difference", interval, "differs", ("more", "less"))


def _segments(found: Segments) -> Markup:
    return table(
        "Segments by their reports",
        ("segment", "reports", "effective number of devices", "unallocated", "std error"),
        (
            (name_of(each.name), f"{each.reports:,}", f"{each.devices:,.0f}", *left)
            for each, left in zip(found.segments, left_over(found.levels), strict=True)
        ),
    )
