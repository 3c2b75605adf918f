"""Writer of stored reports as Parquet: the columns of `layout`, with bits of a fixed size.

The writer copies no bits, and repeated values such as the metric take almost no space.
"""

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
    """Write packed reports of one metric and day into one file.

    The file is written as a whole or not at all, and its pages have checksums.

    Parameters
    ----------
    path : path
        Path of the file. An existing file is replaced.
    batches : iterable of pairs
        Packed reports, (n, ceil(k/8)) uint8, and their cohorts, (n,) of any integer dtype.
    params : Params
        The parameter set.
    metric : str, optional
        Name of the metric. Without a name the file has no such column, and the name of its folder
        must give it.
    day : date, optional
        Day of the reports. Without a day the file has no such column.

    Returns
    -------
    int
        Number of reports.

    Raises
    ------
    MissingExtraError
        If the extra 'arrow' is not installed.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from rappor import Params
    >>> from rappor.engines import write_parquet
    >>> params = Params(k=1, encoding="boolean", f=0.5, p=0.25, q=0.75)
    >>> packed, cohorts = np.array([[1], [0], [1]], dtype=np.uint8), np.zeros(3, dtype=np.int64)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "reports.parquet")
    ...     write_parquet(path, [(packed, cohorts)], params=params, metric="member")
    3
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
    # Dictionary encoding stores a repeated value once, and an index for each row. The day is stored
    # without it, as an integer of four bytes for each row, which compression shortens.
    dictionary_columns = [name for name in kinds if name != "day"]
    n_reports = 0
    with (
        replace_file(path) as file,
        parquet.ParquetWriter(
            file, schema, use_dictionary=dictionary_columns, write_page_checksum=True
        ) as writer,
    ):
        for packed, cohorts in batches:
            repeats = (pa.repeat(value, len(packed)) for _, value in labels.values())
            # The Arrow array is a view of the packed bits, without a copy.
            buffers = [None, pa.py_buffer(np.ascontiguousarray(packed))]
            kind = pa.binary(packed.shape[1])
            bits = pa.FixedSizeBinaryArray.from_buffers(kind, len(packed), buffers)
            columns = [*repeats, cohorts, bits]
            arrays = [
                pa.array(column).cast(kind)
                for column, kind in zip(columns, schema.types, strict=True)
            ]
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
    """Write packed reports into files of one folder, all files or none.

    At most two batches are in memory. Without any batch the folder has one file without reports.

    Parameters
    ----------
    folder : path
        Path of the folder, which must not exist or be empty.
    batches, params, metric, day
        As in `write_parquet`.
    batches_a_file : int
        Number of batches of a file.

    Returns
    -------
    int
        Number of reports.

    Raises
    ------
    FileError
        If the path exists and is not an empty folder.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from rappor import Params, Population
    >>> from rappor.engines import write_parquet_folder
    >>> from rappor.simulation import simulate_reports
    >>> params, editors = Params.profile("balanced"), Population(["vim", "emacs"], [3, 1])
    >>> blocks = simulate_reports(editors, params, n_reports=1000, block=400, seed=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lake = pathlib.Path(folder, "lake")
    ...     n_reports = write_parquet_folder(
    ...         lake,
    ...         ((block.packed, block.cohorts) for block in blocks),
    ...         params=params,
    ...         metric="editor",
    ...         batches_a_file=2,
    ...     )
    ...     n_files = len(list(lake.iterdir()))
    >>> n_reports, n_files
    (1000, 2)
    """
    remaining_batches = iter(batches)
    n_reports = 0
    with create_folder(folder) as fresh:
        for number in itertools.count():
            first = list(itertools.islice(remaining_batches, 1))
            if number and not first:
                break
            n_reports += write_parquet(
                fresh / f"reports-{number:06}.parquet",
                itertools.chain(first, itertools.islice(remaining_batches, batches_a_file - 1)),
                params=params,
                metric=metric,
                day=day,
            )
    return n_reports
