"""Counts, upload ids, refusals, kept reports and tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "shard",
        sa.Column(
            "id", sa.Integer, primary_key=True, autoincrement=True, comment="Number of the shard"
        ),
        sa.Column("day", sa.Date, nullable=False, comment="Day (UTC) of its counters"),
        comment="One row for each day of a collector's run; it alone writes its shard's counters",
    )
    op.create_table(
        "upload",
        sa.Column(
            "id", sa.LargeBinary(16), primary_key=True, comment="Random id chosen by the sender"
        ),
        sa.Column("digest", sa.LargeBinary(32), nullable=False, comment="SHA-256 of the body"),
        sa.Column(
            "answer", sa.LargeBinary, nullable=False, comment="JSON answer, repeated to a retry"
        ),
        sa.Column("day", sa.Date, nullable=False, comment="Day (UTC) of receipt"),
        comment="Ids of accepted uploads, kept for 14 days so that a retry is not counted twice",
        sqlite_with_rowid=False,
    )
    op.create_table(
        "params",
        sa.Column(
            "fingerprint", sa.String(16), primary_key=True, comment="Fingerprint of the parameters"
        ),
        sa.Column("document", sa.Text, nullable=False, comment="The parameters as canonical JSON"),
        comment="Every parameter set under which reports were counted",
    )
    op.create_table(
        "tally",
        sa.Column("metric", sa.String(64), primary_key=True, comment="Name of the metric"),
        sa.Column(
            "params", sa.String(16), primary_key=True, comment="Fingerprint of the parameters"
        ),
        sa.Column("day", sa.Date, primary_key=True, comment="Day (UTC) of receipt"),
        sa.Column(
            "apart", sa.Boolean, primary_key=True, comment="True for suspicious reports set apart"
        ),
        sa.Column(
            "cohort", sa.Integer, primary_key=True, autoincrement=False, comment="Cohort, from 0"
        ),
        sa.Column(
            "shard", sa.Integer, primary_key=True, autoincrement=False, comment="Who wrote it"
        ),
        sa.Column("reports", sa.BigInteger, nullable=False, comment="Number of reports"),
        sa.Column(
            "ones", sa.LargeBinary, nullable=False, comment="k little-endian 64-bit sums of bits"
        ),
        comment="Counts of reports: sums over devices, never a report",
    )
    op.create_table(
        "refusal",
        sa.Column("day", sa.Date, primary_key=True, comment="Day (UTC) of receipt"),
        sa.Column(
            "metric", sa.String(64), primary_key=True, comment="Metric, empty where it is not known"
        ),
        sa.Column("reason", sa.String(32), primary_key=True, comment="Reason in a word or two"),
        sa.Column(
            "shard", sa.Integer, primary_key=True, autoincrement=False, comment="Who wrote it"
        ),
        sa.Column("number", sa.BigInteger, nullable=False, comment="Number of reports or uploads"),
        comment="How much was refused and why",
    )
    op.create_table(
        "kept",
        sa.Column("metric", sa.String(64), nullable=False, comment="Name of the metric"),
        sa.Column("params", sa.String(16), nullable=False, comment="Fingerprint of the parameters"),
        sa.Column("day", sa.Date, nullable=False, comment="Day (UTC) of receipt"),
        sa.Column("cohort", sa.Integer, nullable=False, comment="Cohort, from 0"),
        sa.Column("bits", sa.LargeBinary, nullable=False, comment="The noisy bits, packed"),
        comment="Raw reports of metrics that keep them, without their uploads",
    )
    op.create_table(
        "token",
        sa.Column("id", sa.String(16), primary_key=True, comment="Public name of the token"),
        sa.Column("digest", sa.LargeBinary(32), nullable=False, comment="SHA-256 of the token"),
        sa.Column(
            "metrics", sa.Text, nullable=False, comment="JSON list of allowed metrics; null: all"
        ),
        sa.Column("expires", sa.Date, comment="Last day (UTC) of validity; null: none"),
        sa.Column("revoked", sa.Date, comment="Day (UTC) of revocation; null: valid"),
        sa.Column("made", sa.Date, nullable=False, comment="Day (UTC) on which it was made"),
        comment="Analysts' tokens, as hashes",
    )
    op.create_index("ix_kept_metric", "kept", ["metric"])
    op.create_index("ix_kept_day", "kept", ["day"])
