"""Frozen ranges: released counts under a name, so that a published figure can be reproduced."""

from __future__ import annotations

import datetime
import secrets

from sqlalchemy import select

from rappor_server.analysis.release_json import read_release, write_release
from rappor_server.analysis.releases import Release
from rappor_server.storage import schema
from rappor_server.storage.database import failing_as_store_error, writing
from rappor_server.storage.store import Store


def freeze(store: Store, release: Release, *, today: datetime.date) -> str:
    """Keep a release and return the name that it is kept under."""
    name = secrets.token_hex(8)
    row = {
        "id": name,
        "metric": release.metric,
        "first": release.first,
        "last": release.last,
        "created": today,
        "contents": write_release(release),
    }
    with writing(store.engine) as db:
        db.execute(schema.freeze.insert(), row)
    return name


def frozen(store: Store, metric: str, name: str) -> Release | None:
    """Return a frozen range of a metric, None if the metric has none of this name."""
    columns = schema.freeze.c
    query = select(columns.contents).where(columns.id == name, columns.metric == metric)
    with failing_as_store_error(), store.engine.connect() as db:
        contents = db.execute(query).scalar_one_or_none()
    return None if contents is None else read_release(bytes(contents))
