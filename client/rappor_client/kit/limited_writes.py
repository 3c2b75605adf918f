"""Write small files with a time limit: a program waits two seconds at most for a disk that hangs.

The kit (`rappor_client.kit`) adds telemetry to a program. It calls `write_within_limit` for its own
small files: the answer to the consent question, and the end of the run cooldown.

A write on a disk that hangs, such as a frozen file system or a dead network drive, does not return
until the disk answers. Nothing can interrupt it, not even Ctrl-C. So the kit writes its small files
in a thread, and its program goes on after two seconds. Another thread writes the secret and the
reports of the client (`rappor_client.folder.folder_thread`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

_WRITE_SECONDS: Final = 2.0
"""Longest wait for a write, in seconds. A larger value holds the program longer beside a disk that
hangs. With a smaller value the kit gives up on a disk that is only slow."""


def write_within_limit(write: Callable[[], object]) -> None:
    """Call a function that writes, and wait for its end for two seconds.

    A function that takes longer goes on in its thread, and ends when the disk answers. On a frozen
    file system no signal ends the thread, so the process itself ends only after the thaw. A run
    that records therefore writes in a process of its own (`Host.record`).

    Raises
    ------
    TimeoutError
        The disk did not answer in time. TimeoutError is an OSError.
    Exception
        The exception of the function.
    """
    # The import of `threading` takes a millisecond. It stands here, not at the head of the module,
    # so that only a program that writes a file of the kit spends this time.
    import threading

    from rappor.base.threads import start_thread

    errors: list[BaseException] = []

    def run() -> None:
        try:
            write()
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            errors.append(error)

    # A daemon thread: the end of the program does not wait for it.
    thread = threading.Thread(target=run, name="rappor-kit", daemon=True)
    try:
        start_thread(thread)
    except RuntimeError:
        # No thread can start: the process is at its limit, or the interpreter ends. A disk that
        # hangs at the same time is rare.
        write()
        return
    thread.join(_WRITE_SECONDS)
    if thread.is_alive():
        raise TimeoutError(errno.ETIMEDOUT, "the disk did not answer in time")
    if errors:
        raise errors[0]
