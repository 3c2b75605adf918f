"""A trend as one HTML page: a panel for each string, tables, gaps and changes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rappor.decoding.trends.trend import Trend
from rappor.reporting.document import Content, document, sections
from rappor.reporting.markup import Markup, join, shorten, tag
from rappor.reporting.numbers import p_value, percent, points, short_percent
from rappor.reporting.remarks import over_time
from rappor.reporting.tables import figure, table
from rappor.reporting.trend_figures import panel

LISTED: Final = 1000
"""Rows of the table; the others are counted."""

_PANELS: Final = 12
_MARKS: Final = 2400
"""Dots of all panels together, so that the page stays small."""

_NAME_COLUMNS: Final = 60
_SECTIONS: Final = {"shares": "Shares", "periods": "Periods", "numbers": "Numbers"}


def trend_page(trend: Trend) -> str:
    """Return the page about a trend."""
    content = trend_content(trend)
    return document(content.title, *content.parts)


def trend_content(trend: Trend) -> Content:
    """Return what the page about a trend shows."""
    title = f"{shorten(trend.metric, 60) or 'Estimates'} by {trend.by}"
    header = tag(
        "header",
        tag("h1", title),
        *(tag("p", sentence) for sentence in over_time(trend)),
        sections(_SECTIONS),
    )
    return Content(title, (header, *trend_sections(trend)))


def trend_sections(trend: Trend) -> Iterator[Markup]:
    """Yield the panels, the table of periods and the table of shares."""
    yield tag("section", tag("h2", "Shares", id="shares"), *_panels(trend))
    yield tag("section", tag("h2", "Periods", id="periods"), _periods(trend))
    yield tag("section", tag("h2", "Numbers", id="numbers"), *_rows(trend))


def n_panels(trend: Trend) -> int:
    """Return how many strings are drawn."""
    return min(len(trend.candidates), _PANELS, max(1, _MARKS // len(trend.periods)))


def _panels(trend: Trend) -> Iterator[Markup]:
    n = n_panels(trend)
    if n:
        yield tag("p", _legend(trend))
    yield tag("div", *(_panel(trend, column) for column in range(n)), class_="panels")
    if n < len(trend.candidates):
        yield tag("p", f"{len(trend.candidates) - n:,} more strings are in the table only.")


def _panel(trend: Trend, column: int) -> Markup:
    name = shorten(trend.candidates[column], _NAME_COLUMNS)
    caption = f"Share of {name} by {trend.by}"
    drawing = panel(trend, column, name=f"trend-{column}", caption=caption)
    return figure(name, drawing, "", name=f"figure-{column}")


def _legend(trend: Trend) -> str:
    parts = [
        f"Dots are the share of the reports of each {trend.by}, full where that {trend.by} alone "
        "tells the string from nothing. Lines through them are "
        f"{short_percent(trend.detection.confidence)} intervals, adjusted so that they hold "
        "for the strings that are shown as a whole."
    ]
    if trend.missing:
        parts.append(f"A cross on the axis is a {trend.by} without reports.")
    if trend.n_changed:
        parts.append(
            "A triangle above is a step that is told from noise, full for a rise and hollow for a "
            "fall."
        )
    if trend.params_changes:
        parts.append("A dotted upright is where the parameters changed.")
    if trend.smoothed is not None:
        parts.append(
            f"The lines along are smoothed over {trend.window} {trend.by}s, with their intervals."
        )
    return " ".join(parts)


def _periods(trend: Trend) -> Markup:
    changed = {each.period for each in trend.params_changes}
    return table(
        f"Every {trend.by}: reports, what they know as much as, and what they leave unallocated",
        (trend.by, "reports", "devices that know as much", "days without reports", "days that wait",
         "unallocated", "std error", "parameters"),
        (
            (
                period.name,
                f"{period.reports:,}",
                f"{period.devices:,.0f}",
                f"{period.missing_days:,}",
                f"{period.withheld:,}",
                _share(float(trend.levels.unallocated[number])),
                _share(float(trend.levels.unallocated_std_error[number])),
                " ".join(period.fingerprints) + (" (changed)" if period.name in changed else ""),
            )
            for number, period in enumerate(trend.periods)
        ),
    )  # fmt: skip


def _share(share: float) -> str:
    return "unknown" if math.isnan(share) else percent(share, 3)


def _rows(trend: Trend) -> Iterator[Markup]:
    interval = f"{short_percent(trend.detection.confidence)} interval"
    columns = ["candidate", trend.by, "share", "std error", f"adjusted {interval}", "told alone"]
    if trend.smoothed is not None:
        columns += ["smoothed", f"its adjusted {interval}"]
    columns += ["step, points", f"its adjusted {interval}", "p-value", "change"]
    rows = list(trend.rows())
    yield table(
        f"Shares of the reports by {trend.by}",
        columns,
        (tuple(_cells(row, trend)) for row in rows[:LISTED]),
        left=2,
        name="shares-by-period",
    )
    if len(rows) > LISTED:
        yield tag("p", f"{LISTED:,} of {len(rows):,} rows are listed.")


def _cells(row: Mapping[str, Any], trend: Trend) -> Iterator[str]:
    first, last = row["first"], row["last"]
    yield join(tag("bdi", shorten(row["candidate"], _NAME_COLUMNS)))
    yield first if first == last else f"{first}/{last}"
    if not row["reports"]:
        yield "no reports"
    else:
        yield _known(row["proportion"])
    yield _known(row["std_error"])
    yield _between(row["ci_low"], row["ci_high"])
    yield "yes" if row["detected"] else "no"
    if trend.smoothed is not None:
        yield _known(row["smoothed"])
        yield _between(row["smoothed_ci_low"], row["smoothed_ci_high"])
    if row.get("step") is None:
        yield from ("", "", "", "")
        return
    yield points(row["step"])
    low, high = row["step_ci_low"], row["step_ci_high"]
    yield "" if low is None or high is None else f"{points(low)} .. {points(high)}"
    yield p_value(row["step_p_value"])
    yield ("rise" if row["step"] > 0 else "fall") if row["changed"] else ""


def _known(share: float | None) -> str:
    return "" if share is None else percent(share, 3)


def _between(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{percent(low, 3)} .. {percent(high, 3)}"
