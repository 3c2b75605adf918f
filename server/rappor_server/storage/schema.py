"""The tables: counts, hashes of upload ids, and what analysts need; nothing about a device.

Receive times are days. Counters are one row for each (metric, parameters, day, cohort) and
shard. A shard belongs to one run of one collector, so no two collectors write the same row.
Uploads and kept reports lie in tables of one day each (`day_tables`), which are dropped whole.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

metadata: Final = MetaData()

shard: Final = Table(
    "shard",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True, comment="Number of the shard"),
    Column("day", Date, nullable=False, comment="Day (UTC) of its counters"),
    comment="One row for each day of a collector's run; it alone writes its shard's counters",
)

day_table: Final = Table(
    "day_table",
    metadata,
    Column("kind", String(8), primary_key=True, comment="What it holds: upload or kept"),
    Column("day", Date, primary_key=True, comment="Day (UTC) of receipt"),
    Column("shuffled", Boolean, nullable=False, comment="True once its rows are in random order"),
    comment="The tables KIND_YYYYMMDD, one for each day on which something was received",
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
    Column("quarantine", Boolean, primary_key=True, comment="True for suspicious reports"),
    Column("cohort", Integer, primary_key=True, autoincrement=False, comment="Cohort, from 0"),
    Column("shard", Integer, primary_key=True, autoincrement=False, comment="Who wrote it"),
    Column("reports", BigInteger, nullable=False, comment="Number of reports"),
    Column("ones", LargeBinary, nullable=False, comment="k little-endian 64-bit sums of bits"),
    comment="Counts of reports: sums over devices, never a report",
)

refusal: Final = Table(
    "refusal",
    metadata,
    Column("day", Date, primary_key=True, comment="Day (UTC) of receipt"),
    Column("metric", String(64), primary_key=True, comment="Metric, empty where it is not known"),
    Column("reason", String(32), primary_key=True, comment="Reason in a word or two"),
    Column("shard", Integer, primary_key=True, autoincrement=False, comment="Who wrote it"),
    Column("number", BigInteger, nullable=False, comment="Number of reports or uploads"),
    comment="How much was refused and why",
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

_COUNTED: Final = ("metric", "closed", "params", "last", "cohort", "first", "reports")
"""Columns of a block without its sums, for those who only count reports."""

block: Final = Table(
    "block",
    metadata,
    Column("metric", String(64), primary_key=True, comment="Name of the metric"),
    Column("params", String(16), primary_key=True, comment="Fingerprint of the parameters"),
    Column("cohort", Integer, primary_key=True, autoincrement=False, comment="Cohort, from 0"),
    Column("last", Date, primary_key=True, comment="Last day (UTC) of the block"),
    Column("first", Date, nullable=False, comment="First day (UTC) of the block"),
    Column("closed", Boolean, nullable=False, comment="True once it holds enough to be released"),
    Column("reports", BigInteger, nullable=False, comment="Number of reports"),
    Column("ones", LargeBinary, nullable=False, comment="k little-endian 64-bit sums of bits"),
    Index("ix_block_reports", *_COUNTED),
    comment="Sums of consecutive whole days of a cohort; a closed one never changes",
)

blocked: Final = Table(
    "blocked",
    metadata,
    Column("metric", String(64), primary_key=True, comment="Name of the metric"),
    Column("through", Date, nullable=False, comment="Last day (UTC) whose counts are in blocks"),
    comment="How far the counts of each metric have been moved into blocks",
)

candidate_list: Final = Table(
    "candidate_list",
    metadata,
    Column("metric", String(64), primary_key=True, comment="Name of the metric"),
    Column("name", String(64), primary_key=True, comment="Name of the list"),
    Column("created", Date, nullable=False, comment="Day (UTC) on which it was kept"),
    Column("candidates", Integer, nullable=False, comment="Number of its candidates"),
    Column("contents", LargeBinary, nullable=False, comment="The candidates, one a line, UTF-8"),
    comment="Lists of candidates that people keep for a metric",
)

visit: Final = Table(
    "visit",
    metadata,
    Column("digest", LargeBinary(32), primary_key=True, comment="SHA-256 of the cookie or link"),
    Column("token", String(16), nullable=False, comment="Public name of the token"),
    Column("once", Boolean, nullable=False, comment="True for a link that signs in once"),
    Column("began", Float, nullable=False, comment="Seconds since 1970"),
    Column("seen", Float, nullable=False, comment="Seconds since 1970 of the last request"),
    comment="Who is signed in to the pages",
)

answer: Final = Table(
    "answer",
    metadata,
    Column("key", LargeBinary(32), primary_key=True, comment="SHA-256 of the question"),
    Column("metric", String(64), nullable=False, comment="Name of the metric"),
    Column("state", String(8), nullable=False, comment="running, done or failed"),
    Column("step", Text, nullable=False, comment="Step, or the reason of a failure"),
    Column("status", Integer, nullable=False, comment="HTTP status of the page"),
    Column("began", Float, nullable=False, comment="Seconds since 1970"),
    Column("seen", Float, nullable=False, comment="Seconds since 1970 of the last change or use"),
    Column("size", Integer, nullable=False, comment="Bytes of the page and the files"),
    Column("page", LargeBinary, comment="What the page shows, MessagePack"),
    Column("files", LargeBinary, comment="Its files, MessagePack"),
    comment="Answers of the pages, made from released counts, and those that are being made",
)


def upload_table(name: str) -> Table:
    """Return the table of one day's uploads.

    The key is random, so the order of the rows says nothing.
    """
    return Table(
        name,
        MetaData(),
        Column("id", LargeBinary(32), primary_key=True, comment="Hash of the upload's id"),
        Column("mac", LargeBinary(32), nullable=False, comment="MAC of the body under the id"),
        Column("answer", LargeBinary, nullable=False, comment="JSON answer, repeated to a retry"),
        comment="Uploads of a day, so that a retry is not counted twice; dropped after 14 days",
        sqlite_with_rowid=False,
    )


def kept_table(name: str) -> Table:
    """Return the table of one day's kept reports; the key is random."""
    return Table(
        name,
        MetaData(),
        Column("key", LargeBinary(16), primary_key=True, comment="Random bytes"),
        Column("metric", String(64), nullable=False, comment="Name of the metric"),
        Column("params", String(16), nullable=False, comment="Fingerprint of the parameters"),
        Column("cohort", Integer, nullable=False, comment="Cohort, from 0"),
        Column("bits", LargeBinary, nullable=False, comment="The noisy bits, packed"),
        comment="Raw reports of metrics that keep them, without their uploads and in no order",
        sqlite_with_rowid=False,
    )
