"""Footnotes: sentences under estimates and comparisons, the same on terminal, page and notebook."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rappor.base.sentence_numbers import format_count
from rappor.comparison.comparison import Comparison, Sample
from rappor.comparison.sample_contrasts import SampleContrast
from rappor.decoding.diagnostics import IMBALANCE
from rappor.decoding.estimates import Estimates
from rappor.protocol.loss import epsilon_1
from rappor.reporting.numbers import (
    format_nats,
    format_p_value,
    format_percent,
    format_short_percent,
)

_SURELY: Final = 0.01
"""Largest p-value at which the overall test is called significant."""

FORGED: Final = (
    "Nothing in a report proves that a device sent it. 'forged make': this many forged reports "
    "could create this row although nobody has the string. 'forged hide': this many more could "
    "remove it, and perhaps other rows too."
)

_ASKED: Final = {
    "sample": "differences are significant, at",
    "segment": "differences of a segment from the rest are significant, at",
}


def list_footnotes(estimates: Estimates) -> Iterator[str]:
    """Yield the footnotes of estimates: detections, unallocated share and warnings."""
    yield format_detections(estimates)
    yield from format_unallocated(estimates)
    yield estimates.assumptions
    yield from list_findings(estimates.diagnostics)
    yield from (each.sentence for each in estimates.warnings)


def list_comparison_footnotes(panel: Comparison) -> Iterator[str]:
    """Yield the footnotes of a comparison: significant contrasts, detections, gaps and warnings."""
    if panel.primary:
        yield _changed(panel)
        yield format_overall_test(panel.primary)
    else:
        yield f"Nothing was compared: only one {panel.by} has reports."
    steps = [each for each in panel.contrasts if each.kind == "step"]
    if steps:
        yield (
            f"{sum(each.n_changed for each in steps):,} of {len(steps) * len(panel.candidates):,} "
            f"steps from one {panel.by} to the next are significant, at {format_error_rate(panel)}."
        )
    if panel.by != "sample":
        yield (
            f"{int(panel.detected_overall.sum()):,} of {len(panel.candidates):,} listed values "
            f"were found in {format_count(panel.reports, 'report')} from "
            f"{format_count(len(panel.samples), panel.by)}: all "
            f"{panel.by}s together or at least one {panel.by} detects them."
        )
    yield from list_missing_periods(panel)
    for before, after in panel.params_changes:
        yield (
            f"From {after.name} on, reports have other parameters: {_in_use(after)} instead of "
            f"{_in_use(before)}."
        )
    if panel.smoothed is not None:
        yield (
            f"Smoothed estimates are of {panel.window} {panel.by}s together: the named {panel.by} "
            f"and the {panel.window - 1} before it. They follow a change late."
        )
    yield panel.assumptions
    yield from (each.sentence for each in panel.warnings)


def _changed(panel: Comparison) -> str:
    """Describe the number of significant contrasts and their error rate."""
    n = len(panel.candidates) * len(panel.primary)
    if panel.by in _ASKED:
        return f"{panel.n_changed:,} of {n:,} {_ASKED[panel.by]} {format_error_rate(panel)}."
    some = f"{panel.n_changed:,} of {n:,} values" if panel.n_changed else "No value"
    line = f"trend line through all {panel.by}s"
    return f"{some} changed significantly over the range ({line}), at {format_error_rate(panel)}."


def format_overall_test(main: Sequence[SampleContrast]) -> str:
    """Describe the contrasts in which the overall test finds a change, and the others."""
    some, none = (
        ", ".join(
            f"{each.name} (p = {format_p_value(each.unchanged_p_value)})"
            for each in main
            if (each.unchanged_p_value < _SURELY) == surely
        )
        for surely in (True, False)
    )
    tested = "all bits and candidates" if main[0].rows_p_value is not None else "all candidates"
    found = [f"significant: {some}"] if some else []
    found += [f"not significant: {none}"] if none else []
    return f"Overall test ({tested}), {'; '.join(found)}."


def format_error_rate(estimates: Estimates | Comparison) -> str:
    """Describe the error rate of the detections."""
    bonferroni = estimates.error_control.method == "bonferroni"
    kind = "a probability of any false one" if bonferroni else "a false discovery rate"
    return f"{kind} of {format_short_percent(estimates.error_control.alpha)}"


def list_missing_periods(panel: Comparison) -> Iterator[str]:
    """Yield the periods without reports, with missing days, or with unreleased reports."""
    lacking = [each for each in panel.samples if each.reports and each.missing_days]
    waiting = [each for each in panel.samples if each.withheld]
    if panel.missing:
        yield f"There are no reports for {_named(panel.missing)}."
    if lacking:
        yield f"Some days have no reports in {_named(lacking)}."
    if waiting:
        yield f"Some reports are not yet released for {_named(waiting)}."


def _named(periods: Sequence[Sample]) -> str:
    few = ", ".join(period.name for period in periods[:5])
    return few if len(periods) <= 5 else f"{few} and {len(periods) - 5:,} more"


def _in_use(sample: Sample) -> str:
    return " and ".join(
        f"{each.fingerprint} (epsilon_1 = {format_nats(epsilon_1(each))})" for each in sample.params
    )


def list_findings(diagnostics: Mapping[str, Any]) -> Iterator[str]:
    """Yield the findings of the diagnostics about the collection."""
    for cohorts in diagnostics["cohorts"]:
        if cohorts["p_value"] < IMBALANCE:
            yield (
                f"Cohorts are out of balance: {cohorts['smallest']:,} to {cohorts['largest']:,} "
                "reports each; honest devices spread evenly."
            )
    if diagnostics.get("groups"):
        n = len(diagnostics["groups"])
        yield f"{n} groups of candidates cannot be distinguished: each member shows its total."
    if "detectable_share" in diagnostics:
        yield _limit(diagnostics)


def _limit(diagnostics: Mapping[str, Any]) -> str:
    share = diagnostics["detectable_share"]
    if share is None or share > 1:
        return "No share can be detected: there are too few reports for this noise."
    reports, each, cohorts = (
        diagnostics[f"half_detectable_with_{way}"]
        for way in ("reports", "reports_per_device", "cohorts")
    )
    unit = "" if reports is not None else "reports "
    ways = {
        "about {} reports in all, from different devices": reports,
        f"{{}} {unit}from each of the same devices": each,
        "{} cohorts": cohorts,
    }
    enough = [way.format(_about(number)) for way, number in ways.items() if number is not None]
    needed = ", or ".join(enough) or "more reports and more cohorts"
    return (
        f"A share of {format_percent(share, 2)} is detected with 80 % probability. To detect "
        f"{format_percent(share / 2, 2)}, you need {needed}."
    )


def _about(number: int) -> str:
    """Format a number rounded up to two significant digits."""
    step = 10 ** max(len(f"{number}") - 2, 0)
    return f"{-(-number // step) * step:,}"


def format_detections(estimates: Estimates) -> str:
    """Describe the number of detected candidates, the number of reports and the error rate."""
    return (
        f"{int(estimates.detected.sum()):,} of {format_count(estimates.n_candidates, 'candidate')} "
        f"detected in {format_count(estimates.reports, 'report')} at "
        f"{format_error_rate(estimates)}."
    )


def format_unallocated(estimates: Estimates) -> Iterator[str]:
    """Yield the unallocated share, if each report has one value."""
    if not math.isfinite(estimates.unallocated):
        return
    if not estimates.detected.any():
        yield "No candidate was detected: all reports are unallocated."
    elif estimates.unallocated < 0:
        yield (
            "The detected candidates account for all of the reports (standard error "
            f"{format_percent(estimates.unallocated_std_error)})."
        )
    else:
        yield (
            f"{format_percent(estimates.unallocated)} of the reports are unallocated (standard "
            f"error {format_percent(estimates.unallocated_std_error)}): their strings are not "
            "candidates, or too rare to detect."
        )
