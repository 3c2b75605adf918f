"""The first schema."""

from __future__ import annotations

from alembic import op

from rappor_server.storage import schema

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create all tables; a later step adds only tables and columns that do not exist."""
    schema.metadata.create_all(op.get_bind(), checkfirst=False)
