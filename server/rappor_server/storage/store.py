"""What is kept of uploads: sums, and the ids that make a retry harmless.

Every run of a collector writes a shard of its own each day, one row for each counter, and
remembers what it has written. It never reads a counter to add to it, and no two collectors ever
touch the same row. It continues in a new shard after any failure, because the collector then
cannot tell what the database has kept, and when its counters were moved meanwhile, which happens
only to a collector whose clock lags. A new shard takes over the counters of those that have ended,
cell by cell, so that a restart does not leave single reports in rows of their own.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final, Self

from sqlalchemy import Connection, Engine, func, select

from rappor_server.errors import ConflictError, StoreError
from rappor_server.ingest.validate import AcceptedReport, Submission
from rappor_server.storage import day_tables, schema
from rappor_server.storage.bulk import BulkDelete, BulkInsert, BulkSelect, BulkUpdate
from rappor_server.storage.database import (
    UndoneError,
    check_schema,
    failing_as_store_error,
    is_replaced,
    one_journey,
    open_engine,
    open_to_write,
)
from rappor_server.storage.old_ids import OldIds
from rappor_server.storage.tallies import Cell, Tally, cell_of, sum_reports

_PARAMS: Final = BulkInsert(schema.params)
_TALLIES: Final = BulkInsert(schema.tally, returning="cohort")
_OLD_TALLIES: Final = BulkUpdate(
    schema.tally, keys=("metric", "params", "day", "quarantine", "cohort", "shard")
)
_TAKEN_OVER: Final = BulkDelete(
    schema.tally,
    keys=("metric", "params", "day", "quarantine", "cohort", "shard"),
    returning=("metric", "params", "quarantine", "cohort", "reports", "ones"),
)
_REFUSALS: Final = BulkInsert(schema.refusal, keys=("day", "metric", "reason", "shard"))
_KEY_BYTES: Final = 16
_WARY_GROUPS: Final = 64
"""How many groups take the common road after one that was undone for a retry: who sends retries
without end would have every group stored twice."""
_ANY_BODY: Final = b""
"""The MAC of uploads that were stored when bodies had plain hashes: a retry is not compared."""
_ALIVE: Final = 0x52415053
"""On PostgreSQL the class of the advisory locks, one for each shard whose collector lives."""

Refusals = Mapping[tuple[str, str], int]
"""(metric, reason) -> number."""


class _TryAgainError(StoreError):
    """Nothing was stored, and the same group can be stored in a new shard at once."""


@dataclass
class _Shard:
    """What this run has written of a day.

    `ended` are shards of the day whose runs have ended, `days` those of the tables of ids when they
    were last asked for, and `wary` groups will not be taken for new.
    """

    id: int
    day: datetime.date
    ended: tuple[int, ...]
    days: list[datetime.date] = field(default_factory=list)
    wary: int = 0
    tallies: dict[Cell, Tally] = field(default_factory=dict)
    refusals: Counter[tuple[str, str]] = field(default_factory=Counter)


class Store:
    """One database; `commit` is for one thread, the rest for any."""

    def __init__(self, engine: Engine) -> None:
        """Use an engine whose database has the schema of this program."""
        self.engine = engine
        self._shard: _Shard | None = None
        self._own: Connection | None = None
        self._named_params: set[str] = set()
        self._old_ids = OldIds()

    @classmethod
    def open(cls, url: str) -> Self:
        """Open a database; SchemaError unless it has the schema of this program."""
        engine = open_engine(url)
        try:
            check_schema(engine)
        except StoreError:
            engine.dispose()
            raise
        return cls(engine)

    def close(self) -> None:
        """Close all connections to the database."""
        self._drop()
        self.engine.dispose()

    def ping(self) -> None:
        """Raise StoreError unless the database answers a query."""
        with failing_as_store_error(), self.engine.connect() as db:
            db.execute(select(1))

    def commit(
        self,
        submissions: Sequence[Submission],
        refusals: Refusals,
        *,
        today: datetime.date,
    ) -> list[bytes | ConflictError]:
        """Store a group of uploads in one transaction, on the disk when this returns.

        Returns for each submission the answer to send: an id that was stored before with the same
        body has its stored answer and is not counted again; with another body it is a
        ConflictError. `refusals` counts uploads that were refused whole. Raises StoreError if it
        is not certain that everything was stored; the same group may then be committed again.
        """
        try:
            return self._commit(submissions, refusals, today)
        except _TryAgainError:
            return self._commit(submissions, refusals, today)

    def read_old_ids(self) -> bool:
        """Read some ids of earlier days, so that less is to be looked up; tell if there are more.

        Nothing depends on it but the time of a commit, of which it is a small part.
        """
        if self._old_ids.is_done():
            return False
        shard, self._shard = self._shard, None  # until all is well
        with self._writing() as db:
            self._old_ids.expect(day_tables.days_to_write(db)[1:])
            self._old_ids.read_step(db)
        self._shard = shard
        return not self._old_ids.is_done()

    def _commit(
        self, submissions: Sequence[Submission], refusals: Refusals, today: datetime.date
    ) -> list[bytes | ConflictError]:
        shard = self._shard
        self._shard = None  # until all is well
        if shard is None or shard.day != today:
            day_tables.open_day(self.engine, today)
        first: dict[bytes, Submission] = {}
        for submission in submissions:
            first.setdefault(submission.id, submission)
        with self._writing() as db:
            if shard is None or shard.day != today:
                shard = _new_shard(db, today)
            fresh = list(first.values())
            stored: dict[bytes, tuple[bytes, bytes]] = {}
            if (tallies := self._add_new(db, shard, first)) is None:
                fresh, stored = self._admit(db, shard, first)
                tallies = self._count(db, shard, fresh)
            self._keep(db, shard.day, _accepted(fresh))
            refused = self._refuse(db, shard, fresh, refusals)
        shard.tallies |= tallies
        shard.refusals = refused
        self._named_params |= {cell.fingerprint for cell in tallies}
        self._shard = shard
        stored |= {each.id: (each.mac, each.answer) for each in fresh}
        return [_result(each, *stored[each.id]) for each in submissions]

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection]:
        """Open a transaction on the writer's own connection, which any failure closes.

        A group whose connection broke while it was idle is worth another try at once, and so is
        one that was undone for a reason that may be over.
        """
        was_idle = self._own is not None
        try:
            with failing_as_store_error():
                self._own = db = self._own or open_to_write(self.engine)
                with db.begin():
                    yield db
                if is_replaced(db):
                    raise _TryAgainError("another file has taken the name of the database")
        except BaseException as error:
            is_broken = was_idle and self._own is not None and self._own.invalidated
            self._drop()
            if isinstance(error, UndoneError) or (is_broken and isinstance(error, StoreError)):
                raise _TryAgainError(str(error)) from None
            raise

    def _drop(self) -> None:
        """Close the writer's own connection; its locks end with it, so it is not used again.

        Another one may lead to another state of the database, so old ids are read again.
        """
        if self._own is not None:
            with contextlib.suppress(StoreError), failing_as_store_error():
                self._own.invalidate()
                self._own.close()
        self._own = None
        self._old_ids = OldIds()

    def _add_new(
        self, db: Connection, shard: _Shard, first: Mapping[bytes, Submission]
    ) -> dict[Cell, Tally] | None:
        """Store a group of new ids and known counters, as nearly all are, in `one_journey`.

        Whether the ids are new, and the table that was the newest a moment ago still is, comes back
        with the answer. Returns the new totals of the counters; None if nothing was stored.
        """
        if db.dialect.name != "postgresql" or not self._seem_new(shard, first):
            return None
        with one_journey(db) as execute:
            days = day_tables.start_to_write(execute)
            inserted = _uploads(shard.days[0]).start(execute, _upload_rows(first, {}))
            totals = _totals(shard, sum_reports(_accepted(first.values())))
            rows = [_tally_row(shard, *total) for total in totals.items()]
            counted = _OLD_TALLIES.start(execute, rows)
        has_retry = inserted.rowcount < len(first)
        if has_retry or [day for (day,) in days.fetchall()] != shard.days:
            shard.wary = _WARY_GROUPS if has_retry else 0
            db.exec_driver_sql("ROLLBACK AND CHAIN")
            return None
        if counted.rowcount < len(rows):
            raise _TryAgainError("the counters of this day were moved")
        return totals

    def _seem_new(self, shard: _Shard, first: Mapping[bytes, Submission]) -> bool:
        """Return whether no earlier day has the ids, and the shard has all that they add to."""
        if shard.wary:
            shard.wary -= 1
            return False
        cells = [cell_of(report) for report in _accepted(first.values())]
        return (
            bool(cells)
            and all(cell in shard.tallies for cell in cells)
            and self._old_ids.are_new(shard.days[1:], first.keys())
        )

    def _admit(
        self, db: Connection, shard: _Shard, first: Mapping[bytes, Submission]
    ) -> tuple[list[Submission], dict[bytes, tuple[bytes, bytes]]]:
        """Insert ids into the newest table, and wait for those that another collector is writing.

        An id of an earlier day is copied to the newest table, so that it lives on with its
        retries. Returns the uploads that are new, and MAC and answer of all others.
        """
        if not (days := day_tables.days_to_write(db)):
            raise _TryAgainError("the tables of ids have been deleted")
        shard.days = days
        stored = self._stored_before(db, days[1:], first.keys())
        rows = _upload_rows(first, stored)
        inserted = {bytes(key) for key in _uploads(days[0]).run(db, rows)}
        fresh = [first[key] for key in inserted - stored.keys()]
        stored |= _stored(db, days[:1], first.keys() - inserted - stored.keys())
        return fresh, stored

    def _stored_before(
        self, db: Connection, days: Sequence[datetime.date], ids: Set[bytes]
    ) -> dict[bytes, tuple[bytes, bytes]]:
        """Return MAC and answer of the ids that are in the tables of earlier days."""
        self._old_ids.expect(days)
        unread = self._old_ids.unread()
        read = [day for day in days if day not in unread]
        return _stored(db, unread, ids) | _stored(db, read, self._old_ids.suspects(ids))

    def _count(
        self, db: Connection, shard: _Shard, fresh: Sequence[Submission]
    ) -> dict[Cell, Tally]:
        """Write the new totals of all counters that the submissions add to, and return them."""
        accepted = _accepted(fresh)
        added = sum_reports(accepted)
        for cell, tally in _take_over(db, shard, added.keys() - shard.tallies.keys()):
            added[cell] += tally
        totals = _totals(shard, added)
        self._name_params(db, accepted)
        old: list[tuple[Any, ...]] = []
        new: list[tuple[Any, ...]] = []
        for cell, tally in totals.items():
            rows = old if cell in shard.tallies else new
            rows.append(_tally_row(shard, cell, tally))
        written = _OLD_TALLIES.run(db, old) + len(_TALLIES.run(db, new))
        if written != len(totals):
            raise _TryAgainError("the counters of this day were moved")
        return totals

    def _name_params(self, db: Connection, accepted: Sequence[AcceptedReport]) -> None:
        """Store the parameter sets that this run has not stored yet."""
        new = {report.fingerprint: report.params for report in accepted}
        rows = [
            (fingerprint, new[fingerprint].to_json())
            for fingerprint in sorted(new.keys() - self._named_params)
        ]
        _PARAMS.run(db, rows)

    def _keep(self, db: Connection, day: datetime.date, accepted: Sequence[AcceptedReport]) -> None:
        """Store the noisy reports of metrics that keep them, in the order of random keys."""
        keys = sorted(secrets.token_bytes(_KEY_BYTES) for report in accepted if report.keep)
        if not keys:
            return
        reports = [report for report in accepted if report.keep]
        secrets.SystemRandom().shuffle(reports)
        day_tables.add(db, day_tables.KEPT, day)
        rows = [
            (key, report.metric, report.fingerprint, report.cohort, report.bits)
            for key, report in zip(keys, reports, strict=True)
        ]
        BulkInsert(day_tables.table_of(day_tables.KEPT, day)).run(db, rows)
        day_tables.note_unshuffled(db, day)  # `prune` may have shuffled it since it was added

    def _refuse(
        self,
        db: Connection,
        shard: _Shard,
        fresh: Sequence[Submission],
        refusals: Refusals,
    ) -> Counter[tuple[str, str]]:
        """Write the new numbers of refusals, and return those of the whole shard."""
        added = Counter(refusals)
        for submission in fresh:
            if submission.refusals:  # few have any, and an update costs
                added.update(submission.refusals)
        totals = shard.refusals + added
        rows = [
            (shard.day, metric, reason, shard.id, totals[metric, reason])
            for metric, reason in added
        ]
        _REFUSALS.run(db, rows)
        return totals


def _new_shard(db: Connection, today: datetime.date) -> _Shard:
    row = db.execute(schema.shard.insert().values(day=today)).inserted_primary_key
    assert row is not None
    own = int(row[0])
    return _Shard(own, today, _ended_shards(db, own, today))


def _ended_shards(db: Connection, own: int, today: datetime.date) -> tuple[int, ...]:
    """Return the shards of a day whose runs have ended, and show that the own one has not.

    On PostgreSQL each run holds a lock for as long as its connection lasts. SQLite has one
    collector, so all others have ended.
    """
    columns = schema.tally.c
    query = select(columns.shard).where(columns.day == today, columns.shard != own).distinct()
    shards = tuple(db.execute(query).scalars())
    if db.dialect.name != "postgresql":
        return shards
    db.execute(select(func.pg_advisory_unlock_all()))
    db.execute(select(func.pg_advisory_lock(_ALIVE, own)))
    return tuple(
        shard
        for shard in shards
        if db.execute(select(func.pg_try_advisory_xact_lock(_ALIVE, shard))).scalar_one()
    )


def _take_over(db: Connection, shard: _Shard, cells: Set[Cell]) -> Iterator[tuple[Cell, Tally]]:
    """Delete the counters that ended shards have of cells, and yield them."""
    rows = [
        (cell.metric, cell.fingerprint, shard.day, cell.quarantine, cell.cohort, ended)
        for ended in shard.ended
        for cell in cells
    ]
    for *key, reports, ones in _TAKEN_OVER.run(db, rows):
        metric, fingerprint, quarantine, cohort = key
        yield (
            Cell(metric, fingerprint, bool(quarantine), cohort),
            Tally.from_bytes(reports, bytes(ones)),
        )


@functools.cache
def _uploads(day: datetime.date) -> BulkInsert:
    return BulkInsert(day_tables.table_of(day_tables.UPLOAD, day), returning="id")


def _accepted(submissions: Iterable[Submission]) -> list[AcceptedReport]:
    return [report for each in submissions for report in each.accepted]


def _result(submission: Submission, mac: bytes, answer: bytes) -> bytes | ConflictError:
    """Return the answer to an upload, given what is stored under its id."""
    return answer if mac in (submission.mac, _ANY_BODY) else ConflictError()


def _totals(shard: _Shard, added: Mapping[Cell, Tally]) -> dict[Cell, Tally]:
    """Add to what a shard has written of the same counters."""
    before = shard.tallies
    return {
        cell: before[cell] + tally if cell in before else tally for cell, tally in added.items()
    }


def _tally_row(shard: _Shard, cell: Cell, tally: Tally) -> tuple[Any, ...]:
    key = (cell.metric, cell.fingerprint, shard.day, cell.quarantine, cell.cohort, shard.id)
    return (*key, tally.reports, tally.to_bytes())


def _upload_rows(
    first: Mapping[bytes, Submission], stored: Mapping[bytes, tuple[bytes, bytes]]
) -> list[tuple[bytes, bytes, bytes]]:
    """Return the rows of ids, in one order everywhere, so that collectors never deadlock."""
    return [
        (key, *(stored.get(key) or (first[key].mac, first[key].answer))) for key in sorted(first)
    ]


def _stored(
    db: Connection, days: Sequence[datetime.date], ids: Collection[bytes]
) -> dict[bytes, tuple[bytes, bytes]]:
    """Return MAC and answer of the ids that are in the tables of these days, by one statement."""
    if not ids or not days:
        return {}
    found = _lookup(tuple(days)).run(db, sorted(ids))
    return {bytes(key): (bytes(mac), bytes(answer)) for key, mac, answer in found}


@functools.lru_cache(maxsize=64)
def _lookup(days: tuple[datetime.date, ...]) -> BulkSelect:
    return BulkSelect([day_tables.table_of(day_tables.UPLOAD, day) for day in days], key="id")
