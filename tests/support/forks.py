"""Forks of a test, and actions at the moment at which a process uses the disk."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import traceback
from collections.abc import Callable, Container, Iterator
from types import FrameType
from typing import Any, Final

from rappor_client.folder import forking
from rappor_client.folder.folder_thread import FolderThread

KILLED: Final = 9
"""Exit code of a fork that was killed. SIGKILL has the number 9."""
"""Exit code of a process that was killed on purpose."""


def in_child(work: Callable[[], object]) -> int:
    """Run a function in a fork; return its result as the exit code, 1 after an exception."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = int(work() or 0)  # type: ignore[call-overload]
        except BaseException:  # noqa: BLE001 - the exit code shows it
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextlib.contextmanager
def at_touch(moment: int, touching: Container[str], action: Callable[[], object]) -> Iterator[None]:
    """Run an action right before the n-th call of some functions while the block runs.

    The calls of all threads count, because a client calls the disk in a thread of its own.
    """
    calls = itertools.count()

    def watch(_frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call" and arg.__name__ in touching and next(calls) == moment:
            sys.setprofile(None)
            action()

    end_folder_threads()
    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        end_folder_threads()


def end_folder_threads() -> None:
    """End the threads of all clients.

    Threads that start later have the profile function that is set for new threads.
    """
    for thread in list(forking._ALL.values()):
        if isinstance(thread, FolderThread):
            thread.end(60.0)


def is_killed(moment: int, touching: Container[str], work: Callable[[], object]) -> bool:
    """Run a function in a fork that is killed before its n-th use of the disk.

    Returns False if the function uses the disk less often.
    """

    def until_killed() -> None:
        with at_touch(moment, touching, lambda: os._exit(KILLED)):
            work()

    code = in_child(until_killed)
    assert code in (0, KILLED)
    return code == KILLED
