"""Schema, migrations, backups and errors of databases."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import sqlite3
import stat
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from collector_forks import fork
from collectors import (
    REGISTRY,
    TODAY,
    build_report,
    build_upload,
    commit,
    count_reports,
    parse_submission,
)
from databases import ON_BOTH_DATABASES
from rappor_server.base.errors import ConfigError, SchemaError, StoreError
from rappor_server.operations.backup import backup, restore
from rappor_server.storage import day_tables, migrations, schema, tokens, visits
from rappor_server.storage.database import (
    open_database,
    parse_url,
    ping,
    sqlite_url,
    translate_errors,
    utc_today,
    write_transaction,
)
from rappor_server.storage.schema_versions import check_schema, is_empty, migrate, open_checked
from sqlalchemy import Engine, Float, MetaData, inspect, select, text


@ON_BOTH_DATABASES
def test_migrations_end_at_the_schema(database: str) -> None:
    """Alembic finds no difference between a migrated database and the tables of `schema`.

    Every table and column has a comment. PostgreSQL stores the comments in the database.
    """
    migrate(database)
    # The first inbox of PostgreSQL is not in `schema`, because inboxes are created and dropped
    # while the collector runs.
    options = {"include_name": lambda name, *_: name != "inbox_1"}
    with open_database(database) as engine:
        check_schema(engine)
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts=options)
            assert compare_metadata(context, schema.metadata) == []
        for table in schema.metadata.tables.values():
            assert table.comment
            assert all(column.comment for column in table.columns), table.name
            if engine.dialect.name == "postgresql":
                stored_columns = inspect(engine).get_columns(table.name)
                comments = {column["name"]: column["comment"] for column in stored_columns}
                assert comments == {column.name: column.comment for column in table.columns}
                assert inspect(engine).get_table_comment(table.name)["text"] == table.comment


NEXT_STEP = """
from alembic import op

revision, down_revision = "0002", "0001"


def upgrade():
    op.execute("CREATE TABLE added (n INTEGER)")
"""


@ON_BOTH_DATABASES
def test_migration_keeps_the_counts(engine: Engine, database: str, tmp_path: Path) -> None:
    """A migration keeps the counts. An SQLite file is copied before, readable by its owner only.

    A second migration does nothing.
    """
    commit(engine, build_upload())
    steps = tmp_path / "steps"
    shutil.copytree(Path(migrations.__file__).parent, steps)
    (steps / "versions" / "m0002_next.py").write_text(NEXT_STEP)
    copy = migrate(database, steps=steps)
    assert "added" in inspect(engine).get_table_names()
    assert count_reports(engine) == 1
    assert migrate(database, steps=steps) is None
    assert (copy is not None) == database.startswith("sqlite")
    if copy is not None:
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        with contextlib.closing(sqlite3.connect(copy)) as old:
            assert old.execute("SELECT version_num FROM alembic_version").fetchall() == [("0001",)]
            assert old.execute("SELECT sum(reports) FROM tally").fetchall() == [(1,)]


@ON_BOTH_DATABASES
@pytest.mark.slow
def test_concurrent_migrations(database: str, tmp_path: Path) -> None:
    """One of several collectors on a new database migrates it. The others wait."""
    registry = tmp_path / "metrics.toml"
    registry.write_text(REGISTRY)
    words = ["migrate", "--registry", str(registry), "--database", database]
    log = tmp_path / "migrations.log"
    migrations_of_hosts = [fork(words, log, dict(os.environ)) for _ in range(4)]
    codes = [migration.wait(120) for migration in migrations_of_hosts]
    assert codes == [0, 0, 0, 0], log.read_text()
    open_checked(database).dispose()


@ON_BOTH_DATABASES
@pytest.mark.parametrize(
    ("revision", "reason"),
    [
        ("0100", "belongs to a newer version"),
        ("ae1027a6acf2", "got schema ae1027a6acf2 of another program"),
    ],
)
def test_other_schemas_are_refused(
    engine: Engine, database: str, revision: str, reason: str
) -> None:
    """A database of a newer version, or of another program, is not changed."""
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))  # noqa: S608
    with pytest.raises(SchemaError, match=reason):
        check_schema(engine)
    with pytest.raises(SchemaError, match=reason):
        migrate(database)
    with engine.connect() as connection:
        stored_revision = connection.execute(
            text("SELECT version_num FROM alembic_version")
        ).scalar_one()
    assert stored_revision == revision


@pytest.mark.parametrize("is_sqlite", [True, False])
def test_a_file_of_another_program_is_refused(tmp_path: Path, is_sqlite: bool) -> None:
    """A file that is no database, or the database of another program, is refused and unchanged."""
    path = tmp_path / "notes.db"
    path.write_text("notes\n" * 100)
    if is_sqlite:
        path.unlink()
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE note (text TEXT)")
    before = path.read_bytes()
    for use in (migrate, open_checked):
        with pytest.raises(SchemaError, match="a collector's or empty"):
            use(f"sqlite:///{path}")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@ON_BOTH_DATABASES
def test_next_schema_is_accepted(engine: Engine, database: str) -> None:
    """A collector works with a schema that is newer by one step, and does not change it.

    This happens while several collectors on one database are upgraded one after another.
    """
    with engine.begin() as connection:
        (now,) = connection.execute(text("SELECT version_num FROM alembic_version")).scalars()
        later = {"later": f"{int(now) + 1:04}"}
        connection.execute(text("UPDATE alembic_version SET version_num = :later"), later)
    assert migrate(database) is None
    check_schema(engine)
    commit(engine, build_upload())
    assert count_reports(engine) == 1


@ON_BOTH_DATABASES
def test_backup_and_restore_keep_everything(engine: Engine, database: str, tmp_path: Path) -> None:
    """A restored database has the counts, deduplication keys and tokens of the backup.

    It has no visits of signed-in people, who must sign in again. Its secret that signs cookies is
    new.
    """
    body = build_upload(build_report(), build_report("sound", bits=1))
    commit(engine, body, build_upload())
    token = tokens.create(engine, metrics=["page"], expires=None, today=TODAY)
    visit, key = visits.begin(engine, "token"), visits.cookie_key(engine)
    copy = tmp_path / "copy.sqlite3"
    backup(database, copy)
    with open_database(sqlite_url(copy)) as copied:
        assert visits.find(copied, visit) is None
        assert visits.cookie_key(copied) != key
        # Backups of an earlier version contain visits. The restoration must leave them out.
        visits.begin(copied, "token")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    with pytest.raises(StoreError, match="must be free"):
        backup(database, copy)
    commit(engine, build_upload())  # after the backup, so the restored database does not have it
    with pytest.raises(StoreError, match="must be empty"):
        restore(copy, database, today=utc_today(), is_complete=True)
    # Empty the database.
    all_tables = MetaData()
    all_tables.reflect(engine)
    all_tables.drop_all(engine)
    with engine.begin() as db:
        if db.dialect.name == "postgresql":
            db.execute(text("DROP FUNCTION append_batch"))
        else:
            Path(f"{engine.url.database}-inbox").unlink()
    engine.dispose()
    restore(copy, database, today=utc_today(), is_complete=True)
    if database.startswith("sqlite"):
        assert stat.S_IMODE(Path(str(parse_url(database).database)).stat().st_mode) == 0o600
    assert count_reports(engine) == 2
    # A retry of an upload of the backup is not counted again. A new upload is counted.
    assert commit(engine, body) == [parse_submission(body).response]
    commit(engine, build_upload())
    assert count_reports(engine) == 3
    assert count_reports(engine, "sound") == 1
    assert tokens.verify(engine, token, today=TODAY) is not None
    with engine.connect() as db:
        assert db.execute(select(schema.visit)).all() == []
    assert visits.cookie_key(engine) != key


@ON_BOTH_DATABASES
def test_failed_backup_leaves_no_file(engine: Engine, database: str, tmp_path: Path) -> None:
    """A backup that fails leaves no file, and the next run succeeds."""
    copy = tmp_path / "copy.sqlite3"
    # A missing table makes the backup fail after it has begun to write. A backup of SQLite copies
    # the whole file, and then deletes the unreadable batches of the copy. A backup of PostgreSQL
    # reads every table.
    table = "unreadable_batch" if engine.dialect.name == "sqlite" else "token"
    _rename_table(engine, table, "away")
    with pytest.raises(StoreError):
        backup(database, copy)
    assert not list(tmp_path.glob("copy*"))
    _rename_table(engine, "away", table)
    backup(database, copy)
    assert [path.name for path in tmp_path.glob("copy*")] == ["copy.sqlite3"]


def _rename_table(engine: Engine, old: str, new: str) -> None:
    """Rename a table of a database, so that a table is missing or is there again."""
    with write_transaction(engine) as db:
        db.execute(text(f"ALTER TABLE {old} RENAME TO {new}"))


@ON_BOTH_DATABASES
def test_failed_restore_leaves_an_empty_database(database: str, tmp_path: Path) -> None:
    """A restoration that fails leaves the database empty, so that the next run can fill it."""
    source, copy = sqlite_url(tmp_path / "source.sqlite3"), tmp_path / "copy.sqlite3"
    migrate(source)
    with open_database(source) as engine:
        commit(engine, build_upload())
    backup(source, copy)
    # The backup has no counters, so the restoration fails.
    with open_database(sqlite_url(copy)) as engine:
        _rename_table(engine, "tally", "away")
    with pytest.raises(StoreError, match="OperationalError"):
        restore(copy, database, today=utc_today(), is_complete=True)
    with open_database(database) as engine:
        assert is_empty(engine)
    with open_database(sqlite_url(copy)) as engine:
        _rename_table(engine, "away", "tally")
    restore(copy, database, today=utc_today(), is_complete=True)
    with open_database(database) as engine:
        assert count_reports(engine) == 1


def test_restore_needs_a_backup(tmp_path: Path) -> None:
    """The error names the backup that does not exist."""
    with pytest.raises(StoreError, match=r"/absent must be a backup, got no file$"):
        restore(
            tmp_path / "absent",
            f"sqlite:///{tmp_path / 'new.sqlite3'}",
            today=utc_today(),
            is_complete=True,
        )


@pytest.mark.parametrize(
    "url",
    [
        *("mysql://a/b", "sqlite://", "nonsense", "", "postgresql://host:port/name"),
        *("sqlite:///:memory:", "sqlite://host/file", "sqlite:///file?mode=ro"),
    ],
)
def test_invalid_database_urls_are_refused(url: str) -> None:
    """The message names the two valid forms."""
    with pytest.raises(ConfigError, match="database must be sqlite:///FILE or postgresql://"):
        parse_url(url)


@pytest.mark.slow
def test_missing_database_raises_store_error() -> None:
    """The error contains the name of the driver's exception, and not its message."""
    missing_database = "postgresql://127.0.0.1:1/nothing?connect_timeout=1"
    message = "^the database cannot answer: OperationalError$"
    with open_database(missing_database) as engine, pytest.raises(StoreError, match=message):
        is_empty(engine)


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_connections_to_postgresql_have_time_limits(engine: Engine) -> None:
    """A host of PostgreSQL that has failed is noticed: the driver has both limits, in its units.

    The time to connect is in seconds, and the time without a reply in milliseconds.
    """
    with engine.connect() as db:
        settings = db.connection.dbapi_connection.info.get_parameters()  # type: ignore[union-attr]
    assert int(settings["connect_timeout"]) == 5
    assert int(settings["tcp_user_timeout"]) == 10_000


def test_full_disk_raises_store_error_with_its_code() -> None:
    """The error has SQLite's code for a full disk, and nothing of the row that did not fit.

    A largest number of pages takes the place of the end of the disk.
    """
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE row (content BLOB)")
        db.execute("PRAGMA max_page_count = 2")
        message = r"cannot answer: OperationalError \(SQLITE_FULL\)$"
        with pytest.raises(StoreError, match=message), translate_errors():
            db.execute("INSERT INTO row VALUES (zeroblob(100000))")


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE sqlite_master SET name = CAST(x'b1' AS TEXT), sql = 'x' WHERE name = 'visit'",
        "INSERT INTO token VALUES ('a', x'00', 'null', NULL, NULL, '2026-11-9x')",
        "INSERT INTO token VALUES ('a', x'00', 'null', NULL, NULL, x'ff')",
    ],
)
def test_damaged_file_raises_store_error(tmp_path: Path, damage: str) -> None:
    """A damaged schema, a malformed day, or bytes in place of a day raise StoreError."""
    address = sqlite_url(tmp_path / "counts.sqlite3")
    migrate(address)
    with contextlib.closing(sqlite3.connect(tmp_path / "counts.sqlite3")) as db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute(damage)
        db.commit()
    with (
        open_database(address) as engine,
        pytest.raises(StoreError, match="the database cannot answer"),
    ):
        tokens.list_all(engine)


def test_unreadable_folder_raises_store_error(tmp_path: Path) -> None:
    """A folder of the database that is gone while a connection is open raises StoreError.

    The probe of the database expects no other error. After another error, the collector would never
    probe again.
    """
    folder = tmp_path / "data"
    folder.mkdir()
    with open_database(sqlite_url(folder / "counts.sqlite3")) as engine:
        ping(engine)
        folder.rename(tmp_path / "moved")
        folder.touch()  # a file in the place of the folder
        with pytest.raises(StoreError, match="the database cannot answer: NotADirectoryError"):
            ping(engine)


def test_no_column_stores_the_time_of_an_upload(engine: Engine) -> None:
    """The database stores the day of an upload, and not its time.

    Only the table `visit` has times, of sign-ins to the pages. The tables of deduplication keys are
    not in `schema`: each day of receipt has its own table.
    """
    commit(engine, build_upload(build_report(), build_report("sound")))
    floats = set()
    for table in schema.metadata.tables.values():
        for column in table.columns:
            assert "TIME" not in str(column.type).upper()
            if isinstance(column.type, Float):
                floats.add(f"{table.name}.{column.name}")
    # A time in seconds since 1970 would be a Float. The other two columns are sampling rates.
    assert floats == {
        "release_window.sampling_rate",
        "rate_in_force.sampling_rate",
        "visit.began",
        "visit.seen",
    }
    commit(engine, build_upload(), today=TODAY + datetime.timedelta(days=1))
    with engine.connect() as connection:
        tables = inspect(engine).get_table_names()
        assert {"upload_20261121", "upload_20261122"} <= set(tables)
        for day in day_tables.list_days(connection, day_tables.UPLOAD):
            for column in day_tables.table_of(day_tables.UPLOAD, day).columns:
                assert "TIME" not in str(column.type).upper()
