"""Significant changes of a comparison as one sentence that names the strings.

A comparison contains the shares of the same strings in several samples: periods, segments (groups
of devices with the same public properties) or collections. A row of a comparison is one string in
one contrast, such as "the second sample minus the first". Examples of the sentence: "duckduckgo
rose from 12.1 % to 14.3 % and qwant is gone: 3.1 % in the first weeks." and "No share changed
significantly."
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rappor.comparison.comparison import Comparison, Sample
from rappor.reporting.markup import Markup, breakable, join, shorten, tag
from rappor.reporting.numbers import format_share
from rappor.reporting.plots import sort_changes

_NAMED: Final = 3
"""Largest number of changes that a sentence names. Further changes are counted, so that the
sentence stays readable."""

_THIRDS: Final = 3
"""Number of equal parts into which the periods of a trend are divided. The mean of the first part
and the mean of the last part are the shares before and after."""

_VERBS: Final = {
    "rise": "rose from {before} to {after}",
    "fall": "fell from {before} to {after}",
    "newcomer": "is new: {after}{late}",
    "leaver": "is gone: {before}{early}",
    "more": "is more common in {name} ({after}) than elsewhere ({before})",
    "less": "is less common in {name} ({after}) than elsewhere ({before})",
}
"""Clauses that describe the change of a string. The keys are the values of a row's "direction"."""


def format_string(text: str) -> Markup:
    """Return a string of a device as a part of a sentence.

    The element `bdi` isolates the direction of its script from the sentence.
    """
    return tag("bdi", breakable(shorten(text, 60)))


def describe_changes(comparison: Comparison) -> Markup:
    """Return a sentence that names the largest changes, or states that no share changed."""
    rows = [row for row in sort_changes(comparison) if row["changed"]]
    if comparison.by == "segment" and len(comparison.samples) == 2:
        # Two segments: a string that is more common in the first is less common in the second. The
        # sentence names each string once.
        rows = [row for row in rows if row["direction"] == "more"]
    if not rows:
        is_over_time = comparison.primary and comparison.by != "segment"
        return join("No share changed significantly." if is_over_time else "")
    # The contrast of a segment has the name "... against the rest". The sentence needs the segment.
    names = {
        f"{sample.name} against the rest": _name_segment(sample) for sample in comparison.samples
    }
    rows = [row | {"name": names.get(row["name"], row["name"])} for row in rows]
    return join(name_changes(rows, comparison, include_names=len(comparison.primary) > 1), ".")


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
    parts = [_describe_change(row, comparison, include_name=include_names) for row in rows[:_NAMED]]
    if len(rows) > _NAMED:
        parts.append(join(f"{len(rows) - _NAMED:,} more changed"))
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
    early, late = _name_ends(comparison)
    words = _VERBS[direction].format(
        before=format_share(row["before"], error),
        after=format_share(row["after"], error), name=name,
        early=early, late=late,
    )  # fmt: skip
    contrast = f" ({name})" if include_name and direction not in ("more", "less") else ""
    return join(format_string(row["candidate"]), f" {words}{contrast}".replace(" %", "\u00a0%"))


def _name_ends(comparison: Comparison) -> tuple[str, str]:
    """Return the times of the shares before and after, as ends of clauses.

    The first text follows the share of a string that is gone, the second the share of a new string.
    """
    if comparison.by == "sample":
        return " before", ""
    has_several = sum(sample.reports > 0 for sample in comparison.samples) >= 2 * _THIRDS
    periods = f"{comparison.by}s" if has_several else comparison.by
    return f" in the first {periods}", f" in the last {periods}"
