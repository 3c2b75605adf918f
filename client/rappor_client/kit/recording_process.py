"""Start of the process in which a device records and sends, so that no command waits for it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

_started: Final[list[int]] = []
"""Process ids of the children that this process has started and not reaped yet."""


def start_process(args: Sequence[str], use: str) -> bool:
    """Start the process, and do not wait for it.

    The result is False if there is no interpreter to start, as in a frozen program. The caller then
    records in its own process.

    Parameters
    ----------
    args
        Arguments of `kit.__main__`.
    use
        Name of the recorded use. It goes through a pipe, because every user of a machine can read
        the arguments of a process.
    """
    if getattr(sys, "frozen", False) or not sys.executable:
        return False
    # A program may have added a folder relative to the folder in which it works.
    search_path = [os.path.abspath(path) for path in sys.path if path]
    child = subprocess.Popen(  # noqa: S603 - this interpreter
        # -P: without it Python would import a module of the folder in which the person works.
        [sys.executable, "-P", "-m", __package__, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # `Popen` waits until the child has entered its working folder. The folder of the device may
        # not exist yet, or be on a disk that hangs. The folder of the person must not stay in use.
        cwd=os.path.abspath(os.sep),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(search_path)},
        start_new_session=True,
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )
    assert child.stdin is not None
    child.stdin.write(use.encode())
    child.stdin.close()
    # `Popen` warns about a child that still runs when the object is collected. The child is meant
    # to outlive this process.
    child.returncode = 0
    if hasattr(os, "WNOHANG"):  # on Windows an ended process leaves no zombie
        _reap_ended_children()
        _started.append(child.pid)
    return True


def _reap_ended_children() -> None:
    """Reap the children that have ended, and remove them from `_started`.

    A server that runs for months starts many processes. Without `waitpid` each of them would stay a
    zombie until the server ends.
    """
    for child in list(_started):
        is_running = False
        # The host program may have reaped the child itself.
        with contextlib.suppress(ChildProcessError):
            ended, _ = os.waitpid(child, os.WNOHANG)
            is_running = ended == 0
        if not is_running:
            _started.remove(child)
