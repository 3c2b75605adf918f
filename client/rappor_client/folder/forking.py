"""Keeps what threads share whole when a process forks, from any thread and from several at once.

Python calls the hooks of a fork one thread beside the other: two threads that fork run them at the
same time. So one lock spans a whole fork, from the first hook to the last. A fork waits for what
is half done, but for a few seconds only: a disk may hang.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Final, Protocol


@contextlib.contextmanager
def unforked(*, wait: bool = False) -> Iterator[bool]:
    """Let no thread fork while the block runs; false if one does already, unless it may wait.

    It is for late imports. A child waits without end for a module that another thread was importing
    at the moment of the fork.
    """
    forking = _FORKING  # a signal's handler may fork in the block: the child has another lock
    try:
        yield forking.acquire(blocking=wait)
    finally:
        try:  # noqa: SIM105 - a call before it would be another moment for a signal
            forking.release()
        except RuntimeError:  # it was not taken
            pass


class Shared(Protocol):
    """Something that threads share and that a fork must find at rest."""

    def before_fork(self, deadline: float) -> None:
        """Keep other threads out; do not wait beyond a moment of the monotonic clock."""

    def after_fork_in_parent(self) -> None:
        """Let other threads in again."""

    def after_fork_in_child(self) -> None:
        """Begin anew: this thread is the only one."""


_SECONDS: Final = 5.0
"""How long a fork waits for other threads."""
_FORKING = threading.RLock()
_ALL: Final[weakref.WeakValueDictionary[int, Shared]] = weakref.WeakValueDictionary()
"""In the order in which they came: whoever holds two locks takes that of the earlier one first."""
_NUMBERS: Final = itertools.count()
_HELD: Final[dict[int, list[Shared]]] = {}
"""What a thread that forks keeps others out of; a signal may let it fork without `_FORKING`."""


def hold_over_forks(shared: Shared) -> None:
    """Call the hooks of something whenever the process forks, as long as it is alive."""
    with _FORKING:
        _ALL[next(_NUMBERS)] = shared


def _in_order() -> list[Shared]:
    return [shared for _, shared in sorted(_ALL.items(), key=operator.itemgetter(0))]


def _before() -> None:
    """Keep everybody out; what normalizes is loaded by then, so no child waits for its import."""
    import encodings.idna  # noqa: F401, PLC0415 - 2 ms with Unicode's tables, for those who fork

    deadline = time.monotonic() + _SECONDS
    _FORKING.acquire(timeout=_SECONDS)
    held = _HELD.setdefault(threading.get_ident(), [])
    for shared in _in_order():
        held.append(shared)  # first: a signal's handler may raise in the middle of its hook
        shared.before_fork(deadline)


def _after_in_parent() -> None:
    """Release all locks; what a signal's handler raises is printed by Python and dropped."""
    raised: BaseException | None = None
    held = _HELD.get(threading.get_ident(), [])
    try:
        while held:
            try:
                while held:
                    held[-1].after_fork_in_parent()
                    held.pop()
            except RuntimeError:  # it was not locked: a handler raised, or another thread stayed
                held.pop()
            except BaseException as error:  # noqa: BLE001 - it goes on below
                raised = error
    finally:
        try:  # noqa: SIM105 - a call before it would be another moment for a signal
            _FORKING.release()
        except RuntimeError:  # it was not taken
            pass
    if raised is not None:
        raise raised


def _after_in_child() -> None:
    global _FORKING  # noqa: PLW0603 - the threads that waited for the old one are not here
    for shared in _in_order():
        shared.after_fork_in_child()
    _HELD.clear()
    _FORKING = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )
