"""Health of a collector: whether uploads reach the disk, and whether they are counted.

How to think about it: three independent conditions make a collector unready.

- A commit or a probe failed, and no commit has succeeded since. A successful query does not end the
  failure, because a full disk can still be read.
- The database has not responded to anything for 30 seconds. A hanging database raises no error, so
  only the time since the last response reveals the hang.
- The oldest batch of the inbox is older than ten minutes. Uploads are stored but not counted.

The log gets one line when a failure begins and one line when it ends, however many commits fail.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from rappor_server.base import logs

_DATABASE_TIMEOUT_SECONDS: Final = 30.0
"""Longest time in seconds without a response before the database counts as failing. A larger value
notices a hang later, a smaller one reports a slow disk."""
_MAX_BATCH_AGE_SECONDS: Final = 600.0
"""Age in seconds of the oldest batch at which the collector counts as failing. Merges begin after a
minute at most. A larger value notices failing merges later."""


class Health:
    """Keeps the results of the last commits, probes and merges. Any thread may call it."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        write: Callable[..., None] = logs.log_event,
    ) -> None:
        """Start healthy; log changes by `write(event, level=..., **fields)`."""
        self._clock = clock
        self._write = write
        self._lock = threading.Lock()
        self._failing_since: float | None = None
        self._reason = ""
        self._last_response = clock()
        self._oldest_seconds = 0.0
        self._merge_failure = ""

    def record_failure(self, reason: str) -> None:
        """Record that a commit or a probe failed."""
        with self._lock:
            # Each upload of a failing database records a failure. Only the first one is logged.
            is_first = self._failing_since is None
            if is_first:
                self._failing_since = self._clock()
            self._reason = reason
        if is_first:
            self._write("database failing", level=logging.ERROR, reason=reason)

    def record_commit(self) -> None:
        """Record that a commit is on the disk."""
        with self._lock:
            since, self._failing_since = self._failing_since, None
            self._last_response = self._clock()
        if since is not None:
            seconds = round(self._clock() - since)
            self._write("database recovered", level=logging.WARNING, seconds=seconds)

    def record_response(self) -> None:
        """Record that the database responded to a query, which is no proof that it can write."""
        with self._lock:
            self._last_response = self._clock()

    def record_merge(self, failure: str, oldest_seconds: float) -> None:
        """Record why merging fails, empty if it works, and the age of the oldest batch."""
        previous, self._merge_failure = self._merge_failure, failure
        self._oldest_seconds = oldest_seconds
        if failure and not previous:
            self._write("merging failed", level=logging.ERROR, reason=failure)
        if previous and not failure:
            self._write("merging recovered", level=logging.WARNING)

    def is_failing(self) -> bool:
        """Return whether the last commit or probe failed."""
        return self._failing_since is not None

    def failure_reason(self) -> str | None:
        """Return the reason why uploads are not stored or not counted now, or None."""
        with self._lock:
            if self._failing_since is not None:
                return self._reason
            if self._clock() - self._last_response > _DATABASE_TIMEOUT_SECONDS:
                return "the database does not respond"
            if self._oldest_seconds > _MAX_BATCH_AGE_SECONDS:
                return f"uploads are not counted: {self._merge_failure or 'no process merges them'}"
        return None
