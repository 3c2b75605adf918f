"""What the log tells of uploads: totals, and nothing of a single one."""

from __future__ import annotations

from collectors import report_of, submission_of, upload_of
from rappor_server.operations.activity import Activity


def test_a_line_holds_the_totals_since_the_last_one() -> None:
    """Accepted and refused reports, uploads refused whole; an idle minute has no line."""
    lines: list[dict[str, object]] = []
    activity = Activity(write=lambda event, **fields: lines.append({"event": event, **fields}))
    activity.log_totals()
    body = upload_of(report_of(), report_of("sound"), report_of("old"))
    activity.count([submission_of(body), submission_of(upload_of())])
    activity.count_refused()
    activity.log_totals()
    activity.count_refused()
    activity.log_totals()
    activity.log_totals()
    assert lines == [
        {"event": "uploads received", "uploads": 2, "reports": 3, "refused": 2},
        {"event": "uploads received", "uploads": 0, "reports": 0, "refused": 1},
    ]
