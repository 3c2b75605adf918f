"""Parser of JSON lines into Arrow tables, one row in each line.

The lines are reports that a data platform exported, for example {"cohort": 3, "bits": "AQ"}. Values
that are the same in a whole folder may be absent from the lines: a folder `day=2026-11-01` gives
the column day to all files in it. Such a value is a label (`rappor.engines.labels`).

Arrow's own reader is fast, but it refuses a whole block for one bad line, and it ignores line ends.
So a block is passed to Arrow's reader only if each line looks like an object. If the reader fails,
or if the number of rows is not the number of lines, the block is parsed line by line.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from rappor.engines.labels import INTEGER_COLUMNS, read_numbers

_MAX_DIGITS: Final = 18
"""Largest number of characters of a whole number, sign included, that is converted.

Every such number fits int64, the type of the columns of whole numbers. The largest valid number is
a cohort, which is far smaller. Without the limit, Arrow would raise an error for a larger integer,
and Python for thousands of digits.
"""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
"""Half of a UTF-16 pair, which JSON can escape and Arrow cannot store."""


def json_rows(block: bytes, wanted: Sequence[str]) -> tuple[Any, int]:
    """Parse whole lines of JSON, one row in each line.

    Parameters
    ----------
    block : the lines
    wanted : names of the columns to return. A column that a row does not have is null.

    Returns
    -------
    A pyarrow.Table, and the number of lines that are neither rows nor empty.
    """
    schema = pa.schema(
        {name: pa.int64() if name in INTEGER_COLUMNS else pa.string() for name in wanted}
    )
    options = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    read_options = pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1)
    n_lines = block.count(b"\n") + (not block.endswith(b"\n"))
    table = None
    if _looks_like_one_object_per_line(block, n_lines):
        with contextlib.suppress(pa.ArrowException):
            table = pyarrow.json.read_json(io.BytesIO(block), read_options, options)
    if table is not None and len(table) == n_lines:
        return table, 0
    lines = [line for line in block.split(b"\n") if line.strip()]
    rows = [row for line in lines if (row := _parse_row(line, schema)) is not None]
    return pa.Table.from_pylist(rows, schema), len(lines) - len(rows)


def _looks_like_one_object_per_line(block: bytes, n_lines: int) -> bool:
    """Return whether each line begins and ends like a JSON object.

    Arrow's reader ignores line ends. For it, two objects in one line and an empty line are two
    rows, and an object may extend over several lines.
    """
    n_joints = block.count(b"}\n{") + block.count(b"}\r\n{")
    ends = (b"}", b"}\n", b"}\r\n")
    return n_joints == n_lines - 1 and block.startswith(b"{") and block.endswith(ends)


def replace_nulls_by_labels(table: Any, name: str, labels: Any) -> Any:
    """Replace the nulls of a column by the labels, the values that the names of folders give.

    Parameters
    ----------
    table : pyarrow.Table
    name : name of the column
    labels : pyarrow.Array with the label of each row, a text or null
    """
    values = read_numbers(labels) if name in INTEGER_COLUMNS else labels
    column = pc.coalesce(table.column(name), values)
    return table.set_column(table.schema.names.index(name), name, column)


def _parse_row(line: bytes, schema: Any) -> dict[str, Any] | None:
    """Parse a line as a JSON object; return None for any other line."""
    # Invalid UTF-8 is replaced, because Arrow's reader accepts it. If this function refused the
    # line, an unrelated malformed line of the block would decide whether the row counts. The codec
    # removes a byte-order mark.
    text = line.decode("utf-8-sig", errors="replace")
    try:
        row = json.loads(text, parse_int=_parse_whole_number)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    return {name: _check_type(row.get(name), name) for name in schema.names}


def _parse_whole_number(digits: str) -> int:
    """Convert digits to a number. A number that is too large for any column becomes -1."""
    return int(digits) if len(digits) <= _MAX_DIGITS else -1


def _check_type(value: Any, name: str) -> Any:
    """Return a value of the column's type. A value of another type becomes an invalid value.

    The invalid values are -1 and the empty text. The check of reports later refuses the row, and
    counts it under the reason that belongs to the column, such as a cohort outside [0, m). Null
    could not replace a value of another type, because null has a meaning: the row has no day, or
    the label of the folder replaces the null.
    """
    if value is None:
        return None
    if name in INTEGER_COLUMNS:
        return value if type(value) is int else -1
    return value if isinstance(value, str) and not _SURROGATE.search(value) else ""
