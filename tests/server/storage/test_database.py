"""Schema, migrations, backups."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import hashlib
import json
import sqlite3
import stat
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from collectors import (
    BOOLEAN,
    PARAMS,
    REGISTRY,
    TODAY,
    commit,
    released,
    report_of,
    rows_of,
    run_command,
    submission_of,
    total,
    upload_of,
)
from rappor_server.analysis.warning_signs import n_quarantined
from rappor_server.errors import ConfigError, SchemaError, StoreError
from rappor_server.storage import day_tables, schema, tokens
from rappor_server.storage.backup import backup, restore
from rappor_server.storage.database import (
    check_schema,
    is_empty,
    migrate,
    one_journey,
    open_engine,
    parse_url,
    writing,
)
from rappor_server.storage.store import Store
from sqlalchemy import Engine, MetaData, inspect, select, text

from rappor import Params


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
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
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


def write_as_before(
    database: str, body: bytes, counted: Mapping[str, Params], *, revision: str
) -> None:
    """Fill a database of an older schema with one upload, and with reports of two metrics."""
    upgrade_to(database, revision)
    quarantine = "quarantine" if revision == "0003" else "apart"
    day = TODAY.isoformat()
    own_id = base64.urlsafe_b64decode(json.loads(body)["id"] + "==")
    engine = open_engine(database)
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO upload (id, digest, answer, day) VALUES (:id, :digest, :answer, :day)"
            ),
            {
                "id": own_id,
                "digest": hashlib.sha256(body).digest(),
                "answer": submission_of(body).answer,
                "day": day,
            },
        )
        for i, (name, params) in enumerate(counted.items(), start=1):
            given = {"name": name, "params": params.fingerprint, "day": day, "n": 10 * i}
            ones = {"ones": bytes([i, *bytes(7)]) * params.k}
            connection.execute(
                text("INSERT INTO params (fingerprint, document) VALUES (:params, :document)"),
                {"params": params.fingerprint, "document": params.to_json()},
            )
            columns = f"metric, params, day, {quarantine}, cohort, shard, reports, ones"
            values = ":name, :params, :day, false, 0, 1, :n, :ones"
            row = f"INSERT INTO tally ({columns}) VALUES ({values})"  # noqa: S608
            connection.execute(text(row), given | ones)
            for bit in range(20):
                connection.execute(
                    text(
                        "INSERT INTO kept (metric, params, day, cohort, bits) "
                        "VALUES (:name, :params, :day, 0, :bits)"
                    ),
                    given | {"bits": bytes([bit])},
                )
    engine.dispose()


@pytest.mark.parametrize("revision", ["0001", "0003"])
def test_rows_of_older_schemas_keep_every_count(database: str, revision: str) -> None:
    """Counts, retries and kept reports survive; what told a report or an id is gone.

    Counts of strings are those of another hash, and come under a fingerprint of their own.
    """
    body = upload_of()
    counted = {"page": PARAMS, "sound": BOOLEAN}
    write_as_before(database, body, counted, revision=revision)
    migrate(database)
    store = Store.open(database)
    assert (total(store), total(store, "sound")) == (10, 20)
    (page,), (sound,) = (released(store, name).collections for name in counted)
    assert page.params == dataclasses.replace(PARAMS, layout="murmur3")
    assert (page.ones[0].tolist(), sound.ones.tolist()) == ([1] * 16, [[2]])
    kept = rows_of(store, day_tables.KEPT)
    assert commit(store, body) == [submission_of(body).answer]
    commit(store, upload_of(report_of(), report_of("sound")))
    assert (total(store), total(store, "sound")) == (11, 21)
    assert len(released(store).collections) == 2
    for name, params in (("page", page.params), ("sound", BOOLEAN)):
        own = [row for row in kept if row["metric"] == name]
        assert {row["params"] for row in own} == {params.fingerprint}
        assert sorted(row["bits"] for row in own) == [bytes([bit]) for bit in range(20)]
    assert [row["key"] for row in kept] == sorted(row["key"] for row in kept)
    store.close()
    if database.startswith("sqlite"):
        path = Path(str(parse_url(database).database))
        own_id = base64.urlsafe_b64decode(json.loads(body)["id"] + "==")
        for file in (path, path.with_name(path.name + "-wal")):
            data = file.read_bytes() if file.exists() else b""
            assert own_id not in data
            assert hashlib.sha256(body).digest() not in data


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
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    with pytest.raises(StoreError, match="must be free"):
        backup(database, copy)
    commit(store, upload_of())
    with pytest.raises(StoreError, match="must be empty"):
        restore(copy, database)
    everything = MetaData()
    everything.reflect(store.engine)
    everything.drop_all(store.engine)
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


def postgresql_of(store: Store) -> Engine:
    """Return the engine of a store on PostgreSQL; other databases are here, at no distance."""
    if store.engine.dialect.name != "postgresql":
        pytest.skip("statements travel to PostgreSQL only")
    return store.engine


def travel(engine: Engine, *statements: str) -> list[list[tuple[Any, ...]]]:
    """Execute statements in one journey; return the rows of those that have some."""
    with writing(engine) as db:
        with one_journey(db) as execute:
            cursors = [execute(statement) for statement in statements]
        return [each.fetchall() for each in cursors if each.description]


def test_one_journey_brings_the_rows_of_every_statement(store: Store) -> None:
    """Each statement has rows of its own, and takes effect with its transaction."""
    engine = postgresql_of(store)
    add = "INSERT INTO thing VALUES (1), (2) RETURNING n"
    rows = travel(engine, "CREATE TABLE thing (n integer)", add, "SELECT sum(n) FROM thing")
    assert rows == [[(1,), (2,)], [(3,)]]
    with engine.connect() as db:
        assert db.execute(text("SELECT count(*) FROM thing")).scalar() == 2


def test_nothing_is_executed_after_a_statement_that_fails(store: Store) -> None:
    """The error has the kind only, and all is undone that came before."""
    engine = postgresql_of(store)
    make = "CREATE TABLE {} (n integer)"
    with pytest.raises(StoreError) as caught:
        travel(engine, make.format("thing"), "SELECT 1 FROM nothing", make.format("another"))
    assert str(caught.value) == "the database cannot answer: UndefinedTable"
    assert not {"thing", "another"} & set(inspect(engine).get_table_names())


def test_a_journey_that_is_cut_short_breaks_the_connection(store: Store) -> None:
    """A connection that the server has ended is not used again."""
    with writing(postgresql_of(store)) as db:
        with pytest.raises(StoreError), one_journey(db) as execute:
            execute("SELECT pg_terminate_backend(pg_backend_pid())")
        assert db.invalidated
        db.rollback()
    store.ping()


def test_nothing_finer_than_a_day_is_stored(store: Store) -> None:
    """No column holds a time; uploads and kept reports lie in tables of their day of receipt."""
    commit(store, upload_of(report_of(), report_of("sound")))
    for table in schema.metadata.tables.values():
        for column in table.columns:
            assert "TIME" not in str(column.type).upper()
    commit(store, upload_of(), today=TODAY + datetime.timedelta(days=1))
    with store.engine.connect() as connection:
        tables = inspect(store.engine).get_table_names()
        assert {"upload_20261121", "upload_20261122", "kept_20261121"} <= set(tables)
        for kind in (day_tables.UPLOAD, day_tables.KEPT):
            for day in day_tables.days_of(connection, kind):
                for column in day_tables.table_of(kind, day).columns:
                    assert "TIME" not in str(column.type).upper()
