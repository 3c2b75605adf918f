"""The folder's thread: it makes every system call of a client on the device's folder.

A system call on a disk that hangs, such as a frozen file system or a dead network drive, does not
return until the disk answers, and nothing can interrupt it. So no caller of the client makes such a
call itself. A caller hands the thread a job and waits for the result until a deadline:

- The job ends in time: the caller gets its result or its exception.
- The deadline passes before the job has begun: the job is dropped, unless it is kept after a
  timeout.
- The deadline passes while the job runs: the job goes on, and ends when the disk answers.

In the last two cases the caller gets HungError, or BusyError where the thread is waiting for the
lock of another process. Jobs run one after the other, in the order in which they came.

Beside jobs the thread commits the events in memory (`write_waiting`), 20 ms after `wake`. The
thread starts with the first job. It ends with `end`, or after a second without a job.

Example of `flush(timeout=0.5)` on a disk that hangs for 8 s:

    0.0 s   the caller queues the job "commit and claim an upload". The thread begins it, and is
            inside a write when the disk hangs
    0.5 s   the caller gets HungError and returns. The job is still running
    1.0 s   another thread calls `opt_out`, which queues a job that is kept after a timeout, and
            waits for 2 s
    8.0 s   the disk answers. The first job ends, and its result is dropped. The second job runs
"""

from __future__ import annotations

import contextlib
import enum
import queue
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from rappor.base.threads import start_thread
from rappor_client.folder.forking import ForkAware
from rappor_client.folder.identity_folder import BusyError, HungError
from rappor_client.folder.tracebacks import remove_frames

_GATHER_SECONDS: Final = 0.02
"""Time between an event and its write, in seconds. A larger value puts more events into one
transaction, and a killed program loses more of them."""
_IDLE_SECONDS: Final = 1.0
"""Time without a job after which the thread ends, in seconds. A larger value saves starts of the
thread. A host that opens many clients and closes none has more threads then."""
_END_SECONDS: Final = 0.05
"""Longest time, in seconds, that a caller at the end of the program waits for the thread to end
after its job. A larger value delays the end of the program."""

_Result = TypeVar("_Result")


class _Signal(enum.Enum):
    """Signals in the queue of jobs."""

    WAKE = enum.auto()
    """Commit the events in memory soon."""
    END = enum.auto()
    """End after the jobs that are queued."""


class _Job:
    """An action that a caller hands to the thread, and its result.

    Attributes
    ----------
    ended
        A lock that is released when the action has ended. The caller waits for the release. This is
        a lock and no `threading.Event`, because the handler of a signal may fork the process while
        the caller waits. The child has no thread that runs the job, so `after_fork_in_child` must
        end the wait. The child can release a lock. It could not set an event: a wait for an event
        holds the inner lock of the event, and `set` needs the same lock.
    result, error
        Result or exception of the action. Before the action ends, the error is BusyError. The child
        of a fork has no thread that ends its parent's jobs, so a caller in the child gets this
        BusyError.
    on_failure
        Function that the thread calls with the exception of the action, because the caller has
        timed out and returned. None as long as the caller waits.
    """

    def __init__(self, action: Callable[[], object], *, is_kept_after_timeout: bool) -> None:
        self.ended = threading.Lock()
        self.ended.acquire()
        self.result: object = None
        self.error: BaseException | None = BusyError()
        self.on_failure: Callable[[Exception], object] | None = None
        self._action: Callable[[], object] | None = action
        self._is_kept_after_timeout = is_kept_after_timeout

    def run(self) -> None:
        """Run the action in the thread, unless the caller has abandoned the job."""
        action, self._action = self._action, None
        if action is None:
            return
        try:
            self.result, self.error = action(), None
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            # The caller's tools may print local variables, and the frames of the action contain the
            # permanent response and the secret.
            self.error = remove_frames(error)
        finally:
            self.end()
        # `on_failure` is read after `end`. The caller sets `on_failure` first, and then looks
        # whether the job has ended. So an exception is never lost.
        if self.on_failure is not None and isinstance(self.error, Exception):
            self.on_failure(self.error)

    def end(self) -> None:
        """Let the caller go on. A second call does nothing."""
        with contextlib.suppress(RuntimeError):
            self.ended.release()

    def abandon(self) -> None:
        """Drop an action that has not begun, unless the job is kept after a timeout."""
        if not self._is_kept_after_timeout:
            self._action = None


class FolderThread(ForkAware):
    """The one thread that uses a device's folder.

    Attributes
    ----------
    write_waiting
        Commits the events in memory, and returns the seconds until the next attempt, None if memory
        is empty. The thread calls it 20 ms after `wake`.
    on_failure
        Called with the exception of a job whose caller has timed out.
    is_locked_out
        Whether the thread waits for the lock of another process. The running job sets it.
    """

    def __init__(self, on_failure: Callable[[Exception], object]) -> None:
        self.on_failure = on_failure
        self.write_waiting: Callable[[], float | None] = lambda: None
        self._reset()
        super().__init__()

    def run_within(
        self, action: Callable[[], _Result], *, seconds: float, is_kept_after_timeout: bool = False
    ) -> _Result:
        """Run an action in the thread, and return its result within some seconds.

        Parameters
        ----------
        action
            Function to call in the thread.
        seconds
            Longest wait of the caller.
        is_kept_after_timeout
            Whether the action runs in any case, if necessary after the caller has timed out. False
            drops an action that has not begun by then.

        Raises
        ------
        HungError
            The disk did not answer in time.
        BusyError
            Another process kept its lock.
        Exception
            The exception of the action.
        """
        # An action may call this method itself, in the thread. If the method queued a job then, the
        # thread would wait for ever for a job that only it can run. So the action runs at once.
        if threading.get_ident() in self._own_threads:
            return action()
        job = _Job(action, is_kept_after_timeout=is_kept_after_timeout)
        self._jobs.put(job)
        if not self._has_thread():
            try:
                self._start()
            except RuntimeError:
                # No thread can start: the process is at its limit, or the interpreter ends. The
                # caller runs the job. A disk that hangs at the same time is rare.
                job.run()
        awaited = self._awaited
        awaited.add(job)
        try:
            has_ended = job.ended.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX))
        finally:  # Ctrl-C ends the wait as well
            awaited.discard(job)
            job.abandon()
        if is_ending():
            self.end(_END_SECONDS)
        # The job may still run. Its failure then reaches the log, because no caller waits for it.
        if not has_ended:
            job.on_failure = self.on_failure
            # The job may have ended since the timeout, before it could find `on_failure`.
            if not job.ended.acquire(blocking=False):
                raise BusyError if self.is_locked_out else HungError
        if job.error is not None:
            raise job.error
        return job.result  # type: ignore[return-value]

    def wake(self) -> None:
        """Let the thread commit the events in memory soon; RuntimeError if no thread can start.

        The method waits for nothing, so the handler of a signal may call it.
        """
        self._jobs.put(_Signal.WAKE)
        self.ensure_started()

    def ensure_started(self) -> None:
        """Start the thread unless it lives; RuntimeError if no thread can start."""
        if not self._has_thread():
            self._start()

    def end(self, seconds: float) -> None:
        """End the thread after its queued jobs, and wait for its end for some seconds at most.

        The next job starts another thread.
        """
        thread = self._thread
        if thread is None or threading.get_ident() in self._own_threads:
            return
        self._jobs.put(_Signal.END)
        thread.join(max(seconds, 0.0))

    def after_fork_in_child(self) -> None:
        """Forget thread and jobs of the parent: the thread does not exist in the child."""
        awaited = self._awaited
        self._reset()
        # The handler of a signal forked in the middle of `run_within`. In the child, the
        # interrupted call would wait for a job that no thread runs.
        for job in list(awaited):
            job.end()

    def _reset(self) -> None:
        """Begin without a thread and without jobs."""
        self.is_locked_out = False
        self._jobs = queue.SimpleQueue[_Job | _Signal]()
        self._awaited = set[_Job]()
        self._thread: threading.Thread | None = None
        # Ids of the running threads, usually one. `run_within` must not wait inside of them.
        self._own_threads = set[int]()

    def _has_thread(self) -> bool:
        """Return whether the thread lives."""
        return self._thread is not None and self._thread.is_alive()

    def _start(self) -> None:
        """Start the thread.

        Two callers at the same time may start two threads. Both take jobs, which is safe: an
        action holds the lock of the object that it changes (`rappor_client.folder.forking`).
        """
        thread = threading.Thread(target=self._run, name="rappor-writer", daemon=True)
        self._thread = thread
        try:
            start_thread(thread)
        except RuntimeError:
            self._thread = None
            raise

    def _run(self) -> None:
        """Run the thread, and register its id while it lives."""
        me = threading.get_ident()
        self._own_threads.add(me)
        try:
            self._work()
        finally:
            self._own_threads.discard(me)

    def _work(self) -> None:
        """Run jobs, and commit the events in memory, until the thread ends.

        `write_at` is the time of the next commit, None without events in memory:

            write_at   the thread waits for a job    if no job came in this time, the thread
            None       for `_IDLE_SECONDS`           ends
            a time     until this time               commits, and plans the next attempt if the
                                                     commit failed

        After the signal END, the time without events in memory is 0 instead of `_IDLE_SECONDS`.
        """
        jobs, write_at, idle_seconds = self._jobs, None, _IDLE_SECONDS
        while True:
            seconds = idle_seconds if write_at is None else max(write_at - time.monotonic(), 0.0)
            try:
                job = jobs.get(timeout=seconds)
            except queue.Empty:
                if write_at is not None:
                    pause = self.write_waiting()
                    # At the end of the program a failed commit is not tried again. Python ends a
                    # daemon thread that wakes while the interpreter ends, by `pthread_exit`.
                    # `pthread_exit` loads a library. If the process has no free file descriptor,
                    # this fails, and the whole process is aborted.
                    write_at = None
                    if pause is not None and not is_ending():
                        write_at = time.monotonic() + pause
                elif self._may_end(jobs):
                    return
                continue
            if isinstance(job, _Job):
                job.run()
            elif job is _Signal.END:
                # The thread ends as soon as the queue is empty and the events are committed.
                idle_seconds = 0.0
            # Here the job is WAKE. If a commit is planned already, its time stays, because the
            # events of 20 ms share a commit.
            elif write_at is None:
                write_at = time.monotonic() + _GATHER_SECONDS
            del job  # its result may be large, and its action refers to the client

    def _may_end(self, jobs: queue.SimpleQueue[_Job | _Signal]) -> bool:
        """Return whether the thread may end, because no job came at the last moment.

        A caller queues its job first and looks for a thread afterwards. This method does the
        opposite: it clears the thread first and looks for a job afterwards. So either this thread
        sees the job, or the caller sees that there is no thread and starts one.
        """
        self._thread = None
        if jobs.empty():
            return True
        self._thread = threading.current_thread()
        return False


_ENDING: Final = threading.Event()
"""Set at the end of the program. From then on the thread ends after every job, because a daemon
thread that wakes while the interpreter ends may abort the process."""


def is_ending() -> bool:
    """Return whether the program is ending and the last commit of all events is over.

    `set_ending` records both facts together.
    """
    return _ENDING.is_set()


def set_ending() -> None:
    """Record that the program is ending. Call it after the last commit of all events."""
    _ENDING.set()
