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


def reports(n: int, seed: int) -> Batch:
    """Return n packed reports and their cohorts, all drawn uniformly."""
    chance = np.random.default_rng(seed)
    bits = chance.integers(0, 2, (n, PARAMS.k), dtype=np.uint8)
    cohorts = chance.integers(0, PARAMS.m, n).astype(np.uint16)
    return np.packbits(bits, axis=1, bitorder="little"), cohorts


def written(tmp_path: Path, *batches: Batch) -> Path:
    """Write the batches into one file, and return its path."""
    path = tmp_path / "reports.parquet"
    n_reports = write_parquet(path, batches, params=PARAMS, metric="page", day=DAY)
    assert n_reports == sum(len(packed) for packed, _ in batches)
    return path


def aggregated(path: Path) -> Counts:
    """Return the sums of the file."""
    return aggregate_parquet(path, params=PARAMS, metric="page")


@pytest.mark.slow
def test_more_reports_than_one_batch_are_summed(tmp_path: Path) -> None:
    """Row groups and batches of reading may have different sizes."""
    packed, cohorts = reports(300_001, 4)
    path = written(tmp_path, reports(0, 2), (packed, cohorts))
    assert aggregated(path) == Counts.from_packed(packed, cohorts, PARAMS, "page")
    cohorts[300_000] = PARAMS.m
    with pytest.raises(FileError, match="300000"):
        aggregated(written(tmp_path, (packed, cohorts)))


def test_a_bit_that_flips_on_the_disk_is_found(tmp_path: Path) -> None:
    """Every page has a checksum, so a changed bit is an error and no other sum."""
    path = written(tmp_path, reports(1000, 6))
    data = path.read_bytes()
    for column in range(6):
        meta = pq.ParquetFile(path).metadata.row_group(0).column(column)
        begin = meta.dictionary_page_offset or meta.data_page_offset
        at = begin + meta.total_compressed_size - 1  # of the data, behind the page's header
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(FileError, match="it cannot be read as"):
            aggregated(path)
        path.write_bytes(data)


@pytest.mark.parametrize("n_batches", [0, 1, 2, 5])
def test_a_folder_has_files_of_so_many_batches(tmp_path: Path, n_batches: int) -> None:
    """The files together have all reports. Without batches there is one file without reports."""
    batches = [reports(10, seed) for seed in range(n_batches)]
    folder = tmp_path / "reports"
    n_reports = write_parquet_folder(
        folder, batches, params=PARAMS, metric="page", day=DAY, batches_a_file=2
    )
    files = sorted(folder.iterdir())
    assert n_reports == 10 * n_batches
    assert len(files) == max(1, -(-n_batches // 2))
    expected = aggregated(written(tmp_path, *batches))
    assert sum(map(aggregated, files), Counts.zero(PARAMS, "page")) == expected


def test_the_layout_is_the_documented_one(tmp_path: Path) -> None:
    """Names, types and values of the columns are the documented ones."""
    packed, cohorts = reports(3, 5)
    table = pq.read_table(written(tmp_path, (packed, cohorts)))
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
    """Write three valid reports with some columns changed or, by None, left out."""
    columns = {
        "bits": pa.array([b"\x01\x00", b"\x03\x08", b"\x00\x00"], pa.binary(2)),
        "cohort": pa.array([0, 3, 3], pa.int64()),
        "extra": pa.array([1, 2, 3]),
        "format": pa.array([1, 1, 1]),
        "metric": pa.array(["page"] * 3),
        "params": pa.array([PARAMS.fingerprint] * 3),
    } | changes
    kept = {name: column for name, column in columns.items() if column is not None}
    pq.write_table(pa.table(kept), path)
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
        ({"bits": pa.array([b"\x01\x00", b"\x01", b"\x01\x00"])}, "as long as .* in row 1"),
        ({"bits": pa.array([b"\x01\x00", b"\x01\x10", b"\x01\x00"])}, "past bit k - 1, .* row 1"),
    ],
)
def test_a_wrong_row_or_column_is_refused(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """The error has the number of the first refused row, if there is one."""
    assert aggregated(write_with(tmp_path / "good")).cohort_reports.tolist() == [1, 0, 0, 2]
    with pytest.raises(FileError, match=reason):
        aggregated(write_with(tmp_path / "bad", **changes))


def test_a_wrong_file_is_refused_with_its_path(tmp_path: Path) -> None:
    """A file of another collection, a cut file and a missing file are errors with the path."""
    path = written(tmp_path, reports(3, 6))
    with pytest.raises(FileError, match=r"reports.parquet: metric must be 'site'"):
        aggregate_parquet(path, params=PARAMS, metric="site")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FileError, match=r"reports.parquet: it cannot be read as Parquet"):
        aggregated(path)
    with pytest.raises(FileError, match="nothing: No such file"):
        aggregated(tmp_path / "nothing")


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    """An error of the generator half-way leaves no file."""
    batches = (reports(1 // n, 1) for n in (1, 0))
    with pytest.raises(ZeroDivisionError):
        write_parquet(tmp_path / "x", batches, params=PARAMS, metric="page", day=DAY)
    assert not list(tmp_path.iterdir())
    batches = (reports(1 // n, 1) for n in (1, 1, 0))
    with pytest.raises(ZeroDivisionError):
        write_parquet_folder(
            tmp_path / "x", batches, params=PARAMS, metric="page", batches_a_file=1
        )
    assert not list(tmp_path.iterdir())
