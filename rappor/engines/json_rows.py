"""Rows of JSON lines."""

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

from rappor.engines.labels import NUMBERS, read_numbers

_MOST_DIGITS: Final = 19
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def json_rows(block: bytes, wanted: Sequence[str]) -> tuple[Any, int]:
    """Return a pyarrow.Table of the wanted columns of whole lines of JSON, a row each.

    With it comes the number of lines that are neither rows nor empty.
    """
    schema = pa.schema({name: pa.int64() if name in NUMBERS else pa.string() for name in wanted})
    options = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    reading = pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1)
    n_lines = block.count(b"\n") + (not block.endswith(b"\n"))
    table = None
    if _has_an_object_a_line(block, n_lines):
        with contextlib.suppress(pa.ArrowException):
            table = pyarrow.json.read_json(io.BytesIO(block), reading, options)
    if table is not None and len(table) == n_lines:
        return table, 0
    lines = [line for line in block.split(b"\n") if line.strip()]
    rows = [row for line in lines if (row := _row(line, schema)) is not None]
    return pa.Table.from_pylist(rows, schema), len(lines) - len(rows)


def _has_an_object_a_line(block: bytes, n_lines: int) -> bool:
    """Return whether each line begins and ends as an object does, so that none holds a part of one.

    The fast reader sees no lines: to it, two objects on a line and an empty line are two rows.
    """
    n_joints = block.count(b"}\n{") + block.count(b"}\r\n{")
    ends = (b"}", b"}\n", b"}\r\n")
    return n_joints == n_lines - 1 and block.startswith(b"{") and block.endswith(ends)


def fill(table: Any, name: str, labels: Any) -> Any:
    """Give the folders' labels, a text for each row or null, to rows that do not say it."""
    values = read_numbers(labels) if name in NUMBERS else labels
    column = pc.coalesce(table.column(name), values)
    return table.set_column(table.schema.names.index(name), name, column)


def _row(line: bytes, schema: Any) -> dict[str, Any] | None:
    """Return a line that is a JSON object, or None."""
    try:
        row = json.loads(line, parse_int=_whole)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    return {name: _typed(row.get(name), name) for name in schema.names}


def _whole(digits: str) -> int:
    """Read a whole number; no column has one of more digits than these."""
    return int(digits) if len(digits) < _MOST_DIGITS else -1


def _typed(value: Any, name: str) -> Any:
    """Return a value of a column, and what no report has in place of one of another type.

    Null would not do: it stands for a day that is missing, and for what the folder says.
    """
    if value is None:
        return None
    if name in NUMBERS:
        return value if type(value) is int else -1
    return value if isinstance(value, str) and not _SURROGATE.search(value) else ""
