"""Estimates as text, for a terminal and for `print`: a table, and footnotes below the table."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from rappor.decoding.contrasts import Contrast
from rappor.decoding.estimates import Estimates, adjusted_interval
from rappor.decoding.post_stratification import WeightedTotals
from rappor.reporting.estimates_tables import (
    Row,
    contrasts_table,
    estimate_columns,
    format_candidate,
)
from rappor.reporting.footnotes import FORGED, list_footnotes
from rappor.reporting.numbers import format_percent, format_short_percent
from rappor.reporting.tables import Column, Table, wrap


def estimates_text(
    estimates: Estimates,
    *,
    detected_only: bool = True,
    forged: bool = False,
    width: int = 100,
) -> str:
    """Format the rows of estimates and their footnotes as text.

    The strings that the metric's entry lists come first, detected or not. The share of all strings
    that are not in the list comes last.

    Parameters
    ----------
    estimates : the estimates.
    detected_only : True for detected rows, and the strings of the metric's list. The intervals of
        detected rows are adjusted (`explain_adjusted_intervals`). With False, all candidates have
        a row, and each interval holds for its own row.
    forged : True for the numbers of forged reports in place of the intervals.
    width : number of columns of the terminal.
    """
    columns = _select_columns(estimates, detected_only=detected_only, forged=forged)
    rows = list(estimates.rows(detected_only=detected_only))
    if (not_listed := estimates.not_listed) is not None:
        rows.append(_build_row_of_contrast(not_listed, estimates.reports))
    parts = [Table(title="Candidates", columns=columns, rows=rows).to_text(width)]
    if estimates.contrasts:
        confidence = estimates.error_control.confidence
        parts += ["", contrasts_table(estimates.contrasts, confidence).to_text(width)]
    sentences = [*([FORGED] if forged else []), *list_footnotes(estimates)]
    return "\n".join([*parts, *(wrap(sentence, width) for sentence in sentences)])


def weighted_text(weighted: WeightedTotals, *, width: int = 100) -> str:
    """Format weighted totals of segments and their footnotes as text."""
    weights = ", ".join(f"{name} {format_percent(part)}" for name, part in weighted.weights.items())
    sentences = [
        f"Weighted shares of {len(weighted.weights):,} segments with {weighted.reports:,} reports: "
        f"{weights}. Listed are {len(weighted.contrasts):,} of {weighted.n_candidates:,} "
        "candidates.",
        *weighted.assumptions,
        *(warning.sentence for warning in weighted.warnings),
    ]
    table = contrasts_table(weighted.contrasts, weighted.error_control.confidence, "candidate")
    return "\n".join([table.to_text(width), *(wrap(sentence, width) for sentence in sentences)])


def detected_table(estimates: Estimates, *, truth: Mapping[str, int], max_rows: int) -> Table[Row]:
    """Return the table of the most frequent `max_rows` detected rows, with their true counts."""
    columns = _select_columns(estimates, detected_only=True, forged=False)
    columns.append(Column("truth", lambda row: f"{truth.get(row['candidate'], 0):,}"))
    rows = tuple(itertools.islice(estimates.rows(detected_only=True), max_rows))
    return Table(title="The most frequent detected candidates", columns=columns, rows=rows)


def _select_columns(
    estimates: Estimates, *, detected_only: bool, forged: bool
) -> list[Column[Row]]:
    """Return the columns of a table on a terminal, as `estimates_text` describes them."""
    kind = f"{format_short_percent(estimates.error_control.confidence)} interval"
    title = f"{kind} of each"
    if detected_only:
        # An undetected string of the metric's list has a row, too. Its interval is not adjusted.
        are_all_detected = all(row["detected"] for row in estimates.rows(detected_only=True))
        title = f"adjusted {kind}" if are_all_detected else f"{kind}, adjusted where detected"

    def select_interval(row: Row) -> tuple[float | None, float | None]:
        if detected_only and row["detected"]:
            return adjusted_interval(row)
        return row["ci_low"], row["ci_high"]

    columns = estimate_columns(estimates, select_interval, title)
    ends = ("forged_to_make", "forged_to_hide") if forged else ("interval",)
    keys = ("reports", "std_error", "share", *ends, "weight", "distribution", "distribution_error")
    chosen = [columns[key] for key in keys if key in columns]
    return [Column("candidate", _format_name, "name"), *chosen]


def _format_name(row: Row) -> str:
    """Format the name of a row, and mark a row that is not detected."""
    return format_candidate(row) + ("" if row["detected"] else " (not detected)")


def _build_row_of_contrast(contrast: Contrast, reports: int) -> dict[str, Any]:
    """Return a share of several strings as a row of estimates."""
    ends = {"ci_low": max(contrast.ci_low, 0.0), "ci_high": contrast.ci_high}
    return {
        "candidate": contrast.name,
        "count": contrast.estimate * reports,
        "std_error": contrast.std_error * reports,
        "share": contrast.estimate,
        "detected": True,
        **ends,
        # Adjustment compensates for selecting rows by their size. This row is always shown, so its
        # adjusted interval is its own interval.
        **{f"{name}_adjusted": end for name, end in ends.items()},
    }
