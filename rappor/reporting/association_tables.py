"""Tables of an association: grids of cells for terminal, page and chart, and a list of all shares.

A *grid* is a table with a row for each value of one field, and a column for each value of the other
field. Each cell of a grid contains a share and its standard error, so that nobody reads a share
without its error. Three grids show an association:

- the cells, with the margins as last column and last row;
- the conditional shares within each row;
- the conditional shares within each column.

`Grid` is the common form. The terminal, the page (`association_page`) and the chart (`heat_map`)
write the same texts of the same cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rappor.association.association import Association
from rappor.association.share_table import ShareTable
from rappor.reporting.numbers import (
    count_digits,
    format_interval,
    format_p_value,
    format_share,
    format_short_percent,
)
from rappor.reporting.tables import Column, Table

Row = Mapping[str, Any]
"""`Association.rows` yields such rows."""

ALL: Final = "all"
"""Title of the column and of the row with the margins. A margin is the sum of the listed cells of a
row or a column."""

_KINDS: Final = {
    "cell": "share of the reports",
    "row margin": "margin",
    "column margin": "margin",
    "within row": "share within the row",
    "within column": "share within the column",
}
"""Descriptions of the kinds of shares. The keys are those of `Association.rows`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCell:
    """A share in a grid.

    Attributes
    ----------
    share : the formatted share; "unknown" if the counts contain no information about it.
    error : the formatted standard error in percentage points, after a plus-minus sign; empty if the
        share is unknown.
    interval : the formatted confidence interval.
    heat : size of the share relative to the largest share of the grid, in [0, 1]. None for margins,
        which have no colour.
    """

    share: str
    error: str
    interval: str
    heat: float | None = None

    @property
    def text(self) -> str:
        """The share with its error."""
        return f"{self.share} {self.error}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Shares by the values of two fields.

    Attributes
    ----------
    title : title of the grid.
    row_field : name of the field of the rows.
    columns : titles of the columns.
    rows : name of each row, and its cells, one for each column.
    """

    title: str
    row_field: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[GridCell]]]

    def to_table(self) -> Table[tuple[str, Sequence[GridCell]]]:
        """Return the grid as a table for a terminal."""
        return Table(
            title=self.title,
            columns=(
                Column(self.row_field, lambda row: row[0], "name"),
                *(_build_column(title, number) for number, title in enumerate(self.columns)),
            ),
            rows=self.rows,
        )


def build_grids(association: Association) -> tuple[Grid, Grid, Grid]:
    """Return the grids of the cells, of the shares within rows, and of those within columns."""
    row_field, column_field = association.row_field, association.column_field
    return (
        _build_cells_grid(association),
        _build_grid(
            association,
            association.within_rows,
            f"Of the reports with each {row_field}, the share of each {column_field}",
        ),
        _build_grid(
            association,
            association.within_columns,
            f"Of the reports with each {column_field}, the share of each {row_field}",
        ),
    )


def shares_table(
    association: Association, rows: Sequence[Row], title: str = "All shares with their intervals"
) -> Table[Row]:
    """Return rows of an association as a list, with intervals."""
    interval = f"{format_short_percent(association.confidence)} interval"
    return Table(
        title=title,
        columns=(
            Column(association.row_field, lambda row: row["row"] or ALL, "name"),
            Column(association.column_field, lambda row: row["column"] or ALL, "name"),
            Column("kind", lambda row: _KINDS[row["kind"]], "text"),
            Column("share", lambda row: format_share(row["share"], row["std_error"]) or "unknown"),
            Column("std error", lambda row: format_share(row["std_error"], row["std_error"])),
            Column(interval, _format_row_interval),
        ),
        rows=rows,
    )


def describe_association(association: Association) -> str:
    """Return the answer in one sentence: whether the fields depend on each other, and how much."""
    first, second = association.row_field, association.column_field
    test, strength = association.independence, association.cramers_v
    p_value = f"p-value {format_p_value(test.p_value)}"
    if test.p_value > 1 - association.confidence:
        return (
            f"The counts do not show that {first} and {second} depend on each other ({p_value}). "
            f"An association up to a Cramer's V of {strength.ci_high:.2g} is possible."
        )
    interval = f"{format_short_percent(association.confidence)} interval"
    # Case: the sum of the listed shares is less than its standard error. Cramer's V divides by this
    # sum, and is then NaN with the interval 0 to 1.
    estimate = "unknown" if math.isnan(strength.estimate) else f"{strength.estimate:.2g}"
    return (
        f"{first} and {second} depend on each other ({p_value}): Cramer's V is {estimate}, "
        f"{interval} {strength.ci_low:.2g} to {strength.ci_high:.2g}."
    )


def list_association_footnotes(association: Association) -> Iterator[str]:
    """Yield the sentences below an association: scale, listed share, assumptions and warnings."""
    test, listed = association.independence, association.listed
    interval = format_interval(listed.ci_low, listed.ci_high, listed.std_error)
    yield (
        "Cramer's V is 0 for independent fields, and 1 if one field determines the other. The test "
        f"has {test.degrees_of_freedom:,} degrees of freedom, and refers to the listed values."
    )
    strength = association.cramers_v
    rare = [
        f"{n:,} of {len(values):,} values of {field}"
        for n, values, field in (
            (strength.rare_rows, association.row_values, association.row_field),
            (strength.rare_columns, association.column_values, association.column_field),
        )
        if n
    ]
    if rare:
        yield (
            f"The share of {' and '.join(rare)} is below 5 of its standard errors. Such values may "
            "determine each other without a trace in the counts, which makes the interval of "
            "Cramer's V wide. For its lower end, those of a field count as one value."
        )
    # The shares of complete categories add up to 1 by definition, so the sum has no error.
    if listed.std_error > 0:
        yield (
            f"{format_share(listed.estimate, listed.std_error)} of the reports "
            f"({format_short_percent(association.confidence)} interval {interval}) have a listed "
            f"{association.row_field} and a listed {association.column_field}."
        )
    if association.summed_fields:
        yield (
            f"Cells are summed over {' and '.join(association.summed_fields)}. A dependence may "
            "come from these fields."
        )
    yield "After \u00b1 is the standard error in percentage points. Each interval holds for itself."
    yield association.assumptions
    yield from (warning.sentence for warning in association.warnings)


def _build_cells_grid(association: Association) -> Grid:
    """Return the grid of the cells, with the margins as last column and last row."""
    grid = _build_grid(
        association,
        association.cells,
        f"Share of the reports with each {association.row_field} and {association.column_field}",
    )
    row_margins = _format_cells(association.row_margins)
    listed = association.listed
    total = GridCell(
        share=format_share(listed.estimate, listed.std_error),
        error=_format_error(listed.std_error),
        interval=format_interval(listed.ci_low, listed.ci_high, listed.std_error),
    )
    rows = [
        (name, (*cells, margin))
        for (name, cells), margin in zip(grid.rows, row_margins, strict=True)
    ]
    rows.append((ALL, (*_format_cells(association.column_margins), total)))
    return Grid(title=grid.title, row_field=grid.row_field, columns=(*grid.columns, ALL), rows=rows)


def _build_grid(association: Association, table: ShareTable, title: str) -> Grid:
    """Return the grid of a table of A x B cells, without margins."""
    cells = _format_cells(table)
    shares = table.share.ravel().tolist()
    largest = max((share for share in shares if not math.isnan(share)), default=0.0)
    n_columns = len(association.column_values)
    heat_cells = [
        GridCell(
            share=cell.share,
            error=cell.error,
            interval=cell.interval,
            heat=min(max(share / largest, 0.0), 1.0) if largest > 0 and cell.error else 0.0,
        )
        for cell, share in zip(cells, shares, strict=True)
    ]
    return Grid(
        title=title,
        row_field=association.row_field,
        columns=association.column_values,
        rows=[
            (name, heat_cells[number * n_columns : (number + 1) * n_columns])
            for number, name in enumerate(association.row_values)
        ],
    )


def _format_cells(table: ShareTable) -> list[GridCell]:
    """Format all shares of a table, row by row."""
    columns = (table.share, table.std_error, table.ci_low, table.ci_high)
    return [
        GridCell(
            share=format_share(share, error) or "unknown",
            error="" if math.isnan(share) else _format_error(error),
            interval=format_interval(low, high, error),
        )
        for share, error, low, high in zip(
            *(values.ravel().tolist() for values in columns), strict=True
        )
    ]


def _format_error(error: float) -> str:
    """Format a standard error in percentage points, with two significant digits."""
    return f"\u00b1 {100 * error:.{count_digits(error)}f}"


def _format_row_interval(row: Row) -> str:
    """Format the interval of a row."""
    return format_interval(row["ci_low"], row["ci_high"], row["std_error"])


def _build_column(title: str, number: int) -> Column[tuple[str, Sequence[GridCell]]]:
    """Return the column of a grid with this index."""
    return Column(title, lambda row: row[1][number].text)
