"""Raw reports of metrics that keep them, as Parquet files for any data lake."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from rappor.protocol.params import Params
from rappor_server.storage import schema
from rappor_server.storage.database import failing_as_store_error
from rappor_server.storage.day_tables import KEPT, days_of, table_of
from rappor_server.storage.store import Store

_BATCH: Final = 1 << 16


def export(
    store: Store, folder: Path, *, metric: str, first: datetime.date, last: datetime.date
) -> list[Path]:
    """Write one file for each day and parameter set, whole or not at all, and return the paths.

    The order of the rows is random. Raises MissingExtraError without the extra 'arrow', and
    StoreError if the database does not answer.
    """
    from rappor.engines.parquet import write_parquet  # noqa: PLC0415 - pyarrow is an extra

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for day, params in _parts(store, metric, first, last):
        path = folder / f"{metric}-{day}-{params.fingerprint}.parquet"
        batches = _batches(store, metric, day, params)
        write_parquet(path, batches, params=params, metric=metric, day=day)
        written.append(path)
    return written


def _parts(
    store: Store, metric: str, first: datetime.date, last: datetime.date
) -> list[tuple[datetime.date, Params]]:
    with failing_as_store_error(), store.engine.connect() as db:
        days = [day for day in reversed(days_of(db, KEPT)) if first <= day <= last]
        return [(day, params) for day in days for params in _sets(db, metric, day)]


def _sets(db: Connection, metric: str, day: datetime.date) -> list[Params]:
    """Return the parameter sets under which reports of a day were kept."""
    kept = table_of(KEPT, day)
    used = select(kept.c.params).where(kept.c.metric == metric)
    columns = schema.params.c
    query = select(columns.document).where(columns.fingerprint.in_(used)).order_by(columns.document)
    return [Params.from_json(document) for document in db.execute(query).scalars()]


def _batches(
    store: Store, metric: str, day: datetime.date, params: Params
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.integer[Any]]]]:
    """Yield packed reports, (n, n_bytes) uint8, and cohorts, (n,) int32, in random order."""
    kept = table_of(KEPT, day)
    query = (
        select(kept.c.cohort, kept.c.bits)
        .where(kept.c.metric == metric, kept.c.params == params.fingerprint)
        .order_by(kept.c.key)
    )
    with failing_as_store_error(), store.engine.connect() as db:
        result = db.execution_options(yield_per=_BATCH).execute(query)
        for rows in result.partitions():
            packed = np.frombuffer(b"".join(bytes(row.bits) for row in rows), dtype=np.uint8)
            cohorts = np.array([row.cohort for row in rows], dtype=np.int32)
            yield packed.reshape(len(rows), params.n_bytes), cohorts
