"""The tables of schema 6, the oldest from which databases are migrated."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = None

_METRIC = "Name of the metric"
_PARAMS = "Fingerprint of the parameters"
_COHORT = "Cohort, from 0"
_DAY = "Day (UTC) of receipt"
_ONES = "k little-endian 64-bit sums of bits"


def upgrade() -> None:
    """Make the tables."""
    _table(
        "shard",
        "One row for each day of a collector's run; it alone writes its shard's counters",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        _column("day", sa.Date, "Day (UTC) of its counters"),
    )
    _table(
        "day_table",
        "The tables KIND_YYYYMMDD, one for each day on which something was received",
        _key("kind", sa.String(8), "What it holds: upload, part or kept"),
        _key("day", sa.Date, _DAY),
        _column("shuffled", sa.Boolean, "True once its rows are in random order"),
    )
    _table(
        "params",
        "Every parameter set under which reports were counted",
        _key("fingerprint", sa.String(16), _PARAMS),
        _column("document", sa.Text, "The parameters as canonical JSON"),
    )
    _table(
        "tally",
        "Counts of reports: sums over devices, never a report",
        _key("metric", sa.String(64), _METRIC),
        _key("params", sa.String(16), _PARAMS),
        _key("day", sa.Date, _DAY),
        _key("quarantine", sa.Boolean, "True for suspicious reports"),
        _key("cohort", sa.Integer, _COHORT),
        _key("shard", sa.Integer, "Who wrote it"),
        _column("reports", sa.BigInteger, "Number of reports"),
        _column("ones", sa.LargeBinary, _ONES),
    )
    _table(
        "refusal",
        "How much was refused and why",
        _key("day", sa.Date, _DAY),
        _key("metric", sa.String(64), "Metric, empty where it is not known"),
        _key("reason", sa.String(32), "Reason in a word or two"),
        _key("shard", sa.Integer, "Who wrote it"),
        _column("number", sa.BigInteger, "Number of reports or uploads"),
    )
    _table(
        "token",
        "Analysts' tokens, as hashes",
        _key("id", sa.String(16), "Public name of the token"),
        _column("digest", sa.LargeBinary(32), "SHA-256 of the token"),
        _column("metrics", sa.Text, "JSON list of allowed metrics; null: all"),
        sa.Column("expires", sa.Date, comment="Last day (UTC) of validity; null: none"),
        sa.Column("revoked", sa.Date, comment="Day (UTC) of revocation; null: valid"),
        _column("created", sa.Date, "Day (UTC) on which it was created"),
    )
    _table(
        "block",
        "Sums of consecutive whole days of a cohort; a closed one never changes",
        _key("metric", sa.String(64), _METRIC),
        _key("params", sa.String(16), _PARAMS),
        _key("cohort", sa.Integer, _COHORT),
        _key("last", sa.Date, "Last day (UTC) of the block"),
        _column("first", sa.Date, "First day (UTC) of the block"),
        _column("closed", sa.Boolean, "True once it holds enough to be released"),
        _column("reports", sa.BigInteger, "Number of reports"),
        _column("ones", sa.LargeBinary, _ONES),
    )
    counted = ["metric", "closed", "params", "last", "cohort", "first", "reports"]
    op.create_index("ix_block_reports", "block", counted)
    _table(
        "blocked",
        "How far the counts of each metric have been moved into blocks",
        _key("metric", sa.String(64), _METRIC),
        _column("through", sa.Date, "Last day (UTC) whose counts are in blocks"),
    )
    _table(
        "candidate_list",
        "Lists of candidates that people keep for a metric",
        _key("metric", sa.String(64), _METRIC),
        _key("name", sa.String(64), "Name of the list"),
        _column("created", sa.Date, "Day (UTC) on which it was kept"),
        _column("candidates", sa.Integer, "Number of its candidates"),
        _column("contents", sa.LargeBinary, "The candidates, one a line, UTF-8"),
    )


def _table(name: str, comment: str, *columns: sa.Column[Any]) -> None:
    op.create_table(name, *columns, comment=comment)


def _key(name: str, kind: Any, comment: str) -> sa.Column[Any]:
    return sa.Column(name, kind, primary_key=True, autoincrement=False, comment=comment)


def _column(name: str, kind: Any, comment: str) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, comment=comment)
