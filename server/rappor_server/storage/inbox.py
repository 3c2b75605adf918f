"""The inbox: the durable queue of accepted uploads that are not merged into counters yet.

Two sides use an inbox at the same time:

    receiver    the thread of a collector that writes accepted uploads (`batch_commit.Receiver`). It
                calls `append` with a batch, which is written as one row. The cost of a write does
                not depend on the number of metrics, cohorts and bits, so receivers stay fast
    merge       a process that adds the reports of batches to the counters (`merge.merge`). It calls
                `seal` once, then `take` and `clear` until `take` returns no batch

Each database has the form of an inbox in which receivers and merges do not wait for each other:

- SQLite allows one writer for each file. The inbox is therefore a second file beside the database,
  and a receiver never waits for a merge. The database stores the sequence number of the last merged
  batch beside the counters (`schema.last_merged`), so a merge commits in one transaction of one
  file. `clear` deletes the merged rows of the inbox after the commit.
- PostgreSQL keeps deleted rows in the pages of a table. The inbox is therefore a sequence of tables
  inbox_1, inbox_2, ..., and an empty table is dropped as a whole. Receivers write to the newest
  table. To seal the newest table means to create the next one, after which no receiver writes to
  the sealed table. A receiver holds the append lock (an advisory lock) shared while it looks up the
  newest table and writes to it. `seal` takes the lock exclusively, so no receiver is between the
  two steps.

States of a batch
-----------------
Each state is named after the method that brings the batch into it:

    append    the batch is a row of the inbox, on the disk. The response may be sent now
      |
    seal      the running merge will take the batch. Later batches wait for the next merge
      |
    take      one transaction writes the counters and takes the batch. A batch that the merge cannot
      |       read is moved to the table of unreadable batches instead
    clear     the bytes of the batch are overwritten, or its table is dropped

Bad cases:

- A crash between `append` and the response: the device sends the upload again. A merge recognises
  the upload by its deduplication key, and counts it once.
- A crash before the commit of `take`: nothing was merged, and the next merge takes the batch again.
- A crash after the commit, before `clear`: the batch is not taken again, because its sequence
  number is recorded as merged (SQLite), or its row is deleted (PostgreSQL). The next `clear`
  removes its bytes.
- A reader or a dump during `clear`: the bytes stay until a later `clear`. The merge process calls
  `clear` every five seconds. Without these calls, single reports would stay on the disk until the
  next upload, perhaps for days.
- A copied database without its inbox, or with an older inbox: `SqliteInbox` refuses it.
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

from rappor_server.base.errors import DatabaseFileError, StoreError
from rappor_server.storage import schema
from rappor_server.storage.bulk import insert_rows
from rappor_server.storage.database import (
    TODAY,
    LockedError,
    begin_immediate,
    erase_traces,
    lock_maintenance,
    open_engine,
    sqlite_url,
    translate_errors,
    write_transaction,
)

MAX_MERGE_BYTES: Final = 8_000_000
"""Largest total size, in bytes, of the batches that one transaction merges. The value bounds the
memory and the duration of the transaction. A larger value merges faster."""
_MAX_MERGE_BATCHES: Final = 4096
"""Largest number of batches that one transaction merges. The value bounds the memory of the list of
their sizes. A larger value merges many small batches in fewer transactions."""
_APPEND_LOCK: Final = 0x524150504F54
"""Number of an advisory lock on PostgreSQL. Receivers hold the lock shared while they add a batch.
`seal` holds the lock exclusively while it creates a new table."""
_LOCK_SECONDS: Final = 0.2
"""Longest time that maintenance waits for a lock. New receivers queue behind a waiting exclusive
lock, so a larger value delays uploads."""
_LIMIT_LOCK_WAIT: Final = text(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
"""Statement that applies `_LOCK_SECONDS` to the present transaction of PostgreSQL."""
_TABLES_LOCK: Final = 0x524150504F55
"""Number of an advisory lock on PostgreSQL. `count_contents` holds the lock shared while it reads
all tables. `clear` holds the lock exclusively while it drops tables."""
_WRONG_INBOX: Final = (
    "{path} must be the inbox of this database, got one that is missing or older: put the right "
    "one back, or restore the database into a new file"
)
_CREATE: Final = (
    # AUTOINCREMENT: SQLite never assigns a number again, even after all rows were deleted. A new
    # batch with a number that is not larger than the number of the last merged batch would count
    # as merged, and would be lost.
    "CREATE TABLE IF NOT EXISTS inbox (seq INTEGER PRIMARY KEY AUTOINCREMENT, day TEXT NOT NULL, "
    "reports INTEGER NOT NULL, data BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS params (fingerprint TEXT PRIMARY KEY, document TEXT NOT NULL)",
)
"""These statements create the tables of an inbox file of SQLite."""
_APPEND: Final = (  # TODAY is a constant
    f"WITH receipt AS MATERIALIZED (SELECT COALESCE(%s::date, {TODAY}) AS day) "  # noqa: S608
    "SELECT append_batch(day, %s, %s) FROM receipt WHERE day <= %s"
)
"""Statement of PostgreSQL that adds a batch to the newest inbox table. Its parameters are a day or
NULL for the present day, the number of reports, the bytes of the batch, and the last day on which
the batch may be added. On a later day the statement adds nothing, and returns no row. The function
`append_batch` (`schema.py`) chooses the table under a lock, so no newer table is created before the
batch is added. The clock is read once (MATERIALIZED): two readings may lie on both sides of
midnight."""
_TOTALS: Final = "SELECT count(*), coalesce(sum(reports), 0), coalesce(sum(length(data)), 0) FROM"
"""A query that begins with this text counts batches, reports and bytes of an inbox table."""
_SQLITE_TABLE: Final = schema.inbox_table("inbox")
"""An inbox file of SQLite has this single table of batches."""


class InboxContents(NamedTuple):
    """Totals of the batches that are not merged yet.

    Attributes
    ----------
    batches : number of batches
    reports : number of reports in the batches
    n_bytes : size of the batches, in bytes
    unreadable : number of batches in the table `unreadable_batch`, which no merge could read. The
        other three numbers do not include them
    """

    batches: int
    reports: int
    n_bytes: int
    unreadable: int


class Batch(NamedTuple):
    """One row of the inbox: some uploads, encoded as `storage.record.encode` returns them.

    Attributes
    ----------
    day : day of receipt (UTC). PostgreSQL replaces None by the day of its own clock.
    reports : number of accepted reports
    data : the encoded record
    """

    day: datetime.date | None
    reports: int
    data: bytes


class SqliteInbox:
    """The inbox of an SQLite database: a second file, FILE-inbox beside the database FILE."""

    def __init__(self, engine: Engine, max_merge_bytes: int) -> None:
        self._main = engine
        self._max_merge_bytes = max_merge_bytes
        self._last_sealed = 0
        self._path = Path(f"{engine.url.database}-inbox")
        self._inbox = open_engine(sqlite_url(self._path))
        event.listen(self._inbox, "connect", self._prepare)
        self.seal()

    def _prepare(self, db: sqlite3.Connection, _: object) -> None:
        """Create the tables of a new file, and reject an inbox that is older than the database.

        An inbox is older if its largest sequence number is below the number of the last merged
        batch in the database. Bad case: an operator has copied the database without the inbox, or
        has restored an older inbox. The next batches would get sequence numbers that the database
        records as merged. A merge would skip these batches, and acknowledged uploads would be lost.
        """
        begin_immediate(db)  # two collectors may start at once and create the same tables
        for statement in (*_CREATE, "COMMIT"):
            db.execute(statement)
        # Both numbers only grow, and a batch gets its number before it is merged. So the database
        # is read first. Bad case: with the opposite order, another collector added and merged a
        # batch between the two reads, and the right inbox was rejected as older.
        last_merged = self._read_last_merged()
        # The largest number that was ever assigned. The rows do not show the number, because merged
        # rows are deleted.
        row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'inbox'").fetchone()
        last_assigned = row[0] if row else 0
        if last_merged > last_assigned:
            db.close()
            raise DatabaseFileError(_WRONG_INBOX.format(path=self._path.name))

    def _read_last_merged(self) -> int:
        """Return the sequence number of the last merged batch; 0 before the first merge."""
        with translate_errors(), self._main.connect() as main:
            return int(main.scalar(select(schema.last_merged.c.seq)) or 0)

    def append(
        self,
        batch: Batch,
        params: Mapping[str, str],
        *,
        through: datetime.date = datetime.date.max,
    ) -> bool:
        """Write a batch and the parameters of its reports; both are on the disk on return.

        Parameters
        ----------
        batch : the batch
        params : canonical JSON of the parameters, by fingerprint
        through : last day of receipt that is allowed. The day is only known here, because
            PostgreSQL dates a batch by its own clock.

        Returns
        -------
        False if the day of receipt is after `through`. Then the batch was not written.

        Raises
        ------
        StoreError
            The commit failed or its outcome is unknown. The caller may append the batch again,
            because the keys of the uploads prevent that a merge counts them twice.
        """
        # An inbox of SQLite gets the day from the receiver.
        if batch.day is not None and batch.day > through:
            return False
        with write_transaction(self._inbox) as db:
            # A merge needs the parameters to read the reports. By then, the operator may have
            # replaced the registry by a registry without these parameters.
            insert_rows(db, schema.params, list(params.items()), skip_stored=True)
            db.execute(insert(_SQLITE_TABLE), batch._asdict())
        return True

    def free_bytes(self) -> float:
        """Return the free space of the disk, in bytes."""
        return shutil.disk_usage(self._path.parent).free

    def count_contents(self) -> InboxContents:
        """Return the totals of the batches that wait for a merge."""
        with translate_errors(), self._inbox.connect() as inbox, self._main.connect() as main:
            batches, reports, n_bytes = inbox.execute(text(f"{_TOTALS} inbox")).one()
            return InboxContents(batches, reports, n_bytes, count_unreadable(main))

    def seal(self) -> None:
        """Fix the set of batches that the following calls of `take` return.

        Batches that arrive later stay in the inbox. Without this limit, a merge under load would
        never end: further batches arrive during each of its transactions.
        """
        # SQLite has one writer, so sequence numbers increase in the order of commits. No batch with
        # a smaller number can appear later.
        with translate_errors(), self._inbox.connect() as inbox:
            self._last_sealed = inbox.scalar(select(func.max(_SQLITE_TABLE.c.seq))) or 0

    def take(self, db: Connection) -> list[Batch]:
        """Return the next sealed batches, oldest first.

        After the commit of `db`, no call returns these batches again. The sizes of the batches add
        up to `max_merge_bytes` at most, unless a single batch is larger. An empty list means that
        the inbox has no further sealed batch.

        Parameters
        ----------
        db : a transaction of the database, which also writes the counters
        """
        seq = _SQLITE_TABLE.c.seq
        # The number is read in the transaction `db`, which excludes other merges. A number that was
        # read before could be outdated, and its batches would count twice.
        last_merged = int(db.scalar(select(schema.last_merged.c.seq)) or 0)
        with self._inbox.connect() as inbox:
            last = _find_last_of_merge(
                inbox,
                _SQLITE_TABLE,
                self._max_merge_bytes,
                seq > last_merged,
                seq <= self._last_sealed,
            )
            query = _select_batches(inbox, _SQLITE_TABLE).where(seq > last_merged, seq <= last)
            batches = _read_batches(inbox.execute(query))
            if batches:
                params = inbox.execute(select(schema.params)).all()
                insert_rows(db, schema.params, params, skip_stored=True)
                db.execute(update(schema.last_merged).values(seq=last))
        return batches

    def clear(self) -> None:
        """Overwrite the merged batches on the disk, and empty the write-ahead logs of both files.

        While a process reads a file, its log cannot be emptied. A later call then empties the log.
        """
        last_merged = self._read_last_merged()
        # The deletion overwrites the rows with zeros in the file (`secure_delete`). The write-ahead
        # logs contain copies of the same pages: the inbox's log the batches, and the database's log
        # earlier values of counters, whose differences are small sums of reports.
        with write_transaction(self._inbox) as inbox:
            inbox.execute(delete(_SQLITE_TABLE).where(_SQLITE_TABLE.c.seq <= last_merged))
        for path in (self._path, Path(str(self._main.url.database))):
            erase_traces(path, seconds=_LOCK_SECONDS)

    def close(self) -> None:
        """Close the connections to the inbox."""
        self._inbox.dispose()


class PostgresInbox:
    """The inbox of a PostgreSQL database: tables inbox_N. All tables but the newest are sealed.

    The methods are documented at `SqliteInbox`.
    """

    def __init__(self, engine: Engine, max_merge_bytes: int) -> None:
        self._engine = engine
        self._max_merge_bytes = max_merge_bytes
        self._stored_fingerprints: set[str] = set()
        self._connection: Connection | None = None

    def append(
        self,
        batch: Batch,
        params: Mapping[str, str],
        *,
        through: datetime.date = datetime.date.max,
    ) -> bool:
        """Write a batch and the parameters of its reports; both are on the disk on return.

        A connection may have broken while it was idle. If a connection fails that was opened by an
        earlier call, a new connection is opened and the batch is written once more. A failure of a
        new connection is raised.
        """
        is_new_connection = self._connection is None
        try:
            return self._append(batch, params, through)
        except BaseException as error:
            # After any exception the state of the connection is unknown, so the connection is
            # closed. The server may have committed before the connection broke. Writing the batch
            # again is safe, because a merge counts each upload key once.
            self.close()
            if is_new_connection or not isinstance(error, StoreError):
                raise
            return self.append(batch, params, through=through)

    def _append(self, batch: Batch, params: Mapping[str, str], through: datetime.date) -> bool:
        """Add a batch by one statement that commits itself; return whether the batch was added.

        The statement takes and releases the append lock. A receiver that hangs between two
        statements of a longer transaction would hold the lock, and `seal` could not create the next
        table.
        """
        # The parameters are committed first. Parameters without reports do no harm, but a merge
        # cannot read a batch without its parameters. They are inserted in sorted order, because two
        # receivers that insert the same rows in different orders would wait for each other.
        if new := params.keys() - self._stored_fingerprints:
            with write_transaction(self._engine) as db:
                rows = [(fingerprint, params[fingerprint]) for fingerprint in sorted(new)]
                insert_rows(db, schema.params, rows, skip_stored=True)
            self._stored_fingerprints |= new
        with translate_errors():
            if self._connection is None:
                connection = self._engine.connect()
                self._connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            row = self._connection.exec_driver_sql(_APPEND, (*batch, through)).first()
        return row is not None

    def free_bytes(self) -> float:
        """Return infinity: the disk belongs to the database server."""
        return float("inf")

    def count_contents(self) -> InboxContents:
        """Return the totals of the batches that wait for a merge."""
        with translate_errors(), self._engine.connect() as db:
            # The shared lock prevents that `clear` of another host drops a table after this
            # transaction has read the number of the table.
            db.execute(select(func.pg_advisory_xact_lock_shared(_TABLES_LOCK)))
            totals = [db.execute(text(f"{_TOTALS} inbox_{n}")).one() for n in _read_numbers(db)]
            batches, reports, n_bytes = (int(sum(column)) for column in zip(*totals, strict=True))
            return InboxContents(batches, reports, n_bytes, count_unreadable(db))

    def seal(self) -> None:
        """Seal the newest table if it has batches: create the next table, to which receivers write.

        Raises
        ------
        LockedError
            A receiver has held the append lock for longer than `_LOCK_SECONDS`.
        """
        with write_transaction(self._engine) as db:
            db.execute(_LIMIT_LOCK_WAIT)
            # The exclusive lock is granted after every running append has committed. Otherwise an
            # append that looked up the newest table before could commit its row afterwards, into
            # a sealed table that `clear` may drop.
            db.execute(select(func.pg_advisory_xact_lock(_APPEND_LOCK)))
            number = _read_numbers(db)[-1]
            # Without this check, an idle collector would create a table with each merge.
            if _is_empty(db, _build_numbered_table(number)):
                return
            _build_numbered_table(number + 1).create(db)
            db.execute(insert(schema.inbox_number).values(n=number + 1))

    def take(self, db: Connection) -> list[Batch]:
        """Delete the next batches from the oldest sealed table with batches, and return them."""
        for table in map(_build_numbered_table, _read_numbers(db)[:-1]):
            last = _find_last_of_merge(db, table, self._max_merge_bytes)
            statement = delete(table).where(table.c.seq <= last)
            if batches := _read_batches(db.execute(statement.returning(*table.c))):
                return batches
        return []

    def clear(self) -> None:
        """Drop the empty sealed tables.

        A dump may still read a table. `clear` then gives up after `_LOCK_SECONDS`, and a later call
        drops the table.
        """
        with contextlib.suppress(LockedError), write_transaction(self._engine) as db:
            db.execute(_LIMIT_LOCK_WAIT)
            lock_maintenance(db)
            # Wait for `count_contents` of another host. It reads the numbers first and the tables
            # afterwards, and would fail if a table disappeared in between.
            db.execute(select(func.pg_advisory_xact_lock(_TABLES_LOCK)))
            for number in _read_numbers(db)[:-1]:
                if _is_empty(db, table := _build_numbered_table(number)):
                    table.drop(db)
                    columns = schema.inbox_number.c
                    db.execute(delete(schema.inbox_number).where(columns.n == number))

    def close(self) -> None:
        """Close the connection, and clear the set of the parameters that were stored by it."""
        # Case: the connection broke because an operator restored the database from a backup. The
        # restored database may lack parameters that were stored before.
        self._stored_fingerprints.clear()
        if self._connection is not None:
            with contextlib.suppress(StoreError), translate_errors():
                self._connection.invalidate()
                self._connection.close()
            self._connection = None


Inbox = SqliteInbox | PostgresInbox
"""Type of an inbox. An inbox object is not thread-safe: one thread uses it at a time."""


def open_inbox(engine: Engine, *, max_merge_bytes: int = MAX_MERGE_BYTES) -> Inbox:
    """Return the inbox of a database.

    Parameters
    ----------
    engine : the database
    max_merge_bytes : largest total size of the batches that `take` returns, in bytes

    Raises
    ------
    StoreError
        The inbox of an SQLite database is missing or older than the database.
    """
    inbox_class = SqliteInbox if engine.dialect.name == "sqlite" else PostgresInbox
    return inbox_class(engine, max_merge_bytes)


def _build_numbered_table(number: int) -> Table:
    """Return the table inbox_N of PostgreSQL, with N = `number`."""
    return schema.inbox_table(f"inbox_{number}")


def _read_numbers(db: Connection) -> Sequence[int]:
    """Return the numbers of PostgreSQL's tables inbox_N, in order; the last is not sealed."""
    columns = schema.inbox_number.c
    return db.execute(select(columns.n).order_by(columns.n)).scalars().all()


def _is_empty(db: Connection, table: Table) -> bool:
    """Return whether a table has no batch."""
    return db.execute(select(table.c.seq).limit(1)).first() is None


def _select_batches(db: Connection, table: Table) -> Select[Any]:
    """Return a query of the batches of a table.

    In SQLite a day is text. A damaged day may be bytes that are not valid text, and the driver
    would then fail for the whole query. The query therefore asks for bytes, and `_parse_day` parses
    them.
    """
    columns: list[ColumnElement[Any]] = [table.c.day, table.c.data]
    if db.dialect.name == "sqlite":
        columns = [cast(column, LargeBinary).label(column.key) for column in columns]
    return select(*columns)


def _read_batches(rows: Iterable[Any]) -> list[Batch]:
    """Return the batches of rows with the columns day and data.

    The batches have the number of reports 0, because a merge counts the reports in the records.
    """
    return [Batch(_parse_day(row.day), 0, bytes(row.data)) for row in rows]


def _parse_day(value: Any) -> datetime.date | None:
    """Return the day in a column, or None if the column is damaged."""
    if isinstance(value, datetime.date):
        return value
    with contextlib.suppress(ValueError):
        return datetime.date.fromisoformat(value.decode())
    return None


def _find_last_of_merge(
    db: Connection, table: Table, max_bytes: int, *conditions: ColumnElement[bool]
) -> int:
    """Return the sequence number of the last batch that one transaction merges.

    The transaction takes batches in the order of their sequence numbers, up to `max_bytes`
    together. It takes the first batch whatever its size, because a batch larger than `max_bytes`
    would otherwise block the inbox. Returns 0 if no batch meets the conditions.
    """
    sizes = select(table.c.seq, func.length(table.c.data)).where(*conditions).order_by(table.c.seq)
    last, n_bytes = 0, 0
    for number, size in db.execute(sizes.limit(_MAX_MERGE_BATCHES)):
        if n_bytes and n_bytes + size > max_bytes:
            break
        last, n_bytes = number, n_bytes + size
    return last


def take_unreadable(db: Connection) -> list[Batch]:
    """Return the unreadable batches; the commit of `db` deletes them.

    Raises
    ------
    LockedError
        Another transaction of PostgreSQL reads the table. TRUNCATE gives the table a new file, so
        it must wait for readers.
    """
    batches = _read_batches(db.execute(_select_batches(db, schema.unreadable_batch)))
    if db.dialect.name == "sqlite":
        db.execute(delete(schema.unreadable_batch))
    else:
        # DELETE would leave the rows in the pages of the table, where a thief of the disk finds
        # single reports.
        db.execute(_LIMIT_LOCK_WAIT)
        db.execute(text("TRUNCATE unreadable_batch"))
    return batches


def count_unreadable(db: Connection) -> int:
    """Return the number of batches that no merge could read."""
    return int(db.scalar(select(func.count()).select_from(schema.unreadable_batch)) or 0)
