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

_KEYS = ("metric", "params", "day", "quarantine", "cohort")
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


def upgrade() -> None:
    """Make the new tables, add up shards, and turn what is known of uploads into keys."""
    db = op.get_bind()
    is_postgresql = db.dialect.name == "postgresql"
    _create(is_postgresql=is_postgresql)
    days = sa.text("SELECT day FROM day_table WHERE kind = 'upload' ORDER BY day")
    found = list(db.execute(days.columns(day=sa.Date)).scalars())
    for day in found:
        _move_keys(db, day)
    _add_shards(db)
    op.drop_table("shard")


def _create(*, is_postgresql: bool) -> None:
    op.create_table(
        "segment",
        _number("n", "Its number"),
        comment="On PostgreSQL, the tables inbox_N; groups of uploads are added to the newest one",
    )
    op.create_table(
        "folded",
        _number("seq", "Its number"),
        comment="On SQLite, the last group that was folded; those after it wait in FILE-inbox",
    )
    op.create_table(
        "heartbeat",
        sa.Column(
            "day", sa.Date, primary_key=True, comment="Last day (UTC) on which a collector ran"
        ),
        comment="So that a command with a wrong clock deletes nothing",
    )
    op.create_table(
        "inbox_failed",
        *_group(),
        sa.Column("data", sa.LargeBinary, nullable=False, comment="The group as it is"),
        comment="Groups that cannot be read, set apart until a version can read them",
    )
    op.execute("INSERT INTO folded (seq) VALUES (0)")
    if is_postgresql:
        op.execute("INSERT INTO segment (n) VALUES (1)")
        op.create_table(
            "inbox_1",
            *_group(),
            sa.Column("reports", sa.Integer, nullable=False, comment="Number of reports"),
            sa.Column("data", sa.LargeBinary, nullable=False, comment="The group (`record`)"),
            comment="Groups of uploads that are not folded yet; each is gone within a minute",
        )
        op.execute(_APPEND)


def _number(name: str, comment: str, *, counts: bool = False) -> sa.Column[Any]:
    kind = sa.BigInteger().with_variant(sa.Integer, "sqlite") if counts else sa.BigInteger
    return sa.Column(name, kind, primary_key=True, autoincrement=counts, comment=comment)


def _group() -> list[sa.Column[Any]]:
    return [
        _number("seq", "A number", counts=True),
        sa.Column("day", sa.Date, nullable=False, comment="Day (UTC) of receipt"),
    ]


def _replace(
    db: sa.Connection, name: str, columns: list[sa.Column[Any]], comment: str, **options: Any
) -> sa.Table:
    """Rename a table to old_NAME and make it anew, without rows."""
    if db.dialect.name == "postgresql":
        op.execute(f"ALTER INDEX {name}_pkey RENAME TO old_{name}_pkey")
    op.rename_table(name, f"old_{name}")
    return op.create_table(name, *columns, comment=comment, **options)


def _move_keys(db: sa.Connection, day: Any) -> None:
    """Keep the first half of each MAC, which is the key of the upload.

    Of an upload that was refused in part only the keys of its accepted reports are known now, so
    that a retry may have the others accepted. An upload of schema 3 has no MAC, and is not known
    any more.
    """
    name, parts = f"upload_{day:%Y%m%d}", f"part_{day:%Y%m%d}"
    is_postgresql = db.dialect.name == "postgresql"
    own = sa.LargeBinary(16).with_variant(postgresql.UUID(), "postgresql")
    column = sa.Column(
        "key", own, primary_key=True, comment="MAC of the body under the upload's id"
    )
    comment = "Keys of a day, so that a retry is not counted twice; dropped after 14 days"
    _replace(db, name, [column], comment, sqlite_with_rowid=False)
    refused = "position(:refused IN answer) > 0" if is_postgresql else "instr(answer, :refused) > 0"
    like = {"refused": b'"refused"'}
    half = (
        "CAST(encode(substr(mac, 1, 16), 'hex') AS uuid)" if is_postgresql else "substr(mac, 1, 16)"
    )
    db.execute(
        sa.text(
            f"INSERT INTO {name} (key) SELECT {half} AS key FROM old_{name} "  # noqa: S608
            f"WHERE length(mac) > 0 AND NOT {refused} ORDER BY key"
        ),
        like,
    )
    mixed = sa.text(
        f"SELECT mac, answer FROM old_{name} WHERE length(mac) > 0 AND {refused}"  # noqa: S608
    )
    keys = sorted(key for row in db.execute(mixed, like) for key in _report_keys(*map(bytes, row)))
    if keys:
        op.create_table(parts, column.copy(), comment=comment, sqlite_with_rowid=False)
        table = sa.table(parts, sa.column("key", own))
        values = [{"key": uuid.UUID(bytes=key) if is_postgresql else key} for key in keys]
        db.execute(sa.insert(table), values)
        day_table = sa.table("day_table", *map(sa.column, ("kind", "day", "shuffled")))
        db.execute(sa.insert(day_table).values(kind="part", day=day, shuffled=False))
    op.drop_table(f"old_{name}")


def _report_keys(mac: bytes, answer: bytes) -> Iterator[bytes]:
    """Yield the keys of the reports that a stored answer says are accepted."""
    for place, report in enumerate(json.loads(answer)["reports"], 1):
        if report["status"] == "accepted":
            yield (int.from_bytes(mac[:16]) ^ place).to_bytes(16)


def _add_shards(db: sa.Connection) -> None:
    """Add up what several shards counted for one counter, and what they refused."""
    tally = _replace(
        db,
        "tally",
        [
            *_key_columns(),
            sa.Column("reports", sa.BigInteger, nullable=False, comment="Number of reports"),
            sa.Column(
                "ones",
                sa.LargeBinary,
                nullable=False,
                comment="k little-endian 64-bit sums of bits",
            ),
        ],
        "Counts of reports: sums over devices, never a report",
    )
    columns = tally.columns
    old = sa.table("old_tally", *(sa.column(each.name, each.type) for each in columns))
    keys = [old.c[name] for name in _KEYS]
    rows = db.execute(sa.select(old).order_by(*keys).execution_options(yield_per=1000))
    totals = (_total(list(same)) for _, same in itertools.groupby(rows, lambda row: row[:5]))
    while batch := list(itertools.islice(totals, 1000)):
        db.execute(sa.insert(tally), batch)
    refusal = [
        sa.Column("day", sa.Date, primary_key=True, comment="Day (UTC) of receipt"),
        sa.Column(
            "metric",
            sa.String(64),
            primary_key=True,
            comment="Metric, empty where it is not known",
        ),
        sa.Column("reason", sa.String(32), primary_key=True, comment="Reason in a word or two"),
        sa.Column("number", sa.BigInteger, nullable=False, comment="Number of reports or uploads"),
    ]
    _replace(db, "refusal", refusal, "How much was refused and why")
    op.execute(
        "INSERT INTO refusal (day, metric, reason, number) "
        "SELECT day, metric, reason, CAST(sum(number) AS bigint) FROM old_refusal "
        "GROUP BY day, metric, reason"
    )
    for name in ("tally", "refusal"):
        op.drop_table(f"old_{name}")


def _key_columns() -> list[sa.Column[Any]]:
    own = {"primary_key": True}
    return [
        sa.Column("metric", sa.String(64), comment="Name of the metric", **own),
        sa.Column("params", sa.String(16), comment="Fingerprint of the parameters", **own),
        sa.Column("day", sa.Date, comment="Day (UTC) of receipt", **own),
        sa.Column("quarantine", sa.Boolean, comment="True for suspicious reports", **own),
        sa.Column("cohort", sa.Integer, autoincrement=False, comment="Cohort, from 0", **own),
    ]


def _total(rows: list[Any]) -> dict[str, Any]:
    """Return the row of one counter from those of its shards."""
    ones = sum(np.frombuffer(row.ones, "<i8") for row in rows)
    total = {"reports": sum(row.reports for row in rows), "ones": np.asarray(ones).tobytes()}
    return dict(zip(_KEYS, rows[0], strict=False)) | total
