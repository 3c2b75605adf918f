"""Forks of a test, and actions right before a process uses the disk."""

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
"""Exit code with which a fork ends itself in place of a kill. SIGKILL has the number 9."""


def run_in_child(work: Callable[[], object]) -> int:
    """Run a function in a forked child; return the child's exit code.

    The exit code is the result of the function, 0 for None, or 1 after an exception.
    """
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
def run_before_call(
    n: int, functions: Container[str], action: Callable[[], object]
) -> Iterator[None]:
    """Run an action right before call number n, from 0, of some functions while the block runs.

    The functions are functions of C, by name, such as `fsync`. The calls of all threads count,
    because a client calls the disk in a thread of its own.
    """
    calls = itertools.count()

    def watch(_frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call" and arg.__name__ in functions and next(calls) == n:
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
    """End the folder threads of all clients.

    `threading.setprofile` reaches new threads only. A client starts a new folder thread at its next
    call, so the calls of that thread are profiled, or are not profiled any more.
    """
    for thread in list(forking._ALL.values()):
        if isinstance(thread, FolderThread):
            thread.end(20.0)


def run_until_killed(n: int, functions: Container[str], work: Callable[[], object]) -> bool:
    """Run a task in a forked child that ends before call number n, from 0, of some functions of C.

    The child ends there without any cleaning up, as a killed process does. Returns whether the
    child was killed: False means that the task has fewer calls and is complete.
    """

    def until_killed() -> None:
        with run_before_call(n, functions, lambda: os._exit(KILLED)):
            work()

    code = run_in_child(until_killed)
    assert code in (0, KILLED)
    return code == KILLED
