"""Overview of a metric as a part of a page: a sentence, and each string with its bar and course.

The collector's dashboard shows it to analysts. A bar is the share of a string in the latest
periods, with a line for its confidence interval. The course stands beside the bar: a line of the
shares of all periods, with a band of their intervals, and the change from the first third of the
periods to the last third.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Final

from rappor.comparison.comparison import Comparison
from rappor.comparison.overview import Overview, OverviewRow
from rappor.decoding.estimates import Estimates
from rappor.decoding.estimates_report import report
from rappor.protocol.loss import epsilon_1
from rappor.reporting.changes import format_string, name_changes, name_compared_days
from rappor.reporting.charts import COLORS, ChartGrid
from rappor.reporting.document import Content, collapsible, header, section
from rappor.reporting.dots import format_position
from rappor.reporting.footnotes import RANKED, explain_adjusted_intervals, list_missing_periods
from rappor.reporting.installations import build_installations
from rappor.reporting.markup import Markup, join, shorten, tag
from rappor.reporting.numbers import (
    format_change,
    format_days,
    format_interval,
    format_percent,
    format_share,
    format_short_percent,
    format_small_percent,
)
from rappor.reporting.page import candidates_table
from rappor.reporting.plots import draw_shares
from rappor.reporting.scale import Scale
from rappor.reporting.time_chart import draw_band, scale_shares

_MAX_CARD_ROWS: Final = 3
"""Largest number of strings that a card shows. A card is the summary of a metric in the list of all
metrics."""

_MAX_PAGE_ROWS: Final = 20
"""Largest number of strings on the page of a metric. Further strings are counted, and files contain
them."""

_MAX_CHARTS: Final = 6
"""Largest number of strings whose shares by period are drawn in charts of their own. More charts
make the page longer."""

_HEIGHT: Final = 26
"""Height of a bar and of a course, in units of SVG. A line of text has about this height."""

_COURSE_WIDTH: Final = 140
"""Width of a course (the small drawing of a share over all periods), in units of SVG. The style
sheet reserves a column of this width."""


def overview_content(overview: Overview) -> Content:
    """Return the content of a metric's page."""
    comparison, estimates = overview.comparison, overview.estimates
    title = shorten(comparison.metric, 60) or "Overview"
    rows = overview.list_rows()
    chart_rows = comparison.shown_rows[:_MAX_CHARTS].tolist() if len(comparison.samples) > 1 else []
    charts = ChartGrid(title="Shares", charts=[draw_shares(comparison, i) for i in chart_rows])
    n_more = len(rows) - _MAX_PAGE_ROWS
    omitted_note = f" {n_more:,} more are in the files only." if n_more > 0 else ""
    warnings = [warning.sentence for warning in estimates.warnings]
    # RANKED explains that the candidates of a ranked list are tested with different weights.
    sentences = (
        *([RANKED] if estimates.error_control.ranked else []),
        estimates.assumptions,
        *list_missing_periods(comparison),
        *(warning.sentence for warning in comparison.warnings),
    )
    lead = build_installations(comparison.installations)
    parts = [
        header(title, describe_leader(overview), warnings=warnings, lead=lead),
        build_ranking(rows[:_MAX_PAGE_ROWS], overview.comparison.by),
        tag("p", f"{_format_legend(overview)}{omitted_note}", class_="note"),
        tag("p", describe_basis(overview), class_="note"),
        *([section(f"By {comparison.by}", charts.inline(), name="shares")] if chart_rows else []),
        collapsible(
            "Numbers, and what they rest on",
            candidates_table(report(estimates)).to_html(),
            *(tag("p", text) for text in sentences),
            name="numbers",
        ),
    ]
    return Content(title, tuple(parts))


def overview_card(overview: Overview) -> Markup:
    """Return the card of a metric in a list of metrics: the sentence, and the first strings."""
    rows = overview.list_rows()[:_MAX_CARD_ROWS]
    ranking = build_ranking(rows, overview.comparison.by)
    return join(tag("p", describe_leader(overview)), ranking)


def describe_leader(overview: Overview) -> Markup:
    """Return a sentence about the string with the largest share, and about significant changes."""
    comparison, changes = overview.comparison, overview.changes()
    detected = [row for row in overview.list_rows() if row.detected]
    if not detected:
        return join(f"No listed {comparison.value_noun} is common enough to be detected yet.")
    parts = [name_leader(detected, comparison)]
    if not comparison.primary:
        # With reports in fewer than two periods there is no contrast, and nothing can change.
        return join(*parts, ".")
    n = len(comparison.samples)
    if not changes:
        return join(*parts, f"; no share changed significantly over {n} {comparison.by}s.")
    named = name_changes(changes, comparison)
    days = name_compared_days(comparison)
    return join(*parts, f". Over {n} {comparison.by}s ", named, f"{days}.")


def name_leader(rows: Sequence[OverviewRow], comparison: Comparison, *, period: str = "") -> Markup:
    """Return a clause about the string with the largest share of some rows, without a full stop.

    `period` is the name of the period of the rows, such as "2026-11-23 to 2026-11-29". The clause
    names the period if the text is not empty.
    """
    first = max(rows, key=lambda row: row.share)
    share, unit = _format_share(first, first.std_error), comparison.share_unit
    if period:
        unit = f"{unit} of {period}"
    if comparison.has_sets:
        # Items of a set do not compete: a device may have all of them.
        return join(f"{share} of the {unit} have ", format_string(first.name))
    return join(format_string(first.name), f" leads with {share} of the {unit}")


def describe_basis(overview: Overview) -> str:
    """Return a sentence about the reports, the effective number of devices, and the noise."""
    estimates = overview.estimates
    share = estimates.diagnostics.get("detectable_share")
    epsilon = max(epsilon_1(collection.params) for collection in estimates.collections)
    parts = [
        f"{estimates.reports:,} reports in {overview.latest}, with the standard errors of "
        f"{overview.devices:,.0f} devices that report once (this is not the number of devices)"
    ]
    if share and share < 1:
        # Case: many devices. A limit below 0.1 % would be written as 0.0 % with one decimal.
        limit = format_percent(share) if share >= 0.001 else format_small_percent(share)
        parts.append(f"shares from {limit} are usually found")
    if (items := estimates.mean_listed_items) is not None:
        parts.append(f"a device has {items.estimate:z.2f} of the listed items on average")
    parts += [*_list_other_shares(estimates), f"epsilon of one report: {epsilon:.3g}"]
    return "; ".join(parts) + "."


def _list_other_shares(estimates: Estimates) -> Iterator[str]:
    """Yield the share of strings that are not in the list, and the unallocated share.

    The unallocated share belongs to devices without a detected string. Their strings may be in the
    list, but too rare to be detected.
    """
    not_listed = estimates.not_listed
    if not_listed is not None:
        # Noise can make an estimated share negative. A page shows 0 in its place.
        low = max(not_listed.ci_low, 0.0)
        ends = format_interval(low, not_listed.ci_high, not_listed.std_error)
        share = format_share(max(not_listed.estimate, 0.0), not_listed.std_error)
        yield f"{share} are not in the list ({ends})"
    if math.isfinite(estimates.unallocated) and estimates.unallocated > 0:
        yield f"{format_percent(estimates.unallocated)} have no detected {estimates.value_noun}"


def build_ranking(rows: Sequence[OverviewRow], by: str) -> Markup:
    """Return the list of strings, each with its share, its bar and its course.

    All bars have one scale. Rows with an empty `course` have no course.

    Parameters
    ----------
    rows : the strings, the largest share first.
    by : "day", "week", "month" or "period": the periods of a course.
    """
    ends = [end for row in rows for end in (row.low or 0.0, row.high or row.share)]
    # Positions in per cent of the drawing's width. The end below 100 leaves room for the stroke at
    # the end of an interval, which would be cut off.
    scale = Scale.over([0.0, *ends], start=0.0, end=99.0)
    # A column whose numbers have different digits is hard to compare (40.6 % above 29.18 %). All
    # numbers have the digits of the median error. The text of each bar has the digits of its row.
    errors = [row.std_error for row in rows if row.std_error is not None]
    error = statistics.median_low(errors) if errors else None
    items = (
        tag(
            "li",
            tag("span", format_string(row.name), class_="name"),
            tag(
                "span",
                tag("strong", _format_share(row, error)),
                " ",
                tag("small", format_interval(row.low, row.high, error) if row.detected
                    else "not detected"),
                class_="share",
            ),
            _draw_bar(row, scale),
            *_draw_course(row, by),
            class_="" if row.detected else "undetected",
        )
        for row in rows
    )  # fmt: skip
    has_courses = any(len(row.course) > 1 for row in rows)
    return tag("ol", *items, class_="ranks" if has_courses else "ranks plain")


def _draw_bar(row: OverviewRow, scale: Scale) -> Markup:
    """Draw a share as a bar from 0, and its interval as a line over the end of the bar."""
    y, low, high = _HEIGHT / 2, row.low, row.high
    parts = [
        tag("rect", x=format_position(scale, 0.0), y=y - 6, height=12, rx=2, fill=COLORS[0],
            width=f"{max(scale(row.share) - scale(0.0), 0.0):.4g}%",
            fill_opacity=0.85 if row.detected else 0.3),
    ]  # fmt: skip
    if scale(0.0) > scale.start:
        # Case: an interval reaches below 0. A line marks 0, which is not the left edge then.
        zero = format_position(scale, 0.0)
        parts.append(tag("line", x1=zero, x2=zero, y1=0, y2=_HEIGHT, stroke="currentColor"))
    if low is not None and high is not None:
        ends = {"x1": format_position(scale, low), "x2": format_position(scale, high)}
        parts.append(tag("line", y1=y, y2=y, stroke="currentColor", stroke_width=1.5, **ends))
        parts += [
            tag("line", x1=end, x2=end, y1=y - 4, y2=y + 4, stroke="currentColor",
                stroke_width=1.5)
            for end in ends.values()
        ]  # fmt: skip
    text = f"{_format_share(row, row.std_error)}, {format_interval(low, high, row.std_error)}"
    return _build_drawing(text, parts, class_="bar", width=300)


def _draw_course(row: OverviewRow, by: str) -> Iterator[Markup]:
    """Yield the course of a share over all periods, and its change.

    Yields nothing for one period.
    """
    if len(row.course) < 2:
        return
    estimates = [(period["ci_low"], period["estimate"], period["ci_high"]) for period in row.course]
    intervals = [None if None in numbers else numbers for numbers in estimates]
    ends = [end for numbers in intervals if numbers is not None for end in numbers]
    share_scale = scale_shares(ends, start=_HEIGHT - 2, end=2)
    time_scale = Scale.over([0.0, len(intervals) - 1.0], start=3, end=_COURSE_WIDTH - 5)
    positions = [time_scale(float(number)) for number in range(len(intervals))]
    parts = draw_band(intervals, positions, share_scale)
    if intervals[-1] is not None:
        y = share_scale(intervals[-1][1])
        parts.append(tag("circle", cx=positions[-1], cy=y, r=3, fill=COLORS[0]))
    shares = (format_share(share, row.std_error) or "unknown" for _, share, _ in estimates)
    text = f"by {by}: {', '.join(shares)}"
    yield _build_drawing(
        text, parts, class_="course", width=_COURSE_WIDTH, view=f"0 0 {_COURSE_WIDTH} {_HEIGHT}"
    )
    change_markup = tag("small", "not significant")
    if (change := row.change) is not None and change["changed"]:
        difference = change["after"] - change["before"]
        points = format_change(difference, change["std_error"])
        change_markup = tag("strong", f"{'▲' if difference > 0 else '▼'}\u00a0{points}\u00a0points")
    yield tag("span", change_markup, class_="change")


def _build_drawing(
    text: str, parts: Sequence[Markup], *, class_: str, width: int, view: str | None = None
) -> Markup:
    """Return a drawing with a text that assistive technology reads.

    A drawing with a `view` (attribute viewBox) is scaled as a whole where it has less room.
    """
    return tag(
        "svg", tag("title", text), *parts, xmlns="http://www.w3.org/2000/svg", role="img",
        aria_label=text, class_=class_, width=width, height=_HEIGHT, viewBox=view,
        fill="currentColor",
    )  # fmt: skip


def _format_legend(overview: Overview) -> str:
    """Describe the bars and the courses."""
    confidence, unit = overview.estimates.error_control.confidence, overview.estimates.share_unit
    parts = [
        f"Bars: shares of the {unit} in {overview.latest}, with {format_short_percent(confidence)} "
        "intervals, adjusted where detected.",
        explain_adjusted_intervals(confidence, "detected candidates"),
    ]
    n = len(overview.comparison.samples)
    if n > 1:
        parts.append(
            f"Lines: each of {n} {overview.comparison.by}s, with a band of intervals, on a scale "
            "of their own."
        )
        if overview.comparison.primary:
            first_days, last_days = (
                format_days(periods[0].first, periods[-1].last)
                for periods in overview.comparison.thirds
            )
            parts.append(
                "Points beside them are percentage points: the mean share of "
                f"{last_days} minus the mean share of {first_days}, if the trend line through all "
                f"{overview.comparison.by}s is significant. `rappor trend` prints the change along "
                "the line instead."
            )
    return " ".join(parts)


def _format_share(row: OverviewRow, error: float | None) -> str:
    """Format a share. A no-break space keeps the number and the unit in one line.

    Parameters
    ----------
    row : the string.
    error : standard error, which determines the number of digits; None if it is unknown.
    """
    # Noise can make the estimate of a rare string negative, and the estimate of an item of nearly
    # all devices larger than 1. No true share is outside [0, 1], so the page shows 0 or 100 %.
    share = min(max(row.share, 0.0), 1.0)
    return format_share(share, error).replace(" ", "\u00a0")
