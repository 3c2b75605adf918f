"""The rules of blocks that were in force, by which reports that wait are judged."""

from __future__ import annotations

from alembic import op

from rappor_server.storage import schema

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the table, which the step before makes with all others."""
    schema.rule.create(op.get_bind(), checkfirst=True)
