"""Opening of a device's folder: of an existing identity, a new one, or one that is being erased.

A host's folder is in one of three states:

    state       files                              who changes it
    settled     device/                            nobody; any number of processes may open it
    empty       no folder of a device              the first process creates device/
    unfinished  device.withdrawn.HEX/              the next process finishes the erasure, and then
                                                   creates device/

Only a settled folder may be opened without the lock of the host's folder. The states "empty" and
"unfinished" are changed under the lock only, so two processes that start together never create two
identities. A process that finds the lock taken looks again every 10 ms. As soon as the first
process has created device/, the other processes open it. So thirty workers that start together wait
for the first worker only, also on a slow disk.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from rappor_client.budget import reservation_record
from rappor_client.budget.identity import Identity, create_identity
from rappor_client.folder.identity_folder import (
    BUSY_SECONDS,
    NAME,
    RETRY_SECONDS,
    BusyError,
    IdentityFolder,
    lock_host_folder,
)
from rappor_client.periods import Clock, day_of
from rappor_client.person import erasure


def open_identity(host: Path, clock: Clock, *, may_create: bool = True) -> Identity:
    """Return the identity in a host's folder, a new one if there is none. The folder must exist.

    Raises OSError if the system does not allow the access, UnusableError for a folder of another
    user or of another version, and BusyError if another process holds the lock for too long. With
    `may_create=False` no identity is created: BusyError is raised at once if there is none.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        if _is_settled(host):  # true also as soon as another process has created the identity
            with contextlib.suppress(FileNotFoundError):  # a withdrawal was faster than this call
                return Identity(host, clock)
        if not may_create:
            raise BusyError
        with lock_host_folder(host, seconds=0.0) as is_inside:
            if is_inside:
                return _open_or_create_identity(host, clock)
        if time.monotonic() > deadline:
            # `lock_host_folder` also yields False for a folder that the system does not let us
            # open. Then this line raises OSError, and the host reads the true reason.
            IdentityFolder(host).close()
            raise BusyError
        time.sleep(RETRY_SECONDS)


def _open_or_create_identity(host: Path, clock: Clock) -> Identity:
    """Finish an interrupted withdrawal, create an identity if there is none, and open it.

    The caller holds the lock of the host's folder.
    """
    now = clock()
    if erasure.is_unfinished(host):
        erasure.finish(host, now=now)
    if not os.path.lexists(host / NAME):
        create_identity(host, reservation_record.read(host, day_of(now).year))
    return Identity(host, clock)


def _is_settled(host: Path) -> bool:
    """Return whether a folder has an identity, and no unfinished withdrawal."""
    return os.path.lexists(host / NAME) and not erasure.is_unfinished(host)
