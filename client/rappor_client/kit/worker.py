"""Starts the process in which a device records and sends, so that no command waits for it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

_started: Final[list[int]] = []


def start(folder: str, words: Sequence[str], use: str) -> bool:
    """Start it in a folder, and leave it alone; false where there is no interpreter to start.

    The use goes through a pipe: everybody on a machine may read the words of a command line.
    """
    if getattr(sys, "frozen", False) or not sys.executable:
        return False
    for earlier in list(_started) if hasattr(os, "WNOHANG") else ():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(earlier, os.WNOHANG)  # a server that runs for months keeps no dead ones
    child = subprocess.Popen(  # noqa: S603 - this interpreter
        # -P: a module of the folder in which the person works is never imported
        [sys.executable, "-P", "-m", __package__, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )
    assert child.stdin is not None
    child.stdin.write(use.encode())
    child.stdin.close()
    child.returncode = 0  # nobody waits for it, and no warning is due
    _started[:] = [child.pid]
    return True
