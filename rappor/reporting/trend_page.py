"""A trend as one HTML page: a panel for each string, its numbers, gaps and changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rappor.decoding.trends.trend import Trend
from rappor.reporting.columns import Columns, contrast, left_over, levels, share
from rappor.reporting.document import Content, header
from rappor.reporting.markup import Markup, shorten, tag
from rappor.reporting.numbers import short_percent
from rappor.reporting.plots import trend_plot
from rappor.reporting.remarks import over_time
from rappor.reporting.tables import folded, listing, section, table

_PANELS: Final = 12
_MARKS: Final = 2400
"""Dots of all panels together, so that the page stays small."""


def trend_page(trend: Trend) -> str:
    """Return the page about a trend."""
    return trend_content(trend).page()


def trend_content(trend: Trend) -> Content:
    """Return what the page about a trend shows."""
    title = f"{shorten(trend.metric, 60) or 'Estimates'} by {trend.by}"
    return Content(title, (header(title, next(over_time(trend))), *trend_sections(trend)))


def trend_sections(trend: Trend) -> Iterator[Markup]:
    """Yield the panels, the table of shares and the table of periods."""
    _, *sentences = over_time(trend)
    n = n_panels(trend)
    parts = [_legend(trend)] if n else []
    if n < len(trend.candidates):
        parts.append(f"{len(trend.candidates) - n:,} more strings are in the table only.")
    panels = trend_plot(trend, top=n).inline(addressed=True)
    yield tag("section", panels, *(tag("p", text) for text in [*parts, *sentences]), id="shares")
    caption = f"Shares of the reports by {trend.by}"
    rows = listing(caption, trend_columns(trend), list(trend.rows()), name="shares-by-period")
    yield section("Numbers", *rows, name="numbers")
    yield folded(f"Every {trend.by}: reports and what is missing", _periods(trend), name="periods")


def n_panels(trend: Trend) -> int:
    """Return how many strings are drawn."""
    return min(len(trend.candidates), _PANELS, max(1, _MARKS // len(trend.periods)))


def trend_columns(trend: Trend) -> Columns:
    """Return the columns of the rows of a trend."""
    interval = f"{short_percent(trend.detection.confidence)} interval"
    when = "day" if trend.by == "day" else f"{trend.by} from"
    name, *others = levels(f"adjusted {interval}").items()
    columns: Columns = dict([name, (when, lambda row: row["first"]), *others])
    columns["share"] = lambda row: "no reports" if not row["reports"] else others[0][1](row)
    if trend.smoothed is not None:
        columns |= share(f"smoothed {interval}", "smoothed", "smoothed_", "smoothed")
    return columns | contrast("step", interval, "changed", ("rise", "fall"))


def _legend(trend: Trend) -> str:
    parts = [
        f"Dots are the share of the reports of each {trend.by}, full where the string is detected "
        f"in that {trend.by}. Vertical bars and the band are "
        f"{short_percent(trend.detection.confidence)} intervals, adjusted so that they hold for "
        "all strings shown together."
    ]
    if trend.missing:
        parts.append(f"A cross on the axis is a {trend.by} without reports.")
    if trend.n_changed:
        parts.append("A triangle above is a significant step: full for a rise, hollow for a fall.")
    if trend.params_changes:
        parts.append("A dotted vertical line is where the parameters changed.")
    if trend.smoothed is not None:
        parts.append(f"The line and its band are smoothed over {trend.window} {trend.by}s.")
    return " ".join(parts)


def _periods(trend: Trend) -> Markup:
    changed = {each.period for each in trend.params_changes}
    return table(
        f"Every {trend.by}: reports, effective number of devices, and unallocated share",
        (trend.by, "reports", "effective number of devices", "days without reports",
         "days not yet released", "unallocated", "std error", "parameters"),
        (
            (
                period.name,
                f"{period.reports:,}",
                f"{period.devices:,.0f}",
                f"{period.missing_days:,}",
                f"{period.withheld:,}",
                *left,
                " ".join(period.fingerprints) + (" (changed)" if period.name in changed else ""),
            )
            for period, left in zip(trend.periods, left_over(trend.levels), strict=True)
        ),
    )  # fmt: skip
