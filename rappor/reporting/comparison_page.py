"""A comparison as one HTML page: what changed first, then all differences as tables."""

from __future__ import annotations

from typing import Final

from rappor.decoding.comparison.comparison import Against, Comparison
from rappor.reporting.columns import Columns, candidate
from rappor.reporting.document import Content, header
from rappor.reporting.markup import Markup, tag
from rappor.reporting.numbers import (
    measured,
    moved,
    p_value,
    short_percent,
    span_of_points,
)
from rappor.reporting.plots import changes_chart, difference_interval, sorted_rows
from rappor.reporting.remarks import changes
from rappor.reporting.tables import folded, listing, section, table

_DRAWN: Final = 40
_NEAREST: Final = 10
"""Candidates that are drawn of a comparison in which nothing changed."""


def comparison_page(comparison: Comparison) -> str:
    """Return the page about a comparison."""
    return comparison_content(comparison).page()


def comparison_content(comparison: Comparison) -> Content:
    """Return what the page about a comparison shows: samples with changes, then the others."""
    last = comparison.against[-1].sample.name
    title = f"What changed from {comparison.baseline.name} to {last}"
    changed = [each for each in comparison.against if each.changed.any()]
    same = [each for each in comparison.against if not each.changed.any()]
    drawn = [_drawing(comparison, each) for each in changed or same[:1]]
    if changed and same:
        names = ", ".join(each.sample.name for each in same)
        drawn.append(tag("p", f"No significant change in {names}."))
    first, *others = changes(comparison)
    parts = (
        header(title, first),
        tag("section", *drawn, *(tag("p", text) for text in others), id="changes"),
        *(_numbers(comparison, each) for each in [*changed, *same]),
        folded("Samples", _samples(comparison), name="samples"),
    )
    return Content(title, parts)


def _drawing(comparison: Comparison, each: Against) -> Markup:
    rows = sorted_rows(comparison, each)
    changed = [row for row in rows if row["changed"]]
    chosen = [row for row in (changed[:_DRAWN] or rows[:_NEAREST]) if row["difference"] is not None]
    confidence = short_percent(comparison.detection.confidence)
    told = (
        f"Full dots are significant changes; bars are {confidence} intervals that hold for all of "
        "them together."
        if changed
        else "No change is significant. Hollow dots are the candidates that came nearest, each "
        f"with its own {confidence} interval."
    )
    left = len(changed) - len(chosen)
    more = f" {left:,} more changes are in the table only." if changed and left else ""
    chart = changes_chart(each, chosen)
    return chart.figure(told + more)


def _numbers(comparison: Comparison, each: Against) -> Markup:
    """Return the table of a sample, folded where nothing changed."""
    part = section if each.changed.any() else folded
    title = f"From {each.baseline} to {each.sample.name}"
    number = comparison.against.index(each)
    rows = listing(
        f"{title}: changes, then the others by their p-value",
        comparison_columns(comparison),
        sorted_rows(comparison, each),
        name=f"differences-{number}",
    )
    return part(title, *rows, name=f"numbers-{number}")


def _samples(comparison: Comparison) -> Markup:
    compared = [comparison.baseline, *(each.sample for each in comparison.against)]
    overlaps = ["", *(f"{each.overlap:.2f}" for each in comparison.against)]
    unchanged = ["", *(p_value(each.unchanged_p_value) for each in comparison.against)]
    return table(
        "Samples: reports, effective number of devices, and the overall test for a change",
        ("sample", "reports", "effective number of devices", "overlap of devices",
         "p-value of the overall test"),
        (
            (sample.name, f"{sample.reports:,}", f"{sample.devices:,.0f}", overlap, nothing)
            for sample, overlap, nothing in zip(compared, overlaps, unchanged, strict=True)
        ),
    )  # fmt: skip


def comparison_columns(comparison: Comparison) -> Columns:
    """Return the columns of the rows of a comparison."""
    return {
        "candidate": candidate,
        "change": lambda row: row["kind"],
        "difference, points": lambda row: moved(row["difference"], row["std_error"]) or "unknown",
        f"{short_percent(comparison.detection.confidence)} interval": lambda row: span_of_points(
            *difference_interval(row), row["std_error"]
        ),
        "before": lambda row: measured(row["baseline_proportion"], row["std_error"]) or "unknown",
        "after": lambda row: measured(row["proportion"], row["std_error"]) or "unknown",
        "p-value": lambda row: p_value(row["p_value"]),
    }
