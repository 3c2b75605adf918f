"""Chart of each record: pages contain it, `.plot()` returns it, and the option --chart saves it.

`rappor.base.display` calls the function NAME_plot, where NAME is the record's `_renderer`. The
parameter of `audit_plot` has the type `Any`, because only the command line may import
`rappor.auditing`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rappor.association.association import Association
from rappor.base.ranges import check_choice
from rappor.base.sentence_numbers import format_count, format_plural
from rappor.comparison.comparison import Comparison
from rappor.decoding.contrasts import Contrast
from rappor.decoding.estimates import Estimates, adjusted_interval
from rappor.decoding.estimates_report import list_joint_shares
from rappor.planning.plans import Plan
from rappor.privacy.assessment import Loss, PrivacyReport
from rappor.protocol.encodings import get_encoding
from rappor.protocol.loss import posterior_bound
from rappor.reporting.association_tables import build_grids
from rappor.reporting.charts import Chart, ChartGrid
from rappor.reporting.dots import Dot, Row, draw_dots
from rappor.reporting.estimates_tables import error_of_share
from rappor.reporting.heat_map import draw_heat_map
from rappor.reporting.lines import Axis, draw_lines, merge_labels
from rappor.reporting.markup import shorten
from rappor.reporting.numbers import (
    format_change,
    format_change_interval,
    format_days,
    format_interval,
    format_share,
    format_short_percent,
)
from rappor.reporting.time_chart import draw_course

_MAX_NAME_COLUMNS: Final = 40
"""Largest width of a name in the title of a chart, in columns of a terminal. A longer name is cut,
so that titles of neighbouring charts do not overlap."""

_MAX_SUBJECT_COLUMNS: Final = 100
"""Largest width of the subject of a chart, in columns of a terminal. The longest name of a metric
and its days have 90 columns. Counts of other programs may have longer names, which are cut."""

_MAX_CHANGES: Final = 20
"""Largest number of changes that `comparison_plot` draws for collections without an order. The
table contains all changes."""

MAX_SEGMENTS: Final = 24
"""Largest number of segments that are drawn. Segments are sorted by their number of reports, so the
smallest segments are left out."""

_DRAWN_REPORTS: Final = (1, 10)
"""Numbers of reports whose beliefs are drawn. One more curve is for any number of reports."""

_CURVE_STEPS: Final = 60
"""Number of steps of a curve of beliefs. More steps give a smoother curve and a larger file."""


def estimates_plot(estimates: Estimates, *, top: int = 20, rest: bool = False) -> Chart:
    """Draw the shares of the first detected rows with their adjusted intervals.

    If nothing is detected, the candidates with the smallest p-values are drawn. The strings that
    the metric's entry lists come first, detected or not.

    Parameters
    ----------
    estimates : the estimates.
    top : largest number of rows.
    rest : True for further rows: the share of all other detected rows together, the unallocated
        share, and, for a metric with a list, the share of all strings that are not in the list.

    Returns
    -------
    The chart.
    """
    detected = list(estimates.rows(detected_only=True))[:top]
    rows = detected or sorted(estimates.rows(), key=lambda row: float(row["p_value"]))[:top]
    n = int(estimates.detected.sum())
    title = "Nothing is detected; the candidates nearest to it"
    if detected:
        n_drawn = sum(row["detected"] for row in detected)
        title = f"Shares of the {estimates.share_unit}: {n_drawn} of {n} detected candidates"
    # The first joint share is that of all detected rows. The chart shows these rows one by one.
    joint_shares = list(list_joint_shares(estimates, after=top))[1:] if rest else ()
    # A file has no description below the chart, so the title of the axis names the intervals.
    intervals = f"{format_short_percent(estimates.error_control.confidence)} intervals"
    if all(row["detected"] for row in rows):
        intervals = f"adjusted {intervals}"
    elif detected:
        intervals += ", adjusted where detected"
    chart = draw_estimates(
        title,
        rows,
        estimates.reports,
        joint_shares,
        axis=f"share of the {estimates.share_unit}, with {intervals}",
    )
    metrics = dict.fromkeys(summary.metric for summary in estimates.collections)
    return dataclasses.replace(chart, subject=_join_subject(*metrics))


def draw_estimates(
    title: str,
    rows: Sequence[Mapping[str, Any]],
    reports: int,
    joint_shares: Sequence[Contrast] = (),
    *,
    axis: str,
) -> Chart:
    """Draw rows of estimates, listed and detected rows first, and shares of several candidates.

    Parameters
    ----------
    title : title of the chart.
    rows : rows as `Estimates.rows` yields them.
    reports : number of reports of the estimates.
    joint_shares : shares of several candidates together.
    axis : title of the axis.
    """
    parts: dict[str, list[Row]] = {"In the list": [], "": [], "Not detected": [], "Together": []}
    for row in rows:
        part = "" if row["detected"] else "Not detected"
        parts["In the list" if row.get("listed") else part].append(_build_row(row, reports))
    for joint in joint_shares:
        dot = Dot(joint.estimate, joint.ci_low, joint.ci_high)
        parts["Together"].append(
            Row(joint.name, format_share(joint.estimate, joint.std_error), (dot,))
        )
    return draw_dots(title, parts, axis=axis)


def _build_row(row: Mapping[str, Any], reports: int) -> Row:
    """Return the row of a chart for a row of estimates."""
    low, high = select_interval(row)
    error = error_of_share(row, reports)
    share = format_share(row["share"], error)
    dot = Dot(row["share"], low, high, row["detected"])
    return Row(row["candidate"], share, (dot,), f"{share}, {format_interval(low, high, error)}")


def select_interval(row: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the interval of a row: the adjusted interval if the row is detected."""
    return adjusted_interval(row) if row["detected"] else (row["ci_low"], row["ci_high"])


def comparison_plot(comparison: Comparison, *, top: int = 6) -> Chart | ChartGrid:
    """Draw the shares of the first strings in each period or segment, one chart for each string.

    For collections without an order, draw the largest changes instead.

    Parameters
    ----------
    comparison : the comparison.
    top : largest number of strings.
    """
    # A file has no description below the chart, so a title names the intervals.
    intervals = f"{format_short_percent(comparison.error_control.confidence)} intervals"
    if comparison.by == "sample":
        kind = f"adjusted {intervals}" if comparison.n_changed else intervals
        chart = draw_changes(comparison, top=_MAX_CHANGES, axis=f"percentage points, with {kind}")
        return dataclasses.replace(chart, subject=_join_subject(comparison.metric))
    rows = comparison.shown_rows[:top].tolist()
    # Only periods have days.
    first, last = comparison.samples[0].first, comparison.samples[-1].last
    days = format_days(first, last) if first and last else ""
    return ChartGrid(
        subject=_join_subject(comparison.metric, days),
        title=f"Shares of the {comparison.share_unit} by {comparison.by}, with adjusted {intervals}"
        if rows
        else "No candidate is detected",
        charts=[draw_shares(comparison, i) for i in rows],
    )


def _join_subject(*parts: str) -> str:
    """Return names of metrics, and days, as the subject of a chart. Empty parts are left out."""
    return shorten(", ".join(filter(None, parts)), _MAX_SUBJECT_COLUMNS)


def draw_shares(comparison: Comparison, i: int) -> Chart:
    """Draw the shares of the candidate with index i in all samples."""
    title = shorten(comparison.candidates[i], _MAX_NAME_COLUMNS)
    if comparison.by == "segment":
        return _draw_segments(comparison, i, title)
    return draw_course(comparison, i, title)


def draw_changes(comparison: Comparison, *, top: int, axis: str = "percentage points") -> Chart:
    """Draw the largest changes with their adjusted intervals, under the name of their contrast.

    If nothing changed, the candidates with the smallest p-values are drawn as hollow dots. Their
    intervals are not adjusted.

    Parameters
    ----------
    comparison : the comparison.
    top : largest number of changes or candidates.
    axis : title of the axis.
    """
    rows = sort_changes(comparison)
    changed = [row for row in rows if row["changed"]]
    parts: dict[str, list[Row]] = {contrast.name: [] for contrast in comparison.primary}
    # An estimate is None if the counts contain no information about the candidate.
    for row in [row for row in changed or rows if row["estimate"] is not None][:top]:
        parts[row["name"]].append(_build_row_of_change(row))
    noun = "difference" if comparison.by == "segment" else "change"
    title = f"{format_count(len(changed), noun)}, in percentage points"
    if not changed:
        title = f"No significant {noun}; the nearest candidates, in percentage points"
    return draw_dots(
        title,
        {name: rows for name, rows in parts.items() if rows},
        axis=axis,
        write=_format_points,
    )


def sort_changes(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the rows of the primary contrasts.

    Significant changes come first, the largest first. The other rows follow by their p-value.
    """
    return sorted(
        (
            comparison.contrast_row(contrast, i)
            for contrast in comparison.primary
            for i in range(len(comparison.candidates))
        ),
        key=_sort_key,
    )


def _sort_key(row: Mapping[str, Any]) -> tuple[bool, float, str]:
    """Return the key of the order of `sort_changes`. A row without a number comes last."""
    number = -abs(row["estimate"]) if row["changed"] else row["p_value"]
    return (not row["changed"], math.inf if number is None else number, row["candidate"])


def select_contrast_interval(row: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the interval of a contrast: the adjusted interval if the contrast is significant."""
    suffix = "_adjusted" if row["changed"] else ""
    return row[f"ci_low{suffix}"], row[f"ci_high{suffix}"]


def _build_row_of_change(row: Mapping[str, Any]) -> Row:
    """Return the row of a chart for a row of a contrast."""
    low, high = select_contrast_interval(row)
    change = format_change(row["estimate"], row["std_error"])
    dot = Dot(row["estimate"], low, high, row["changed"])
    tooltip = f"{change}, {format_change_interval(low, high, row['std_error'])}"
    return Row(row["candidate"], change, (dot,), tooltip)


def _format_points(difference: float) -> str:
    """Format a difference of shares in percentage points, with its sign."""
    return f"{100 * difference:+.6g}" if difference else "0"


def _draw_segments(comparison: Comparison, i: int, title: str) -> Chart:
    """Draw the share of the candidate with index i in each of the first segments."""
    rows = []
    for number, sample in enumerate(comparison.samples[:MAX_SEGMENTS]):
        row = comparison.share_row(number, i)
        share = format_share(row["estimate"], row["std_error"])
        low, high = row["ci_low"], row["ci_high"]
        dot = Dot(row["estimate"], low, high, row["detected"])
        tooltip = f"{share}, {format_interval(low, high, row['std_error'])}"
        rows.append(Row(sample.label, share, (dot,), tooltip))
    return draw_dots(title, {"": rows}, axis=f"share of the {comparison.share_unit}")


def association_plot(association: Association, *, within: str = "") -> Chart:
    """Draw the cells of an association with their margins as a heat map.

    Parameters
    ----------
    association : the association.
    within : "rows" for the conditional shares within rows, "columns" for those within columns.

    Raises
    ------
    ParamsError
        `within` is another text.
    """
    check_choice("within", within, ("", "rows", "columns"))
    cells, rows, columns = build_grids(association)
    grid = {"": cells, "rows": rows, "columns": columns}[within]
    # A file has no note below the chart, so the title names the second number of each cell.
    chart = draw_heat_map(dataclasses.replace(grid, title=f"{grid.title} (\u00b1 standard error)"))
    return dataclasses.replace(chart, subject=_join_subject(association.metric))


def plan_plot(plan: Plan) -> Chart:
    """Draw the probability that a candidate is detected against its share."""
    frequencies, probabilities = plan.target.frequencies, plan.prediction.probabilities
    curve = sorted(
        (float(share), float(probability))
        for share, probability, n in zip(
            frequencies.shares, probabilities, frequencies.candidates, strict=True
        )
        if n
    )
    curve_name = f"{format_count(plan.reports, 'report')}, epsilon_1 = {plan.epsilon_1:.3g}"
    limit = f"detected with probability {plan.target.power:g}"
    return draw_lines(
        [
            {"share": share, "probability": probability, "what": curve_name}
            for share, probability in curve
        ],
        points=[{"share": plan.share, "probability": plan.target.power, "what": limit}],
        x=Axis(field="share", title="share of the reports", log=True, percent=True),
        y=Axis(field="probability", title="probability of detection", domain=(0, 1), percent=True),
        series="what",
        title=f"Which {format_plural(get_encoding(plan.params).value_noun)} are detected",
    )


def privacy_plot(report: PrivacyReport) -> Chart:
    """Draw the smallest and largest belief after 1, 10 and any number of reports."""
    losses = report.losses
    plotted_losses = [
        loss for loss in losses if loss.reports in _DRAWN_REPORTS or loss is losses[-1]
    ]
    rows = [row for loss in plotted_losses for row in _build_curve(loss)]
    # After many reports the curves lie over each other. They are one line with several labels.
    labels = merge_labels(rows, value="after", series="reports")
    return draw_lines(
        [row | {"reports": labels[row["reports"]]} for row in rows],
        x=Axis(field="prior", title="belief before", domain=(0, 1), percent=True),
        y=Axis(field="after", title="least and most belief after", domain=(0, 1), percent=True),
        series="reports",
        part="end",
        title="Belief in a value before and after reports of one epoch",
    )


def _build_curve(loss: Loss) -> list[dict[str, Any]]:
    """Return the points of two curves: smallest and largest belief after reports, by the prior."""
    number = "any number" if loss.reports is None else format_count(loss.reports, "report")
    label = f"{number}: epsilon = {loss.epsilon:.3g}"
    return [
        {"prior": prior, "after": belief, "end": end, "reports": label}
        for prior in (step / _CURVE_STEPS for step in range(_CURVE_STEPS + 1))
        for end, belief in zip(("least", "most"), posterior_bound(loss.epsilon, prior), strict=True)
    ]


def audit_plot(audit: Any) -> Chart:
    """Draw three losses for each check of an audit, in nats.

    The three losses are the measured lower bound, the claimed loss, and the reach: the largest
    lower bound that so many trials can prove.
    """
    kinds = ("measured, at least", "claimed, at most", "reachable with these trials")
    rows = []
    for check in audit.checks:
        if check.bound is None:
            continue
        losses = (check.bound, check.claim, check.reach)
        values_and_kinds = [(value, kind) for kind, value in enumerate(losses) if value is not None]
        # Case: parameters with f = 0, whose epsilon_inf is infinite. An axis has no position for
        # infinity, so only the text beside the name contains the loss.
        dots = tuple(
            Dot(value, is_filled=kind == 0, kind=kind)
            for value, kind in values_and_kinds
            if math.isfinite(value)
        )
        texts = (
            "infinite" if math.isinf(value) else f"{value:.3g}" for value, _ in values_and_kinds
        )
        rows.append(Row(check.name, " / ".join(texts), dots))
    chart = draw_dots(
        "Losses in nats: measured, and claimed",
        {"": rows},
        axis="nats",
        kinds=kinds,
        write="{:g}".format,
    )
    return dataclasses.replace(chart, subject=_join_subject(audit.metric.name))
