"""Page of a comparison: significant changes, the shares of each string, and all numbers as tables.

A comparison contains the shares of the same strings in several samples: periods, segments or
collections. `rappor trend` and `rappor compare` write the page, and the public site contains it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rappor.comparison.comparison import Comparison
from rappor.reporting.changes import describe_changes
from rappor.reporting.charts import ChartGrid
from rappor.reporting.comparison_tables import changes_table, samples_table, shares_table
from rappor.reporting.document import Content, collapsible, header, section
from rappor.reporting.footnotes import list_comparison_footnotes
from rappor.reporting.markup import Markup, shorten, tag
from rappor.reporting.numbers import format_short_percent
from rappor.reporting.plots import SEGMENTS, draw_changes, draw_shares, sort_changes

_DRAWN: Final = 40
"""Largest number of changes that are drawn. The table contains all changes."""

_NEAREST: Final = 10
"""Number of candidates that are drawn if no change is significant: those with the smallest
p-values."""

_CHARTS: Final = 12
"""Largest number of strings whose shares are drawn, each in a chart of its own. The table contains
all strings."""

_DOTS: Final = 2400
"""Largest number of dots of all charts of shares together. More dots make a larger file."""


def comparison_page(comparison: Comparison) -> str:
    """Return the page about a comparison."""
    return comparison_content(comparison).page()


def comparison_content(comparison: Comparison) -> Content:
    """Return the content of the page about a comparison, for a page of its own or a part of one."""
    by = ", ".join(dict.fromkeys(name for sample in comparison.samples for name in sample.segment))
    title = f"{shorten(comparison.metric, 60) or 'Estimates'} by {by or comparison.by}"
    if comparison.by == "sample":
        title = f"What changed from {comparison.samples[0].name} to {comparison.samples[-1].name}"
    sentences = (describe_changes(comparison), next(list_comparison_footnotes(comparison)))
    head = header(title, *filter(None, sentences))
    return Content(title, (head, *comparison_sections(comparison)))


def comparison_sections(comparison: Comparison) -> Iterator[Markup]:
    """Yield the changes, the shares, the tables of both, and the table of samples."""
    _, *sentences = list_comparison_footnotes(comparison)
    figures = [_draw_changes(comparison)] if comparison.primary else []
    yield tag("section", *figures, *(tag("p", text) for text in sentences), id="changes")
    n = count_drawings(comparison)
    if n:
        charts = [draw_shares(comparison, i) for i in comparison.shown_rows[:n]]
        grid = ChartGrid(title="Shares", charts=charts)
        texts = (_format_legend(comparison), *_format_omitted(comparison, n))
        paragraphs = (tag("p", text) for text in texts)
        yield section("Shares", grid.inline(has_addresses=True), *paragraphs, name="shares")
    if comparison.primary:
        changes = changes_table(
            comparison,
            "Changes, then the others by their p-value",
            sort_changes(comparison),
            include_names=len(comparison.primary) > 1,
        )
        yield section("Numbers", changes.to_html(name="changes-of-all"), name="numbers")
    share_rows = [row for row in comparison.rows() if row["what"] in ("share", "smoothed")]
    if share_rows:
        table = shares_table(comparison, share_rows).to_html(name="shares-of-all")
        yield collapsible("Shares as numbers", table, name="all-shares")
    title = f"Every {comparison.by}: reports and what is missing"
    yield collapsible(title, samples_table(comparison).to_html(), name="samples")


def count_drawings(comparison: Comparison) -> int:
    """Return the number of strings whose shares are drawn.

    Collections without an order have no such drawings: their changes are drawn instead.
    """
    n = 0 if comparison.by == "sample" else len(comparison.shown_rows)
    return min(n, _CHARTS, max(1, _DOTS // len(comparison.samples)))


def _draw_changes(comparison: Comparison) -> Markup:
    """Return the figure of the changes, with a description."""
    n = comparison.n_changed
    confidence = format_short_percent(comparison.error_control.confidence)
    description = (
        "No change is significant. Hollow dots are the candidates that came nearest, each with its "
        f"own {confidence} interval."
    )
    if n:
        description = (
            f"Full dots are significant changes; bars are {confidence} intervals that hold for all "
            "of them together."
        )
    if n > _DRAWN:
        description += f" {n - _DRAWN:,} more changes are in the table only."
    return draw_changes(comparison, top=_DRAWN if n else _NEAREST).figure(description)


def _format_legend(comparison: Comparison) -> str:
    """Describe the marks of the charts of shares."""
    by = comparison.by
    intervals = (
        f"{format_short_percent(comparison.error_control.confidence)} intervals, adjusted so that "
        "they hold for all strings that were found."
    )
    parts = [
        f"Dots are the share of the {comparison.share_unit} of each {by}, full where the string "
        f"is detected in that {by}."
    ]
    if by == "segment" or comparison.smoothed is not None or len(comparison.samples) == 1:
        parts.append(f"Bars over them are {intervals}")
    else:
        parts.append(
            f"The band around them, or the bar of a {by} without a neighbour, contains {intervals}"
        )
    if comparison.missing:
        parts.append(f"A cross on the axis is a {by} without reports.")
    if any(contrast.kind == "step" and contrast.n_changed for contrast in comparison.contrasts):
        parts.append("A triangle above is a significant step: full for a rise, hollow for a fall.")
    if comparison.params_changes:
        parts.append("A dotted vertical line is where the parameters changed.")
    if comparison.smoothed is not None:
        parts.append(f"The line and its band are smoothed over {comparison.window} {by}s.")
    return " ".join(parts)


def _format_omitted(comparison: Comparison, n: int) -> Iterator[str]:
    """Yield sentences with the numbers of strings and segments that are not drawn.

    `n` is the number of drawn strings.
    """
    n_segments = len(comparison.samples) - SEGMENTS if comparison.by == "segment" else 0
    numbers = {"more strings": len(comparison.shown_rows) - n, "smaller segments": n_segments}
    for what, number in numbers.items():
        if number > 0:
            yield f"{number:,} {what} are in the table only."
