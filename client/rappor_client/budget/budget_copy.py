"""The budget beside the secret: what a lost, emptied or older database must not bring back.

A second file holds what the device has reserved, answered for and closed, how many reports it has
charged to metrics with an interval, and which secret it was under. It only ever grows; a checksum
tells a damaged one. The database is rebuilt from it: waiting reports, log and counters are gone,
and each permanent response is taken to have cost all that it can. After withdrawal it holds the
nats once spent and those reserved by year, nothing else.

Before a report leaves, the disk holds, in this order:

1. what the report costs, answers for and reserves, in the database: a transaction has ended;
2. the same, durably;
3. a version of this file that says so, durably, under another name;
4. the version under the file's name, and the upload with its claim: in one transaction, which
   begins again at 1 if the database says anything else by now;
5. both of them, durably.

Where the file says so already, as after most reports, 1 and 4 are one transaction without 2 and 3.

Kill the process after 1, 2 or 3: the file is behind the database, and nothing has left. Nobody
reads what has another name, and withdrawal erases it. Kill it in 4 or later: the file says what the
database has said since 1, whether the transaction ends or not. Take the power away in 4: whichever
of the two versions has the name, the database has all of it since 2. So the file is never ahead of
the database, which would then read as an older one, and never behind a report that has left. Two
processes that send cannot set it back: only who has found the database unchanged renames, under the
database's lock. No transaction waits for the disk; so nobody who records does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from rappor.ground.files import drafting, finish, replacing, sync_folder
from rappor.protocol.params import Params
from rappor_client.budget import ledger, reservation, reservoir, scope_memory
from rappor_client.budget.ledger import Spent
from rappor_client.folder import spool
from rappor_client.folder.failures import DamagedError
from rappor_client.folder.state import (
    read_state,
    write_state,
)
from rappor_client.folder.store import in_memory

_NAME: Final = "budget"
_MAGIC: Final = "rappor budget 1"
_PRIVATE: Final = 0o600
_MARK: Final = "identity_mark"
_BLOBS: Final = (7, 8, 9)
"""The columns of a scope that hold bytes."""


class Copy(NamedTuple):
    """What the file holds: a document, or nothing because it is absent, or damaged."""

    document: dict[str, Any] | None
    is_damaged: bool = False

    @property
    def mark(self) -> bytes:
        """The mark of the secret that it belongs to; empty without one."""
        return bytes.fromhex(self.document["mark"]) if self.document else b""

    @property
    def has_answered(self) -> bool:
        """Whether any scope has answered under its secret; so a secret there was."""
        return self.document is not None and bool(self.document["scopes"])

    @property
    def is_of_nobody(self) -> bool:
        """Whether consent was withdrawn: no secret goes with it."""
        return self.document is not None and not self.mark


class BudgetCopy:
    """The file in one folder; it is used inside write transactions of the store."""

    def __init__(self, folder: Path) -> None:
        """Name the folder; nothing is read yet."""
        self.path = folder / _NAME

    def exists(self) -> bool:
        """Return whether there is a file, whatever it holds."""
        return self.path.exists()

    def read(self) -> Copy:
        """Read the file; OSError where it is there and cannot be read."""
        try:
            return _parsed(self.path.read_bytes())
        except FileNotFoundError:
            return Copy(None)

    def version(self, db: sqlite3.Connection) -> bytes:
        """Return what the file is to hold, after the database has what only the file knew.

        Raises DamagedError for a database that is not sound: its damage never spreads to the file.
        """
        if not read_mark(db):
            raise DamagedError("mark")
        version = _written(dump(db))
        if not self.holds(version):
            copy = self.read()
            if copy.document is not None and copy.mark == read_mark(db):
                absorb(db, copy)
            version = _checked(dump(db))
        return version

    def holds(self, version: bytes) -> bool:
        """Return whether the file is this version; OSError where it is there and cannot be read."""
        return self.path.exists() and self.path.read_bytes() == version

    @contextlib.contextmanager
    def laid_ready(self, version: bytes) -> Iterator[Path | None]:
        """Have a version on the disk beside the file for the block; None if the file holds it.

        Where the block has put it in place, it is durable there when the block has ended.
        """
        if self.holds(version):
            yield None
            return
        with drafting(self.path, mode=_PRIVATE) as file:
            file.write(version)
            finish(file)
            yield Path(file.name)
        sync_folder(self.path.parent)

    def put_in_place(self, ready: Path | None) -> None:
        """Let what was laid ready take the file's name."""
        if ready is not None:
            ready.replace(self.path)

    def keep(self, db: sqlite3.Connection) -> None:
        """Bring the file up to date at once, as a device that begins does."""
        version = self.version(db)
        with self.laid_ready(version) as ready:
            self.put_in_place(ready)

    def write(self, document: dict[str, Any]) -> None:
        """Write a document, whole or not at all; DamagedError for one that is not sound."""
        with replacing(self.path, mode=_PRIVATE) as file:
            file.write(_checked(document))

    def overwrite(self, document: dict[str, Any]) -> None:
        """Write a document over the file's own bytes, where there is no room for another file."""
        with self.path.open("r+b") as file:
            file.write(_written(document))
            file.truncate()


def read_mark(db: sqlite3.Connection) -> bytes:
    """Return the mark of the secret that the database was written under; empty if there is none."""
    if not isinstance(mark := read_state(db, _MARK) or b"", bytes):
        raise DamagedError("mark")
    return mark


def write_mark(db: sqlite3.Connection, mark: bytes) -> None:
    """Note which secret the database is written under."""
    write_state(db, _MARK, mark)


def dump(db: sqlite3.Connection) -> dict[str, Any]:
    """Return what the file holds for a database."""
    scopes = scope_memory.dump(db)
    answered = {name for row in scopes for name in scope_memory.admitted_patterns(row)}
    for row in scopes:
        for place in _BLOBS:
            row[place] = row[place].hex()
    documents = db.execute(
        "SELECT fingerprint, document FROM params WHERE fingerprint IN (SELECT params FROM scope)"
    )
    return {
        "mark": read_mark(db).hex(),
        "carried": ledger.carried_beside(db, answered),
        "scopes": scopes,
        "charged": ledger.dump_charged(db),
        "params": dict(documents.fetchall()),
        **reservation.dump(db),
    }


def is_of(db: sqlite3.Connection, version: bytes) -> bool:
    """Return whether a version of the file is that of the database as it is now."""
    return version == _written(dump(db))


def check(db: sqlite3.Connection) -> None:
    """Raise DamagedError unless the file can hold what the database does."""
    _checked(dump(db))


def remainder(db: sqlite3.Connection, copy: Copy) -> dict[str, Any] | None:
    """Return what outlives an identity: nats spent, and reserved by year; None if there are none.

    It is no less than the database tells, nor than the copy beside it, whosever that is. The
    database is changed: it is to be one in memory. Raises DamagedError if it is not sound.
    """
    is_other = copy.document is not None and read_mark(db) not in (b"", copy.mark)
    if copy.document is not None and not is_other:
        absorb(db, copy)
    _end(db)
    if is_other:  # as after a kill that left the database behind, or from a backup
        with contextlib.closing(in_memory()) as other:
            absorb(other, copy)
            _end(other)
            ledger.carry(db, ledger.carried(other))
            reservation.absorb(db, reservation.dump(other))
    document = dump(db)
    _checked(document)
    return document if ledger.total(db) or reservation.by_year(db) else None


def spent(copy: Copy, db: sqlite3.Connection | None) -> Spent:
    """Return what was spent as the copy and the database tell it: no less than it was.

    The copy is to be read before the database, which may be lost, emptied or an older one.
    """
    with contextlib.closing(in_memory()) as both:
        if db is not None:
            db.backup(both)
        mark = read_mark(both)
        if copy.document is not None and mark in (b"", copy.mark):
            absorb(both, copy, is_older=mark != copy.mark)
        elif copy.document is not None:
            absorb_other(both, copy)
        return ledger.spent(both)


def absorb(db: sqlite3.Connection, copy: Copy, *, is_older: bool = False) -> None:
    """Bring back what the database has forgotten.

    A database that has forgotten is an older one. What waits in it may have left already, and
    what it charged is too little. `is_older` says so where it is known.
    """
    document = copy.document
    assert document is not None
    rows = _scopes(document)
    has_forgotten = scope_memory.absorb(db, rows) or is_older
    has_forgotten |= ledger.has_forgotten(db, document["charged"])
    has_forgotten |= reservation.absorb(db, document)
    db.executemany("INSERT OR REPLACE INTO params VALUES (?, ?)", document["params"].items())
    if not has_forgotten:
        return
    ledger.carry(db, document["carried"])
    spool.drop(db)
    reservoir.drop(db)
    n_charged = {(metric, epoch): n for metric, epoch, n in document["charged"]}
    for row in rows:
        scope_memory.take_as_spent(db, row, n_charged.get((row[0], row[1]), 0))


def absorb_other(db: sqlite3.Connection, copy: Copy) -> None:
    """Count what another identity than the database's has spent and reserved as spent before.

    Secret and database are older than the copy, as from a backup: what waits may have left.
    """
    document = copy.document
    assert document is not None
    with contextlib.closing(in_memory()) as other:
        absorb(other, copy)
        ledger.carry(db, ledger.carried(db) + ledger.total(other))
        reservation.add_earlier(db, reservation.by_year(other))
    spool.drop(db)
    reservoir.drop(db)


def _end(db: sqlite3.Connection) -> None:
    """Leave what outlives an identity."""
    db.execute("DELETE FROM scope")
    ledger.end_identity(db)
    reservation.end_identity(db)
    write_mark(db, b"")


def _with_bytes(row: list[Any]) -> list[Any]:
    return [bytes.fromhex(x) if place in _BLOBS else x for place, x in enumerate(row)]


def _written(document: dict[str, Any]) -> bytes:
    body = f"{_MAGIC}\n{json.dumps(document)}\n".encode()
    return body + hashlib.sha256(body).hexdigest().encode() + b"\n"


def _checked(document: dict[str, Any]) -> bytes:
    """Return what the file holds for a document; DamagedError for one that is not sound."""
    if not _is_sound(document):
        raise DamagedError("budget")
    return _written(document)


def _parsed(data: bytes) -> Copy:
    """Read what `_written` wrote; whoever else wrote it, it is damaged."""
    body = data[: -(2 * hashlib.sha256().digest_size + 1)]
    head, _, text = body.partition(b"\n")
    check = hashlib.sha256(body).hexdigest().encode() + b"\n"
    if head != _MAGIC.encode() or data != body + check:
        return Copy(None, is_damaged=True)
    document = json.loads(text)
    return Copy(document) if _is_sound(document) else Copy(None, is_damaged=True)


def _is_sound(document: dict[str, Any]) -> bool:
    """Return whether a document is one that can be absorbed again."""
    try:
        params = {key: Params.from_json(text) for key, text in document["params"].items()}
        return (
            all(scope_memory.is_sound(row, params[row[5]]) for row in _scopes(document))
            and ledger.is_sound(document["charged"])
            and reservation.is_sound(document)
            and bytes.fromhex(document["mark"]).hex() == document["mark"]
            and document["carried"] >= 0
        )
    except (AttributeError, LookupError, TypeError, ValueError):
        return False


def _scopes(document: dict[str, Any]) -> list[scope_memory.Row]:
    return [_with_bytes(row) for row in document["scopes"]]
