"""Who this device is: the state of its folder, read under the lock and written to both copies.

A folder gets its name when it has both copies. Where no valid one is left, the device goes on with
a new secret and is silent: metrics for life for good, the others until the year is over. A copy
that is another device's is told by the name of the spool, which has the mark of the secret in it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rappor_client.budget import remainder
from rappor_client.budget.reservation import Reserved
from rappor_client.budget.state import State
from rappor_client.folder import copies, spool
from rappor_client.folder.access import ForeignError, revoke_all_access
from rappor_client.folder.copies import Sealed
from rappor_client.folder.identity_folder import BUSY_SECONDS, NAME, BusyError, IdentityFolder
from rappor_client.periods import HOUR, Clock, day_of

_SPOOL: Final = "spool-"
_ENDING: Final = ".sqlite3"
BEGUN: Final = f"{NAME}.begun"
"""A new device's folder until it is whole."""


class Identity:
    """One device's secret and state: what the disk held when it was last looked at."""

    def __init__(self, host: Path, clock: Clock) -> None:
        """Open the folder; FileNotFoundError if there is none.

        Raises OSError where the system does not allow it, UnusableError for a folder of another
        user or another version, and BusyError where it must be mended and another process keeps the
        lock.
        """
        self._clock = clock
        self._host = host
        self.n_lost = 0
        self._seen: tuple[object, ...] = ()
        revoke_all_access(host / NAME)
        self.folder = IdentityFolder(host / NAME)
        self._sweep()
        self.number, self.state, text = _newest(self.folder) or self._mended()
        self.is_whole = self._is_whole(text)

    @property
    def spool(self) -> Path:
        """The file of the reports that wait under this secret."""
        return self.folder.path / spool_name(self.state.mark)

    def refresh(self) -> None:
        """Look at the disk, under the lock; GoneError once consent was withdrawn.

        Mends a copy that is behind, and begins a new state where no valid one is left.
        """
        self.folder.check()
        stamps = copies.read_stamps(self.folder)
        if stamps == self._seen:
            return
        self.number, self.state, text = _newest(self.folder) or self._lost()
        if not self._is_whole(text):
            copies.write(self.folder, self.number, text)
        self._seen = copies.read_stamps(self.folder)

    def write(self, state: State) -> None:
        """Replace both copies, under the lock."""
        copies.write(self.folder, self.number + 1, state.to_text())
        self.number, self.state = self.number + 1, state
        self._seen = copies.read_stamps(self.folder)

    def look_again(self) -> None:
        """Read the disk at the next look; what was concluded from this state holds no more."""
        self._seen = ()
        self.state = dataclasses.replace(self.state)

    def _sweep(self) -> None:
        """Remove what processes have left, with the secret, that were killed over an hour ago."""
        with contextlib.suppress(OSError):
            for path in self.folder.path.glob(".state.*.tmp"):
                if time.time() - path.stat().st_mtime > HOUR:
                    path.unlink()

    def _is_whole(self, text: Sealed) -> bool:
        """Return whether both copies hold a text."""
        return [each.text.bytes for each in copies.read(self.folder)] == [text.bytes] * 2

    def _mended(self) -> tuple[int, State, Sealed]:
        """Return the state under the lock; whoever replaces it has left it whole."""
        with self.folder.lock(BUSY_SECONDS) as is_inside:
            if not is_inside:
                raise BusyError
            return _newest(self.folder) or self._lost()

    def _lost(self) -> tuple[int, State, Sealed]:
        """Go on with a new secret; metrics are skipped while the old one may have spent budget.

        A spool that names a later year than the clock shows that the clock is wrong now, and that
        budget of the later year was used.
        """
        spools = self.folder.path.glob(f"{_SPOOL}*{_ENDING}")
        year = max(day_of(self._clock()).year, *map(spool.find_latest_year, spools), 0)
        years = {**remainder.read_years(self._host, year), year: math.inf}
        state = State.fresh(Reserved.of_earlier(years, is_for_life=True))
        text = state.to_text()
        copies.write(self.folder, 1, text)
        for path in self.folder.path.glob(f"{_SPOOL}*"):
            self.folder.remove(path.name)
        self.n_lost += 1
        return 1, state, text


def begin(host: Path, years: Mapping[int, float]) -> None:
    """Make the folder of a new device; what earlier ones have reserved by year stays so."""
    build(host / BEGUN, State.fresh(Reserved.of_earlier(years))).close()
    remainder.write(host, years)
    (host / BEGUN).rename(host / NAME)


def build(place: Path, state: State) -> IdentityFolder:
    """Make a folder that holds a state, in the place of what an earlier attempt has left."""
    if place.is_dir():
        for path in place.iterdir():
            path.unlink()
        place.rmdir()
    place.mkdir(mode=0o700)
    folder = IdentityFolder(place)
    copies.begin(folder, state.to_text())
    return folder


def read_state(host: Path) -> tuple[State, Path] | None:
    """Return a folder's state and the file of its spool, None where no copy is valid.

    Raises OSError where a copy cannot be read, and ForeignError for one of another version.
    """
    try:
        folder = IdentityFolder(host / NAME)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        known = _newest(folder)
    finally:
        folder.close()
    return None if known is None else (known[1], folder.path / spool_name(known[1].mark))


def _newest(folder: IdentityFolder) -> tuple[int, State, Sealed] | None:
    """Return the newest state of a valid copy that is this device's.

    Raises ForeignError for a copy of another version.
    """
    spools = _spools(folder.path)
    found = []
    for copy in copies.read(folder):
        state = State.from_text(copy.text)
        if state is None:
            raise ForeignError(copies.NAMES[0])
        if state.secret is not None:
            found.append((copy.number, state, copy.text))
    if spools:
        found = [each for each in found if spool_name(each[1].mark) in spools]
    return found[0] if len({state.mark for _, state, _ in found}) == 1 else None


def spool_name(mark: bytes) -> str:
    """Return the name of a secret's spool."""
    return f"{_SPOOL}{mark.hex()}{_ENDING}"


def _spools(folder: Path) -> set[str]:
    """Return the names of the spools in a folder."""
    return {path.name for path in folder.glob(f"{_SPOOL}*{_ENDING}")}
