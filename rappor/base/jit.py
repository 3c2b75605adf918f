"""Compilation of loops by numba. The only module of this package that a device never loads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compile_kernel(kernel: Kernel) -> Kernel:
    """Compile a function at its first call. The compiled function releases the interpreter's lock.

    numba stores the machine code beside the source, so later processes load it.
    """
    try:
        return cast("Kernel", njit(cache=True, nogil=True)(kernel))
    except RuntimeError:
        # numba raises RuntimeError if no folder for the machine code can be written, as in a
        # read-only installation. Each process then compiles for itself.
        return cast("Kernel", njit(nogil=True)(kernel))
