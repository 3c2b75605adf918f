"""Child processes of the collector: start, set-up, and forced end.

The collector starts workers for queries (`queries/worker.py`) and a merge process
(`storage/merge_process.py`) as children. A child is a daemon process of `multiprocessing`, which
ends when its parent ends. The parent calls `start_child`. The function that runs in the child
calls `set_up_child` first.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Final

from rappor_server.base import logs

_JOIN_SECONDS: Final = 1.0
"""Longest time to wait for the end of each killed process, in seconds. SIGKILL ends a process at
once unless a disk that hangs blocks it. A larger value delays the end of the collector on such a
disk."""
_MAX_NAME_BYTES: Final = 15
"""Longest name of a process in bytes. Linux limits names to 15 bytes and a NUL."""


def start_child(target: Callable[..., None], *arguments: Any) -> SpawnProcess:
    """Start `target(*arguments)` in a new process, and return the process.

    The child is spawned, not forked. A forked child would inherit the sockets of devices and the
    connections to the database, and locks that other threads held at that moment.
    """
    process = multiprocessing.get_context("spawn").Process(
        target=_run, args=(target, *arguments), daemon=True
    )
    process.start()
    return process


def start_kill_timer(seconds: float) -> threading.Timer:
    """Start a timer that kills this process and its children, and return the timer.

    A hanging database or disk may block every thread, so that no regular end is possible. Then
    systemd would wait for its own limit, and a restart of the service would take minutes. The
    caller cancels the timer after a regular end.

    Parameters
    ----------
    seconds : time until the processes are killed
    """
    timer = threading.Timer(seconds, _end_at_once)
    timer.daemon = True
    timer.start()
    return timer


def _end_at_once() -> None:
    """Kill the children, then this process, without any clean-up, because the clean-up hangs."""
    logs.log_event("collector killed", level=logging.ERROR, reason="it did not stop in time")
    for process in multiprocessing.active_children():
        process.kill()
        process.join(_JOIN_SECONDS)
    # `sys.exit` would only end the timer's thread, and would wait for the blocked threads.
    os._exit(1)


def _run(target: Callable[..., None], *arguments: Any) -> None:
    """Run the target in the child; log an unexpected exception by its class, and exit with 1.

    Python would print the message and the traceback, which may contain uploaded data.
    """
    logs.configure()
    # Python writes warnings of libraries as plain text. Each line of the collector's log is JSON.
    logging.captureWarnings(capture=True)
    try:
        target(*arguments)
    except Exception as error:  # noqa: BLE001 - Python would write a traceback
        logs.log_unexpected_error(error)
        sys.exit(1)


def set_up_child(name: str) -> None:
    """Set up a child process: name it, and ignore Ctrl-C.

    A terminal sends Ctrl-C to the parent and all children. The parent ends its children in order.
    Case: the parent writes a last batch of uploads while it stops. The merge process must merge
    this batch, so it must not end before.

    Parameters
    ----------
    name : name of the process for `ps` and `top`, for example rappor-merge
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # only Linux has this file
        Path("/proc/self/comm").write_text(name[:_MAX_NAME_BYTES], encoding="ascii")
