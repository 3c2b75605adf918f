"""Significant changes of a comparison as one sentence that names the strings.

A comparison contains the shares of the same strings in several samples: periods, segments (groups
of devices with the same public properties) or collections. A row of a comparison is one string in
one contrast, such as "the second sample minus the first". A row contains two shares, "before" and
"after":

    samples                  before                            after
    two samples              share in the baseline             share in the sample
    periods of a trend       mean share of the first third     mean share of the last third
    segments                 share in all other segments       share in the segment

Examples of the sentence: "duckduckgo rose from 12.1 % to 14.3 % and qwant is gone: 3.1 % in the
first weeks." and "No share changed significantly." Pages contain the sentence as HTML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rappor.comparison.comparison import Comparison, Sample
from rappor.reporting.markup import Markup, join, mark_breaks, shorten, tag
from rappor.reporting.numbers import format_days, format_share
from rappor.reporting.plots import sort_changes

_MAX_NAMED_CHANGES: Final = 3
"""Largest number of changes that a sentence names. Further changes are counted, so that the
sentence stays readable."""

_TREND_PARTS: Final = 3
"""Number of equal parts into which the periods of a trend are divided. The mean of the first part
and the mean of the last part are the shares before and after."""

_VERBS: Final = {
    "rise": "rose from {before} to {after}",
    "fall": "fell from {before} to {after}",
    "newcomer": "is new: {after}{time_after}",
    "leaver": "is gone: {before}{time_before}",
    "more": "is more common in {name} ({after}) than elsewhere ({before})",
    "less": "is less common in {name} ({after}) than elsewhere ({before})",
}
"""Clauses that describe the change of a string. The keys are the values of a row's "direction"."""


def format_string(text: str) -> Markup:
    """Return a string of a device as a part of a sentence.

    The string may be written from right to left, as in Arabic. The element `bdi` prevents that a
    browser then also reorders the words of the sentence around the string.
    """
    return tag("bdi", mark_breaks(shorten(text, 60)))


def describe_changes(comparison: Comparison) -> Markup:
    """Return a sentence that names the largest changes, or states that no share changed."""
    rows = [row for row in sort_changes(comparison) if row["changed"]]
    if comparison.by == "segment" and len(comparison.samples) == 2:
        # Two segments: a string that is more common in the first is less common in the second. The
        # sentence names each string once.
        rows = [row for row in rows if row["direction"] == "more"]
    if not rows:
        # Case: one sample only, or one period with reports. Nothing was compared, so the sentence
        # is empty. It is also empty for segments, which do not change.
        is_compared = comparison.primary and comparison.by != "segment"
        return join("No share changed significantly." if is_compared else "")
    # The contrast of a segment has the name "... against the rest", but the sentence needs the name
    # of the segment.
    names = {
        f"{sample.name} against the rest": _name_segment(sample) for sample in comparison.samples
    }
    rows = [row | {"name": names.get(row["name"], row["name"])} for row in rows]
    # `primary` contains the contrasts that answer the question of the comparison. With one of them,
    # every change belongs to it, and the sentence need not name it.
    has_several_contrasts = len(comparison.primary) > 1
    named = name_changes(rows, comparison, include_names=has_several_contrasts)
    return join(named, f"{name_compared_days(comparison)}.")


def name_compared_days(comparison: Comparison) -> str:
    """Return the days of the shares before and after a change, with a leading space.

    Example: " (mean shares of 2026-10-05 to 2026-10-18 and of 2026-11-16 to 2026-11-29)". The text
    is empty for samples that are no periods.
    """
    if comparison.by in ("sample", "segment"):
        return ""
    first, last = (format_days(periods[0].first, periods[-1].last) for periods in comparison.thirds)
    return f" (mean shares of {first} and of {last})"


def name_changes(
    rows: Sequence[Mapping[str, Any]], comparison: Comparison, *, include_names: bool = False
) -> Markup:
    """Return a list of changes in words: the first three, and the number of the others.

    Parameters
    ----------
    rows : rows of significant changes, the largest first.
    comparison : the comparison of the rows.
    include_names : True to add the name of the contrast to each change.
    """
    parts = [
        _describe_change(row, comparison, include_name=include_names)
        for row in rows[:_MAX_NAMED_CHANGES]
    ]
    if len(rows) > _MAX_NAMED_CHANGES:
        parts.append(join(f"{len(rows) - _MAX_NAMED_CHANGES:,} more changed"))
    pieces = [piece for part in parts for piece in (part, ", ")][:-1]
    if len(parts) > 1:
        pieces[-2] = join(" and ")
    return join(*pieces)


def _name_segment(sample: Sample) -> str:
    """Return the properties of a segment in words, such as version 2."""
    return ", ".join(f"{name} {value}" for name, value in sample.segment.items()) or sample.name


def _describe_change(
    row: Mapping[str, Any], comparison: Comparison, *, include_name: bool
) -> Markup:
    """Return a clause about the change of one string."""
    error, direction, name = row["std_error"], row["direction"], row["name"]
    time_before, time_after = _name_times(comparison)
    # Noise can make an estimated share negative, or larger than 1. A true share is neither, so a
    # sentence says 0 or 100 %. The tables have the estimate.
    before, after = (
        format_share(min(max(row[key], 0.0), 1.0), error) for key in ("before", "after")
    )
    words = _VERBS[direction].format(
        before=before, after=after, name=name,
        time_before=time_before, time_after=time_after,
    )  # fmt: skip
    contrast = f" ({name})" if include_name and direction not in ("more", "less") else ""
    return join(format_string(row["candidate"]), f" {words}{contrast}".replace(" %", "\u00a0%"))


def _name_times(comparison: Comparison) -> tuple[str, str]:
    """Return the times of the shares "before" and "after" in words, each with a leading space.

    Example: " in the first weeks" and " in the last weeks". The first text follows the share of a
    string that is gone, and the second text follows the share of a new string.
    """
    if comparison.by == "sample":
        return " before", ""
    # From six periods with reports on, a third contains two or more periods: a plural.
    n_periods = sum(sample.reports > 0 for sample in comparison.samples)
    periods = f"{comparison.by}s" if n_periods >= 2 * _TREND_PARTS else comparison.by
    return f" in the first {periods}", f" in the last {periods}"
