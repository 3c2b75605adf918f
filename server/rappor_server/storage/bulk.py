"""Many rows at once: the inner loop of a fold.

PostgreSQL gets an array for each column in one statement, because every statement is a journey.
SQLite is here, and a prepared statement for one row costs it less than the values of many rows in
one, which it first writes to a table of its own; only where rows are joined they are given so. The
statements are few, so both databases prepare them once.
"""

from __future__ import annotations

import datetime
import functools
import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from sqlalchemy import Column, Connection, CursorResult, Table
from sqlalchemy.dialects import postgresql

_MOST_ROWS: Final = 64
"""In one statement of SQLite, which is prepared once for each number of rows up to this."""
_POSTGRESQL: Final = postgresql.dialect()  # type: ignore[no-untyped-call]


class _Bulk:
    """Gives rows of some columns to the database, many in one statement."""

    def __init__(self, columns: Collection[Column[Any]], *, head: str, tail: str) -> None:
        """Build statements from their text before (`head`) and after (`tail`) the rows."""
        self._head, self._tail = head, tail
        self._n_columns = len(columns)
        self._types = [column.type.compile(_POSTGRESQL) for column in columns]

    def _execute(
        self, db: Connection, rows: Sequence[Sequence[Any]]
    ) -> Iterator[CursorResult[Any]]:
        """Give the rows and yield the result of each statement."""
        if not rows:
            return
        if db.dialect.name == "postgresql":
            yield db.exec_driver_sql(self._from_arrays(), _columns(rows))
            return
        plain = _for_sqlite(rows)
        for start in range(0, len(plain), _MOST_ROWS):
            chunk = plain[start : start + _MOST_ROWS]
            flat = tuple(itertools.chain.from_iterable(chunk))
            yield db.exec_driver_sql(self._from_values(len(chunk)), flat)

    @functools.cache  # noqa: B019 - statements live as long as the program
    def _from_values(self, size: int) -> str:
        row = f"({', '.join('?' * self._n_columns)})"
        rows = f"VALUES {', '.join([row] * size)}"
        return self._head.format(rows=rows, row="rowid") + self._tail

    @functools.cache  # noqa: B019
    def _from_arrays(self) -> str:
        arrays = ", ".join(f"%b::{kind}[]" for kind in self._types)  # binary: nothing to escape
        named = ", ".join(_places(self._n_columns))
        rows = f"SELECT * FROM unnest({arrays}) AS given({named})"  # noqa: S608 - our own schema
        return self._head.format(rows=rows, row="ctid") + self._tail


class BulkInsert(_Bulk):
    """Inserts rows into one table."""

    def __init__(self, table: Table, *, keys: Sequence[str] = ()) -> None:
        """Choose what happens to a row that exists: all but `keys` is replaced, or it is skipped.

        It is skipped where no keys are given.
        """
        names = list(table.columns.keys())
        conflict = " ON CONFLICT DO NOTHING"
        if keys:
            pairs = ", ".join(f"{name} = excluded.{name}" for name in names if name not in keys)
            conflict = f" ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {pairs}"
        insert = f"INSERT INTO {table.name} ({', '.join(names)}) "
        self._of_one = f"{insert}VALUES ({', '.join('?' * len(names))}){conflict}"
        super().__init__(table.columns.values(), head=insert + "{rows}", tail=conflict)

    def run(self, db: Connection, rows: Sequence[Sequence[Any]]) -> None:
        """Write the rows."""
        if db.dialect.name == "postgresql":
            list(self._execute(db, rows))
        elif rows:
            db.connection.cursor().executemany(self._of_one, _for_sqlite(rows))


class BulkDelete(_Bulk):
    """Deletes rows by their keys.

    Neither database searches an index for several columns by IN, so the rows are joined first.
    """

    def __init__(
        self, table: Table, *, keys: Sequence[str], returning: Sequence[str], only: str = "true"
    ) -> None:
        """Find rows by the columns `keys`; delete those for which `only` holds as well.

        `returning` names the columns that `run` returns.
        """
        places = _places(len(keys))
        same = [f"own.{key} = given.{at}" for key, at in zip(keys, places, strict=True)]
        found = f"FROM ({{rows}}) AS given CROSS JOIN {table.name} AS own"
        super().__init__(
            [table.columns[name] for name in keys],
            head=f"DELETE FROM {table.name} WHERE {{row}} IN (SELECT own.{{row}} {found} WHERE ",  # noqa: S608
            tail=f"{' AND '.join(same)} AND {only}) RETURNING {', '.join(returning)}",
        )

    def run(self, db: Connection, keys: Sequence[Sequence[Any]]) -> list[Any]:
        """Delete the rows that exist; return the columns `returning` of those."""
        return [row for result in self._execute(db, keys) for row in result]


def _places(n: int) -> list[str]:
    """Return the names that both databases give to n columns of VALUES."""
    return [f"column{i}" for i in range(1, n + 1)]


def _columns(rows: Sequence[Sequence[Any]]) -> tuple[list[Any], ...]:
    return tuple(list(column) for column in zip(*rows, strict=True))


def _for_sqlite(rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Return rows whose days are text; all entries of a column have one type."""
    columns = [
        [day.isoformat() for day in column] if isinstance(column[0], datetime.date) else column
        for column in zip(*rows, strict=True)
    ]
    return list(zip(*columns, strict=True))
