"""Cuts off what an exception would show of a device: the frames of this package, with their locals.

Tools that print a traceback with local variables, and services that collect them, read every frame
that an exception has passed. Below `Client.record` these hold the value, its bits and its permanent
response. So whatever leaves a method of the client, Ctrl-C and the signals of a timeout included,
leaves without these frames and without the exceptions behind it; in the one frame that is left the
arguments are gone.

What pure Python cannot exclude: a signal that arrives in the few instructions before a call has
begun to guard itself, or while it is cutting off another exception. The secret is in no local
variable even then (`rappor.protocol.randomizer.Secret`), once its file has been read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def silent(method: Callable[P, R]) -> Callable[P, R]:
    """Let a method raise only exceptions that show nothing of its frames and arguments."""

    @functools.wraps(method)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - it goes on, but alone
            del args, kwargs
            raise _bare(error)  # noqa: B904 - the very exception, with nothing behind it

    return guarded


def _bare(error: BaseException) -> BaseException:
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
