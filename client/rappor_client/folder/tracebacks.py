"""Removal of a client's frames from its exceptions, because frames contain values.

Tools that print a traceback with local variables, and services that collect tracebacks, read every
frame that an exception has passed. Below `Client.record` the frames contain the value, its bits and
its permanent response. So every exception leaves a method of the client without these frames and
without the exceptions that it follows. Ctrl-C and the signals of a timeout are exceptions, too. The
one frame that stays has no arguments any more.

Pure Python cannot exclude one case: a signal that arrives in the few instructions before the guard
of a call, or while the guard removes the frames of another exception. Even then no local variable
contains the bytes of the secret (`rappor.protocol.randomizer.Secret`), once its file has been read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def hide_frames(method: Callable[P, R]) -> Callable[P, R]:
    """Let a method raise its exceptions without frames, arguments and earlier exceptions."""

    @functools.wraps(method)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - the same exception is raised again
            del args, kwargs
            raise _strip(error)  # noqa: B904 - the same exception, without a cause

    return guarded


def _strip(error: BaseException) -> BaseException:
    """Remove the traceback, cause and context of an exception."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
