"""Whether a database is damaged, by a look at all that it holds: one error alone sets none apart.

An error in the middle of a transaction may come from a row, or from a signal's handler, a clock, or
an argument. So every row is read again, in a copy in memory, on a connection of its own, and in a
thread of its own: handlers of signals run in the main thread alone.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
import threading
from typing import Final

from rappor.protocol.randomizer import system_coins
from rappor_client.budget import budget_copy, ledger, reservoir
from rappor_client.budget.reservoir import Moment
from rappor_client.folder import spool
from rappor_client.folder.failures import DamagedError, is_damage
from rappor_client.folder.state import counters, read_state
from rappor_client.folder.store import TABLES, File, Store, in_memory

_PATIENCE: Final = 0.05
_MOMENTS: Final = ("asked_until", "pause_until", "failures_in_a_row")


def damaged_file(store: Store) -> File | None:
    """Return a store's file if it does not hold what this library wrote; None if it is locked.

    Another process may have set it apart by now, and another thread may use its successor.
    """
    found: list[File | None] = []
    look = threading.Thread(target=lambda: found.append(_damaged_file(store)), daemon=True)
    try:
        look.start()
        look.join()
    except RuntimeError:  # no thread is to be had
        return _damaged_file(store)
    except Exception:  # noqa: BLE001 - of a signal's handler: the next failure asks again
        return None
    return found[0] if found else None


def _damaged_file(store: Store) -> File | None:
    store.close()
    copied: File | None = None
    try:
        with contextlib.closing(in_memory()) as db:
            shape = _shape(db)
            with store.transaction(patience=_PATIENCE) as own:
                own.execute("DELETE FROM state WHERE 0")  # a header may forbid to write
            store.copy_to(db)
            copied = store.file
            _check(db, shape)
    except Exception as error:  # noqa: BLE001 - nothing but a copy of the rows was touched
        if isinstance(error, DamagedError) or is_damage(error):
            return copied or store.file
    return None


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
    ledger.check_charges(db)
    counters(db)
    reservoir.release(db, Moment(math.inf, math.inf), system_coins)
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
        db.execute(f"SELECT {column} FROM {table}").fetchall()  # noqa: S608 - no text
