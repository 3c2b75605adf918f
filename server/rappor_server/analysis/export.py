"""What leaves a collector for a data lake, as Parquet: counts, and single reports on request.

Files lie in partitions, folders named column=value, which engines read as columns:

    counts/metric=M/first=DAY/last=DAY/FINGERPRINT.parquet    params, cohort, reports, ones
    reports/metric=M/day=DAY/FINGERPRINT.parquet              format, params, cohort, bits

Counts are what analysts may read, and nothing more: sums of blocks that end on these days. Days of
two exports must not overlap, because whoever adds a folder up would count them twice; where they
follow each other, no block is left out.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Engine, select

from rappor.counts.tables import write_parquet as write_table
from rappor.ground.errors import FileError, MetricError, RapporError
from rappor.protocol.params import Params
from rappor.registry.metric import Metric
from rappor_server.analysis.releases import release
from rappor_server.storage import schema
from rappor_server.storage.blocks import due
from rappor_server.storage.database import failing_as_store_error
from rappor_server.storage.day_tables import KEPT, days_of, table_of

_BATCH: Final = 1 << 16
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
    if metric.min_reports and due(engine, [metric.name], today=last + _DAY):
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


def export_reports(
    engine: Engine, folder: Path, metric: Metric, *, first: datetime.date, last: datetime.date
) -> list[Path]:
    """Write the single reports of a metric that keeps them, a file for each day and parameter set.

    The order of the rows is random. Raises MetricError for a metric that keeps none,
    MissingExtraError without the extra 'arrow', and StoreError if the database does not answer.
    """
    from rappor.engines.parquet import write_parquet  # noqa: PLC0415 - pyarrow is an extra

    if not metric.keep_reports:
        raise MetricError(f"metric {metric.name!r} keeps no single reports: its entry must say so")
    base = folder / "reports" / f"metric={metric.name}"
    written = []
    for day, params in _parts(engine, metric.name, first, last):
        path = base / f"day={day}" / f"{params.fingerprint}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_parquet(path, _batches(engine, metric.name, day, params), params=params)
        written.append(path)
    return written


def _parts(
    engine: Engine, metric: str, first: datetime.date, last: datetime.date
) -> list[tuple[datetime.date, Params]]:
    """Return the days on which reports were kept, each with the parameter sets of that day."""
    columns, found = schema.params.c, []
    query = select(columns.document).order_by(columns.document)
    with failing_as_store_error(), engine.connect() as db:
        for day in reversed(days_of(db, KEPT)):
            if first <= day <= last:
                kept = table_of(KEPT, day).c
                used = select(kept.params).where(kept.metric == metric)
                documents = db.execute(query.where(columns.fingerprint.in_(used))).scalars()
                found += [(day, Params.from_json(document)) for document in documents]
    return found


def _batches(
    engine: Engine, metric: str, day: datetime.date, params: Params
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.integer[Any]]]]:
    """Yield packed reports, (n, n_bytes) uint8, and cohorts, (n,) int32, in random order."""
    kept = table_of(KEPT, day)
    query = (
        select(kept.c.cohort, kept.c.bits)
        .where(kept.c.metric == metric, kept.c.params == params.fingerprint)
        .order_by(kept.c.key)
    )
    with failing_as_store_error(), engine.connect() as db:
        result = db.execution_options(yield_per=_BATCH).execute(query)
        for rows in result.partitions():
            packed = np.frombuffer(b"".join(bytes(row.bits) for row in rows), dtype=np.uint8)
            cohorts = np.array([row.cohort for row in rows], dtype=np.int32)
            yield packed.reshape(len(rows), params.n_bytes), cohorts
