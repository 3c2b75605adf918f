"""Health of a collector: readiness, and lines of the log."""

from __future__ import annotations

from typing import Any

from rappor_server.operations.health import Health


def test_failure_and_recovery_are_logged_once() -> None:
    """Further failures write no line. Readiness follows the last commit."""
    now, told = [0.0], list[tuple[str, dict[str, Any]]]()
    health = Health(clock=lambda: now[0], write=lambda name, **fields: told.append((name, fields)))
    assert health.failure_reason() is None
    for reason in ("disk", "disk", "lock"):
        health.record_failure(reason)
    now[0] = 90.0
    health.record_response()  # a query is answered, but nothing is on the disk
    assert health.failure_reason() == "lock"
    health.record_commit()
    health.record_commit()
    assert health.failure_reason() is None
    assert [name for name, _ in told] == ["database failing", "database recovered"]
    assert told[0][1]["reason"] == "disk"
    assert told[1][1]["seconds"] == 90


def test_silent_database_is_not_ready() -> None:
    """A collector is not ready after half a minute without a response of the database."""
    now = [0.0]
    health = Health(clock=lambda: now[0])
    now[0] = 31.0
    assert health.failure_reason() == "the database does not respond"
    health.record_response()
    assert health.failure_reason() is None
    now[0] = 62.0
    health.record_commit()  # a commit is an answer, too
    assert health.failure_reason() is None
