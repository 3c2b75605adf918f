"""The budget beside the secret: what a lost, emptied or older database must not bring back.

A second file holds what the device has reserved, answered for and closed, how many reports it has
charged to metrics with an interval, and which secret it was under. It is written before a report
that needs it can leave, and only ever grows; a checksum tells a damaged one. The database is
rebuilt from it: waiting reports, log and counters are gone, and each permanent response is taken to
have cost all that it can. After withdrawal it holds the nats
once spent and those reserved by year, nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rappor.files import replacing
from rappor.protocol.params import Params
from rappor_client import ledger, reservation, reservoir, scope_memory, spool
from rappor_client.failures import DamagedError
from rappor_client.ledger import Spent
from rappor_client.state import read_state, write_state
from rappor_client.store import in_memory

_NAME: Final = "budget"
_MAGIC: Final = "rappor budget 1"
_PRIVATE: Final = 0o600
_MARK: Final = "identity_mark"
_BLOBS: Final = (7, 8, 9)
"""The columns of a scope that hold bytes."""


@dataclass(frozen=True, slots=True)
class Copy:
    """What the file holds: a document, or nothing because it is absent, or damaged."""

    document: dict[str, Any] | None
    is_damaged: bool = False

    @property
    def mark(self) -> bytes:
        """The mark of the secret that it belongs to; empty without one."""
        return bytes.fromhex(self.document["mark"]) if self.document else b""

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
        """Tell whether there is a file, whatever it holds."""
        return self.path.exists()

    def read(self) -> Copy:
        """Read the file; OSError where it is there and cannot be read."""
        try:
            return _parsed(self.path.read_bytes())
        except FileNotFoundError:
            return Copy(None)

    def keep(self, db: sqlite3.Connection) -> None:
        """Bring the file up to date with the database; it returns when the file is on the disk."""
        if not read_mark(db):
            raise DamagedError("mark")
        if self.path.exists() and self.path.read_bytes() == _written(dump(db)):
            return
        copy = self.read()
        if copy.document is not None and copy.mark == read_mark(db):
            absorb(db, copy)
        self.write(dump(db))

    def write(self, document: dict[str, Any]) -> None:
        """Write a document, whole or not at all; DamagedError for one that is not sound.

        So the damage of a database never spreads to its copy.
        """
        if not _is_sound(document):
            raise DamagedError("budget")
        with replacing(self.path, mode=_PRIVATE) as file:
            file.write(_written(document))

    def overwrite(self, document: dict[str, Any]) -> None:
        """Write a document over the file's own bytes, where there is no room for another file."""
        with self.path.open("r+b") as file:
            file.write(_written(document))
            file.truncate()


def read_mark(db: sqlite3.Connection) -> bytes:
    """Return the mark of the secret that the database was written under; empty if there is none."""
    return bytes(read_state(db, _MARK) or b"")


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


def remainder(db: sqlite3.Connection) -> dict[str, Any] | None:
    """Return what outlives an identity: nats spent, and reserved by year; None if there are none.

    The database is changed: it is to be one in memory.
    """
    db.execute("DELETE FROM scope")
    ledger.end_identity(db)
    reservation.end_identity(db)
    write_mark(db, b"")
    return dump(db) if ledger.total(db) or reservation.by_year(db) else None


def spent(folder: Path) -> Spent:
    """Return what was spent as the file tells it: no less than it was."""
    copy = BudgetCopy(folder).read()
    with contextlib.closing(in_memory()) as db:
        if copy.document is not None:
            absorb(db, copy)
        return ledger.spent(db)


def absorb(db: sqlite3.Connection, copy: Copy) -> None:
    """Bring back what the database has forgotten.

    A database that has forgotten is an older one. What waits in it may have left already, and
    what it charged is too little.
    """
    document = copy.document
    assert document is not None
    rows = _scopes(document)
    has_forgotten = scope_memory.absorb(db, rows)
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


def _with_bytes(row: list[Any]) -> list[Any]:
    return [bytes.fromhex(x) if place in _BLOBS else x for place, x in enumerate(row)]


def _written(document: dict[str, Any]) -> bytes:
    body = f"{_MAGIC}\n{json.dumps(document)}\n".encode()
    return body + hashlib.sha256(body).hexdigest().encode() + b"\n"


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
    """Tell whether a document is one that can be absorbed again."""
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
