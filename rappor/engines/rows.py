"""Readers of files of stored reports: Arrow batches with the columns of `rappor.engines.layout`.

The input is a part of a Parquet, CSV or JSON-lines file. The output is record batches of rows,
which the kernel (`rappor.engines.sums`) sums.

Text is read in blocks of whole lines, and a large file is read in parts, so that the memory is
bounded and all cores have work. Faults have three levels:

- A row with a value of a wrong type is passed on. The kernel refuses the row by its reason.
- A line that cannot be split into a row ("malformed") is counted here.
- Contents that do not match the suffix of the file's name, or a missing column, refuse the file.
"""

from __future__ import annotations

import csv
import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv

from rappor.base.arrow import open_parquet
from rappor.base.errors import FileError, ReportError
from rappor.engines.files import ReportFile, is_packed, open_text
from rappor.engines.json_rows import json_rows, replace_nulls_by_labels
from rappor.engines.labels import INTEGER_COLUMNS, read_numbers, with_labels
from rappor.engines.layout import COLUMNS, DAY, check_columns

_BATCH_ROWS: Final = 1 << 18
"""Number of rows of a Parquet file that are read at a time.

The number bounds the memory of each thread: the bits take 4 MB at k = 128.
"""

_BLOCK_BYTES: Final = 1 << 24
"""Number of bytes of text that are read at a time, and the largest length of a line.

The number bounds the memory of each thread. A larger number accepts longer lines.
"""

_HEAD_BYTES: Final = 1 << 16
"""Number of bytes at the beginning of a CSV file in which the end of the header is searched."""

_PART_BYTES: Final = 1 << 27
"""Size of a part of a file in bytes: 128 MiB. A larger file is read in several parts. With larger
parts, fewer cores have work."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """Part of a file: the lines, or the row groups of Parquet, that begin in a range of bytes.

    Attributes
    ----------
    file : the file.
    start : offset of the first byte of the range.
    end : offset of the first byte after the range. 0 stands for the end of the file.
    size : number of bytes of the part, for the progress.
    """

    file: ReportFile
    start: int
    end: int
    size: int


def parts_of(file: ReportFile) -> list[FilePart]:
    """Divide a file into parts. A small or compressed file is one part.

    Compressed text cannot be read from the middle.
    """
    if file.size <= _PART_BYTES or is_packed(file.path):
        return [FilePart(file, 0, 0, file.size)]
    starts = range(0, file.size, _PART_BYTES)
    return [
        FilePart(file, start, start + _PART_BYTES, min(_PART_BYTES, file.size - start))
        for start in starts
    ]


def read_part(
    part: FilePart, refuse: Callable[[str, int], None], by: Sequence[str] = ()
) -> Iterator[Any]:
    """Yield the rows of a part as pyarrow.RecordBatches.

    Parameters
    ----------
    part : the part of the file
    refuse : function that counts lines that are not rows. It takes a reason and their number.
    by : names of further columns that the batches contain

    Raises
    ------
    FileError
        The contents do not match the suffix of the file's name, or a column is missing.
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
    except (OSError, EOFError, csv.Error, zlib.error, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise FileError(
            part.file.path, f"it cannot be read as {part.file.kind}: {reason}"
        ) from None


def _read_parquet(part: FilePart, wanted: Sequence[str], refuse: object) -> Iterator[Any]:
    """Yield batches of a Parquet file. `refuse` is not needed, because the file has no lines."""
    del refuse
    with open_parquet(part.file.path) as file:
        names = file.schema_arrow.names
        labels = part.file.labels
        check_columns([*names, *(name for name in labels if name not in names)])
        columns = [name for name in wanted if name in names]
        yield from file.iter_batches(
            _BATCH_ROWS, row_groups=_select_row_groups(file, part), columns=columns
        )


def _select_row_groups(file: Any, part: FilePart) -> list[int]:
    """Return the row groups of a Parquet file that begin in a part."""
    first_columns = [
        file.metadata.row_group(i).column(0) for i in range(file.metadata.num_row_groups)
    ]
    offsets = [column.dictionary_page_offset or column.data_page_offset for column in first_columns]
    # A damaged footer may name a beginning outside the file. Such a group is assigned to the last
    # part, where reading it fails. Otherwise no part would read it, and its rows would be lost
    # without an error.
    last = part.file.size - 1
    offsets = [offset if 0 <= offset <= last else last for offset in offsets]
    end = part.end or part.file.size
    return [i for i, offset in enumerate(offsets) if part.start <= offset < end]


def _read_csv(
    part: FilePart, wanted: Sequence[str], refuse: Callable[[str, int], None]
) -> Iterator[Any]:
    """Yield batches of a CSV file."""
    names = _read_header(part.file)
    check_columns([*names, *(name for name in part.file.labels if name not in names)])
    for number, block in enumerate(_read_blocks(part)):
        lines = block.partition(b"\n")[2] if number == 0 and part.start == 0 else block
        table, n_malformed = _parse_csv(lines, names, [name for name in wanted if name in names])
        if n_malformed:
            refuse("malformed", n_malformed)
        for batch in table.to_batches():
            columns = zip(batch.schema.names, batch.columns, strict=True)
            yield pa.record_batch({name: _convert_text(name, column) for name, column in columns})


class _LineFeeds(io.RawIOBase):
    """A file whose lines end in CR, read as if they ended in LF. No offset changes."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read bytes into a buffer, with LF in place of CR."""
        content = self._file.read(len(buffer)).replace(b"\r", b"\n")
        buffer[: len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        super().close()


def _open_lines(file: ReportFile) -> BinaryIO:
    """Open a text whose lines end in LF or CR LF, or a CSV file whose lines end in CR.

    The end of the header decides. Excel for the Mac and old exports write CR. JSON has no such
    files, because CR is white space there.
    """
    text = open_text(file.path)
    if file.kind != "csv":
        return text
    head = text.read(_HEAD_BYTES)
    text.seek(0)
    header, ending, after_return = head.partition(b"\r")
    if ending and b"\n" not in header and not after_return.startswith(b"\n"):
        return io.BufferedReader(_LineFeeds(text))
    return text


def _read_header(file: ReportFile) -> list[str]:
    """Read the names of the columns of a CSV file."""
    with _open_lines(file) as text:
        line = _read_to_line_end(text).removeprefix(b"\xef\xbb\xbf")
    names = next(csv.reader([line.decode(errors="replace")]), [])
    known_names = {*COLUMNS, DAY}
    # Databases that do not preserve the case of names write COHORT. Names of other columns keep
    # their case.
    return [name.lower() if name.lower() in known_names else name for name in names]


def _parse_csv(block: bytes, names: list[str], included: list[str]) -> tuple[Any, int]:
    """Parse whole lines of CSV.

    Parameters
    ----------
    block : the lines
    names : names of all columns, in order
    included : names of the columns to return

    Returns
    -------
    A table of bytes, and the number of lines that are neither rows nor empty.
    """
    text = block.decode(errors="replace")
    # The reader passes malformed rows as text to `skip`, so the block must be valid UTF-8.
    lines = text.encode()
    # Case: a CR within a line, of which the reader makes several rows.
    has_inner_return = lines.count(b"\r") != lines.count(b"\r\n")
    if has_inner_return or not _has_plain_quotes(lines):
        return _parse_csv_line_by_line(text, names, included)
    malformed: list[str] = []

    def skip(row: Any) -> str:
        if row.text.strip():
            malformed.append("")
        return "skip"

    table = pyarrow.csv.read_csv(
        io.BytesIO(lines or b"\n"),
        read_options=pyarrow.csv.ReadOptions(
            column_names=names, use_threads=False, block_size=_BLOCK_BYTES
        ),
        parse_options=pyarrow.csv.ParseOptions(invalid_row_handler=skip),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.binary()),
            include_columns=included,
            null_values=[""],
            strings_can_be_null=True,
        ),
    )
    # Case: a row that the reader has divided or joined in another way. The numbers of rows differ.
    n_lines = lines.count(b"\n") + (not lines.endswith(b"\n") and len(lines) > 0)
    if len(table) + len(malformed) == n_lines:
        return table, len(malformed)
    return _parse_csv_line_by_line(text, names, included)


def _has_plain_quotes(lines: bytes) -> bool:
    """Return whether every quotation mark belongs to a quoted field that ends within its line.

    Arrow's reader also accepts text after the closing mark of a field, and reads a field without a
    closing mark up to a mark of a later line. The parser of single lines refuses both. Without
    this check, an unrelated line of the block would decide whether such a row counts.

    The marks of a line open and close fields in turn. Two marks side by side within a field stand
    for one mark of its text: the first of them has the place of a closing mark, and the second the
    place of an opening mark.
    """
    # Most files have no quotation mark, and the search for one byte is fast.
    if b'"' not in lines:
        return True
    data = np.frombuffer(b"\n" + lines + b"\n", dtype=np.uint8)
    marks = np.flatnonzero(data == ord('"'))
    # If every line has an even number of marks, the marks of the whole block alternate, too.
    n_marks_before = np.searchsorted(marks, np.flatnonzero(data == ord("\n")))
    if np.any(n_marks_before % 2):
        return False
    opening, closing = marks[::2], marks[1::2]
    opens_fields = np.isin(data[opening - 1], list(b'\n,"'))
    closes_fields = np.isin(data[closing + 1], list(b'\r\n,"'))
    return bool(opens_fields.all() and closes_fields.all())


def _parse_csv_line_by_line(text: str, names: list[str], included: list[str]) -> tuple[Any, int]:
    """Parse lines of CSV as `_parse_csv` does, more slowly. No line affects another line."""
    columns: dict[str, list[bytes | None]] = {name: [] for name in included}
    n_malformed = 0
    for line in filter(str.strip, text.split("\n")):
        rows = [_split_fields(line.removesuffix("\r"))]
        if len(rows[0]) != len(names) and "\r" in line:
            # A part of the file has lines that end in CR, as after joining two files.
            rows = [_split_fields(part) for part in line.split("\r") if part.strip()]
        for fields in rows:
            if len(fields) != len(names):
                n_malformed += 1
                continue
            row = dict(zip(names, fields, strict=True))
            for name, column in columns.items():
                column.append(row[name].encode() or None)
    table = pa.table({name: pa.array(cells, pa.binary()) for name, cells in columns.items()})
    return table, n_malformed


def _split_fields(line: str) -> list[str]:
    """Split a line of CSV; return no fields for a line that is not CSV."""
    try:
        (fields,) = csv.reader([line], strict=True)
    except (csv.Error, ValueError):
        return []
    return fields


def _convert_text(name: str, column: Any) -> Any:
    """Convert a column of bytes into whole numbers, labels or bits, by its name."""
    if name in INTEGER_COLUMNS:
        return read_numbers(column)
    if name == "bits":
        return _view_as_text(column)
    encoded = column.dictionary_encode()
    values = [
        None if value is None else value.decode(errors="replace")
        for value in encoded.dictionary.to_pylist()
    ]
    return pa.DictionaryArray.from_arrays(encoded.indices, pa.array(values, pa.string()))


def _view_as_text(column: Any) -> Any:
    """View bytes as text without a copy or a check. The decoder of base64url checks them."""
    return pa.Array.from_buffers(
        pa.string(), len(column), column.buffers(), column.null_count, column.offset
    )


def _read_json(
    part: FilePart, wanted: Sequence[str], refuse: Callable[[str, int], None]
) -> Iterator[Any]:
    """Yield batches of a file of JSON lines."""
    for block in _read_blocks(part):
        table, n_malformed = json_rows(block, wanted)
        if n_malformed:
            refuse("malformed", n_malformed)
        for name in set(wanted) & set(part.file.labels):
            label = pa.scalar(part.file.labels[name], pa.string())
            table = replace_nulls_by_labels(table, name, pa.repeat(label, len(table)))
        yield from table.to_batches()


def _read_blocks(part: FilePart) -> Iterator[bytes]:
    """Yield blocks of whole lines: the lines that begin in the part."""
    with _open_lines(part.file) as file:
        if part.start:
            # A line that begins before the part belongs to the part before, so the rest of it is
            # skipped. The file is read from one byte before the part, because a line may begin with
            # the first byte of the part.
            file.seek(part.start - 1)
            _read_to_line_end(file)
        while not part.end or file.tell() < part.end:
            size = min(_BLOCK_BYTES, part.end - file.tell()) if part.end else _BLOCK_BYTES
            block = file.read(size)
            if not block:
                return
            if not block.endswith(b"\n"):
                block += _read_to_line_end(file)
            yield block


def _read_to_line_end(file: BinaryIO) -> bytes:
    """Read to the end of the line; raise ReportError if the line is longer than a block.

    The limit bounds the memory for files that contain no line ends.
    """
    remaining_bytes = file.readline(_BLOCK_BYTES)
    if len(remaining_bytes) == _BLOCK_BYTES and not remaining_bytes.endswith(b"\n"):
        raise ReportError(f"its lines must have at most {_BLOCK_BYTES:,} bytes")
    return remaining_bytes
