"""Safe start of a thread inside a host program, also while the program ends.

The client of a device is a library inside a host program and must never make the program hang.
"""

from __future__ import annotations

import sys
import threading


def start_thread(thread: threading.Thread) -> None:
    """Start a thread, or raise an error at once if no thread can start any more.

    Raises
    ------
    RuntimeError
        The process is at its limit of threads, or the interpreter is shutting down.
    """
    # Case: the interpreter of Python 3.11 shuts down. `Thread.start` waits until the thread runs,
    # which never happens then, so the program would hang at its end. Later versions of Python raise
    # RuntimeError themselves.
    if sys.is_finalizing():
        raise RuntimeError("the interpreter is shutting down")
    thread.start()
