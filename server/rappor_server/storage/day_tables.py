"""Tables that hold one day each, so that a day is forgotten by dropping its table.

Whoever writes into them, or takes them out of use, is alone (`wait_alone`).
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping
from typing import Final

from sqlalchemy import (
    Connection,
    Engine,
    Table,
    delete,
    func,
    insert,
    inspect,
    select,
    text,
    update,
)

from rappor_server.storage import schema
from rappor_server.storage.database import (
    LockedError,
    failing_as_store_error,
    wait_alone,
    writing,
)

UPLOAD: Final = "upload"
PART: Final = "part"
KEPT: Final = "kept"
_TABLES: Final[Mapping[str, Callable[[str], Table]]] = {
    UPLOAD: schema.key_table,
    PART: schema.key_table,
    KEPT: schema.kept_table,
}
_FORGOTTEN: Final = "forgotten_"
_STILL_READ: Final = (
    "a table that is due to be deleted is still read, perhaps for a backup: run prune again later"
)


def table_of(kind: str, day: datetime.date) -> Table:
    """Return the table of a day, whether it exists or not."""
    return _TABLES[kind](f"{kind}_{day:%Y%m%d}")


def days_of(db: Connection, kind: str) -> list[datetime.date]:
    """Return the days that have a table, the newest first."""
    columns = schema.day_table.c
    query = select(columns.day).where(columns.kind == kind).order_by(columns.day.desc())
    return list(db.execute(query).scalars())


def add(db: Connection, kind: str, day: datetime.date) -> None:
    """Add the table of a day, unless there is one."""
    if day not in days_of(db, kind):
        db.execute(insert(schema.day_table).values(kind=kind, day=day, shuffled=False))
        table_of(kind, day).create(db)


def forget(engine: Engine, kind: str, *, before: datetime.date) -> int:
    """Forget the tables of days before one; return how many rows they had.

    A table is renamed first, which takes it out of use at once, whatever its size. Raises
    LockedError if others still read a table after some seconds.
    """
    try:
        with writing(engine) as db:
            wait_alone(db)
            for day in days_of(db, kind):
                if day < before:
                    _take_out(db, kind, day)
    except LockedError:
        raise LockedError(_STILL_READ) from None
    with failing_as_store_error():
        names = [name for name in inspect(engine).get_table_names() if _is_forgotten(name, kind)]
    return sum(_erase(engine, kind, name) for name in names)


def _take_out(db: Connection, kind: str, day: datetime.date) -> None:
    columns = schema.day_table.c
    name = table_of(kind, day).name
    db.execute(delete(schema.day_table).where(columns.kind == kind, columns.day == day))
    db.execute(text(f"ALTER TABLE {name} RENAME TO {_FORGOTTEN}{name}"))


def _is_forgotten(name: str, kind: str) -> bool:
    return re.fullmatch(rf"{_FORGOTTEN}{kind}_\d{{8}}", name) is not None


def _erase(engine: Engine, kind: str, name: str) -> int:
    """Delete a forgotten table, perhaps one that an interrupted run has left; return its rows."""
    table = _TABLES[kind](name)
    with writing(engine) as db:
        n_rows = db.scalar(select(func.count()).select_from(table)) or 0
        table.drop(db)
    return int(n_rows)


def shuffle_days(engine: Engine, *, before: datetime.date) -> None:
    """Write the kept reports of finished days again, in random order, on PostgreSQL.

    A table there holds its rows in the order of their arrival, with the transaction that wrote
    each. SQLite sorts the rows by their random keys as they arrive.
    """
    if engine.dialect.name != "postgresql":
        return
    columns = schema.day_table.c
    query = select(columns.day).where(columns.kind == KEPT, columns.day < before, ~columns.shuffled)
    with failing_as_store_error(), engine.connect() as db:
        days = list(db.execute(query).scalars())
    for day in days:
        with writing(engine) as db:
            _shuffle(db, table_of(KEPT, day))
            _note_shuffled(db, day, is_shuffled=True)


def _shuffle(db: Connection, old: Table) -> None:
    """Replace a table by a copy in the order of its random keys, written by one transaction."""
    db.execute(text(f"LOCK TABLE {old.name} IN ACCESS EXCLUSIVE MODE"))
    db.execute(text(f"ALTER TABLE {old.name} RENAME TO {old.name}_old"))
    db.execute(text(f"ALTER INDEX {old.name}_pkey RENAME TO {old.name}_old_pkey"))
    before = schema.kept_table(f"{old.name}_old")
    old.create(db)
    rows = select(before).order_by(before.c.key)
    db.execute(insert(old).from_select(list(old.columns), rows))
    before.drop(db)


def note_unshuffled(db: Connection, day: datetime.date) -> None:
    """Note that kept reports of a day have come since they were shuffled, if they were."""
    if db.dialect.name == "postgresql":
        _note_shuffled(db, day, is_shuffled=False)


def _note_shuffled(db: Connection, day: datetime.date, *, is_shuffled: bool) -> None:
    columns = schema.day_table.c
    here = [columns.kind == KEPT, columns.day == day, columns.shuffled != is_shuffled]
    db.execute(update(schema.day_table).where(*here).values(shuffled=is_shuffled))
