"""Tables of one day each, hashed ids, and blocks.

The ids of uploads become hashes. The bodies' hashes were plain and could be turned back, so they
go; a retry from before this step is known by its id alone. Counts of strings were made by another
hash of the same parameters. They stay, under the layout `murmur3` and the fingerprint that it
gives, so that nothing is added to them and no candidate is compared with them.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_STRINGS = "bloom"
_DOMAIN = b"rappor/1/upload\0"


def upgrade() -> None:
    """Make the new tables, move the rows, and drop the old tables."""
    db = op.get_bind()
    _create()
    _mark_strings(db)
    hashed = _hash_of_id(db)
    for day in _days(db, "upload"):
        _move_uploads(db, day, hashed)
    for day in _days(db, "kept"):
        _move_kept(db, day)
    for table in ("upload", "kept", "release"):
        op.drop_table(table)


def _create() -> None:
    op.create_table(
        "day_table",
        sa.Column("kind", sa.String(8), primary_key=True, comment="What it holds: upload or kept"),
        sa.Column("day", sa.Date, primary_key=True, comment="Day (UTC) of receipt"),
        sa.Column(
            "shuffled", sa.Boolean, nullable=False, comment="True once its rows are in random order"
        ),
        comment="The tables KIND_YYYYMMDD, one for each day on which something was received",
    )
    op.create_table(
        "block",
        sa.Column("metric", sa.String(64), primary_key=True, comment="Name of the metric"),
        sa.Column(
            "params", sa.String(16), primary_key=True, comment="Fingerprint of the parameters"
        ),
        sa.Column(
            "cohort", sa.Integer, primary_key=True, autoincrement=False, comment="Cohort, from 0"
        ),
        sa.Column("last", sa.Date, primary_key=True, comment="Last day (UTC) of the block"),
        sa.Column("first", sa.Date, nullable=False, comment="First day (UTC) of the block"),
        sa.Column(
            "closed",
            sa.Boolean,
            nullable=False,
            comment="True once it holds enough to be released",
        ),
        sa.Column("reports", sa.BigInteger, nullable=False, comment="Number of reports"),
        sa.Column(
            "ones", sa.LargeBinary, nullable=False, comment="k little-endian 64-bit sums of bits"
        ),
        comment="Sums of consecutive whole days of a cohort; a closed one never changes",
    )
    op.create_index(
        "ix_block_reports",
        "block",
        ["metric", "closed", "params", "last", "cohort", "first", "reports"],
    )
    op.create_table(
        "blocked",
        sa.Column("metric", sa.String(64), primary_key=True, comment="Name of the metric"),
        sa.Column(
            "through",
            sa.Date,
            nullable=False,
            comment="Last day (UTC) whose counts are in blocks",
        ),
        comment="How far the counts of each metric have been moved into blocks",
    )


def _mark_strings(db: sa.Connection) -> None:
    """Give counts and reports of strings the layout and fingerprint of the earlier hash."""
    strings = sa.text(
        "SELECT fingerprint, document FROM params "
        "WHERE document LIKE :bloom AND document NOT LIKE :layout"
    )
    given = {"bloom": '%"encoding":"bloom"%', "layout": '%"layout":%'}
    rows = db.execute(strings, given).all()
    for old, text in rows:
        new, document = _marked(json.loads(text))
        names = {"old": old, "new": new, "document": document}
        db.execute(
            sa.text(
                "UPDATE params SET fingerprint = :new, document = :document "
                "WHERE fingerprint = :old"
            ),
            names,
        )
        for table in ("tally", "kept"):
            db.execute(
                sa.text(f"UPDATE {table} SET params = :new WHERE params = :old"),  # noqa: S608
                {"old": old, "new": new},
            )


def _marked(params: dict[str, Any]) -> tuple[str, str]:
    """Return the fingerprint and the canonical JSON of parameters under the earlier hash."""
    document = json.dumps(
        params | {"layout": "murmur3"}, sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    return hashlib.sha256(document.encode()).hexdigest()[:16], document


def _hash_of_id(db: sa.Connection) -> str:
    """Return the expression that hashes an id; Python lends SQLite its hash."""
    if db.dialect.name == "postgresql":
        return f"sha256('\\x{_DOMAIN.hex()}'::bytea || id)"
    driver = db.connection.dbapi_connection
    assert driver is not None
    driver.create_function(
        "hash_id", 1, lambda own: hashlib.sha256(_DOMAIN + own).digest(), deterministic=True
    )
    return "hash_id(id)"


def _days(db: sa.Connection, table: str) -> list[Any]:
    rows = sa.table(table, sa.column("day", sa.Date))
    return list(db.execute(sa.select(rows.c.day).distinct().order_by(rows.c.day)).scalars())


def _open_day(db: sa.Connection, kind: str, day: Any) -> str:
    """Note that a day has a table; return its name."""
    known = sa.table(
        "day_table",
        sa.column("kind", sa.String),
        sa.column("day", sa.Date),
        sa.column("shuffled", sa.Boolean),
    )
    db.execute(sa.insert(known).values(kind=kind, day=day, shuffled=True))
    return f"{kind}_{day:%Y%m%d}"


def _move_uploads(db: sa.Connection, day: Any, hashed: str) -> None:
    name = _open_day(db, "upload", day)
    op.create_table(
        name,
        sa.Column("id", sa.LargeBinary(32), primary_key=True, comment="Hash of the upload's id"),
        sa.Column(
            "mac", sa.LargeBinary(32), nullable=False, comment="MAC of the body under the id"
        ),
        sa.Column(
            "answer", sa.LargeBinary, nullable=False, comment="JSON answer, repeated to a retry"
        ),
        comment="Uploads of a day, so that a retry is not counted twice; dropped after 14 days",
        sqlite_with_rowid=False,
    )
    db.execute(
        sa.text(
            f"INSERT INTO {name} (id, mac, answer) "  # noqa: S608 - our own names
            f"SELECT {hashed} AS hashed, :none, answer FROM upload WHERE day = :day "
            "ORDER BY hashed"
        ).bindparams(sa.bindparam("day", day, sa.Date), sa.bindparam("none", b"", sa.LargeBinary))
    )


def _move_kept(db: sa.Connection, day: Any) -> None:
    name = _open_day(db, "kept", day)
    op.create_table(
        name,
        sa.Column("key", sa.LargeBinary(16), primary_key=True, comment="Random bytes"),
        sa.Column("metric", sa.String(64), nullable=False, comment="Name of the metric"),
        sa.Column("params", sa.String(16), nullable=False, comment="Fingerprint of the parameters"),
        sa.Column("cohort", sa.Integer, nullable=False, comment="Cohort, from 0"),
        sa.Column("bits", sa.LargeBinary, nullable=False, comment="The noisy bits, packed"),
        comment="Raw reports of metrics that keep them, without their uploads and in no order",
        sqlite_with_rowid=False,
    )
    key = "randomblob(16)"
    if db.dialect.name == "postgresql":
        key = "uuid_send(gen_random_uuid())"
    db.execute(
        sa.text(
            f"INSERT INTO {name} (key, metric, params, cohort, bits) "  # noqa: S608
            f"SELECT {key} AS key, metric, params, cohort, bits FROM kept WHERE day = :day "
            "ORDER BY key"
        ).bindparams(sa.bindparam("day", day, sa.Date))
    )
