"""Answers to analysts' programs beside those of the pages, so that any process serves them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_COMMENT = "Seconds since 1970 of a program's last request; null: a page"
_TABLE = "Answers that were made from released counts, and those that are being made"


def upgrade() -> None:
    """Add when a program asked last."""
    op.add_column("answer", sa.Column("asked", sa.Float, comment=_COMMENT))
    if op.get_bind().dialect.supports_comments:
        op.create_table_comment("answer", _TABLE)
