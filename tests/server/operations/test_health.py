"""Health of a collector: readiness, and lines of the log."""

from __future__ import annotations

from typing import Any

from rappor_server.operations.health import Health


def test_failure_and_recovery_are_logged_once() -> None:
    """A failure of the database writes one line when it begins, and one when a commit succeeds.

    Every upload of a failing database is a failure, and a line for each would fill the disk, which
    may be full already. A successful query does not end the failure, because a full disk can still
    be read. A load balancer reads `failure_reason` and sends no uploads while there is a reason.
    """
    now, log_lines = [0.0], list[tuple[str, dict[str, Any]]]()
    health = Health(
        clock=lambda: now[0], write=lambda name, **fields: log_lines.append((name, fields))
    )
    assert health.failure_reason() is None
    for reason in ("disk", "disk", "lock"):
        health.record_failure(reason)
    now[0] = 90.0
    health.record_response()  # a query has a result, but nothing is on the disk
    assert health.failure_reason() == "lock"
    health.record_commit()
    health.record_commit()
    assert health.failure_reason() is None
    assert [name for name, _ in log_lines] == ["database failing", "database recovered"]
    assert log_lines[0][1]["reason"] == "disk"
    assert log_lines[1][1]["seconds"] == 90


def test_silent_database_is_not_ready() -> None:
    """A collector is not ready after 30 seconds without a response of the database.

    A database that hangs raises no error, so the time since its last response is the only sign. Any
    response ends the fault: the result of a query, or a commit.
    """
    now = [0.0]
    health = Health(clock=lambda: now[0])
    now[0] = 30.0
    assert health.failure_reason() is None
    now[0] = 31.0
    assert health.failure_reason() == "the database does not respond"
    health.record_response()
    assert health.failure_reason() is None
    now[0] = 62.0
    health.record_commit()
    assert health.failure_reason() is None
