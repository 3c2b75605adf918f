"""Footnotes: sentences below estimates and comparisons, the same on terminal, page and notebook.

The sentences state the number of detections, the unallocated share (reports that no detected
candidate explains), assumptions, gaps of the data and warnings. Every number comes from a record.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rappor.base.sentence_numbers import format_count, format_plural
from rappor.comparison.comparison import Comparison, Sample
from rappor.comparison.sample_contrasts import SampleContrast
from rappor.decoding.diagnostics import IMBALANCE
from rappor.decoding.estimates import Estimates
from rappor.protocol.encodings import get_encoding
from rappor.protocol.loss import epsilon_1
from rappor.reporting.numbers import (
    count_digits,
    format_nats,
    format_p_value,
    format_percent,
    format_short_percent,
    format_small_percent,
)

_LEAST_ERROR_WITH_ONE_DECIMAL: Final = 0.001
"""Smallest standard error of the unallocated share that is written with one decimal of a per cent.
A smaller error has two significant digits. With a smaller limit, it could read as 0.0 %."""

_SIGNIFICANCE_LEVEL: Final = 0.01
"""P-value below which a footnote calls the overall test significant, and which the footnote names.
The number is a convention, stricter than the usual 5 %. With a larger number, more contrasts
without a change would be called significant."""

_MAX_NAMED_PERIODS: Final = 5
"""Largest number of periods that a footnote names. Further periods are counted, so that the
sentence stays readable."""

FORGED: Final = (
    "Nothing in a report proves that a device sent it. 'forged make': this many forged reports "
    "could create this row although no device has the value. 'forged hide': this many more could "
    "remove it, and perhaps other rows too."
)
"""Footnote that explains the columns "forged make" and "forged hide" of a table."""

RANKED: Final = (
    "The list is ranked: the larger the weight of a candidate, the larger the p-value at which the "
    "candidate is detected. The error rate holds only if the order of the list does not come from "
    "reports of this metric, of any epoch. Limits of detection are for a weight of 1."
)
"""Footnote that explains the column "weight" of a table."""

_DIFFERENCES: Final = {
    "sample": "differences are significant, at",
    "segment": "differences of a segment from the rest are significant, at",
}
"""Clauses about the number of significant contrasts. The keys are the kinds of samples that have
differences. Periods have a trend line instead."""


def list_footnotes(estimates: Estimates) -> Iterator[str]:
    """Yield the footnotes of estimates: detections, unallocated share and warnings."""
    yield format_detections(estimates)
    if estimates.error_control.ranked:
        yield RANKED
    yield from format_unallocated(estimates)
    yield estimates.assumptions
    yield from list_findings(estimates.diagnostics)
    yield from (warning.sentence for warning in estimates.warnings)


def list_comparison_footnotes(comparison: Comparison) -> Iterator[str]:
    """Yield the footnotes of a comparison: significant contrasts, detections, gaps and warnings."""
    yield summarize_changes(comparison)
    yield from explain_comparison(comparison)
    yield from list_limitations(comparison)


def summarize_changes(comparison: Comparison) -> str:
    """Return a sentence with the number of significant changes."""
    if comparison.primary:
        return _format_changes(comparison)
    return f"Nothing was compared: only one {comparison.by} has reports."


def explain_comparison(comparison: Comparison) -> Iterator[str]:
    """Yield sentences about intervals, the overall test, steps, detections and assumptions."""
    by, n_candidates = comparison.by, len(comparison.candidates)
    if comparison.primary:
        yield " ".join(_describe_intervals(comparison))
        yield format_overall_test(comparison.primary)
    steps = [contrast for contrast in comparison.contrasts if contrast.kind == "step"]
    if steps:
        yield (
            f"{sum(step.n_changed for step in steps):,} of {len(steps) * n_candidates:,} steps "
            f"from one {by} to the next are significant, at {format_error_rate(comparison)}."
        )
    if by != "sample":
        yield (
            f"{int(comparison.detected_overall.sum()):,} of {n_candidates:,} listed values were "
            f"found in {format_count(comparison.reports, 'report')} from "
            f"{format_count(len(comparison.samples), by)}, at {format_error_rate(comparison)}. "
            f"Each value has two kinds of tests: one of all {by}s together and one of each {by}. "
            "Their p-values are corrected for the number of tests, so a decode of the same reports "
            "may detect other values."
        )
    if by == "segment" and len(comparison.samples) > 2:
        yield (
            "The rest is all other segments together. One segment that is unlike the others "
            "changes the rest, so the others may differ from the rest although they are like each "
            "other."
        )
    if comparison.smoothed is not None:
        yield (
            f"Smoothed estimates are of {comparison.window} {by}s together: the named {by} and the "
            f"{comparison.window - 1} before it. They follow a change late."
        )
    yield comparison.assumptions


def list_limitations(comparison: Comparison) -> Iterator[str]:
    """Yield what makes the shares wrong or incomplete: gaps, other parameters, and warnings."""
    yield from list_missing_periods(comparison)
    for before, after in comparison.params_changes:
        yield (
            f"From {after.name} on, reports have other parameters: {_format_params(after)} instead "
            f"of {_format_params(before)}."
        )
    yield from (warning.sentence for warning in comparison.warnings)


def _describe_intervals(comparison: Comparison) -> Iterator[str]:
    """Yield sentences about the two kinds of intervals in the table of the changes."""
    confidence = comparison.error_control.confidence
    if comparison.n_changed:
        yield explain_adjusted_intervals(confidence, "significant changes", "change")
    # Many candidates are tested, so some of these intervals exclude 0 although the test over all
    # candidates shows no change.
    rate = format_short_percent(1 - confidence)
    subject = "Each other interval" if comparison.n_changed else "Each interval"
    yield (
        f"{subject} holds for its candidate alone. Where nothing has changed, about {rate} of "
        "these intervals exclude 0."
    )


def explain_adjusted_intervals(confidence: float, selected: str, estimated: str = "share") -> str:
    """Return the sentence about adjusted intervals: their false coverage rate.

    The false coverage rate is the expected share of intervals that miss the truth, among the
    intervals of the selected rows (Benjamini and Yekutieli 2005). It is not the probability that
    any of these intervals misses: with 20 selected rows, one miss in each collection is a share of
    5 %.

    Parameters
    ----------
    confidence : the confidence level, such as 0.95.
    selected : the rows that have adjusted intervals, such as "detected candidates".
    estimated : what the intervals contain: "share" or "change".
    """
    return (
        f"On average, at most {format_short_percent(1 - confidence)} of the adjusted intervals of "
        f"{selected} miss the true {estimated}."
    )


def format_overall_test(contrasts: Sequence[SampleContrast]) -> str:
    """Name the contrasts in which the overall test finds a change, and the other contrasts."""
    significant, insignificant = (
        ", ".join(
            f"{contrast.name} (p = {format_p_value(contrast.unchanged_p_value)})"
            for contrast in contrasts
            if (contrast.unchanged_p_value < _SIGNIFICANCE_LEVEL) == is_significant
        )
        for is_significant in (True, False)
    )
    has_bits = contrasts[0].rows_p_value is not None
    tested = "all bits and candidates" if has_bits else "all candidates"
    level = f"at the level {format_short_percent(_SIGNIFICANCE_LEVEL)}"
    results = [f"significant {level}: {significant}"] if significant else []
    results += [f"not significant {level}: {insignificant}"] if insignificant else []
    sentence = f"Overall test ({tested}), {'; '.join(results)}."
    # Case: the first line of a page says that a difference is significant, and this line that the
    # overall test is not. The two tests have different levels and different hypotheses.
    if any(
        contrast.n_changed and contrast.unchanged_p_value >= _SIGNIFICANCE_LEVEL
        for contrast in contrasts
    ):
        sentence += (
            " The overall test has a level of its own, so it may miss a change that the test of a "
            "candidate finds."
        )
    return sentence


def format_error_rate(estimates: Estimates | Comparison) -> str:
    """Describe the error rate of the detections."""
    is_bonferroni = estimates.error_control.method == "bonferroni"
    kind = "a probability of any false one" if is_bonferroni else "a false discovery rate"
    return f"{kind} of {format_short_percent(estimates.error_control.alpha)}"


def list_missing_periods(comparison: Comparison) -> Iterator[str]:
    """Yield sentences about periods without reports, with missing days, or with unreleased days."""
    incomplete = [sample for sample in comparison.samples if sample.reports and sample.missing_days]
    waiting = [sample for sample in comparison.samples if sample.withheld]
    if comparison.missing:
        yield f"There are no reports for {_name_periods(comparison.missing)}."
    if incomplete:
        yield f"Some days have no reports in {_name_periods(incomplete)}."
    if waiting:
        yield f"Some reports are not yet released for {_name_periods(waiting)}."


def list_findings(diagnostics: Mapping[str, Any]) -> Iterator[str]:
    """Yield the findings of the diagnostics about the collection."""
    for cohorts in diagnostics["cohorts"]:
        if cohorts["p_value"] < IMBALANCE:
            yield (
                f"Cohorts are out of balance: {cohorts['smallest']:,} to {cohorts['largest']:,} "
                "reports each; honest devices spread evenly."
            )
    if diagnostics.get("groups"):
        groups = format_count(len(diagnostics["groups"]), "group")
        yield (
            f"The candidates of {groups} cannot be distinguished: each shows the total of its "
            "group."
        )
    if "detectable_share" in diagnostics:
        yield _format_limit(diagnostics)


def format_detections(estimates: Estimates) -> str:
    """Describe the number of detected candidates, the number of reports and the error rate."""
    return (
        f"{int(estimates.detected.sum()):,} of {format_count(estimates.n_candidates, 'candidate')} "
        f"detected in {format_count(estimates.reports, 'report')} at "
        f"{format_error_rate(estimates)}."
    )


def format_unallocated(estimates: Estimates) -> Iterator[str]:
    """Yield a sentence about the unallocated share, or sentences about the shares of sets."""
    if estimates.has_sets:
        # A set that is cut looks like any other set in the reports, so no estimate can correct it.
        most_items = max(collection.params.items for collection in estimates.collections)
        yield (
            "Shares are of devices: a device may have several items, so shares do not add up to "
            f"100 %. A device with more than {format_count(most_items, 'item')} cuts its set at "
            "random, and counts the cut. Cuts lower every share, and the reports do not show them."
        )
    if (items := estimates.mean_listed_items) is not None:
        yield (
            f"A device has {items.estimate:z.2f} of the listed items on average (standard error "
            f"{items.std_error:.2f})."
        )
    if not math.isfinite(estimates.unallocated):
        # A device may have several values of a set, so shares do not add up to 1.
        return
    std_error = estimates.unallocated_std_error
    # Case: many devices. An error below 0.1 % would be written as 0.0 % with one decimal.
    digits = 1 if std_error >= _LEAST_ERROR_WITH_ONE_DECIMAL else count_digits(std_error)
    error = format_percent(std_error, digits)
    if not estimates.detected.any():
        yield "No candidate was detected: all reports are unallocated."
    elif estimates.unallocated < 0:
        yield (f"The detected candidates account for all of the reports (standard error {error}).")
    else:
        share = format_percent(estimates.unallocated, digits)
        yield (
            f"{share} of the reports are unallocated (standard error {error}): "
            f"{_explain_unallocated(estimates)}."
        )


def _explain_unallocated(estimates: Estimates) -> str:
    """Return a clause about the values of the unallocated reports."""
    values = format_plural(estimates.value_noun)
    params = [collection.params for collection in estimates.collections]
    if get_encoding(params[0]).is_hashed:
        return f"their {values} are not candidates, or too rare to detect"
    # All categories are candidates. The bucket for values outside them has no row.
    if any(collection_params.has_other_bucket for collection_params in params):
        return f"their values are outside the {values}, or their {values} are too rare to detect"
    return f"their {values} are too rare to detect"


def _format_changes(comparison: Comparison) -> str:
    """Describe the number of significant contrasts and their error rate."""
    n, rate = len(comparison.candidates) * len(comparison.primary), format_error_rate(comparison)
    if comparison.by in _DIFFERENCES:
        return f"{comparison.n_changed:,} of {n:,} {_DIFFERENCES[comparison.by]} {rate}."
    changed = f"{comparison.n_changed:,} of {n:,} values" if comparison.n_changed else "No value"
    line = f"trend line through all {comparison.by}s"
    return f"{changed} changed significantly over the range ({line}), at {rate}."


def _name_periods(periods: Sequence[Sample]) -> str:
    """Name the first periods, and count the others."""
    first = ", ".join(period.name for period in periods[:_MAX_NAMED_PERIODS])
    n_more = len(periods) - _MAX_NAMED_PERIODS
    return first if n_more <= 0 else f"{first} and {n_more:,} more"


def _format_params(sample: Sample) -> str:
    """Name the parameter sets of a sample, with the loss of one report."""
    return " and ".join(
        f"{params.fingerprint} (epsilon_1 = {format_nats(epsilon_1(params))})"
        for params in sample.params
    )


def _format_limit(diagnostics: Mapping[str, Any]) -> str:
    """Describe the smallest share that is detected, and the reports that half of it would need."""
    share = diagnostics["detectable_share"]
    if share is None or share > 1:
        return "No share can be detected: there are too few reports for this noise."
    reports, reports_per_device, cohorts = (
        diagnostics[f"half_detectable_with_{way}"]
        for way in ("reports", "reports_per_device", "cohorts")
    )
    ways = {
        "about {} reports in all, from different devices": reports,
        "{} reports from each device that has reported": reports_per_device,
        "{} cohorts": cohorts,
    }
    remedies = [way.format(_round_up(number)) for way, number in ways.items() if number is not None]
    needed = ", or ".join(remedies) or "more reports and more cohorts"
    return (
        f"A share of {format_small_percent(share)} is detected with 80 % probability. To detect "
        f"{format_small_percent(share / 2)}, you need {needed}."
    )


def _round_up(number: int) -> str:
    """Format a number rounded up to two significant digits."""
    step = 10 ** max(len(f"{number}") - 2, 0)
    return f"{-(-number // step) * step:,}"
