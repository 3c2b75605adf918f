"""One thread for the matrix library while decoding."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np  # noqa: F401  # the libraries must be loaded to be found
from scipy import linalg  # noqa: F401
from threadpoolctl import ThreadpoolController


def one_thread() -> AbstractContextManager[Any]:
    """Hold the matrix library to one thread.

    The matrices of a decode are small: the other threads would mostly wait for each other,
    spinning. It also makes rounding the same on machines with different numbers of cores.
    The limit is the whole process's while it lasts.
    """
    limit: AbstractContextManager[Any] = _libraries().limit(limits=1, user_api="blas")
    return limit


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()
