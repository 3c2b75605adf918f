"""Packed reports in Parquet: the layout of the file, and its sums."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from rappor.base.errors import FileError
from rappor.counts.counts import Counts
from rappor.engines.machine import aggregate_parquet
from rappor.engines.parquet import write_parquet, write_parquet_folder
from rappor.protocol.params import Params

PARAMS = Params(k=12, m=4, f=0.5, p=0.25, q=0.75)
OTHER = Params(k=12, m=4, f=0.5, p=0.25, q=0.8)
DAY = datetime.date(2026, 11, 21)

Batch = tuple[NDArray[np.uint8], NDArray[np.uint16]]
"""Packed reports, and their cohorts. Both have a row for each report."""


def draw_reports(n: int, seed: int) -> Batch:
    """Return n packed reports and their cohorts, all drawn uniformly."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, (n, PARAMS.k), dtype=np.uint8)
    cohorts = rng.integers(0, PARAMS.m, n).astype(np.uint16)
    return np.packbits(bits, axis=1, bitorder="little"), cohorts


def write_batches(tmp_path: Path, *batches: Batch) -> Path:
    """Write the batches into one file, and return its path."""
    path = tmp_path / "reports.parquet"
    n_reports = write_parquet(path, batches, params=PARAMS, metric="page", day=DAY)
    assert n_reports == sum(len(packed) for packed, _ in batches)
    return path


def aggregate(path: Path) -> Counts:
    """Return the counts of the file."""
    return aggregate_parquet(path, params=PARAMS, metric="page")


@pytest.mark.slow
def test_more_reports_than_one_batch_are_summed(tmp_path: Path) -> None:
    """The sums of 300,001 reports are those of all reports in memory.

    `aggregate_parquet` reads 262,144 rows at a time, so the file needs two batches. An error names
    the number of the row in the file, counted over row groups and batches.
    """
    packed, cohorts = draw_reports(300_001, 4)
    path = write_batches(tmp_path, draw_reports(0, 2), (packed, cohorts))
    assert aggregate(path) == Counts.from_packed(packed, cohorts, PARAMS, "page")
    cohorts[300_000] = PARAMS.m
    with pytest.raises(FileError, match="300000"):
        aggregate(write_batches(tmp_path, (packed, cohorts)))


def test_a_flipped_bit_of_a_file_is_found(tmp_path: Path) -> None:
    """Every page of a column has a checksum, so a flipped bit is an error and changes no sum."""
    path = write_batches(tmp_path, draw_reports(1000, 6))
    data = path.read_bytes()
    for column in range(6):
        meta = pq.ParquetFile(path).metadata.row_group(0).column(column)
        begin = meta.dictionary_page_offset or meta.data_page_offset
        last = begin + meta.total_compressed_size - 1  # last byte of the column's last page
        path.write_bytes(data[:last] + bytes([data[last] ^ 1]) + data[last + 1 :])
        with pytest.raises(FileError, match="it cannot be read as"):
            aggregate(path)
        path.write_bytes(data)


@pytest.mark.parametrize("n_batches", [0, 1, 2, 5])
def test_files_of_a_folder_have_two_batches_each(tmp_path: Path, n_batches: int) -> None:
    """With batches_a_file=2, each file has two batches, and all files together have all reports.

    Without batches there is one file without reports.
    """
    batches = [draw_reports(10, seed) for seed in range(n_batches)]
    folder = tmp_path / "reports"
    n_reports = write_parquet_folder(
        folder, batches, params=PARAMS, metric="page", day=DAY, batches_a_file=2
    )
    files = sorted(folder.iterdir())
    assert n_reports == 10 * n_batches
    assert len(files) == max(1, -(-n_batches // 2))
    expected = aggregate(write_batches(tmp_path, *batches))
    assert sum(map(aggregate, files), Counts.zero(PARAMS, "page")) == expected


def test_the_layout_is_the_documented_one(tmp_path: Path) -> None:
    """The columns have the names, types and values that `rappor/engines/README.md` documents."""
    packed, cohorts = draw_reports(3, 5)
    table = pq.read_table(write_batches(tmp_path, (packed, cohorts)))
    text = pa.dictionary(pa.int32(), pa.string())
    assert table.schema.names == ["format", "metric", "params", "day", "cohort", "bits"]
    assert table.schema.types == [pa.int8(), text, text, pa.date32(), pa.int32(), pa.binary(2)]
    assert table.column("format").to_pylist() == [1] * 3
    assert table.column("metric").to_pylist() == ["page"] * 3
    assert table.column("params").to_pylist() == [PARAMS.fingerprint] * 3
    assert table.column("day").to_pylist() == [DAY] * 3
    assert table.column("cohort").to_pylist() == cohorts.tolist()
    assert table.column("bits").to_pylist() == [row.tobytes() for row in packed]


def write_with(path: Path, **changes: Any) -> Path:
    """Write three valid reports with some columns replaced. A column of None is left out."""
    columns = {
        "bits": pa.array([b"\x01\x00", b"\x03\x08", b"\x00\x00"], pa.binary(2)),
        "cohort": pa.array([0, 3, 3], pa.int64()),
        "extra": pa.array([1, 2, 3]),
        "format": pa.array([1, 1, 1]),
        "metric": pa.array(["page"] * 3),
        "params": pa.array([PARAMS.fingerprint] * 3),
    } | changes
    present_columns = {name: column for name, column in columns.items() if column is not None}
    pq.write_table(pa.table(present_columns), path)
    return path


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"metric": pa.array(["page", "site", "page"])}, "metric must be 'page', got 'site' in"),
        ({"metric": pa.array(["page", None, "page"])}, "metric must be 'page', got None"),
        ({"params": pa.array([OTHER.fingerprint] * 3)}, "params must be .* in row 0"),
        ({"format": pa.array([1, 2, 1])}, "format must be 1, got 2 in row 1"),
        ({"params": None}, "column params must be there once"),
        ({"cohort": pa.array([0.0, 3.0, 3.0])}, "cohort must be integers"),
        ({"cohort": pa.array([0, None, 3])}, r"cohort must be in \[0, m - 1\], got None in row 1"),
        ({"cohort": pa.array([0, 1, 4])}, r"cohort must be in \[0, m - 1\], got 4 in row 2"),
        (
            {"bits": pa.array([b"\x01\x00", b"\x01", b"\x01\x00"])},
            r"bits must be ceil\(k/8\) bytes.* in row 1",
        ),
        ({"bits": pa.array([b"\x01\x00", b"\x01\x10", b"\x01\x00"])}, "past bit k - 1, .* row 1"),
    ],
)
def test_a_wrong_row_or_column_is_refused(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """A wrong column is an error, and a wrong value is an error with the number of its row."""
    assert aggregate(write_with(tmp_path / "good")).cohort_reports.tolist() == [1, 0, 0, 2]
    with pytest.raises(FileError, match=reason):
        aggregate(write_with(tmp_path / "bad", **changes))


def test_a_wrong_file_is_refused_with_its_path(tmp_path: Path) -> None:
    """A file of another collection, a cut file and a missing file are errors with the path."""
    path = write_batches(tmp_path, draw_reports(3, 6))
    with pytest.raises(FileError, match=r"reports.parquet: metric must be 'site'"):
        aggregate_parquet(path, params=PARAMS, metric="site")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FileError, match=r"reports.parquet: it cannot be read as Parquet"):
        aggregate(path)
    with pytest.raises(FileError, match="nothing: No such file"):
        aggregate(tmp_path / "nothing")


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    """If the iterator of batches raises, neither a file nor a folder is left."""
    batches = (draw_reports(1 // n, 1) for n in (1, 0))
    with pytest.raises(ZeroDivisionError):
        write_parquet(tmp_path / "x", batches, params=PARAMS, metric="page", day=DAY)
    assert not list(tmp_path.iterdir())
    batches = (draw_reports(1 // n, 1) for n in (1, 1, 0))
    with pytest.raises(ZeroDivisionError):
        write_parquet_folder(
            tmp_path / "x", batches, params=PARAMS, metric="page", batches_a_file=1
        )
    assert not list(tmp_path.iterdir())
