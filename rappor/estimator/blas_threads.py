"""A limit of one thread for the matrix library (BLAS) during a decode."""

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
"""Guards `_USERS`: decodes may run in several threads."""
_USERS: Final[list[Any]] = []
"""One element for each running decode: the limit that all of them share. The first decode has set
the limit. A decode removes its element at its end, and the last decode ends the limit."""


@contextmanager
def limit_to_one_thread() -> Iterator[None]:
    """Limit the matrix library to one thread in a `with` block.

    The matrices of a decode are small, and several threads would mostly wait for each other. One
    thread also makes rounding equal on machines with different numbers of cores. The limit holds
    for the whole process. The first of several decodes sets the limit, and the last decode removes
    it.
    """
    with _LOCK:
        # A second decode reuses the limit. Its own limit would store 1 thread as the original
        # number, and the process would stay at 1.
        _USERS.append(_USERS[0] if _USERS else _find_libraries().limit(limits=1, user_api="blas"))
    try:
        yield
    finally:
        with _LOCK:
            limit = _USERS.pop()
            # Another decode in a different thread may still need the limit.
            if not _USERS:
                limit.restore_original_limits()


@cache
def _find_libraries() -> ThreadpoolController:
    """Find the loaded matrix libraries."""
    return ThreadpoolController()
