"""The inbox: keys of 16 bytes in place of ids, MACs and answers; counters without shards.

This is the last step that stops the collectors of the version before. From here on a step only
adds what that version does not use, and takes away what it did not use either.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"

_CELL = ("metric", "params", "day", "quarantine", "cohort")
_KEY = sa.LargeBinary(16).with_variant(postgresql.UUID(), "postgresql")
_SEQUENCE = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_APPEND = """
CREATE FUNCTION append_group(day date, reports integer, data bytea) RETURNS void AS $$
DECLARE newest bigint;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(90440473792340);
    SELECT max(n) INTO newest FROM segment;
    EXECUTE format('INSERT INTO inbox_%s (day, reports, data) VALUES ($1, $2, $3)', newest)
    USING day, reports, data;
END $$ LANGUAGE plpgsql VOLATILE
"""
_KEYS = "Keys of a day, so that a retry is not counted twice; dropped after 14 days"


def upgrade() -> None:
    """Make the new tables, add up shards, and turn what is known of uploads into keys."""
    db = op.get_bind()
    _create(is_postgresql=db.dialect.name == "postgresql")
    days = sa.text("SELECT day FROM day_table WHERE kind = 'upload'").columns(day=sa.Date)
    for day in db.execute(days).scalars().all():
        _move_keys(db, f"{day:%Y%m%d}", day)
    _add_up_counters(db)
    _add_up_refusals(db)
    op.drop_table("shard")


def _create(*, is_postgresql: bool) -> None:
    op.create_table(
        "segment",
        _column("n", sa.BigInteger, "Its number", primary_key=True, autoincrement=False),
        comment="On PostgreSQL, the tables inbox_N; groups of uploads are added to the newest one",
    )
    op.create_table(
        "folded",
        _column("seq", sa.BigInteger, "Its number", primary_key=True, autoincrement=False),
        comment="On SQLite, the last group that was folded; those after it wait in FILE-inbox",
    )
    op.create_table(
        "heartbeat",
        _column("day", sa.Date, "A day (UTC) on which a collector ran", primary_key=True),
        comment="The last two days on which a collector ran, so that a wrong clock deletes nothing",
    )
    op.create_table(
        "inbox_failed",
        *_group(),
        comment="Groups that cannot be read, set apart until a version can read them",
    )
    op.execute("INSERT INTO folded (seq) VALUES (0)")
    if is_postgresql:
        reports = _column("reports", sa.Integer, "Number of reports", nullable=False)
        op.create_table("inbox_1", *_group(), reports)
        op.execute("INSERT INTO segment (n) VALUES (1)")
        op.execute(_APPEND)


def _group() -> list[sa.Column[Any]]:
    return [
        _column("seq", _SEQUENCE, "A number", primary_key=True, autoincrement=True),
        _column("day", sa.Date, "Day (UTC) of receipt", nullable=False),
        _column("data", sa.LargeBinary, "The group as it is", nullable=False),
    ]


def _column(name: str, kind: Any, comment: str, **more: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, comment=comment, **more)


def _set_aside(db: sa.Connection, name: str) -> sa.Table:
    """Rename a table to old_NAME and return it."""
    if db.dialect.name == "postgresql":
        op.execute(f"ALTER INDEX {name}_pkey RENAME TO old_{name}_pkey")
    op.rename_table(name, f"old_{name}")
    return sa.Table(f"old_{name}", sa.MetaData(), autoload_with=db)


def _without_shard(db: sa.Connection, name: str) -> tuple[sa.Table, sa.Table]:
    """Replace a table by one without the column, still empty; return the old one and the new."""
    old = _set_aside(db, name)
    columns = [
        _column(each.name, each.type, each.comment or "", **_nature(each))
        for each in old.columns
        if each.name != "shard"
    ]
    return old, op.create_table(name, *columns, comment=old.comment)


def _nature(column: sa.Column[Any]) -> dict[str, bool]:
    if column.primary_key:
        return {"primary_key": True, "autoincrement": False}
    return {"nullable": False}


def _move_keys(db: sa.Connection, of_day: str, day: Any) -> None:
    """Keep the first half of each MAC, which is the key of the upload.

    Of an upload that was refused in part only the keys of its accepted reports are known now, so
    that a retry may have the others accepted. An upload that was stored before there were MACs is
    not known any more.
    """
    is_postgresql = db.dialect.name == "postgresql"
    old = _set_aside(db, f"upload_{of_day}")
    _create_keys(f"upload_{of_day}")
    half = "encode(substr(mac, 1, 16), 'hex')::uuid" if is_postgresql else "substr(mac, 1, 16)"
    is_mixed = (
        "position('\"refused\"'::bytea IN answer) > 0"
        if is_postgresql
        else "instr(answer, CAST('\"refused\"' AS BLOB)) > 0"
    )
    op.execute(
        f"INSERT INTO upload_{of_day} (key) SELECT {half} AS key FROM {old.name} "  # noqa: S608
        f"WHERE length(mac) > 0 AND NOT {is_mixed} ORDER BY key"
    )
    mixed = sa.select(old.c.mac, old.c.answer).where(sa.text(f"length(mac) > 0 AND {is_mixed}"))
    keys = sorted(key for row in db.execute(mixed) for key in _report_keys(*map(bytes, row)))
    if keys:
        table = _create_keys(f"part_{of_day}")
        values = [{"key": uuid.UUID(bytes=key) if is_postgresql else key} for key in keys]
        db.execute(sa.insert(table), values)
        known = sa.table("day_table", *map(sa.column, ("kind", "day", "shuffled")))
        db.execute(sa.insert(known).values(kind="part", day=day, shuffled=False))
    op.drop_table(old.name)


def _create_keys(name: str) -> sa.Table:
    key = _column("key", _KEY, "MAC of the body under the upload's id", primary_key=True)
    return op.create_table(name, key, comment=_KEYS, sqlite_with_rowid=False)


def _report_keys(mac: bytes, answer: bytes) -> Iterator[bytes]:
    """Yield the keys of the reports that a stored answer says are accepted."""
    for place, report in enumerate(json.loads(answer)["reports"], 1):
        if report["status"] == "accepted":
            yield (int.from_bytes(mac[:16]) ^ place).to_bytes(16)


def _add_up_counters(db: sa.Connection) -> None:
    """Add up what several shards counted for one counter."""
    old, new = _without_shard(db, "tally")
    in_order = sa.select(old).order_by(*(old.c[name] for name in _CELL))
    rows = db.execute(in_order.execution_options(yield_per=1000))
    cells = itertools.groupby(rows, lambda row: tuple(getattr(row, name) for name in _CELL))
    totals = (_total(cell, list(same)) for cell, same in cells)
    while batch := list(itertools.islice(totals, 1000)):
        db.execute(sa.insert(new), batch)
    op.drop_table(old.name)


def _total(cell: tuple[Any, ...], rows: list[Any]) -> dict[str, Any]:
    ones = np.sum([np.frombuffer(row.ones, "<i8") for row in rows], axis=0)
    total = {"reports": sum(row.reports for row in rows), "ones": ones.tobytes()}
    return dict(zip(_CELL, cell, strict=True)) | total


def _add_up_refusals(db: sa.Connection) -> None:
    """Add up what several shards counted for one reason."""
    old, new = _without_shard(db, "refusal")
    key = [old.c.day, old.c.metric, old.c.reason]
    sums = sa.select(*key, sa.cast(sa.func.sum(old.c.number), sa.BigInteger)).group_by(*key)
    db.execute(sa.insert(new).from_select(["day", "metric", "reason", "number"], sums))
    op.drop_table(old.name)
