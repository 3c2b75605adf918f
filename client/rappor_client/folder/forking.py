"""Locks of objects that several threads share, and the hooks that prepare these objects for a fork.

A fork copies the memory of a process and one thread of it. A lock that another thread holds at that
moment is never released in the child. So the hook before a fork acquires the lock of each shared
object, the hook in the parent releases the locks, and the hook in the child creates new ones.

Python does not serialize forks: two threads that fork run their hooks at the same time. So the lock
`_FORKING` is held from the first hook of a fork to the last. A fork waits for other threads for two
seconds at most, because a thread may wait for a disk that hangs.
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
    """Keep every thread from forking while the block runs.

    Yields False without `wait` if another thread is forking. The function protects late imports: a
    child waits without end for a module that another thread was importing during the fork.
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
    """A lock for one thread at a time. A thread that holds it already gets BusyError.

    That thread is in the handler of a signal, which interrupted the code under the lock. A handler
    may also raise right after the lock was acquired. So the owner is stored beside the lock.
    """

    def __init__(self) -> None:
        """Create the lock. Code that its owner may run again inside acquires `lock` directly."""
        self.lock = threading.RLock()
        self._owner: int | None = None
        self._outer: int | None = None

    @property
    def is_mine(self) -> bool:
        """Whether the current thread holds the lock."""
        return self._owner == threading.get_ident()

    @property
    def is_taken(self) -> bool:
        """Whether any thread holds the lock."""
        return self._owner is not None

    @contextlib.contextmanager
    def taken(self, patience: float) -> Iterator[None]:
        """Hold the lock while the block runs.

        Raises BusyError if another thread holds the lock for longer than `patience` seconds.
        """
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
        """Acquire the lock before a fork, also against the handlers of this thread's signals.

        Another thread may hold the lock until the deadline. Then the fork goes on without it.
        """
        if self.lock.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
            self._outer, self._owner = self._owner, threading.get_ident()

    def after_fork_in_parent(self) -> None:
        """Release the lock; RuntimeError if `before_fork` did not acquire it."""
        if self.is_mine:
            self._owner = self._outer
        self.lock.release()

    def after_fork_in_child(self) -> None:
        """Create a new lock: the thread that holds the old one does not exist in the child."""
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
    """An object that one thread at a time may use, and that no thread may use during a fork."""

    def __init__(self) -> None:
        """Create the lock, and let every fork call the hooks from now on."""
        self._turn = Turn()
        super().__init__()

    def before_fork(self, deadline: float) -> None:
        """Acquire the lock, and wait for it until `deadline` of the monotonic clock at most."""
        self._turn.before_fork(deadline)

    def after_fork_in_parent(self) -> None:
        """Release the lock."""
        self._turn.after_fork_in_parent()

    def after_fork_in_child(self) -> None:
        """Create a new lock."""
        self._turn.after_fork_in_child()


_SECONDS: Final = 2.0
"""Longest time that a fork waits for other threads, all of them together, and for the disk."""
_FORKING = threading.RLock()
_ALL: Final[weakref.WeakValueDictionary[int, ForkAware]] = weakref.WeakValueDictionary()
"""All objects with hooks, by the order of their creation. A thread that holds two of their locks
has acquired the lock of the older object first, so a fork acquires them in this order."""
_NUMBERS: Final = itertools.count()
_HELD: Final[dict[int, list[ForkAware]]] = {}
"""Objects whose hook before the fork has run, by the thread that forks. The handler of a signal may
fork before it holds `_FORKING`, so several threads may be here."""


def _in_order() -> list[ForkAware]:
    """Return all objects in the order in which they were created.

    Another thread may create one meanwhile: `valuerefs` copies the values in one step.
    """
    objects = [reference() for reference in _ALL.valuerefs()]
    return [shared for shared in objects if shared is not None]


def _before() -> None:
    """Run the hooks before a fork, and load the modules that normalize values.

    A child that had to import them could wait without end for another thread's import.
    """
    import encodings.idna  # noqa: F401, PLC0415 - 2 ms with Unicode's tables, for those who fork

    deadline = time.monotonic() + _SECONDS
    _FORKING.acquire(timeout=_SECONDS)
    held = _HELD.setdefault(threading.get_ident(), [])
    for shared in _in_order():
        held.append(shared)  # first: a signal's handler may raise in the middle of its hook
        shared.before_fork(deadline)


def _after_in_parent() -> None:
    """Run the hooks in the parent. Python prints and drops an exception of a signal's handler."""
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
    """Run the hooks in the child, and create a new lock of forks."""
    global _FORKING  # noqa: PLW0603 - the threads that waited for the old one are not here
    for shared in _in_order():
        shared.after_fork_in_child()
    _HELD.clear()
    _FORKING = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )
