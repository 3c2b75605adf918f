"""A fork that waits for the fork of another thread, and whose wait a signal ends.

Before a fork, the client acquires the locks of all its shared objects. One thread stops in the
middle of these steps. The main thread also forks, so it waits for the first thread, until a signal
raises KeyboardInterrupt. Afterwards both threads go on, and a third thread uses all locks. Run as
`python interrupted_fork_child.py FOLDER`. The program fails if any lock stays locked.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from pathlib import Path
from types import FrameType

from rappor_client.folder import forking
from rappor_client.folder.failures import Failures
from rappor_client.folder.forking import Shared

PATIENCE = 60
"""Longest wait for a thread, in seconds. A longer wait means that a lock stayed locked."""


class PausingFork:
    """A fork that pauses before it acquires the last of `n_shared` locks."""

    def __init__(self, n_shared: int) -> None:
        self.n_remaining = n_shared
        self.is_paused, self.may_go_on = threading.Event(), threading.Event()
        self.shared = [PausingShared(self) for _ in range(n_shared)]


class PausingShared(Shared):
    """A shared object whose hook before a fork pauses the `PausingFork` at its last lock."""

    def __init__(self, pausing_fork: PausingFork) -> None:
        self.pausing_fork = pausing_fork
        super().__init__()

    def before_fork(self, deadline: float) -> None:
        """Wait if this is the last hook of the fork. The main thread never waits here."""
        if threading.current_thread() is not threading.main_thread():
            fork = self.pausing_fork
            fork.n_remaining -= 1
            if fork.n_remaining == 0:
                fork.is_paused.set()
                assert fork.may_go_on.wait(PATIENCE)
        super().before_fork(deadline)


class Interruption:
    """A handler of SIGALRM that raises KeyboardInterrupt while a fork waits for another fork."""

    def __init__(self) -> None:
        self.has_raised = False

    def __call__(self, _signal: int, frame: FrameType | None) -> None:
        """Raise if the signal has interrupted the hooks of a fork."""
        if frame is not None and frame.f_code is forking._run_before.__code__:
            self.has_raised = True
            raise KeyboardInterrupt


def fork() -> None:
    """Fork a child that ends at once."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def assert_thread_ends(thread: threading.Thread) -> None:
    """Wait for a thread, and assert that the thread has ended."""
    thread.join(PATIENCE)
    assert not thread.is_alive()


def main(folder: Path) -> None:
    """Let a signal end the wait of a fork. Afterwards log failures and fork."""
    warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of forks beside threads
    sys.unraisablehook = lambda _: None  # Python would print the exception of the hook
    logging.disable()  # the program causes failures on purpose
    failures = [Failures(folder) for _ in range(20)]
    pausing_fork = PausingFork(20)
    forks_are_over = threading.Event()

    def use_locks() -> None:
        """Acquire the lock of every shared object once the forks are over."""
        assert forks_are_over.wait(PATIENCE)
        for instance in failures:
            instance.note(OSError())
        fork()

    # Both threads start now. A thread that starts after the end of another one may get its id, and
    # so its locks.
    forking_thread = threading.Thread(target=fork, daemon=True)
    later_thread = threading.Thread(target=use_locks, daemon=True)
    forking_thread.start()
    later_thread.start()
    assert pausing_fork.is_paused.wait(PATIENCE)
    interrupt = Interruption()
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    fork()
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert interrupt.has_raised
    pausing_fork.may_go_on.set()
    assert_thread_ends(forking_thread)
    forks_are_over.set()
    assert_thread_ends(later_thread)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
