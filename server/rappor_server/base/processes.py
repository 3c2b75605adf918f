"""Processes of the collector's own, which end with it: how they are started, and how they begin."""

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
"""How long a killed process may take to be gone."""


def start(target: Callable[..., None], *arguments: Any) -> SpawnProcess:
    """Start `target(*arguments)` in a process that shares nothing else with this one."""
    process = multiprocessing.get_context("spawn").Process(
        target=_run, args=(target, *arguments), daemon=True
    )
    process.start()
    return process


def end_within(seconds: float) -> threading.Timer:
    """End this process and those that it has started after some seconds, whatever they wait for.

    Cancel the timer that this returns if they have ended by themselves.
    """
    timer = threading.Timer(seconds, _end_at_once)
    timer.daemon = True
    timer.start()
    return timer


def _end_at_once() -> None:
    logs.event("collector killed", level=logging.ERROR, reason="it did not stop in time")
    for process in multiprocessing.active_children():
        process.kill()
        process.join(_JOIN_SECONDS)
    os._exit(1)


def _run(target: Callable[..., None], *arguments: Any) -> None:
    """Do what the process is for; a bug is told as any other one, without its words."""
    logs.configure()
    logging.captureWarnings(True)  # noqa: FBT003
    try:
        target(*arguments)
    except Exception as error:  # noqa: BLE001 - Python would write a traceback
        logs.unexpected(error)
        sys.exit(1)


def begin(name: str) -> None:
    """Set up the process that calls this: its name, and Ctrl-C as its parent's business.

    Lists of processes show the name where the system can.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name[:15], encoding="ascii")
