"""Forks of a test, and moments at which a process touches the disk."""

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


def in_child(work: Callable[[], object]) -> int:
    """Do something in a fork; return the code with which it ends: what it returns, or 1."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = int(work() or 0)  # type: ignore[call-overload]
        except BaseException:  # noqa: BLE001 - told by the code
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextlib.contextmanager
def at_touch(moment: int, touching: Container[str], action: Callable[[], object]) -> Iterator[None]:
    """Do something right before the n-th call of one of these functions while the block runs.

    Calls of every thread count that makes them for a client.
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
    """End the threads of all clients: new ones begin with what is set for new threads."""
    for thread in list(forking._ALL.values()):
        if isinstance(thread, FolderThread):
            thread.end(60.0)


def is_killed(moment: int, touching: Container[str], work: Callable[[], object]) -> bool:
    """Do something in a fork that is killed before its n-th touch; return whether it was."""

    def until_killed() -> None:
        with at_touch(moment, touching, lambda: os._exit(KILLED)):
            work()

    code = in_child(until_killed)
    assert code in (0, KILLED)
    return code == KILLED
