"""Whether uploads reach the disk, and what the log says when that changes."""

from __future__ import annotations

from typing import Any

import pytest
from collectors import TODAY
from rappor_server.errors import StoreError
from rappor_server.health import Health, write_probe
from rappor_server.storage import schema
from rappor_server.storage.store import Store
from sqlalchemy import func, select


def test_failing_and_recovery_are_told_once_each() -> None:
    """However many commits fail in between, and readiness follows the last one."""
    now, told = [0.0], list[tuple[str, dict[str, Any]]]()
    health = Health(clock=lambda: now[0], write=lambda name, **fields: told.append((name, fields)))
    assert health.trouble() is None
    for reason in ("disk", "disk", "lock"):
        health.failed(reason)
    now[0] = 90.0
    health.answered()  # a query is answered, but nothing is on the disk
    assert health.trouble() == "lock"
    health.worked()
    health.worked()
    assert health.trouble() is None
    assert [name for name, _ in told] == ["database failing", "database recovered"]
    assert told[0][1]["reason"] == "disk"
    assert told[1][1]["seconds"] == 90


def test_a_database_that_says_nothing_is_not_ready() -> None:
    """Neither a failure nor an answer for half a minute is trouble."""
    now = [0.0]
    health = Health(clock=lambda: now[0])
    now[0] = 31.0
    assert health.trouble() == "the database does not answer"
    health.answered()
    assert health.trouble() is None


def test_a_probe_writes_and_leaves_nothing(store: Store) -> None:
    """After a probe the tables are as they were."""
    count = select(func.count()).select_from(schema.shard)
    write_probe(store.engine, TODAY)
    with store.engine.connect() as db:
        assert db.execute(count).scalar_one() == 0


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_probe_fails_where_uploads_would(store: Store) -> None:
    """While another one holds the lock for writing, a probe is a StoreError."""
    with store.engine.connect() as other:
        other.exec_driver_sql("ROLLBACK")
        other.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(StoreError):
            write_probe(store.engine, TODAY)
        other.exec_driver_sql("ROLLBACK")
        other.exec_driver_sql("BEGIN")
