"""A panel as one HTML page: what changed, the shares of each string, and all numbers as tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rappor.comparison.comparison import Comparison
from rappor.reporting.changes import panel_changes
from rappor.reporting.charts import Panels
from rappor.reporting.document import Content, header
from rappor.reporting.footnotes import list_comparison_footnotes
from rappor.reporting.markup import Markup, shorten, tag
from rappor.reporting.numbers import (
    format_change,
    format_change_interval,
    format_interval,
    format_p_value,
    format_share,
    format_short_percent,
)
from rappor.reporting.plots import (
    SEGMENTS,
    changes_chart,
    contrast_interval,
    shares_of,
    sorted_rows,
)
from rappor.reporting.tables import Columns, candidate, folded, listing, section, table

_DRAWN: Final = 40
_NEAREST: Final = 10
"""Candidates that are drawn of a panel in which nothing changed."""

_COMPARED: Final = {
    "sample": ("difference", "before", "after"),
    "segment": ("difference", "elsewhere", "here"),
}
_OVER_TIME: Final = ("change by the trend line", "first third", "last third")
"""Titles of the columns of a change."""

_PANELS: Final = 12
_MARKS: Final = 2400
"""Dots of all drawings of shares together, so that the page stays small."""


def panel_page(panel: Comparison) -> str:
    """Return the page about a panel."""
    return panel_content(panel).page()


def panel_content(panel: Comparison) -> Content:
    """Return what the page about a panel shows."""
    split = ", ".join(dict.fromkeys(each for some in panel.samples for each in some.segment))
    title = f"{shorten(panel.metric, 60) or 'Estimates'} by {split or panel.by}"
    if panel.by == "sample":
        title = f"What changed from {panel.samples[0].name} to {panel.samples[-1].name}"
    told = [each for each in (panel_changes(panel), next(list_comparison_footnotes(panel))) if each]
    return Content(title, (header(title, *told), *panel_sections(panel)))


def panel_sections(panel: Comparison) -> Iterator[Markup]:
    """Yield the changes, the shares, the tables of both, and the table of samples."""
    _, *sentences = list_comparison_footnotes(panel)
    drawn = [_changes(panel)] if panel.primary else []
    yield tag("section", *drawn, *(tag("p", text) for text in sentences), id="changes")
    n = n_panels(panel)
    if n:
        shares = Panels(title="Shares", charts=[shares_of(panel, i) for i in panel.shown_rows[:n]])
        told = [_legend(panel), *_left_out(panel, n)]
        yield section(
            "Shares",
            shares.inline(addressed=True),
            *(tag("p", text) for text in told),
            name="shares",
        )
    if panel.primary:
        caption = "Changes, then the others by their p-value"
        changes = listing(caption, change_columns(panel), sorted_rows(panel), name="changes-of-all")
        yield section("Numbers", *changes, name="numbers")
    shares_too = [row for row in panel.rows() if row["what"] in ("share", "smoothed")]
    if shares_too:
        caption = f"Shares of the reports by {panel.by}"
        yield folded(
            "Shares as numbers",
            *listing(caption, share_columns(panel), shares_too, name="shares-of-all"),
            name="all-shares",
        )
    yield folded(f"Every {panel.by}: reports and what is missing", _samples(panel), name="samples")


def n_panels(panel: Comparison) -> int:
    """Return how many strings have a drawing of their shares: those of periods and segments."""
    n = 0 if panel.by == "sample" else len(panel.shown_rows)
    return min(n, _PANELS, max(1, _MARKS // len(panel.samples)))


def change_columns(panel: Comparison) -> Columns:
    """Return the columns of the rows of the main contrasts."""
    columns: Columns = {"candidate": candidate}
    change, before, after = _COMPARED.get(panel.by, _OVER_TIME)
    if len(panel.primary) > 1:
        columns["compared"] = lambda row: row["name"]
    return columns | {
        "change": lambda row: row["direction"],
        f"{change}, points": lambda row: (
            format_change(row["estimate"], row["std_error"]) or "unknown"
        ),
        f"{format_short_percent(panel.error_control.confidence)} interval": lambda row: (
            format_change_interval(*contrast_interval(row), row["std_error"])
        ),
        before: lambda row: format_share(row["before"], row["std_error"]) or "unknown",
        after: lambda row: format_share(row["after"], row["std_error"]) or "unknown",
        "p-value": lambda row: format_p_value(row["p_value"]),
    }


def share_columns(panel: Comparison) -> Columns:
    """Return the columns of the rows of shares."""
    interval = f"adjusted {format_short_percent(panel.error_control.confidence)} interval"
    return {
        "candidate": candidate,
        panel.by: lambda row: row["name"] + (" (smoothed)" if row["what"] == "smoothed" else ""),
        "share": lambda row: format_share(row["estimate"], row["std_error"]) or "no reports",
        interval: lambda row: (
            ""
            if row["estimate"] is None
            else format_interval(row["ci_low"], row["ci_high"], row["std_error"])
        ),
        "detected": lambda row: "yes" if row["detected"] else "no",
    }


def _changes(panel: Comparison) -> Markup:
    n, confidence = panel.n_changed, format_short_percent(panel.error_control.confidence)
    told = (
        f"Full dots are significant changes; bars are {confidence} intervals that hold for all of "
        "them together."
        if n
        else "No change is significant. Hollow dots are the candidates that came nearest, each "
        f"with its own {confidence} interval."
    )
    more = f" {n - _DRAWN:,} more changes are in the table only." if n > _DRAWN else ""
    return changes_chart(panel, top=_DRAWN if n else _NEAREST).figure(told + more)


def _legend(panel: Comparison) -> str:
    parts = [
        f"Dots are the share of the reports of each {panel.by}, full where the string is detected "
        f"in that {panel.by}. Bars over them are "
        f"{format_short_percent(panel.error_control.confidence)} intervals, "
        "adjusted so that they hold for all strings that were found."
    ]
    if panel.missing:
        parts.append(f"A cross on the axis is a {panel.by} without reports.")
    if any(each.kind == "step" and each.n_changed for each in panel.contrasts):
        parts.append("A triangle above is a significant step: full for a rise, hollow for a fall.")
    if panel.params_changes:
        parts.append("A dotted vertical line is where the parameters changed.")
    if panel.smoothed is not None:
        parts.append(f"The line and its band are smoothed over {panel.window} {panel.by}s.")
    return " ".join(parts)


def _left_out(panel: Comparison, n: int) -> Iterator[str]:
    """Say how many strings and segments have no drawing."""
    left = len(panel.shown_rows) - n, len(panel.samples) - SEGMENTS if panel.by == "segment" else 0
    for number, what in zip(left, ("more strings", "smaller segments"), strict=True):
        if number > 0:
            yield f"{number:,} {what} are in the table only."


def _samples(panel: Comparison) -> Markup:
    other = {after.name for _, after in panel.params_changes}
    left = zip(panel.per_sample.unallocated, panel.per_sample.unallocated_std_error, strict=True)
    return table(
        f"Every {panel.by}: reports, effective number of devices, and unallocated share",
        (panel.by, "reports", "effective number of devices", "days without reports",
         "days not yet released", "unallocated", "std error", "parameters"),
        (
            (
                each.name,
                f"{each.reports:,}",
                f"{each.devices:,.0f}",
                _days(each.missing_days),
                _days(each.withheld),
                format_share(share, error) or "unknown",
                format_share(error, error) or "unknown",
                " ".join(each.fingerprints) + (" (changed)" if each.name in other else ""),
            )
            for each, (share, error) in zip(panel.samples, left, strict=True)
        ),
    )  # fmt: skip


def _days(number: int | None) -> str:
    """Write a number of days; nothing where it is not known."""
    return "" if number is None else f"{number:,}"
