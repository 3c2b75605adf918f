"""Association: the joint shares of two fields of a tuple, and how they depend on each other.

`rappor.association.associate.associate` returns an `Association`. Analysts read it in Python, and
commands, pages and the collector render it.

How to think about it, with the fields editor and system:

| term | example |
|---|---|
| cell | 20 % of the reports have the editor vim and the system linux |
| margin | 26 % have the editor vim, on any listed system |
| conditional share | of the reports with vim, 77 % have linux |
| independence | linux has the same share among the reports with vim and with any other editor |
| Cramer's V | strength of the dependence: 0 for independent fields, 1 if one determines the other |

All numbers refer to *listed* values: the categories or the candidates of the metric. A margin is a
sum of listed cells. Devices with a value outside the lists are in no cell.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from rappor.association.cramers_v import CramersV
from rappor.association.independence import IndependenceTest
from rappor.association.share_table import ShareTable
from rappor.base.atomic_files import save_text
from rappor.base.display import DisplayedRecord, call_renderer
from rappor.decoding.contrasts import Contrast
from rappor.decoding.diagnostics import Caution
from rappor.decoding.estimates import number_or_none
from rappor.decoding.spreadsheet_csv import format_csv

FORMAT: Final = 1
"""Number of the format of the JSON document. A change of its keys changes the number."""

KINDS: Final = ("cell", "row margin", "column margin", "within row", "within column")
"""`Association.rows` yields shares of these kinds, in this order."""

COLUMNS: Final = ("kind", "row", "column", "share", "std_error", "ci_low", "ci_high")
"""Columns of the table, in the order of the CSV file. `Association.rows` yields dictionaries with
these keys, and the CSV file has the keys as its first line."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Association(DisplayedRecord):
    """Joint shares of two fields with A and B listed values, and a test of their independence.

    Attributes
    ----------
    metric : name of the metric; empty if the counts do not contain it.
    row_field, column_field : names of the two fields.
    summed_fields : names of the other fields of the metric, over which every cell is summed.
    row_values : (A,) listed values of the row field.
    column_values : (B,) listed values of the column field.
    cells : (A, B) shares of the reports with both values.
    row_margins : (A,) shares of the reports with each row value and any listed column value.
    column_margins : (B,) shares of the reports with each column value and any listed row value.
    within_rows : (A, B) conditional shares: of the reports of a row's value, the share with each
        column value. The true shares of a row add up to 1.
    within_columns : (A, B) conditional shares: of the reports of a column's value, the share with
        each row value. The true shares of a column add up to 1.
    listed : share of the reports in all cells together. The other reports have a value outside the
        lists in at least one field.
    independence : test of the hypothesis that the fields are independent within the listed cells.
    cramers_v : strength of the association.
    confidence : confidence of each interval. With .95, each true number is inside its interval with
        probability .95. The probability that all intervals contain their numbers is smaller.
    reports : number of reports.
    assumptions : sentence about the number of devices that sent the reports. All standard errors
        depend on this number, because repeated reports of a device contain less information.
    warnings : warnings about the decode.

    Examples
    --------
    >>> from rappor import Params, Population, associate, decode, simulate_counts
    >>> from rappor.protocol.tuples import combine_categories
    >>> categories = combine_categories({"editor": ["vim", "code"], "system": ["linux", "mac"]})
    >>> params = Params.profile(
    ...     "once", encoding="onehot", categories=categories, field_names=("editor", "system")
    ... )
    >>> population = Population(categories, [4, 1, 2, 3])
    >>> counts = simulate_counts(population, params, n_reports=100_000, seed=1)
    >>> association = associate(decode(counts))
    >>> association.cells.share.round(2).tolist()
    [[0.4, 0.1], [0.2, 0.3]]
    >>> association.within_rows.share.round(1).tolist()
    [[0.8, 0.2], [0.4, 0.6]]
    >>> association.independence.p_value < 0.001, round(association.cramers_v.estimate, 1)
    (True, 0.4)
    """

    _renderer: ClassVar[str] = "association"

    metric: str
    row_field: str
    column_field: str
    summed_fields: tuple[str, ...]
    row_values: tuple[str, ...]
    column_values: tuple[str, ...]
    cells: ShareTable
    row_margins: ShareTable
    column_margins: ShareTable
    within_rows: ShareTable
    within_columns: ShareTable
    listed: Contrast
    independence: IndependenceTest
    cramers_v: CramersV
    confidence: float
    reports: int
    assumptions: str
    warnings: tuple[Caution, ...]

    def __repr__(self) -> str:
        n_rows, n_columns = self.cells.share.shape
        return (
            f"Association({self.row_field} x {self.column_field}, {n_rows} x {n_columns} cells, "
            f"p_value={self.independence.p_value:.2g}, {self.reports} reports)"
        )

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield every share as a dictionary with the keys of `COLUMNS`.

        `kind` is one of `KINDS`. `row` and `column` are values of the two fields. A margin has None
        for the other field. A number that does not exist is None.
        """
        cells, row_margins, column_margins, within_rows, within_columns = KINDS
        yield from self._list_cells(cells, self.cells)
        for a, value in enumerate(self.row_values):
            yield {"kind": row_margins, "row": value, "column": None, **self.row_margins.row(a)}
        for b, value in enumerate(self.column_values):
            numbers = self.column_margins.row(b)
            yield {"kind": column_margins, "row": None, "column": value, **numbers}
        yield from self._list_cells(within_rows, self.within_rows)
        yield from self._list_cells(within_columns, self.within_columns)

    def _list_cells(self, kind: str, table: ShareTable) -> Iterator[dict[str, Any]]:
        """Yield the shares of one table of A x B cells, row by row."""
        pairs = itertools.product(enumerate(self.row_values), enumerate(self.column_values))
        for (a, row), (b, column) in pairs:
            yield {"kind": kind, "row": row, "column": column, **table.row(a, b)}

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `rappor associate --json` prints."""
        return {
            "format": FORMAT,
            "metric": self.metric,
            "row_field": self.row_field,
            "column_field": self.column_field,
            "summed_fields": list(self.summed_fields),
            "shares": list(self.rows()),
            "listed": self.listed.to_dict(),
            "independence": dataclasses.asdict(self.independence),
            "cramers_v": {
                name: number_or_none(value)
                for name, value in dataclasses.asdict(self.cramers_v).items()
            },
            "confidence": self.confidence,
            "reports": self.reports,
            "assumptions": self.assumptions,
            "warnings": [dataclasses.asdict(warning) for warning in self.warnings],
        }

    def to_json(self) -> str:
        """Write `to_dict` as one JSON object."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the shares as CSV with a header, and write them to `path` if it is not None.

        A value that a spreadsheet would compute as a formula gets an apostrophe in front.
        """
        return save_text(format_csv(COLUMNS, self.rows()), path)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the association as one HTML page, and write it to `path` if it is not None.

        The page needs no other file, no network and no script.
        """
        # The module of pages is imported only when a page is requested.
        return save_text(str(call_renderer("association_page", "association_page", self)), path)

    def _table(self) -> dict[str, Any]:
        """Return the columns by name, for data frames."""
        rows = list(self.rows())
        return {name: [row[name] for row in rows] for name in COLUMNS}

    def __str__(self) -> str:
        """Return the tables and the test as text, like `rappor associate`."""
        return str(call_renderer("association_text", "association_text", self))
