"""Whether uploads reach the disk, and what the log says when that changes."""

from __future__ import annotations

from typing import Any

from rappor_server.operations.health import Health


def test_failing_and_recovery_are_told_once_each() -> None:
    """However many commits fail in between, and readiness follows the last one."""
    now, told = [0.0], list[tuple[str, dict[str, Any]]]()
    health = Health(clock=lambda: now[0], write=lambda name, **fields: told.append((name, fields)))
    assert health.trouble() is None
    for reason in ("disk", "disk", "lock"):
        health.failed(reason)
    now[0] = 90.0
    health.answered()  # a query is answered, but nothing is on the disk
    assert health.trouble() == "lock"
    health.worked()
    health.worked()
    assert health.trouble() is None
    assert [name for name, _ in told] == ["database failing", "database recovered"]
    assert told[0][1]["reason"] == "disk"
    assert told[1][1]["seconds"] == 90


def test_a_database_that_says_nothing_is_not_ready() -> None:
    """Neither a failure nor an answer for half a minute is trouble."""
    now = [0.0]
    health = Health(clock=lambda: now[0])
    now[0] = 31.0
    assert health.trouble() == "the database does not answer"
    health.answered()
    assert health.trouble() is None
    now[0] = 62.0
    health.worked()  # a commit is an answer, too
    assert health.trouble() is None
