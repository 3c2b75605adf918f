"""The chart of each record: what pages show, `.plot()` returns and `--chart` saves.

Audits and demos are `Any`: only the command line may import their rooms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rappor.base.sentence_numbers import format_count
from rappor.comparison.comparison import Comparison
from rappor.decoding.contrasts import Contrast
from rappor.decoding.estimates import Estimates, adjusted_interval
from rappor.decoding.estimates_report import masses
from rappor.planning.plans import Plan
from rappor.privacy.assessment import Loss, PrivacyReport
from rappor.protocol.loss import posterior_bound
from rappor.reporting.charts import Chart, Panels
from rappor.reporting.dots import Dot, Row, dots
from rappor.reporting.lines import Axis, line_chart, shared_labels
from rappor.reporting.markup import shorten
from rappor.reporting.numbers import (
    format_change,
    format_change_interval,
    format_interval,
    format_share,
)
from rappor.reporting.time_chart import time_panel

_NAME_COLUMNS: Final = 40
_CHANGES: Final = 20
"""Changes that are drawn of samples without an order."""

SEGMENTS: Final = 24
"""Segments that are drawn, the largest ones."""

_DRAWN: Final = (1, 10)
_STEPS: Final = 60


def estimates_plot(estimates: Estimates, *, top: int = 20, rest: bool = False) -> Chart:
    """Draw the shares of the top detected rows with their adjusted intervals.

    Without any detected row the candidates nearest to detection are drawn. The strings that the
    metric's entry lists come first, detected or not. With `rest` two rows more say what the other
    detected ones hold together, if `top` is 10, 20, 50, 100 or 1000, and what is unallocated; of a
    metric with a list a third row has the share of all strings that are not in it.
    """
    found = list(estimates.rows(detected_only=True))[:top]
    rows = found or sorted(estimates.rows(), key=lambda row: float(row["p_value"]))[:top]
    n, n_drawn = int(estimates.detected.sum()), sum(row["detected"] for row in found)
    title = f"Shares of the reports: {n_drawn} of {n} detected candidates"
    return shares_chart(
        title if found else "Nothing is detected; the candidates nearest to it",
        rows,
        estimates.reports,
        list(masses(estimates, after=top))[1:] if rest else (),
    )


def shares_chart(
    title: str, rows: Sequence[Mapping[str, Any]], reports: int, others: Sequence[Contrast] = ()
) -> Chart:
    """Draw rows of estimates, listed and detected ones first, and shares of several candidates."""
    shown: dict[str, list[Row]] = {"In the list": [], "": [], "Not detected": [], "Together": []}
    for row in rows:
        part = "" if row["detected"] else "Not detected"
        shown["In the list" if row.get("listed") else part].append(_estimate(row, reports))
    for mass in others:
        dot = Dot(mass.estimate, mass.ci_low, mass.ci_high)
        shown["Together"].append(
            Row(mass.name, format_share(mass.estimate, mass.std_error), (dot,))
        )
    return dots(title, shown)


def _estimate(row: Mapping[str, Any], reports: int) -> Row:
    low, high = interval(row)
    error = error_of(row, reports)
    return Row(
        row["candidate"],
        format_share(row["share"], error),
        (Dot(row["share"], low, high, row["detected"]),),
        f"{format_share(row['share'], error)}, {format_interval(low, high, error)}",
    )


def interval(row: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the interval that is shown of a row: the adjusted one where it is detected."""
    return adjusted_interval(row) if row["detected"] else (row["ci_low"], row["ci_high"])


def error_of(row: Mapping[str, Any], reports: int) -> float | None:
    """Return the standard error of a row's share; the row has that of its reports."""
    return None if row["std_error"] is None else row["std_error"] / reports


def panel_plot(panel: Comparison, *, top: int = 6) -> Chart | Panels:
    """Draw the shares of the top strings in each period or segment, a part each.

    Of samples without an order the largest changes are drawn.
    """
    if panel.by == "sample":
        return changes_chart(panel, top=_CHANGES)
    rows = panel.shown_rows[:top].tolist()
    return Panels(
        title=f"Shares of the reports by {panel.by}" if rows else "No candidate is detected",
        charts=[shares_of(panel, i) for i in rows],
    )


def shares_of(panel: Comparison, i: int) -> Chart:
    """Draw the shares of one candidate in all samples."""
    title = shorten(panel.candidates[i], _NAME_COLUMNS)
    return _samples(panel, i, title) if panel.by == "segment" else time_panel(panel, i, title)


def changes_chart(panel: Comparison, *, top: int) -> Chart:
    """Draw the largest changes with their adjusted intervals, under the name of their contrast.

    Where nothing changed the candidates with the smallest p-values are drawn, in hollow.
    """
    rows = sorted_rows(panel)
    changed = [row for row in rows if row["changed"]]
    parts: dict[str, list[Row]] = {each.name: [] for each in panel.primary}
    for row in [row for row in changed or rows if row["estimate"] is not None][:top]:
        parts[row["name"]].append(_difference(row))
    what = "difference" if panel.by == "segment" else "change"
    title = f"{format_count(len(changed), what)}, in percentage points"
    if not changed:
        title = f"No significant {what}; the nearest candidates, in percentage points"
    return dots(
        title,
        {name: some for name, some in parts.items() if some},
        axis="percentage points",
        write=_points,
    )


def sorted_rows(panel: Comparison) -> list[dict[str, Any]]:
    """Return the rows of the main contrasts: changed ones by size, then the others by p-value."""
    every = range(len(panel.candidates))
    return sorted(
        (panel.contrast_row(each, i) for each in panel.primary for i in every), key=_order
    )


def _order(row: Mapping[str, Any]) -> tuple[bool, float, str]:
    number = -abs(row["estimate"]) if row["changed"] else row["p_value"]
    return (not row["changed"], math.inf if number is None else number, row["candidate"])


def contrast_interval(row: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the interval that is shown of a contrast: the adjusted one of a change."""
    suffix = "_adjusted" if row["changed"] else ""
    return row[f"ci_low{suffix}"], row[f"ci_high{suffix}"]


def _difference(row: Mapping[str, Any]) -> Row:
    low, high = contrast_interval(row)
    number = format_change(row["estimate"], row["std_error"])
    return Row(
        row["candidate"],
        number,
        (Dot(row["estimate"], low, high, row["changed"]),),
        f"{number}, {format_change_interval(low, high, row['std_error'])}",
    )


def _points(difference: float) -> str:
    return f"{100 * difference:+.6g}" if difference else "0"


def _samples(panel: Comparison, i: int, title: str) -> Chart:
    """Draw the share of one string in each of the first samples."""
    rows = []
    for number, sample in enumerate(panel.samples[:SEGMENTS]):
        row = panel.share_row(number, i)
        shown = format_share(row["estimate"], row["std_error"])
        low, high = row["ci_low"], row["ci_high"]
        dot = Dot(row["estimate"], low, high, row["detected"])
        told = f"{shown}, {format_interval(low, high, row['std_error'])}"
        rows.append(Row(sample.label, shown, (dot,), told))
    return dots(title, {"": rows})


def plan_plot(plan: Plan) -> Chart:
    """Draw the probability of detection of a string against its share."""
    frequencies, chosen = plan.question.frequencies, plan.prediction.probabilities
    drawn = sorted(
        (float(share), float(probability))
        for share, probability, n in zip(
            frequencies.shares, chosen, frequencies.candidates, strict=True
        )
        if n
    )
    what = f"{format_count(plan.reports, 'report')}, epsilon_1 = {plan.epsilon_1:.3g}"
    limit = f"detected with probability {plan.question.power:g}"
    return line_chart(
        [{"share": share, "probability": each, "what": what} for share, each in drawn],
        points=[{"share": plan.share, "probability": plan.question.power, "what": limit}],
        x=Axis(field="share", title="share of the reports", log=True, percent=True),
        y=Axis(field="probability", title="probability of detection", domain=(0, 1), percent=True),
        series="what",
        title="Which strings are found",
    )


def privacy_plot(report: PrivacyReport) -> Chart:
    """Draw the least and the most belief after 1, 10 and all reports, against that before."""
    losses = report.losses
    drawn = [loss for loss in losses if loss.reports in _DRAWN or loss is losses[-1]]
    rows = [row for loss in drawn for row in _curve(loss)]
    labels = shared_labels(rows, value="after", series="reports")
    return line_chart(
        [row | {"reports": labels[row["reports"]]} for row in rows],
        x=Axis(field="prior", title="belief before", domain=(0, 1), percent=True),
        y=Axis(field="after", title="least and most belief after", domain=(0, 1), percent=True),
        series="reports",
        part="end",
        title="What reports of one value can do",
    )


def _curve(loss: Loss) -> list[dict[str, Any]]:
    number = "any number" if loss.reports is None else format_count(loss.reports, "report")
    label = f"{number}: epsilon = {loss.epsilon:.3g}"
    return [
        {"prior": prior, "after": belief, "end": end, "reports": label}
        for prior in (step / _STEPS for step in range(_STEPS + 1))
        for end, belief in zip(("least", "most"), posterior_bound(loss.epsilon, prior), strict=True)
    ]


def audit_plot(audit: Any) -> Chart:
    """Draw, for each loss that was bounded, the bound, the claim and what could be reached."""
    kinds = ("measured, at least", "claimed, at most", "reachable with these trials")
    rows = []
    for check in audit.checks:
        if check.bound is None:
            continue
        found = (check.bound, check.claim, check.reach)
        known = [(value, kind) for kind, value in enumerate(found) if value is not None]
        marks = tuple(Dot(value, full=kind == 0, kind=kind) for value, kind in known)
        rows.append(Row(check.name, " / ".join(f"{value:.3g}" for value, _ in known), marks))
    return dots(
        "Losses in nats: measured, and claimed",
        {"": rows},
        axis="nats",
        kinds=kinds,
        write="{:g}".format,
    )
