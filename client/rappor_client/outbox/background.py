"""The background thread: it sleeps until an upload is due and ends with the process.

Whatever fails in it is told to the client, and it goes on an hour later. A thread that could not be
started, or has died, is started by the next nudge.
"""

from __future__ import annotations

import atexit
import math
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final

from rappor.base.threads import begin
from rappor_client.folder.own_folder import BusyError
from rappor_client.outbox.uploader import Uploader
from rappor_client.periods import HOUR, Clock

_END_SECONDS: Final = 0.05
"""Time that the end of the program waits for the thread. An exchange under way takes longer, and is
left alone: the next run sends the upload again, under the same id."""
_BUSY_SECONDS: Final = 5.0
_BACKLOG_SECONDS: Final = 1.0
_LONGEST_SLEEP_SECONDS: Final = HOUR
"""A machine may sleep, or set its clock, while the thread does: it looks again every hour."""


class Sender:
    """Runs an uploader's steps when they are due; there is no thread until the first nudge."""

    def __init__(
        self,
        uploader: Uploader,
        *,
        clock: Clock,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self.uploader = uploader
        self._clock = clock
        self._on_failure = on_failure
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_nudged = False
        self._is_stopped = False
        self._n_backlog = 0
        _ALL.add(self)
        self._due: float | None = None  # by the monotonic clock, which nobody can set back

    def nudge(self) -> None:
        """Notify the thread that a report waits; it is sent after a random delay."""
        with self._wake:
            if self._is_stopped or (self._is_nudged and self._is_alive()):
                return
            self._wake_at(time.monotonic() + self.uploader.delay())

    def catch_up(self, n_reports: int) -> None:
        """Send what an earlier run has left: the first report at once, each other a moment later.

        Its events are long past, so its delays are short: the process may not live for long.
        """
        with self._wake:
            if not self._is_stopped:
                self._n_backlog = n_reports
                self._wake_at(time.monotonic())

    def stop(self, *, seconds: float) -> None:
        """End the thread; a request that is under way may outlast this call, and these seconds."""
        with self._wake:
            self._is_stopped = True
            self._wake.notify()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(seconds, 0.0))

    def _wake_at(self, due: float) -> None:
        """Plan a step, and see to it that a thread is there to take it."""
        if not self._is_alive():
            thread = threading.Thread(target=self._run, name="rappor-sender", daemon=True)
            try:
                begin(thread)
            except RuntimeError as error:  # no thread is to be had: what waits stays on the disk
                self._on_failure(error)
                return
            self._thread = thread
        self._is_nudged = True
        self._due = due if self._due is None else min(self._due, due)
        self._wake.notify()

    def _is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        while self._sleep():
            try:
                seconds = self._step()
            except BusyError:
                seconds = _BUSY_SECONDS
            except Exception as error:  # noqa: BLE001 - the sender outlives whatever fails
                self._on_failure(error)
                seconds = HOUR
            with self._wake:
                self._plan(seconds)

    def _step(self) -> float | None:
        """Take a step and return the seconds to the next one; None if nothing waits."""
        step = self.uploader.step(is_backlog=self._n_backlog > 0)
        if not step.is_attempt:
            self._n_backlog = 0
            return None if step.due is None else wait(step.due - self._clock())
        assert step.due is not None
        self._n_backlog -= 1
        longest = _BACKLOG_SECONDS if self._n_backlog > 0 else math.inf
        return wait(step.due - self._clock(), delay=self.uploader.delay(at_most=longest))

    def _sleep(self) -> bool:
        """Wait until a step is due; False if there is to be none."""
        with self._wake:
            while not self._is_stopped:
                if self._due is None:
                    self._wake.wait()
                elif (seconds := self._due - time.monotonic()) > 0:
                    self._wake.wait(min(seconds, _LONGEST_SLEEP_SECONDS))
                else:
                    self._is_nudged = False  # what is recorded from here on is for the next step
                    self._due = None
                    return True
        return False

    def _plan(self, seconds: float | None) -> None:
        """Set the next step, unless a nudge has set an earlier one meanwhile."""
        if seconds is None:
            return
        planned = time.monotonic() + seconds
        self._due = planned if self._due is None else min(self._due, planned)


_ALL: Final[weakref.WeakSet[Sender]] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    """End all threads before the interpreter ends."""
    # A daemon thread that wakes while the interpreter ends is killed by `pthread_exit`, which
    # aborts the process where no handle is free for the library that it loads.
    for sender in list(_ALL):
        sender.stop(seconds=_END_SECONDS)


def wait(seconds: float, *, delay: float = 0.0) -> float:
    """Return how long to wait: an hour at most by a clock that may be set, and all of the delay.

    A shorter delay would reveal the moment of the event.
    """
    return min(max(seconds, 0.0), _LONGEST_SLEEP_SECONDS) + delay
