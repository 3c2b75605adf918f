"""Frozen ranges go: closed blocks never change, so a range of them stays what it was."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Drop their table."""
    op.drop_table("freeze")
