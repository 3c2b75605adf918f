"""A comparison as one HTML page: the changes drawn, and all differences as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rappor.decoding.comparison.comparison import Against, Comparison
from rappor.reporting.document import Content, document, sections
from rappor.reporting.figures import differences
from rappor.reporting.markup import Markup, join, shorten, tag
from rappor.reporting.numbers import p_value, percent, points, short_percent
from rappor.reporting.remarks import changes
from rappor.reporting.tables import figure, table

LISTED: Final = 1000
"""Rows of the table of a sample; the others are counted."""

_DRAWN: Final = 40
_NEAREST: Final = 10
"""Candidates that are drawn of a sample where nothing changed."""

_NAME_COLUMNS: Final = 60
_SECTIONS: Final = {"changes": "Changes", "samples": "Samples", "numbers": "Numbers"}


def comparison_page(comparison: Comparison) -> str:
    """Return the page about a comparison."""
    content = comparison_content(comparison)
    return document(content.title, *content.parts)


def comparison_content(comparison: Comparison) -> Content:
    """Return what the page about a comparison shows."""
    samples = " and ".join(each.sample.name for each in comparison.against[:3])
    title = f"What changed from {comparison.before} to {samples}"
    header = tag(
        "header",
        tag("h1", title),
        *(tag("p", sentence) for sentence in changes(comparison)),
        sections(_SECTIONS),
    )
    drawn = [
        _drawing(comparison, each, f"changes-{number}")
        for number, each in enumerate(comparison.against)
    ]
    tables = [
        part
        for number, each in enumerate(comparison.against)
        for part in _rows(comparison, each, f"differences-{number}")
    ]
    parts = (
        header,
        tag("section", tag("h2", "Changes", id="changes"), *drawn),
        tag("section", tag("h2", "Samples", id="samples"), _samples(comparison)),
        tag("section", tag("h2", "Numbers", id="numbers"), *tables),
    )
    return Content(title, parts)


def sorted_rows(comparison: Comparison, each: Against) -> list[dict[str, Any]]:
    """Return the rows of a sample: changed ones by their size, then the others by p-value."""
    rows = [row for row in comparison.rows() if row["sample"] == each.sample.name]
    return sorted(rows, key=_order)


def _order(row: Mapping[str, Any]) -> tuple[bool, float, str]:
    number = -abs(row["difference"]) if row["changed"] else row["p_value"]
    return (not row["changed"], math.inf if number is None else number, row["candidate"])


def _drawing(comparison: Comparison, each: Against, name: str) -> Markup:
    rows = sorted_rows(comparison, each)
    changed = [row for row in rows if row["changed"]]
    chosen = [row for row in (changed[:_DRAWN] or rows[:_NEAREST]) if row["difference"] is not None]
    confidence = short_percent(comparison.detection.confidence)
    caption = f"Differences from {each.baseline} to {each.sample.name}, in percentage points."
    told = (
        f"Full dots are changes; lines are {confidence} intervals that hold for them as a whole."
        if changed
        else "No change is told from noise. Hollow dots are the candidates that came nearest, with "
        f"the {confidence} interval of each alone."
    )
    left = len(changed) - len(chosen)
    more = f" {left:,} more changes are in the table only." if changed and left else ""
    marks = [
        (row["candidate"], row["difference"], *_interval(row), row["changed"]) for row in chosen
    ]
    return figure(caption, differences(marks, name=name, caption=caption), told + more)


def _interval(row: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the interval that is shown: the adjusted one of a change."""
    suffix = "_adjusted" if row["changed"] else ""
    return row[f"ci_low{suffix}"], row[f"ci_high{suffix}"]


def _samples(comparison: Comparison) -> Markup:
    compared = [comparison.baseline, *(each.sample for each in comparison.against)]
    overlaps = ["", *(f"{each.overlap:.2f}" for each in comparison.against)]
    unchanged = ["", *(p_value(each.unchanged_p_value) for each in comparison.against)]
    return table(
        "Samples: their reports, what these know as much as, and the test that nothing changed",
        ("sample", "reports", "devices that know as much", "overlap of devices",
         "p-value if nothing changed"),
        (
            (sample.name, f"{sample.reports:,}", f"{sample.devices:,.0f}", overlap, nothing)
            for sample, overlap, nothing in zip(compared, overlaps, unchanged, strict=True)
        ),
    )  # fmt: skip


def _rows(comparison: Comparison, each: Against, name: str) -> Iterator[Markup]:
    rows = sorted_rows(comparison, each)
    yield table(
        f"From {each.baseline} to {each.sample.name}: changes with adjusted intervals, then the "
        "others by their p-value, with the interval of each alone",
        ("candidate", "change", "before", "after", "difference, points",
         f"{short_percent(comparison.detection.confidence)} interval", "p-value"),
        (tuple(_cells(row)) for row in rows[:LISTED]),
        left=2,
        name=name,
    )  # fmt: skip
    if len(rows) > LISTED:
        yield tag("p", f"{LISTED:,} of {len(rows):,} rows are listed.")


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    group = f" (group {row['group']})" if "group" in row else ""
    yield join(tag("bdi", shorten(row["candidate"], _NAME_COLUMNS)), group)
    yield row["kind"]
    yield _share(row["baseline_proportion"])
    yield _share(row["proportion"])
    yield "unknown" if row["difference"] is None else points(row["difference"])
    low, high = _interval(row)
    yield "unknown" if low is None or high is None else f"{points(low)} .. {points(high)}"
    yield "unknown" if row["p_value"] is None else p_value(row["p_value"])


def _share(share: float | None) -> str:
    return "unknown" if share is None else percent(share, 3)
