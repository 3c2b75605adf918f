"""Visits and answers of the pages, so that any process serves them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "visit",
        sa.Column(
            "digest", sa.LargeBinary(32), primary_key=True, comment="SHA-256 of the cookie or link"
        ),
        sa.Column("token", sa.String(16), nullable=False, comment="Public name of the token"),
        sa.Column("once", sa.Boolean, nullable=False, comment="True for a link that signs in once"),
        sa.Column("began", sa.Float, nullable=False, comment="Seconds since 1970"),
        sa.Column(
            "seen", sa.Float, nullable=False, comment="Seconds since 1970 of the last request"
        ),
        comment="Who is signed in to the pages",
    )
    op.create_table(
        "answer",
        sa.Column("key", sa.LargeBinary(32), primary_key=True, comment="SHA-256 of the question"),
        sa.Column("metric", sa.String(64), nullable=False, comment="Name of the metric"),
        sa.Column("state", sa.String(8), nullable=False, comment="running, done or failed"),
        sa.Column("step", sa.Text, nullable=False, comment="Step, or the reason of a failure"),
        sa.Column("status", sa.Integer, nullable=False, comment="HTTP status of the page"),
        sa.Column("began", sa.Float, nullable=False, comment="Seconds since 1970"),
        sa.Column(
            "seen",
            sa.Float,
            nullable=False,
            comment="Seconds since 1970 of the last change or use",
        ),
        sa.Column("size", sa.Integer, nullable=False, comment="Bytes of the page and the files"),
        sa.Column("page", sa.LargeBinary, comment="What the page shows, MessagePack"),
        sa.Column("files", sa.LargeBinary, comment="Its files, MessagePack"),
        comment="Answers of the pages, made from released counts, and those that are being made",
    )
