"""Who this device is: the secret's file, the database and the copy beside it, kept in agreement.

The database and the copy of the budget keep a keyed mark of the secret that they were written
under. A secret that is damaged, gone or another device's meets the policy that the host chose; it
is never silently replaced. A database that is gone or older is rebuilt from the copy; where both
are gone, the device is silent for what it may have spent. All of this happens inside write
transactions, so that processes agree, and again whenever the database is opened.
"""

from __future__ import annotations

import hmac
import sqlite3
from pathlib import Path
from typing import Final

from rappor.protocol.randomizer import Secret, expand
from rappor_client.budget import budget_copy, reservation
from rappor_client.budget.budget_copy import BudgetCopy, Copy
from rappor_client.errors import IdentityError
from rappor_client.folder.secret_file import SecretFile, Stamp, fresh_secret
from rappor_client.folder.state import count
from rappor_client.folder.store import BUSY_SECONDS, TABLES, BusyError, Store
from rappor_client.periods import Clock, day_of
from rappor_client.settings import Policy

_MARK_BYTES: Final = 8
_LEAST_SECONDS: Final = 0.001


class ErasedError(Exception):
    """The secret is gone since it was read: consent was withdrawn."""


class Identity:
    """The secret of one folder: read once, and again when its file or the database changes."""

    def __init__(self, folder: Path, store: Store, policy: Policy, clock: Clock) -> None:
        """Name the folder, its store and the policy for a bad secret; nothing is read yet."""
        self._folder = folder
        self._store = store
        self._file = SecretFile(folder)
        self._copy = BudgetCopy(folder)
        self._policy = policy
        self._clock = clock
        self._secret: Secret | None = None
        self._seen: tuple[Stamp | None, int] | None = None
        self._mark = b""
        self._glimpsed: tuple[Stamp | None, Secret] | None = None
        self._may_begin = True

    def secret(self, *, patience: float = BUSY_SECONDS) -> Secret:
        """Return the secret, a fresh one if the folder is new.

        Raises IdentityError as the policy says, ErasedError once consent was withdrawn, perhaps by
        another process, and else as `Store.transaction` does.
        """
        if self._secret is not None and self._seen == self._looks() and self._store.exists():
            return self._secret
        if self._file.exists():
            self._may_begin = False  # whoever removes it now has withdrawn consent
        elif not self._may_begin:
            raise ErasedError
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._store.begin()
        with self._store.transaction(durable=True, patience=patience) as db:
            return self.secret_in(db)

    def secret_soon(self, *, patience: float) -> Secret:
        """Return the secret as `secret` does, or as its file holds it where a lock keeps that out.

        That is enough to prepare a report; whatever else must agree does when it is stored.
        """
        try:
            return self.secret(patience=patience)
        except BusyError:
            stamp = self._file.stamp()
            if self._glimpsed is None or self._glimpsed[0] != stamp:
                with self._store.reading(patience=_LEAST_SECONDS) as db:
                    if not self._is_of(budget_copy.read_mark(db)):
                        raise
                self._glimpsed = stamp, Secret(self._file.read())
            return self._glimpsed[1]

    def secret_in(self, db: sqlite3.Connection) -> Secret:
        """Return the secret inside a transaction; it may be another one than before."""
        if self._secret is None or not self._is_current(db):
            self._secret = Secret(self._agreed(db))
            self._seen, self._mark = self._looks(), budget_copy.read_mark(db)
            self._may_begin = False
        return self._secret

    def _is_current(self, db: sqlite3.Connection) -> bool:
        """Return whether the secret's file and the database are those that were read."""
        return self._seen == self._looks() and budget_copy.read_mark(db) == self._mark

    def _looks(self) -> tuple[Stamp | None, int]:
        return self._file.stamp(), self._store.n_opened

    def _agreed(self, db: sqlite3.Connection) -> bytes:
        """Return the secret that file, database and copy agree on, after the policy if not."""
        if not self._may_begin and not self._file.exists():
            raise ErasedError
        copy, mark = self._copy.read(), budget_copy.read_mark(db)
        if copy.is_of_nobody and not (mark and self._is_of(mark)):
            return self._begin(db, copy)  # withdrawn, and perhaps killed while erasing
        known = [each for each in (mark, copy.mark) if each]
        if not self._file.exists() and not (mark or copy.has_answered):
            return self._begin(db, copy)  # new, or killed while it began: there was no secret yet
        try:
            secret = self._file.read()
            if known and mark_of(secret) not in known:
                raise IdentityError(
                    f"{self._folder}: identity and budget must belong to the same device, but the "
                    "identity is another device's"
                )
        except IdentityError:
            if self._policy != "reset":
                raise
            count(db, "identity_resets")
            return self._begin(db, copy)
        self._rebuild(db, copy, mark_of(secret))
        return secret

    def _is_of(self, mark: bytes) -> bool:
        """Return whether the secret's file is whole and has this mark."""
        try:
            return hmac.compare_digest(mark_of(self._file.read()), mark)
        except IdentityError:
            return False

    def _begin(self, db: sqlite3.Connection, copy: Copy) -> bytes:
        """Become a new device: what was spent stays spent, open epochs and intervals end."""
        mark = budget_copy.read_mark(db)
        if copy.is_of_nobody:
            _erase(db)
        if copy.is_of_nobody or (copy.mark and mark in (b"", copy.mark)):
            budget_copy.absorb(db, copy)
        elif copy.is_damaged and not mark:
            reservation.lose(db, self._year())
        _end(db)
        secret = fresh_secret()
        budget_copy.write_mark(db, mark_of(secret))
        self._copy.keep(db)  # before the secret: a secret without a budget is one that lost it
        self._file.write(secret)
        return secret

    def _rebuild(self, db: sqlite3.Connection, copy: Copy, own: bytes) -> None:
        """Bring back what the database has forgotten of a secret."""
        mark = budget_copy.read_mark(db)
        if mark and mark != own:
            _end(db)
        is_other = copy.document is not None and copy.mark != own
        if copy.mark == own:
            budget_copy.absorb(db, copy, is_older=mark != own)
        elif mark != own or is_other:
            reservation.lose(db, self._year())
        if is_other:
            budget_copy.absorb_other(db, copy)
        if mark != own or is_other:
            count(db, "rebuilt")
            budget_copy.write_mark(db, own)
            self._copy.keep(db)

    def _year(self) -> int:
        return day_of(self._clock()).year


def _end(db: sqlite3.Connection) -> None:
    """Forget what an identity has answered for; what it spent and reserved stays."""
    db.execute("DELETE FROM scope")
    db.execute("DELETE FROM held")
    reservation.end_identity(db)


def _erase(db: sqlite3.Connection) -> None:
    """Forget everything."""
    for table in TABLES:
        db.execute(f"DELETE FROM {table}")  # noqa: S608 - our own names


def mark_of(secret: bytes) -> bytes:
    """Return the name of a secret, which tells nothing of it."""
    return expand(secret, b"rappor-client/1/identity", _MARK_BYTES)
