"""Locks that survive a fork: `Turn` for one thread at a time, and hooks that run at every fork.

A fork copies the memory of a process and one of its threads. A lock that another thread holds at
that time is never released in the child. So every object with a lock (`Shared`) has three hooks:

    before_fork            acquires the lock, so that no other thread is inside
    after_fork_in_parent   releases the lock
    after_fork_in_child    creates a new lock

Two rules keep forks from deadlocks:

- The hooks acquire the locks in the order in which the objects were created. A thread that holds
  two of these locks has acquired the lock of the older object first.
- Python does not serialize forks: two threads that fork run their hooks at the same time, and once
  released each other's locks. So the lock `_FORKING` is held from the first hook of a fork to the
  last.

A fork waits for other threads for two seconds at most, because a thread may wait for a disk that
hangs. The fork then goes on without the locks of that thread. In the child, an object whose lock
was not acquired may be half changed. So its hook resets the object: the child's `Store`, for
example, never opens the database that the other thread was using.

Signals are the second bad case. A handler runs in the main thread between any two instructions. It
may call the client, fork, or raise, also right after a lock was acquired. So a `Turn` stores its
owner: a handler that finds its own thread as the owner gets BusyError and does not wait for itself.
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

from rappor_client.folder.identity_folder import BusyError


@contextlib.contextmanager
def block_forks(*, wait: bool = False) -> Iterator[bool]:
    """Keep all threads from forking while the block runs, for example around a late import.

    The child of a fork waits without end for a module that another thread was importing during the
    fork. Without `wait`, the function yields False at once if another thread is forking.
    """
    forking = _FORKING  # a handler may fork in the block, and then `_FORKING` is another lock
    try:
        yield forking.acquire(blocking=wait)
    finally:
        try:  # noqa: SIM105 - a handler could raise inside the call of `suppress`
            forking.release()
        except RuntimeError:  # the lock was not acquired
            pass


class Turn:
    """A lock for one thread at a time. A thread that holds the lock already gets BusyError.

    Code that its owner may enter again acquires the attribute `lock` directly.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._owner: int | None = None
        self._owner_before_fork: int | None = None

    @property
    def is_mine(self) -> bool:
        """Whether the current thread holds the lock."""
        return self._owner == threading.get_ident()

    @property
    def is_taken(self) -> bool:
        """Whether any thread holds the lock."""
        return self._owner is not None

    @contextlib.contextmanager
    def acquire(self, seconds: float) -> Iterator[None]:
        """Hold the lock while the block runs.

        Raises BusyError if another thread holds the lock for longer than `seconds`, or if
        this thread holds it.
        """
        me = threading.get_ident()
        if self._owner == me:
            raise BusyError
        lock = self.lock  # a handler may fork in the block, and then `self.lock` is another lock
        try:
            if not lock.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX)):
                raise BusyError
            self._owner = me
            yield
        finally:
            if self._owner == me:
                self._owner = None
            try:  # noqa: SIM105 - a handler could raise inside the call of `suppress`
                lock.release()
            except RuntimeError:  # the lock was not acquired
                pass

    def before_fork(self, deadline: float) -> None:
        """Acquire the lock before a fork, and become its owner for handlers of this thread.

        Another thread may hold the lock until the deadline. Then the fork goes on without it.
        """
        if self.lock.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
            self._owner_before_fork, self._owner = self._owner, threading.get_ident()

    def after_fork_in_parent(self) -> None:
        """Release the lock; RuntimeError if `before_fork` did not acquire it."""
        if self.is_mine:
            self._owner = self._owner_before_fork
        self.lock.release()

    def after_fork_in_child(self) -> None:
        """Create a new lock: the thread that holds the old one does not exist in the child."""
        self.lock = threading.RLock()
        self._owner = None


class ForkAware:
    """An object with three hooks that every fork of the process calls."""

    def __init__(self) -> None:
        """Register the object for forks. The object must be complete when this method runs."""
        # No lock protects the registration: the folder's thread creates such objects, and a fork
        # waits for that thread. `next` and the assignment are atomic.
        _ALL[next(_NUMBERS)] = self

    def before_fork(self, deadline: float) -> None:
        """Prepare for a fork. The deadline is a time of the monotonic clock."""

    def after_fork_in_parent(self) -> None:
        """Resume in the parent."""

    def after_fork_in_child(self) -> None:
        """Reset the object in the child, in which only the forking thread exists."""


class Shared(ForkAware):
    """An object that one thread at a time may use, and that no thread may use during a fork."""

    def __init__(self) -> None:
        """Create the lock, and register the object for forks."""
        self._turn = Turn()
        super().__init__()

    def before_fork(self, deadline: float) -> None:
        """Acquire the lock, and wait for it until the deadline at most."""
        self._turn.before_fork(deadline)

    def after_fork_in_parent(self) -> None:
        """Release the lock."""
        self._turn.after_fork_in_parent()

    def after_fork_in_child(self) -> None:
        """Create a new lock."""
        self._turn.after_fork_in_child()


_FORK_SECONDS: Final = 2.0
"""Longest time that a fork waits for all other threads together, in seconds. A larger value holds
the host longer beside a disk that hangs."""
_FORKING = threading.RLock()
_ALL: Final[weakref.WeakValueDictionary[int, ForkAware]] = weakref.WeakValueDictionary()
"""All objects with hooks, by the number of their creation, which is the order of their locks."""
_NUMBERS: Final = itertools.count()
_PREPARED: Final[dict[int, list[ForkAware]]] = {}
"""Objects whose hook before the fork has run, by the thread that forks. Several threads may have an
entry, because a handler may fork before its thread holds `_FORKING`."""


def _list_objects() -> list[ForkAware]:
    """Return all objects with hooks, in the order of their creation.

    Another thread may create an object at the same time, so `valuerefs` copies the values in one
    step.
    """
    objects = [reference() for reference in _ALL.valuerefs()]
    return [shared for shared in objects if shared is not None]


def _run_before() -> None:
    """Run the hooks before a fork, and load the modules that normalize values.

    The child could wait without end for a module that another thread of the parent was importing.
    """
    # Bad case: the program has no free file handle. The error of the import left the hooks out, so
    # the child had locks that nobody releases, and Python printed a traceback.
    with contextlib.suppress(ImportError, OSError):
        import encodings.idna  # noqa: F401, PLC0415 - 2 ms with Unicode's tables, for those who fork

    deadline = time.monotonic() + _FORK_SECONDS
    _FORKING.acquire(timeout=_FORK_SECONDS)
    prepared = _PREPARED.setdefault(threading.get_ident(), [])
    for shared in _list_objects():
        # Appended before its hook runs: a handler may raise in the middle of the hook, and the lock
        # must be released all the same.
        prepared.append(shared)
        shared.before_fork(deadline)


def _run_after_in_parent() -> None:
    """Run the hooks in the parent after a fork, in reverse order.

    An exception of a handler must not keep the other objects locked. The last such exception is
    raised at the end, and Python prints and drops it.
    """
    raised: BaseException | None = None
    prepared = _PREPARED.get(threading.get_ident(), [])
    try:
        while prepared:
            try:
                while prepared:
                    prepared[-1].after_fork_in_parent()
                    prepared.pop()
            except RuntimeError:
                # The hook before the fork did not acquire the lock: a handler had raised in it, or
                # another thread held the lock until the deadline.
                prepared.pop()
            except BaseException as error:  # noqa: BLE001 - raised below
                raised = error
    finally:
        try:  # noqa: SIM105 - a handler could raise inside the call of `suppress`
            _FORKING.release()
        except RuntimeError:  # the lock was not acquired
            pass
    if raised is not None:
        raise raised


def _run_after_in_child() -> None:
    """Run the hooks in the child, and create a new lock of forks."""
    global _FORKING  # noqa: PLW0603 - the threads that waited for the old lock do not exist here
    for shared in _list_objects():
        shared.after_fork_in_child()
    _PREPARED.clear()
    _FORKING = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_run_before,
        after_in_parent=_run_after_in_parent,
        after_in_child=_run_after_in_child,
    )
