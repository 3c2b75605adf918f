"""A lock between threads that survives forks and signals."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from rappor_client.folder.own_folder import BusyError


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
