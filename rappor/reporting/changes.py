"""What changed between samples, as one sentence that names the strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rappor.comparison.comparison import Comparison, Sample
from rappor.reporting.markup import Markup, breakable, join, shorten, tag
from rappor.reporting.numbers import format_share
from rappor.reporting.plots import sorted_rows

_NAMED: Final = 3
_THIRDS: Final = 3
"""Parts of the periods; the first and the last are compared."""

_WORDS: Final = {
    "rise": "rose from {before} to {after}",
    "fall": "fell from {before} to {after}",
    "newcomer": "is new: {after}{late}",
    "leaver": "is gone: {before}{early}",
    "more": "is more common in {name} ({after}) than elsewhere ({before})",
    "less": "is less common in {name} ({after}) than elsewhere ({before})",
}


def string(text: str) -> Markup:
    """Return a string as a part of a sentence."""
    return tag("bdi", breakable(shorten(text, 60)))


def panel_changes(panel: Comparison) -> Markup:
    """Name the largest changes of a panel in a sentence; or say that there is none.

    Of two segments one is more common where the other is less: the first of both is told.
    """
    rows = [row for row in sorted_rows(panel) if row["changed"]]
    if panel.by == "segment" and len(panel.samples) == 2:
        rows = [row for row in rows if row["direction"] == "more"]
    if not rows:
        is_over_time = panel.primary and panel.by != "segment"
        return join("No share changed significantly." if is_over_time else "")
    here = {f"{each.name} against the rest": _place(each) for each in panel.samples}
    rows = [row | {"name": here.get(row["name"], row["name"])} for row in rows]
    return join(named(rows, panel, where=len(panel.primary) > 1), ".")


def _place(sample: Sample) -> str:
    """Name a segment with its properties: version 2."""
    return ", ".join(f"{name} {value}" for name, value in sample.segment.items()) or sample.name


def named(rows: Sequence[Mapping[str, Any]], panel: Comparison, *, where: bool = False) -> Markup:
    """Name changes, the largest first, and count those beyond three; `where` says of what."""
    told = [_change(row, panel, where=where) for row in rows[:_NAMED]]
    if len(rows) > _NAMED:
        told.append(join(f"{len(rows) - _NAMED:,} more changed"))
    parts = [each for part in told for each in (part, ", ")][:-1]
    if len(told) > 1:
        parts[-2] = join(" and ")
    return join(*parts)


def _change(row: Mapping[str, Any], panel: Comparison, *, where: bool) -> Markup:
    error, direction, name = row["std_error"], row["direction"], row["name"]
    early, late = _ends(panel)
    words = _WORDS[direction].format(
        before=format_share(row["before"], error),
        after=format_share(row["after"], error), name=name,
        early=early, late=late,
    )  # fmt: skip
    more = f" ({name})" if where and direction not in ("more", "less") else ""
    return join(string(row["candidate"]), f" {words}{more}".replace(" %", "\u00a0%"))


def _ends(panel: Comparison) -> tuple[str, str]:
    """Say when a string was there that is gone, and when one is there that is new."""
    if panel.by == "sample":
        return " before", ""
    several = sum(each.reports > 0 for each in panel.samples) >= 2 * _THIRDS
    periods = f"{panel.by}s" if several else panel.by
    return f" in the first {periods}", f" in the last {periods}"
