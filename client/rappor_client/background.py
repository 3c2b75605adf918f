"""The background thread: it sleeps until an upload is due and ends with the process."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Final

from rappor_client.periods import HOUR, Clock
from rappor_client.uploader import Uploader

_JOIN_SECONDS: Final = 1.0


class Sender:
    """Runs an uploader's steps when they are due; there is no thread until the first nudge."""

    def __init__(
        self, uploader: Uploader, *, clock: Clock, on_failure: Callable[[Exception], None]
    ) -> None:
        """Keep the uploader to run and the function to call when the disk fails."""
        self._uploader = uploader
        self._clock = clock
        self._on_failure = on_failure
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_nudged = False
        self._is_stopped = False
        self._due: float | None = None  # by the monotonic clock, which nobody can set back

    def nudge(self) -> None:
        """Tell the thread that a report waits; it is sent after a random delay."""
        with self._wake:
            if self._is_stopped or self._is_nudged:
                return
            self._is_nudged = True
            due = time.monotonic() + self._uploader.delay()
            self._due = due if self._due is None else min(self._due, due)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rappor-sender", daemon=True)
                self._thread.start()
            self._wake.notify()

    def stop(self) -> None:
        """End the thread; a request that is under way may outlast this call."""
        with self._wake:
            self._is_stopped = True
            self._wake.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while self._sleep():
            try:
                step = self._uploader.step()
                due = step.due
                if step.is_attempt and due is not None:
                    due += self._uploader.delay()  # every upload waits for a time of its own
            except (sqlite3.Error, OSError) as error:
                self._on_failure(error)
                due = self._clock() + HOUR
            with self._wake:
                self._plan(due)

    def _sleep(self) -> bool:
        """Wait until a step is due; False if there is to be none."""
        with self._wake:
            while not self._is_stopped:
                if self._due is None:
                    self._wake.wait()
                elif (seconds := self._due - time.monotonic()) > 0:
                    self._wake.wait(min(seconds, threading.TIMEOUT_MAX))
                else:
                    self._is_nudged = False  # what is recorded from here on is for the next step
                    self._due = None
                    return True
        return False

    def _plan(self, due: float | None) -> None:
        """Set the next step, unless a nudge has set an earlier one meanwhile."""
        if due is None:
            return
        planned = time.monotonic() + max(due - self._clock(), 0.0)
        self._due = planned if self._due is None else min(self._due, planned)
