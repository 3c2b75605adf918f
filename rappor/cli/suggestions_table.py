"""Strings of a larger list that explain what the candidates do not, as tables for people."""

from __future__ import annotations

from rich.table import Table

from rappor.cli.console import escape, section, show, table
from rappor.decoding.suggestions import Suggestions
from rappor.reporting.numbers import measured, p_value, short_percent


def print_suggestions(found: Suggestions) -> None:
    """Print the strings, and the bits that no known candidate explains."""
    show(
        f"{len(found.strings):,} of {found.n_candidates:,} listed strings explain what the known "
        "candidates do not, at a false discovery rate of "
        f"{short_percent(found.estimates.detection.level)}."
    )
    if found.strings:
        section("Suggested", _strings(found))
    if found.unexplained_bits:
        section("Bits that no known candidate explains", _unexplained(found))


def _strings(found: Suggestions) -> Table:
    shown = table("string", "reports", "std error", "share", "p-value")
    for row in found.rows():
        shown.add_row(
            escape(row["string"]),
            f"{row['count']:,.0f}",
            f"{row['std_error']:,.0f}",
            measured(row["proportion"], row["std_error"] / found.estimates.reports),
            p_value(row["p_value"]),
        )
    return shown


def _unexplained(found: Suggestions) -> Table:
    shown = table("parameter set", "cohort", "bit", "share", "its error")
    for bit in found.unexplained_bits:
        shown.add_row(
            str(bit["collection"]),
            str(bit["cohort"]),
            str(bit["bit"]),
            measured(bit["share"], bit["std_error"]),
            measured(bit["std_error"], bit["std_error"]),
        )
    return shown
