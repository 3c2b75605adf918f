"""Export of counts as Parquet files for a data lake."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from collectors import ACCEPTED, close_days, commit, day, report_of, upload_of
from rappor_server.releases.export import export_counts
from rappor_server.releases.releases import read_release
from sqlalchemy import Engine

from rappor import Counts
from rappor.base.errors import FileError, RapporError

METRICS = ACCEPTED.registry


def test_an_export_contains_released_counts_only(engine: Engine, tmp_path: Path) -> None:
    """A file contains the same counts as a response of the collector."""
    metric = METRICS["small"]
    for offset, n in ((0, 7), (1, 1)):
        commit(engine, *(upload_of(report_of("small")) for _ in range(n)), today=day(offset))
    with pytest.raises(RapporError, match=f"reports of small up to {day(1)} are not in blocks"):
        export_counts(engine, tmp_path, metric, first=day(0), last=day(1))
    close_days(engine, metric, day(3))
    (path,) = export_counts(engine, tmp_path, metric, first=day(0), last=day(1))
    folder = f"counts/metric=small/first={day(0)}/last={day(1)}"
    assert (
        str(path.relative_to(tmp_path))
        == f"{folder}/{ACCEPTED.registry['small'].fingerprint}.parquet"
    )
    (expected,) = read_release(engine, metric, day(0), day(1)).collections
    assert Counts.from_parquet(path) == expected
    assert expected.n_reports == 7  # the block of the last day waits for a second report
    table = duckdb.read_parquet(f"{tmp_path}/counts/**/*.parquet", hive_partitioning=True)
    assert table.aggregate("metric, params, sum(reports)").fetchall() == [
        ("small", ACCEPTED.registry["small"].fingerprint, 7)
    ]


def test_days_are_in_a_folder_once(engine: Engine, tmp_path: Path) -> None:
    """An export of the same days is repeated. Other days that overlap are refused."""
    metric = METRICS["page"]
    commit(engine, upload_of(), today=day(0))
    first = export_counts(engine, tmp_path, metric, first=day(0), last=day(1))
    assert export_counts(engine, tmp_path, metric, first=day(0), last=day(1)) == first
    for start, end in ((0, 0), (1, 2), (-1, 5)):
        with pytest.raises(FileError, match="a day must be in one export"):
            export_counts(engine, tmp_path, metric, first=day(start), last=day(end))
    assert export_counts(engine, tmp_path, metric, first=day(2), last=day(3)) == []


def test_consecutive_exports_leave_no_block_out(engine: Engine, tmp_path: Path) -> None:
    """A block that crosses the border of two exports is in the export of its last day."""
    metric = METRICS["small"]
    for offset in range(6):
        # Each day of cohort 1 is a block. Two days of cohort 2 are one block of 1 + 3 reports.
        n_days, n_pairs = (5, 3) if offset % 2 else (6, 1)
        cohorts = [1] * n_days + [2] * n_pairs
        reports = [report_of("small", cohort=cohort) for cohort in cohorts]
        commit(engine, *map(upload_of, reports), today=day(offset))
    close_days(engine, metric, day(7))
    expected = read_release(engine, metric, day(0), day(5)).n_reports
    assert expected == 3 * (5 + 6 + 4)
    days = [(0, 0), (1, 2), (3, 4), (5, 5)]
    written = [export_counts(engine, tmp_path, metric, first=day(a), last=day(b)) for a, b in days]
    sums = [Counts.from_parquet(path).n_reports for paths in written for path in paths]
    assert sums == [6, 5 + 4 + 6, 5 + 4 + 6, 5 + 4]
    assert sum(sums) == expected
