"""Writes stored reports as Parquet: the columns of `layout`, the bits of a fixed size."""

from __future__ import annotations

import datetime
import itertools
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rappor.base.arrow import load_pyarrow
from rappor.base.atomic_files import create_folder, replace_file
from rappor.engines.layout import FORMAT
from rappor.protocol.params import Params


def write_parquet(
    path: str | os.PathLike[str],
    batches: Iterable[tuple[NDArray[np.uint8], NDArray[np.integer[Any]]]],
    *,
    params: Params,
    metric: str | None = None,
    day: datetime.date | None = None,
) -> int:
    """Write packed reports of one metric and day, whole or not at all; pages have checksums.

    Parameters
    ----------
    batches : pairs of packed, (n, ceil(k/8)) uint8, and cohorts, (n,) of any integer dtype.
    metric, day : None leaves the column out; the name of the file's folder must give it then.

    Returns
    -------
    The number of reports written.

    Raises MissingExtraError where the extra 'arrow' is not installed.
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
        replace_file(path) as file,
        parquet.ParquetWriter(
            file, schema, use_dictionary=repeated, write_page_checksum=True
        ) as writer,
    ):
        for packed, cohorts in batches:
            repeats = (pa.repeat(value, len(packed)) for _, value in labels.values())
            # a view of the packed bits, without a copy
            buffers = [None, pa.py_buffer(np.ascontiguousarray(packed))]
            kind = pa.binary(packed.shape[1])
            bits = pa.FixedSizeBinaryArray.from_buffers(kind, len(packed), buffers)
            columns = [*repeats, cohorts, bits]
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

    Two batches are held at most. Without any there is one file of no reports. Raises FileError
    where something that is no empty folder has the name.
    """
    rest = iter(batches)
    n_reports = 0
    with create_folder(folder) as fresh:
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
