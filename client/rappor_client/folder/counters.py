"""Named values, counters and parameter sets in the spool."""

from __future__ import annotations

import functools
import sqlite3
from typing import Any

from rappor.base.errors import ParamsError
from rappor.protocol.params import Params
from rappor_client.folder.failures import DamagedError


def read_state(db: sqlite3.Connection, name: str) -> Any:
    """Return the value that is kept under a name, None if there is none."""
    row = db.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
    return row[0] if row else None


def write_state(db: sqlite3.Connection, name: str, value: object) -> None:
    """Keep a value under a name, in place of what was there."""
    db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, value))


def count(db: sqlite3.Connection, name: str, n: int = 1) -> None:
    """Add n to a counter."""
    db.execute(
        "INSERT INTO counter VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET n = n + excluded.n",
        (name, n),
    )


def counters(db: sqlite3.Connection) -> dict[str, int]:
    """Return all counters by name; DamagedError for what is no name or no number."""
    found = dict(db.execute("SELECT name, n FROM counter ORDER BY name"))
    if not all(isinstance(name, str) and type(n) is int for name, n in found.items()):
        raise DamagedError("counters")
    return found


def keep_params(db: sqlite3.Connection, fingerprint: str, params: Params) -> None:
    """Keep a parameter set, so that reports can name it by its fingerprint."""
    query = "SELECT 1 FROM params WHERE fingerprint = ?"
    if not db.execute(query, (fingerprint,)).fetchone():
        db.execute("INSERT INTO params VALUES (?, ?)", (fingerprint, params.to_json()))


def kept_params(db: sqlite3.Connection, fingerprint: str) -> Params:
    """Return the parameter set that was kept under a fingerprint.

    Raises DamagedError if it is not there, or is none.
    """
    query = "SELECT document FROM params WHERE fingerprint = ?"
    try:
        (document,) = db.execute(query, (fingerprint,)).fetchone()
        return _read(document, fingerprint)
    except (TypeError, ParamsError):
        raise DamagedError("parameters") from None


@functools.lru_cache(maxsize=256)
def _read(document: str, fingerprint: str) -> Params:
    params = Params.from_json(document)
    if params.fingerprint != fingerprint:
        raise ParamsError("parameters must have the fingerprint that they were kept under")
    return params
