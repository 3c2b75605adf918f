"""The rows of files of stored reports, as Arrow batches with the columns of `layout`.

Texts are read in blocks of whole lines, and large files in parts, so that memory is bounded and
all cores have work. A value of another type becomes null, and a line that is no row is counted:
both are refusals, which the kernel tells by their reason. What refuses the whole file is a file
that is not what its name says, and a missing column.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from rappor.counts.tables import open_parquet
from rappor.engines.files import ReportFile, open_text
from rappor.engines.labels import NUMBERS, read_numbers, with_labels
from rappor.engines.layout import COLUMNS, DAY, check_columns
from rappor.errors import FileError, ReportError

_ROWS: Final = 1 << 18
"""Rows of a Parquet file that are read at a time: 4 MB of bits at k = 128."""
_BLOCK: Final = 1 << 24
"""Bytes of text that are read at a time."""
_PART: Final = 1 << 27
"""Bytes of a file from which on it is read in parts."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Part:
    """Row groups of a Parquet file, or bytes of a text, from start to end; end 0 is the end."""

    file: ReportFile
    start: int
    end: int
    size: int


def parts_of(file: ReportFile) -> list[Part]:
    """Return the parts that a file is read in, small ones and compressed texts as a whole."""
    if file.size <= _PART or file.path.endswith(".gz"):
        return [Part(file, 0, 0, file.size)]
    if file.kind != "parquet":
        starts = range(0, file.size, _PART)
        return [Part(file, start, start + _PART, min(_PART, file.size - start)) for start in starts]
    with open_parquet(file.path) as opened:
        n_groups = opened.metadata.num_row_groups
    step = -(-n_groups * _PART // file.size) or 1
    return [
        Part(file, start, min(start + step, n_groups), file.size * step // n_groups)
        for start in range(0, n_groups, step)
    ]


def read_part(
    part: Part, refuse: Callable[[str, int], None], by: Sequence[str] = ()
) -> Iterator[Any]:
    """Yield the rows of a part as pyarrow.RecordBatches with the columns of `layout` and `by`.

    Parameters
    ----------
    refuse : called with a reason and a number, for lines that are no rows.

    Raises
    ------
    FileError
        The file cannot be read as what its name says, or a column is missing.
    """
    wanted = (*COLUMNS, DAY, *by)
    reader = {"parquet": _read_parquet, "csv": _read_csv, "json": _read_json}[part.file.kind]
    try:
        for batch in reader(part, wanted, refuse):
            labelled = with_labels(batch, part.file.labels, wanted)
            check_columns(labelled.schema.names, by)
            yield labelled
    except ReportError as error:
        raise FileError(part.file.path, str(error)) from None
    except (OSError, EOFError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise FileError(
            part.file.path, f"it cannot be read as {part.file.kind}: {reason}"
        ) from None


def _read_parquet(part: Part, wanted: Sequence[str], refuse: object) -> Iterator[Any]:
    del refuse  # a row of Parquet is a row
    with open_parquet(part.file.path) as file:
        names = file.schema_arrow.names
        labels = part.file.labels
        check_columns([*names, *(name for name in labels if name not in names)])
        columns = [name for name in wanted if name in names]
        groups = range(part.start, part.end or file.metadata.num_row_groups)
        yield from file.iter_batches(_ROWS, row_groups=list(groups), columns=columns)


def _read_csv(
    part: Part, wanted: Sequence[str], refuse: Callable[[str, int], None]
) -> Iterator[Any]:
    with open_text(part.file.path) as file:
        header = file.readline().removeprefix(b"\xef\xbb\xbf")
    names = (
        [str(name) for name in pa.csv.read_csv(io.BytesIO(header)).column_names] if header else []
    )
    check_columns([*names, *(name for name in part.file.labels if name not in names)])

    def skip(row: Any) -> str:
        del row
        refuse("malformed", 1)
        return "skip"

    binary = dict.fromkeys(names, pa.binary())
    for number, block in enumerate(_blocks(part)):
        lines = block.partition(b"\n")[2] if number == 0 and part.start == 0 else block
        lines = lines.decode(errors="replace").encode()  # the reader shows bad rows as text
        table = pa.csv.read_csv(
            io.BytesIO(lines or b"\n"),
            read_options=pa.csv.ReadOptions(
                column_names=names, use_threads=False, block_size=_BLOCK
            ),
            parse_options=pa.csv.ParseOptions(invalid_row_handler=skip),
            convert_options=pa.csv.ConvertOptions(
                column_types=binary,
                include_columns=[name for name in wanted if name in names],
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
        for batch in table.to_batches():
            columns = zip(batch.schema.names, batch.columns, strict=True)
            yield pa.record_batch({name: _of_text(name, column) for name, column in columns})


def _of_text(name: str, column: Any) -> Any:
    """Turn a column of bytes into whole numbers, labels or bits."""
    if name in NUMBERS:
        return read_numbers(column)
    if name == "bits":
        return _as_text(column)
    encoded = column.dictionary_encode()
    values = [
        None if v is None else v.decode(errors="replace") for v in encoded.dictionary.to_pylist()
    ]
    return pa.DictionaryArray.from_arrays(encoded.indices, pa.array(values, pa.string()))


def _as_text(column: Any) -> Any:
    """View bytes as text without a check; base64url is checked where it is decoded."""
    return pa.Array.from_buffers(
        pa.string(), len(column), column.buffers(), column.null_count, column.offset
    )


def _read_json(
    part: Part, wanted: Sequence[str], refuse: Callable[[str, int], None]
) -> Iterator[Any]:
    schema = pa.schema({name: pa.int64() if name in NUMBERS else pa.string() for name in wanted})
    options = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    reading = pa.json.ReadOptions(use_threads=False, block_size=2 * _BLOCK)
    for block in _blocks(part):
        n_lines = block.count(b"\n") + (not block.endswith(b"\n"))
        try:
            table = pa.json.read_json(io.BytesIO(block), reading, options)
        except pa.ArrowException:
            table = None
        if table is None or len(table) != n_lines:  # one of the lines is no row: look at each
            table = pa.Table.from_pylist(list(_rows(block, schema, refuse)), schema)
        for name in set(wanted) & set(part.file.labels):
            table = _fill(table, name, part.file.labels[name])
        yield from table.to_batches()


def _fill(table: Any, name: str, label: str | None) -> Any:
    """Give a folder's label to the rows that do not say it themselves."""
    place = table.schema.names.index(name)
    value = label if name not in NUMBERS else read_numbers(pa.array([label])).to_pylist()[0]
    filled = table.column(name) if value is None else table.column(name).fill_null(value)
    return table.set_column(place, name, filled)


def _rows(
    block: bytes, schema: Any, refuse: Callable[[str, int], None]
) -> Iterator[dict[str, Any]]:
    """Yield the lines that are JSON objects, with None for a value of another type."""
    for line in filter(bytes.strip, block.split(b"\n")):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            refuse("malformed", 1)
            continue
        yield {name: _typed(row.get(name), name) for name in schema.names}


def _typed(value: Any, name: str) -> Any:
    if name in NUMBERS:
        return value if type(value) is int and abs(value) < 1 << 62 else None
    return value if isinstance(value, str) and not _SURROGATE.search(value) else None


def _blocks(part: Part) -> Iterator[bytes]:
    """Yield blocks of whole lines: those that begin in the part."""
    with open_text(part.file.path) as file:
        if part.start:
            file.seek(part.start - 1)
            file.readline()
        while not part.end or file.tell() < part.end:
            size = min(_BLOCK, part.end - file.tell()) if part.end else _BLOCK
            block = file.read(size)
            if not block:
                return
            if not block.endswith(b"\n"):
                block += file.readline()
            yield block
