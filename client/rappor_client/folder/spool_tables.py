"""Three small tables of the spool.

    state     named values, such as the time of the last attempt of a metric
    counter   counters of the device, which are never sent
    params    parameter sets by fingerprint. Reports name their parameters by the fingerprint,
              because a parameter set is longer than a report

Everything in the spool may be lost or damaged. What the privacy guarantee needs is in the state of
the device (`budget/state.py`).
"""

from __future__ import annotations

import functools
import sqlite3
from typing import Any

from rappor.base.errors import ParamsError
from rappor.protocol.params import Params
from rappor_client.folder.failures import DamagedError


def read_value(db: sqlite3.Connection, name: str) -> Any:
    """Return the value with a name, None if there is no such value."""
    row = db.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
    return row[0] if row else None


def write_value(db: sqlite3.Connection, name: str, value: object) -> None:
    """Store a value under a name, in place of an earlier value."""
    db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, value))


def add_count(db: sqlite3.Connection, name: str, n: int = 1) -> None:
    """Add n to a counter."""
    db.execute(
        "INSERT INTO counter VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET n = n + excluded.n",
        (name, n),
    )


def read_counters(db: sqlite3.Connection) -> dict[str, int]:
    """Return all counters by name; DamagedError for a name or a number of another type."""
    counters = dict(db.execute("SELECT name, n FROM counter ORDER BY name"))
    if not all(isinstance(name, str) and type(n) is int for name, n in counters.items()):
        raise DamagedError("counters")
    return counters


def store_params(db: sqlite3.Connection, fingerprint: str, params: Params) -> None:
    """Store a parameter set, so that reports can name it by its fingerprint."""
    query = "SELECT 1 FROM params WHERE fingerprint = ?"
    if not db.execute(query, (fingerprint,)).fetchone():
        db.execute("INSERT INTO params VALUES (?, ?)", (fingerprint, params.to_json()))


def load_params(db: sqlite3.Connection, fingerprint: str) -> Params:
    """Return the parameter set with a fingerprint; DamagedError if it is absent or wrong."""
    query = "SELECT document FROM params WHERE fingerprint = ?"
    # The row is absent (TypeError: None has no items), or its document was damaged.
    try:
        (document,) = db.execute(query, (fingerprint,)).fetchone()
        return _parse_params(document, fingerprint)
    except (TypeError, ParamsError):
        raise DamagedError("parameters") from None


@functools.lru_cache(maxsize=256)
def _parse_params(document: str, fingerprint: str) -> Params:
    """Return the parameter set of a document; ParamsError for another fingerprint."""
    # The comparison finds a flipped bit, which may still be a valid parameter set.
    params = Params.from_json(document)
    if params.fingerprint != fingerprint:
        raise ParamsError("parameters must have the fingerprint under which they were stored")
    return params
