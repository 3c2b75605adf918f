"""Export of released counts to a data lake, as Parquet files.

The files are in partitions, folders named column=value, which engines read as columns:

    counts/metric=M/first=DAY/last=DAY/FINGERPRINT.parquet    params, cohort, reports, ones

An export contains the counts that analysts may read, and nothing more: sums of blocks that end on
the days of the export. Days of two exports must not overlap, because a sum over the folder would
count them twice. Exports of consecutive days leave out no block.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Final

from sqlalchemy import Engine

from rappor.base.errors import FileError, RapporError
from rappor.counts.tables import write_parquet as write_table
from rappor.registry.metric import Metric
from rappor_server.releases.releases import release
from rappor_server.storage.blocks import list_due_metrics

_DAY: Final = datetime.timedelta(days=1)


def export_counts(
    engine: Engine, folder: Path, metric: Metric, *, first: datetime.date, last: datetime.date
) -> list[Path]:
    """Write the counts that are released of some days, a file for each parameter set.

    The same days may be written again. Raises FileError if the folder has counts of other days
    that overlap with these, RapporError if blocks of these days are still to be closed,
    MissingExtraError without the extra 'arrow', and StoreError if the database does not answer.
    """
    base = folder / "counts" / f"metric={metric.name}"
    _check_apart(base, first, last)
    if metric.min_reports and list_due_metrics(engine, [metric.name], today=last + _DAY):
        raise RapporError(
            f"blocks of {metric.name} up to {last} are not closed yet: when the day has ended, "
            "rappor-server prune closes them"
        )
    written = []
    for counts in release(engine, metric, first, last, ending=True).collections:
        path = base / f"first={first}" / f"last={last}" / f"{counts.params.fingerprint}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        table = counts.to_arrow()
        names = [counts.params.fingerprint] * len(table)
        write_table(path, table.add_column(0, "params", [names]))
        written.append(path)
    return written


def _check_apart(base: Path, first: datetime.date, last: datetime.date) -> None:
    for path in base.glob("first=*/last=*"):
        other = [datetime.date.fromisoformat(name.partition("=")[2]) for name in path.parts[-2:]]
        if other != [first, last] and other[0] <= last and first <= other[1]:
            raise FileError(path, f"it overlaps with {first} to {last}: a day must be there once")
