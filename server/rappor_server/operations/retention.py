"""What is deleted when its time is over."""

from __future__ import annotations

import datetime
from itertools import pairwise
from pathlib import Path
from typing import Final

from sqlalchemy import Engine, select

from rappor_server.base.errors import StoreError
from rappor_server.storage import schema
from rappor_server.storage.database import erase_traces, translate_errors
from rappor_server.storage.day_tables import (
    KEY_DAYS,
    PART,
    UPLOAD,
    forget,
    list_days,
    runs,
)

_CLOCK_DAYS: Final = 2


def prune(engine: Engine, *, today: datetime.date) -> int:
    """Delete the keys of uploads after 14 days, and return their number."""
    last = today - datetime.timedelta(days=KEY_DAYS)
    keys = sum(forget(engine, kind, before=last) for kind in (UPLOAD, PART))
    if engine.dialect.name == "sqlite":
        erase_traces(Path(str(engine.url.database)))
    return keys


def check_clock(engine: Engine, today: datetime.date) -> None:
    """Raise StoreError unless collectors ran near the day, and the time before near that.

    A collector whose clock jumped has left a day near a wrong one, but none near both. After a
    midnight it has left two days near a wrong one, and a gap in the days of uploads.
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
    """Raise StoreError where uploads up to today came on days too far from those before.

    `prune` leaves no such gap, so that it can say whether the clock was right.
    """
    with translate_errors(), engine.connect() as db:
        days = list_days(db, UPLOAD, PART)
    before, *later = runs(day for day in days if day <= today) or [[today]]
    if later:
        raise StoreError(
            f"uploads must come within {KEY_DAYS} days of those before, got {later[0][0]} after "
            f"{before[-1]}: if the clock is right, run prune --yes",
            retryable=False,
        )
