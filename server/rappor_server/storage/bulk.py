"""Many rows in one statement: the inner loop of a group commit.

A driver releases the interpreter's lock for every row that it writes one by one, and in a busy
server other threads hold it for a while. So SQLite gets many rows of values in a statement, and
PostgreSQL an array for each column. The statements are few, so both databases prepare them once.
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
            columns = tuple(list(column) for column in zip(*rows, strict=True))
            yield db.exec_driver_sql(self._from_arrays(), columns)
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

    def __init__(
        self, table: Table, *, keys: Sequence[str] = (), returning: str | None = None
    ) -> None:
        """Choose what happens to a row that exists: all but `keys` is replaced, or it is skipped.

        It is skipped where no keys are given. `returning` names the column that `run` returns.
        """
        tail = " ON CONFLICT DO NOTHING"
        if keys:
            values = [name for name in table.columns.keys() if name not in keys]  # noqa: SIM118
            pairs = ", ".join(f"{name} = excluded.{name}" for name in values)
            tail = f" ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {pairs}"
        self._returns = returning is not None
        if returning is not None:
            tail += f" RETURNING {returning}"
        names = ", ".join(table.columns.keys())
        head = f"INSERT INTO {table.name} ({names}) {{rows}}"
        super().__init__(table.columns.values(), head=head, tail=tail)

    def run(self, db: Connection, rows: Sequence[Sequence[Any]]) -> list[Any]:
        """Write the rows; return the column `returning` of those that were written."""
        results = self._execute(db, rows)
        return [row[0] for result in results for row in (result if self._returns else ())]


class BulkUpdate(_Bulk):
    """Replaces all columns but the keys in rows that exist."""

    def __init__(self, table: Table, *, keys: Sequence[str]) -> None:
        """Find rows by the columns `keys`."""
        new = dict(zip(table.columns.keys(), _places(len(table.columns)), strict=True))
        pairs = ", ".join(f"{name} = news.{at}" for name, at in new.items() if name not in keys)
        same = " AND ".join(f"{table.name}.{name} = news.{new[name]}" for name in keys)
        super().__init__(
            table.columns.values(),
            head=f"UPDATE {table.name} SET {pairs} FROM ({{rows}}) AS news",  # noqa: S608
            tail=f" WHERE {same}",
        )

    def run(self, db: Connection, rows: Sequence[Sequence[Any]]) -> int:
        """Write the rows; return how many of them existed."""
        return sum(result.rowcount for result in self._execute(db, rows))


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


class BulkSelect(_Bulk):
    """Finds rows of several tables of the same columns by one of them."""

    def __init__(self, tables: Sequence[Table], *, key: str) -> None:
        """Find rows by the column `key`."""
        names = ", ".join(f"own.{name}" for name in tables[0].columns.keys())  # noqa: SIM118
        arms = " UNION ALL ".join(
            f"SELECT {names} FROM given CROSS JOIN {table.name} AS own WHERE own.{key} = given.key"  # noqa: S608
            for table in tables
        )
        super().__init__([tables[0].columns[key]], head="WITH given (key) AS ({rows}) ", tail=arms)

    def run(self, db: Connection, keys: Collection[Any]) -> list[Any]:
        """Return all columns of the rows that exist, in any order."""
        return [row for result in self._execute(db, [(key,) for key in keys]) for row in result]


def _places(n: int) -> list[str]:
    """Return the names that both databases give to n columns of VALUES."""
    return [f"column{i}" for i in range(1, n + 1)]


def _for_sqlite(rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Return rows whose days are text; all entries of a column have one type."""
    columns = [
        [day.isoformat() for day in column] if isinstance(column[0], datetime.date) else column
        for column in zip(*rows, strict=True)
    ]
    return list(zip(*columns, strict=True))
