"""Estimates as a table for people, and the diagnostics worth a sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from rappor.cli.console import output
from rappor.decoding.estimates import Estimates

_SUSPICIOUS = 1e-6


def print_estimates(
    estimates: Estimates, *, detected_only: bool, truth: Mapping[str, int] | None = None
) -> None:
    """Print the rows, what they leave unallocated, and what looks wrong.

    Detected rows show their adjusted interval, which holds for the list as a whole.
    """
    console = output()
    console.print(_table(estimates, detected_only=detected_only, truth=truth))
    console.print(
        f"{int(estimates.detected.sum()):,} of {len(estimates):,} candidates detected in "
        f"{estimates.reports:,} reports at {_error_rate(estimates)}."
    )
    if math.isfinite(estimates.unallocated):
        console.print(
            f"{estimates.unallocated:.1%} of the mass is unallocated: strings not asked about, or "
            "too rare to tell from noise."
        )
    for sentence in remarks(estimates.diagnostics):
        console.print(sentence)


def _table(estimates: Estimates, *, detected_only: bool, truth: Mapping[str, int] | None) -> Table:
    table = Table(box=None, header_style="bold")
    table.add_column("candidate", overflow="ellipsis", no_wrap=True, max_width=40)
    columns = ["devices", "std error", "share", f"{100 * estimates.confidence:.4g} % interval"]
    if estimates.share is not None:
        columns.append("distribution")
    if truth is not None:
        columns.append("truth")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in estimates.rows(detected_only=detected_only):
        table.add_row(*_cells(row, truth))
    return table


def _cells(row: Mapping[str, Any], truth: Mapping[str, int] | None) -> Iterator[str]:
    low = row.get("ci_low_adjusted", row["ci_low"])
    high = row.get("ci_high_adjusted", row["ci_high"])
    mark = "" if row["detected"] else " (not detected)"
    tied = f" (group {row['group']})" if "group" in row else ""
    yield escape(row["candidate"] + tied + mark)
    yield f"{row['count']:,.0f}"
    yield "inf" if row["std_error"] is None else f"{row['std_error']:,.0f}"
    yield f"{row['proportion']:.3%}"
    yield "unknown" if low is None or high is None else f"{low:.3%} .. {high:.3%}"
    if "share" in row:
        yield f"{row['share']:.3%}"
    if truth is not None:
        yield f"{truth.get(row['candidate'], 0):,}"


def _error_rate(estimates: Estimates) -> str:
    kind = {"bh": "a false discovery rate", "bonferroni": "a chance of any false one"}
    return f"{kind[estimates.correction]} of {estimates.level:.4g}"


def remarks(diagnostics: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each finding that an analyst should know of."""
    for cohorts in diagnostics["cohorts"]:
        if cohorts["p_value"] < _SUSPICIOUS:
            yield (
                f"Cohorts are out of balance: {cohorts['smallest']:,} to {cohorts['largest']:,} "
                "reports each; honest devices spread evenly."
            )
    if diagnostics["odd_popcounts"]:
        n = len(diagnostics["odd_popcounts"])
        yield f"{n} cohorts show a number of ones that no honest devices send."
    if diagnostics.get("groups"):
        n = len(diagnostics["groups"])
        yield f"{n} groups of candidates cannot be told apart: each member shows its group's total."
    if "detectable_share" in diagnostics:
        yield _limit(diagnostics)


def _limit(diagnostics: Mapping[str, Any]) -> str:
    share = diagnostics["detectable_share"]
    if share is None or share > 1:
        return "No share can be found: there are too few reports for this noise."
    enough = diagnostics["half_detectable_with_reports"]
    half = f"about {enough:,} reports" if enough else "more cohorts, not more reports,"
    return (
        f"A share of {share:.2%} is found with 80 % probability; {half} would find {share / 2:.2%}."
    )
