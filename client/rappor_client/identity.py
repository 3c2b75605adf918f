"""Who this device is: the secret's file and the store, kept in agreement.

The store keeps a keyed mark of the secret that it was written under. A secret that is damaged,
gone or another device's meets the policy that the host chose; it is never silently replaced. All
of this happens inside write transactions, so that processes agree.
"""

from __future__ import annotations

import hmac
import sqlite3
from pathlib import Path
from typing import Final

from rappor.protocol.randomizer import Secret, expand
from rappor_client import ledger, reservation
from rappor_client.errors import IdentityError
from rappor_client.secret_file import SecretFile, Stamp
from rappor_client.settings import Policy
from rappor_client.state import count, read_state, write_state
from rappor_client.store import TABLES, Store

_MARK: Final = "identity_mark"
_MARK_BYTES: Final = 8


class Identity:
    """The secret of one folder: read once, and read again when its file changes."""

    def __init__(self, folder: Path, store: Store, policy: Policy) -> None:
        """Name the folder, its store and the policy for a bad secret; nothing is read yet."""
        self._folder = folder
        self._store = store
        self._file = SecretFile(folder)
        self._policy = policy
        self._secret: Secret | None = None
        self._stamp: Stamp | None = None

    def secret(self) -> Secret:
        """Return the secret, a fresh one if the folder is new.

        Raises IdentityError as the policy says, sqlite3.Error and OSError where the disk fails.
        """
        if self._secret is None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._store.transaction(durable=True) as db:
                self._secret = Secret(self._agreed(db))
                self._stamp = self._file.stamp()
        return self._secret

    def is_current(self) -> bool:
        """Tell, inside a transaction, whether the file is still the one that was read."""
        return self._stamp is not None and self._file.stamp() == self._stamp

    def is_erased(self) -> bool:
        """Tell whether the secret is gone: consent was withdrawn, perhaps by another process."""
        return not self._file.exists()

    def forget(self) -> None:
        """Drop the secret from memory; it is read again when it is needed."""
        self._secret = self._stamp = None

    def has_traces(self) -> bool:
        """Tell whether the folder holds more than the number of nats once spent."""
        if self._file.exists():
            return True
        if not self._store.exists():
            return False
        with self._store.reading() as db:
            return read_state(db, _MARK) is not None

    def erase(self) -> None:
        """Erase secret, spool, ledger and log; the nats spent, and reserved by year, stay."""
        with self._store.transaction(durable=True) as db:
            nats, reserved = ledger.total(db), reservation.by_year(db)
            for table in TABLES:
                db.execute(f"DELETE FROM {table}")  # noqa: S608 - our own names
            ledger.carry(db, nats)
            reservation.end_identity(db, reserved)
            self._file.erase()
        self.forget()
        self._store.shred()

    def _agreed(self, db: sqlite3.Connection) -> bytes:
        """Return the secret that file and store agree on, after the policy if they do not."""
        mark = read_state(db, _MARK)
        if mark is None and not self._file.exists():
            return self._create(db)
        try:
            secret = self._file.read()
            if mark is not None and not hmac.compare_digest(mark, _mark(secret)):
                raise IdentityError(
                    f"{self._folder}: the identity must be the one that the ledger beside it was "
                    "written under, got another device's"
                )
        except IdentityError:
            if self._policy != "reset":
                raise
            return self._replace(db)
        write_state(db, _MARK, _mark(secret))
        return secret

    def _create(self, db: sqlite3.Connection) -> bytes:
        secret = self._file.create()
        write_state(db, _MARK, _mark(secret))
        return secret

    def _replace(self, db: sqlite3.Connection) -> bytes:
        """Become a new device: what was spent stays spent, open epochs and intervals end."""
        count(db, "identity_resets")
        db.execute("DELETE FROM scope")
        reservation.end_identity(db, reservation.by_year(db))
        db.execute("DELETE FROM held")
        return self._create(db)


def _mark(secret: bytes) -> bytes:
    return expand(secret, b"rappor-client/1/identity", _MARK_BYTES)
