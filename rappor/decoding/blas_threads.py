"""One thread for the matrix library while decoding."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Final

import numpy as np  # noqa: F401  # the libraries must be loaded to be found
from scipy import linalg  # noqa: F401
from threadpoolctl import ThreadpoolController


def one_thread() -> AbstractContextManager[None]:
    """Hold the matrix library to one thread.

    The matrices of a decode are small: more threads would mostly wait for each other. One
    thread also makes rounding the same on machines with different numbers of cores.
    The limit holds for the whole process: the first of several decodes sets it, the last one
    lifts it.
    """
    return _LIMIT


class _SharedLimit:
    """A limit that stands while anybody uses it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._limit = _libraries().limit(limits=1, user_api="blas")
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._limit.restore_original_limits()


_LIMIT: Final = _SharedLimit()


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()
