"""Who this device is: the identity's file and the store, kept in agreement.

The store knows a keyed mark of the secret that it was written under. A file that is damaged,
gone or another device's is met with the policy that the host chose, never with a silent new
secret. All of it happens inside write transactions, so that processes agree.
"""

from __future__ import annotations

import hmac
import sqlite3
from pathlib import Path
from typing import Final, Literal, get_args

from rappor.errors import ParamsError
from rappor.protocol.randomizer import expand
from rappor_client import ledger
from rappor_client.errors import IdentityError
from rappor_client.secret_file import Identity, Stamp
from rappor_client.state import count, fact, set_fact
from rappor_client.store import TABLES, Store

Policy = Literal["error", "reset", "disable"]

_MARK: Final = "identity_mark"
_MARK_BYTES: Final = 8


class Device:
    """The secret of one folder, read once and noticed when it changes."""

    def __init__(self, folder: Path, store: Store, policy: Policy) -> None:
        """Point at the folder; nothing is read yet."""
        if policy not in get_args(Policy):
            choices = ", ".join(get_args(Policy))
            raise ParamsError(f"on_bad_identity must be one of {choices}, got {policy!r}")
        self._folder = folder
        self._store = store
        self._identity = Identity(folder)
        self._policy = policy
        self._secret: bytes | None = None
        self._stamp: Stamp | None = None

    def secret(self) -> bytes:
        """Return the secret, made if the folder is new.

        Raises IdentityError as the policy says, sqlite3.Error and OSError where the disk fails.
        """
        if self._secret is None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._store.transaction(durable=True) as db:
                self._secret = self._settled(db)
                self._stamp = self._identity.stamp()
        return self._secret

    def is_current(self) -> bool:
        """Tell, inside a transaction, whether the file is still the one that was read."""
        return self._stamp is not None and self._identity.stamp() == self._stamp

    def is_erased(self) -> bool:
        """Tell whether there is no identity now: consent was withdrawn, maybe elsewhere."""
        return not self._identity.exists()

    def forget(self) -> None:
        """Drop the secret from memory; it is read anew when it is needed."""
        self._secret = self._stamp = None

    def has_traces(self) -> bool:
        """Tell whether the folder holds more than the nats once spent."""
        if self._identity.exists():
            return True
        if not self._store.exists():
            return False
        with self._store.reading() as db:
            return fact(db, _MARK) is not None

    def erase(self) -> None:
        """Erase secret, spool, ledger and log, except one number: the nats already spent."""
        with self._store.transaction(durable=True) as db:
            nats = ledger.total(db)
            for table in TABLES:
                db.execute(f"DELETE FROM {table}")  # noqa: S608 - our own names
            ledger.carry(db, nats)
            self._identity.erase()
        self.forget()
        self._store.shred()

    def _settled(self, db: sqlite3.Connection) -> bytes:
        """Return the secret that the store agrees with, after the policy if need be."""
        mark = fact(db, _MARK)
        if mark is None and not self._identity.exists():
            return self._make(db)
        try:
            secret = self._identity.read()
            if mark is not None and not hmac.compare_digest(mark, _mark(secret)):
                raise IdentityError(
                    f"{self._folder}: the identity must be the one that the ledger beside it was "
                    "written under, got another device's"
                )
        except IdentityError:
            if self._policy != "reset":
                raise
            return self._replace(db)
        set_fact(db, _MARK, _mark(secret))
        return secret

    def _make(self, db: sqlite3.Connection) -> bytes:
        secret = self._identity.make()
        set_fact(db, _MARK, _mark(secret))
        return secret

    def _replace(self, db: sqlite3.Connection) -> bytes:
        """Become a new device: what was spent stays spent, what was begun ends."""
        count(db, "identity_resets")
        db.execute("DELETE FROM latch")
        db.execute("DELETE FROM held")
        return self._make(db)


def _mark(secret: bytes) -> bytes:
    return expand(secret, b"rappor-client/1/identity", _MARK_BYTES)
