"""Export of released counts to a data lake, as Parquet files.

The files are in partitions: folders named column=value, which engines read as columns.

    counts/metric=M/first=DAY/last=DAY/FINGERPRINT.parquet    params, cohort, reports, ones

An export contains the counts that analysts may read, and nothing more: sums of the release windows
that are dated on the days of the export. Days of two exports must not overlap, because a sum over
the folder would count them twice. Exports of consecutive days leave out no window.
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

_DAY: Final = datetime.timedelta(days=1)


def export_counts(
    engine: Engine, folder: Path, metric: Metric, *, first: datetime.date, last: datetime.date
) -> list[Path]:
    """Write the released counts of some days, and return the path of each parameter set's file.

    An export of the same days replaces the files.

    Raises
    ------
    FileError
        The folder has an export of other days that overlap with these.
    RapporError
        Blocks of these days are not closed yet. Their windows would be in no export, because the
        next export begins after their dates.
    MissingExtraError
        The extra `arrow` is not installed.
    StoreError
        The database does not answer.
    """
    base = folder / "counts" / f"metric={metric.name}"
    _check_overlap(base, first, last)
    if metric.min_reports and count_due_days(engine, [metric.name], today=last + _DAY):
        raise RapporError(
            f"blocks of {metric.name} up to {last} are not closed yet: when the day has ended, "
            "rappor-server prune closes them"
        )
    written = []
    for counts in read_release(engine, metric, first, last).collections:
        path = base / f"first={first}" / f"last={last}" / f"{counts.params.fingerprint}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        table = counts.to_arrow()
        names = [counts.params.fingerprint] * len(table)
        write_parquet(path, table.add_column(0, "params", [names]))
        written.append(path)
    return written


def _check_overlap(base: Path, first: datetime.date, last: datetime.date) -> None:
    """Raise FileError if a folder has an export of other days that overlap with these."""
    for path in base.glob("first=*/last=*"):
        exported = [datetime.date.fromisoformat(part.partition("=")[2]) for part in path.parts[-2:]]
        is_same = exported == [first, last]
        if not is_same and exported[0] <= last and first <= exported[1]:
            raise FileError(path, f"it overlaps with {first} to {last}: a day must be there once")
