"""Labels: columns that the names of folders give to the files in them (Hive partitioning).

A file below the folder `metric=page/day=2026-11-01` has the columns metric and day for all its
rows. A column of the file itself takes precedence.
"""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rappor.base.text_lines import read_whole_number

Labels = Mapping[str, str | None]
"""Text of each column that folders give, or None for null."""

INTEGER_COLUMNS: Final = ("format", "cohort")
"""Names of the columns that contain whole numbers. All other columns contain text. The column
`format` is the version of the layout of the rows, 1 (`layout.FORMAT`)."""

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""Engines write this text in place of null in the name of a folder."""


def folder_labels(path: str | os.PathLike[str]) -> Labels:
    """Return the labels of a file: the columns that the names of its folders give."""
    labels: dict[str, str | None] = {}
    # The path is made absolute without resolving links. Otherwise "." and ".." would hide the name
    # of a folder, and the target of a link would give another name.
    for name in Path(os.path.abspath(path)).parent.parts:  # noqa: PTH100
        column, equals, value = name.partition("=")
        if equals:
            text = urllib.parse.unquote(value)
            labels[urllib.parse.unquote(column)] = None if text == _NULL else text
    return labels


def with_labels(batch: Any, labels: Labels, wanted: Sequence[str]) -> Any:
    """Return a batch with the wanted columns that only the labels have.

    Parameters
    ----------
    batch : pyarrow.RecordBatch
    labels : labels of the file
    wanted : names of the columns to add
    """
    import pyarrow as pa  # noqa: PLC0415  # an extra

    for name in wanted:
        if name in labels and name not in batch.schema.names:
            column = pa.repeat(pa.scalar(labels[name], pa.string()), batch.num_rows)
            batch = batch.append_column(
                name, read_numbers(column) if name in INTEGER_COLUMNS else column
            )
    return batch


def read_numbers(column: Any) -> Any:
    """Convert a column of text to int64. Text that is not a whole number becomes null.

    Any spelling of a whole number is read, such as 1e+05. The check of reports later refuses a row
    whose number is null.
    """
    import pyarrow as pa  # noqa: PLC0415  # an extra

    encoded = column.dictionary_encode()
    numbers = [_read_number(text) for text in encoded.dictionary.to_pylist()]
    return pa.array(numbers, pa.int64()).take(encoded.indices)


def _read_number(text: str | bytes | None) -> int | None:
    """Read a text as a whole number; return None for any other text."""
    if text is None:
        return None
    try:
        return read_whole_number(text if isinstance(text, str) else text.decode(errors="replace"))
    except ValueError:
        return None
