"""The background sender: a thread that sleeps until an upload may leave, and then sends it.

The thread has three states:

    asleep    waits for the time of the next step. Without a time it waits for a nudge
    stepping  runs one step of the uploader
    ended     after `stop`, or because it could not start

    nudge(now)      a report was queued: next step after a random delay of up to `max_delay`
    catch_up        an earlier run left reports: next step now, then one each second at most
    step succeeded  next step at the time that the uploader returned, plus a random delay
    step failed     the client counts the failure, and the next step comes an hour later
    stop            the thread ends

Of several times the earliest one counts. A nudge starts the thread again if it could not start, or
has died.

Example with `max_delay = 900`: two reports become sendable at 00:00. The nudge at 00:00:01 draws a
delay of 412 s, so the first report leaves at 00:06:53. After it the thread draws 130 s, and the
second report leaves at 00:09:03, over a connection of its own.

The thread measures time with the monotonic clock, because the clock of the system may be set.
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
from rappor_client.folder.identity_folder import BusyError
from rappor_client.outbox.uploader import Uploader
from rappor_client.periods import HOUR, Clock

_END_SECONDS: Final = 0.05
"""Longest time that the end of the program waits for the thread. An exchange under way takes longer
and is left alone: the next run sends the upload again, under the same id."""
_BUSY_SECONDS: Final = 5.0
"""Time until the next step if another process held a lock, or the disk did not answer."""
_BACKLOG_SECONDS: Final = 1.0
"""Limits the random delay, in seconds, between two reports of an earlier run. A larger value leaves
more reports unsent when the program ends soon."""
_MAX_SLEEP_SECONDS: Final = HOUR
"""Longest sleep of the thread. The machine may be suspended, or its clock be set, while the thread
sleeps: so the thread compares the clock with the time of the next step every hour."""


class Sender:
    """Runs the steps of an uploader at their times, in a thread that the first nudge starts.

    Parameters
    ----------
    uploader
        The uploader.
    clock
        Returns seconds since 1970.
    on_failure
        Called with the exception of a failed step.
    """

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
        self._next_at: float | None = None  # by the monotonic clock

    def nudge(self) -> None:
        """Notify the thread that a report is queued. The thread sends it after a random delay."""
        with self._wake:
            # A second nudge before the step would draw another delay. The earliest of many delays
            # is short, and a short delay reveals the time of the event.
            if self._is_stopped or (self._is_nudged and self._is_alive()):
                return
            self._wake_at(time.monotonic() + self.uploader.draw_delay())

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
        """End the thread, and wait for its end for some seconds at most.

        A request under way may outlast the call. `Uploader.close` severs it.
        """
        with self._wake:
            self._is_stopped = True
            self._wake.notify()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(seconds, 0.0))

    def _wake_at(self, timestamp: float) -> None:
        """Set the time of a step unless an earlier step is planned, and start the thread."""
        if not self._is_alive():
            thread = threading.Thread(target=self._run, name="rappor-sender", daemon=True)
            try:
                start_thread(thread)
            except RuntimeError as error:  # no thread can start: the reports stay on the disk
                self._on_failure(error)
                return
            self._thread = thread
        self._is_nudged = True
        self._next_at = timestamp if self._next_at is None else min(self._next_at, timestamp)
        self._wake.notify()

    def _is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        """Sleep and step in turns until the sender is stopped."""
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
        """Run a step and return the seconds until the next step, None if no report is queued."""
        step = self.uploader.step(is_backlog=self._n_backlog > 0)
        if not step.is_attempt:
            self._n_backlog = 0
            return None if step.next_at is None else limit_sleep(step.next_at - self._clock())
        assert step.next_at is not None
        self._n_backlog -= 1
        longest = _BACKLOG_SECONDS if self._n_backlog > 0 else math.inf
        delay = self.uploader.draw_delay(at_most=longest)
        return limit_sleep(step.next_at - self._clock(), delay=delay)

    def _sleep(self) -> bool:
        """Sleep until the time of the next step; return False if the sender was stopped."""
        with self._wake:
            while not self._is_stopped:
                if self._next_at is None:
                    self._wake.wait()
                elif (seconds := self._next_at - time.monotonic()) > 0:
                    self._wake.wait(min(seconds, _MAX_SLEEP_SECONDS))
                else:
                    self._is_nudged = False  # a report that is queued from here on nudges again
                    self._next_at = None
                    return True
        return False

    def _plan(self, seconds: float | None) -> None:
        """Set the time of the next step, unless a nudge during the step has set an earlier time."""
        if seconds is None:
            return
        planned = time.monotonic() + seconds
        self._next_at = planned if self._next_at is None else min(self._next_at, planned)


_ALL: Final[weakref.WeakSet[Sender]] = weakref.WeakSet()
"""All senders of the process, whose threads end before the interpreter ends."""


@atexit.register
def _end_all() -> None:
    """End all threads before the interpreter ends."""
    # A daemon thread that wakes while the interpreter ends is killed by `pthread_exit`, which
    # aborts the process if no handle is free for the library that it loads.
    for sender in list(_ALL):
        sender.stop(seconds=_END_SECONDS)


def limit_sleep(seconds: float, *, delay: float = 0.0) -> float:
    """Return the seconds to sleep: at most an hour, because a clock may be set, plus the delay.

    The limit never cuts the delay. The hour once cut the delays too, and all uploads but the first
    left exactly an hour after the step before.
    """
    return min(max(seconds, 0.0), _MAX_SLEEP_SECONDS) + delay
