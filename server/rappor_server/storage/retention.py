"""What is deleted when its time is over."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import Engine, func, select

from rappor_server.errors import StoreError
from rappor_server.storage import schema
from rappor_server.storage.database import erase_traces, failing_as_store_error
from rappor_server.storage.day_tables import KEPT, PART, UPLOAD, forget, shuffle_days

KEY_DAYS: Final = 14
"""How long the keys of uploads are kept; a device gives up an upload after 7 days."""
_CLOCK_DAYS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """How many rows were removed: keys of uploads, and raw reports."""

    keys: int
    reports: int


def prune(engine: Engine, *, today: datetime.date, report_days: int) -> Pruned:
    """Delete keys after 14 days and raw reports after `report_days`."""
    last = today - datetime.timedelta(days=KEY_DAYS)
    keys = sum(forget(engine, kind, before=last) for kind in (UPLOAD, PART))
    reports = forget(engine, KEPT, before=today - datetime.timedelta(days=report_days))
    shuffle_days(engine, before=today)
    if engine.dialect.name == "sqlite":
        erase_traces(Path(str(engine.url.database)))
    return Pruned(keys=keys, reports=reports)


def check_clock(engine: Engine, today: datetime.date) -> None:
    """Raise StoreError if the day is not near the last one on which a collector ran."""
    with failing_as_store_error(), engine.connect() as db:
        last = db.scalar(select(schema.heartbeat.c.day))
    if last is not None and abs((today - last).days) > _CLOCK_DAYS:
        raise StoreError(
            f"today must be near {last}, the last day of a collector, got {today}: if this "
            "machine's clock is right, give --yes",
            retryable=False,
        )


def n_failed(engine: Engine) -> int:
    """Return how many groups of uploads are set apart because nobody can read them."""
    with failing_as_store_error(), engine.connect() as db:
        return int(db.scalar(select(func.count()).select_from(schema.inbox_failed)) or 0)
