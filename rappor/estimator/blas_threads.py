"""One thread for the matrix library while decoding."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import numpy as np  # noqa: F401  # the libraries must be loaded to be found
from scipy import linalg  # noqa: F401
from threadpoolctl import ThreadpoolController

_LOCK: Final = threading.Lock()
_USERS: Final[list[Any]] = []
"""The limit that is in force, once for each of its users."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Hold the matrix library to one thread.

    The matrices of a decode are small: more threads would mostly wait for each other. One
    thread also makes rounding the same on machines with different numbers of cores.
    The limit holds for the whole process: the first of several decodes sets it, the last one
    lifts it.
    """
    with _LOCK:
        _USERS.append(_USERS[0] if _USERS else _libraries().limit(limits=1, user_api="blas"))
    try:
        yield
    finally:
        with _LOCK:
            limit = _USERS.pop()
            if not _USERS:
                limit.restore_original_limits()


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()
