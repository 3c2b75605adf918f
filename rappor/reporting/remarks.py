"""Sentences about estimates, the same for terminal, page and notebook."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rappor.decoding.comparison.comparison import Against, Comparison
from rappor.decoding.diagnostics import IMBALANCE
from rappor.decoding.estimates import Estimates
from rappor.decoding.segments.segments import Segments
from rappor.decoding.trends.trend import InUse, Trend, TrendPeriod
from rappor.ground.plurals import counted
from rappor.reporting.numbers import nats, p_value, percent, short_percent

_SURELY: Final = 0.01
"""P-value below which a test is read as an answer."""


def remarks(estimates: Estimates) -> Iterator[str]:
    """Yield what was detected at which error rate, and what an analyst should know of."""
    yield answer(estimates)
    yield from unallocated(estimates)
    yield estimates.assumed
    yield from findings(estimates.diagnostics)
    yield from (each.sentence for each in estimates.warnings)


def changes(comparison: Comparison) -> Iterator[str]:
    """Yield what changed at which error rate, and what an analyst should know of."""
    yield (
        f"{comparison.n_changed:,} of {comparison.n_tests:,} differences from "
        f"{comparison.before} are significant, at {error_rate(comparison)}."
    )
    yield unchanged(comparison.against)
    yield comparison.assumed
    yield from comparison.warnings


def unchanged(against: Sequence[Against]) -> str:
    """Say in which samples the overall test found a change."""
    some, none = (
        ", ".join(
            f"{each.sample.name} (p = {p_value(each.unchanged_p_value)})"
            for each in against
            if (each.unchanged_p_value < _SURELY) == surely
        )
        for surely in (True, False)
    )
    tested = "all bits and candidates" if against[0].rows_p_value is not None else "all candidates"
    found = [f"a significant change in {some}"] if some else []
    found += [f"no significant change in {none}"] if none else []
    return f"Overall test ({tested}): {', and '.join(found)}."


def error_rate(estimates: Estimates | Comparison | Trend | Segments) -> str:
    """Say which error rate the detections have."""
    bonferroni = estimates.detection.correction == "bonferroni"
    kind = "a probability of any false one" if bonferroni else "a false discovery rate"
    return f"{kind} of {short_percent(estimates.detection.level)}"


def over_time(trend: Trend) -> Iterator[str]:
    """Yield what a trend shows, where reports are missing, and which parameters changed."""
    yield (
        f"{len(trend.candidates):,} of {trend.n_candidates:,} listed values were found in "
        f"{trend.reports:,} reports from {len(trend.periods):,} {trend.by}s."
    )
    yield (
        f"A value is found if all {trend.by}s together or at least one {trend.by} detects it, at "
        f"{error_rate(trend)}."
    )
    yield from gaps(trend)
    for each in trend.params_changes:
        yield (
            f"From {each.period} on, reports have other parameters: {_in_use(each.after)} instead "
            f"of {_in_use(each.before)}."
        )
    if trend.steps is not None:
        yield (
            f"{trend.n_changed:,} of {trend.steps.n_tests:,} steps from one {trend.by} to the next "
            f"are significant, at {error_rate(trend)}."
        )
    if trend.smoothed is not None:
        yield smoothing(trend)
    yield trend.assumed
    yield from trend.warnings


def gaps(trend: Trend) -> Iterator[str]:
    """Yield which periods have no reports, lack days, or have reports not yet released."""
    lacking = [each for each in trend.periods if each.reports and each.missing_days]
    waiting = [each for each in trend.periods if each.withheld]
    if trend.missing:
        yield f"There are no reports for {_named(trend.missing)}."
    if lacking:
        yield f"Some days have no reports in {_named(lacking)}."
    if waiting:
        yield f"Some reports are not yet released for {_named(waiting)}."


def smoothing(trend: Trend) -> str:
    """Say what smoothed estimates are of."""
    return (
        f"Smoothed estimates are of {trend.window} {trend.by}s together: the named {trend.by} and "
        f"the {trend.window - 1} before it. They follow a change late."
    )


def in_segments(found: Segments) -> Iterator[str]:
    """Yield what segments show, and what an analyst should know of."""
    yield (
        f"{len(found.candidates):,} of {found.n_candidates:,} listed values were found in "
        f"{found.reports:,} reports from {len(found.segments):,} segments."
    )
    yield (
        "A value is found if all segments together or at least one segment detects it, at "
        f"{error_rate(found)}."
    )
    if found.differences is not None:
        yield (
            f"{found.n_differing:,} of {found.differences.n_tests:,} differences from "
            f"{found.segments[0].name} are significant (*), at {error_rate(found)}."
        )
    yield found.assumed
    yield from found.warnings


def _named(periods: Sequence[TrendPeriod]) -> str:
    few = ", ".join(period.name for period in periods[:5])
    return few if len(periods) <= 5 else f"{few} and {len(periods) - 5:,} more"


def _in_use(sets: Sequence[InUse]) -> str:
    return " and ".join(f"{each.fingerprint} (epsilon_1 = {nats(each.epsilon_1)})" for each in sets)


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
        yield f"{n} groups of candidates cannot be distinguished: each member shows its total."
    if "detectable_share" in diagnostics:
        yield _limit(diagnostics)


def _limit(diagnostics: Mapping[str, Any]) -> str:
    share = diagnostics["detectable_share"]
    if share is None or share > 1:
        return "No share can be detected: there are too few reports for this noise."
    ways = {
        "{:,} reports from more devices": diagnostics["half_detectable_with_reports"],
        "{:,} reports from each device": diagnostics["half_detectable_with_reports_per_device"],
        "{:,} cohorts": diagnostics["half_detectable_with_cohorts"],
    }
    enough = [way.format(number) for way, number in ways.items() if number is not None]
    needed = " or ".join(enough) or "more reports and more cohorts"
    return (
        f"A share of {percent(share, 2)} is detected with 80 % probability. To detect "
        f"{percent(share / 2, 2)}, collect {needed}."
    )


def answer(estimates: Estimates) -> str:
    """Say how many candidates were detected, in how many reports, and how surely."""
    return (
        f"{int(estimates.detected.sum()):,} of {counted(estimates.n_candidates, 'candidate')} "
        f"detected in {counted(estimates.reports, 'report')} at {error_rate(estimates)}."
    )


def unallocated(estimates: Estimates) -> Iterator[str]:
    """Yield what the detected candidates leave, where a report has one answer."""
    if not math.isfinite(estimates.unallocated):
        return
    if estimates.unallocated < 0:
        yield (
            "The detected candidates account for all of the reports (standard error "
            f"{percent(estimates.unallocated_std_error)})."
        )
    else:
        yield (
            f"{percent(estimates.unallocated)} of the reports are unallocated (standard error "
            f"{percent(estimates.unallocated_std_error)}): their strings are not candidates, or "
            "too rare to detect."
        )
