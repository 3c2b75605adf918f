"""Stored reports: one Parquet layout, written in batches and summed in bounded memory.

The columns are those of `layout`, the bits of a fixed size.

A file that is aggregated here has one metric under one parameter set, and a row of another one,
or one that is no report, refuses the file. `machine` reads many files of many metrics and counts
such rows.
"""

from __future__ import annotations

import datetime
import itertools
import os
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rappor.counts.bit_sums import sum_bits
from rappor.counts.counts import Counts
from rappor.engines.labels import folder_labels, with_labels
from rappor.engines.layout import COLUMNS, FORMAT, check_columns
from rappor.ground.arrow import load_pyarrow, open_parquet
from rappor.ground.errors import FileError, ReportError
from rappor.ground.files import filling, replacing
from rappor.protocol.params import Params

_BATCH: Final = 1 << 18
"""Reports that are read at a time: 4 MB of bits at k = 128."""


def write_parquet(
    path: str | os.PathLike[str],
    batches: Iterable[tuple[NDArray[np.uint8], NDArray[np.integer[Any]]]],
    *,
    params: Params,
    metric: str | None = None,
    day: datetime.date | None = None,
) -> int:
    """Write packed reports of one metric and day, whole or not at all.

    Parameters
    ----------
    batches : pairs of packed, (n, ceil(k/8)) uint8, and cohorts, (n,) of any integer dtype.
    metric, day : None leaves the column out; the name of the file's folder must give it then.

    Returns
    -------
    The number of reports written.

    Raises
    ------
    MissingExtraError
        The extra 'arrow' is not installed.
    """
    pa, parquet = load_pyarrow(), load_pyarrow("pyarrow.parquet")
    text = pa.dictionary(pa.int32(), pa.string())
    labels = {
        "format": (pa.int8(), FORMAT),
        "metric": (text, metric),
        "params": (text, params.fingerprint),
        "day": (pa.date32(), day),
    }
    labels = {name: label for name, label in labels.items() if label[1] is not None}
    kinds = {name: kind for name, (kind, _) in labels.items()}
    schema = pa.schema(kinds | {"cohort": pa.int32(), "bits": pa.binary(params.n_bytes)})
    repeated = [name for name in kinds if name != "day"]
    n_reports = 0
    with (
        replacing(path) as file,
        parquet.ParquetWriter(file, schema, use_dictionary=repeated) as writer,
    ):
        for packed, cohorts in batches:
            repeats = (_repeat(value, len(packed)) for _, value in labels.values())
            columns = [*repeats, cohorts, _bits(packed)]
            arrays = [pa.array(c).cast(t) for c, t in zip(columns, schema.types, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
            n_reports += len(packed)
    return n_reports


def write_parquet_folder(
    folder: str | os.PathLike[str],
    batches: Iterable[tuple[NDArray[np.uint8], NDArray[np.integer[Any]]]],
    *,
    params: Params,
    metric: str | None = None,
    day: datetime.date | None = None,
    batches_a_file: int = 64,
) -> int:
    """Write packed reports into files of one folder, all of them or none; see `write_parquet`.

    Two batches are held at most. Without any there is one file of no reports.

    Raises
    ------
    FileError
        Something that is no empty folder has the name.
    """
    rest = iter(batches)
    n_reports = 0
    with filling(folder) as fresh:
        for number in itertools.count():
            first = list(itertools.islice(rest, 1))
            if number and not first:
                break
            n_reports += write_parquet(
                fresh / f"reports-{number:06}.parquet",
                itertools.chain(first, itertools.islice(rest, batches_a_file - 1)),
                params=params,
                metric=metric,
                day=day,
            )
    return n_reports


def _repeat(label: object, n: int) -> Any:
    return load_pyarrow().repeat(label, n)


def _bits(packed: NDArray[np.uint8]) -> Any:
    """View packed reports, (n, n_bytes) uint8, as an Arrow array without a copy."""
    pa = load_pyarrow()
    buffers = [None, pa.py_buffer(np.ascontiguousarray(packed))]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(packed.shape[1]), len(packed), buffers)


def aggregate_parquet(path: str | os.PathLike[str], *, params: Params, metric: str) -> Counts:
    """Sum the reports of one Parquet file, holding one batch of rows at a time.

    A column that the file does not have may be given by the name of its folder, column=value.

    Raises
    ------
    FileError
        The file cannot be read, a column is missing or of another type, or a row is of
        another metric or other parameters, or is no report; the message has the row (from 0).
    MissingExtraError
        The extra 'arrow' is not installed.
    """
    total = Counts.zero(params, metric)
    labels = folder_labels(path)
    row = 0
    try:
        with open_parquet(path) as file:
            names = file.schema_arrow.names
            check_columns([*names, *(name for name in labels if name not in names)])
            columns = [name for name in COLUMNS if name in names]
            for rows in file.iter_batches(_BATCH, columns=columns):
                batch = with_labels(rows, labels, COLUMNS)
                total += count_batch(batch, params=params, metric=metric, first_row=row)
                row += batch.num_rows
    except ReportError as error:
        raise FileError(path, str(error)) from None
    return total


def count_batch(batch: Any, *, params: Params, metric: str, first_row: int = 0) -> Counts:
    """Count one pyarrow.RecordBatch of reports.

    `bits` of a fixed size are viewed, not copied; bits of a free size are copied.

    Parameters
    ----------
    batch : columns metric, params, cohort and bits, in any order among others.
    first_row : the number of the batch's first row, for messages.

    Raises
    ------
    ReportError
        A column is missing or of another type, or a row is of another metric or other
        parameters, or is no report; the message has the row.
    """
    check_columns(batch.schema.names)
    _check_format(batch, first_row)
    _check_label(batch, "metric", metric, first_row)
    _check_label(batch, "params", params.fingerprint, first_row)
    packed, cohorts = _view_bits(batch.column("bits"), params.n_bytes), _cohorts(batch)
    sums = sum_bits(packed, cohorts, k=params.k, m=params.m, first_row=first_row)
    return Counts(params, *sums, metric)


def _check_format(batch: Any, first_row: int) -> None:
    if not load_pyarrow().types.is_integer(batch.column("format").type):
        raise ReportError(f"format must be integers, got {batch.column('format').type}")
    _check_label(batch, "format", FORMAT, first_row)


def _check_label(batch: Any, name: str, expected: str | int, first_row: int) -> None:
    """Check that a text column has the same label in every row."""
    for label in batch.column(name).unique().to_pylist():
        if label != expected:
            last_row = first_row + batch.num_rows - 1
            raise ReportError(
                f"{name} must be {expected!r} in every row, "
                f"got {label!r} in rows {first_row} to {last_row}"
            )


def _cohorts(batch: Any) -> NDArray[np.integer[Any]]:
    column = batch.column("cohort")
    if not load_pyarrow().types.is_integer(column.type) or column.null_count:
        raise ReportError(f"cohort must be integers without nulls, got {column.type}")
    return np.asarray(column.to_numpy(zero_copy_only=True))


def _view_bits(column: Any, n_bytes: int) -> NDArray[np.uint8]:
    """Return the column as (n, n_bytes) uint8."""
    pa = load_pyarrow()
    if column.null_count:
        raise ReportError("bits must be without nulls")
    try:
        fixed = column.cast(pa.binary(n_bytes))
    except pa.ArrowException:
        raise ReportError(
            f"bits must be binary of {n_bytes} bytes in every row, got {column.type}"
        ) from None
    data = fixed.buffers()[1]
    if not len(fixed):
        return np.empty((0, n_bytes), dtype=np.uint8)
    rows = np.frombuffer(data, dtype=np.uint8, count=n_bytes * (fixed.offset + len(fixed)))
    return rows.reshape(-1, n_bytes)[fixed.offset :]
