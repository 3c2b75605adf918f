"""The tables: counts, the ids of uploads, and what analysts need; nothing about a device.

Receive times are days. Counters are one row for each (metric, parameters, day, cohort) and
shard. A shard belongs to one run of one collector, so no two collectors write the same row.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
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

upload: Final = Table(
    "upload",
    metadata,
    Column("id", LargeBinary(16), primary_key=True, comment="Random id chosen by the sender"),
    Column("digest", LargeBinary(32), nullable=False, comment="SHA-256 of the body"),
    Column("answer", LargeBinary, nullable=False, comment="JSON answer, repeated to a retry"),
    Column("day", Date, nullable=False, comment="Day (UTC) of receipt"),
    comment="Ids of accepted uploads, kept for 14 days so that a retry is not counted twice",
    sqlite_with_rowid=False,
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

kept: Final = Table(
    "kept",
    metadata,
    Column("metric", String(64), nullable=False, index=True, comment="Name of the metric"),
    Column("params", String(16), nullable=False, comment="Fingerprint of the parameters"),
    Column("day", Date, nullable=False, index=True, comment="Day (UTC) of receipt"),
    Column("cohort", Integer, nullable=False, comment="Cohort, from 0"),
    Column("bits", LargeBinary, nullable=False, comment="The noisy bits, packed"),
    comment="Raw reports of metrics that keep them, without their uploads",
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

release: Final = Table(
    "release",
    metadata,
    Column("metric", String(64), primary_key=True, comment="Name of the metric"),
    Column("params", String(16), primary_key=True, comment="Fingerprint of the parameters"),
    Column("day", Date, primary_key=True, comment="Day (UTC) of receipt"),
    Column("total", BigInteger, nullable=False, comment="Number of reports released"),
    Column("reports", LargeBinary, nullable=False, comment="m little-endian 64-bit numbers"),
    Column("ones", LargeBinary, nullable=False, comment="m times k little-endian 64-bit sums"),
    comment="What was last released of a day, where a metric has a minimum of reports",
)

freeze: Final = Table(
    "freeze",
    metadata,
    Column("id", String(16), primary_key=True, comment="Name of the frozen range"),
    Column("metric", String(64), nullable=False, comment="Name of the metric"),
    Column("first", Date, nullable=False, comment="First day (UTC) of the range"),
    Column("last", Date, nullable=False, comment="Last day (UTC) of the range"),
    Column("created", Date, nullable=False, comment="Day (UTC) on which it was frozen"),
    Column("contents", LargeBinary, nullable=False, comment="The released counts, as JSON"),
    comment="Released counts of a range, kept so that a published figure can be reproduced",
)
