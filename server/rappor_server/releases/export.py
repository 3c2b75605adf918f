"""Export of released counts to a data lake, as Parquet files.

Programs such as DuckDB and Spark read all files below a folder as one table. The folders are
partitions: the name column=value of a folder adds a column to the rows of its files.

    folder and file        counts/metric=M/first=DAY/last=DAY/FINGERPRINT.parquet
    columns of the file    params     fingerprint of the parameter set, which names the file too
                           cohort     from 0
                           reports    number of reports of the cohort
                           ones       number of reports with a 1, for each bit

An export contains the counts that analysts may read, and nothing more. Analysts read sums of
release windows only (`storage/release_windows.py`). A release window is a sum of many reports, of
one or more days, and is dated by the last of these days. An export contains the windows that are
dated inside its range of days. So exports of consecutive ranges contain each window once. Ranges of
two exports must not overlap, because a sum over the folder would count windows twice.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Final

from sqlalchemy import Engine

from rappor.base.errors import FileError, RapporError
from rappor.counts.counts_tables import write_parquet
from rappor.registry.metric import Metric
from rappor_server.releases.releases import read_release
from rappor_server.storage.blocks import count_due_days
from rappor_server.storage.merge import merge_all

_DAY: Final = datetime.timedelta(days=1)


def export_counts(
    engine: Engine, folder: Path, metric: Metric, *, first: datetime.date, last: datetime.date
) -> list[Path]:
    """Write the released counts of a range of days, one file for each parameter set.

    The inbox is merged first, so that no report of these days is forgotten there. An export of the
    same days replaces the files, and deletes the file of a parameter set whose windows were deleted
    since. Returns the paths of the files.

    Raises
    ------
    FileError
        The folder has an export of another range, and the two ranges overlap.
    RapporError
        Some windows of these days may still be formed: the last day has not ended, or
        `rappor-server prune` has not run since. A window that is formed later would be in no
        export, because the next export begins after its date.
    MissingExtraError
        The extra `arrow` is not installed.
    StoreError
        The database does not answer.
    """
    base = folder / "counts" / f"metric={metric.name}"
    _check_overlap(base, first, last)
    # Bad case: shortly after midnight, the only report of the last day was still in the inbox. The
    # check below found no counter. The window of the day was formed later, and was in no export.
    merge_all(engine)
    # In the night after a day its reports are moved from counters into blocks, and windows are
    # formed of blocks. `count_due_days` finds counters of days before `today` that were not moved
    # yet. A metric without a minimum has no windows.
    if metric.min_reports and count_due_days(engine, [metric.name], today=last + _DAY):
        raise RapporError(
            f"reports of {metric.name} up to {last} are not in blocks yet: when {last} has ended "
            "(UTC), run rappor-server prune"
        )
    written = []
    folder_of_days = base / f"first={first}" / f"last={last}"
    for counts in read_release(engine, metric, first, last).collections:
        path = folder_of_days / f"{counts.params.fingerprint}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        table = counts.to_arrow()
        names = [counts.params.fingerprint] * len(table)
        write_parquet(path, table.add_column(0, "params", [names]))
        written.append(path)
    for path in set(folder_of_days.glob("*.parquet")) - set(written):
        path.unlink()
    return written


def _check_overlap(base: Path, first: datetime.date, last: datetime.date) -> None:
    """Raise FileError if a folder has an export of a different range that overlaps with this one.

    The error also names a folder of another program, whose days are unknown.

    Parameters
    ----------
    base : folder of the metric's exports
    first, last : first and last day of the new export
    """
    for path in base.glob("first=*/last=*"):
        names = path.parts[-2:]  # such as ("first=2026-11-01", "last=2026-11-07")
        try:
            other_first, other_last = (
                datetime.date.fromisoformat(name.partition("=")[2]) for name in names
            )
        except ValueError:
            reason = "the folder must be named by days such as last=2026-11-07: move it away"
            raise FileError(path, reason) from None
        is_same = (other_first, other_last) == (first, last)
        if not is_same and other_first <= last and first <= other_last:
            raise FileError(
                path, f"the export overlaps with {first} to {last}: a day must be in one export"
            )
