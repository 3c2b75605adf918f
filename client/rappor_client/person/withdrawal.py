"""The end of consent: the secret first, then everything else, then a check that it is gone.

Names go first, and the bytes at once after them, so that a reader elsewhere keeps nothing. A
damaged or locked database makes no difference: nothing has to be understood to be erased. The
result is what was seen afterwards, never what was meant to happen.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from rappor_client.budget import budget_copy, reservation
from rappor_client.budget.budget_copy import BudgetCopy, Copy
from rappor_client.folder import spool
from rappor_client.folder.secret_file import SecretFile
from rappor_client.folder.spool import CLAIM_SECONDS
from rappor_client.folder.store import Store, database_names, in_memory
from rappor_client.periods import HOUR, day_of

_PRIVATE: Final = 0o600
_CHUNK: Final = 1 << 20
_SHARED: Final = "-shm"
"""Memory that other processes share: it holds no row, and they would stumble."""
_OVERWRITING: Final = os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0)
"""A link that somebody has put in a file's place leads nowhere."""
_BEGUN: Final = "withdrawing"
"""An empty file that is there from the beginning of an erasure to its end."""
_HALF_AN_IDENTITY: Final = ".identity.*.tmp"
_HALF_A_COPY: Final = ".budget.*.tmp"
"""What a process leaves that is killed while it writes a file, and has while it is alive."""

UNDER_WAY: Final = "an upload under way"
"""Named in `left` if a transport cannot be closed, or another process is sending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """What was verified after an erasure: true if nothing is left.

    `secret_gone` is whether no file of the folder holds the secret any more. `left` names the
    files that could not be erased, and an upload that could not be severed. The numbers that
    stay, the nats spent and those reserved by year, do not count as left.
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
        secret = "The secret is gone" if self.secret_gone else "The secret could not be erased"
        rest = f"still there: {', '.join(self.left)}" if self.left else "everything else is erased"
        return f"{secret}; {rest}."


def erase(folder: Path, store: Store, *, now: float) -> Withdrawal:
    """Erase a folder's secret, waiting reports, ledger and log, as far as the system lets it.

    The caller has ended everything of its own that sends; what another client or process has begun
    to send in the last seconds before `now` is named in `left`. This year counts as used up where
    nothing says what was reserved.
    """
    if not _traces(folder):
        return Withdrawal(secret_gone=True)
    copy = BudgetCopy(folder)
    had_secret = any(map(os.path.lexists, _secrets(folder)))
    with contextlib.suppress(OSError):
        (folder / _BEGUN).touch(mode=_PRIVATE)
    for path in _secrets(folder):
        _wipe(path)
    is_sending = _is_sending(store, now)
    document = _remainder(store, copy, day_of(now).year, had_secret=had_secret)
    store.close()
    _replace(copy, document)
    for name in database_names():
        _wipe(folder / name)
    for path in folder.glob(_HALF_A_COPY):  # last: another process may have been about to send
        _wipe(path)
    _wipe(folder / _BEGUN)
    secret_gone = not any(map(_holds_something, _secrets(folder)))
    left = [path.name for path in _traces(folder)]
    return Withdrawal(
        secret_gone=secret_gone, left=(*left, UNDER_WAY) if is_sending else tuple(left)
    )


def was_killed(folder: Path) -> bool:
    """Return whether an erasure has begun and not ended: `erase` finishes it."""
    return os.path.lexists(folder / _BEGUN)


def sweep(folder: Path) -> None:
    """Erase the drafts of the budget that processes left that were killed over an hour ago."""
    with contextlib.suppress(OSError):
        for path in folder.glob(_HALF_A_COPY):
            if time.time() - path.stat().st_mtime > HOUR:
                _wipe(path)


def file_names() -> list[str]:
    """Return the names of all files that a device has in its folder."""
    here = Path()
    return [SecretFile(here).path.name, BudgetCopy(here).path.name, *database_names()]


def _secrets(folder: Path) -> list[Path]:
    """Return the files that may hold the secret, or half of it."""
    return [SecretFile(folder).path, *folder.glob(_HALF_AN_IDENTITY)]


def _traces(folder: Path) -> list[Path]:
    """Return the files there are that must not outlive consent."""
    copy = BudgetCopy(folder)
    databases = [folder / name for name in database_names()]
    others = (*folder.glob(_HALF_A_COPY), folder / _BEGUN)
    paths = [path for path in (*_secrets(folder), *databases, *others) if os.path.lexists(path)]
    return paths if _is_remainder(copy) else [*paths, copy.path]


def _is_remainder(copy: BudgetCopy) -> bool:
    """Return whether the copy holds no more than what stays, or is not there."""
    try:
        return copy.read().is_of_nobody or not copy.exists()
    except OSError:
        return False


def _remainder(
    store: Store, copy: BudgetCopy, year: int, *, had_secret: bool
) -> dict[str, Any] | None:
    """Return what stays, from the database, or from the copy where the database is not sound."""
    kept = _read(copy)
    is_lost = kept.document is None and (had_secret or kept.is_damaged)
    try:
        with contextlib.closing(in_memory()) as db:
            store.copy_to(db)
            is_lost_here = is_lost and not budget_copy.read_mark(db)
            return _remainder_of(db, kept, year if is_lost_here else None)
    except Exception as error:  # noqa: BLE001 - locked, or damaged in whatever way: it must go all the same
        is_lost |= kept.document is None and not isinstance(error, FileNotFoundError)
        with contextlib.closing(in_memory()) as db:
            return _remainder_of(db, kept, year if is_lost else None)


def _is_sending(store: Store, now: float) -> bool:
    """Return whether somebody has claimed an upload a moment ago; not in a damaged database.

    The look waits for a claim that is being written. Who claims later finds no secret.
    """
    for look in (store.transaction, store.reading):  # a lock that is kept leaves the latter
        with contextlib.suppress(Exception), look() as db:  # gone, or damaged in whatever way
            return any(
                now < upload.claimed_until <= now + CLAIM_SECONDS for upload in spool.pending(db)
            )
    return False


def _read(copy: BudgetCopy) -> Copy:
    try:
        return copy.read()
    except OSError:
        return Copy(None, is_damaged=True)


def _remainder_of(
    db: sqlite3.Connection, kept: Copy, lost_year: int | None
) -> dict[str, Any] | None:
    """Return what stays of a database and its copy; DamagedError where it is not sound."""
    if lost_year is not None:
        reservation.lose(db, lost_year)
    return budget_copy.remainder(db, kept)


def _replace(copy: BudgetCopy, document: dict[str, Any] | None) -> None:
    """Leave what stays in the place of the copy; rather nothing than more."""
    if document is None:
        _wipe(copy.path)
        return
    with _opened(copy.path) as old:
        try:
            copy.write(document)
            _fill_with_zeros(old)
        except OSError:
            with contextlib.suppress(OSError):
                copy.overwrite(document)
    if not _is_remainder(copy):
        _wipe(copy.path)


def _wipe(path: Path) -> None:
    """Remove a file and overwrite its bytes, as far as the system lets it."""
    with _opened(path) as file, contextlib.suppress(OSError):
        with contextlib.suppress(OSError):
            path.unlink()
        _fill_with_zeros(file)
    with contextlib.suppress(OSError):
        path.unlink()  # Windows removes no file that is open


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    """Open a file for overwriting, also when it has lost its name; None where that is refused."""
    try:
        file = None if path.name.endswith(_SHARED) else os.open(path, _OVERWRITING)
    except OSError:
        file = None
    try:
        yield file
    finally:
        if file is not None:
            os.close(file)


def _fill_with_zeros(file: int | None) -> None:
    if file is None:
        return
    left = os.fstat(file).st_size
    while left:
        left -= os.write(file, bytes(min(_CHUNK, left)))
    os.fsync(file)


def _holds_something(path: Path) -> bool:
    """Return whether a file is there and is not overwritten."""
    try:
        return any(path.read_bytes())
    except FileNotFoundError:
        return os.path.lexists(path)
    except OSError:
        return True
