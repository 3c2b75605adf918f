"""Page of a comparison: significant changes, the shares of each string, and all numbers as tables.

A comparison contains the shares of the same strings in several samples. `rappor trend` and `rappor
compare` write it as a page of its own. The dashboard shows its content inside of a page, and an
edition of the public site its sections. The kind of the samples, `Comparison.by`, decides which
parts the page has:

| part                              | several periods | one period | segments | collections |
|-----------------------------------|-----------------|------------|----------|-------------|
| ranking of the last period        | site only       | yes        | -        | -           |
| chart of the changes              | yes             | -          | yes      | yes         |
| gaps and warnings                 | yes             | yes        | yes      | yes         |
| a chart of shares for each string | yes             | -          | yes      | -           |
| table of the changes              | yes             | -          | yes      | yes         |
| what the numbers rest on          | yes             | yes        | yes      | yes         |
| table of the shares               | yes             | yes        | yes      | yes         |
| table of the samples              | yes             | yes        | yes      | yes         |

Periods are a `by` of "day", "week", "month" or "period", segments of "segment", and collections of
"sample". Changes need two samples with reports: `Comparison.primary`, the contrasts that answer the
question of the comparison, is empty without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rappor.base.sentence_numbers import format_count, format_plural
from rappor.comparison.comparison import Comparison
from rappor.comparison.overview import rank_last_period
from rappor.reporting.changes import describe_changes
from rappor.reporting.charts import ChartGrid
from rappor.reporting.comparison_tables import (
    changes_table,
    explain_changes,
    samples_table,
    shares_table,
)
from rappor.reporting.document import Content, collapsible, header, section
from rappor.reporting.footnotes import (
    explain_adjusted_intervals,
    explain_comparison,
    list_limitations,
    summarize_changes,
)
from rappor.reporting.installations import build_installations
from rappor.reporting.markup import Markup, shorten, tag
from rappor.reporting.numbers import format_days, format_short_percent
from rappor.reporting.overview import build_ranking
from rappor.reporting.plots import MAX_SEGMENTS, draw_changes, draw_shares, sort_changes

_MAX_CHART_ROWS: Final = 40
"""Largest number of changes that are drawn. The table contains all changes."""

_MAX_NEAREST: Final = 10
"""Number of candidates that are drawn if no change is significant: those with the smallest
p-values."""

_MAX_CHARTS: Final = 12
"""Largest number of strings whose shares are drawn, each in a chart of its own. The table contains
all strings."""

_MAX_RANKED: Final = 20
"""Largest number of strings of a ranking, as on the dashboard. The table of shares contains all
strings."""

_MAX_DOTS: Final = 700
"""Largest number of dots of all charts of shares together: 12 charts of the weeks of a year. A dot
with its tooltip has about 150 bytes, so the charts have about 100 kB. With twice as many dots, a
page of a collector would exceed 200 kB."""


def comparison_page(comparison: Comparison) -> str:
    """Return the page about a comparison."""
    return comparison_content(comparison).page()


def comparison_content(comparison: Comparison) -> Content:
    """Return the content of the page about a comparison, for a page of its own or a part of one."""
    properties = dict.fromkeys(name for sample in comparison.samples for name in sample.segment)
    # "theme by version, country" for segments, "theme by week" for periods.
    by = ", ".join(properties) or comparison.by
    title = f"{shorten(comparison.metric, 60) or 'Estimates'} by {by}"
    if comparison.by == "sample":
        title = f"What changed from {comparison.samples[0].name} to {comparison.samples[-1].name}"
        if comparison.metric:
            title = f"{shorten(comparison.metric, 60)}: {title[:1].lower()}{title[1:]}"
    # `comparison_sections` contains the other footnotes.
    sentences = (describe_changes(comparison), summarize_changes(comparison))
    lead = build_installations(comparison.installations)
    head = header(title, *filter(None, sentences), lead=lead)
    return Content(title, (head, *comparison_sections(comparison)))


def comparison_sections(
    comparison: Comparison, *, include_ranking: bool = False
) -> Iterator[Markup]:
    """Yield the sections of the page, as the table at the top of this module lists them.

    Parameters
    ----------
    comparison : the comparison.
    include_ranking : True for the ranking of the last of several periods. A single period always
        has its ranking.
    """
    is_single = comparison.by not in ("segment", "sample") and len(comparison.samples) == 1
    if is_single or include_ranking:
        yield from _build_ranking(comparison)
    figures = [_draw_changes(comparison)] if comparison.primary else []
    warnings = {warning.sentence for warning in comparison.warnings}
    # Warnings look as on every other page. Gaps of the data are plain sentences.
    limitations = (
        tag("p", text, class_="warning" if text in warnings else None)
        for text in list_limitations(comparison)
    )
    yield tag("section", *figures, *limitations, id="changes")
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
            "Significant changes, the largest first, then the others, the smallest p-value first",
            sort_changes(comparison),
            include_names=len(comparison.primary) > 1,
        )
        notes = (tag("p", text) for text in explain_changes(comparison))
        yield section("Numbers", changes.to_html(name="changes-of-all"), *notes, name="numbers")
    explanations = (tag("p", text) for text in explain_comparison(comparison))
    yield section("What the numbers rest on", *explanations, name="basis")
    share_rows = [row for row in comparison.rows() if row["what"] in ("share", "smoothed")]
    if share_rows:
        table = shares_table(comparison, share_rows).to_html(name="shares-of-all")
        yield collapsible("Shares as numbers", table, name="all-shares")
    title = f"Every {comparison.by}: reports and what is missing"
    yield collapsible(title, samples_table(comparison).to_html(), name="samples")


def _build_ranking(comparison: Comparison) -> Iterator[Markup]:
    """Yield the section with the ranking of the last period; nothing without a string."""
    ranking = rank_last_period(comparison)
    if ranking is None:
        return
    sample, rows = ranking
    days = format_days(sample.first, sample.last)
    values = format_plural(comparison.value_noun)
    legend = (
        f"Bars are shares of the {comparison.share_unit} of {days} ({sample.reports:,} reports), "
        f"all on one scale, with {describe_share_intervals(comparison)} A pale bar is not detected "
        f"in this {comparison.by} alone."
    )
    n_more = len(rows) - _MAX_RANKED
    omitted_note = f" {n_more:,} more {values} are in the table of shares." if n_more > 0 else ""
    yield section(
        "Ranking",
        build_ranking(rows[:_MAX_RANKED], comparison.by),
        tag("p", legend + omitted_note, class_="note"),
        name="ranking",
    )


def count_drawings(comparison: Comparison) -> int:
    """Return the number of strings whose shares are drawn.

    Collections without an order have no such drawings: their changes are drawn instead. A single
    period has none either, because each chart would be one dot: its ranking is drawn instead.
    """
    has_charts = comparison.by == "segment" or (
        comparison.by != "sample" and len(comparison.samples) > 1
    )
    n = len(comparison.shown_rows) if has_charts else 0
    return min(n, _MAX_CHARTS, max(1, _MAX_DOTS // len(comparison.samples)))


def _draw_changes(comparison: Comparison) -> Markup:
    """Return the figure of the changes, with a description."""
    n = comparison.n_changed
    confidence = comparison.error_control.confidence
    interval = f"{format_short_percent(confidence)} interval"
    description = (
        "No change is significant. Hollow dots are the candidates that came nearest, each with its "
        f"own {interval}."
    )
    if n:
        description = f"Full dots are significant changes; bars are adjusted {interval}s. " + (
            explain_adjusted_intervals(confidence, "significant changes", "change")
        )
    if n > _MAX_CHART_ROWS:
        description += f" {n - _MAX_CHART_ROWS:,} more changes are in the table only."
    return draw_changes(comparison, top=_MAX_CHART_ROWS if n else _MAX_NEAREST).figure(description)


def describe_share_intervals(comparison: Comparison) -> str:
    """Describe the intervals of the shares in each sample: the end of a sentence, and its meaning.

    Intervals of categories are not adjusted. All categories are shown, so nothing selects them.
    """
    confidence = comparison.error_control.confidence
    interval = f"{format_short_percent(confidence)} intervals"
    if not comparison.has_adjusted_shares:
        return f"{interval}, each for its {comparison.value_noun} alone."
    selected = f"{format_plural(comparison.value_noun)} that were found"
    return f"adjusted {interval}. {explain_adjusted_intervals(confidence, selected)}"


def _format_legend(comparison: Comparison) -> str:
    """Describe the marks of the charts of shares."""
    by = comparison.by
    intervals = describe_share_intervals(comparison)
    parts = [
        f"Dots are the share of the {comparison.share_unit} of each {by}, full where the "
        f"{comparison.value_noun} is detected in that {by}."
    ]
    if by == "segment" or comparison.smoothed is not None:
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
    n_segments = len(comparison.samples) - MAX_SEGMENTS if comparison.by == "segment" else 0
    numbers = {
        f"more {comparison.value_noun}": len(comparison.shown_rows) - n,
        "smaller segment": n_segments,
    }
    for noun, number in numbers.items():
        if number > 0:
            verb = "is" if number == 1 else "are"
            yield f"{format_count(number, noun)} {verb} in the table only."
