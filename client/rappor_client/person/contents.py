"""What a device's folder holds: all of it at one moment, for people and for tests.

Nothing true is in it: reports are noisy, permanent responses go by keyed names, and of the secret
it tells only whether there is one.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rappor.base.errors import FileError
from rappor.protocol.wire import Report
from rappor_client.budget import admission, remainder
from rappor_client.budget.admission import Held
from rappor_client.budget.identity import read_state
from rappor_client.budget.scopes import Scope
from rappor_client.budget.spent import NOTHING_SPENT, PrivacySpent
from rappor_client.folder import spool
from rappor_client.folder.counters import counters
from rappor_client.folder.failures import DamagedError, name_failure
from rappor_client.folder.own_folder import NAME, BusyError
from rappor_client.folder.place import UnusableError
from rappor_client.folder.spool import QueuedUpload, SentUpload
from rappor_client.folder.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a device's folder holds.

    `waiting` are the finished reports without an answer; the first of them are in the uploads
    `pending`. `due` are the moments from which they may leave, in seconds since 1970, None where
    it was tried. `held` are the reports that wait for the end of their interval. `scopes` are what
    the device has answered for, which `spent` sums up. `sent` is the log of uploads, `bodies` what
    is to leave, byte by byte, what is held included.
    """

    has_secret: bool
    waiting: tuple[Report, ...] = ()
    due: tuple[float | None, ...] = ()
    pending: tuple[QueuedUpload, ...] = ()
    held: tuple[Held, ...] = ()
    scopes: tuple[Scope, ...] = ()
    spent: PrivacySpent = NOTHING_SPENT
    sent: tuple[SentUpload, ...] = ()
    bodies: tuple[bytes, ...] = field(default=(), repr=False)
    counters: Mapping[str, int]


def read_contents(folder: str | os.PathLike[str]) -> Contents:
    """Read what a folder holds; FileError where it cannot be read.

    A folder without telemetry, or no folder at all, has empty contents.
    """
    place = Path(folder).expanduser()
    with _failing_as_file_error(place):
        known = read_state(place)
        spent = read_spent(place)
        if known is None:
            return Contents(has_secret=False, spent=spent, counters={})
        state, path = known
        scopes = tuple(state.scopes.values())
        store = Store(path)
        if not store.exists():
            return Contents(has_secret=True, scopes=scopes, spent=spent, counters={})
        try:
            with store.reading() as db:
                held, waiting = tuple(admission.held(db)), spool.waiting_rows(db)
                return Contents(
                    has_secret=True,
                    waiting=tuple(report for report, _, _ in waiting),
                    due=tuple(due for _, due, _ in waiting),
                    pending=tuple(spool.pending(db)),
                    held=held,
                    scopes=scopes,
                    spent=spent,
                    sent=tuple(spool.log(db)),
                    bodies=(*(body for _, _, body in waiting), *(each.body for each in held)),
                    counters=counters(db),
                )
        finally:
            store.close()


def read_spent(folder: Path) -> PrivacySpent:
    """Return what a folder's device has spent: of its state, or of the line of a withdrawal."""
    known = read_state(folder)
    if known is None:
        return PrivacySpent.of((), remainder.read_years(folder, 0))
    return PrivacySpent.of(known[0].scopes.values(), known[0].reserved.by_year())


def check_telemetry(folder: Path) -> None:
    """Raise FileError unless a folder holds anything of a device, if only what it has reserved."""
    if not ((folder / NAME).exists() or (folder / remainder.NAME).exists()):
        raise FileError(folder, "there is no telemetry in it")


@contextlib.contextmanager
def _failing_as_file_error(folder: Path) -> Iterator[None]:
    """Raise FileError for what the disk does not allow when a caller only looks."""
    try:
        yield
    except UnusableError as error:
        raise FileError(folder, str(error)) from None
    except (sqlite3.Error, OSError, DamagedError, BusyError) as error:
        raise FileError(folder, name_failure(error)) from None
