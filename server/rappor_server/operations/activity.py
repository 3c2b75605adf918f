"""Log lines of received uploads: one line of totals for each minute in which any upload came.

A timer that does not depend on uploads writes the lines, so no line reveals the second in which a
device sent an upload.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rappor_server.base import logs
from rappor_server.ingest.validate import Submission

TICK_SECONDS: Final = 60.0
"""Time between two lines. A shorter time would reveal more about when devices send."""


class Activity:
    """Uploads, reports and refusals since the last line of the log."""

    def __init__(self, *, write: Callable[..., None] = logs.event) -> None:
        """Write lines by `write(event, **fields)`."""
        self._write = write
        self._uploads = self._reports = self._refused = 0

    def count(self, submissions: Sequence[Submission]) -> None:
        """Count the uploads of one commit, their accepted reports and their refused ones."""
        reports = sum(len(submission.accepted) for submission in submissions)
        refused = sum(sum(submission.refusals.values()) for submission in submissions)
        self._uploads += len(submissions)
        self._reports += reports
        self._refused += refused

    def count_refused(self) -> None:
        """Count an upload that was refused as a whole."""
        self._refused += 1

    def log_totals(self) -> None:
        """Write a line if any upload has come since the last line."""
        uploads, reports, refused = self._uploads, self._reports, self._refused
        self._uploads = self._reports = self._refused = 0
        if uploads or refused:
            self._write("uploads received", uploads=uploads, reports=reports, refused=refused)
