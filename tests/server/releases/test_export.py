"""Export of counts as Parquet files for a data lake.

The metric `small` is daily with `min_cohort` = 2 and `min_reports` = 5, so its reports are released
in blocks of days. The metric `page` has no minimum.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from collectors import (
    ACCEPTED,
    append,
    build_report,
    build_upload,
    close_days,
    commit,
    day,
    parse_submission,
)
from databases import ON_BOTH_DATABASES
from rappor_server.releases.export import export_counts
from rappor_server.releases.releases import read_release
from rappor_server.storage.forgetting import forget
from sqlalchemy import Engine

from rappor import Counts
from rappor.base.errors import FileError, RapporError

METRICS = ACCEPTED.registry


def test_an_export_contains_released_counts_only(engine: Engine, tmp_path: Path) -> None:
    """A file contains the released counts, as a response of the collector does.

    The metric has 7 reports on the first day, and one report on the second day, which waits for its
    block. Reports of days that are not in blocks are refused.
    """
    metric = METRICS["small"]
    for offset, n in ((0, 7), (1, 1)):
        commit(engine, *(build_upload(build_report("small")) for _ in range(n)), today=day(offset))
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


@ON_BOTH_DATABASES
def test_reports_in_the_inbox_are_not_forgotten(engine: Engine, tmp_path: Path) -> None:
    """An export is refused while reports of its days are not in blocks, even in no counter yet."""
    append(engine, [parse_submission(build_upload(build_report("small")))], today=day(0))
    with pytest.raises(RapporError, match=f"reports of small up to {day(0)} are not in blocks"):
        export_counts(engine, tmp_path, METRICS["small"], first=day(0), last=day(0))


def test_an_export_deletes_the_files_of_deleted_windows(engine: Engine, tmp_path: Path) -> None:
    """After `forget`, an export of the same days leaves no file with the deleted reports."""
    metric = METRICS["small"]
    commit(engine, *(build_upload(build_report("small")) for _ in range(6)), today=day(0))
    close_days(engine, metric, day(1))
    (path,) = export_counts(engine, tmp_path, metric, first=day(0), last=day(0))
    forget(engine, "small", before=day(1))
    assert export_counts(engine, tmp_path, metric, first=day(0), last=day(0)) == []
    assert not path.exists()


def test_days_are_in_a_folder_once(engine: Engine, tmp_path: Path) -> None:
    """An export of the same days is repeated. Other days that overlap are refused."""
    metric = METRICS["page"]
    commit(engine, build_upload(), today=day(0))
    first = export_counts(engine, tmp_path, metric, first=day(0), last=day(1))
    assert export_counts(engine, tmp_path, metric, first=day(0), last=day(1)) == first
    for start, end in ((0, 0), (1, 2), (-1, 5)):
        with pytest.raises(FileError, match="a day must be in one export"):
            export_counts(engine, tmp_path, metric, first=day(start), last=day(end))
    assert export_counts(engine, tmp_path, metric, first=day(2), last=day(3)) == []


def test_folders_of_other_programs_are_named(engine: Engine, tmp_path: Path) -> None:
    """A folder whose name has no days is an error that names the folder."""
    folder = tmp_path / "counts" / "metric=page" / "first=2026-11-01" / "last=latest"
    folder.mkdir(parents=True)
    with pytest.raises(FileError, match="last=latest: the folder must be named by days"):
        export_counts(engine, tmp_path, METRICS["page"], first=day(0), last=day(1))


def test_consecutive_exports_leave_no_block_out(engine: Engine, tmp_path: Path) -> None:
    """A block that crosses the border of two exports is in the export of its last day."""
    metric = METRICS["small"]
    for offset in range(6):
        # Each day of cohort 1 is a block. Two days of cohort 2 are one block of 1 + 3 reports.
        n_in_cohort_1, n_in_cohort_2 = (5, 3) if offset % 2 else (6, 1)
        cohorts = [1] * n_in_cohort_1 + [2] * n_in_cohort_2
        reports = [build_report("small", cohort=cohort) for cohort in cohorts]
        commit(engine, *map(build_upload, reports), today=day(offset))
    close_days(engine, metric, day(7))
    expected = read_release(engine, metric, day(0), day(5)).n_reports
    # Three pairs of days: 6 and 5 reports of cohort 1, and 1 + 3 reports of cohort 2.
    assert expected == 3 * (5 + 6 + 4)
    days = [(0, 0), (1, 2), (3, 4), (5, 5)]
    written = [export_counts(engine, tmp_path, metric, first=day(a), last=day(b)) for a, b in days]
    sums = [Counts.from_parquet(path).n_reports for paths in written for path in paths]
    assert sums == [6, 5 + 4 + 6, 5 + 4 + 6, 5 + 4]
    assert sum(sums) == expected
