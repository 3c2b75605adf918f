"""The column that tables of candidates have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from rappor.reporting.tables import name_of

Columns: TypeAlias = dict[str, Callable[[Mapping[str, Any]], str]]
"""What writes the cells of a column, by its title."""


def candidate(row: Mapping[str, Any]) -> str:
    """Write the name of a row, with its group of indistinguishable ones."""
    return name_of(row["candidate"], f" (group {row['group']})" if "group" in row else "")
