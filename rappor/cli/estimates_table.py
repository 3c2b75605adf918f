"""Estimates as a table for people, and the diagnostics worth a sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.markup import escape
from rich.table import Table

from rappor.cli.console import show
from rappor.cli.numbers import percent, short_percent
from rappor.decoding.estimates import Estimates

_IMBALANCE: Final = 1e-6
"""P-value of the cohorts' sizes at which an analyst is told of it."""


def print_estimates(
    estimates: Estimates, *, detected_only: bool, truth: Mapping[str, int] | None = None
) -> None:
    """Print the rows, what they leave unallocated, what was assumed, and what looks wrong.

    A list of detected rows shows their adjusted intervals, which hold for it as a whole; a list of
    all candidates shows the intervals of each on its own.
    """
    show(_table(estimates, detected_only=detected_only, truth=truth), *_remarks(estimates))


def _table(estimates: Estimates, *, detected_only: bool, truth: Mapping[str, int] | None) -> Table:
    shown = Table(box=None, header_style="bold", pad_edge=False)
    shown.add_column("candidate", overflow="ellipsis", no_wrap=True, max_width=40)
    interval = f"{short_percent(estimates.confidence)} interval"
    interval = f"adjusted {interval}" if detected_only else f"{interval} of each"
    columns = ["reports", "std error", "share", interval]
    if estimates.share is not None:
        columns.append("distribution")
    if truth is not None:
        columns.append("truth")
    for name in columns:
        shown.add_column(name, justify="right", no_wrap=True)
    for row in estimates.rows(detected_only=detected_only):
        shown.add_row(*_cells(row, truth, adjusted="_adjusted" if detected_only else ""))
    return shown


def _cells(
    row: Mapping[str, Any], truth: Mapping[str, int] | None, *, adjusted: str
) -> Iterator[str]:
    low, high = row[f"ci_low{adjusted}"], row[f"ci_high{adjusted}"]
    mark = "" if row["detected"] else " (not detected)"
    group = f" (group {row['group']})" if "group" in row else ""
    yield escape(row["candidate"] + group + mark)
    yield f"{row['count']:,.0f}"
    yield "inf" if row["std_error"] is None else f"{row['std_error']:,.0f}"
    yield percent(row["proportion"], 3)
    known = low is not None and high is not None
    yield f"{percent(low, 3)} .. {percent(high, 3)}" if known else "unknown"
    if "share" in row:
        yield percent(row["share"], 3)
    if truth is not None:
        yield f"{truth.get(row['candidate'], 0):,}"


def _remarks(estimates: Estimates) -> Iterator[str]:
    """Yield what was detected at which error rate, and what an analyst should know of."""
    yield (
        f"{int(estimates.detected.sum()):,} of {len(estimates):,} candidates detected in "
        f"{estimates.reports:,} reports at {_error_rate(estimates)}."
    )
    if math.isfinite(estimates.unallocated):
        yield (
            f"{percent(estimates.unallocated)} of the reports are unallocated (standard error "
            f"{percent(estimates.unallocated_std_error)}): their strings are not candidates, or "
            "too rare to tell from noise."
        )
    yield estimates.assumed
    yield from _findings(estimates.diagnostics)
    yield from estimates.warnings


def _error_rate(estimates: Estimates) -> str:
    kind = {"bh": "a false discovery rate", "bonferroni": "a probability of any false one"}
    return f"{kind[estimates.correction]} of {short_percent(estimates.level)}"


def _findings(diagnostics: Mapping[str, Any]) -> Iterator[str]:
    for cohorts in diagnostics["cohorts"]:
        if cohorts["p_value"] < _IMBALANCE:
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
        return "No share can be detected: there are too few reports for this noise."
    ways = {
        "{:,} reports of more devices": diagnostics["half_detectable_with_reports"],
        "{:,} reports from each device": diagnostics["half_detectable_with_reports_per_device"],
        "{:,} cohorts": diagnostics["half_detectable_with_cohorts"],
    }
    enough = [way.format(number) for way, number in ways.items() if number is not None]
    half = f"{' or '.join(enough)} would detect" if enough else "only more of everything detects"
    return (
        f"A share of {percent(share, 2)} is detected with 80 % probability; {half} "
        f"{percent(share / 2, 2)}."
    )
