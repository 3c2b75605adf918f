"""The columns that tables of shares have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from rappor.decoding.side_by_side import Levels
from rappor.reporting.numbers import measured, moved, p_value, span, span_of_points
from rappor.reporting.tables import name_of, yes

Columns: TypeAlias = dict[str, Callable[[Mapping[str, Any]], str]]
"""What writes the cells of a column, by its title."""


def candidate(row: Mapping[str, Any]) -> str:
    """Write the name of a row, with its group of indistinguishable ones."""
    return name_of(row["candidate"], f" (group {row['group']})" if "group" in row else "")


def levels(interval: str) -> Columns:
    """Return the columns of a share in one sample."""
    return {
        "candidate": candidate,
        **share(interval),
        "detected": lambda row: yes(fact=row["detected"]),
    }


def share(
    interval: str, title: str = "share", prefix: str = "", key: str = "proportion"
) -> Columns:
    """Return the columns of a share and its interval; cells of what has none are empty."""

    def ends(row: Mapping[str, Any]) -> str:
        both = row[f"{prefix}ci_low"], row[f"{prefix}ci_high"]
        return "" if row[key] is None else span(*both, row[f"{prefix}std_error"])

    return {title: lambda row: measured(row[key], row[f"{prefix}std_error"]), interval: ends}


def contrast(key: str, interval: str, changed: str, words: tuple[str, str]) -> Columns:
    """Return the columns of a difference, its interval and test; `words` say which way it goes."""

    def ends(row: Mapping[str, Any]) -> str:
        both = row.get(f"{key}_ci_low"), row.get(f"{key}_ci_high")
        return "" if row.get(key) is None else span_of_points(*both, row["std_error"])

    return {
        f"{key}, points": lambda row: moved(row.get(key), row["std_error"]),
        f"its {interval}": ends,
        "p-value": lambda row: "" if row.get(key) is None else p_value(row[f"{key}_p_value"]),
        changed: lambda row: words[row[key] < 0] if row.get(changed) else "",
    }


def left_over(found: Levels) -> Iterator[tuple[str, str]]:
    """Yield what each sample leaves unallocated, and its standard error."""
    for part, error in zip(found.unallocated, found.unallocated_std_error, strict=True):
        yield measured(part, error) or "unknown", measured(error, error) or "unknown"
