"""A safe start of a thread inside a host program, also while the program ends."""

from __future__ import annotations

import sys
import threading


def start_thread(thread: threading.Thread) -> None:
    """Start a thread, or raise at once if no thread can start any more.

    Raises
    ------
    RuntimeError
        The process is at its limit of threads, or the interpreter is shutting down.
    """
    # `Thread.start` waits until the thread runs. While the interpreter shuts down, Python 3.11
    # never runs the thread, so `start` waits forever and the program hangs at its end. Later
    # versions raise RuntimeError themselves.
    if sys.is_finalizing():
        raise RuntimeError("the interpreter is shutting down")
    thread.start()
