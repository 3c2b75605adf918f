"""The background sender: a thread that sleeps until an upload may leave, and then sends it.

A failure of a step is passed to the client, and the thread tries again an hour later. The next
`nudge` starts the thread again if it could not start, or has died.
"""

from __future__ import annotations

import atexit
import math
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final

from rappor.base.threads import start_thread
from rappor_client.folder.own_folder import BusyError
from rappor_client.outbox.uploader import Uploader
from rappor_client.periods import HOUR, Clock

_END_SECONDS: Final = 0.05
"""Time that the end of the program waits for the thread. An exchange under way takes longer, and is
left alone: the next run sends the upload again, under the same id."""
_BUSY_SECONDS: Final = 5.0
"""Time until the next step where a lock was held, or the disk did not answer."""
_BACKLOG_SECONDS: Final = 1.0
"""Limits the random delay between two reports of an earlier run."""
_LONGEST_SLEEP_SECONDS: Final = HOUR
"""Longest sleep of the thread. The machine may be suspended, or its clock be set, while the thread
sleeps: so it compares the clock with the time of the next step every hour."""


class Sender:
    """Runs the steps of an uploader at their times, in a thread that the first nudge starts."""

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
        """Notify the thread that a report is queued, which it sends after a random delay."""
        with self._wake:
            if self._is_stopped or (self._is_nudged and self._is_alive()):
                return
            self._wake_at(time.monotonic() + self.uploader.delay())

    def catch_up(self, n_reports: int) -> None:
        """Send the reports that an earlier run left: the first at once, the others soon after it.

        Short delays reveal nothing here, because the events are long past. They matter, because the
        process may end soon.
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
        """Set the time of a step, and start the thread unless it lives."""
        if not self._is_alive():
            thread = threading.Thread(target=self._run, name="rappor-sender", daemon=True)
            try:
                start_thread(thread)
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
        """Run a step and return the seconds until the next one, None if nothing is queued."""
        step = self.uploader.step(is_backlog=self._n_backlog > 0)
        if not step.is_attempt:
            self._n_backlog = 0
            return None if step.due is None else wait(step.due - self._clock())
        assert step.due is not None
        self._n_backlog -= 1
        longest = _BACKLOG_SECONDS if self._n_backlog > 0 else math.inf
        return wait(step.due - self._clock(), delay=self.uploader.delay(at_most=longest))

    def _sleep(self) -> bool:
        """Sleep until the time of the next step; return False if the sender was stopped."""
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
        """Set the time of the next step, unless a nudge has set an earlier time meanwhile."""
        if seconds is None:
            return
        planned = time.monotonic() + seconds
        self._due = planned if self._due is None else min(self._due, planned)


_ALL: Final[weakref.WeakSet[Sender]] = weakref.WeakSet()
"""All objects whose threads the end of the program ends."""


@atexit.register
def _at_exit() -> None:
    """End all threads before the interpreter ends."""
    # A daemon thread that wakes while the interpreter ends is killed by `pthread_exit`, which
    # aborts the process where no handle is free for the library that it loads.
    for sender in list(_ALL):
        sender.stop(seconds=_END_SECONDS)


def wait(seconds: float, *, delay: float = 0.0) -> float:
    """Return the seconds to sleep: an hour at most, because a clock may be set, plus the delay.

    The delay is never cut, because a shorter one would reveal the time of the event.
    """
    return min(max(seconds, 0.0), _LONGEST_SLEEP_SECONDS) + delay
