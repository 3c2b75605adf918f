"""Schema, migrations, backups."""

from __future__ import annotations

import datetime
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from collectors import (
    REGISTRY,
    TODAY,
    commit,
    report_of,
    run_command,
    submission_of,
    total,
    upload_of,
)
from rappor_server.analysis import releases
from rappor_server.errors import ConfigError, SchemaError, StoreError
from rappor_server.storage import database as databases
from rappor_server.storage import schema, tokens
from rappor_server.storage.backup import backup, restore
from rappor_server.storage.database import check_schema, is_empty, migrate, open_engine, parse_url
from rappor_server.storage.store import Store
from sqlalchemy import inspect, text


def test_migrations_end_at_the_schema(database: str) -> None:
    """Tables, columns and keys are those that the code knows; nothing is left to generate."""
    migrate(database)
    engine = open_engine(database)
    check_schema(engine)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, schema.metadata) == []
    engine.dispose()


def test_every_column_has_a_comment(database: str) -> None:
    """In the code, and on PostgreSQL in the database itself."""
    migrate(database)
    engine = open_engine(database)
    for table in schema.metadata.tables.values():
        assert table.comment
        assert all(column.comment for column in table.columns), table.name
        if engine.dialect.name == "postgresql":
            found = {c["name"]: c["comment"] for c in inspect(engine).get_columns(table.name)}
            assert found == {column.name: column.comment for column in table.columns}
            assert inspect(engine).get_table_comment(table.name)["text"] == table.comment
    engine.dispose()


def upgrade_to(database: str, revision: str) -> None:
    """Bring an empty database to an older schema."""
    engine = open_engine(database)
    config = databases._config()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    engine.dispose()


def test_older_schema_is_upgraded_after_a_backup(database: str) -> None:
    """SQLite's file is copied first; what was in it stays."""
    upgrade_to(database, "0001")
    engine = open_engine(database)
    with pytest.raises(SchemaError, match="run rappor-server migrate"):
        check_schema(engine)
    with pytest.raises(SchemaError):
        Store.open(database)
    with engine.begin() as connection:
        connection.execute(schema.shard.insert().values(day=TODAY))
    engine.dispose()
    copy = migrate(database)
    store = Store.open(database)
    with store.engine.connect() as connection:
        assert connection.execute(text("SELECT COUNT(*) FROM shard")).scalar_one() == 1
    store.close()
    if database.startswith("sqlite"):
        assert copy is not None
        with sqlite3.connect(copy) as old:
            assert old.execute("SELECT version_num FROM alembic_version").fetchall() == [("0001",)]
        old.close()
    else:
        assert copy is None
    assert migrate(database) is None  # nothing left to do


def test_several_may_migrate_at_once(database: str, tmp_path: Path) -> None:
    """Collectors that start together on a new database: one does it, the others see it done."""
    registry = tmp_path / "metrics.toml"
    registry.write_text(REGISTRY)
    flags = ("--registry", str(registry), "--database", database)
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(run_command, "migrate", *flags) for _ in range(4)]:
            assert done.result().returncode == 0, done.result().stderr
    Store.open(database).close()


def test_newer_schema_is_refused(database: str) -> None:
    """Clearly, and untouched."""
    migrate(database)
    engine = open_engine(database)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(SchemaError, match="belongs to a newer version"):
        check_schema(engine)
    engine.dispose()
    with pytest.raises(SchemaError, match="belongs to a newer version"):
        migrate(database)


def test_backup_and_restore_keep_everything(database: str, tmp_path: Path) -> None:
    """Counts, ids, tokens; the restored database goes on counting and knows old uploads."""
    migrate(database)
    store = Store.open(database)
    body = upload_of(report_of(), report_of("sound", bits=1))
    commit(store, body, upload_of())
    token = tokens.create(store, metrics=["page"], expires=None, today=TODAY)
    copy = tmp_path / "copy.sqlite3"
    backup(database, copy)
    with pytest.raises(StoreError, match="must be free"):
        backup(database, copy)
    commit(store, upload_of())
    with pytest.raises(StoreError, match="into an empty database"):
        restore(copy, database)
    with store.engine.begin() as connection:
        schema.metadata.drop_all(connection)
        connection.execute(text("DROP TABLE alembic_version"))
    store.close()
    restore(copy, database)
    restored = Store.open(database)
    assert total(restored) == 2
    assert commit(restored, body) == [submission_of(body).answer]
    commit(restored, upload_of())
    assert total(restored) == 3
    assert total(restored, "sound") == 1
    assert tokens.verify(restored, token, today=TODAY) is not None
    restored.close()


def test_restore_needs_a_backup(tmp_path: Path) -> None:
    """A file that is not there is named."""
    with pytest.raises(StoreError, match="got no file"):
        restore(tmp_path / "absent", f"sqlite:///{tmp_path / 'new.sqlite3'}")


@pytest.mark.parametrize("url", ["mysql://a/b", "sqlite://", "nonsense", ""])
def test_addresses_of_databases_are_checked(url: str) -> None:
    """Only the two kinds, with the two forms told."""
    with pytest.raises(ConfigError, match="database must be sqlite:///FILE or postgresql://"):
        parse_url(url)


def test_database_that_is_not_there_is_a_store_error() -> None:
    """Without the driver's message."""
    engine = open_engine("postgresql://127.0.0.1:1/nothing?connect_timeout=1")
    with pytest.raises(StoreError, match="the database cannot answer: OperationalError"):
        is_empty(engine)
    engine.dispose()


def test_nothing_finer_than_a_day_is_stored(store: Store) -> None:
    """No column holds a time, and all rows together hold no more than days, sums and ids."""
    commit(store, upload_of(report_of(), report_of("sound")))
    releases.refusals(store)
    for table in schema.metadata.tables.values():
        for column in table.columns:
            assert "TIME" not in str(column.type).upper()
    with store.engine.connect() as connection:
        day = connection.execute(schema.upload.select()).mappings().one()["day"]
    assert type(day) is datetime.date
