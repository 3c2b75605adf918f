"""Bulk insert: many rows of one table by one call.

A merge (`merge.py`) adds the reports of uploads to the counters, and spends most of its time on
inserts of counters. Blocks and release windows are inserted by the same function.

PostgreSQL gets one statement with an array for each column, because every statement costs a round
trip to the server. SQLite runs inside this process, where a statement costs no round trip. One
prepared statement that is executed for each row is faster there than one statement with the values
of many rows.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table


def insert_rows(
    db: Connection,
    table: Table,
    rows: Sequence[Sequence[Any]],
    *,
    update: str = "",
    skip_stored: bool = False,
) -> None:
    """Insert rows into a table.

    A row whose primary key the table already has is an error, unless `update` or `skip_stored` says
    otherwise. Bad case of a default that skips such rows: a second block with the key of a stored
    block would be lost with all of its reports, and nobody would notice.

    Parameters
    ----------
    db : a write transaction
    table : the table
    rows : values of each row in the order of the table's columns. All values of a column have one
        type.
    update : SQL assignments that change the stored row if the table already has a row with the same
        primary key, such as "reports = excluded.reports", where `excluded` is the new row
    skip_stored : whether to skip a new row if the table already has a row with the same primary
        key. The two rows must be equal, such as the parameters of one fingerprint

    Raises
    ------
    IntegrityError
        The table already has a row with the primary key of a new row. `translate_errors` turns the
        error of SQLAlchemy into StoreError.
    """
    if not rows:
        return
    head = f"INSERT INTO {table.name} ({', '.join(table.columns.keys())})"
    keys = ", ".join(table.primary_key.columns.keys())
    tail = ""
    if update:
        tail = f"ON CONFLICT ({keys}) DO UPDATE SET {update}"
    elif skip_stored:
        tail = f"ON CONFLICT ({keys}) DO NOTHING"
    columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)]
    if db.dialect.name == "postgresql":
        # Each array is cast to the type of its column. The driver (psycopg) chooses the type of an
        # array of integers by their size, for example smallint[] for a column of type bigint.
        types = [column.type.compile(db.dialect) for column in table.columns]
        # `%b` is psycopg's placeholder for a value in PostgreSQL's binary format. The driver then
        # does not write a sum of bits (bytes) as a text of escaped bytes.
        arrays = ", ".join(f"%b::{sql_type}[]" for sql_type in types)
        select_rows = f"SELECT * FROM unnest({arrays})"  # noqa: S608 - our own schema
        db.exec_driver_sql(f"{head} {select_rows} {tail}", tuple(columns))
    else:
        # The statement goes to the driver (sqlite3) directly. SQLAlchemy does not convert the
        # values, so a day is converted here to the text that SQLAlchemy's type `Date` stores.
        columns = [
            [day.isoformat() for day in column] if isinstance(column[0], datetime.date) else column
            for column in columns
        ]
        placeholders = ", ".join("?" * len(columns))
        db.exec_driver_sql(
            f"{head} VALUES ({placeholders}) {tail}", list(zip(*columns, strict=True))
        )
