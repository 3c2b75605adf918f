"""Shards that were added up, so that nobody goes on writing them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Mark every shard as still written to."""
    op.add_column(
        "shard",
        sa.Column(
            "folded",
            sa.Boolean,
            nullable=False,
            server_default=sa.false(),
            comment="True once its counters were added to those of others",
        ),
    )
    if op.get_bind().dialect.name == "postgresql":  # SQLite keeps no comments
        op.alter_column("shard", "day", comment="Day (UTC) of its counters")
        op.create_table_comment(
            "shard",
            "One row for each day of a collector's run; it alone writes its shard's counters",
        )
