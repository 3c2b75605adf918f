"""The tables of the database: counters, deduplication keys, blocks, windows, tokens, sessions.

Only the batches of the inbox contain single reports. A merge adds them up within a minute. A batch
that no merge can read stays longer (`unreadable_batch`). All other tables contain nothing about a
single device. Times of receipt are days (UTC). A report is counted in these tables, one after the
other:

    inbox             batches of uploads that are not merged yet (`inbox`)
      |               a merge adds their reports to counters, and deletes the batches
    tally             counters: sums of one metric, fingerprint, day and cohort
      |               the day has ended: its counters are moved into blocks (`blocks`)
    block             sums of consecutive days of a cohort. A closed block never changes
      |               together the closed blocks have enough reports (`release_windows`)
    release_window    closed blocks that analysts may read. A window never changes

The deduplication key of an upload, by which a retry is recognised, is stored in a table of the day
of receipt (`day_tables`). The table is dropped as a whole when its keys expire.

The comments of tables and columns are stored in a PostgreSQL database, so an operator can read them
there. A fingerprint is a short hash of the parameters of a report, as 16 hexadecimal digits.
"""

from __future__ import annotations

import secrets
import uuid
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Date,
    Dialect,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    event,
    insert,
    text,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import TypeEngine


class _Key(TypeDecorator[bytes]):
    """A key of 16 bytes. PostgreSQL stores it as a UUID, which takes less space than bytea."""

    impl = LargeBinary(16)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        is_postgresql = dialect.name == "postgresql"
        return dialect.type_descriptor(postgresql.UUID() if is_postgresql else LargeBinary(16))

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return uuid.UUID(bytes=value) if dialect.name == "postgresql" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> bytes:  # noqa: ARG002
        return value.bytes if isinstance(value, uuid.UUID) else bytes(value)


metadata: Final = MetaData()
"""The tables that every database of a collector has. The tables of keys and of PostgreSQL's inbox
are created one by one, under changing names."""
_SEQUENCE: Final = BigInteger().with_variant(Integer, "sqlite")
"""Type of a number that the database assigns to each new row. SQLite assigns numbers only to
columns of the type INTEGER."""

day_table: Final = Table(
    "day_table",
    metadata,
    Column(
        "kind",
        String(8),
        primary_key=True,
        comment="upload: keys of uploads; part: keys of single reports of partly refused uploads",
    ),
    Column("day", Date, primary_key=True, comment="Day (UTC) of receipt"),
    comment="List of the tables KIND_YYYYMMDD of deduplication keys, one for each day of receipt",
)

params: Final = Table(
    "params",
    metadata,
    Column("fingerprint", String(16), primary_key=True, comment="Fingerprint of the parameters"),
    Column("document", Text, nullable=False, comment="The parameters as canonical JSON"),
    comment="Every parameter set under which reports were counted",
)

tally: Final = Table(
    "tally",
    metadata,
    Column("metric", String(64), primary_key=True, comment="Name of the metric"),
    Column("params", String(16), primary_key=True, comment="Fingerprint of the parameters"),
    Column("day", Date, primary_key=True, comment="Day (UTC) of receipt"),
    Column("cohort", Integer, primary_key=True, autoincrement=False, comment="Cohort, from 0"),
    Column("reports", BigInteger, nullable=False, comment="Number of reports"),
    Column("ones", LargeBinary, nullable=False, comment="k sums of bits, see tallies.py"),
    comment="Counts of reports: sums over devices, never a report",
)

refusal: Final = Table(
    "refusal",
    metadata,
    Column("day", Date, primary_key=True, comment="Day (UTC) of receipt"),
    Column("metric", String(64), primary_key=True, comment="Metric, empty if unknown"),
    Column("reason", String(32), primary_key=True, comment="Reason in a word or two"),
    Column("number", BigInteger, nullable=False, comment="Number of reports or uploads"),
    comment="Number of refused reports and uploads by reason",
)

inbox_number: Final = Table(
    "inbox_number",
    metadata,
    Column("n", BigInteger, primary_key=True, autoincrement=False, comment="Number N of inbox_N"),
    comment="On PostgreSQL, the numbers N of the tables inbox_N; batches go to the newest table",
)
_CREATE_APPEND: Final = """
CREATE FUNCTION append_batch(day date, reports integer, data bytea) RETURNS void AS $$
DECLARE newest bigint;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(90440473792340);
    SELECT max(n) INTO newest FROM inbox_number;
    EXECUTE format('INSERT INTO inbox_%s (day, reports, data) VALUES ($1, $2, $3)', newest)
    USING day, reports, data;
END $$ LANGUAGE plpgsql VOLATILE
"""
"""Statement that creates PostgreSQL's function `append_batch`, which adds a batch to the newest
table inbox_N. The long number is that of the advisory lock `inbox._APPEND_LOCK`. The function holds
the lock shared, so no newer table is created between its two queries."""

last_merged: Final = Table(
    "last_merged",
    metadata,
    Column(
        "seq",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="Sequence number of the last merged batch, 0 before the first merge",
    ),
    comment="On SQLite, one row: the file FILE-inbox has batches, and those up to seq are merged",
)

unreadable_batch: Final = Table(
    "unreadable_batch",
    metadata,
    Column("seq", _SEQUENCE, primary_key=True, autoincrement=True, comment="Number of the row"),
    Column("day", Date, nullable=False, comment="Day (UTC) of receipt"),
    Column("data", LargeBinary, nullable=False, comment="The encoded batch, see record.py"),
    comment="Batches that no merge could read, stored until a newer program can read them",
)

heartbeat: Final = Table(
    "heartbeat",
    metadata,
    Column("day", Date, primary_key=True, comment="A day (UTC) on which a collector ran"),
    comment="The last two days on which a collector ran; nothing is deleted if they show a jump",
)

token: Final = Table(
    "token",
    metadata,
    Column("id", String(16), primary_key=True, comment="Public name of the token"),
    Column("digest", LargeBinary(32), nullable=False, comment="SHA-256 of the token"),
    Column("metrics", Text, nullable=False, comment="JSON list of allowed metrics; null: all"),
    Column("expires", Date, comment="Last day (UTC) of validity; null: none"),
    Column("revoked", Date, comment="Day (UTC) of revocation; null: valid"),
    Column("created", Date, nullable=False, comment="Day (UTC) on which it was created"),
    comment="Analysts' tokens, as hashes",
)

block: Final = Table(
    "block",
    metadata,
    Column("metric", String(64), primary_key=True, comment="Name of the metric"),
    Column("params", String(16), primary_key=True, comment="Fingerprint of the parameters"),
    Column("cohort", Integer, primary_key=True, autoincrement=False, comment="Cohort, from 0"),
    Column("last", Date, primary_key=True, comment="Last day (UTC) of the block"),
    Column("first", Date, nullable=False, comment="First day (UTC) of the block"),
    Column("closed", Boolean, nullable=False, comment="True once it has enough reports"),
    Column("reports", BigInteger, nullable=False, comment="Number of reports"),
    Column("ones", LargeBinary, nullable=False, comment="k sums of bits, see tallies.py"),
    # The index serves three queries: the blocks of a window (by their last days), the open blocks
    # among a year of closed blocks, and numbers of reports. The index has all columns but the sums
    # of bits, so queries for numbers of reports read the index only.
    Index("ix_block_reports", "metric", "closed", "params", "last", "cohort", "first", "reports"),
    comment="Sums of consecutive whole days of a cohort; a closed block never changes",
)

block_total: Final = Table(
    "block_total",
    metadata,
    Column("metric", String(64), primary_key=True, comment="Name of the metric"),
    Column("params", String(16), primary_key=True, comment="Fingerprint of the parameters"),
    Column("last", Date, primary_key=True, comment="Last day (UTC) of the blocks"),
    Column("first", Date, primary_key=True, comment="First day (UTC) of the blocks"),
    Column(
        "intervals",
        Integer,
        nullable=False,
        comment="Largest possible number of reports of one device in a block: intervals it touches",
    ),
    Column("smallest", BigInteger, nullable=False, comment="Reports of the smallest block"),
    Column("reports", BigInteger, nullable=False, comment="Number of reports of all the blocks"),
    comment="Closed blocks of all cohorts that have the same days, in one row, no sums of bits",
)

release_window: Final = Table(
    "release_window",
    metadata,
    Column("metric", String(64), primary_key=True, comment="Name of the metric"),
    Column("params", String(16), primary_key=True, comment="Fingerprint of the parameters"),
    Column(
        "last",
        Date,
        primary_key=True,
        comment="Date of the window: the latest day (UTC) on which one of its blocks ends",
    ),
    Column(
        "first",
        Date,
        nullable=False,
        comment="The earliest day (UTC) on which one of its blocks ends",
    ),
    Column("reports", BigInteger, nullable=False, comment="Number of reports"),
    Column("minimum", BigInteger, nullable=False, comment="Reports that a window needed then"),
    Column(
        "sampling_rate",
        Float,
        comment="Share of the devices that took part; null if devices may have had several rates",
    ),
    comment="Closed blocks that are released together; a window never changes",
)

released_cohorts: Final = Table(
    "released_cohorts",
    metadata,
    Column("metric", String(64), primary_key=True, comment="Name of the metric"),
    Column("params", String(16), primary_key=True, comment="Fingerprint of the parameters"),
    Column(
        "reports", LargeBinary, nullable=False, comment="Little-endian 64-bit numbers, by cohort"
    ),
    comment="Numbers of reports of the cohorts in all windows of a fingerprint",
)

blocked: Final = Table(
    "blocked",
    metadata,
    Column("metric", String(64), primary_key=True, comment="Name of the metric"),
    Column("through", Date, nullable=False, comment="Last day (UTC) whose counts are in blocks"),
    Column(
        "forgotten",
        Date,
        nullable=False,
        comment="First day (UTC) of which all reports are stored; 0001-01-01 if none were deleted",
    ),
    comment="The last day of each metric whose counters were moved into blocks",
)

rate_in_force: Final = Table(
    "rate_in_force",
    metadata,
    Column("metric", String(64), primary_key=True, comment="Name of the metric"),
    Column("params", String(16), primary_key=True, comment="Fingerprint of the parameters"),
    Column(
        "sampling_rate",
        Float,
        comment="Share of the devices that take part; null if the registries in force disagree",
    ),
    Column(
        "changed",
        Date,
        nullable=False,
        comment="Last day (UTC) on which another rate may have been in force; 0001-01-01 if none",
    ),
    comment="The sampling rate of each fingerprint when days were last moved into blocks",
)

minimums_in_force: Final = Table(
    "minimums_in_force",
    metadata,
    Column("metric", String(64), primary_key=True, comment="Name of the metric"),
    Column("params", String(16), primary_key=True, comment="Fingerprint of the parameters"),
    Column(
        "min_cohort",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="Reports that a block needs for each interval",
    ),
    Column(
        "min_reports",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="Reports that a window needs; 0 for a trial",
    ),
    Column("day", Date, nullable=False, comment="Last day (UTC) on which they were in force"),
    comment="The minimums of each fingerprint in the registries of all collectors, with last days",
)

visit: Final = Table(
    "visit",
    metadata,
    Column("digest", LargeBinary(32), primary_key=True, comment="SHA-256 of the cookie or link"),
    Column("token", String(16), nullable=False, comment="Public name of the token"),
    Column("once", Boolean, nullable=False, comment="True for a link that signs in once"),
    Column("began", Float, nullable=False, comment="Seconds since 1970 of the sign-in"),
    Column("seen", Float, nullable=False, comment="Seconds since 1970 of the last request"),
    comment="Sessions of people who are signed in to the pages",
)

cookie_key: Final = Table(
    "cookie_key",
    metadata,
    Column("secret", LargeBinary(32), primary_key=True, comment="Random, made with the database"),
    comment="The key that signs the cookies of sessions, in one row",
)

NOT_IN_BACKUPS: Final = (inbox_number, last_merged, unreadable_batch, visit, cookie_key)
"""Tables that a backup leaves out. A backup has no inbox, and a restored session might belong to
somebody who has signed out since. A restored database has a new key for cookies."""


@event.listens_for(inbox_number, "after_create")
@event.listens_for(last_merged, "after_create")
def _create_inbox(table: Table, db: Connection, **_: object) -> None:
    """Create the empty inbox of a new database. SQLAlchemy calls the function for both tables.

    The inbox of SQLite is a file of its own, which `SqliteInbox` creates.
    """
    if table is last_merged:
        db.execute(insert(last_merged).values(seq=0))
    elif db.dialect.name == "postgresql":
        inbox_table("inbox_1").create(db)
        db.execute(insert(inbox_number).values(n=1))
        db.execute(text(_CREATE_APPEND))


@event.listens_for(cookie_key, "after_create")
def _create_cookie_key(table: Table, db: Connection, **_: object) -> None:
    """Draw the key of a new database. All processes of the database share the key."""
    db.execute(insert(table).values(secret=secrets.token_bytes(32)))


def key_table(name: str) -> Table:
    """Return a table of the deduplication keys of one day.

    Rows are inserted in the order of their keys (`day_tables`). Keys are random, so the order of
    the rows reveals nothing about the order of arrival.
    """
    return Table(
        name,
        MetaData(),
        Column("key", _Key, primary_key=True, comment="MAC of the body under the upload's id"),
        comment="Keys of a day, so that a retry is not counted twice; dropped after 14 days",
        sqlite_with_rowid=False,
    )


def inbox_table(name: str) -> Table:
    """Return a table of batches that wait for a merge."""
    return Table(
        name,
        MetaData(),
        Column("seq", _SEQUENCE, primary_key=True, autoincrement=True, comment="Sequence number"),
        Column("day", Date, nullable=False, comment="Day (UTC) of receipt"),
        Column("reports", Integer, nullable=False, comment="Number of reports"),
        Column("data", LargeBinary, nullable=False, comment="The encoded batch, see record.py"),
        comment="Batches of uploads that are not merged yet; a batch stays less than a minute",
    )
