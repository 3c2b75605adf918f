"""Columns under the names that settings and documents use."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Rename columns; PostgreSQL keeps comments, which change with them."""
    op.execute("ALTER TABLE tally RENAME COLUMN apart TO quarantine")
    op.execute("ALTER TABLE token RENAME COLUMN made TO created")
    op.execute('ALTER TABLE "freeze" RENAME COLUMN made TO created')
    if op.get_bind().dialect.name == "postgresql":
        op.execute("COMMENT ON COLUMN tally.quarantine IS 'True for suspicious reports'")
        op.execute("COMMENT ON COLUMN token.created IS 'Day (UTC) on which it was created'")
