"""Child processes of the collector: their start, their set-up, and their end."""

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
"""Longest time to wait for the end of each killed process."""


def start(target: Callable[..., None], *arguments: Any) -> SpawnProcess:
    """Start `target(*arguments)` in a new process that shares no memory or file with this one."""
    process = multiprocessing.get_context("spawn").Process(
        target=_run, args=(target, *arguments), daemon=True
    )
    process.start()
    return process


def end_within(seconds: float) -> threading.Timer:
    """Start a timer that kills this process and its children after some seconds.

    A hanging database may block every thread, so no regular end is possible. The caller cancels the
    returned timer after a regular end.
    """
    timer = threading.Timer(seconds, _end_at_once)
    timer.daemon = True
    timer.start()
    return timer


def _end_at_once() -> None:
    logs.log_event("collector killed", level=logging.ERROR, reason="it did not stop in time")
    for process in multiprocessing.active_children():
        process.kill()
        process.join(_JOIN_SECONDS)
    os._exit(1)


def _run(target: Callable[..., None], *arguments: Any) -> None:
    """Run the target, and log an unexpected error by its class only.

    The message and the traceback of an error may contain uploaded data.
    """
    logs.configure()
    logging.captureWarnings(True)  # noqa: FBT003
    try:
        target(*arguments)
    except Exception as error:  # noqa: BLE001 - Python would write a traceback
        logs.log_unexpected_error(error)
        sys.exit(1)


def begin(name: str) -> None:
    """Set the name of this process in lists of processes, and ignore Ctrl-C.

    A terminal sends Ctrl-C to all processes of a group. The parent ends its children in order.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name[:15], encoding="ascii")
