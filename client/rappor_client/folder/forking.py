"""Keeps what threads share whole when a process forks, from any thread and from several at once.

Python calls the hooks of a fork one thread beside the other: two threads that fork run them at the
same time. So one lock spans a whole fork, from the first hook to the last. A fork waits for what
is half done, but for a few seconds only: a disk may hang.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Final

from rappor_client.folder.own_folder import BusyError


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


class Turn:
    """One thread at a time; who has it already, as a signal's handler may, gets BusyError.

    The handler of a signal may raise right after the lock was taken: so only its owner knows.
    """

    def __init__(self) -> None:
        """Begin with nobody inside; `lock` is for what its owner may do as often as it likes."""
        self.lock = threading.RLock()
        self._owner: int | None = None
        self._outer: int | None = None

    @property
    def is_mine(self) -> bool:
        """Whether this thread is inside."""
        return self._owner == threading.get_ident()

    @property
    def is_taken(self) -> bool:
        """Whether any thread is inside."""
        return self._owner is not None

    @contextlib.contextmanager
    def taken(self, patience: float) -> Iterator[None]:
        """Keep other threads out while the block runs; BusyError if one stays for too long."""
        me = threading.get_ident()
        if self._owner == me:
            raise BusyError
        lock = self.lock  # a signal's handler may fork in the block: the child has another one
        try:
            if not lock.acquire(timeout=min(max(patience, 0.0), threading.TIMEOUT_MAX)):
                raise BusyError
            self._owner = me
            yield
        finally:
            if self._owner == me:
                self._owner = None
            try:  # noqa: SIM105 - a call before it would be another moment for a signal
                lock.release()
            except RuntimeError:  # it was not taken
                pass

    def before_fork(self, deadline: float) -> None:
        """Keep others out, and the handlers of this thread's signals, unless one stays inside."""
        if self.lock.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
            self._outer, self._owner = self._owner, threading.get_ident()

    def after_fork_in_parent(self) -> None:
        """Go on; RuntimeError if another thread is inside."""
        if self.is_mine:
            self._owner = self._outer
        self.lock.release()

    def after_fork_in_child(self) -> None:
        """Begin anew: the threads that waited for the old lock are not here."""
        self.lock = threading.RLock()
        self._owner = None


class ForkAware:
    """An object whose hooks every fork of the process calls."""

    def __init__(self) -> None:
        """Let every fork call the hooks from now on: the object must be complete by then."""
        # No lock: the thread of a folder creates such objects, and a fork waits for that thread.
        _ALL[next(_NUMBERS)] = self

    def before_fork(self, deadline: float) -> None:
        """Prepare for a fork, and wait until a moment of the monotonic clock at most."""

    def after_fork_in_parent(self) -> None:
        """Go on in the parent."""

    def after_fork_in_child(self) -> None:
        """Begin anew in the child, where the forking thread is the only one."""


class Shared(ForkAware):
    """Something that threads share, one at a time, and that a fork must find at rest."""

    def __init__(self) -> None:
        """Create the lock, and let every fork call the hooks from now on."""
        self._turn = Turn()
        super().__init__()

    def before_fork(self, deadline: float) -> None:
        """Keep other threads out; do not wait beyond a moment of the monotonic clock."""
        self._turn.before_fork(deadline)

    def after_fork_in_parent(self) -> None:
        """Let other threads in again."""
        self._turn.after_fork_in_parent()

    def after_fork_in_child(self) -> None:
        """Begin anew: this thread is the only one."""
        self._turn.after_fork_in_child()


_SECONDS: Final = 2.0
"""Longest time that a fork waits for other threads, all of them together, and for the disk."""
_FORKING = threading.RLock()
_ALL: Final[weakref.WeakValueDictionary[int, ForkAware]] = weakref.WeakValueDictionary()
"""In the order in which they came: whoever holds two locks takes that of the earlier one first."""
_NUMBERS: Final = itertools.count()
_HELD: Final[dict[int, list[ForkAware]]] = {}
"""What a thread that forks keeps others out of; a signal may let it fork without `_FORKING`."""


def _in_order() -> list[ForkAware]:
    """Return all objects in the order in which they were created.

    Another thread may create one meanwhile: `valuerefs` copies the values in one step.
    """
    objects = [reference() for reference in _ALL.valuerefs()]
    return [shared for shared in objects if shared is not None]


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
