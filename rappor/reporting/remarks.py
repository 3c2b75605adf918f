"""Sentences about estimates, the same for terminal, page and notebook."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from rappor.decoding.diagnostics import IMBALANCE
from rappor.decoding.estimates import Estimates
from rappor.reporting.numbers import percent, short_percent


def remarks(estimates: Estimates) -> Iterator[str]:
    """Yield what was detected at which error rate, and what an analyst should know of."""
    yield answer(estimates)
    yield from unallocated(estimates)
    yield estimates.assumed
    yield from findings(estimates.diagnostics)
    yield from estimates.warnings


def error_rate(estimates: Estimates) -> str:
    """Say which error rate the detections have."""
    bonferroni = estimates.correction == "bonferroni"
    kind = "a probability of any false one" if bonferroni else "a false discovery rate"
    return f"{kind} of {short_percent(estimates.level)}"


def findings(diagnostics: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the counts say about the collection."""
    for cohorts in diagnostics["cohorts"]:
        if cohorts["p_value"] < IMBALANCE:
            yield (
                f"Cohorts are out of balance: {cohorts['smallest']:,} to {cohorts['largest']:,} "
                "reports each; honest devices spread evenly."
            )
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


def answer(estimates: Estimates) -> str:
    """Say how many candidates were detected, in how many reports, and how surely."""
    return (
        f"{int(estimates.detected.sum()):,} of {estimates.n_candidates:,} candidates detected in "
        f"{estimates.reports:,} reports at {error_rate(estimates)}."
    )


def unallocated(estimates: Estimates) -> Iterator[str]:
    """Yield what the detected candidates leave, where a report has one answer."""
    if not math.isfinite(estimates.unallocated):
        return
    if estimates.unallocated < 0:
        yield (
            f"The detected candidates add up to {percent(1 - estimates.unallocated)} of the "
            f"reports (standard error {percent(estimates.unallocated_std_error)}): nothing is left "
            "for other strings. More than 100 % is noise, which lifted some of the detected too."
        )
    else:
        yield (
            f"{percent(estimates.unallocated)} of the reports are unallocated (standard error "
            f"{percent(estimates.unallocated_std_error)}): their strings are not candidates, or "
            "too rare to tell from noise."
        )
