"""Schema, migrations, backups."""

from __future__ import annotations

import datetime
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
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
from rappor_server.analysis.warning_signs import n_quarantined
from rappor_server.errors import ConfigError, SchemaError, StoreError
from rappor_server.storage import schema, tokens
from rappor_server.storage.backup import backup, restore
from rappor_server.storage.database import check_schema, is_empty, migrate, open_engine, parse_url
from rappor_server.storage.store import Store
from sqlalchemy import inspect, select, text


def test_migrations_end_at_the_schema(database: str) -> None:
    """Tables, columns and keys are those of the schema; nothing is left to generate."""
    migrate(database)
    engine = open_engine(database)
    check_schema(engine)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, schema.metadata) == []
    engine.dispose()


def test_every_column_has_a_comment(database: str) -> None:
    """Tables and columns have comments, on PostgreSQL in the database itself."""
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
    config = Config()
    config.set_main_option("script_location", "rappor_server.storage:migrations")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    engine.dispose()


def test_older_schema_is_upgraded_after_a_backup(database: str) -> None:
    """An SQLite file is copied before it is upgraded, and its rows stay."""
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


def test_renamed_columns_keep_their_rows(database: str) -> None:
    """Reports in quarantine and the days of tokens are what they were under the old names."""
    upgrade_to(database, "0002")
    engine = open_engine(database)
    day = TODAY.isoformat()
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO tally (metric, params, day, apart, cohort, shard, reports, ones) "
                "VALUES ('page', 'f', :day, true, 0, 1, 7, :ones)"
            ),
            {"day": day, "ones": b""},
        )
        connection.execute(
            text("INSERT INTO token (id, digest, metrics, made) VALUES ('t', :none, 'null', :day)"),
            {"day": day, "none": b""},
        )
    engine.dispose()
    migrate(database)
    store = Store.open(database)
    assert n_quarantined(store, "page") == 7
    with store.engine.connect() as connection:
        assert connection.execute(select(schema.token.c.created)).scalar_one() == TODAY
    store.close()


def test_several_may_migrate_at_once(database: str, tmp_path: Path) -> None:
    """Of collectors that start together on a new database one migrates it, the others wait."""
    registry = tmp_path / "metrics.toml"
    registry.write_text(REGISTRY)
    flags = ("--registry", str(registry), "--database", database)
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(run_command, "migrate", *flags) for _ in range(4)]:
            assert done.result().returncode == 0, done.result().stderr
    Store.open(database).close()


def test_newer_schema_is_refused(database: str) -> None:
    """A database of a newer version is refused, and stays as it is."""
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
    """A restored database has the counts, ids and tokens of the backup, and goes on counting."""
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
    """A backup that does not exist is named in the error."""
    with pytest.raises(StoreError, match="got no file"):
        restore(tmp_path / "absent", f"sqlite:///{tmp_path / 'new.sqlite3'}")


@pytest.mark.parametrize("url", ["mysql://a/b", "sqlite://", "nonsense", ""])
def test_addresses_of_databases_are_checked(url: str) -> None:
    """Other addresses than the two forms are refused, and both forms are named."""
    with pytest.raises(ConfigError, match="database must be sqlite:///FILE or postgresql://"):
        parse_url(url)


def test_database_that_is_not_there_is_a_store_error() -> None:
    """The error does not repeat the driver's message."""
    engine = open_engine("postgresql://127.0.0.1:1/nothing?connect_timeout=1")
    with pytest.raises(StoreError, match="the database cannot answer: OperationalError"):
        is_empty(engine)
    engine.dispose()


def test_nothing_finer_than_a_day_is_stored(store: Store) -> None:
    """No column holds a time, and a row of uploads holds the day of receipt."""
    commit(store, upload_of(report_of(), report_of("sound")))
    for table in schema.metadata.tables.values():
        for column in table.columns:
            assert "TIME" not in str(column.type).upper()
    with store.engine.connect() as connection:
        day = connection.execute(schema.upload.select()).mappings().one()["day"]
    assert type(day) is datetime.date
