"""Table of the checks of an audit, which tests an encoder or a client for faults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rappor.reporting.tables import Column, Table


def checks_table(checks: Sequence[Any]) -> Table[Any]:
    """Return the table of the checks, with their verdicts, findings and p-values.

    The checks have the type `Any`, because only `cli` may import `rappor.auditing`.
    """
    return Table(
        title="Checks",
        columns=(
            Column("check", lambda check: check.name, "text"),
            Column("verdict", lambda check: check.verdict, "text"),
            Column("finding", lambda check: check.detail, "text"),
            Column(
                "p-value",
                lambda check: "" if check.p_value is None else f"{check.p_value:.2g}",
            ),
        ),
        rows=checks,
    )
