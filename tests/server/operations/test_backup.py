"""Backup and restore: the refusal to restore into a database that has rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from rappor_server.base.errors import StoreError
from rappor_server.operations.backup import backup, restore
from sqlalchemy import Engine


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_refused_restore_says_how_to_go_on(engine: Engine, tmp_path: Path) -> None:
    """The refusal names every file to move away, and the option for another database.

    The collector has two SQLite files: counts and inbox. An operator who moved only the first file
    away would merge the old inbox into the restored counts. A second attempt would fail in the same
    way, so the error is not retryable.
    """
    address = engine.url.render_as_string()
    backup(address, tmp_path / "counts.bak")
    with pytest.raises(StoreError, match="name another database with --database, or move") as error:
        restore(tmp_path / "counts.bak", address)
    file = engine.url.database
    assert str(error.value).endswith(f"or move {file} and {file}-inbox away")
    assert not error.value.retryable
