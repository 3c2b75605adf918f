"""Many rows in one statement: the inner loop of a group commit.

A driver gives up the interpreter for every row that it writes one by one, and a busy server
takes its time to give it back. So SQLite gets many rows of values in a statement, PostgreSQL
an array for each column; the texts are few, and both databases prepare them once.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy import Connection, CursorResult, Table
from sqlalchemy.dialects import postgresql

_CHUNKS: Final = (64, 32, 16, 8, 4, 2, 1)
_POSTGRESQL: Final = postgresql.dialect()  # type: ignore[no-untyped-call]


class _Bulk:
    """Writes rows of one table, in the order of its columns, by statements over many rows."""

    def __init__(self, table: Table, *, head: str, tail: str) -> None:
        """Take the statement before and after its rows."""
        self._head, self._tail = head, tail
        self._n_columns = len(table.columns)
        self._types = [column.type.compile(_POSTGRESQL) for column in table.columns]

    def _execute(
        self, db: Connection, rows: Sequence[Sequence[Any]]
    ) -> Iterator[CursorResult[Any]]:
        """Yield the result of each statement."""
        if not rows:
            return
        if db.dialect.name == "postgresql":
            columns = tuple(list(column) for column in zip(*rows, strict=True))
            yield db.exec_driver_sql(self._from_arrays(), columns)
            return
        plain = _for_sqlite(rows)
        for size in _CHUNKS:
            while len(plain) >= size:
                chunk, plain = plain[:size], plain[size:]
                flat = tuple(itertools.chain.from_iterable(chunk))
                yield db.exec_driver_sql(self._from_values(size), flat)

    def _from_values(self, size: int) -> str:
        row = f"({', '.join('?' * self._n_columns)})"
        return self._head.format(rows=f"VALUES {', '.join([row] * size)}") + self._tail

    def _from_arrays(self) -> str:
        arrays = ", ".join(f"%s::{kind}[]" for kind in self._types)
        named = ", ".join(_places(self._n_columns))
        rows = f"SELECT * FROM unnest({arrays}) AS given({named})"  # noqa: S608 - our own schema
        return self._head.format(rows=rows) + self._tail


class BulkInsert(_Bulk):
    """Inserts rows."""

    def __init__(
        self, table: Table, *, keys: Sequence[str] = (), returning: str | None = None
    ) -> None:
        """Take what to do about known rows: replace all but the keys, or without keys skip them."""
        tail = " ON CONFLICT DO NOTHING"
        if keys:
            values = [name for name in table.columns.keys() if name not in keys]  # noqa: SIM118
            pairs = ", ".join(f"{name} = excluded.{name}" for name in values)
            tail = f" ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {pairs}"
        self._returns = returning is not None
        if returning is not None:
            tail += f" RETURNING {returning}"
        names = ", ".join(table.columns.keys())
        super().__init__(table, head=f"INSERT INTO {table.name} ({names}) {{rows}}", tail=tail)

    def run(self, db: Connection, rows: Sequence[Sequence[Any]]) -> list[Any]:
        """Write the rows; return the named column of those that were written, if one is named."""
        results = self._execute(db, rows)
        return [row[0] for result in results for row in (result if self._returns else ())]


class BulkUpdate(_Bulk):
    """Replaces all but the keys of rows that are there."""

    def __init__(self, table: Table, *, keys: Sequence[str]) -> None:
        """Take the columns by which a row is found."""
        new = dict(zip(table.columns.keys(), _places(len(table.columns)), strict=True))
        pairs = ", ".join(f"{name} = news.{at}" for name, at in new.items() if name not in keys)
        same = " AND ".join(f"{table.name}.{name} = news.{new[name]}" for name in keys)
        super().__init__(
            table,
            head=f"UPDATE {table.name} SET {pairs} FROM ({{rows}}) AS news",  # noqa: S608
            tail=f" WHERE {same}",
        )

    def run(self, db: Connection, rows: Sequence[Sequence[Any]]) -> int:
        """Write the rows; return how many were there."""
        return sum(result.rowcount for result in self._execute(db, rows))


def _places(n: int) -> list[str]:
    """Return the names that both databases give to the columns of VALUES."""
    return [f"column{i}" for i in range(1, n + 1)]


def _for_sqlite(rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Write days as text; a column is of one kind."""
    columns = [
        [day.isoformat() for day in column] if isinstance(column[0], datetime.date) else column
        for column in zip(*rows, strict=True)
    ]
    return list(zip(*columns, strict=True))
