"""Retention: the deletion of expired keys and sums, and checks of the clock that decides it.

Keys of uploads are deleted 14 days after their day. Counters, blocks and windows are deleted if
their metric has a `retention`, after that many days.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Final

from sqlalchemy import Engine, select

from rappor.registry.metric import Metric
from rappor_server.base.errors import StoreError
from rappor_server.storage import schema
from rappor_server.storage.database import erase_traces, translate_errors
from rappor_server.storage.day_tables import (
    KEY_DAYS,
    PART,
    UPLOAD,
    drop_days,
    list_days,
    split_at_gaps,
)
from rappor_server.storage.forgetting import Forgotten, forget
from rappor_server.storage.merge import merge_all

_CLOCK_DAYS: Final = 2
"""Largest gap in days between the days on which collectors ran and today. A larger value lets a
clock be wrong by more days before `prune` refuses to delete."""


def prune(engine: Engine, *, today: datetime.date) -> int:
    """Delete the keys of uploads that are older than 14 days, and return their number."""
    # A device gives up an upload after 7 days, so no retry comes after its key was deleted.
    last = today - datetime.timedelta(days=KEY_DAYS)
    keys = sum(drop_days(engine, kind, before=last) for kind in (UPLOAD, PART))
    # SQLite's log still contains pages with the deleted keys. PostgreSQL deletes the file of a
    # dropped table.
    if engine.dialect.name == "sqlite":
        erase_traces(Path(str(engine.url.database)))
    return keys


def count_overdue_days(engine: Engine, today: datetime.date) -> int:
    """Return for how many days the oldest keys of uploads are due to be deleted by `prune`.

    The number is 0 while `prune` runs every day, and grows by 1 each day after its last run.
    """
    with translate_errors(), engine.connect() as db:
        days = list_days(db, UPLOAD, PART)
    oldest = min(days, default=today)
    return max((today - oldest).days - KEY_DAYS, 0)


def forget_expired(
    engine: Engine, metrics: Iterable[Metric], *, today: datetime.date
) -> dict[str, Forgotten]:
    """Delete the sums that are older than the `retention` of their metric.

    Returns the numbers of deleted rows by the name of the metric. Metrics without deleted rows are
    left out.
    """
    deleted = {}
    for metric in metrics:
        if metric.retention_days is not None:
            before = today - datetime.timedelta(days=metric.retention_days)
            deleted[metric.name] = forget_metric(engine, metric.name, before=before)
    return {name: numbers for name, numbers in deleted.items() if any(numbers)}


def forget_metric(engine: Engine, name: str, *, before: datetime.date | None = None) -> Forgotten:
    """Delete the sums of a metric before a day, or all of them, and return the numbers.

    The inbox is merged first. Otherwise its reports would be counted after the deletion.
    """
    merge_all(engine)
    deleted = forget(engine, name, before=before)
    # SQLite's log still contains pages with the deleted sums.
    if engine.dialect.name == "sqlite":
        erase_traces(Path(str(engine.url.database)))
    return deleted


def check_clock(engine: Engine, today: datetime.date) -> None:
    """Raise StoreError if the clock of this machine may be wrong.

    A wrong clock would delete keys too early. The two last days on which a collector ran and today
    must be close to each other. A collector whose clock jumped has written a heartbeat far from the
    previous one. After another midnight under the wrong clock, both heartbeats are wrong; the days
    of uploads then have a gap, which `check_uploads` finds.
    """
    with translate_errors(), engine.connect() as db:
        ran = sorted(db.execute(select(schema.heartbeat.c.day)).scalars())
    if any((later - day).days > _CLOCK_DAYS for day, later in pairwise(sorted([*ran, today]))):
        raise StoreError(
            f"today must be within {_CLOCK_DAYS} days of the last days on which a collector ran, "
            f"{' and '.join(map(str, ran))}, got {today}: if the clock is right, give --yes",
            retryable=False,
        )
    check_uploads(engine, today)


def check_uploads(engine: Engine, today: datetime.date) -> None:
    """Raise StoreError if the days of uploads up to today have a gap of more than 14 days.

    Under a correct clock, `prune` deletes the older days before such a gap can arise.
    """
    with translate_errors(), engine.connect() as db:
        days = list_days(db, UPLOAD, PART)
    # Days after today are of a clock that was ahead before. They say nothing about the clock now.
    before, *later = split_at_gaps(day for day in days if day <= today) or [[today]]
    if later:
        raise StoreError(
            f"uploads must come within {KEY_DAYS} days of those before, got {later[0][0]} after "
            f"{before[-1]}: if the clock is right, run prune --yes",
            retryable=False,
        )
