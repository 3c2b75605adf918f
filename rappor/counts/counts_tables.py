"""Counts as tables for other software: CSV, Arrow and Parquet.

A table has one row for each of the m cohorts. The bit counts of a row are k integers.

    format           bit counts                        parameters, metric, sum of squared reports
    CSV              columns bit_0, bit_1, ...         only the sum, as an optional column "squares"
    Arrow, Parquet   column "ones", a list in a row    metadata of the schema, with a format number

The sum of squared reports is the sum over all devices of the squared number of a device's reports.
Functions that parse a table raise `ReportError`; functions that read a file add the path and the
line and raise `FileError`.
"""

from __future__ import annotations

import csv
import io
import os
import re
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rappor.base.arrow import load_pyarrow, open_parquet
from rappor.base.atomic_files import read_text, replace_file
from rappor.base.errors import FileError, ReportError
from rappor.base.text_lines import WHITE_SPACE, is_blank_row, read_whole_number
from rappor.protocol.params import Params

# Keys of the schema's metadata in Arrow and Parquet.
_PARAMS_KEY: Final = b"rappor.params"
_METRIC_KEY: Final = b"rappor.metric"
_SQUARES_KEY: Final = b"rappor.squares"
_SQUARES_COLUMN: Final = "squares"
"""Heading of the CSV column with the sum of squared reports. The number is the same in every
row."""

_FORMAT_KEY: Final = b"rappor.format"
_FORMAT: Final = b"1"
"""Number of the format, equal to the number in the first line of a counts file. The format gets a
new number if the protocol changes which bits a value sets, because counts of different rules must
not be added or decoded together."""

_SHOWN_COLUMNS: Final = 8
"""Largest number of headings that an error message lists, so that the message fits a terminal. A
foreign table may have thousands of columns."""

_SHOWN_CHARACTERS: Final = 40
"""Largest number of characters of a foreign text in an error message, so that the message fits in a
line of a terminal."""


def write_csv(
    path: str | os.PathLike[str],
    bit_counts: NDArray[np.int64],
    cohort_reports: NDArray[np.int64],
    squares: int | None,
) -> None:
    """Write a CSV with the columns cohort, reports, bit_0, bit_1 and so on.

    Parameters
    ----------
    bit_counts : (m, k) int64. Ones at each bit of each cohort.
    cohort_reports : (m,) int64. Reports of each cohort.
    squares : the sum of squared reports of devices. None omits the column "squares".
    """
    last_cells = [] if squares is None else [squares]
    with replace_file(path) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="")
        rows = csv.writer(text, lineterminator="\n")
        headings = _list_columns(bit_counts.shape[1])
        rows.writerow([*headings, *(_SQUARES_COLUMN for _ in last_cells)])
        for j, n in enumerate(cohort_reports.tolist()):
            rows.writerow([j, n, *bit_counts[j].tolist(), *last_cells])
        # `detach` flushes without closing: `replace_file` still has to sync and rename the file.
        text.detach()


def read_csv(
    path: str | os.PathLike[str], params: Params
) -> tuple[NDArray[np.int64], NDArray[np.int64], int | None]:
    """Read a CSV that `write_csv` wrote. Rows and columns may have any order.

    Headings may be in upper case, as some databases write them.

    Returns
    -------
    bit_counts : (m, k) int64
    cohort_reports : (m,) int64
    squares : int or None
        The sum of squared reports; None without a column squares.

    Raises
    ------
    FileError
        A column, a cohort or a number is missing, repeated or impossible. The error contains the
        line.
    """
    rows = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    bit_counts = np.zeros((params.m, params.k), dtype=np.int64)
    # -1 marks a cohort without a row so far.
    cohort_reports = np.full(params.m, -1, dtype=np.int64)
    columns = _list_columns(params.k)
    squares = None
    try:
        headings = [heading.strip(WHITE_SPACE).lower() for heading in next(rows, [])]
        has_squares = _SQUARES_COLUMN in headings
        if has_squares:
            columns.append(_SQUARES_COLUMN)
        indices = _find_columns(headings, columns)
        for row in rows:
            # Numbers of the row: the cohort, its reports, k bit counts, and perhaps the squares.
            j, n, *row_bit_counts = _parse_row(row, columns, indices, params)
            if has_squares:
                row_squares = row_bit_counts.pop()
                if squares not in (None, row_squares):
                    raise ReportError(
                        f"{_SQUARES_COLUMN} must be the same in every row, got {row_squares}"
                    )
                squares = row_squares
            if cohort_reports[j] >= 0:
                raise ReportError(f"cohort must come once, got {j} twice")
            bit_counts[j], cohort_reports[j] = row_bit_counts, n
    except (ReportError, csv.Error) as error:
        raise FileError(path, str(error), line=max(rows.line_num, 1)) from None
    missing = np.flatnonzero(cohort_reports < 0)
    if len(missing):
        raise FileError(path, f"cohorts must be 0 to {params.m - 1}, got no {missing[0]}")
    return bit_counts, cohort_reports, squares


def _list_columns(k: int) -> list[str]:
    """Return the headings of a CSV of counts, without the optional column "squares"."""
    return ["cohort", "reports", *(f"bit_{i}" for i in range(k))]


def _find_columns(headings: list[str], columns: list[str]) -> list[int]:
    """Return the index of each column among the headings.

    Raises
    ------
    ReportError
        A column is missing or repeated, or there is another column.
    """
    listed = ", ".join(name[:_SHOWN_CHARACTERS] for name in headings[:_SHOWN_COLUMNS]) or "nothing"
    listed += ", ..." if len(headings) > _SHOWN_COLUMNS else ""
    if missing := next((column for column in columns if column not in headings), None):
        raise ReportError(f"column {missing} is missing, got {listed}")
    if len(headings) != len(columns):
        surplus = next(name for name in headings if name not in columns or headings.count(name) > 1)
        raise ReportError(
            f"columns must number {len(columns)}, got {len(headings)}, "
            f"with {surplus[:_SHOWN_CHARACTERS]}"
        )
    return [headings.index(column) for column in columns]


def is_table_of_counts(first_line: str) -> bool:
    """Return whether a line has the headings of a CSV of counts, in any case and order."""
    headings = {cell.strip(' "\r\n').lower() for cell in first_line.split(",")}
    return {"cohort", "reports", "bit_0"} <= headings


def _parse_row(row: list[str], columns: list[str], indices: list[int], params: Params) -> list[int]:
    """Return the numbers of a row in the order of the columns; raise ReportError for a bad row."""
    if len(row) != len(columns):
        remedy = ": the line is blank, remove it" if is_blank_row(row) else ""
        raise ReportError(f"fields must number {len(columns)}, got {len(row)}{remedy}")
    numbers = [_parse_cell(name, row[index]) for name, index in zip(columns, indices, strict=True)]
    cohort, n = numbers[:2]
    if cohort >= params.m:
        raise ReportError(f"cohort must be in [0, {params.m - 1}], got {cohort}")
    # The row may contain the squares after the k bit counts.
    bit_counts = numbers[2 : 2 + params.k]
    # `Counts` checks the ones as well. Here the error gets the number of the line.
    if max(bit_counts) > n:
        i = next(i for i, count in enumerate(bit_counts) if count > n)
        raise ReportError(f"bit_{i} must be at most the reports, got {bit_counts[i]} ones of {n}")
    return numbers


def _parse_cell(name: str, text: str) -> int:
    """Parse a cell as a whole number; raise ReportError for any other text."""
    try:
        return read_whole_number(text)
    except ValueError:
        reason = f"{name} must be a whole number in [0, 2^63), got {text[:_SHOWN_CHARACTERS]!r}"
        raise ReportError(reason) from None


def build_arrow_table(
    params: Params,
    bit_counts: NDArray[np.int64],
    cohort_reports: NDArray[np.int64],
    metric: str,
    squares: int | None,
) -> Any:
    """Return a pyarrow.Table of cohort (int32), reports (int64) and ones (list of k int64)."""
    pa = load_pyarrow()
    columns = {
        "cohort": pa.array(np.arange(params.m, dtype=np.int32)),
        "reports": pa.array(cohort_reports),
        "ones": pa.FixedSizeListArray.from_arrays(pa.array(bit_counts.ravel()), params.k),
    }
    metadata = {
        _FORMAT_KEY: _FORMAT,
        _PARAMS_KEY: params.to_json().encode(),
        _METRIC_KEY: metric.encode(),
    }
    if squares is not None:
        metadata[_SQUARES_KEY] = str(squares).encode()
    return pa.table(columns).replace_schema_metadata(metadata)


def parse_arrow_table(
    table: Any,
) -> tuple[Params, NDArray[np.int64], NDArray[np.int64], str, int | None]:
    """Parse a pyarrow.Table that `build_arrow_table` built. Its rows may have any order.

    Returns
    -------
    The five arguments of `Counts`: parameters, bit counts (m, k), cohort reports (m,), metric, and
    the sum of squared reports.

    Raises
    ------
    ParamsError, ReportError
        A column, a type, a cohort or an entry of the metadata is missing or impossible in counts.
    """
    metadata = table.schema.metadata or {}
    if _PARAMS_KEY not in metadata or _METRIC_KEY not in metadata:
        raise ReportError("the schema's metadata must name the parameters and the metric")
    if (number := metadata.get(_FORMAT_KEY, b"none")) != _FORMAT:
        raise ReportError(
            f"the schema's metadata must name format {_FORMAT.decode()}, got "
            f"{number.decode(errors='replace')}: the bits of another format stand for other values"
        )
    params = Params.from_json(metadata[_PARAMS_KEY].decode(errors="replace"))
    table = _drop_fingerprints(table, params)
    metric = metadata[_METRIC_KEY].decode(errors="replace")
    if table.column_names != ["cohort", "reports", "ones"]:
        raise ReportError(f"columns must be cohort, reports, ones, got {table.column_names}")
    cohorts, cohort_reports = (_read_integer_column(table, name) for name in ("cohort", "reports"))
    order = np.argsort(cohorts, kind="stable")
    if not np.array_equal(cohorts[order], np.arange(params.m)):
        raise ReportError(f"cohort must have 0 to {params.m - 1}, each once")
    squares = _parse_squares(metadata.get(_SQUARES_KEY))
    bit_counts = _read_list_column(table, params.k)
    return params, bit_counts[order], cohort_reports[order], metric, squares


def _drop_fingerprints(table: Any, params: Params) -> Any:
    """Return the table without a first column of fingerprints.

    Database engines write the column, because one query may sum several parameter sets. A
    fingerprint is a short hash of a parameter set.
    """
    if table.column_names[:1] != ["params"]:
        return table
    fingerprints = table.column("params").unique().to_pylist()
    if fingerprints != [params.fingerprint]:
        raise ReportError(f"params must be {params.fingerprint} in every row, got {fingerprints}")
    return table.drop_columns(["params"])


def _parse_squares(text: bytes | None) -> int | None:
    """Return the sum of squared reports of the metadata; None without the key."""
    if text is None:
        return None
    # The sum of squares of at most 2^63 reports has 38 digits. Case: a hostile file with millions
    # of digits, which Python would convert in quadratic time.
    if not re.fullmatch(rb"[0-9]{1,40}", text):
        raise ReportError("the schema's metadata must have squares as a whole number")
    return int(text)


def _read_integer_column(table: Any, name: str) -> NDArray[np.int64]:
    """Return a column of integers without nulls, (m,) int64."""
    pa = load_pyarrow()
    column = table.column(name)
    if not pa.types.is_integer(column.type) or column.null_count:
        raise ReportError(f"{name} must be integers without nulls, got {column.type}")
    try:
        return np.asarray(column.cast(pa.int64()).to_numpy())
    except pa.ArrowInvalid:
        raise ReportError(f"{name} must be below 2^63") from None


def _read_list_column(table: Any, k: int) -> NDArray[np.int64]:
    """Return the column of bit counts, (m, k) int64."""
    pa = load_pyarrow()
    column = table.column("ones").combine_chunks()
    if column.type != pa.list_(pa.int64(), k) or column.null_count:
        raise ReportError(f"ones must be lists of {k} int64 without nulls, got {column.type}")
    values = column.flatten()
    if values.null_count:
        raise ReportError("ones must be lists without nulls")
    return np.asarray(values.to_numpy()).reshape(len(column), k)


def write_parquet(path: str | os.PathLike[str], table: Any) -> None:
    """Write a pyarrow.Table. After a crash, the file is either complete or absent."""
    with replace_file(path) as file:
        load_pyarrow("pyarrow.parquet").write_table(table, file)


def read_parquet(path: str | os.PathLike[str]) -> Any:
    """Read the pyarrow.Table of counts; raise FileError for reports, or if it is no Parquet."""
    with open_parquet(path) as file:
        # Case: a Parquet file of reports, which has the same suffix as a file of counts.
        if {"bits", "cohort"} <= set(file.schema_arrow.names):
            raise FileError(
                path,
                "it contains reports, not counts: add them up with `rappor aggregate` "
                "or rappor.engines.aggregate_parquet",
            )
        return file.read()
