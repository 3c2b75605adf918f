"""Insertion of many rows at once, the inner loop of a merge.

PostgreSQL gets one statement with an array for each column, because every statement costs a round
trip. SQLite runs in this process: a prepared statement for each row is faster there than one
statement with the values of many rows.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table


def insert_rows(
    db: Connection, table: Table, rows: Sequence[Sequence[Any]], *, update: str = ""
) -> None:
    """Insert rows into a table.

    Parameters
    ----------
    db : a write transaction
    table : the table
    rows : values in the order of the columns. All values of a column have one type.
    update : SQL assignments for rows whose primary key exists; by default such rows are skipped
    """
    if not rows:
        return
    head = f"INSERT INTO {table.name} ({', '.join(table.columns.keys())})"
    keys = ", ".join(table.primary_key.columns.keys())
    tail = f"ON CONFLICT ({keys}) DO " + (f"UPDATE SET {update}" if update else "NOTHING")
    columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)]
    if db.dialect.name == "postgresql":
        # The arrays need their types: an array of a driver's integers may have another one than the
        # column.
        kinds = [column.type.compile(db.dialect) for column in table.columns]
        arrays = ", ".join(f"%b::{kind}[]" for kind in kinds)  # binary: nothing to escape
        rows_of = f"SELECT * FROM unnest({arrays})"  # noqa: S608 - our own schema
        db.exec_driver_sql(f"{head} {rows_of} {tail}", tuple(columns))
    else:
        # The statement goes to the driver directly, so the types of SQLAlchemy do not convert days.
        columns = [
            [day.isoformat() for day in column] if isinstance(column[0], datetime.date) else column
            for column in columns
        ]
        places = ", ".join("?" * len(columns))
        db.exec_driver_sql(f"{head} VALUES ({places}) {tail}", list(zip(*columns, strict=True)))
