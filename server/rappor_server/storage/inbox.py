"""The inbox: where groups of uploads lie, on the disk, until they are folded into sums.

Receivers only add a row to it, whatever the number of metrics, cohorts and bits. On SQLite it is a
file of its own beside the database, so that receivers wait for no fold; the number of the last
group that was folded lies beside the sums, so that a fold is one transaction of one file. On
PostgreSQL it is tables that are dropped when they are folded, because deleted rows stay in their
pages; receivers add to the newest one, which they look up under a lock that they share.
"""

from __future__ import annotations

import contextlib
import datetime
import shutil
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    LargeBinary,
    Select,
    Table,
    cast,
    delete,
    event,
    func,
    insert,
    select,
    text,
    update,
)

from rappor_server.base.errors import StoreError
from rappor_server.storage import schema
from rappor_server.storage.bulk import insert_rows
from rappor_server.storage.database import (
    TODAY,
    LockedError,
    begin_immediate,
    erase_traces,
    failing_as_store_error,
    open_engine,
    sqlite_url,
    wait_alone,
    writing,
)

PIECE_BYTES: Final = 8_000_000
"""Of groups that are folded at once, so that memory and the time of a fold are bounded."""
_PIECE_GROUPS: Final = 4096
_LOCK: Final = 0x524150504F54
"""The advisory lock on PostgreSQL: shared by who adds groups, alone for who makes a new table."""
_TRY_SECONDS: Final = 0.2
_TRY: Final = text(f"SET LOCAL lock_timeout = '{_TRY_SECONDS}s'")
"""Receivers wait as well while somebody waits for that lock."""
_LOOK: Final = 0x524150504F55
"""Another one: shared by who looks at all tables, alone for who drops some."""
_FOREIGN: Final = (
    "{path} must be the inbox of this database, got one that is missing or older: put the right "
    "one back, or restore the database into a new file"
)
_CREATE: Final = (
    "CREATE TABLE IF NOT EXISTS inbox (seq INTEGER PRIMARY KEY AUTOINCREMENT, day TEXT NOT NULL, "
    "reports INTEGER NOT NULL, data BLOB NOT NULL)",  # a number is never given twice
    "CREATE TABLE IF NOT EXISTS params (fingerprint TEXT PRIMARY KEY, document TEXT NOT NULL)",
)
_APPEND: Final = f"SELECT append_group(COALESCE(%s::date, {TODAY}), %s, %s)"
_SUMS: Final = "SELECT count(*), coalesce(sum(reports), 0), coalesce(sum(length(data)), 0) FROM"
_INBOX: Final = schema.inbox_table("inbox")
"""On SQLite."""


class Waiting(NamedTuple):
    """What waits to be folded: groups, their reports and bytes, and how many are set apart."""

    groups: int
    reports: int
    n_bytes: int
    failed: int


class Group(NamedTuple):
    """What is kept of some uploads until they are folded; `data` is a record.

    PostgreSQL dates a group that has no day when it is kept.
    """

    day: datetime.date | None
    reports: int
    data: bytes


class SqliteInbox:
    """A second file of SQLite, whose name ends in -inbox."""

    def __init__(self, engine: Engine, piece_bytes: int) -> None:
        self._main, self._piece_bytes, self._sealed = engine, piece_bytes, 0
        self._path = Path(f"{engine.url.database}-inbox")
        self._own = open_engine(sqlite_url(self._path))
        event.listen(self._own, "connect", self._prepare)
        self.seal()

    def _prepare(self, db: sqlite3.Connection, _: object) -> None:
        """Make the tables of a new file, and refuse one by which groups to come count as folded."""
        begin_immediate(db)
        for statement in (*_CREATE, "COMMIT"):
            db.execute(statement)
        found = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'inbox'").fetchone()
        if self._folded() > (found[0] if found else 0):
            db.close()
            raise StoreError(_FOREIGN.format(path=self._path.name))

    def _folded(self) -> int:
        with failing_as_store_error(), self._main.connect() as main:
            return int(main.scalar(select(schema.folded.c.seq)) or 0)

    def append(self, group: Group, params: Mapping[str, str]) -> None:
        """Keep a group, on the disk when this returns, and its parameters by fingerprint.

        After a StoreError the group may be in it or not, and may be added again.
        """
        with writing(self._own) as db:
            insert_rows(db, schema.params, list(params.items()))
            db.execute(insert(_INBOX), group._asdict())

    def free_bytes(self) -> float:
        """Return how much room there is, as far as that is known."""
        return shutil.disk_usage(self._path.parent).free

    def waiting(self) -> Waiting:
        """Return what waits."""
        with failing_as_store_error(), self._own.connect() as own, self._main.connect() as main:
            groups, reports, n_bytes = own.execute(text(f"{_SUMS} inbox")).one()
            return Waiting(groups, reports, n_bytes, n_failed(main))

    def seal(self) -> None:
        """Let `take` find all that was added before, and nothing that is added after.

        Otherwise a fold under load would go on and on with the few groups that came since. Numbers
        are given in the order of commits.
        """
        with failing_as_store_error(), self._own.connect() as own:
            self._sealed = own.scalar(select(func.max(_INBOX.c.seq))) or 0

    def take(self, db: Connection) -> list[Group]:
        """Return some groups, which are gone if the transaction of the database is committed."""
        seq, first = _INBOX.c.seq, int(db.scalar(select(schema.folded.c.seq)) or 0)
        with self._own.connect() as own:
            last = _end_of_piece(own, _INBOX, self._piece_bytes, seq > first, seq <= self._sealed)
            groups = _groups(own.execute(_select(own, _INBOX).where(seq > first, seq <= last)))
            if groups:
                insert_rows(db, schema.params, own.execute(select(schema.params)).all())
                db.execute(update(schema.folded).values(seq=last))
        return groups

    def clear(self) -> None:
        """Erase the groups that are gone: overwrite them, and empty both logs.

        A reader may hold that up for longer than this waits: the next call does it.
        """
        last = self._folded()
        with writing(self._own) as own:
            own.execute(delete(_INBOX).where(_INBOX.c.seq <= last))
        for path in (self._path, Path(str(self._main.url.database))):
            erase_traces(path, seconds=_TRY_SECONDS)

    def close(self) -> None:
        """Close the connections."""
        self._own.dispose()


class PostgresInbox:
    """Tables inbox_N, of which those before the newest no longer change."""

    def __init__(self, engine: Engine, piece_bytes: int) -> None:
        self._engine, self._piece_bytes = engine, piece_bytes
        self._named: set[str] = set()
        self._own: Connection | None = None

    def append(self, group: Group, params: Mapping[str, str]) -> None:
        """See `SqliteInbox`; a connection that broke while it was idle is opened again at once."""
        is_last = self._own is None
        try:
            self._append(group, params)
        except BaseException as error:
            self.close()
            if is_last or not isinstance(error, StoreError):
                raise
            self.append(group, params)

    def _append(self, group: Group, params: Mapping[str, str]) -> None:
        """Add a group by one statement, so that a receiver that hangs holds no lock."""
        if new := params.keys() - self._named:
            with writing(self._engine) as db:
                insert_rows(db, schema.params, [(name, params[name]) for name in sorted(new)])
            self._named |= new
        with failing_as_store_error():
            if self._own is None:
                own = self._engine.connect()
                self._own = own.execution_options(isolation_level="AUTOCOMMIT")
            self._own.exec_driver_sql(_APPEND, tuple(group))

    def free_bytes(self) -> float:
        """See `SqliteInbox`: the disk is the server's business."""
        return float("inf")

    def waiting(self) -> Waiting:
        """See `SqliteInbox`."""
        with failing_as_store_error(), self._engine.connect() as db:
            db.execute(select(func.pg_advisory_xact_lock_shared(_LOOK)))
            found = [db.execute(text(f"{_SUMS} inbox_{n}")).one() for n in _segments(db)]
            groups, reports, n_bytes = (int(sum(each)) for each in zip(*found, strict=True))
            return Waiting(groups, reports, n_bytes, n_failed(db))

    def seal(self) -> None:
        """See `SqliteInbox`: make a new table when nobody is adding a group to the newest one."""
        with writing(self._engine) as db:
            db.execute(_TRY)
            db.execute(select(func.pg_advisory_xact_lock(_LOCK)))
            number = _segments(db)[-1]
            if _is_empty(db, _segment(number)):
                return
            _segment(number + 1).create(db)
            db.execute(insert(schema.segment).values(n=number + 1))

    def take(self, db: Connection) -> list[Group]:
        """See `SqliteInbox`: delete them from a table that is sealed."""
        for table in map(_segment, _segments(db)[:-1]):
            last = _end_of_piece(db, table, self._piece_bytes)
            gone = delete(table).where(table.c.seq <= last)
            if groups := _groups(db.execute(gone.returning(*table.c))):
                return groups
        return []

    def clear(self) -> None:
        """See `SqliteInbox`: their tables are dropped, unless one is still read, as by a dump."""
        with contextlib.suppress(LockedError), writing(self._engine) as db:
            db.execute(_TRY)
            wait_alone(db)
            db.execute(select(func.pg_advisory_xact_lock(_LOOK)))
            for number in _segments(db)[:-1]:
                if _is_empty(db, table := _segment(number)):
                    table.drop(db)
                    db.execute(delete(schema.segment).where(schema.segment.c.n == number))

    def close(self) -> None:
        """See `SqliteInbox`."""
        self._named.clear()
        if self._own is not None:
            with contextlib.suppress(StoreError), failing_as_store_error():
                self._own.invalidate()
                self._own.close()
            self._own = None


Inbox = SqliteInbox | PostgresInbox
"""What both databases do; each object is for one thread at a time."""


def open_inbox(engine: Engine, *, piece_bytes: int = PIECE_BYTES) -> Inbox:
    """Return the inbox of a database; StoreError if it cannot be the one that belongs to it.

    `take` returns one group at least, and no more than `piece_bytes` of several.
    """
    kind = SqliteInbox if engine.dialect.name == "sqlite" else PostgresInbox
    return kind(engine, piece_bytes)


def _segment(number: int) -> Table:
    return schema.inbox_table(f"inbox_{number}")


def _segments(db: Connection) -> Sequence[int]:
    """Return the numbers of the tables of PostgreSQL's inbox; the last one is not sealed."""
    return db.execute(select(schema.segment.c.n).order_by(schema.segment.c.n)).scalars().all()


def _is_empty(db: Connection, table: Table) -> bool:
    return db.execute(select(table.c.seq).limit(1)).first() is None


def _select(db: Connection, table: Table) -> Select[Any]:
    """Select groups; SQLite gives bytes, so that a damaged one does not stop the others."""
    columns: list[ColumnElement[Any]] = [table.c.day, table.c.data]
    if db.dialect.name == "sqlite":
        columns = [cast(each, LargeBinary).label(each.key) for each in columns]
    return select(*columns)


def _groups(rows: Iterable[Any]) -> list[Group]:
    """Return groups whose reports are still to be counted; one has no day if that is damaged."""
    return [Group(_day(row.day), 0, bytes(row.data)) for row in rows]


def _day(value: Any) -> datetime.date | None:
    if isinstance(value, datetime.date):
        return value
    with contextlib.suppress(ValueError):
        return datetime.date.fromisoformat(value.decode())
    return None


def _end_of_piece(db: Connection, table: Table, most: int, *within: ColumnElement[bool]) -> int:
    """Return the number of the last group of a piece of `most` bytes; one group at least."""
    sizes = select(table.c.seq, func.length(table.c.data)).where(*within).order_by(table.c.seq)
    last, n_bytes = 0, 0
    for number, size in db.execute(sizes.limit(_PIECE_GROUPS)):
        if n_bytes and n_bytes + size > most:
            break
        last, n_bytes = number, n_bytes + size
    return last


def take_failed(db: Connection) -> list[Group]:
    """Return the groups that are set apart, which are gone if the transaction is committed.

    Raises LockedError if the table is read meanwhile on PostgreSQL, where it gets a new file.
    """
    groups = _groups(db.execute(_select(db, schema.inbox_failed)))
    if db.dialect.name == "sqlite":
        db.execute(delete(schema.inbox_failed))
    else:
        db.execute(_TRY)
        db.execute(text("TRUNCATE inbox_failed"))
    return groups


def n_failed(db: Connection) -> int:
    """Return how many groups are set apart because nobody can read them."""
    return int(db.scalar(select(func.count()).select_from(schema.inbox_failed)) or 0)
