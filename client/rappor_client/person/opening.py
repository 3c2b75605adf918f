"""Opens a device's folder: a new one, or one that was being erased."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from rappor_client.budget import remainder
from rappor_client.budget.identity import Identity, begin
from rappor_client.folder.own_folder import (
    BUSY_SECONDS,
    NAME,
    RETRY_SECONDS,
    BusyError,
    OwnFolder,
    alone_in,
)
from rappor_client.periods import Clock, day_of
from rappor_client.person import withdrawal


def opened(host: Path, clock: Clock) -> Identity:
    """Return the identity of a host's folder, which must be there.

    Raises OSError where the system does not allow it, UnusableError for a folder of another user
    or another version, and BusyError where another process is at its beginning or end for too long.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        if _is_at_rest(host):  # also as soon as another process has seen to it
            with contextlib.suppress(FileNotFoundError):  # a withdrawal was faster
                return Identity(host, clock)
        with alone_in(host, patience=0.0) as is_inside:
            if is_inside:
                return _settled(host, clock)
        if time.monotonic() > deadline:
            OwnFolder(host).close()  # OSError where not a lock but the system keeps us out
            raise BusyError
        time.sleep(RETRY_SECONDS)


def _settled(host: Path, clock: Clock) -> Identity:
    now = clock()
    if withdrawal.is_unfinished(host):
        withdrawal.finish(host, now=now)
    if not os.path.lexists(host / NAME):
        begin(host, remainder.read_years(host, day_of(now).year))
    return Identity(host, clock)


def _is_at_rest(host: Path) -> bool:
    """Return whether a folder has an identity, and no withdrawal to finish."""
    return os.path.lexists(host / NAME) and not withdrawal.is_unfinished(host)
