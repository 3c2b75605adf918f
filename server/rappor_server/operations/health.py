"""Whether uploads reach the disk; the log tells when that ends, and when it is so again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from rappor_server.base import logs

_SILENT_SECONDS: Final = 30.0
"""After how long without any answer the database counts as failing."""
_UNCOUNTED_SECONDS: Final = 600.0
"""After how long what has come should have been counted."""


class Health:
    """What the last commits and probes came to; for any thread."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        write: Callable[..., None] = logs.event,
    ) -> None:
        """Begin well; tell changes by `write(event, level=..., **fields)`."""
        self._clock = clock
        self._write = write
        self._lock = threading.Lock()
        self._failing_since: float | None = None
        self._reason = ""
        self._answered = clock()
        self._oldest_seconds = 0.0
        self._folding_trouble = ""

    def failed(self, reason: str) -> None:
        """Note that a commit or a probe has failed."""
        with self._lock:
            is_first = self._failing_since is None
            if is_first:
                self._failing_since = self._clock()
            self._reason = reason
        if is_first:
            self._write("database failing", level=logging.ERROR, reason=reason)

    def worked(self) -> None:
        """Note that a commit, or the writing of a probe, is on the disk."""
        with self._lock:
            since, self._failing_since = self._failing_since, None
            self._answered = self._clock()
        if since is not None:
            seconds = round(self._clock() - since)
            self._write("database recovered", level=logging.WARNING, seconds=seconds)

    def answered(self) -> None:
        """Note that the database answers a query; whether it can write is another matter."""
        with self._lock:
            self._answered = self._clock()

    def folded(self, trouble: str, oldest_seconds: float) -> None:
        """Note what hinders folding, if anything does, and how long the oldest upload waits."""
        before, self._folding_trouble = self._folding_trouble, trouble
        self._oldest_seconds = oldest_seconds
        if trouble and not before:
            self._write("folding failed", level=logging.ERROR, reason=trouble)
        if before and not trouble:
            self._write("folding recovered", level=logging.WARNING)

    def is_failing(self) -> bool:
        """Return whether the last commit or probe failed."""
        return self._failing_since is not None

    def trouble(self) -> str | None:
        """Say why uploads cannot be stored now, None if they can."""
        with self._lock:
            if self._failing_since is not None:
                return self._reason
            if self._clock() - self._answered > _SILENT_SECONDS:
                return "the database does not answer"
            if self._oldest_seconds > _UNCOUNTED_SECONDS:
                return f"uploads wait to be counted: {self._folding_trouble or 'nobody folds'}"
        return None
