"""A trend as one HTML page: a panel for each string, its numbers, gaps and changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from rappor.decoding.trends.trend import Trend
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
from rappor.reporting.plots import trend_panel
from rappor.reporting.remarks import over_time
from rappor.reporting.tables import figure, folded, listing, name_of, section, table, yes

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
    yield tag("section", *_panels(trend), id="shares")
    yield section("Numbers", *_rows(trend), name="numbers")
    yield folded(f"Every {trend.by}: reports and what is missing", _periods(trend), name="periods")


def n_panels(trend: Trend) -> int:
    """Return how many strings are drawn."""
    return min(len(trend.candidates), _PANELS, max(1, _MARKS // len(trend.periods)))


def _panels(trend: Trend) -> Iterator[Markup]:
    n = n_panels(trend)
    panels = (trend_panel(trend, column) for column in range(n))
    yield tag(
        "div",
        *(
            figure(panel.title, panel.inline(), name=f"figure-{number}")
            for number, panel in enumerate(panels)
        ),
        class_="panels",
    )
    if n:
        yield tag("p", _legend(trend))
    if n < len(trend.candidates):
        yield tag("p", f"{len(trend.candidates) - n:,} more strings are in the table only.")
    yield from (tag("p", sentence) for sentence in list(over_time(trend))[1:])


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
    errors = trend.levels.unallocated_std_error.tolist()
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
                measured(share, error) or "unknown",
                measured(error, error) or "unknown",
                " ".join(period.fingerprints) + (" (changed)" if period.name in changed else ""),
            )
            for period, share, error in zip(
                trend.periods, trend.levels.unallocated.tolist(), errors, strict=True
            )
        ),
    )  # fmt: skip


def _rows(trend: Trend) -> Iterator[Markup]:
    interval = f"{short_percent(trend.detection.confidence)} interval"
    of_days = trend.by != "day"
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "candidate": lambda row: name_of(row["candidate"]),
        f"{trend.by} from" if of_days else "day": lambda row: row["first"],
        "share": lambda row: (
            measured(row["proportion"], row["std_error"]) if row["reports"] else "no reports"
        ),
        f"adjusted {interval}": lambda row: _interval(row, "", row["std_error"]),
        "detected": lambda row: yes(fact=row["detected"]),
    }
    if trend.smoothed is not None:
        columns |= {
            "smoothed": lambda row: measured(row["smoothed"], row["smoothed_std_error"]),
            f"its {interval}": lambda row: _interval(row, "smoothed_", row["smoothed_std_error"]),
        }
    columns |= {
        "step, points": lambda row: moved(row.get("step"), row["std_error"]),
        f"step's {interval}": lambda row: (
            ""
            if row.get("step_ci_low") is None
            else span_of_points(row["step_ci_low"], row["step_ci_high"], row["std_error"])
        ),
        "p-value": lambda row: "" if row.get("step") is None else p_value(row["step_p_value"]),
        "change": lambda row: ("rise" if row["step"] > 0 else "fall") if row.get("changed") else "",
    }
    rows = list(trend.rows())
    yield from listing(
        f"Shares of the reports by {trend.by}", columns, rows, name="shares-by-period"
    )


def _interval(row: Mapping[str, Any], prefix: str, error: float | None) -> str:
    low = row[f"{prefix}ci_low"]
    return "" if low is None else span(low, row[f"{prefix}ci_high"], error)
