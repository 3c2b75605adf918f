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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from sqlalchemy import Connection, Engine, Table, delete, func, insert, select, text, update

from rappor_server.errors import StoreError
from rappor_server.storage import schema
from rappor_server.storage.bulk import BulkInsert
from rappor_server.storage.database import (
    LockedError,
    as_day,
    begin_immediate,
    connect_sqlite,
    erase_traces,
    failing_as_store_error,
    file_of,
    wait_alone,
    writing,
)

PIECE_BYTES: Final = 8_000_000
"""Of groups that are folded at once, so that memory and the time of a fold are bounded."""
_PIECE_GROUPS: Final = 4096
_LOCK: Final = 0x524150504F54
"""The advisory lock on PostgreSQL: shared by who adds groups, alone for who makes a new table."""
_TRY: Final = text("SET LOCAL lock_timeout = '0.2s'")
"""Receivers wait as well while somebody waits for that lock."""
_PARAMS: Final = BulkInsert(schema.params)
_REPLACED: Final = "the inbox beside the database has been deleted or replaced"
_FOREIGN: Final = (
    "{path} must be the inbox of this database, got one that is missing or older: put the right "
    "one back, or restore the database into a new file"
)
_CREATE: Final = (
    "CREATE TABLE IF NOT EXISTS inbox (seq INTEGER PRIMARY KEY AUTOINCREMENT, day TEXT NOT NULL, "
    "reports INTEGER NOT NULL, data BLOB NOT NULL)",  # a number is never given twice
    "CREATE TABLE IF NOT EXISTS params (fingerprint TEXT PRIMARY KEY, document TEXT NOT NULL)",
)


class Waiting(NamedTuple):
    """What waits to be folded: groups, their reports and bytes, and how many are set apart."""

    groups: int
    reports: int
    n_bytes: int
    failed: int


class Group(NamedTuple):
    """What is kept of some uploads until they are folded; `data` is a record."""

    day: datetime.date
    reports: int
    data: bytes


class Inbox(Protocol):
    """What both databases do; each object is for one thread at a time."""

    def append(self, group: Group, params: Mapping[str, str]) -> None:
        """Keep a group, on the disk when this returns, and its parameters by fingerprint.

        After a StoreError the group may be in it or not, and may be added again.
        """

    def free_bytes(self) -> float:
        """Return how much room there is, as far as that is known."""

    def waiting(self) -> Waiting:
        """Return what waits."""

    def seal(self) -> None:
        """Let `take` find all that was added before, and nothing that is added after."""

    def take(self, db: Connection) -> list[Group]:
        """Return some groups, which are gone if the transaction of the database is committed."""

    def clear(self) -> None:
        """Erase the groups that are gone."""

    def close(self) -> None:
        """Close the connections."""


def open_inbox(engine: Engine, *, piece_bytes: int = PIECE_BYTES) -> Inbox:
    """Return the inbox of a database; StoreError if it cannot be the one that belongs to it.

    `take` returns one group at least, and no more than `piece_bytes` of several.
    """
    kind = SqliteInbox if engine.dialect.name == "sqlite" else PostgresInbox
    return kind(engine, piece_bytes)


class SqliteInbox:
    """A second file of SQLite, whose name ends in -inbox."""

    def __init__(self, engine: Engine, piece_bytes: int) -> None:
        """Open or make the file."""
        self._engine, self._piece_bytes = engine, piece_bytes
        self._path = Path(f"{engine.url.database}-inbox")
        self._named: set[str] = set()
        self._sealed = 0
        self._db: sqlite3.Connection | None = None
        with self._using():
            pass

    @contextlib.contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection, which any failure closes; what a lost file was told is lost."""
        try:
            if self._db is None or self._file != file_of(self._path):
                self.close()
                self._db = self._open()
            with failing_as_store_error():
                yield self._db
            if self._file != file_of(self._path):
                raise StoreError(_REPLACED)
        except BaseException:
            self.close()
            raise

    def _open(self) -> sqlite3.Connection:
        folded = self._folded()
        with failing_as_store_error():
            db = connect_sqlite(self._path)
            begin_immediate(db)
            for statement in (*_CREATE, "COMMIT"):
                db.execute(statement)
            found = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'inbox'").fetchone()
        self._file = file_of(self._path)
        if folded > (found[0] if found else 0):  # groups to come would count as folded
            db.close()
            raise StoreError(_FOREIGN.format(path=self._path.name))
        return db

    def _folded(self) -> int:
        with failing_as_store_error(), self._engine.connect() as main:
            return int(main.scalar(select(schema.folded.c.seq)) or 0)

    def append(self, group: Group, params: Mapping[str, str]) -> None:
        """See `Inbox`."""
        with self._using() as db:
            new = [(name, params[name]) for name in params.keys() - self._named]
            begin_immediate(db)
            db.executemany("INSERT OR IGNORE INTO params VALUES (?, ?)", new)
            row = (group.day.isoformat(), group.reports, group.data)
            db.execute("INSERT INTO inbox (day, reports, data) VALUES (?, ?, ?)", row)
            db.execute("COMMIT")
        self._named |= params.keys()

    def free_bytes(self) -> float:
        """See `Inbox`."""
        return shutil.disk_usage(self._path.parent).free

    def waiting(self) -> Waiting:
        """See `Inbox`."""
        sums = "SELECT count(*), total(reports), total(length(data)) FROM inbox"
        with self._using() as db, self._engine.connect() as main:
            groups, reports, n_bytes = db.execute(sums).fetchone()
            return Waiting(groups, int(reports), int(n_bytes), n_failed(main))

    def seal(self) -> None:
        """See `Inbox`: numbers are given in the order of commits.

        Without an end, a fold under load would go on and on with the few groups that came since.
        """
        with self._using() as db:
            self._sealed = db.execute("SELECT coalesce(max(seq), 0) FROM inbox").fetchone()[0]

    def take(self, db: Connection) -> list[Group]:
        """See `Inbox`: the number of the last one is in the same transaction as the sums."""
        first = int(db.scalar(select(schema.folded.c.seq)) or 0)
        sizes = (
            "SELECT seq, length(data) FROM inbox WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"
        )
        rows = "SELECT day, reports, data FROM inbox WHERE seq > ? AND seq <= ?"
        with self._using() as own:
            last = _end_of_piece(
                own.execute(sizes, (first, self._sealed, _PIECE_GROUPS)), self._piece_bytes
            )
            groups = [_group(row) for row in own.execute(rows, (first, last))]
            if groups:
                _PARAMS.run(db, own.execute("SELECT fingerprint, document FROM params").fetchall())
                db.execute(update(schema.folded).values(seq=last))
        return groups

    def clear(self) -> None:
        """See `Inbox`: overwritten, and both logs emptied."""
        last = self._folded()
        with self._using() as db:
            begin_immediate(db)
            db.execute("DELETE FROM inbox WHERE seq <= ?", (last,))
            db.execute("COMMIT")
        for path in (self._path, Path(str(self._engine.url.database))):
            erase_traces(path)

    def close(self) -> None:
        """See `Inbox`."""
        self._named.clear()
        if self._db is not None:
            self._db.close()
            self._db = None


class PostgresInbox:
    """Tables inbox_N, of which those before the newest no longer change."""

    def __init__(self, engine: Engine, piece_bytes: int) -> None:
        """Connect when there is something to do."""
        self._engine, self._piece_bytes = engine, piece_bytes
        self._named: set[str] = set()
        self._own: Connection | None = None

    def append(self, group: Group, params: Mapping[str, str]) -> None:
        """See `Inbox`; a connection that broke while it was idle is opened again at once."""
        for is_last in (self._own is None, True):
            try:
                self._append(group, params)
            except BaseException as error:
                self.close()
                if is_last or not isinstance(error, StoreError):
                    raise
            else:
                return

    def _append(self, group: Group, params: Mapping[str, str]) -> None:
        """Add a group by one statement, so that a receiver that hangs holds no lock."""
        if new := params.keys() - self._named:
            with writing(self._engine) as db:
                _PARAMS.run(db, [(name, params[name]) for name in sorted(new)])
            self._named |= new
        with failing_as_store_error():
            if self._own is None:
                own = self._engine.connect()
                self._own = own.execution_options(isolation_level="AUTOCOMMIT")
            self._own.exec_driver_sql("SELECT append_group(%s, %s, %s)", tuple(group))

    def free_bytes(self) -> float:
        """See `Inbox`: the disk is the server's business."""
        return float("inf")

    def waiting(self) -> Waiting:
        """See `Inbox`."""
        with failing_as_store_error(), self._engine.connect() as db:
            found = [
                db.execute(
                    select(
                        func.count(), func.sum(table.c.reports), func.sum(func.length(table.c.data))
                    )
                ).one()
                for table in _segments(db)
            ]
            groups, reports, n_bytes = (
                sum(int(each or 0) for each in sums) for sums in zip(*found, strict=True)
            )
            return Waiting(groups, reports, n_bytes, n_failed(db))

    def seal(self) -> None:
        """See `Inbox`: a new table is made when nobody is adding a group to the newest one."""
        with writing(self._engine) as db:
            db.execute(_TRY)
            db.execute(select(func.pg_advisory_xact_lock(_LOCK)))
            number = db.execute(select(func.max(schema.segment.c.n))).scalar_one()
            if _is_empty(db, _segment(number)):
                return
            _segment(number + 1).create(db)
            db.execute(insert(schema.segment).values(n=number + 1))

    def take(self, db: Connection) -> list[Group]:
        """See `Inbox`: deleted in the same transaction as the sums, from a table that is sealed."""
        for table in _segments(db)[:-1]:
            sizes = select(table.c.seq, func.length(table.c.data)).order_by(table.c.seq)
            last = _end_of_piece(db.execute(sizes.limit(_PIECE_GROUPS)), self._piece_bytes)
            gone = delete(table).where(table.c.seq <= last)
            columns = (table.c.day, table.c.reports, table.c.data)
            if rows := db.execute(gone.returning(*columns)).all():
                return [_group(row) for row in rows]
        return []

    def clear(self) -> None:
        """See `Inbox`: dropped, later if a table is still read, as by a dump."""
        with contextlib.suppress(LockedError), writing(self._engine) as db:
            db.execute(_TRY)
            wait_alone(db)
            for table in _segments(db)[:-1]:
                if _is_empty(db, table):
                    table.drop(db)
                    number = int(table.name.rpartition("_")[2])
                    db.execute(delete(schema.segment).where(schema.segment.c.n == number))

    def close(self) -> None:
        """See `Inbox`."""
        self._named.clear()
        if self._own is not None:
            with contextlib.suppress(StoreError), failing_as_store_error():
                self._own.invalidate()
                self._own.close()
            self._own = None


def _segment(number: int) -> Table:
    return schema.inbox_table(f"inbox_{number}")


def _segments(db: Connection) -> list[Table]:
    """Return the tables of PostgreSQL's inbox; the last one is not sealed."""
    numbers = select(schema.segment.c.n).order_by(schema.segment.c.n)
    return [_segment(number) for number in db.execute(numbers).scalars()]


def _is_empty(db: Connection, table: Table) -> bool:
    return db.execute(select(table.c.seq).limit(1)).first() is None


def _end_of_piece(sizes: Iterable[Any], most: int) -> int:
    """Return the number of the last group of a piece, given numbers and sizes; one at least."""
    last, n_bytes = 0, 0
    for number, size in sizes:
        if n_bytes and n_bytes + size > most:
            break
        last, n_bytes = number, n_bytes + size
    return last


def _group(row: Any) -> Group:
    day, reports, data = row
    return Group(as_day(day), reports, bytes(data))


def n_failed(db: Connection) -> int:
    """Return how many groups are set apart because nobody can read them."""
    return int(db.scalar(select(func.count()).select_from(schema.inbox_failed)) or 0)
