"""Many rows at once: the inner loop of a fold.

PostgreSQL gets an array for each column in one statement, because every statement is a journey.
SQLite is here, and a prepared statement for one row costs it less than the values of many rows in
one.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table


def insert_rows(
    db: Connection, table: Table, rows: Sequence[Sequence[Any]], *, update: str = ""
) -> None:
    """Insert rows; `update` assigns columns of those that exist, which are skipped without it.

    All entries of a column have one type.
    """
    if not rows:
        return
    head = f"INSERT INTO {table.name} ({', '.join(table.columns.keys())})"
    keys = ", ".join(table.primary_key.columns.keys())
    tail = f"ON CONFLICT ({keys}) DO " + (f"UPDATE SET {update}" if update else "NOTHING")
    columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)]
    if db.dialect.name == "postgresql":
        kinds = [column.type.compile(db.dialect) for column in table.columns]
        arrays = ", ".join(f"%b::{kind}[]" for kind in kinds)  # binary: nothing to escape
        rows_of = f"SELECT * FROM unnest({arrays})"  # noqa: S608 - our own schema
        db.exec_driver_sql(f"{head} {rows_of} {tail}", tuple(columns))
    else:
        columns = [
            [day.isoformat() for day in column] if isinstance(column[0], datetime.date) else column
            for column in columns
        ]
        places = ", ".join("?" * len(columns))
        db.exec_driver_sql(f"{head} VALUES ({places}) {tail}", list(zip(*columns, strict=True)))
