"""Many rows in one statement: the inner loop of a group commit.

A driver gives up the interpreter for every row that it writes one by one, and a busy server
takes its time to give it back. So SQLite gets many rows of values in a statement, PostgreSQL
an array for each column; the texts are few, and both databases prepare them once.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql

_CHUNKS: Final = (64, 8, 1)
_POSTGRESQL: Final = postgresql.dialect()  # type: ignore[no-untyped-call]


class BulkInsert:
    """Inserts rows of one table, in the order of its columns."""

    def __init__(
        self, table: Table, *, keys: Sequence[str] = (), returning: str | None = None
    ) -> None:
        """Take what to do about known rows: replace all but the keys, or without keys skip them."""
        self._head = f"INSERT INTO {table.name} ({', '.join(table.columns.keys())})"
        self._n_columns = len(table.columns)
        self._types = [column.type.compile(_POSTGRESQL) for column in table.columns]
        self._tail = " ON CONFLICT DO NOTHING"
        if keys:
            values = [name for name in table.columns.keys() if name not in keys]  # noqa: SIM118
            pairs = ", ".join(f"{name} = excluded.{name}" for name in values)
            self._tail = f" ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {pairs}"
        self._returns = returning is not None
        if returning is not None:
            self._tail += f" RETURNING {returning}"

    def run(self, db: Connection, rows: Sequence[Sequence[Any]]) -> list[Any]:
        """Write the rows; return the named column of those that were written, if one is named."""
        if not rows:
            return []
        if db.dialect.name == "postgresql":
            columns = tuple(list(column) for column in zip(*rows, strict=True))
            return self._execute(db, self._from_arrays(), columns)
        returned = []
        plain = [[_for_sqlite(value) for value in row] for row in rows]
        for size in _CHUNKS:
            while len(plain) >= size:
                chunk, plain = plain[:size], plain[size:]
                flat = tuple(value for row in chunk for value in row)
                returned += self._execute(db, self._from_values(size), flat)
        return returned

    def _execute(self, db: Connection, text: str, values: tuple[Any, ...]) -> list[Any]:
        result = db.exec_driver_sql(text, values)
        return [row[0] for row in result] if self._returns else []

    def _from_values(self, size: int) -> str:
        row = f"({', '.join('?' * self._n_columns)})"
        return f"{self._head} VALUES {', '.join([row] * size)}{self._tail}"

    def _from_arrays(self) -> str:
        arrays = ", ".join(f"%s::{kind}[]" for kind in self._types)
        rows = f"SELECT * FROM unnest({arrays})"  # noqa: S608 - names of our own schema
        return f"{self._head} {rows}{self._tail}"


def _for_sqlite(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime.date) else value
