"""Compilation of the kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compile_kernel(kernel: Kernel) -> Kernel:
    """Compile a function at its first call, without the interpreter's lock.

    What is compiled is kept for later processes; where no folder can be written for it, each
    process compiles for itself.
    """
    try:
        return cast("Kernel", njit(cache=True, nogil=True)(kernel))
    except RuntimeError:  # numba's word for "no folder to keep it in"
        return cast("Kernel", njit(nogil=True)(kernel))
