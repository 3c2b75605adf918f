"""Whether a database is damaged, by a look at all that it holds: one error alone sets none apart.

An error in the middle of a transaction may come from a row, or from a signal's handler, a clock, or
an argument. So every row is read again, in a copy in memory, on a connection of its own.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
from typing import Final

from rappor.protocol.randomizer import system_coins
from rappor_client import budget_copy, ledger, reservoir, spool
from rappor_client.failures import DamagedError, is_damage
from rappor_client.state import counters, read_state
from rappor_client.store import TABLES, Store, in_memory

_PATIENCE: Final = 0.05
_MOMENTS: Final = ("asked_until", "pause_until", "failures_in_a_row")


def is_damaged(store: Store) -> bool:
    """Tell whether a store's file does not hold what this library wrote; false if it is locked."""
    store.close()
    try:
        with contextlib.closing(in_memory()) as db:
            shape = _shape(db)
            with store.transaction(patience=_PATIENCE) as own:
                own.execute("DELETE FROM state WHERE 0")  # a header may forbid to write
            store.copy_to(db)
            _check(db, shape)
    except DamagedError:
        return True
    except Exception as error:  # noqa: BLE001 - nothing but a copy of the rows was touched
        return is_damage(error)
    return False


def _shape(db: sqlite3.Connection) -> list[tuple[str, str]]:
    return db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'").fetchall()


def _check(db: sqlite3.Connection, shape: list[tuple[str, str]]) -> None:
    """Read all that any part of the client reads, and do what a sender would; or raise."""
    if db.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",) or _shape(db) != shape:
        raise DamagedError("file")
    for table in TABLES:
        _check_types(db, table)
    for moment in _MOMENTS:
        float(read_state(db, moment) or 0)
    budget_copy.check(db)
    ledger.spent(db)
    ledger.patterns(db)
    counters(db)
    ledger.check_charges(db)
    reservoir.release(db, math.inf, system_coins)
    while spool.build(db, due_by=math.inf):
        pass
    spool.waiting_reports(db)
    spool.log(db)


def _check_types(db: sqlite3.Connection, table: str) -> None:
    """Raise DamagedError unless every cell is of its column's type."""
    for _, column, kind, is_filled, _, _ in db.execute(f"PRAGMA table_info({table})").fetchall():
        wrong = f"typeof({column}) <> '{kind.lower()}'" if kind else "0"
        wrong += "" if is_filled else f" AND {column} IS NOT NULL"
        query = f"SELECT 1 FROM {table} WHERE {wrong}"  # noqa: S608 - our own names
        if db.execute(query).fetchone():
            raise DamagedError(table)
        db.execute(f"SELECT {column} FROM {table}").fetchall()  # noqa: S608 - text that is none
