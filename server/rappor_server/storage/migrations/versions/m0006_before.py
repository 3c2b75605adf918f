"""The schema before the inbox, which databases may still have; new ones begin with the newest."""

from __future__ import annotations

revision = "0006"
down_revision = None


def upgrade() -> None:
    """Leave the tables to the versions that made them."""
