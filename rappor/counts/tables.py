"""Counts as tables that other tools read: CSV, Arrow, Parquet."""

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
from rappor.base.text_lines import WHITE_SPACE, read_whole_number
from rappor.protocol.params import Params

_Tables = tuple[NDArray[np.int64], NDArray[np.int64], int | None]

_PARAMS_KEY: Final = b"rappor.params"
_METRIC_KEY: Final = b"rappor.metric"
_SQUARES_KEY: Final = b"rappor.squares"
_SQUARES: Final = "squares"
"""The heading of a column with the sum of squared reports, the same in every row."""

_FORMAT_KEY: Final = b"rappor.format"
_FORMAT: Final = b"1"
"""The same number as a counts file's: it changes when what the bits mean does."""


def write_csv(
    path: str | os.PathLike[str],
    ones: NDArray[np.int64],
    reports: NDArray[np.int64],
    squares: int | None,
) -> None:
    """Write one line a cohort: cohort, reports, (m,), and the ones at each bit, (m, k).

    Where the sum of squared reports is known, it is the last cell of each line.
    """
    known = [] if squares is None else [squares]
    with replace_file(path) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="")
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow([*_columns(ones.shape[1]), *(_SQUARES for _ in known)])
        for j, n in enumerate(reports.tolist()):
            rows.writerow([j, n, *ones[j].tolist(), *known])
        text.detach()  # flushes; the file stays open


def read_csv(path: str | os.PathLike[str], params: Params) -> _Tables:
    """Read ones, (m, k) int64, and reports, (m,) int64, of m cohorts, each once, in any order.

    With them comes the sum of squared reports, None where the table does not have it.
    Headings may be in upper case, as some databases write them, and in any order.

    Raises FileError, with path and line, for any other table.
    """
    rows = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    ones = np.zeros((params.m, params.k), dtype=np.int64)
    reports = np.full(params.m, -1, dtype=np.int64)
    columns = _columns(params.k)
    squares = None
    try:
        headings = [heading.strip(WHITE_SPACE).lower() for heading in next(rows, [])]
        has_squares = _SQUARES in headings
        columns += [_SQUARES] * has_squares
        places = _find_columns(headings, columns)
        for row in rows:
            j, n, *bits = _parse_row(row, columns, places, params)
            if has_squares:
                known = bits.pop()
                if squares not in (None, known):
                    raise ReportError(f"{_SQUARES} must be the same in every row, got {known}")
                squares = known
            if reports[j] >= 0:
                raise ReportError(f"cohort must come once, got {j} twice")
            ones[j], reports[j] = bits, n
    except (ReportError, csv.Error) as error:
        raise FileError(path, str(error), line=max(rows.line_num, 1)) from None
    missing = np.flatnonzero(reports < 0)
    if len(missing):
        raise FileError(path, f"cohorts must be 0 to {params.m - 1}, got no {missing[0]}")
    return ones, reports, squares


def _columns(k: int) -> list[str]:
    return ["cohort", "reports", *(f"bit_{i}" for i in range(k))]


def _find_columns(names: list[str], columns: list[str]) -> list[int]:
    """Return the place of each column among the names; ReportError unless each is there once."""
    shown = ", ".join(name[:40] for name in names[:8]) or "nothing"
    shown += ", ..." if len(names) > 8 else ""
    if missing := next((column for column in columns if column not in names), None):
        raise ReportError(f"column {missing} is missing, got {shown}")
    if len(names) != len(columns):
        more = next(name for name in names if name not in columns or names.count(name) > 1)
        raise ReportError(f"columns must number {len(columns)}, got {len(names)}, with {more[:40]}")
    return [names.index(column) for column in columns]


def is_table_of_counts(first_line: str) -> bool:
    """Return whether a line has the headings of a table of counts, in any case and order."""
    headings = {cell.strip(' "\r\n').lower() for cell in first_line.split(",")}
    return {"cohort", "reports", "bit_0"} <= headings


def _parse_row(row: list[str], columns: list[str], places: list[int], params: Params) -> list[int]:
    """Return cohort, reports and ones, whole and possible."""
    if len(row) != len(columns):
        blank = "" if row else ": the line is blank, remove it"
        raise ReportError(f"fields must number {len(columns)}, got {len(row)}{blank}")
    numbers = [_whole(name, row[place]) for name, place in zip(columns, places, strict=True)]
    cohort, n, *ones = numbers
    if cohort >= params.m:
        raise ReportError(f"cohort must be in [0, {params.m - 1}], got {cohort}")
    ones = ones[: params.k]
    if max(ones) > n:
        i = next(i for i, count in enumerate(ones) if count > n)
        raise ReportError(f"bit_{i} must be at most the reports, got {ones[i]} ones of {n}")
    return numbers


def _whole(name: str, text: str) -> int:
    try:
        return read_whole_number(text)
    except ValueError:
        reason = f"{name} must be a whole number in [0, 2^63), got {text[:40]!r}"
        raise ReportError(reason) from None


def to_arrow(
    params: Params,
    ones: NDArray[np.int64],
    reports: NDArray[np.int64],
    metric: str,
    squares: int | None,
) -> Any:
    """Return a pyarrow.Table of cohort (int32), reports (int64), ones (list of k int64)."""
    pa = load_pyarrow()
    columns = {
        "cohort": pa.array(np.arange(params.m, dtype=np.int32)),
        "reports": pa.array(reports),
        "ones": pa.FixedSizeListArray.from_arrays(pa.array(ones.ravel()), params.k),
    }
    metadata = {
        _FORMAT_KEY: _FORMAT,
        _PARAMS_KEY: params.to_json().encode(),
        _METRIC_KEY: metric.encode(),
    }
    if squares is not None:
        metadata[_SQUARES_KEY] = str(squares).encode()
    return pa.table(columns).replace_schema_metadata(metadata)


def from_arrow(
    table: Any,
) -> tuple[Params, NDArray[np.int64], NDArray[np.int64], str, int | None]:
    """Read a table as `to_arrow` makes it: the arguments of Counts.

    Raises ParamsError or ReportError where the table is not of that kind.
    """
    metadata = table.schema.metadata or {}
    if _PARAMS_KEY not in metadata or _METRIC_KEY not in metadata:
        raise ReportError("the schema's metadata must name the parameters and the metric")
    if (number := metadata.get(_FORMAT_KEY, b"none")) != _FORMAT:
        raise ReportError(
            f"the schema's metadata must name format {_FORMAT.decode()}, got "
            f"{number.decode(errors='replace')}: counts of other formats mean other bits"
        )
    params = Params.from_json(metadata[_PARAMS_KEY].decode(errors="replace"))
    table = _without_params(table, params)
    metric = metadata[_METRIC_KEY].decode(errors="replace")
    if table.column_names != ["cohort", "reports", "ones"]:
        raise ReportError(f"columns must be cohort, reports, ones, got {table.column_names}")
    cohorts, reports = (_column(table, name) for name in ("cohort", "reports"))
    order = np.argsort(cohorts, kind="stable")
    if not np.array_equal(cohorts[order], np.arange(params.m)):
        raise ReportError(f"cohort must have 0 to {params.m - 1}, each once")
    squares = _squares(metadata.get(_SQUARES_KEY))
    return params, _lists(table, params.k)[order], reports[order], metric, squares


def _without_params(table: Any, params: Params) -> Any:
    """Leave out a first column of fingerprints, which tables for engines have."""
    if table.column_names[:1] != ["params"]:
        return table
    named = table.column("params").unique().to_pylist()
    if named != [params.fingerprint]:
        raise ReportError(f"params must be {params.fingerprint} in every row, got {named}")
    return table.drop_columns(["params"])


def _squares(text: bytes | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(rb"[0-9]{1,40}", text):
        raise ReportError("the schema's metadata must have squares as a whole number")
    return int(text)


def _column(table: Any, name: str) -> NDArray[np.int64]:
    """Return one integer column without nulls, as (m,) int64."""
    pa = load_pyarrow()
    column = table.column(name)
    if not pa.types.is_integer(column.type) or column.null_count:
        raise ReportError(f"{name} must be integers without nulls, got {column.type}")
    try:
        return np.asarray(column.cast(pa.int64()).to_numpy())
    except pa.ArrowInvalid:
        raise ReportError(f"{name} must be below 2^63") from None


def _lists(table: Any, k: int) -> NDArray[np.int64]:
    """Return the column of lists as (m, k) int64."""
    pa = load_pyarrow()
    column = table.column("ones").combine_chunks()
    if column.type != pa.list_(pa.int64(), k) or column.null_count:
        raise ReportError(f"ones must be lists of {k} int64 without nulls, got {column.type}")
    values = column.flatten()
    if values.null_count:
        raise ReportError("ones must be lists without nulls")
    return np.asarray(values.to_numpy()).reshape(len(column), k)


def write_parquet(path: str | os.PathLike[str], table: Any) -> None:
    """Write a pyarrow.Table, whole or not at all."""
    with replace_file(path) as file:
        load_pyarrow("pyarrow.parquet").write_table(table, file)


def read_parquet(path: str | os.PathLike[str]) -> Any:
    """Read the pyarrow.Table of one Counts; FileError for what is no Parquet, and for reports."""
    with open_parquet(path) as file:
        if {"bits", "cohort"} <= set(file.schema_arrow.names):
            raise FileError(
                path,
                "it contains reports, not counts: add them up with `rappor aggregate` "
                "or rappor.engines.aggregate_parquet",
            )
        return file.read()
