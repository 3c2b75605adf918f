"""Erasure of a device after a withdrawal: the secret first, then all other files, then a check.

Files in the host's folder, by name:

    device/                 the identity in use: two copies of the state, with the secret, and the
                            spool
    device.begun/           a new identity that was not complete when its process was killed
    device.withdrawn.HEX/   an identity whose erasure has begun
    budget                  the record: nats reserved by calendar year. The only file that stays

An erasure has these steps, under the lock of the host's folder:

    1. rename   device/ becomes device.withdrawn.HEX/. No process finds the identity any more. A
                process that was paused with the folder open writes into the renamed folder.
    2. secret   Read the reserved nats from the valid copies of the state. Overwrite both copies in
                place by a state that has the reserved nats and no secret.
    3. sending  Look into the spool for an upload that another process has just claimed.
    4. record   Write the reserved nats to `budget`.
    5. remove   Overwrite and remove all files and the folders.
    6. verify   List the files that are still there. The result contains what was seen, never what
                was intended.

Invariant: from the first step to the last, the reserved nats of every year are in a copy of the
state or in the record. Without them, consent after a withdrawal would renew the budget of the
device, and one person could lose twice the privacy that the registry promises.

A kill after any step leaves a folder device.withdrawn.HEX/, so `is_unfinished` is true, and the
next opening of the client finishes the erasure. The steps may be repeated any number of times.

Example: a registry with `total = 16` has reserved 16 nats in 2026, and the person withdraws consent
in May and agrees again in June. `budget` contains {"2026": 16.0} in between. The new device has a
new secret, and records nothing before 2027.

A file that is damaged, or was written by another version, is erased like any other file. If no copy
of the state is readable, the reserved nats are unknown, so the whole year counts as used up.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from rappor_client.budget import reservation_record
from rappor_client.budget.identity import BEGUN
from rappor_client.budget.state import State
from rappor_client.folder import copies, spool
from rappor_client.folder.access import ForeignError
from rappor_client.folder.folder_thread import FolderThread
from rappor_client.folder.identity_folder import NAME, BusyError, IdentityFolder, lock_host_folder
from rappor_client.folder.spool import CLAIM_SECONDS, QueuedUpload
from rappor_client.folder.store import Store
from rappor_client.folder.system import read_file
from rappor_client.folder.wiping import overwrite, wipe
from rappor_client.periods import day_of
from rappor_client.person.withdrawal import UNDER_WAY, UNVERIFIED, Withdrawal

_WITHDRAWN: Final = f"{NAME}.withdrawn"
_REMOVE_ATTEMPTS: Final = 3
"""Number of times that the files of a folder are removed. A live process may write a file into the
folder while the folder is emptied. More attempts leave such a file less often."""

_ERASE_SECONDS: Final = 5.0
"""Longest time, in seconds, that a caller waits for the end of an erasure. A larger value holds the
host longer beside a disk that hangs."""


def erase_within(
    thread: FolderThread,
    host: Path,
    *,
    now: float,
    close: Callable[[], None] = lambda: None,
) -> Withdrawal:
    """Erase a folder in the folder's thread, and return the verified result within five seconds.

    The function raises nothing. A disk that hangs is erased as soon as it answers, if the program
    still lives then.

    Parameters
    ----------
    thread
        Thread that makes the system calls.
    host
        Folder of the host.
    now
        Time of the withdrawal, in seconds since 1970.
    close
        Closes the files of the calling client, before the erasure.
    """

    def run() -> Withdrawal:
        try:
            close()
        except Exception as error:  # noqa: BLE001 - files that are open are erased all the same
            thread.on_failure(error)
        return erase(host, now=now)

    try:
        return thread.run_within(run, seconds=_ERASE_SECONDS, is_kept_after_timeout=True)
    except Exception as error:  # noqa: BLE001 - nothing of a device may stop its host
        thread.on_failure(error)
        unerased_entry = UNVERIFIED if isinstance(error, BusyError) else host.name
        return Withdrawal(secret_gone=False, left=(unerased_entry,))


def erase(host: Path, *, now: float) -> Withdrawal:
    """Erase the secret, queued reports, state and log of a folder, as far as the system allows.

    The caller has stopped its own sender. An upload that another client or process claimed in the
    last seconds before `now` is an entry of `left`. The year of `now` counts as used up if no file
    contains the reserved nats.
    """
    is_empty = not (_list_folders(host) or reservation_record.is_unreadable(host))
    if is_empty and _can_list(host):
        return Withdrawal(secret_gone=True)
    # The erasure goes on without the lock if another process does not release it: that process may
    # have been stopped (SIGSTOP), and a withdrawal must not wait for it.
    with lock_host_folder(host):
        return finish(host, now=now)


def finish(host: Path, *, now: float) -> Withdrawal:
    """Erase a folder as `erase` does. The caller holds the lock of the host's folder, if possible.

    The record is read after the states. A second withdrawal at the same time writes the record
    before it removes a state. So this function finds the reserved nats in the state or in the
    record.
    """
    year = day_of(now).year
    years: dict[int, float] = {}  # reserved nats by calendar year
    folders = _rename_identity(host)
    for folder in folders:
        years = reservation_record.take_larger(years, _overwrite_secret(folder, year))
    try:
        years = reservation_record.take_larger(years, reservation_record.read(host, year))
    except (OSError, ForeignError):  # an unreadable record may contain any reservation
        years = {**years, year: math.inf}
    is_sending = any(_has_claimed_upload(folder, now) for folder in folders)
    secret_gone = _erase_files(host, folders, years)
    remaining_paths = [str(path.relative_to(host)) for path in _list_remaining(host, folders)]
    # Bad case: the system does not let this process look into the host's folder, for example after
    # the host has run as root. Nothing was seen there, and the result was "The secret is gone".
    if not _can_list(host):
        secret_gone = False
        remaining_paths = [host.name]
    return Withdrawal(
        secret_gone=secret_gone,
        left=(*remaining_paths, UNDER_WAY) if is_sending else tuple(remaining_paths),
    )


def is_unfinished(host: Path) -> bool:
    """Return whether an erasure was begun and interrupted. `finish` completes it."""
    return any(host.glob(f"{_WITHDRAWN}.*"))


def _rename_identity(host: Path) -> list[Path]:
    """Rename the folder of the identity, and return all folders to erase.

    A folder `device` that appears after the rename belongs to a new device and is not in the list.
    Two cases are exceptions. The system may refuse the rename: then `device` is erased in its
    place. An empty `device` is in the list, because a new device's folder is never empty.
    """
    try:
        if not _is_empty(host / NAME):
            (host / NAME).rename(host / f"{_WITHDRAWN}.{os.urandom(8).hex()}")
    except FileNotFoundError:
        pass
    except OSError:  # a folder of another user, or a read-only disk
        return _list_folders(host)
    return [path for path in _list_folders(host) if path.name != NAME or _is_empty(path)]


def _is_empty(path: Path) -> bool:
    """Return whether a path is a folder that can be read and has no files."""
    try:
        return not path.is_symlink() and path.is_dir() and not any(path.iterdir())
    except OSError:
        return False


def _can_list(host: Path) -> bool:
    """Return whether all files of a host's folder can be seen; True if there is no folder."""
    try:
        any(host.iterdir())
        (host / NAME).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return True


def _list_folders(host: Path) -> list[Path]:
    """Return the existing folders of identities: in use, incomplete, and withdrawn."""
    paths = [host / NAME, host / BEGUN, *sorted(host.glob(f"{_WITHDRAWN}.*"))]
    return [path for path in paths if os.path.lexists(path)]


def _overwrite_secret(path: Path, year: int) -> dict[int, float]:
    """Overwrite the secret in the copies of a folder's state; return the nats reserved by year.

    What the function returns:

        folder                                       nats by year
        is a link, or no folder                      none
        has a readable copy of a state               the larger number of the copies, for each year
        is an incomplete identity (`device.begun`)   none: it has recorded nothing
        is empty or gone, and was withdrawn          none: another withdrawal has emptied it, and
                                                     has written the record before
        otherwise                                    infinity for the given year
    """
    if path.is_symlink() or not path.is_dir():
        return {}
    states = _overwrite_states(path)
    if states:
        years: dict[int, float] = {}
        for state in states:
            years = reservation_record.take_larger(years, state.reservations.sum_by_year())
        return years
    is_emptied = path.name != NAME and (_is_empty(path) or not path.exists())
    is_without_reservations = path.name == BEGUN or is_emptied
    return {} if is_without_reservations else {year: math.inf}


def _overwrite_states(path: Path) -> list[State]:
    """Overwrite both copies of a folder's state by a state without the secret.

    Returns the states that the copies contained. A copy that is damaged or was written by another
    version is left out.
    """
    states: list[State] = []
    with contextlib.suppress(OSError, ForeignError):
        folder = IdentityFolder(path)
        try:
            for copy in copies.read(folder):
                if (state := State.from_text(copy.text)) is not None:
                    states.append(state)
                    data = copies.format_copy(copy.number, state.without_secret().to_text())
                    for copy_path in _copy_paths(path):
                        overwrite(copy_path, data)
        finally:
            folder.close()
    return states


def _copy_paths(path: Path) -> list[Path]:
    """Return the paths of both copies of a folder's state."""
    return [path / name for name in copies.NAMES]


def _erase_files(host: Path, folders: list[Path], years: dict[int, float]) -> bool:
    """Write the record and remove all other files; return whether the secret is gone."""
    # A process that was killed while it wrote the record left a draft of the record. No process
    # writes the record now, because the caller holds the lock of the host's folder.
    for draft in host.glob(f".{reservation_record.NAME}.*.tmp"):
        wipe(draft)
    is_written = _write_record(host, years)
    # The disk is full. All files go but the copies of the state, which contain the same reserved
    # nats, and the record is tried again in the freed space. Earlier versions erased the old record
    # before there was space for the new one, so a kill in between lost the reservations.
    if not is_written:
        for folder in folders:
            _remove_files(folder, except_copies=True)
        is_written = _write_record(host, years)
    # The old record stays if the new record cannot be written. An unreadable record may contain any
    # bytes, even data of the person, so it is erased although no record replaces it.
    if not is_written and reservation_record.is_unreadable(host):
        wipe(host / reservation_record.NAME)
    for _ in range(_REMOVE_ATTEMPTS):
        for folder in folders:
            _remove_files(folder)
    if not is_written:  # the last files have gone, so there may be space now
        _write_record(host, years)
    return not any(_may_contain_secret(path) for path in _list_secret_files(folders))


def _write_record(host: Path, years: Mapping[int, float]) -> bool:
    """Write the record of reserved nats; return False if the disk does not allow it.

    A device that never reserved anything has no record.
    """
    try:
        if years or reservation_record.is_unreadable(host):
            reservation_record.write(host, years)
        else:
            (host / reservation_record.NAME).unlink(missing_ok=True)
    except OSError:
        return False
    return True


def _remove_files(folder: Path, *, except_copies: bool = False) -> None:
    """Overwrite and remove the files of a folder, and the folder.

    With `except_copies` the copies of a state without a secret stay.
    """
    # A link in the place of a folder is removed itself: its target belongs to somebody else.
    if folder.is_symlink():
        wipe(folder)
        return
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir()):
            is_copy = path.name in copies.NAMES
            if not (except_copies and is_copy and not _may_contain_secret(path)):
                wipe(path)
        folder.rmdir()


def _list_secret_files(folders: list[Path]) -> list[Path]:
    """Return the paths of files that may contain the secret: copies of the state and drafts."""
    drafts = [path for folder in folders for path in folder.glob(".state.*")]
    states = [path for folder in folders for path in _copy_paths(folder)]
    return [*drafts, *states]


def _list_remaining(host: Path, folders: list[Path]) -> list[Path]:
    """Return the existing paths that must not outlive consent."""
    remaining = list[Path]()
    for folder in filter(os.path.lexists, folders):
        try:
            inside = sorted(folder.iterdir()) if folder.is_dir() else []
        except OSError:  # the system does not let this process look into the folder
            inside = []
        remaining += inside or [folder]
    return (
        [*remaining, host / reservation_record.NAME]
        if reservation_record.is_unreadable(host)
        else remaining
    )


def _has_claimed_upload(path: Path, now: float) -> bool:
    """Return whether a process has claimed an upload of a folder's spool in the last seconds.

    The result is False for a damaged spool. A process that claims an upload later finds no folder.
    """
    for database in path.glob("spool-*.sqlite3"):
        store = Store(database)
        try:
            uploads = _list_tried_uploads(store)
        finally:
            store.close()
        if any(now < upload.claimed_until <= now + CLAIM_SECONDS for upload in uploads):
            return True
    return False


def _list_tried_uploads(store: Store) -> list[QueuedUpload]:
    """Return the uploads without a result; none for a damaged spool."""
    # A transaction waits until a claim that another process is writing is committed. If that
    # process keeps the write lock for too long, a read sees at least the claims before.
    for open_spool in (store.transaction, store.reading):
        with contextlib.suppress(Exception), open_spool() as db:  # damaged in whatever way
            return spool.list_tried_uploads(db)
    return []


def _may_contain_secret(path: Path) -> bool:
    """Return whether a file exists that may contain a secret.

    A file of zeros and a state without a secret contain none.
    """
    try:
        data = read_file(path)
    except FileNotFoundError:
        return False
    except OSError:  # a file that cannot be read may contain anything
        return True
    # The file has been overwritten by zeros.
    if not any(data):
        return False
    try:
        copy = copies.parse_copy(path.name, data)
    except ForeignError:  # a state in the format of another version may have a secret
        return True
    state = None if copy is None else State.from_text(copy.text)
    return state is None or state.secret is not None
