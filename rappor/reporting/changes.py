"""What changed between samples, as one sentence that names the strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rappor.panels.panel import Panel
from rappor.reporting.markup import Markup, breakable, join, shorten, tag
from rappor.reporting.numbers import measured
from rappor.reporting.plots import sorted_rows

_NAMED: Final = 3
_WORDS: Final = {
    "rise": "rose from {before} to {after}",
    "fall": "fell from {before} to {after}",
    "newcomer": "is new, with {after}",
    "leaver": "is gone, from {before}",
    "more": "is more common in {name} ({after}) than elsewhere ({before})",
    "less": "is less common in {name} ({after}) than elsewhere ({before})",
}


def string(text: str) -> Markup:
    """Return a string as a part of a sentence."""
    return tag("bdi", breakable(shorten(text, 60)))


def panel_changes(panel: Panel) -> Markup:
    """Name the largest changes of a panel in a sentence; or say that there is none.

    Of two segments one is more common where the other is less: the first of both is told.
    """
    rows = [row for row in sorted_rows(panel) if row["changed"]]
    if panel.by == "segment" and len(panel.samples) == 2:
        rows = [row for row in rows if row["direction"] == "more"]
    if not rows:
        is_over_time = panel.main and panel.by != "segment"
        return join("No share changed significantly." if is_over_time else "")
    labels = {f"{each.name} against the rest": each.label for each in panel.samples}
    rows = [row | {"name": labels.get(row["name"], row["name"])} for row in rows]
    return join(named(rows, where=len(panel.main) > 1), ".")


def named(rows: Sequence[Mapping[str, Any]], *, where: bool = False) -> Markup:
    """Name changes, the largest first, and count those beyond three; `where` says of what."""
    told = [_change(row, where=where) for row in rows[:_NAMED]]
    if len(rows) > _NAMED:
        told.append(join(f"{len(rows) - _NAMED:,} more changed"))
    parts = [each for part in told for each in (part, ", ")][:-1]
    if len(told) > 1:
        parts[-2] = join(" and ")
    return join(*parts)


def _change(row: Mapping[str, Any], *, where: bool) -> Markup:
    error, direction, name = row["std_error"], row["direction"], row["name"]
    words = _WORDS[direction].format(
        before=measured(row["before"], error), after=measured(row["after"], error), name=name
    )
    more = f" ({name})" if where and direction not in ("more", "less") else ""
    return join(string(row["candidate"]), f" {words}{more}".replace(" %", "\u00a0%"))
