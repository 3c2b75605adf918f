"""Table of the checks of an audit, which tests an encoder or a client for faults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rappor.base.sentence_numbers import format_count
from rappor.reporting.tables import Column, Table


def checks_table(checks: Sequence[Any]) -> Table[Any]:
    """Return the table of the checks, with their verdicts, findings and p-values.

    The p-values are adjusted for the number of counts of their check (Bonferroni's correction).
    The checks have the type `Any`, because only `cli` may import `rappor.auditing`.
    """
    return Table(
        title="Checks",
        columns=(
            Column("check", lambda check: check.name, "text"),
            Column("verdict", lambda check: check.verdict, "text"),
            Column("finding", lambda check: check.detail, "text"),
            Column(
                "adjusted p-value",
                lambda check: "" if check.p_value is None else f"{check.p_value:.2g}",
            ),
        ),
        rows=checks,
    )


def format_verdict(checks: Sequence[Any]) -> str:
    """Return a sentence about the verdict of an audit: the faults, or the number of passed checks.

    The checks have the type `Any`, because only `cli` may import `rappor.auditing`.
    """
    faults = [check.name for check in checks if check.verdict == "fault"]
    n_unseen = sum(check.verdict == "not seen" for check in checks)
    if faults:
        verdict = f"{format_count(len(faults), 'fault')}: {'; '.join(faults)}."
    else:
        verdict = f"No fault found in {format_count(len(checks) - n_unseen, 'check')}."
    # Case: a check without a response to compare has no verdict. It must not count as passed.
    unseen = f" {format_count(n_unseen, 'check')} had nothing to compare." if n_unseen else ""
    return verdict + unseen
