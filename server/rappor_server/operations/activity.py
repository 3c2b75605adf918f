"""What arrives, for the log: one line of totals in each minute in which something came.

Lines are written by a clock that does not depend on uploads, so that no line tells the second in
which a device sent something.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rappor_server.base import logs
from rappor_server.ingest.validate import Submission

TICK_SECONDS: Final = 60.0


class Activity:
    """Uploads, reports and refusals since the last line of the log."""

    def __init__(self, *, write: Callable[..., None] = logs.event) -> None:
        """Write lines by `write(event, **fields)`."""
        self._write = write
        self._uploads = self._reports = self._refused = 0

    def count(self, submissions: Sequence[Submission]) -> None:
        """Count the uploads of one commit, their accepted reports and their refused ones."""
        reports = sum(len(each.accepted) for each in submissions)
        refused = sum(sum(each.refusals.values()) for each in submissions)
        self._uploads += len(submissions)
        self._reports += reports
        self._refused += refused

    def count_refused(self) -> None:
        """Count an upload that was refused whole."""
        self._refused += 1

    def tell(self) -> None:
        """Write one line if anything has come since the last one."""
        uploads, reports, refused = self._uploads, self._reports, self._refused
        self._uploads = self._reports = self._refused = 0
        if uploads or refused:
            self._write("uploads received", uploads=uploads, reports=reports, refused=refused)
