"""The end of consent: the secret first, then everything else, then a check that it is gone.

The identity's folder is renamed away, so that no process finds it any more, and one that was
stopped writes into what is gone. Nothing but the state has to be understood to be erased. The
result is what was seen afterwards, never what was meant to happen.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from rappor_client.budget import remainder
from rappor_client.budget.identity import BEGUN
from rappor_client.budget.state import State
from rappor_client.folder import copies, spool
from rappor_client.folder.folder_thread import FolderThread
from rappor_client.folder.own_folder import NAME, BusyError, OwnFolder, alone_in
from rappor_client.folder.place import ForeignError
from rappor_client.folder.spool import CLAIM_SECONDS
from rappor_client.folder.store import Store
from rappor_client.folder.system import read_file
from rappor_client.folder.wiping import overwrite, wipe
from rappor_client.periods import day_of

_WITHDRAWN: Final = f"{NAME}.withdrawn"
_TRIES: Final = 3
"""A process that is alive may write into a folder while it is emptied."""

UNDER_WAY: Final = "an upload under way"
"""Named in `left` if a transport cannot be closed, or another process is sending."""
UNVERIFIED: Final = "everything, because the disk did not answer in time"
"""Named in `left` if nothing could be verified. The erasure is done as soon as the disk answers."""
_ERASE_SECONDS: Final = 5.0
"""Longest time that a caller waits for the end of an erasure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """What was verified after an erasure: true if nothing is left.

    `secret_gone` is whether no file of the folder holds the secret any more. `left` names the
    files that could not be erased, and an upload that could not be severed. The numbers that
    stay, the nats reserved by year, do not count as left.
    """

    secret_gone: bool
    left: tuple[str, ...] = ()

    def with_left(self, more: str) -> Self:
        """Return the same with something more that is left."""
        return self if more in self.left else replace(self, left=(*self.left, more))

    def __bool__(self) -> bool:
        """Return whether the secret and everything else is gone."""
        return self.secret_gone and not self.left

    def __str__(self) -> str:
        """Say it in plain words."""
        if UNVERIFIED in self.left:
            return f"Nothing could be verified; maybe still there: {', '.join(self.left)}."
        secret = "The secret is gone" if self.secret_gone else "The secret could not be erased"
        rest = f"still there: {', '.join(self.left)}" if self.left else "everything else is erased"
        return f"{secret}; {rest}."


def erase_within(
    thread: FolderThread,
    host: Path,
    *,
    now: float,
    close: Callable[[], None] = lambda: None,
) -> Withdrawal:
    """Erase a folder in a thread, and return within five seconds what was verified.

    Nothing is raised. `close` closes the caller's own files first. A disk
    that hangs is erased as soon as it answers, if the program still lives then.
    """

    def run() -> Withdrawal:
        try:
            close()
        except Exception as error:  # noqa: BLE001 - files that are open are erased all the same
            thread.on_failure(error)
        return erase(host, now=now)

    try:
        return thread.ask(run, seconds=_ERASE_SECONDS, lasting=True)
    except Exception as error:  # noqa: BLE001 - nothing of a device may stop its host
        thread.on_failure(error)
        left = UNVERIFIED if isinstance(error, BusyError) else host.name
        return Withdrawal(secret_gone=False, left=(left,))


def erase(host: Path, *, now: float) -> Withdrawal:
    """Erase a folder's secret, waiting reports, state and log, as far as the system lets it.

    The caller has ended everything of its own that sends; what another client or process has begun
    to send in the last seconds before `now` is named in `left`. This year counts as used up where
    nothing says what was reserved.
    """
    if not (_folders(host) or remainder.is_unreadable(host)):
        return Withdrawal(secret_gone=True)
    with alone_in(host):  # or beside a process that was stopped inside: nothing keeps this waiting
        return finish(host, now=now)


def finish(host: Path, *, now: float) -> Withdrawal:
    """Erase as `erase` does; nobody else begins or ends an identity meanwhile.

    What a state says is read before the line: who erases it elsewhere writes the line first.
    """
    year = day_of(now).year
    years: dict[int, float] = {}
    folders = _renamed(host)
    for folder in folders:
        years = remainder.greater(years, _ended(folder, year))
    try:
        years = remainder.greater(years, remainder.read_years(host, year))
    except (OSError, ForeignError):  # nobody knows what an unreadable record reserves
        years = {**years, year: math.inf}
    is_sending = any(_is_sending(folder, now) for folder in folders)
    secret_gone = _erase_files(host, folders, years)
    left = [str(path.relative_to(host)) for path in _left(host, folders)]
    return Withdrawal(
        secret_gone=secret_gone, left=(*left, UNDER_WAY) if is_sending else tuple(left)
    )


def is_unfinished(host: Path) -> bool:
    """Return whether an erasure has begun and not ended: `erase` finishes it."""
    return any(host.glob(f"{_WITHDRAWN}.*"))


def _renamed(host: Path) -> list[Path]:
    """Rename the identity's folder away; return the folders to erase.

    What has the name afterwards is a new device's, unless the system does not let us rename, or it
    is empty, which no new device's is.
    """
    try:
        if not _is_empty(host / NAME):
            (host / NAME).rename(host / f"{_WITHDRAWN}.{os.urandom(8).hex()}")
    except FileNotFoundError:
        pass
    except OSError:
        return _folders(host)
    return [path for path in _folders(host) if path.name != NAME or _is_empty(path)]


def _is_empty(place: Path) -> bool:
    try:
        return not place.is_symlink() and place.is_dir() and not any(place.iterdir())
    except OSError:  # it may be locked away from us
        return False


def _folders(host: Path) -> list[Path]:
    """Return the folders there are of identities, ended ones too."""
    own = [host / NAME, host / BEGUN, *sorted(host.glob(f"{_WITHDRAWN}.*"))]
    return [path for path in own if os.path.lexists(path)]


def _ended(place: Path, year: int) -> dict[int, float]:
    """Take the secret out of a folder's state; return what it had reserved by year.

    What another withdrawal has emptied meanwhile is in the line: it wrote that first.
    """
    if place.is_symlink() or not place.is_dir():
        return {}
    years: dict[int, float] = {}
    is_known = place.name == BEGUN
    with contextlib.suppress(OSError, ForeignError):
        folder = OwnFolder(place)
        try:
            for copy in copies.read(folder):
                if (state := State.from_text(copy.text)) is not None:
                    is_known = True
                    years = remainder.greater(years, state.reserved.by_year())
                    data = copies.written(copy.number, state.ended().to_text())
                    for path in _secrets(place):
                        overwrite(path, data)
        finally:
            folder.close()
    is_known |= place.name != NAME and (_is_empty(place) or not place.exists())
    return years if is_known else {year: math.inf}


def _secrets(place: Path) -> list[Path]:
    return [place / name for name in copies.NAMES]


def _erase_files(host: Path, folders: list[Path], years: dict[int, float]) -> bool:
    """Leave the one line, and nothing else; return whether the secret is gone."""
    # A process that was killed while it wrote the record left a draft beside it. Nobody else writes
    # the record now: the caller holds the lock of the host's folder.
    for draft in host.glob(f".{remainder.NAME}.*.tmp"):
        wipe(draft)
    is_kept = _keep(host, years)
    if not is_kept:  # what gives room goes, but for what says the same as the line
        for folder in folders:
            _empty(folder, but_ended=True)
        is_kept = _keep(host, years)
    if not is_kept and remainder.is_unreadable(host):
        wipe(host / remainder.NAME)
    for _ in range(_TRIES):
        for folder in folders:
            _empty(folder)
    if not is_kept:
        _keep(host, years)
    return not any(_holds_something(path) for path in _with_secret(folders))


def _keep(host: Path, years: Mapping[int, float]) -> bool:
    """Write the line, if there is anything to say; false where the disk does not allow it."""
    try:
        if years or remainder.is_unreadable(host):
            remainder.write(host, years)
        else:
            (host / remainder.NAME).unlink(missing_ok=True)  # nothing was ever reserved
    except OSError:
        return False
    return True


def _empty(folder: Path, *, but_ended: bool = False) -> None:
    """Remove a folder, or what is in it but for copies of a state without a secret."""
    if folder.is_symlink():
        wipe(folder)
        return
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir()):
            if not (but_ended and path.name in copies.NAMES and not _holds_something(path)):
                wipe(path)
        folder.rmdir()


def _with_secret(folders: list[Path]) -> list[Path]:
    """Return the files that may hold the secret, or half of it."""
    drafts = [path for folder in folders for path in folder.glob(".state.*")]
    states = [path for folder in folders for path in _secrets(folder)]
    return [*drafts, *states]


def _left(host: Path, folders: list[Path]) -> list[Path]:
    """Return the files there are that must not outlive consent."""
    found = list[Path]()
    for folder in filter(os.path.lexists, folders):
        inside = sorted(folder.iterdir()) if folder.is_dir() else []
        found += inside or [folder]
    return [*found, host / remainder.NAME] if remainder.is_unreadable(host) else found


def _is_sending(place: Path, now: float) -> bool:
    """Return whether somebody has claimed an upload a moment ago; not in a damaged database.

    Who claims later finds no folder.
    """
    for path in place.glob("spool-*.sqlite3"):
        store = Store(path)
        try:
            for look in (store.transaction, store.reading):  # a lock that is kept leaves the latter
                with contextlib.suppress(Exception), look() as db:  # damaged in whatever way
                    if any(
                        now < upload.claimed_until <= now + CLAIM_SECONDS
                        for upload in spool.pending(db)
                    ):
                        return True
                    break
        finally:
            store.close()
    return False


def _holds_something(path: Path) -> bool:
    """Return whether a file is there that may hold a secret: neither zeros nor a state without."""
    try:
        data = read_file(path)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        state = copies.parsed(data)
    except ForeignError:
        return True
    ended = state is not None and State.from_text(state.text)
    return any(data) and not (ended and ended.secret is None)
