"""A thread that stays in the middle of its fork, beside which a signal ends another fork's wait.

Run as `python interrupted_fork_child.py FOLDER`. It fails where anything stays locked afterwards.
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


class Waiting(Shared):
    """One of many things that threads share; the last to be held keeps its thread waiting."""

    def __init__(self, all_of_them: list[Waiting]) -> None:
        self.all_of_them = all_of_them
        self.is_last, self.may_go_on = threading.Event(), threading.Event()
        super().__init__()

    def before_fork(self, deadline: float) -> None:
        """Wait in the last one, unless this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            self.all_of_them.pop()
            if not self.all_of_them:
                self.is_last.set()
                assert self.may_go_on.wait(PATIENCE)
        super().before_fork(deadline)


class Interruption:
    """Raises as Ctrl-C does, once a fork waits for another one."""

    def __init__(self) -> None:
        self.has_raised = False

    def __call__(self, _signal: int, frame: FrameType | None) -> None:
        """Interrupt the hook."""
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
    """Wait for a thread, but not without end."""
    work.join(PATIENCE)
    assert not work.is_alive()


def main(folder: Path) -> None:
    """Let a signal end the wait of one fork for another; note failures and fork afterwards."""
    warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of forks beside threads
    sys.unraisablehook = lambda _: None  # Python tells what the signal raised in the hook
    logging.disable()  # failures are noted on purpose
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

    # Both begin now: a thread that began after the end of another could have its number and locks.
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
