"""One thread for the matrix library while decoding."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import cache
from typing import Final

import numpy as np  # noqa: F401  # the libraries must be loaded to be found
from scipy import linalg  # noqa: F401
from threadpoolctl import ThreadpoolController

_LOCK: Final = threading.Lock()
_LIMITS: Final = contextlib.ExitStack()
_users: list[object] = []


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Hold the matrix library to one thread.

    The matrices of a decode are small: the other threads would mostly wait for each other,
    spinning. It also makes rounding the same on machines with different numbers of cores.
    The limit is the whole process's: the first of several decodes sets it, the last lifts it.
    """
    user = object()
    with _LOCK:
        if not _users:
            _LIMITS.enter_context(_libraries().limit(limits=1, user_api="blas"))
        _users.append(user)
    try:
        yield
    finally:
        with _LOCK:
            _users.remove(user)
            if not _users:
                _LIMITS.close()


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()
