"""A thread that stops in the middle of its fork, and a signal that ends the wait of another fork.

Run as `python interrupted_fork_child.py FOLDER`. The program fails if any lock stays taken.
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
"""Largest number of seconds of a wait. A longer wait means that a lock stayed locked."""
"""Longest wait for a thread, in seconds."""


class Waiting(Shared):
    """A shared object. The last one whose hook runs lets its thread wait."""

    def __init__(self, all_of_them: list[Waiting]) -> None:
        self.all_of_them = all_of_them
        self.is_last, self.may_go_on = threading.Event(), threading.Event()
        super().__init__()

    def before_fork(self, deadline: float) -> None:
        """Wait in the hook of the last object, unless this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            self.all_of_them.pop()
            if not self.all_of_them:
                self.is_last.set()
                assert self.may_go_on.wait(PATIENCE)
        super().before_fork(deadline)


class Interruption:
    """A handler that raises KeyboardInterrupt once, while a fork waits for another fork."""

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


def run_to_its_end(work: threading.Thread) -> None:
    """Assert that a thread ends."""
    work.join(PATIENCE)
    assert not work.is_alive()


def main(folder: Path) -> None:
    """Let a signal end the wait of a fork. Afterwards log failures and fork."""
    warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of forks beside threads
    sys.unraisablehook = lambda _: None  # Python would print the exception of the hook
    logging.disable()  # the program causes failures on purpose
    failures = [Failures(folder) for _ in range(20)]
    left: list[Waiting] = []
    waiting = [Waiting(left) for _ in range(20)]
    left += waiting
    for each in waiting:
        each.is_last, each.may_go_on = waiting[0].is_last, waiting[0].may_go_on
    are_over = threading.Event()

    def go_on() -> None:
        assert are_over.wait(PATIENCE)
        for each in failures:
            each.note(OSError())
        fork()

    # Both threads start now. A thread that starts after the end of another one may get its id, and
    # so its locks.
    other = threading.Thread(target=fork, daemon=True)
    going_on = threading.Thread(target=go_on, daemon=True)
    other.start()
    going_on.start()
    assert waiting[0].is_last.wait(PATIENCE)
    interrupt = Interruption()
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    fork()
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert interrupt.has_raised
    waiting[0].may_go_on.set()
    run_to_its_end(other)
    are_over.set()
    run_to_its_end(going_on)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
