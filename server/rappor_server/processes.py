"""Processes of the collector's own, which end with it: starting one, and how each begins."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, TypeAlias

from rappor_server import logs

Link: TypeAlias = "Connection[Any, Any]"
"""One end of a pipe to another process; the other end reads EOF once this one is closed."""


def start(target: Callable[..., None], *arguments: Any) -> tuple[SpawnProcess, Link]:
    """Start `target(link, *arguments)` in a new process; return it with this end of the link."""
    context = multiprocessing.get_context("spawn")
    link, other = context.Pipe()
    process = context.Process(target=target, args=(other, *arguments), daemon=True)
    process.start()
    other.close()
    return process, link


def begin(name: str) -> None:
    """Set up the process that calls this: its log, its name, and Ctrl-C as its parent's business.

    Lists of processes show the name where the system can.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logs.configure()
    logging.captureWarnings(True)  # noqa: FBT003
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name[:15], encoding="ascii")
