"""Threads that run beside the threads of a host program."""

from __future__ import annotations

import sys
import threading


def start_thread(thread: threading.Thread) -> None:
    """Start a thread.

    Raises
    ------
    RuntimeError
        No thread can start: the process is at its limit of threads, or the interpreter ends.
    """
    # While the interpreter ends, Python 3.11 would wait forever for the thread to begin.
    if sys.is_finalizing():
        raise RuntimeError("the interpreter ends")
    thread.start()
