"""Removal of a client's frames from its exceptions, because frames contain values.

Tools that print a traceback with local variables, and services that collect tracebacks, read every
frame that an exception has passed. The functions that `Client.record` calls have the value, its
bits and its permanent response as local variables. The functions that the folder's thread calls
have permanent responses and the file with the secret.

So exceptions lose these frames in three places, together with the exceptions that came before
(`__cause__` and `__context__`), whose tracebacks contain the same frames:

    `Client.record`, `Client.open`   `hide_frames` removes all frames of the client but that of the
                                     guard, which has deleted its arguments. `open` has the upload
                                     key as an argument
    the folder's thread              `remove_frames` removes the frames of a job from its exception,
                                     before the caller of the job raises the exception again. A
                                     caller runs its job itself if no thread can start
    `Uploader._send`                 `remove_frames` removes the frames of the transport, which
                                     contain the upload key

All other methods of the client do their work in jobs of the folder's thread. Their own frames
contain no value, so they stay in the traceback. Ctrl-C and timeouts by a signal raise exceptions
inside the client, too, so `BaseException` is caught. The frames of the host program stay as they
are: the host program knows its own value.

Messages of exceptions stay, too. They never contain a value, because no error of this project does.

Pure Python cannot exclude two cases: a signal arrives in the few instructions before the `try` of
the guard, or while the frames of another exception are removed. In both cases a frame may contain
the value. The secret is safe in both cases: after its file has been read, only an object without a
readable repr contains its bytes (`rappor.protocol.randomizer.Secret`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def hide_frames(method: Callable[P, R]) -> Callable[P, R]:
    """Let a method raise its exceptions without the client's frames and earlier exceptions.

    The method must not be a generator or a coroutine, because these run after the guard has
    returned.
    """

    @functools.wraps(method)
    def call_guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - the same exception is raised again
            # This frame stays in the traceback, so it must not contain the value.
            del args, kwargs
            # `raise` inside `except` usually stores the handled exception as the context. Here it
            # is the same exception, for which Python stores no context.
            raise remove_frames(error)  # noqa: B904

    return call_guarded


def remove_frames(error: BaseException) -> BaseException:
    """Remove the traceback, cause and context of an exception, and return the exception."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
