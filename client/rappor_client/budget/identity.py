"""Identity of a device: the folder with its state, read under a lock and written in two copies.

Files of the folder `device/`:

    state.1, state.2         two equal copies of the state, with the secret (`folder/copies.py`)
    spool-HEX.sqlite3        reports of the secret with the identifier HEX
    .state.1.HEX.tmp         draft of a copy; a killed process may leave it

What `refresh` finds, and what it does:

    copies                                            action
    unchanged since the last look                     nothing
    both valid and equal                              read the state
    one valid, or two with different numbers          read the newer copy, and repair the other
    valid, but of another secret than the spool       as without a valid copy
    none valid                                        the state is lost: see below
    valid, in the format of another version           ForeignError: use the other version

If the state is lost, it is unknown how much budget the old secret has used. So the device gets a
new secret and skips all metrics until the year is over, and metrics for life for good. If it
continued at once, it would use the budget of the year twice.

A restored backup or a copied file may bring a valid state of another device into the folder. The
name of the spool contains the identifier of the device's secret, so such a state is recognized and
not used. Without a spool any secret is accepted. Two valid copies with different secrets count as
none, because either of the two may be this device's.

Invariant: both copies are replaced before a report that needs them may leave. The order of these
writes is in `outbox/writer.py`. All methods that write need the lock of the folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from rappor.base.atomic_files import sync_folder
from rappor_client.budget import reservation_record
from rappor_client.budget.reservation import Reservations
from rappor_client.budget.state import State
from rappor_client.folder import copies, spool
from rappor_client.folder.access import ForeignError, revoke_all_access
from rappor_client.folder.copies import Sealed
from rappor_client.folder.identity_folder import BUSY_SECONDS, NAME, BusyError, IdentityFolder
from rappor_client.periods import HOUR, Clock, day_of

_SPOOL_PREFIX: Final = "spool-"
_SPOOL_SUFFIX: Final = ".sqlite3"
BEGUN: Final = f"{NAME}.begun"
"""Name of a new device's folder until both copies are written. Then the folder is renamed, so no
process ever opens a folder without a state."""
_MAX_DRAFT_SECONDS: Final = HOUR
"""Age from which on a draft counts as left by a killed process, in seconds. A write takes
milliseconds. A smaller value may remove the draft of a process that was suspended."""


class _StoredState(NamedTuple):
    """A state as the disk contains it: its version number, the state, and its text."""

    number: int
    state: State
    text: Sealed


class Identity:
    """The secret and state of one device, as the disk contained them at the last look.

    Parameters
    ----------
    host
        Folder of the host program, which contains the folder of the identity.
    clock
        Returns seconds since 1970.

    Attributes
    ----------
    folder
        The open folder of the identity.
    state
        The state.
    number
        Version number of the state. Each write adds 1.
    has_equal_copies
        Whether the two copies were equal when the identity was opened.
    n_lost_states
        Number of times that this object found no valid state, since the writer has counted them.

    Raises
    ------
    FileNotFoundError
        There is no identity.
    OSError
        The system does not allow the access.
    UnusableError
        The folder belongs to another user, or has the format of another version.
    BusyError
        Another process keeps the lock, and the state must be replaced.
    """

    def __init__(self, host: Path, clock: Clock) -> None:
        self._clock = clock
        self._host = host
        self.n_lost_states = 0
        self._seen_stamps: tuple[object, ...] = ()
        revoke_all_access(host / NAME)
        self.folder = IdentityFolder(host / NAME)
        self._remove_old_drafts()
        # Reading needs no lock, because at any moment one copy is valid. Replacing a lost state
        # needs the lock.
        newest = _read_newest(self.folder) or self._read_or_replace()
        self.number, self.state, text = newest
        self.has_equal_copies = self._are_copies_equal(text)

    @property
    def spool(self) -> Path:
        """Path of the spool of this secret."""
        return self.folder.path / name_spool(self.state.secret_id)

    def refresh(self) -> None:
        """Read the state again if a copy has changed. The caller holds the lock of the folder.

        The head of this module lists the cases. Raises GoneError if consent was withdrawn, and
        ForeignError for a state of another version.
        """
        self.folder.check()
        # Comparing stamps takes microseconds. Reading and parsing both copies before every commit
        # would take much longer.
        stamps = copies.read_stamps(self.folder)
        if stamps == self._seen_stamps:
            return
        self.number, self.state, text = _read_newest(self.folder) or self._replace_lost_state()
        # A process was killed between the writes of the two copies, or one copy is damaged.
        if not self._are_copies_equal(text):
            copies.write(self.folder, self.number, text)
        self._seen_stamps = copies.read_stamps(self.folder)

    def write(self, state: State) -> None:
        """Replace both copies by a state. The caller holds the lock of the folder."""
        copies.write(self.folder, self.number + 1, state.to_text())
        self.number, self.state = self.number + 1, state
        self._seen_stamps = copies.read_stamps(self.folder)

    def invalidate(self) -> None:
        """Let the next `refresh` read the disk, and let all caches of this state be stale.

        For the child of a fork, and after the loss of the spool. Caches compare states as objects,
        so an equal copy of the state makes the caches stale.
        """
        self._seen_stamps = ()
        self.state = dataclasses.replace(self.state)

    def _remove_old_drafts(self) -> None:
        """Remove the drafts of killed processes, because a draft contains the secret."""
        for path in self.folder.path.glob(".state.*.tmp"):
            # Another process may finish its draft, which removes the draft's name, before `stat`.
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _MAX_DRAFT_SECONDS:
                    path.unlink()

    def _are_copies_equal(self, text: Sealed) -> bool:
        """Return whether both copies are valid and contain a text."""
        return [copy.text.bytes for copy in copies.read(self.folder)] == [text.bytes] * 2

    def _read_or_replace(self) -> _StoredState:
        """Read the state under the lock, and replace the state if it is lost.

        Without the lock no valid copy was found. Another process may have been replacing the lost
        state at that time. Under the lock its result is complete.
        """
        with self.folder.lock(BUSY_SECONDS) as is_locked:
            if not is_locked:
                raise BusyError
            return _read_newest(self.folder) or self._replace_lost_state()

    def _replace_lost_state(self) -> _StoredState:
        """Begin a new state in place of a lost state, and remove the old spool.

        The old secret may have used the budget of the present year. So the new state skips all
        metrics until this year is over. The present year is the year of the clock, or the latest
        year in the spool if that is later: then the clock is behind now.
        """
        spools = self.folder.path.glob(f"{_SPOOL_PREFIX}*{_SPOOL_SUFFIX}")
        year = max(day_of(self._clock()).year, *map(spool.find_latest_year, spools), 0)
        years = {**reservation_record.read(self._host, year), year: math.inf}
        state = State.create(Reservations.from_years(years, is_for_life=True))
        text = state.to_text()
        copies.write(self.folder, 1, text)
        # The reports of the old secret must not leave: their costs are unknown. The spool goes
        # last. If this process is killed before, the next one finds a valid copy of another secret
        # than the spool, and comes here again.
        for path in self.folder.path.glob(f"{_SPOOL_PREFIX}*"):
            self.folder.remove(path.name)
        self.n_lost_states += 1
        return _StoredState(1, state, text)


def create_identity(host: Path, years: Mapping[int, float]) -> None:
    """Create the folder of a new device. The caller holds the lock of the host's folder.

    Parameters
    ----------
    host
        Folder of the host program.
    years
        Nats that earlier identities have reserved, by calendar year; infinity if unknown.
    """
    state = State.create(Reservations.from_years(years))
    _create_folder(host / BEGUN, state).close()
    reservation_record.write(host, years)
    # This step makes the identity visible. A process that is killed before leaves a folder
    # `device.begun`, which the next process replaces.
    (host / BEGUN).rename(host / NAME)
    # Bad case: reports have left, and a loss of power undoes the rename. The next process would
    # replace the folder by a new identity, which would use the budget of the year a second time.
    sync_folder(host)


def _create_folder(path: Path, state: State) -> IdentityFolder:
    """Create a folder with a state, in place of a folder that a killed process has left."""
    if path.is_dir():
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    path.mkdir(mode=0o700)
    folder = IdentityFolder(path)
    copies.create(folder, state.to_text())
    return folder


def read_state(host: Path) -> tuple[State, Path] | None:
    """Return the state of a device and the path of its spool, without a lock and without changes.

    The result is None if there is no identity, or no copy of its state is valid. Raises OSError if
    a copy cannot be read, and ForeignError for a copy of another version.
    """
    try:
        folder = IdentityFolder(host / NAME)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        newest = _read_newest(folder)
    finally:
        folder.close()
    if newest is None:
        return None
    return newest.state, folder.path / name_spool(newest.state.secret_id)


def name_spool(secret_id: bytes) -> str:
    """Return the file name of a secret's spool."""
    return f"{_SPOOL_PREFIX}{secret_id.hex()}{_SPOOL_SUFFIX}"


def _read_newest(folder: IdentityFolder) -> _StoredState | None:
    """Return the state of the newest valid copy.

    The result is None if the state is lost: no copy is valid and belongs to this device. Raises
    ForeignError for a copy of another version.
    """
    spools = {path.name for path in folder.path.glob(f"{_SPOOL_PREFIX}*{_SPOOL_SUFFIX}")}
    states = []
    for copy in copies.read(folder):
        state = State.from_text(copy.text)
        if state is None:
            raise ForeignError(copy.name)
        # A state without a secret belongs to a withdrawal that was interrupted.
        if state.secret is not None:
            states.append(_StoredState(copy.number, state, copy.text))
    # The state of another device was copied into this folder.
    if spools:
        states = [stored for stored in states if name_spool(stored.state.secret_id) in spools]
    # Two copies with different secrets count as none: either may belong to this device.
    has_one_secret = len({stored.state.secret_id for stored in states}) == 1
    return states[0] if has_one_secret else None
