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
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final, Self

from sqlalchemy import Connection, Engine, func, select

from rappor_server.errors import ConflictError, StoreError
from rappor_server.ingest.validate import AcceptedReport, Submission
from rappor_server.storage import day_tables, schema
from rappor_server.storage.bulk import BulkDelete, BulkInsert, BulkSelect, BulkUpdate
from rappor_server.storage.database import (
    DeadlockError,
    check_schema,
    failing_as_store_error,
    is_replaced,
    open_engine,
    open_to_write,
)
from rappor_server.storage.old_ids import OldIds
from rappor_server.storage.tallies import Cell, Tally, sum_reports

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
    """What this run has written of a day; `ended` are shards of it whose runs have ended."""

    id: int
    day: datetime.date
    ended: tuple[int, ...]
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
        with self._writing() as db:
            if not (days := day_tables.days_to_write(db)):
                raise _TryAgainError("the tables of ids have been deleted")
            if shard is None or shard.day != today:
                shard = _new_shard(db, today)
            fresh, results = self._admit(db, submissions, days)
            tallies = self._count(db, shard, fresh)
            refused = self._refuse(db, shard, fresh, refusals)
        shard.tallies |= tallies
        shard.refusals = refused
        self._named_params |= {cell.fingerprint for cell in tallies}
        self._shard = shard
        return results

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection]:
        """Open a transaction on the writer's own connection, which any failure closes.

        A group whose connection broke while it was idle is worth another try at once, and so is
        one that was undone for the sake of another transaction.
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
            if isinstance(error, DeadlockError) or (is_broken and isinstance(error, StoreError)):
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

    def _admit(
        self, db: Connection, submissions: Sequence[Submission], days: Sequence[datetime.date]
    ) -> tuple[list[Submission], list[bytes | ConflictError]]:
        """Insert the ids into the newest table; return the new ones, and all answers.

        An id of an earlier day is copied to the newest table, so that it lives on with its
        retries.
        """
        first: dict[bytes, Submission] = {}
        for submission in submissions:
            first.setdefault(submission.id, submission)
        stored = self._stored_before(db, days[1:], first.keys())
        inserted = self._insert_ids(db, days[0], first, stored)
        fresh = [first[key] for key in inserted - stored.keys()]
        stored |= _stored(db, days[:1], first.keys() - inserted - stored.keys())
        stored |= {each.id: (each.mac, each.answer) for each in fresh}
        results: list[bytes | ConflictError] = []
        for submission in submissions:
            mac, answer = stored[submission.id]
            is_same = mac in (submission.mac, _ANY_BODY)
            results.append(answer if is_same else ConflictError())
        return fresh, results

    def _stored_before(
        self, db: Connection, days: Sequence[datetime.date], ids: Set[bytes]
    ) -> dict[bytes, tuple[bytes, bytes]]:
        """Return MAC and answer of the ids that are in the tables of earlier days."""
        self._old_ids.expect(days)
        unread = self._old_ids.unread()
        read = [day for day in days if day not in unread]
        return _stored(db, unread, ids) | _stored(db, read, self._old_ids.suspects(ids))

    def _insert_ids(
        self,
        db: Connection,
        day: datetime.date,
        first: Mapping[bytes, Submission],
        stored: Mapping[bytes, tuple[bytes, bytes]],
    ) -> set[bytes]:
        """Insert ids and return the new ones; wait for ids that another collector is writing."""
        rows = [
            (key, *(stored.get(key) or (first[key].mac, first[key].answer)))
            for key in sorted(first)  # in one order everywhere: no deadlock
        ]
        return {bytes(key) for key in _uploads(day).run(db, rows)}

    def _count(
        self, db: Connection, shard: _Shard, fresh: Sequence[Submission]
    ) -> dict[Cell, Tally]:
        """Write the new totals of all counters that the submissions add to, and return them."""
        accepted = [report for submission in fresh for report in submission.accepted]
        added = sum_reports(accepted)
        for cell, tally in _take_over(db, shard, added.keys() - shard.tallies.keys()):
            added[cell] += tally
        totals = {
            cell: shard.tallies[cell] + tally if cell in shard.tallies else tally
            for cell, tally in added.items()
        }
        self._name_params(db, accepted)
        old: list[tuple[Any, ...]] = []
        new: list[tuple[Any, ...]] = []
        for cell, tally in totals.items():
            key = (cell.metric, cell.fingerprint, shard.day, cell.quarantine, cell.cohort, shard.id)
            rows = old if cell in shard.tallies else new
            rows.append((*key, tally.reports, tally.to_bytes()))
        written = _OLD_TALLIES.run(db, old) + len(_TALLIES.run(db, new))
        if written != len(totals):
            raise _TryAgainError("the counters of this day were moved")
        self._keep(db, shard.day, accepted)
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
