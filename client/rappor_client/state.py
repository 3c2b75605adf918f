"""Single facts, counters and parameter sets in the store."""

from __future__ import annotations

import functools
import sqlite3
from typing import Any

from rappor.protocol.params import Params


def fact(db: sqlite3.Connection, name: str) -> Any:
    """Return a fact, None if it is not there."""
    row = db.execute("SELECT value FROM fact WHERE name = ?", (name,)).fetchone()
    return row[0] if row else None


def set_fact(db: sqlite3.Connection, name: str, value: object) -> None:
    """Keep a fact in place of what was there."""
    db.execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, value))


def count(db: sqlite3.Connection, name: str, n: int = 1) -> None:
    """Add to a counter."""
    db.execute(
        "INSERT INTO counter VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET n = n + excluded.n",
        (name, n),
    )


def counters(db: sqlite3.Connection) -> dict[str, int]:
    """Return all counters by name."""
    return dict(db.execute("SELECT name, n FROM counter ORDER BY name"))


def keep_params(db: sqlite3.Connection, fingerprint: str, params: Params) -> None:
    """Make a parameter set known to the store."""
    known = db.execute("SELECT 1 FROM params WHERE fingerprint = ?", (fingerprint,)).fetchone()
    if not known:
        db.execute("INSERT INTO params VALUES (?, ?)", (fingerprint, params.to_json()))


def kept_params(db: sqlite3.Connection, fingerprint: str) -> Params:
    """Return a parameter set that the store knows."""
    query = "SELECT document FROM params WHERE fingerprint = ?"
    (document,) = db.execute(query, (fingerprint,)).fetchone()
    return _read(document)


_read = functools.lru_cache(maxsize=256)(Params.from_json)
