"""What was released, and ranges that are frozen."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "release",
        sa.Column("metric", sa.String(64), primary_key=True, comment="Name of the metric"),
        sa.Column(
            "params", sa.String(16), primary_key=True, comment="Fingerprint of the parameters"
        ),
        sa.Column("day", sa.Date, primary_key=True, comment="Day (UTC) of receipt"),
        sa.Column("total", sa.BigInteger, nullable=False, comment="Number of reports released"),
        sa.Column(
            "reports", sa.LargeBinary, nullable=False, comment="m little-endian 64-bit numbers"
        ),
        sa.Column(
            "ones", sa.LargeBinary, nullable=False, comment="m times k little-endian 64-bit sums"
        ),
        comment="What was last released of a day, where a metric has a minimum of reports",
    )
    op.create_table(
        "freeze",
        sa.Column("id", sa.String(16), primary_key=True, comment="Name of the frozen range"),
        sa.Column("metric", sa.String(64), nullable=False, comment="Name of the metric"),
        sa.Column("first", sa.Date, nullable=False, comment="First day (UTC) of the range"),
        sa.Column("last", sa.Date, nullable=False, comment="Last day (UTC) of the range"),
        sa.Column("made", sa.Date, nullable=False, comment="Day (UTC) on which it was frozen"),
        sa.Column(
            "contents", sa.LargeBinary, nullable=False, comment="The released counts, as JSON"
        ),
        comment="Released counts of a range, kept so that a published figure can be reproduced",
    )
