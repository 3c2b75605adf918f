"""Start of the process in which a device records and sends, so that no command waits for it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

_started: Final[list[int]] = []
"""Process ids of the children that have been started and not reaped yet; one at most."""


def start_process(folder: str, args: Sequence[str], use: str) -> bool:
    """Start the process in a folder, and do not wait for it.

    Returns False if there is no interpreter to start, as in a frozen program. The caller records
    in its own process then.

    Parameters
    ----------
    folder
        Working folder of the process.
    args
        Arguments of `kit.__main__`.
    use
        Name of the recorded use. It goes through a pipe, because every user of a machine can read
        the arguments of a process.
    """
    if getattr(sys, "frozen", False) or not sys.executable:
        return False
    # A server that runs for months starts many processes. Without `waitpid` each of them would stay
    # a zombie until the server ends.
    for process in list(_started) if hasattr(os, "WNOHANG") else ():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process, os.WNOHANG)
    child = subprocess.Popen(  # noqa: S603 - this interpreter
        # -P: without it Python would import a module of the folder in which the person works.
        [sys.executable, "-P", "-m", __package__, *args],
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
    # `Popen` warns about a child that still runs when the object is collected. The child is meant
    # to outlive this process.
    child.returncode = 0
    _started[:] = [child.pid]
    return True
