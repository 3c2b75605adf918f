"""Processes of the collector's own, which end with it: how they are started, and how they begin."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from rappor_server import logs


def start(target: Callable[..., None], *arguments: Any) -> SpawnProcess:
    """Start `target(*arguments)` in a process that shares nothing else with this one."""
    process = multiprocessing.get_context("spawn").Process(
        target=target, args=arguments, daemon=True
    )
    process.start()
    return process


def begin(name: str) -> None:
    """Set up the process that calls this: its log, its name, and Ctrl-C as its parent's business.

    Lists of processes show the name where the system can.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logs.configure()
    logging.captureWarnings(True)  # noqa: FBT003
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name[:15], encoding="ascii")
