"""Lists of candidates that people keep for a metric."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "candidate_list",
        sa.Column("metric", sa.String(64), primary_key=True, comment="Name of the metric"),
        sa.Column("name", sa.String(64), primary_key=True, comment="Name of the list"),
        sa.Column("created", sa.Date, nullable=False, comment="Day (UTC) on which it was kept"),
        sa.Column("candidates", sa.Integer, nullable=False, comment="Number of its candidates"),
        sa.Column(
            "contents", sa.LargeBinary, nullable=False, comment="The candidates, one a line, UTF-8"
        ),
        comment="Lists of candidates that people keep for a metric",
    )
