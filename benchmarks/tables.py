"""Tables of results: plain text for people, dictionaries for JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Cell = str | int | float

_PLAIN = "\x1b[0m"


class Failing(float):
    """A number that misses its target. It is printed in red with an exclamation mark."""

    colour = "\x1b[31m"


class Foretold(Failing):
    """A number that misses its target although the results warned of unreliable errors.

    It is printed in yellow.
    """

    colour = "\x1b[33m"


@dataclass(slots=True, kw_only=True)
class Table:
    """A table of results with a title. The note below the table names the comparison."""

    title: str
    columns: Sequence[str]
    rows: list[list[Cell]] = field(default_factory=list)
    note: str = ""

    def __str__(self) -> str:
        """Write aligned text: the first column to the left, the others to the right."""
        return self.text(is_coloured=False)

    def text(self, *, is_coloured: bool) -> str:
        """Return aligned text. If it is coloured, failing numbers are red or yellow."""
        texts = [list(self.columns), *([_format_cell(cell) for cell in row] for row in self.rows)]
        widths = [max(len(row[i]) for row in texts) for i in range(len(self.columns))]
        aligned = [_align(row, widths) for row in texts]
        if is_coloured:
            for line, row in zip(aligned[1:], self.rows, strict=True):
                for i, cell in enumerate(row):
                    if isinstance(cell, Failing):
                        line[i] = f"{cell.colour}{line[i]}{_PLAIN}"
        lines = [self.title, *("  ".join(line).rstrip() for line in aligned)]
        lines.insert(2, "  ".join("-" * width for width in widths))
        return "\n".join([*lines, *([self.note] if self.note else [])])

    def to_dict(self) -> dict[str, Any]:
        """Return the table as an object for JSON. NaN becomes None."""
        # Only NaN differs from itself. `math.isnan` would refuse the texts among the cells.
        rows = [
            dict(zip(self.columns, (None if x != x else x for x in row), strict=True))  # noqa: PLR0124
            for row in self.rows
        ]
        return {"title": self.title, "rows": rows, "note": self.note}

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Table:
        """Create the table that `to_dict` wrote, without marks of failing numbers."""
        rows = document["rows"]
        columns = list(rows[0])
        cells = [[math.nan if row.get(x) is None else row[x] for x in columns] for row in rows]
        return cls(title=document["title"], columns=columns, rows=cells, note=document["note"])


def _align(row: list[str], widths: list[int]) -> list[str]:
    """Fill the cells of a row with spaces to the widths of their columns."""
    first, *number_columns = zip(row, widths, strict=True)
    return [first[0].ljust(first[1]), *(text.rjust(width) for text, width in number_columns)]


def _format_cell(cell: Cell) -> str:
    """Format a number with about four digits and separators of thousands. NaN becomes a dash."""
    if isinstance(cell, Failing):
        return f"{_format_cell(float(cell))} !"
    if isinstance(cell, str):
        return cell
    if math.isnan(cell):
        return "-"
    if isinstance(cell, int) or abs(cell) >= 1000:
        return f"{cell:,.0f}"
    return f"{cell:.4g}"
