"""Frozen ranges: released counts under a name, so that a published figure can be reproduced."""

from __future__ import annotations

import datetime
import re
import secrets
from dataclasses import dataclass
from typing import Final

from sqlalchemy import delete as delete_rows
from sqlalchemy import func, select

from rappor_server.analysis.release_json import read_release, write_release
from rappor_server.analysis.releases import Release
from rappor_server.errors import LimitError
from rappor_server.storage import schema
from rappor_server.storage.database import failing_as_store_error, wait_alone, writing
from rappor_server.storage.store import Store

MAX_FREEZES: Final = 100
"""Frozen ranges of one metric; each is as large as an answer."""
_NAME: Final = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Frozen:
    """A frozen range without its counts."""

    id: str
    first: datetime.date
    last: datetime.date
    created: datetime.date


def freeze(store: Store, release: Release, *, today: datetime.date) -> str:
    """Keep a release and return the name that it is kept under; LimitError if there are many."""
    name = secrets.token_hex(8)
    row = {
        "id": name,
        "metric": release.metric,
        "first": release.first,
        "last": release.last,
        "created": today,
        "contents": write_release(release),
    }
    there = select(func.count()).where(schema.freeze.c.metric == release.metric)
    with writing(store.engine) as db:
        wait_alone(db)
        if db.execute(there).scalar_one() >= MAX_FREEZES:
            raise LimitError(
                f"a metric must have at most {MAX_FREEZES} frozen ranges, got one more: delete one"
            )
        db.execute(schema.freeze.insert(), row)
    return name


def list_all(store: Store, metric: str) -> list[Frozen]:
    """Return the frozen ranges of a metric, the oldest first."""
    columns = schema.freeze.c
    query = (
        select(columns.id, columns.first, columns.last, columns.created)
        .where(columns.metric == metric)
        .order_by(columns.created, columns.id)
    )
    with failing_as_store_error(), store.engine.connect() as db:
        return [Frozen(*row) for row in db.execute(query)]


def delete(store: Store, metric: str, name: str) -> bool:
    """Delete a frozen range of a metric; False if it has none of this name."""
    if not _NAME.fullmatch(name):
        return False
    columns = schema.freeze.c
    gone = delete_rows(schema.freeze).where(columns.id == name, columns.metric == metric)
    with writing(store.engine) as db:
        return bool(db.execute(gone).rowcount)


def frozen(store: Store, metric: str, name: str) -> Release | None:
    """Return a frozen range of a metric, None if the metric has none of this name."""
    if not _NAME.fullmatch(name):
        return None
    columns = schema.freeze.c
    query = select(columns.contents).where(columns.id == name, columns.metric == metric)
    with failing_as_store_error(), store.engine.connect() as db:
        contents = db.execute(query).scalar_one_or_none()
    return None if contents is None else read_release(bytes(contents))
