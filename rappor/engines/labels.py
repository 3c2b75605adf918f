"""Columns that the names of folders give to the files in them: metric=page/day=2026-11-01."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rappor.base.text_lines import read_whole_number

Labels = Mapping[str, str | None]
"""The text of each column, or None for null."""

NUMBERS: Final = ("format", "cohort")
"""The columns that are whole numbers."""

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""How engines spell null in the name of a folder."""


def folder_labels(path: str | os.PathLike[str]) -> Labels:
    """Return the columns that the names of a file's folders give."""
    labels: dict[str, str | None] = {}
    for name in Path(os.path.abspath(path)).parent.parts:  # noqa: PTH100  # so that a folder above the path has a name
        column, equals, value = name.partition("=")
        if equals:
            text = urllib.parse.unquote(value)
            labels[urllib.parse.unquote(column)] = None if text == _NULL else text
    return labels


def with_labels(batch: Any, labels: Labels, wanted: Sequence[str]) -> Any:
    """Add the columns that the folders' names give and the file does not have."""
    import pyarrow as pa  # noqa: PLC0415  # an extra

    for name in wanted:
        if name in labels and name not in batch.schema.names:
            column = pa.repeat(pa.scalar(labels[name], pa.string()), batch.num_rows)
            batch = batch.append_column(name, read_numbers(column) if name in NUMBERS else column)
    return batch


def _read_number(text: str | bytes | None) -> int | None:
    """Return the number that a text spells, None for any other."""
    if text is None:
        return None
    try:
        return read_whole_number(text if isinstance(text, str) else text.decode(errors="replace"))
    except ValueError:
        return None


def read_numbers(column: Any) -> Any:
    """Read texts as whole numbers, in any spelling; anything else becomes null."""
    import pyarrow as pa  # noqa: PLC0415  # an extra

    encoded = column.dictionary_encode()
    numbers = [_read_number(text) for text in encoded.dictionary.to_pylist()]
    return pa.array(numbers, pa.int64()).take(encoded.indices)
