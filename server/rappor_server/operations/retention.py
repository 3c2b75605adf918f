"""Retention: deletion of expired deduplication keys and sums, and checks of the clock before it.

| data                                       | deleted                                           |
|--------------------------------------------|---------------------------------------------------|
| deduplication keys: one for each upload,   | 14 days after the day of the upload or its latest |
| by which a retry is recognised             | retry                                             |
| sums of reports: counters, blocks, windows | after the number of days that `retention` of the  |
|                                            | metric gives; never without `retention`           |

A counter is the sum of the reports of one day and cohort, a block the sum of several days, and a
window a group of blocks that analysts may read (`storage/blocks.py`). A deduplication key
(`ingest/retry_keys.py`) has nothing to do with the secrets of `ingest/upload_keys.py`.
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
"""Largest gap in days between two consecutive days of this list: the last two days on which a
collector ran, and today. A larger value lets a clock be wrong by more days before `prune` refuses
to delete."""


def prune(engine: Engine, *, today: datetime.date) -> int:
    """Delete the deduplication keys that are older than 14 days, and return their number."""
    # A device gives up an upload after 7 days, so no retry comes after its key was deleted.
    oldest_kept = today - datetime.timedelta(days=KEY_DAYS)
    # UPLOAD: keys of uploads of which all reports were accepted. PART: keys of single reports, from
    # uploads of which some reports were refused. Each kind has one table for each day.
    n_keys = sum(drop_days(engine, kind, before=oldest_kept) for kind in (UPLOAD, PART))
    # SQLite's log still contains pages with the deleted keys. PostgreSQL deletes the file of a
    # dropped table.
    if engine.dialect.name == "sqlite":
        erase_traces(Path(str(engine.url.database)))
    return n_keys


def count_overdue_days(engine: Engine, today: datetime.date) -> int:
    """Return how many days too long the oldest deduplication keys have been stored.

    The number is 0 while `prune` runs every day. Without `prune`, it grows by 1 each day.
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
        days = metric.retention_days
        # Bad case: a retention such as "9999 years" begins before the year 1, which no date has.
        # Such a metric keeps all its sums.
        if days is not None and days < today.toordinal():
            before = today - datetime.timedelta(days=days)
            deleted[metric.name] = forget_metric(engine, metric.name, before=before)
    return {name: numbers for name, numbers in deleted.items() if any(numbers)}


def forget_metric(engine: Engine, name: str, *, before: datetime.date | None = None) -> Forgotten:
    """Delete the sums of a metric before a day, or all of them, and return the numbers.

    Parameters
    ----------
    before : first day that stays; None to delete the sums of all days
    """
    # Accepted uploads wait in the inbox until a merge adds their reports to the counters. Reports
    # that are still in the inbox would be added after the deletion, and stay.
    merge_all(engine)
    deleted = forget(engine, name, before=before)
    # SQLite's log still contains pages with the deleted sums.
    if engine.dialect.name == "sqlite":
        erase_traces(Path(str(engine.url.database)))
    return deleted


def check_clock(engine: Engine, today: datetime.date) -> None:
    """Raise StoreError if the clock of this machine may be wrong.

    A clock that is ahead would delete keys too early. The database contains heartbeats: the last
    two days on which a collector ran, by the clock of the collector. Example of a clock that jumps
    from 10 November to 1 December:

        day of the clock    heartbeats            found by
        10 November         9 and 10 November     no fault yet
        1 December          10 November,          the gap between the two heartbeats, or between
                            1 December            a heartbeat and today
        2 December          1 and 2 December      the gap between the days of uploads, 10 November
                                                  and 1 December (`check_uploads`)
    """
    with translate_errors(), engine.connect() as db:
        heartbeats = sorted(db.execute(select(schema.heartbeat.c.day)).scalars())
    days = sorted([*heartbeats, today])
    if any((later - day).days > _CLOCK_DAYS for day, later in pairwise(days)):
        raise StoreError(
            f"today and the last days on which a collector ran must be at most {_CLOCK_DAYS} days "
            f"apart, got {' and '.join(map(str, heartbeats))}, and {today} for today: if the clock "
            "is right, run prune --yes",
            retryable=False,
        )
    check_uploads(engine, today)


def check_uploads(engine: Engine, today: datetime.date) -> None:
    """Raise StoreError if the days of uploads up to today have a gap of more than 14 days.

    The days are those of the stored deduplication keys. If the clock is right and `prune` runs
    every day, the days before such a gap are deleted before the first upload after the gap.
    """
    with translate_errors(), engine.connect() as db:
        days = list_days(db, UPLOAD, PART)
    # Uploads have a day after today if the clock was ahead and was corrected since. They do not
    # show whether the clock is right at present.
    groups = split_at_gaps(day for day in days if day <= today)
    if len(groups) > 1:
        raise StoreError(
            f"two consecutive days with uploads must be at most {KEY_DAYS} days apart, got "
            f"{groups[0][-1]} and {groups[1][0]}: if the clock is right, run prune --yes",
            retryable=False,
        )
