"""Threads that work beside a host program."""

from __future__ import annotations

import sys
import threading


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; RuntimeError where none is to be had, as while the interpreter ends.

    There Python 3.11 would wait without end for it to begin.
    """
    if sys.is_finalizing():
        raise RuntimeError("the interpreter ends")
    thread.start()
