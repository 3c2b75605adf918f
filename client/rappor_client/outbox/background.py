"""The background sender: a thread that sleeps until an upload may leave, and then sends it.

A step of the uploader (`Uploader.step`) sends one upload if one may leave, and returns the time of
the next step. The sender runs these steps at their times, and adds random delays. The delays hide
the time of an event from an observer of the network.

The thread has three states:

    asleep    waits for the time of the next step. Without a time it waits for a call of `nudge`
    stepping  runs one step of the uploader
    ended     after `stop`, or because it could not start

These calls and results plan the next step:

    nudge           a report was queued: next step after a random delay of up to `max_delay`
    catch_up        an earlier run left reports: next step now, and then pauses of a second at most
    attempt         next step at the time that the uploader returned, plus a random delay
    no attempt      next step at the time that the uploader returned
    lock or disk    another process had a lock, or the disk was slow: next step 5 s later
    step failed     the client counts the failure, and the next step comes an hour later
    stop            the thread ends

If several calls have planned a step, the earliest time counts. `nudge` and `catch_up` start the
thread again if it could not start, or has died.

Example with `max_delay = 900`: two reports become sendable at 00:00. The nudge at 00:00:01 draws a
delay of 412 s, so the first report leaves at 00:06:53. After it the thread draws 130 s, and the
second report leaves at 00:09:03, over a connection of its own.

The thread measures time with the monotonic clock, because the clock of the system may be set.
"""

from __future__ import annotations

import atexit
import math
import os
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
"""Longest time, in seconds, that the end of the program waits for the thread. A request to the
collector may take longer. The request is then cut off, and the next run sends the upload again
under the same id. A larger value delays the end of such a program."""
_BUSY_SECONDS: Final = 5.0
"""Time until the next step, in seconds, if another process held a lock or the disk did not answer
in time. A smaller value asks a busy disk more often. A larger value sends later."""
_BACKLOG_SECONDS: Final = 1.0
"""Largest random delay, in seconds, between two reports of the backlog, the reports that an earlier
run left. A larger value leaves more of them unsent when the program ends soon."""
_MAX_SLEEP_SECONDS: Final = HOUR
"""Longest sleep of the thread, in seconds. While the thread sleeps, the machine may be suspended or
its clock may be set. So the thread compares the clock with the time of the next step every hour."""


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
        self._has_planned_step = False  # since the last step, by `nudge` or `catch_up`
        self._is_stopped = False
        self._process = os.getpid()
        self._n_backlog = 0  # reports of an earlier run that are still to be sent
        self._next_at: float | None = None  # by the monotonic clock
        _ALL.add(self)

    def nudge(self) -> None:
        """Notify the thread that a report is queued. The thread sends it after a random delay."""
        with self._wake:
            # A second nudge before the step would draw another delay. The earliest of many delays
            # is short, and a short delay reveals the time of the event.
            if self._is_stopped or (self._has_planned_step and self._is_alive()):
                return
            self._plan_step(time.monotonic() + self.uploader.draw_delay())

    def catch_up(self, n_reports: int) -> None:
        """Send the reports that an earlier run left: the first at once, the others soon after it.

        Delays are short here, because the process may end soon. The short delays reveal nothing,
        because the events are long past.
        """
        with self._wake:
            if not self._is_stopped:
                self._n_backlog = n_reports
                self._plan_step(time.monotonic())

    def stop(self, *, seconds: float) -> None:
        """End the thread, and wait up to `seconds` for its end.

        A request to the collector may last longer than the call. `Uploader.close` severs the
        request.
        """
        with self._wake:
            self._is_stopped = True
            self._wake.notify()
        thread = self._thread
        # Code that the thread runs, such as a log handler of the host, may close the client. The
        # thread cannot wait for its own end.
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(seconds, 0.0))

    @property
    def is_of_parent(self) -> bool:
        """Whether this process is a child of the process that created the sender."""
        return self._process != os.getpid()

    def _plan_step(self, timestamp: float) -> None:
        """Start the thread if necessary, and plan a step unless an earlier step is planned.

        `timestamp` is the time of the step by the monotonic clock. The caller holds `_wake`.
        """
        if not self._is_alive():
            thread = threading.Thread(target=self._run, name="rappor-sender", daemon=True)
            try:
                start_thread(thread)
            except RuntimeError as error:  # no thread can start: the reports stay on the disk
                self._on_failure(error)
                return
            self._thread = thread
        self._has_planned_step = True
        self._set_earlier_time(timestamp)
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
            if seconds is not None:
                with self._wake:
                    self._set_earlier_time(time.monotonic() + seconds)

    def _step(self) -> float | None:
        """Run a step and return the seconds until the next step, None if no report is queued."""
        # After a cooldown the uploader spreads late reports over the next interval. It does not
        # wait for this spread with a backlog, because the program may end before.
        step = self.uploader.step(is_backlog=self._n_backlog > 0)
        if not step.is_attempt:
            # Nothing of the backlog may leave now. Later reports have ordinary delays.
            self._n_backlog = 0
            return None if step.next_at is None else limit_sleep(step.next_at - self._clock())
        assert step.next_at is not None  # after an attempt the uploader always plans a step
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
                    # The step that follows may be too early for a report that is queued from now
                    # on, so the next nudge must plan another step.
                    self._has_planned_step = False
                    self._next_at = None
                    return True
        return False

    def _set_earlier_time(self, timestamp: float) -> None:
        """Set the time of the next step, unless an earlier time is set."""
        self._next_at = timestamp if self._next_at is None else min(self._next_at, timestamp)


_ALL: Final[weakref.WeakSet[Sender]] = weakref.WeakSet()
"""All senders of the process, whose threads end before the interpreter ends."""


@atexit.register
def _end_all() -> None:
    """End all threads before the interpreter ends."""
    # While the interpreter ends, it kills a daemon thread that wakes with `pthread_exit`. That
    # function loads a library, and aborts the process if no file handle is free for the library.
    for sender in list(_ALL):
        # The child of a fork has a copy of its parent's sender, and no thread of it. Bad case: the
        # thread held `_wake` during the fork, so the end of the child waited for it without end.
        if not sender.is_of_parent:
            sender.stop(seconds=_END_SECONDS)


def limit_sleep(seconds: float, *, delay: float = 0.0) -> float:
    """Return the seconds to sleep: at most an hour, because a clock may be set, plus the delay.

    The limit does not apply to the delay. When it did, long delays became an hour, and all uploads
    but the first left exactly an hour after the step before.
    """
    return min(max(seconds, 0.0), _MAX_SLEEP_SECONDS) + delay
