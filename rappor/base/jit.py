"""Just-in-time compilation of numerical loops by numba.

A device never loads this module, because it has no numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compile_kernel(kernel: Kernel) -> Kernel:
    """Compile a function at its first call. The compiled function releases the interpreter's lock.

    numba stores the machine code beside the source file, so later processes load it without
    compiling again.
    """
    try:
        return cast("Kernel", njit(cache=True, nogil=True)(kernel))
    except RuntimeError:
        # Case: a read-only installation. numba raises RuntimeError if it cannot write the folder of
        # the machine code. Each process then compiles the function again.
        return cast("Kernel", njit(nogil=True)(kernel))
